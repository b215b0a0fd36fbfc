"""How hard a model's core tiers are pressed: the time to the first token one would see now.

    expected  wait in the queue at the measured rate + until a replica has room + prefill backlog /
              measured prefill rate
    seen      age of the oldest core request that waits, or that runs without a first token

The larger one counts. Neither is a mean of what was served: that would tell of an overload when it
is over. Of the replicas' oldest requests the lower median counts, so that one that hangs does not
speak for the others; and a long prompt's own prefill is not held against anyone.

Rule: looking changes nothing but the measured prefill rate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from surgetank.policy.job import Job
from surgetank.policy.ladder import DegradationLadder, Ladders, Rung
from surgetank.policy.model import Model
from surgetank.policy.placement import Load
from surgetank.policy.replica import Role
from surgetank.policy.state import FlowState


class Pressure(NamedTuple):
    """Seconds to the first token of a core request, and in words what they come from."""

    seconds: float
    reason: str


def pressure(
    state: FlowState, model: Model, ladder: DegradationLadder, ladders: Ladders, now: float
) -> Pressure:
    """Look at a model."""
    core = ladders.core
    loads = model.group(Role.BOTH).loads or model.group(Role.PREFILL).loads
    backlog = sum(load.prefill_backlog for load in loads)
    speed = ladder.prefill.look(model.prefill_done, backlog, now)
    queued = _queue_wait(model, core)
    room = _room_wait(model, loads, now)
    computed = backlog / speed if speed else 0.0
    expected = queued + room + computed
    waited = _oldest(model, core, now)
    late = _late(state, loads, ladders.rungs, speed, now)
    if max(waited, late) > expected:
        if waited >= late:
            return Pressure(waited, f"a core request has waited {waited:.2f} s")
        return Pressure(late, f"core requests run without a first token for {late:.2f} s")
    return Pressure(
        expected,
        f"a core request would wait {expected:.2f} s: queue {queued:.2f}, room {room:.2f}, "
        f"prefill {computed:.2f}",
    )


def _queue_wait(model: Model, core: Collection[int]) -> float:
    """Seconds until all that waits in the core tiers is dispatched, at the measured rate."""
    cost = owed = 0.0
    for level in model.queue:
        if level.priority in core:
            cost += level.cost
        elif level.active:
            owed += level.share
    rate = model.rate.at_least() if cost else None
    return 0.0 if rate is None else cost / (rate * max(0.01, 1 - owed))


def _room_wait(model: Model, loads: list[Load], now: float) -> float:
    """Seconds until a replica has a slot and KV, where none has: until the next request ends."""
    service = model.service
    if service is None or not model.running or not loads:
        return 0.0
    for load in loads:
        mean = load.kv_reserved // load.in_flight if load.in_flight else 0
        if load.admits(mean, 1.0, now):
            return 0.0
    return service / model.running


def _oldest(model: Model, core: Collection[int], now: float) -> float:
    """Seconds that the oldest core request has waited."""
    oldest = now
    for level in model.queue:
        if level.priority not in core or not level.active:
            continue
        for _, _, version, lane in level.heap:
            if version == lane.version:
                for *_, entry in lane.heap:
                    if entry.alive and entry.item.arrived < oldest:
                        oldest = entry.item.arrived
    return now - oldest


def _late(
    state: FlowState,
    loads: list[Load],
    rungs: Mapping[str, Rung],
    speed: float | None,
    now: float,
) -> float:
    """Seconds that core requests run without a first token: the replicas' lower median."""
    if not speed:
        return 0.0
    each = speed / max(1, len(loads))
    ages = dict.fromkeys((load.id for load in loads), 0.0)
    for job in state.jobs.values():
        if job.legs and not job.started and not rungs[job.account.tier.name]:
            load, _ = job.legs[0]
            age = now - job.arrived - _own(job, each)
            if age > ages.get(load.id, 0.0):
                ages[load.id] = age
    return sorted(ages.values())[(len(ages) - 1) // 2] if ages else 0.0


def _own(job: Job, speed: float) -> float:
    """Seconds of its own prefill."""
    return job.prompt / speed
