"""The figures of a run that policies are compared by.

Rule: what was refused, abandoned or never finished is a miss; percentiles are of what had a first
token, so read them beside the attainment.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.policy.request import ENDINGS, Kind, Outcome
from surgetank.simulation.ledger import CODES, OPEN, OUTCOMES
from surgetank.simulation.result import Requests, Result

_KINDS: Final = {kind: i for i, kind in enumerate(Kind)}
_KIND_OF: Final = np.array([_KINDS[ENDINGS[outcome].kind] for outcome in OUTCOMES])

_LEAST_SPAN: Final = 1.0  # seconds: a rate over less, or over no time at all, says nothing
_GIVEN_UP: Final = CODES[Outcome.SHUTDOWN]  # the run ended before they did


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds; None where there is nothing to measure."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """Some of the requests: of one tenant, of one phase, or of both."""

    tenant: str
    phase: str
    requests: int
    completed: int
    refused: int
    abandoned: int
    failed: int
    unfinished: int
    attainment: float
    ttft: Percentiles
    tpot: Percentiles


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Token counts, seconds, requests/s, hours; `attainment` 0..1.

    `amplification`: calls of the gateway per request. `goodput_rps`: requests within their
    objectives per second of the workload, which counts as a second at least. `wasted_tokens`:
    computed for answers that nobody got whole.
    """

    policy: str
    seed: int  # of arrivals, starts and jitter
    requests: int  # of clients, whatever their tries
    completed: int
    refused: int  # the last try was turned away, by the gateway or the engine
    abandoned: int  # the client left
    failed: int  # broken off, or its replica was lost
    unfinished: int  # the run ended before they did
    attainment: float  # share of the requests that were completed within their objectives, 0..1
    goodput_rps: float  # those per second of the workload
    ttft: Percentiles  # from the first try to the first token of the last
    tpot: Percentiles  # of completed requests with two tokens or more
    worst_minute: float | None  # least attainment of a minute with ten requests or more
    fairness: float  # Jain's index over the tenants' attainment
    replica_hours: float  # of all replicas, from being asked for to being gone
    launches: int  # starts asked for
    failed_starts: int  # those that failed or were denied
    preemptions: int  # on all engines
    wasted_tokens: int  # computed for answers that nobody got whole: prompt and output
    amplification: float  # calls of the gateway per request
    span_s: float  # that the arrivals stand for
    end_s: float  # when the last request ended, in the simulation's time
    events: int  # turns of the simulation's loop; in bulk the engines' steps
    wall_s: float  # real seconds that it took
    notes: tuple[str, ...]  # what to know of these figures
    per_tenant: tuple[Share, ...]
    per_phase: tuple[Share, ...]
    per_tenant_phase: tuple[Share, ...]  # of a pulse

    def to_json(self) -> dict[str, Any]:
        """JSON-able: names as here."""
        return asdict(self)


def summarise(result: Result) -> Summary:
    """Count."""
    load, seen = result.scenario.workload, result.requests
    whole = _share(seen, np.ones(len(load), np.bool_), "", "")
    tenants = range(len(load.tenants))
    phases = range(len(load.phases))
    per_tenant = tuple(_share(seen, load.tenant == t, load.tenants[t], "") for t in tenants)
    per_phase = tuple(_share(seen, load.phase == p, "", load.phases[p]) for p in phases)
    both = tuple(
        _share(seen, (load.tenant == t) & (load.phase == p), load.tenants[t], load.phases[p])
        for t in tenants
        for p in phases
        if len(load.phases) > 1
    )
    span = max(load.span, _LEAST_SPAN)
    return Summary(
        policy=result.policy,
        seed=result.scenario.seed,
        requests=whole.requests,
        completed=whole.completed,
        refused=whole.refused,
        abandoned=whole.abandoned,
        failed=whole.failed,
        unfinished=whole.unfinished,
        attainment=whole.attainment,
        goodput_rps=float(seen.attained.sum()) / span,
        ttft=whole.ttft,
        tpot=whole.tpot,
        worst_minute=_worst_minute(result),
        fairness=jain([share.attainment for share in per_tenant if share.requests]),
        replica_hours=result.replica_hours,
        launches=result.launches,
        failed_starts=result.failed_starts,
        preemptions=result.preemptions,
        wasted_tokens=result.wasted_tokens,
        amplification=len(result.ledger) / max(1, len(load)),
        span_s=load.span,
        end_s=result.end,
        events=result.events,
        wall_s=result.wall_s,
        notes=result.scenario.notes(),
        per_tenant=per_tenant,
        per_phase=per_phase,
        per_tenant_phase=both,
    )


def jain(values: list[float]) -> float:
    """Jain's index of fairness: (sum x)^2 / (n sum x^2); 1 is all alike, 1/n is one has it all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def percentiles(values: NDArray[np.float64]) -> Percentiles:
    """P50, P95 and P99 of what is there."""
    known = values[~np.isnan(values)]
    if not len(known):
        return Percentiles(None, None, None)
    p50, p95, p99 = np.percentile(known, (50, 95, 99)).tolist()
    return Percentiles(p50, p95, p99)


def _share(seen: Requests, of: NDArray[np.bool_], tenant: str, phase: str) -> Share:
    outcome = seen.outcome[of]
    ended = outcome[(outcome != OPEN) & (outcome != _GIVEN_UP)]
    by_kind = np.bincount(_KIND_OF[ended], minlength=len(_KINDS))
    return Share(
        tenant=tenant,
        phase=phase,
        requests=len(outcome),
        completed=int(by_kind[_KINDS[Kind.COMPLETED]]),
        refused=int(by_kind[_KINDS[Kind.REFUSED]]),
        abandoned=int(by_kind[_KINDS[Kind.ABANDONED]]),
        failed=int(by_kind[_KINDS[Kind.FAILED]]),
        unfinished=len(outcome) - len(ended),
        attainment=float(seen.attained[of].mean()) if len(outcome) else 1.0,
        ttft=percentiles(seen.ttft[of]),
        tpot=percentiles(seen.tpot[of]),
    )


def _worst_minute(result: Result) -> float | None:
    """Least attainment of any minute of arrivals with ten requests or more."""
    load = result.scenario.workload
    if not len(load):
        return None
    minute = ((load.arrived - load.arrived[0]) // 60).astype(np.int64)
    requests = np.bincount(minute)
    kept = np.bincount(minute, weights=result.requests.attained)
    counts = requests >= 10
    return float((kept[counts] / requests[counts]).min()) if counts.any() else None
