"""Every figure of a run that can be compared, as numbers a cycle and as one number of the run.

Rule: a figure is worked out anew for each resample of cycles from all that happened in them; none
is an average of averages, but for those that are one number a cycle (recovery time, backlog,
overshoot, resources).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest import resample
from surgetank.loadtest.latency import Seen, seen
from surgetank.loadtest.phases import BASE, ORDER, PULSE, RECOVERY, Cycle, cycles, locate
from surgetank.loadtest.recovery import Recoveries, limit_of, overshoots, recoveries, window_of
from surgetank.loadtest.runfile import Objective, Run
from surgetank.policy.request import Kind

Values = NDArray[np.float64]
Better = Literal["lower", "higher", "neither"]
Unit = Literal["seconds", "share", "count", "request-seconds", "replica-seconds", "ratio"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing to compare. `points`: judged by the difference in points of a share."""

    key: str
    title: str
    unit: Unit
    better: Better = "lower"
    points: bool = False
    resource: bool = False


TTFT: Final = Figure("ttft_p95_pulse", "TTFT P95 in pulses", "seconds")
RECOVERY_TIME: Final = Figure("recovery", "recovery time", "seconds")
ATTAINMENT: Final = Figure("attainment", "attainment", "share", "higher", points=True)
UNSERVED: Final = Figure("unserved", "requests not served", "share", points=True)


@dataclass(frozen=True, slots=True)
class CycleView:
    """A run cut into its whole cycles: requests that belong to one, sorted by when they were due.

    `row`: of each request, the place of its cycle in `whole`. `limit`: TTFT below which the service
    counts as recovered; None where there is none.
    """

    run: Run
    whole: tuple[Cycle, ...]
    seen: Seen
    row: NDArray[np.int32]
    limit: float | None
    window: float
    recovery: Recoveries | None

    def in_phase(self, name: str) -> NDArray[np.bool_]:
        """Tell which requests were due in this phase."""
        found: NDArray[np.bool_] = self.seen.phase == ORDER.index(name)
        return found

    def sums(self, values: NDArray[np.generic]) -> Values:
        """Sum one value a request, for each cycle."""
        weights = values.astype(np.float64)
        return np.bincount(self.row, weights=weights, minlength=len(self.whole)).astype(np.float64)


def view(
    run: Run,
    *,
    objective: Objective | None = None,
    limit: float | None = None,
    keep: Sequence[int] | None = None,
) -> CycleView:
    """Cut a run; `limit` and `objective` replace its own, `keep` names the cycles to take."""
    phase, cycle = locate(run.phases, run.samples.scheduled)
    everyone = seen(run.samples, objective or run.objective, phase, cycle)
    whole = tuple(
        c for c in cycles(run.phases, run.done) if c.whole and (keep is None or c.number in keep)
    )
    place = np.full(max((p.cycle for p in run.phases), default=0) + 2, -1, np.int32)
    for i, c in enumerate(whole):
        place[c.number] = i
    row = place[cycle]  # the cycle of what is outside the phases is -1: the last place, which is -1
    if limit is None:
        calm = phase == ORDER.index(BASE)
        limit = limit_of([everyone.ttft[calm & (row == i)] for i in range(len(whole))])
    window = window_of(whole)
    found = None
    if limit is not None and whole:
        found = recoveries(everyone.due, everyone.ttft, whole, limit, window)
    kept = row >= 0
    return CycleView(run, whole, everyone.take(kept), row[kept], limit, window, found)


Statistic = Callable[[Values], Values]
"""From resamples of cycles (rows) to the figure's value in each."""


def _quantile(
    share: float, phase: str, column: Callable[[Seen], Values]
) -> Callable[[CycleView, float], Statistic | None]:
    def make(cut: CycleView, cap: float) -> Statistic | None:
        values = column(cut.seen)
        there = cut.in_phase(phase) & ~np.isnan(values)
        if not there.any():
            return None
        capped = np.minimum(values, cap)
        rows = [np.sort(capped[there & (cut.row == i)]) for i in range(len(cut.whole))]
        return lambda drawn: resample.quantiles(rows, share, drawn)

    return make


def _share(
    of: Callable[[Seen], NDArray[np.generic]], phase: str | None = None
) -> Callable[[CycleView, float], Statistic | None]:
    def make(cut: CycleView, cap: float) -> Statistic | None:  # noqa: ARG001 - one form for all
        there = np.ones(len(cut.seen), np.bool_) if phase is None else cut.in_phase(phase)
        if not there.any():
            return None
        parts = cut.sums(of(cut.seen) * there)
        wholes = cut.sums(there)
        return lambda drawn: resample.ratios(parts, wholes, drawn)

    return make


def _mean(
    each: Callable[[CycleView, float], Values | None],
) -> Callable[[CycleView, float], Statistic | None]:
    def make(cut: CycleView, cap: float) -> Statistic | None:
        values = each(cut, cap)
        if values is None or not np.isfinite(values).any():
            return None
        return lambda drawn: resample.means(values, drawn)

    return make


def _recovery(cut: CycleView, cap: float) -> Values | None:  # noqa: ARG001 - same
    return None if cut.recovery is None else cut.recovery.seconds


def _overshoot(cut: CycleView, cap: float) -> Values | None:
    if cut.limit is None or not cut.whole:
        return None
    capped = np.minimum(cut.seen.ttft, cap)
    return overshoots(cut.seen.due, capped, cut.whole, cut.limit, cut.window)


def _metric(name: str, how: Literal["mean", "peak", "sum", "growth"]) -> Any:
    def each(cut: CycleView, cap: float) -> Values | None:  # noqa: ARG001 - same
        rows = [(m["t"], m[name]) for m in cut.run.metrics if name in m and "t" in m]
        if not rows:
            return None
        at, value = np.array(rows).T
        found = np.full(len(cut.whole), np.nan)
        for i, cycle in enumerate(cut.whole):
            there = value[(at >= cycle.start) & (at < cycle.end)]
            if not len(there):
                continue
            length = cycle.end - cycle.start
            found[i] = {
                "mean": there.mean(),
                "peak": there.max(),
                "sum": there.mean() * length,
                "growth": there[-1] - there[0],
            }[how]
        return found

    return _mean(each)


FIGURES: Final[tuple[tuple[Figure, Callable[[CycleView, float], Statistic | None]], ...]] = (
    (TTFT, _quantile(0.95, PULSE, lambda s: s.ttft)),
    (RECOVERY_TIME, _mean(_recovery)),
    (ATTAINMENT, _share(lambda s: s.attained)),
    (UNSERVED, _share(lambda s: ~s.of_kind(Kind.COMPLETED))),
    (
        Figure("ttft_sent_p95_pulse", "TTFT P95 from the send", "seconds"),
        _quantile(0.95, PULSE, lambda s: s.ttft_sent),
    ),
    (
        Figure("ttft_p50_pulse", "TTFT P50 in pulses", "seconds"),
        _quantile(0.50, PULSE, lambda s: s.ttft),
    ),
    (
        Figure("ttft_p95_recovery", "TTFT P95 in recoveries", "seconds"),
        _quantile(0.95, RECOVERY, lambda s: s.ttft),
    ),
    (
        Figure("ttft_p95_base", "TTFT P95 in calm", "seconds"),
        _quantile(0.95, BASE, lambda s: s.ttft),
    ),
    (
        Figure("tpot_p95_pulse", "TPOT P95 in pulses", "seconds"),
        _quantile(0.95, PULSE, lambda s: s.tpot),
    ),
    (
        Figure("e2e_p95_pulse", "E2E P95 in pulses", "seconds"),
        _quantile(0.95, PULSE, lambda s: s.e2e),
    ),
    (
        Figure("attainment_pulse", "attainment in pulses", "share", "higher", points=True),
        _share(lambda s: s.attained, PULSE),
    ),
    (
        Figure("refused", "refused", "share", points=True),
        _share(lambda s: s.of_kind(Kind.REFUSED)),
    ),
    (Figure("amplification", "attempts / requests", "ratio"), _share(lambda s: s.attempts)),
    (
        Figure("backlog", "backlog a cycle, request-s", "request-seconds"),
        _mean(lambda cut, cap: cut.sums(np.minimum(cut.seen.waited, cap))),
    ),
    (Figure("overshoot", "overshoot of a pulse", "seconds"), _mean(_overshoot)),
    (Figure("queue_peak", "queue, peak", "count", resource=True), _metric("queue", "peak")),
    (Figure("kv_mean", "KV held, mean", "share", "neither", resource=True), _metric("kv", "mean")),
    (Figure("kv_peak", "KV held, peak", "share", "neither", resource=True), _metric("kv", "peak")),
    (
        Figure("preemptions", "preemptions a cycle", "count", resource=True),
        _metric("preemptions", "growth"),
    ),
    (
        Figure("gpu_mean", "GPU utilisation, mean", "share", "neither", resource=True),
        _metric("gpu", "mean"),
    ),
    (
        Figure("gpu_memory", "GPU memory, peak", "share", "neither", resource=True),
        _metric("gpu_memory", "peak"),
    ),
    (
        Figure("replica_seconds", "replica-seconds a cycle", "replica-seconds", resource=True),
        _metric("replicas", "sum"),
    ),
)
"""Every figure, the deciding ones first, and how it is made; `cap` stands for infinite seconds."""
