"""A comparison as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest import verdictwords as words
from surgetank.loadtest.cyclefigures import CycleView, view
from surgetank.loadtest.latency import rank
from surgetank.loadtest.reportcharts import recovery
from surgetank.loadtest.runfile import Run
from surgetank.loadtest.verdict import Comparison, Judged
from surgetank.report import numbers
from surgetank.report.charts import Axis, Chart, Series, Span
from surgetank.report.page import Block, KeyFigure, Page, Section, Table, Text, Tone

_BEFORE: Final = 10.0  # seconds of calm before a pulse
_PLACES: Final = 300  # of a chart's axis
_TONES: Final[dict[str, Tone]] = {"worse": "bad", "better": "good", "not enough": "warn"}


def page(a: Run, b: Run, found: Comparison, *, made_by: str = "") -> Page:
    """Compose it."""
    tone = _TONES.get(found.verdict, "")
    names = f"A {found.names[0]}, B {found.names[1]}"
    size = f"{numbers.plural(found.requests, 'request')} in {numbers.plural(found.cycles, 'cycle')}"
    notes = [Text(found.notes, tone="warn")] if found.notes else []
    return Page(
        title="Did this change make bursts better or worse?",
        about=f"{names}: {size}",
        figures=(
            KeyFigure("Verdict", found.verdict, tone=tone),
            *(_key_figure(figure) for figure in found.deciding),
        ),
        sections=(
            Section("In words", (Text((found.line,), tone=tone), *notes)),
            Section("Figures that decide", (_table(found.deciding),)),
            Section("Cycle by cycle", tuple(_charts(a, b, found))),
            Section("Other figures", tuple(_others(found)), about="They decide nothing."),
            Section("How it was judged", (Text(tuple(words.method(found))),)),
        ),
        foot=made_by,
    )


def _key_figure(figure: Judged) -> KeyFigure:
    told = f"{words.value(figure, figure.a)} to {words.value(figure, figure.b)}"
    return KeyFigure(figure.title, words.change(figure), told, _TONES.get(figure.says, ""))


def _table(figures: tuple[Judged, ...], caption: str = "") -> Table:
    return Table(words.HEAD, [words.cells(f) for f in figures], caption, words=(6,))


def _others(found: Comparison) -> Iterator[Block]:
    told = tuple(f for f in found.figures if not f.decides and not f.resource)
    resources = tuple(f for f in found.figures if f.resource)
    yield _table(told, "What clients saw")
    if resources:
        yield _table(resources, "What it took")


def _charts(a: Run, b: Run, found: Comparison) -> Iterator[Chart]:
    cuts = [view(run, limit=found.limit) for run in (a, b)]
    if not all(len(cut.whole) for cut in cuts):
        return
    yield _since_the_pulse(cuts)
    if all(cut.recovery is not None for cut in cuts):
        yield recovery(
            [
                (name, [float(v) for v in cut.recovery.seconds])
                for name, cut in zip("AB", cuts, strict=True)
                if cut.recovery is not None
            ]
        )


def _since_the_pulse(cuts: Sequence[CycleView]) -> Chart:
    """Lay all cycles of a run over each other: TTFT by the time since the pulse's start."""
    cycles = cuts[0].whole
    first = max(-_BEFORE, min(c.start - c.pulse for c in cycles))
    last = min(c.until - c.pulse for c in cycles)
    step = max(0.5, (last - first) / _PLACES)
    edges = np.arange(first, last, step)
    width = min(c.pulse_end - c.pulse for c in cycles)
    return Chart(
        "cycle",
        "Median TTFT by the time since the pulse's start, all cycles together",
        edges.tolist(),
        tuple(
            Series(name, _medians(cut, edges, step), colour=5 * i)
            for i, (name, cut) in enumerate(zip("AB", cuts, strict=True))
        ),
        Axis("seconds since the pulse's start"),
        Axis("seconds", show="seconds"),
        spans=(Span(0.0, width, "pulse"),),
        spans_are="pulse",
        wide=True,
    )


def _medians(cut: CycleView, edges: NDArray[np.float64], step: float) -> list[float | None]:
    starts = np.array([c.pulse for c in cut.whole])
    place = ((cut.seen.due - starts[cut.row] - edges[0]) // step).astype(np.int64)
    found: list[float | None] = []
    for i in range(len(edges)):
        middle = rank(cut.seen.ttft[place == i], 0.5)
        found.append(middle)
    return found
