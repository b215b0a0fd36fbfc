"""What one run cost and kept, over a stretch of its time.

Rule: what was refused, abandoned or never finished is a miss; a replica costs from being asked for
to being gone, and a standby its own part of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from surgetank.simulation.ledger import OPEN
from surgetank.simulation.result import Requests, Result
from surgetank.simulation.summary import jain


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of the requests that arrived in the stretch, and of the fleet in it."""

    requests: int
    attainment: float  # 0..1
    replica_hours: float  # standbys in full
    standby_hours: float
    p50: float | None  # TTFT, s, of what had a first token
    p95: float | None
    p99: float | None
    worst_minute: float | None  # least attainment of a minute with ten requests or more
    launches: int
    fairness: float  # Jain's index over the tenants' attainment

    def cost(self, standby_cost: float) -> float:
        """Replica-hours when a standby costs so much of a serving replica."""
        return self.replica_hours - (1 - standby_cost) * self.standby_hours


def score(result: Result, since: float, until: float, *, under_way: bool = False) -> Score:
    """Count a run from `since` to `until`, seconds of its own clock.

    `under_way`: of a run that goes on: what is still being answered is judged by its first token.
    """
    load, seen = result.scenario.workload, result.requests
    inside = (load.arrived >= since) & (load.arrived < until)
    kept = seen.attained | _streaming(seen) if under_way else seen.attained
    attained = kept & inside
    count = int(inside.sum())
    launches = sum(since <= m.asked < until and m.asked > 0 for m in result.machines)
    ttft = seen.ttft[inside]
    known = ttft[~np.isnan(ttft)]
    p50, p95, p99 = np.percentile(known, (50, 95, 99)).tolist() if len(known) else (None,) * 3
    by_tenant = [
        float(kept[inside & (load.tenant == code)].mean())
        for code in range(len(load.tenants))
        if (inside & (load.tenant == code)).any()
    ]
    return Score(
        requests=count,
        attainment=int(attained.sum()) / count if count else 1.0,
        replica_hours=replica_hours(result, since, until),
        standby_hours=standby_hours(result, since, until),
        p50=p50,
        p95=p95,
        p99=p99,
        worst_minute=_worst_minute(load.arrived[inside], kept[inside]),
        launches=launches,
        fairness=jain(by_tenant),
    )


def missed(result: Result, since: float, until: float) -> int:
    """Count what arrived in the stretch and is a miss for certain, however a run goes on.

    That is for a stretch that ended an objective ago: who waits for a first token has lost.
    """
    load, seen = result.scenario.workload, result.requests
    inside = (load.arrived >= since) & (load.arrived < until)
    return int(np.count_nonzero(inside & ~(seen.attained | _streaming(seen))))


def _streaming(seen: Requests) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    streaming: np.ndarray[tuple[int], np.dtype[np.bool_]] = (seen.outcome == OPEN) & seen.in_time
    return streaming


def replica_hours(result: Result, since: float, until: float) -> float:
    """Hours of all replicas in the stretch, from being asked for to being gone."""
    seconds = 0.0
    for machine in result.machines:
        gone = until if machine.gone is None else min(until, machine.gone)
        seconds += max(0.0, gone - max(since, machine.asked))
    return seconds / 3600


def standby_hours(result: Result, since: float, until: float) -> float:
    """Integral of the standbys over the samples: each holds until the next of its pool."""
    origin = result.scenario.workload.origin
    total = 0.0
    before: dict[tuple[str, str], tuple[float, int]] = {}
    for sample in result.samples:
        at, pool = sample.t - origin, (sample.model, sample.role)
        if pool in before:
            began, standbys = before[pool]
            total += standbys * max(0.0, min(until, at) - max(since, began))
        before[pool] = (at, sample.standby)
    for began, standbys in before.values():
        total += standbys * max(0.0, until - max(since, began))
    return total / 3600


def _worst_minute(
    arrived: np.ndarray[tuple[int], np.dtype[np.float64]],
    attained: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> float | None:
    if not len(arrived):
        return None
    minute = ((arrived - arrived[0]) // 60).astype(np.int64)
    requests = np.bincount(minute)
    kept = np.bincount(minute, weights=attained)
    counted = requests >= 10
    return float((kept[counted] / requests[counted]).min()) if counted.any() else None
