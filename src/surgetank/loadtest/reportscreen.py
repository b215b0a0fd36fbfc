"""A run's report on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from surgetank.loadtest import reportwords as words
from surgetank.loadtest.report import Report, Share
from surgetank.report.terminal import clean, fitted, table

_NARROW_LATENCY: Final = (0, 1, 2, 3, 5, 7)
_NARROW_OUTCOME: Final = (0, 1, 2, 3, 4, 6)
_WIDE: Final = 100  # columns that show every figure
_TENANTS: Final = 12


def show(report: Report, console: Console) -> None:
    """Print it, with the definitions at its end."""
    console.print(Text(clean(words.asked(report)), style="bold"))
    console.print(Text(words.outcome(report)))
    console.print()
    _shares(console, "phase", [*report.phases, report.whole])
    if len(report.tenants) > 1:
        busiest = sorted(report.tenants, key=lambda t: -t.requests)
        console.print()
        _shares(console, "tenant", busiest[:_TENANTS])
        if len(busiest) > _TENANTS:
            console.print(f"and {len(busiest) - _TENANTS} tenants more (--json has them all)")
    console.print()
    console.print(Text(words.recovery(report), style="bold"))
    for line in words.after(report):
        bad = "INVALID" in line
        console.print(Text(line, style="bold red" if bad else ""))
    console.print()
    for term, meaning in words.definitions():
        console.print(Text.assemble((term, "bold"), f": {meaning}"), style="dim")


def _shares(console: Console, what: str, shares: Sequence[Share]) -> None:
    wide = console.width >= _WIDE
    latency = range(len(words.LATENCY_HEAD)) if wide else _NARROW_LATENCY
    outcome: Sequence[int] = range(len(words.OUTCOME_HEAD)) if wide else _NARROW_OUTCOME
    if not any(share.peaks for share in shares):
        outcome = [i for i in outcome if words.OUTCOME_HEAD[i] not in {"queue", "KV"}]
    names = [fitted(share.name or "(none)", 24) for share in shares]
    tables: list[tuple[Sequence[str], Callable[[Share], Sequence[str]], Sequence[int]]] = [
        (words.LATENCY_HEAD, words.latency_cells, latency),
        (words.OUTCOME_HEAD, words.outcome_cells, outcome),
    ]
    if any(share.gaps for share in shares):
        tables.append((words.TOKEN_HEAD, words.token_cells, range(len(words.TOKEN_HEAD))))
    for number, (head, cells, columns) in enumerate(tables):
        if number:
            console.print()
        rows = [
            (name, *(cells(share)[i] for i in columns))
            for name, share in zip(names, shares, strict=True)
        ]
        console.print(table((what, *(head[i] for i in columns)), rows))
