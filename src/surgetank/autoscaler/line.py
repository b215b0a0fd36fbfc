"""The decision log: one JSON line a tick and one for each event between ticks.

Rule: a line holds all that a decision was made from, so that it can be explained, and made again.
No request's content, ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from surgetank.policy.plan import Observation, Reason, ScalePlan
from surgetank.policy.pool import PoolEffect

_SCHEMA: Final = 1


def tick_line(
    row: Mapping[str, Any], seen: Observation, plan: ScalePlan, effects: Sequence[PoolEffect]
) -> str:
    """A tick: what was observed (what is unknown left out), the plan, why, and what is done."""
    return _line(
        row,
        observation=_known(seen),
        plan={
            "replicas": plan.replicas,
            "launch": plan.launch,
            "standbys": plan.standbys,
            "surge": plan.surge,
            "demand": plan.demand,
        },
        reasons=[_reason(reason) for reason in plan.reasons],
        rejected=[_reason(reason) for reason in plan.rejected],
        effects=[_effect(effect) for effect in effects],
    )


def event_line(
    row: Mapping[str, Any], event: str, replica: str, why: str, effects: Sequence[PoolEffect]
) -> str:
    """What happened (to a replica, if to one), and what is done about it."""
    said = {name: text for name, text in (("replica", replica), ("why", why)) if text}
    return _line(row, event=event, **said, effects=[_effect(effect) for effect in effects])


def _line(row: Mapping[str, Any], **members: Any) -> str:
    return json.dumps({"v": _SCHEMA, **row, **members}, separators=(",", ":"), ensure_ascii=False)


def _known(value: Observation) -> dict[str, Any]:
    found = ((f.name, getattr(value, f.name)) for f in fields(value))
    return {name: item for name, item in found if item is not None and item != ()}


def _reason(reason: Reason) -> dict[str, Any]:
    return {f.name: getattr(reason, f.name) for f in fields(reason)}


def _effect(effect: PoolEffect) -> dict[str, Any]:
    members = {f.name: getattr(effect, f.name) for f in fields(effect)}
    return {"do": type(effect).__name__.lower(), **members}
