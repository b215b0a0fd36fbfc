"""The charts of a run: arrivals, TTFT, backlog, what the target told, recovery by cycle."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest.latency import Seen, seen
from surgetank.loadtest.phases import PULSE, locate
from surgetank.loadtest.report import Report, backlog
from surgetank.loadtest.runfile import Run
from surgetank.report import numbers
from surgetank.report.charts import Axis, Chart, Series, Span

_PLACES: Final = 600  # of a chart's time axis
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


def _time() -> Axis:
    return Axis("since the start", kind="time")


def _counts(at: NDArray[np.float64], x: NDArray[np.float64], step: float) -> NDArray[np.float64]:
    places = (at // step).astype(np.int64)
    inside = places[(places >= 0) & (places < len(x))]
    return np.bincount(inside, minlength=len(x)).astype(np.float64)
