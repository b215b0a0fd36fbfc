"""What a run comes to: figures per phase and per tenant, and what followed the pulses.

Rule: every number stands beside its definition, and all are of all requests: those that were
refused, timed out or failed are in each of them. `Report.to_json` is what text and page tell too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest import histograms, resample
from surgetank.loadtest.cyclefigures import CycleView, view
from surgetank.loadtest.histograms import Histogram
from surgetank.loadtest.latency import DEFINITIONS as OF_LATENCY
from surgetank.loadtest.latency import Seen, rank, seen
from surgetank.loadtest.phases import ORDER, locate
from surgetank.loadtest.recovery import overshoots
from surgetank.loadtest.runfile import Objective, Run
from surgetank.loadtest.tokengaps import Counts, itl
from surgetank.policy.request import Kind
from surgetank.traffic.dispersion import index_of_dispersion

_SEED: Final = 20_260_102  # of the resamples
_WINDOWS: Final = (1, 10, 60)  # seconds, of the dispersion
_PEAKS: Final = ("queue", "running", "kv", "gpu", "gpu_memory", "replicas")

DEFINITIONS: Final = MappingProxyType(
    dict(OF_LATENCY)
    | {
        "phase": "a request belongs to the phase in which it was due; a recovery is as long as its"
        " pulse, or until the next one",
        "recovery time": "from a pulse's end to the moment from which every window of requests due"
        " (W seconds, ten requests or more) has a median TTFT within the limit, until the next"
        " pulse; a cycle that is not back by then counts as the whole of that time, and is told as"
        " censored",
        "limit": "P95 of the TTFT in the calmest calm (of those served), plus 10 % of it or 10 ms,"
        " whichever is more",
        "backlog": "requests that are due and have neither a first token nor an error yet; its area"
        " over a cycle is the sum of their waits",
        "overshoot": "how far the worst window's median TTFT of a cycle lies above the limit",
        "ITL": "gap between two tokens of a stream, of all tokens that came, whatever became of"
        " their request; tokens of one read have a gap of 0; counted in bins, within 4.5 %",
        "interval": "95 %, block bootstrap over cycles (4,000 resamples), Student's t",
        "IDC": "variance / mean of the counts in windows of w seconds; 1 in a Poisson stream",
    }
)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds by nearest rank; None where infinite, or where there is no request."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Share:
    """Some of the requests. Rates are parts of them; `rate` is requests due per second.

    `retry_rate`: attempts beyond the first per request. `peaks`: highest values that the target
    told in the phase, by name. `gaps`: between tokens, so many that `itl` is of.
    """

    name: str
    requests: int
    completed: int
    refused: int
    abandoned: int
    failed: int
    attainment: float | None
    refused_rate: float | None
    error_rate: float | None
    retry_rate: float | None
    rate: float | None
    output_tokens: int
    ttft: Percentiles
    ttft_sent: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    e2e_sent: Percentiles
    gaps: int
    itl: Percentiles
    peaks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure over cycles: its mean, the interval at 95 % (None with one cycle), how many."""

    value: float | None
    low: float | None
    high: float | None
    cycles: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds. `limit`: of the windows' median TTFT; `censored`: cycles that were not back."""

    seconds: float | None
    low: float | None
    high: float | None
    cycles: int
    censored: int
    each: tuple[float | None, ...]
    limit: float | None
    window: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run. Seconds, parts of one, requests.

    `recovery_histogram`: of the cycles, the censored ones at what they count as; `itl_histograms`:
    by phase, and "all"; those that have gaps.
    """

    requests: int
    completed: int
    refused: int
    abandoned: int
    failed: int
    retried: int
    attempts: int
    amplification: float | None
    attainment: float | None
    duration: float
    done: float | None
    objective: Objective
    whole: Share
    phases: tuple[Share, ...]
    tenants: tuple[Share, ...]
    recovery: Recovery
    recovery_histogram: Histogram | None
    itl_histograms: Mapping[str, Histogram]
    backlog: Interval  # area of a cycle, request-seconds
    backlog_peak: int
    overshoot: Interval
    achieved: Mapping[str, Any]
    sender: Mapping[str, Any]
    target: Mapping[str, Any]
    description: Mapping[str, Any]
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """JSON-able: names as here, and the definitions."""
        found = asdict(self)
        for name in ("achieved", "sender", "target", "description"):
            found[name] = dict(getattr(self, name))
        found["objective"]["tenants"] = dict(self.objective.tenants)
        return found | {"definitions": dict(DEFINITIONS)}


def report(run: Run) -> Report:
    """Work it out from the samples of a run."""
    phase, cycle = locate(run.phases, run.samples.scheduled)
    all_seen = seen(run.samples, run.objective, phase, cycle)
    everyone = np.ones(len(all_seen), np.bool_)
    length = run.duration if run.done is None else min(run.done, run.duration)
    whole = _share("all", run, all_seen, everyone, length, run.gaps.by_bin())
    cut = view(run)
    drawn = resample.weights(len(cut.whole), _SEED)
    attempts = int(all_seen.attempts.sum())
    return Report(
        requests=whole.requests,
        completed=whole.completed,
        refused=whole.refused,
        abandoned=whole.abandoned,
        failed=whole.failed,
        retried=int((all_seen.attempts > 1).sum()),
        attempts=attempts,
        amplification=attempts / len(all_seen) if len(all_seen) else None,
        attainment=whole.attainment,
        duration=run.duration,
        done=run.done,
        objective=run.objective,
        whole=whole,
        phases=tuple(_phases(run, all_seen, length)),
        tenants=tuple(
            _share(
                name,
                run,
                all_seen,
                all_seen.tenant == i,
                length,
                run.gaps.by_bin(run.gaps.tenant == i),
            )
            for i, name in enumerate(run.samples.tenant.names)
        ),
        recovery=_recovery(cut, drawn),
        recovery_histogram=(
            None if cut.recovery is None else histograms.of_seconds(cut.recovery.seconds)
        ),
        itl_histograms=_itl_histograms(run),
        backlog=_over_cycles(cut.sums(cut.seen.waited), drawn),
        backlog_peak=int(backlog(all_seen)[1].max(initial=0)),
        overshoot=_over_cycles(_overshoots(cut), drawn),
        achieved=_achieved(run, length),
        sender=run.sender,
        target=run.target,
        description=run.description,
        fingerprint=run.fingerprint,
    )


def _phases(run: Run, all_seen: Seen, length: float) -> list[Share]:
    found = []
    for i, name in enumerate(ORDER):
        spans = [(p.start, min(p.end, length)) for p in run.phases if p.name == name]
        spans = [(start, end) for start, end in spans if start < end]
        if not spans:
            continue
        share = _share(
            name,
            run,
            all_seen,
            all_seen.phase == i,
            sum(end - start for start, end in spans),
            run.gaps.by_bin(run.gaps.phase == i),
        )
        peaks: dict[str, float] = {}
        for sample in run.metrics:
            if any(start <= sample.get("t", -1.0) < end for start, end in spans):
                for key in _PEAKS:
                    if key in sample:
                        peaks[key] = max(peaks.get(key, 0.0), float(sample[key]))
        found.append(_with_peaks(share, peaks))
    return found


def _with_peaks(share: Share, peaks: Mapping[str, float]) -> Share:
    return Share(**{name: getattr(share, name) for name in Share.__slots__} | {"peaks": peaks})


def _itl_histograms(run: Run) -> dict[str, Histogram]:
    parts = {name: run.gaps.by_bin(run.gaps.phase == i) for i, name in enumerate(ORDER)}
    parts["all"] = run.gaps.by_bin()
    found = {name: histograms.of_gaps(part) for name, part in parts.items()}
    return {name: histogram for name, histogram in found.items() if histogram is not None}


def _share(  # noqa: PLR0917 - whose, of what, which of it
    name: str,
    run: Run,
    all_seen: Seen,
    rows: NDArray[np.bool_],
    length: float,
    gaps: Counts,
) -> Share:
    part = all_seen.take(rows)
    count = len(part)
    by_kind = {kind: int(part.of_kind(kind).sum()) for kind in Kind}
    tokens = run.samples.output_tokens[rows]

    def rate(value: float) -> float | None:
        return float(value) / count if count else None

    return Share(
        name=name,
        requests=count,
        completed=by_kind[Kind.COMPLETED],
        refused=by_kind[Kind.REFUSED],
        abandoned=by_kind[Kind.ABANDONED],
        failed=by_kind[Kind.FAILED],
        attainment=rate(part.attained.sum()),
        refused_rate=rate(by_kind[Kind.REFUSED]),
        error_rate=rate(by_kind[Kind.FAILED]),
        retry_rate=rate(part.attempts.sum() - count),
        rate=count / length if length > 0 else None,
        output_tokens=int(tokens[tokens > 0].sum()),
        ttft=_percentiles(part.ttft),
        ttft_sent=_percentiles(part.ttft_sent),
        tpot=_percentiles(part.tpot[~np.isnan(part.tpot)]),
        e2e=_percentiles(part.e2e),
        e2e_sent=_percentiles(part.e2e_sent),
        gaps=int(gaps.sum()),
        itl=Percentiles(*(itl(gaps, share) for share in (0.50, 0.95, 0.99))),
    )


def _percentiles(values: NDArray[np.float64]) -> Percentiles:
    return Percentiles(*(rank(values, share) for share in (0.50, 0.95, 0.99)))


def _recovery(cut: CycleView, drawn: NDArray[np.float64]) -> Recovery:
    if cut.recovery is None:
        return Recovery(None, None, None, 0, 0, (), cut.limit, cut.window)
    each = cut.recovery.seconds
    found = _over_cycles(each, drawn)
    return Recovery(
        seconds=found.value,
        low=None if found.low is None else max(0.0, found.low),
        high=found.high,
        cycles=found.cycles,
        censored=cut.recovery.censored,
        each=tuple(float(v) if np.isfinite(v) else None for v in each),
        limit=cut.limit,
        window=cut.window,
    )


def _overshoots(cut: CycleView) -> NDArray[np.float64]:
    if cut.limit is None or not cut.whole:
        return np.empty(0)
    return overshoots(cut.seen.due, cut.seen.ttft, cut.whole, cut.limit, cut.window)


def _over_cycles(each: NDArray[np.float64], drawn: NDArray[np.float64]) -> Interval:
    """Mean over cycles; None as soon as one of them is infinite."""
    known = each[~np.isnan(each)]
    if not len(known) or not np.isfinite(known).all():
        return Interval(None, None, None, len(known))
    value = float(known.mean())
    if len(known) < 2:
        return Interval(value, None, None, len(known))
    without = resample.means(each, resample.left_out(len(each)))
    found = resample.estimate(value, resample.means(each, drawn), without)
    return Interval(value, found.low, found.high, len(known))


def backlog(all_seen: Seen) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Moments (s), and the requests that are due and neither begun nor refused from then on."""
    moments = np.concatenate([all_seen.due, all_seen.due + all_seen.waited])
    steps = np.repeat(np.array([1, -1]), len(all_seen))
    # At one moment, those that end come before those that begin: no wait is no backlog.
    order = np.lexsort((steps, moments))
    return moments[order], np.maximum(0, np.cumsum(steps[order]))


def _achieved(run: Run, length: float) -> dict[str, Any]:
    """Rate and dispersion of what was sent, beside those of the schedule."""
    due, sent = run.samples.scheduled, run.samples.sent
    sent = sent[~np.isnan(sent)]
    return {
        "rate": len(sent) / length if length > 0 else None,
        "scheduled_rate": len(due) / length if length > 0 else None,
        "idc": {str(w): _idc(sent, w, length) for w in _WINDOWS},
        "scheduled_idc": {str(w): _idc(due, w, length) for w in _WINDOWS},
    }


def _idc(at: NDArray[np.float64], window: int, length: float) -> float | None:
    whole = int(length // window)
    inside = at[(at >= 0) & (at < whole * window)]
    counts = np.bincount((inside // window).astype(np.int64), minlength=whole)
    return index_of_dispersion(counts.astype(np.float64)) if whole else None
