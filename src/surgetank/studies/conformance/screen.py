"""Results on a terminal: a line as each check ends, then what failed and what was seen."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from surgetank.report.terminal import clean
from surgetank.studies.conformance.verdict import Report, Result, Status

_MARKS: Final = {Status.PASSED: "pass", Status.FAILED: "FAIL", Status.NOT_TESTABLE: "  - "}
_STYLES: Final = {Status.PASSED: "green", Status.FAILED: "bold red", Status.NOT_TESTABLE: "yellow"}


def line(result: Result, console: Console) -> None:
    """Print one result."""
    text = Text(_MARKS[result.status], style=_STYLES[result.status])
    text.append(f" {result.check.number:>3}  {clean(result.check.title)}", style="default not bold")
    text.append(f"  {result.seconds:.1f} s", style="dim not bold")
    console.print(text)
    if result.status is Status.NOT_TESTABLE:
        _below(console, f"not testable: {result.seen}", dim=True)
    if result.status is Status.FAILED:
        _below(console, f"seen:  {result.seen}")
        _below(console, f"right: {result.check.right}")
        _below(console, f"as in: {result.check.source}", dim=True)


def evidence(result: Result, console: Console) -> None:
    """Print what was seen on the way."""
    for told in result.evidence:
        _below(console, told, dim=True)


def _below(console: Console, text: str, *, dim: bool = False) -> None:
    console.print(
        Padding(Text(clean(text), style="dim" if dim else ""), (0, 0, 0, 10), expand=False)
    )


def last(report: Report, console: Console) -> None:
    """Print the last line: the counts."""
    console.print(Text(report.line, style="bold red" if report.count(Status.FAILED) else "bold"))
