"""The charts of an analysis: rate, dispersion, gaps, tokens, tenants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from surgetank.report import numbers
from surgetank.report.burstiness import words
from surgetank.report.charts import COLOURS, Axis, Band, Chart, Series, Span
from surgetank.traffic.analysis import Analysis, Line

_ORDER = (0, 1, 5)  # palette slots of the three windows: told apart in light and dark
_SPANS = 200  # marked episodes at most


def rate(analysis: Analysis) -> Chart:
    """Requests per second at three windows, episodes marked."""
    lines = [line for line in analysis.series.rates if len(line.x)]
    x = _grid(lines)
    series = tuple(
        Series(
            f"over {numbers.seconds(line.window_s)}",
            _held(line, x),
            colour=_ORDER[i % len(_ORDER)],
            width=(1.0, 1.5, 2.2)[min(i, 2)],
        )
        for i, line in enumerate(lines)
    )
    peak = numbers.rate(analysis.rate.max, "req")
    return Chart(
        "rate",
        "Arrivals",
        x,
        series,
        _time(x),
        Axis("requests/s"),
        spans=tuple(_spans(analysis)),
        wide=True,
        note=_thinned(lines),
        says=f"{numbers.rate(analysis.rate.mean, 'req')} on average, {peak} at most in a second; "
        f"{words.episodes_found(analysis)}.",
        empty="There are too few requests for a rate.",
    )


def _spans(analysis: Analysis) -> Iterator[Span]:
    for number, e in enumerate(analysis.episodes[:_SPANS], 1):
        label = f"episode {number}: {numbers.number(e.base)} to {numbers.rate(e.peak, 'req')}"
        yield Span(e.start, e.start + e.duration, label)


def _grid(lines: list[Line]) -> list[float]:
    """Take the places of the finest line: the others are steps on it."""
    finest = max(lines, key=lambda line: len(line.x), default=None)
    return [] if finest is None else [float(v) for v in finest.x]


def _held(line: Line, x: list[float]) -> list[float | None]:
    """Values of a line at other places: each holds until the line's next one."""
    if len(line.x) == len(x):
        return [float(v) for v in line.y]
    at = np.searchsorted(line.x, np.array(x), side="right") - 1
    return [None if i < 0 else float(line.y[i]) for i in at]


def _thinned(lines: list[Line]) -> str:
    """Say what one point stands for where the log is longer than the chart."""
    if not lines or len(lines[0].x) < 2:
        return ""
    step = float(np.median(np.diff(lines[0].x)))
    if step <= 1.5 * lines[0].window_s:
        return "Drag to zoom, double click for all."
    return (
        f"Each point is the highest value within {numbers.seconds(step)}. "
        "Drag to zoom, double click for all."
    )


def _time(x: list[float]) -> Axis:
    calendar = bool(x) and numbers.is_calendar(x[0])
    return Axis("time (UTC)" if calendar else "time in the log", "time")


def dispersion(analysis: Analysis) -> Chart:
    """IDC by window, requests and tokens, with the Poisson band."""
    idc = analysis.idc
    windows = [w for w in idc.requests if idc.requests[w] is not None]
    x = [float(w) for w in windows]
    series = [Series("requests", [_positive(idc.requests[w]) for w in windows], colour=0, width=2)]
    reference = idc.prompt_tokens_reference
    if idc.prompt_tokens and reference:
        tokens = [_positive(idc.prompt_tokens.get(w), reference) for w in windows]
        title = "prompt tokens, over their Poisson value"
        series.append(Series(title, tokens, colour=1, width=2, dashed=True))
    bands = [idc.requests_band.get(w) for w in windows]
    last = windows[-1] if windows else ""
    return Chart(
        "idc",
        "Dispersion by window",
        x,
        tuple(series),
        Axis("window", "log", "seconds", ticks=tuple(x)),
        Axis("variance / mean", "log"),
        bands=(
            Band(
                "Poisson, 99 %",
                [None if b is None else _positive(b[0]) for b in bands],
                [None if b is None else _positive(b[1]) for b in bands],
            ),
        ),
        note="Flat at 1: chance. Flat above: clumps. Rising: pulses or changes of rate.",
        says=f"The index of dispersion reaches {numbers.number(idc.requests.get(last))} at "
        f"{numbers.seconds(float(last))}; chance alone gives 1."
        if windows
        else "",
        empty="The log is too short, or its stamps too coarse, for any window.",
    )


def _positive(value: float | None, over: float = 1.0) -> float | None:
    """Fit a logarithmic axis: 0 has no place on it."""
    return None if value is None or value <= 0 else value / over


def gaps(analysis: Analysis) -> Chart:
    """Gaps between arrivals beside those of a Poisson stream."""
    bars = analysis.series.gaps
    refused = words.sentence(analysis.interarrival_refused or "there are too few requests for gaps")
    if bars is None or not len(bars.share):
        return Chart("gaps", "Gaps between arrivals", [], (Series("gaps", []),), empty=refused)
    bins = [(float(a), float(b)) for a, b in pairwise(bars.edges)]
    # Bins differ in width: over their width in decades, a curve's area is a share of the gaps.
    decades = [math.log10(b / a) if 0 < a < b else math.nan for a, b in bins]
    here, chance = (
        [float(v) / d for v, d in zip(column, decades, strict=True)]
        for column in (bars.share, bars.exponential)
    )
    return Chart(
        "gaps",
        "Gaps between arrivals",
        [math.sqrt(a * b) if a > 0 else b / 2 for a, b in bins],
        (
            Series("this log", here, "step", colour=0, width=2),
            Series("chance (exponential)", chance, "line", colour=1, width=2, dashed=True),
        ),
        Axis("gap", "log", "seconds"),
        Axis("share of gaps, a decade", show="percent"),
        note="Clustered streams have more very short and more very long gaps than chance.",
        says=f"The mean gap is {numbers.seconds(analysis.interarrival.mean)}."
        if analysis.interarrival
        else "",
    )


def tokens(analysis: Analysis) -> Chart:
    """Prompt and output tokens per second."""
    found = [
        (label, line)
        for label, line in (
            ("prompt", analysis.series.prompt_rate),
            ("output", analysis.series.output_rate),
        )
        if line is not None and len(line.x)
    ]
    lines = [line for _, line in found]
    x = _grid(lines)
    return Chart(
        "tokens",
        "Tokens asked for",
        x,
        tuple(
            Series(label, _held(line, x), "area", colour=i) for i, (label, line) in enumerate(found)
        ),
        _time(x),
        Axis("tokens/s", show="compact"),
        wide=True,
        note="Output tokens count at the arrival of their request. " + _thinned(lines),
        says=_token_rates(analysis),
        empty="The log has no token counts.",
    )


def _token_rates(analysis: Analysis) -> str:
    parts = [
        f"{numbers.rate(found.mean, f'{label} tokens')} on average, {numbers.compact(found.max)} "
        "at most"
        for label, found in (
            ("prompt", analysis.tokens.prompt_rate),
            ("output", analysis.tokens.output_rate),
        )
        if found is not None
    ]
    return "; ".join(parts)


def tenants(analysis: Analysis) -> Chart | None:
    """Requests per second, one tenant on top of the other; None when no tenant is named."""
    stack = analysis.series.tenants
    if stack is None or not len(stack.x):
        return None
    x = [float(v) for v in stack.x]
    grey = len(stack.names) - 1 if stack.names[-1] == "others" else len(stack.names)
    return Chart(
        "tenants",
        "Arrivals by tenant",
        x,
        tuple(
            Series(
                name or "(none)",
                [float(v) for v in column],
                colour=i if i < min(grey, COLOURS) else None,
            )
            for i, (name, column) in enumerate(zip(stack.names, stack.y, strict=True))
        ),
        _time(x),
        Axis("requests/s"),
        stacked=True,
        wide=True,
        note=_thinned([Line(stack.window_s, stack.x, stack.y[0])]),
        says=f"The largest tenants: {', '.join(n or '(none)' for n in stack.names[:3])}.",
    )
