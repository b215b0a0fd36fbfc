"""A plan as a surgetank.yaml that `surgetank serve` takes as it is.

Rule: only what the plan decided is written; everything else stays at its default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from surgetank.policy.calendar import CalendarEvent
from surgetank.policy.plan import ScaleSpec
from surgetank.studies.planning.plan import Plan
from surgetank.studies.planning.wish import Wish


def configuration(plan: Plan, wish: Wish, *, command: str, made_by: str) -> str:
    """Write it. `command` starts a replica, with {port} where its port goes."""
    return "".join(f"{line}\n" for line in _lines(plan, wish, command, made_by))


def _lines(plan: Plan, wish: Wish, command: str, made_by: str) -> Iterator[str]:
    size, limits = plan.size, plan.thresholds
    yield f"# {made_by}"
    yield f"# Simulated: {plan.attainment:.1%} of the requests within TTFT {wish.ttft:g} s and"
    yield f"# {wish.tpot:g} s a token, {plan.cost['plan'].replicas:.2f} replicas in the mean."
    yield "flow:"
    flow = limits.flow(wish.ttft)
    for name in (
        "max_in_flight",
        "max_queued",
        "queue_timeout",
        "request_timeout",
        "ttft_objective",
    ):
        yield f"  {name}: {_text(getattr(flow, name))}"
    if limits.tenants:
        yield "tenants:"
        for limit in limits.tenants:
            yield f"  - name: {_text(limit.name)}"
            yield f"    requests_per_minute: {limit.requests_per_minute}"
            yield f"    tokens_per_minute: {limit.tokens_per_minute}"
    yield "autoscaler:"
    yield from _calendar(wish.calendar)
    yield "  pools:"
    yield f"    - model: {_text(plan.model)}"
    yield f"      base: {size.base}"
    yield f"      max_replicas: {size.total}  # {size}"
    yield "      process:"
    yield f"        command: {_text(command)}"
    yield "      scale:"
    defaults = ScaleSpec()
    for field in fields(ScaleSpec):
        value = getattr(plan.scale, field.name)
        if field.name not in {"min_replicas", "max_replicas"} and value != getattr(
            defaults, field.name
        ):
            yield f"        {field.name}: {_text(value)}"


def _calendar(events: Sequence[CalendarEvent]) -> Iterator[str]:
    if not events:
        return
    yield "  calendar:"
    for event in events:
        mark = "-"
        for field in fields(CalendarEvent):
            value = getattr(event, field.name)
            if value != field.default:
                yield f"    {mark} {field.name}: {_text(value)}"
                mark = " "


def _text(value: Any) -> str:
    """JSON is YAML; numbers without needless digits."""
    if isinstance(value, float):
        return f"{value:.10g}" if value != int(value) else str(int(value))
    return json.dumps(value, ensure_ascii=True)
