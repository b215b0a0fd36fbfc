"""A comparison on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from surgetank.loadtest import verdictwords as words
from surgetank.loadtest.verdict import Comparison, Judged
from surgetank.report import numbers
from surgetank.report.terminal import clean, table

_STYLES: Final = {"worse": "bold red", "better": "bold green", "not enough": "bold yellow"}
_NARROW: Final = (0, 1, 2, 3, 6)  # columns where there is no room for all
_WIDE: Final = 96


def show(found: Comparison, console: Console) -> None:
    """Print it: the verdict first, in one line."""
    console.print(Text(clean(found.line), style=_STYLES.get(found.verdict, "bold")))
    for note in found.notes:
        console.print(Text(f"Note: {clean(note)}", style="yellow"))
    console.print()
    names = f"A {clean(found.names[0])}, B {clean(found.names[1])}"
    size = f"{numbers.plural(found.requests, 'request')} in {numbers.plural(found.cycles, 'cycle')}"
    console.print(Text(f"{names}: {size}"))
    others = [f for f in found.figures if not f.decides]
    for title, figures in (
        ("decides", found.deciding),
        ("told", [f for f in others if not f.resource]),
        ("resources", [f for f in others if f.resource]),
    ):
        if figures:
            console.print()
            _table(console, title, figures)
    console.print()
    for line in words.method(found):
        console.print(Text(line, style="dim"))


def _table(console: Console, title: str, figures: Sequence[Judged]) -> None:
    columns = range(len(words.HEAD)) if console.width >= _WIDE else _NARROW
    head = [title, *words.HEAD[1:]]
    rows = [words.cells(figure) for figure in figures]
    console.print(
        table(
            [head[i] for i in columns],
            [[row[i] for i in columns] for row in rows],
        )
    )
