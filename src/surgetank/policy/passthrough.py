"""Where a request goes that is let through whatever its replicas hold: to the least loaded.

Rule: for tenants whose admission is in shadow. No limit, no KV and no signal keeps it back; only a
replica that has just failed or shed is left alone for its short pause.
"""

from __future__ import annotations

from collections.abc import Sequence

from surgetank.policy.job import Job
from surgetank.policy.model import Model
from surgetank.policy.placement import Load, Placed
from surgetank.policy.replica import Role


def place_anyway(model: Model, job: Job, now: float) -> tuple[Placed, ...]:
    """Choose its replica, or its two; empty when all of them pause."""
    whole = model.group(Role.BOTH).loads
    groups = (whole,) if whole else [model.group(r).loads for r in (Role.PREFILL, Role.DECODE)]
    placed = [_least_loaded(loads, job, now) for loads in groups]
    return tuple(p for p in placed if p is not None) if None not in placed else ()


def _least_loaded(loads: Sequence[Load], job: Job, now: float) -> Placed | None:
    open_now = [load for load in loads if now >= load.paused_until]
    large = [load for load in open_now if load.most >= job.needs] or open_now
    fresh = [load for load in large if load.id not in job.failed_on] or large
    if not fresh:
        return None
    load = min(fresh, key=_how_full)
    return load, job.on(load)


def _how_full(load: Load) -> tuple[int, int, str]:
    return load.in_flight, load.kv_reserved, load.id
