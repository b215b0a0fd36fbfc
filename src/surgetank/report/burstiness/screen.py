"""An analysis on a terminal: what matters on one screen, more where there is room.

Rule: parts are printed whole or not at all; the most important come first when room is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from surgetank.report import numbers
from surgetank.report.burstiness import words
from surgetank.report.terminal import clean, fitted, height_of, plot, table, with_axis
from surgetank.traffic.analysis import Analysis

_TONES: Final = {"poisson": "bold green", "quantised": "bold yellow"}
_ENDLESS: Final = 10_000  # lines of a pipe or a file
_FEW: Final = 10  # requests that make a curve
_WIDE: Final = 100  # columns that show every figure of a table


@dataclass(frozen=True, slots=True)
class _Part:
    """Something to print, in one of several sizes."""

    rank: int  # 0 first
    sizes: tuple[RenderableType, ...]  # smallest first


def show(analysis: Analysis, console: Console, *, top: int) -> None:
    """Print it; on a terminal as much as fits its height, elsewhere all."""
    room = console.height - 1 if console.is_terminal else _ENDLESS
    chosen, left = _chosen(list(_parts(analysis, console.width, top)), console, room)
    for i, part in enumerate(chosen):
        if i and left >= len(chosen) - 1:
            console.print()
        console.print(part)


def _chosen(
    parts: Sequence[_Part], console: Console, room: int
) -> tuple[list[RenderableType], int]:
    """Give each part its smallest size by rank while there is room, then larger ones.

    Returns them in their order, and how many lines are left.
    """
    heights = [[height_of(console, size) for size in part.sizes] for part in parts]
    taken: dict[int, int] = {}
    by_rank = sorted(range(len(parts)), key=lambda i: parts[i].rank)
    for i in by_rank:
        if parts[i].rank == 0 or heights[i][0] <= room:
            taken[i] = 0
            room -= heights[i][0]
    for i in by_rank:
        for size in range(1, len(parts[i].sizes)):
            more = heights[i][size] - heights[i][taken[i]] if i in taken else _ENDLESS
            if i in taken and more <= room:
                taken[i] = size
                room -= more
    return [parts[i].sizes[taken[i]] for i in sorted(taken)], room


def _parts(analysis: Analysis, width: int, top: int) -> Iterator[_Part]:
    yield _Part(0, (_head(analysis, width),))
    yield _Part(0, (_verdict(analysis),))
    if analysis.advice:
        first, *more = [Text(f"→ {clean(line)}", style="bold") for line in words.advice(analysis)]
        yield _Part(1, (first, Group(first, *more)) if more else (first,))
    if analysis.requests >= _FEW and analysis.series.rates:
        yield _Part(5, tuple(_curve(analysis, width, height) for height in (2, 3, 5)))
    if any(value is not None for value in analysis.idc.requests.values()):
        yield _Part(2, (_dispersion(analysis, width),))
    tokens = _tokens(analysis)
    yield _Part(3, (_figures(analysis, ""), _figures(analysis, tokens)))
    if analysis.episodes:
        yield _Part(6, tuple(_episodes(analysis, width, top)))
    if len(analysis.tenants) > 1:
        yield _Part(4, tuple(_tenants(analysis, width, top)))
    if analysis.sessions is not None:
        yield _Part(8, (Text(f"sessions   {clean(analysis.sessions.verdict)}"),))
    told = [*words.origin(analysis.source), *map(words.sentence, analysis.notes)]
    if told:
        lines = [clean(line) for line in told]
        yield _Part(7, tuple(Text("\n".join(lines[: n + 1])) for n in range(len(lines))))
    bad = words.bad_rows(analysis.source)
    if bad:
        lines = [f"  {fitted(line, width - 2)}" for line in words.bad_lines(analysis.source)]
        yield _Part(0, (Text(bad), Text("\n".join([bad, *lines]))))


def _head(analysis: Analysis, width: int) -> Text:
    name = words.what(analysis.source)
    while cell_len(name) > width and len(name) > width // 2:
        name = f"…{name[2:]}"  # the end of a path tells more, and what follows it must be seen
    name = fitted(name, width)
    return Text.assemble((name, "bold"), "\n", words.when(analysis))


def _verdict(analysis: Analysis) -> Text:
    tone = _TONES.get(analysis.verdict.shape, "bold red")
    said = Text(words.shape(analysis), tone if analysis.verdict.confident else "bold yellow")
    pulse = words.pulse(analysis)
    return said.append(
        f": {clean(words.sentence(analysis.verdict.text))}" + (f" {pulse}" if pulse else ""),
        style="not bold default",
    )


def _curve(analysis: Analysis, width: int, height: int) -> Text:
    lines = [line for line in analysis.series.rates if len(line.x)]
    line = lines[min(1, len(lines) - 1)]
    values = [float(v) for v in line.y]
    most = f"{numbers.compact(float(np.nanmax(line.y, initial=0)))}/s"
    drawn = with_axis(plot(values, width - len(most) - 3, height), most)
    return Text("\n".join(drawn), no_wrap=True)


def _dispersion(analysis: Analysis, width: int) -> Table:
    idc = analysis.idc
    windows = list(idc.requests)
    if width < _WIDE:
        windows = [w for w in windows if w not in {"2", "30"}]
    rows = [("requests", *(numbers.number(idc.requests[w]) for w in windows))]
    rows.append(("Poisson, 99 %", *(words.band(analysis, w, most=2) for w in windows)))
    if idc.prompt_tokens is not None and idc.prompt_tokens_reference:
        tokens = (idc.prompt_tokens.get(w) for w in windows)
        over = idc.prompt_tokens_reference
        rows.append(("tokens/chance", *(numbers.number(t and t / over) for t in tokens)))
    return table(("dispersion", *(numbers.seconds(float(w)) for w in windows)), rows)


def _figures(analysis: Analysis, tokens: str) -> Table:
    """The classic figures, each beside its Poisson value."""
    grid = Table.grid(padding=(0, 2))
    number = numbers.number
    rate = analysis.rate
    cells = zip(words.RATE_HEAD, words.rate_cells(rate), strict=True)
    grid.add_row("req/s", Text(", ".join(f"{name} {value}" for name, value in cells)))
    peaks = [f"{number(v)} at {w} s" for w, v in analysis.peak_to_mean.items()]
    delay = numbers.seconds(analysis.capacity_delay_s)
    if analysis.capacity_delay_s not in {float(w) for w in analysis.peak_to_mean}:
        peaks.append(f"{number(analysis.peak_to_mean_at_delay)} at {delay} (capacity delay)")
    grid.add_row("peak/mean", Text(", ".join(peaks)))
    grid.add_row(
        "CV at 1 s",
        f"{number(analysis.cv_1s)} (Poisson {number(analysis.poisson_cv_1s)}), "
        f"excess {number(analysis.excess_cv_1s)}",
    )
    grid.add_row("gaps", Text(_gaps(analysis)))
    if tokens:
        grid.add_row("tokens", Text(tokens))
    return grid


def _gaps(analysis: Analysis) -> str:
    found = analysis.interarrival
    if found is None:
        return f"not given: {analysis.interarrival_refused or 'too few requests'}"
    number = numbers.number
    return (
        f"mean {numbers.seconds(found.mean)}, P50 {number(found.p50_to_mean)} of it (0.693), "
        f"P99 {number(found.p99_to_mean)} (4.61), CV {number(found.cv)} (1)"
    )


def _tokens(analysis: Analysis) -> str:
    compact = numbers.compact
    parts = [
        f"{name} P50 {compact(t.p50)}, P99 {compact(t.p99)}"
        for name, t in (("prompt", analysis.tokens.prompt), ("output", analysis.tokens.output))
        if t is not None
    ]
    rate = analysis.tokens.prompt_rate
    if rate is not None:
        parts.append(f"prompt/s mean {compact(rate.mean)}, max {compact(rate.max)}")
    return "; ".join(parts)


def _episodes(analysis: Analysis, width: int, top: int) -> Iterator[RenderableType]:
    found = words.largest(analysis, top)
    largest = found[0]
    who = f", mostly {clean(largest.tenant)}" if largest.tenant else ""
    yield Text(
        f"{words.episodes_found(analysis)}; the largest began "
        f"{numbers.moment(largest.start)}, lasted {numbers.seconds(largest.duration)}, "
        f"{numbers.number(largest.base)} to {numbers.rate(largest.peak, 'req')}{who}"
    )
    head = (words.episodes_found(analysis), *words.EPISODE_HEAD[1:])
    columns = list(range(len(head))) if width >= _WIDE else [0, 1, 2, 3, 4, 6]
    if not any(e.tenant for e in found):
        columns = [i for i in columns if i != len(head) - 1]
    for size in (3, 5, top):
        if size > min(top, len(found)) and size != top:
            continue
        rows = [words.episode_cells(e) for e in found[:size]]
        yield table(
            [head[i] for i in columns],
            [[row[i] for i in columns] for row in rows],
            words=[k for k, i in enumerate(columns) if i in {0, 6}],
        )


def _tenants(analysis: Analysis, width: int, top: int) -> Iterator[RenderableType]:
    first = max(analysis.tenants, key=lambda t: t.variance_share or 0.0)
    known = numbers.plural(len(analysis.tenants), "tenant")
    yield Text(
        f"{known}{' and others' if analysis.others else ''}; {fitted(first.name or '(none)', 30)} "
        f"sends {numbers.percent(first.share)} and makes "
        f"{numbers.percent(first.variance_share)} of the variance"
    )
    columns = list(range(len(words.TENANT_HEAD))) if width >= _WIDE else [0, 1, 2, 3, 5, 6, 8]
    head = [words.TENANT_HEAD[i] for i in columns]
    if width < _WIDE:
        head[-1] = "IDC 60 s"
    for size in sorted({2, 3, 5, top}):
        if size <= top:
            rows = [words.tenant_cells(t) for t in words.tenants(analysis, size)]
            room = max(12, width - 62) if width < _WIDE else 30
            yield table(
                head, [[fitted(row[0], room), *(row[i] for i in columns[1:])] for row in rows]
            )
