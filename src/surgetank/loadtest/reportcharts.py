"""The charts of a run: arrivals, TTFT, backlog, what the target told, recovery by cycle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest.histograms import Histogram
from surgetank.loadtest.latency import Seen, seen
from surgetank.loadtest.phases import PULSE, locate
from surgetank.loadtest.report import Report, backlog
from surgetank.loadtest.runfile import Run
from surgetank.report import numbers
from surgetank.report.charts import Axis, Chart, Series, Span

_PLACES: Final = 600  # of a chart's time axis
_LEAST_GAP: Final = 5e-5  # seconds, half the first bin: where gaps of zero stand on a log axis
_METRICS: Final = (
    ("queue", "Queue of the target", "requests"),
    ("running", "Running on the target", "requests"),
    ("kv", "KV held", "part"),
    ("gpu", "GPU utilisation", "part"),
    ("replicas", "Replicas", "replicas"),
)


def charts(run: Run, report: Report) -> Iterator[Chart]:
    """Give them in the order of a page."""
    phase, cycle = locate(run.phases, run.samples.scheduled)
    all_seen = seen(run.samples, run.objective, phase, cycle)
    length = run.duration if run.done is None else min(run.done, run.duration)
    step = max(1.0, math.ceil(length / _PLACES))
    x = np.arange(0.0, length, step)
    spans = tuple(
        Span(p.start, min(p.end, length), f"pulse {p.cycle + 1}")
        for p in run.phases
        if p.name == PULSE and p.start < length
    )
    yield _rate(all_seen, x, step, spans)
    yield _ttft(all_seen, x, step, spans, report)
    yield _backlog(all_seen, x, spans)
    if report.recovery.each:
        yield recovery([("recovery time", report.recovery.each)])
    if report.recovery_histogram is not None:
        yield _recoveries(report.recovery_histogram, report.recovery.censored)
    if report.itl_histograms:
        yield _gaps(report.itl_histograms)
    for name, title, unit in _METRICS:
        at = [float(m["t"]) for m in run.metrics if name in m and "t" in m]
        if at:
            values = [float(m[name]) for m in run.metrics if name in m and "t" in m]
            yield Chart(
                f"metric-{name}",
                title,
                at,
                (Series(title, values, colour=2),),
                _time(),
                Axis(unit, show="percent" if unit == "part" else "number"),
                spans=spans,
                spans_are="pulse",
            )


def _rate(all_seen: Seen, x: NDArray[np.float64], step: float, spans: tuple[Span, ...]) -> Chart:
    due = _counts(all_seen.due, x, step) / step
    answered = _counts((all_seen.due + all_seen.ttft)[np.isfinite(all_seen.ttft)], x, step) / step
    return Chart(
        "rate",
        "Requests due, and first tokens",
        x.tolist(),
        (
            Series("due", due.tolist(), colour=0),
            Series("first tokens", answered.tolist(), colour=1),
        ),
        _time(),
        Axis("per second"),
        spans=spans,
        spans_are="pulse",
        wide=True,
    )


def _ttft(
    all_seen: Seen,
    x: NDArray[np.float64],
    step: float,
    spans: tuple[Span, ...],
    report: Report,
) -> Chart:
    bins = np.clip((all_seen.due // step).astype(np.int64), 0, max(0, len(x) - 1))
    edges = np.searchsorted(bins, np.arange(len(x) + 1))
    middle: list[float | None] = []
    high: list[float | None] = []
    for first, last in pairwise(edges):
        values = np.sort(all_seen.ttft[first:last])
        for share, column in ((0.5, middle), (0.95, high)):
            found = values[math.ceil(share * len(values) - 1e-9) - 1] if len(values) else math.inf
            column.append(float(found) if math.isfinite(found) else None)
    limit = report.objective.ttft
    return Chart(
        "ttft",
        "TTFT by when a request was due",
        x.tolist(),
        (
            Series("P95", high, colour=5),
            Series("median", middle, colour=0),
            Series("objective", [limit] * len(x), colour=None, dashed=True),
        ),
        _time(),
        Axis("seconds", show="seconds"),
        spans=spans,
        spans_are="pulse",
        wide=True,
        note="A gap: so many were refused or failed that the percentile is infinite.",
    )


def _backlog(all_seen: Seen, x: NDArray[np.float64], spans: tuple[Span, ...]) -> Chart:
    moments, level = backlog(all_seen)
    at = np.searchsorted(moments, x, side="right") - 1
    values = [0.0 if i < 0 else float(level[i]) for i in at]
    return Chart(
        "backlog",
        "Backlog: due, without a first token",
        x.tolist(),
        (Series("requests", values, draw="area", colour=1),),
        _time(),
        Axis("requests"),
        spans=spans,
        spans_are="pulse",
        says=f"{numbers.count(max(values, default=0))} requests at most.",
    )


def recovery(runs: Sequence[tuple[str, Sequence[float | None]]]) -> Chart:
    """Recovery time of each cycle, of one run or of several."""
    cycles = max(len(values) for _, values in runs)
    return Chart(
        "recovery",
        "Recovery time by cycle",
        [float(i + 1) for i in range(cycles)],
        tuple(
            Series(name, list(values), draw="points" if len(runs) > 1 else "bar", colour=i * 5)
            for i, (name, values) in enumerate(runs)
        ),
        Axis("cycle"),
        Axis("seconds", show="seconds"),
    )


def _recoveries(found: Histogram, censored: int) -> Chart:
    cut = f" {numbers.plural(censored, 'cycle')} not back before the next pulse stand at that time."
    return Chart(
        "recovery-histogram",
        "How many cycles took how long to recover",
        [float(i) for i in range(len(found.counts))],
        (Series("cycles", [float(n) for n in found.counts], draw="bar", colour=0),),
        Axis("recovery time, from", kind="names", names=tuple(map(numbers.seconds, found.edges))),
        Axis("cycles"),
        note=f"A bar is {numbers.seconds(found.edges[1])} wide.{cut if censored else ''}",
    )


def _gaps(found: Mapping[str, Histogram]) -> Chart:
    """Part of each phase's gaps by their length, in the bins that any phase has."""
    whole = found["all"]
    curves = []
    phases = {name: part for name, part in found.items() if name != "all"} or found
    for i, (name, part) in enumerate(phases.items()):
        total = sum(part.counts)
        shares = dict(zip(part.edges, (n / total for n in part.counts), strict=False))
        values = [shares.get(edge, 0.0) for edge in whole.edges[:-1]]
        curves.append(Series(name, values, draw="step", colour=(1, 5, 0)[i % 3]))
    return Chart(
        "itl-histogram",
        "Gaps between tokens, by phase",
        [max(middle, _LEAST_GAP) for middle in whole.middles],
        tuple(curves),
        Axis("gap between two tokens", kind="log", show="seconds"),
        Axis("part of the gaps", show="percent"),
        wide=True,
        note="Eight bins double the gap. Tokens that came in one read stand at the left end.",
    )


def _time() -> Axis:
    return Axis("since the start", kind="time")


def _counts(at: NDArray[np.float64], x: NDArray[np.float64], step: float) -> NDArray[np.float64]:
    places = (at // step).astype(np.int64)
    inside = places[(places >= 0) & (places < len(x))]
    return np.bincount(inside, minlength=len(x)).astype(np.float64)
