"""A plan as a surgetank.yaml that `surgetank serve` takes as it is.

Rule: only what the plan decided is written; everything else stays at its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import yaml

from surgetank.policy.calendar import CalendarEvent
from surgetank.policy.plan import ScaleSpec
from surgetank.studies.planning.plan import Plan
from surgetank.studies.planning.thresholds import TenantLimit
from surgetank.studies.planning.wish import Wish


def configuration(
    plan: Plan, wish: Wish, *, command: str, made_by: str, is_name: Callable[[str], bool]
) -> str:
    """Write it. `command` starts a replica, with {port} where its port goes.

    `is_name`: whether the gateway takes a tenant's name; the quotas of others are comments.
    """
    return "".join(f"{line}\n" for line in _lines(plan, wish, command, made_by, is_name))


def _lines(
    plan: Plan, wish: Wish, command: str, made_by: str, is_name: Callable[[str], bool]
) -> Iterator[str]:
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
    yield from _tenants(limits.tenants, is_name)
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


def _tenants(found: Sequence[TenantLimit], is_name: Callable[[str], bool]) -> Iterator[str]:
    taken = [limit for limit in found if is_name(limit.name)]
    others = [limit for limit in found if not is_name(limit.name)]
    if taken:
        yield "tenants:"
    yield from _quotas(taken)
    if others:
        yield "# The gateway's names are of letters, digits and . _ @ : / -: choose some for"
        yield from _quotas(others, "# ")


def _quotas(found: Sequence[TenantLimit], mark: str = "") -> Iterator[str]:
    for limit in found:
        yield f"{mark}  - name: {_text(limit.name)}"
        yield f"{mark}    requests_per_minute: {limit.requests_per_minute}"
        yield f"{mark}    tokens_per_minute: {limit.tokens_per_minute}"


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
    """One value on one line: numbers without needless digits, text quoted."""
    if isinstance(value, float):
        return f"{value:.10g}" if value != int(value) else str(int(value))
    if isinstance(value, str):  # not as JSON: its halves of an emoji are no YAML
        quoted: str = yaml.dump(value, default_style='"', allow_unicode=True, width=float("inf"))
        return quoted.rstrip("\n")
    return json.dumps(value)
