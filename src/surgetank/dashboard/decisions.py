"""The autoscaler's decisions as a person reads them: those that changed something.

Rule: a plan that repeats the one before, and did nothing, is not listed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec

from surgetank.dashboard.observation import Decision, Plan, Reason

_KEPT: Final = 100
_TEXT: Final = 300  # characters of a reason; the whole of it is in the decisions file
_LISTED: Final = 12  # reasons or effects of one decision


class Entry(msgspec.Struct, frozen=True):
    """One listed decision. `before`: the plan it replaced, None when it is the first seen."""

    t: float
    model: str
    role: str
    plan: Plan
    before: Plan | None
    reasons: list[str]
    effects: list[tuple[str, str]]
    more: int  # effects beyond those listed


class Decisions:
    """The last listed decisions, oldest first."""

    def __init__(self) -> None:
        self._plans: dict[tuple[str, str], Plan] = {}
        self.entries: deque[Entry] = deque(maxlen=_KEPT)

    def take(self, lines: Iterable[Decision]) -> list[Entry]:
        """Add lines in their order. Returns those that are listed."""
        listed = [entry for line in lines if (entry := self._entry(line)) is not None]
        self.entries.extend(listed)
        return listed

    def _entry(self, line: Decision) -> Entry | None:
        pool = (line.model, line.role)
        before = self._plans.get(pool)
        self._plans[pool] = line.plan
        if before == line.plan and not line.effects:
            return None
        effects = [(verb, str(what)) for effect in line.effects for verb, what in effect.items()]
        return Entry(
            t=line.t,
            model=line.model,
            role=line.role,
            plan=line.plan,
            before=before,
            reasons=[_sentence(reason) for reason in line.reasons[:_LISTED]],
            effects=effects[:_LISTED],
            more=max(0, len(effects) - _LISTED),
        )


def _sentence(reason: Reason) -> str:
    """The reason's own text, else its numbers."""
    if reason.text:
        return reason.text[:_TEXT]
    value = "unknown" if reason.value is None else f"{reason.value:g}"
    bound = "" if reason.threshold is None else f" (threshold {reason.threshold:g})"
    return f"{reason.signal[:_TEXT]}: {value}{bound}"
