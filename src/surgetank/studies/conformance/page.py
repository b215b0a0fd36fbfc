"""Results as one HTML page."""

from __future__ import annotations

from typing import Final

from surgetank.report import numbers
from surgetank.report.page import KeyFigure, Page, Section, Table, Text, Tone
from surgetank.studies.conformance.verdict import Report, Result, Status

_HEAD: Final = ("check", "number", "result", "seen", "reported as", "seconds")
_WORDS: Final = (2, 3, 4)


def page(report: Report, *, made_by: str = "") -> Page:
    """Compose it."""
    failed = [r for r in report.results if r.status is Status.FAILED]
    untestable = report.count(Status.NOT_TESTABLE)
    tone: Tone = "bad" if failed else "good"
    version = f", {report.version}" if report.version else ""
    sections = [Section(r.check.title, (_text(r),), about=_about(r)) for r in failed]
    return Page(
        title=f"Burst conformance of {report.target}",
        about=f"{report.target}{version}: {report.line}",
        figures=(
            KeyFigure("Passed", str(report.count(Status.PASSED)), tone="good"),
            KeyFigure("Failed", str(len(failed)), tone=tone),
            KeyFigure("Not testable", str(untestable), tone="warn" if untestable else ""),
            KeyFigure("Took", numbers.seconds(report.seconds)),
        ),
        sections=(
            *sections,
            Section("All checks", (Table(_HEAD, [_row(r) for r in report.results], words=_WORDS),)),
            Section("What was seen", tuple(_evidence(r) for r in report.results if r.evidence)),
        ),
        foot=made_by,
    )


def _about(result: Result) -> str:
    check = result.check
    reported = "reported as " if "#" in check.source else ""
    return f"Check {check.number}, {reported}{check.source}"


def _text(result: Result) -> Text:
    told = (f"Seen: {result.seen}", f"Right: {result.check.right}", *result.evidence)
    return Text(told, tone="bad")


def _evidence(result: Result) -> Text:
    return Text((f"{result.check.number}. {result.check.title}", *result.evidence))


def _row(result: Result) -> tuple[str, ...]:
    check = result.check
    number, seconds = str(check.number), f"{result.seconds:.1f}"
    return check.title, number, result.status.value, result.seen, check.source, seconds
