"""A run's report as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from surgetank.loadtest import reportwords as words
from surgetank.loadtest.report import Report, Share
from surgetank.loadtest.reportcharts import charts
from surgetank.loadtest.runfile import Run
from surgetank.report import numbers
from surgetank.report.page import KeyFigure, Page, Section, Table, Text


def page(run: Run, report: Report, *, made_by: str = "") -> Page:
    """Compose it."""
    valid = report.sender.get("valid", True)
    note = [Text(("INVALID: the sender was late beyond its limit.",), tone="bad")]
    return Page(
        title="How does this service take bursts?",
        about=words.asked(report),
        figures=tuple(_figures(report)),
        sections=(
            Section(
                "In words",
                (
                    *([] if valid else note),
                    Text((words.outcome(report), words.recovery(report), *words.after(report))),
                ),
            ),
            Section("Over time", tuple(charts(run, report))),
            Section("By phase", _tables("phase", [*report.phases, report.whole])),
            *(
                [Section("By tenant", _tables("tenant", report.tenants))]
                if len(report.tenants) > 1
                else []
            ),
            Section("Definitions", (Table(("term", "meaning"), words.definitions(), words=(1,)),)),
        ),
        foot=made_by,
    )


def _figures(report: Report) -> list[KeyFigure]:
    pulse = next((share for share in report.phases if share.name == "pulse"), report.whole)
    found = report.recovery
    interval = ""
    if found.low is not None and found.high is not None:
        interval = f"{numbers.seconds(found.low)} to {numbers.seconds(found.high)}"
    return [
        KeyFigure("Requests", numbers.count(report.requests)),
        KeyFigure(
            "Attainment",
            numbers.percent(report.attainment),
            f"within {numbers.seconds(report.objective.ttft)}",
        ),
        KeyFigure("TTFT P95 in pulses", words.latency_cells(pulse)[1]),
        KeyFigure("Recovery time", numbers.seconds(found.seconds), interval),
        KeyFigure("Refused", numbers.percent(report.whole.refused_rate)),
        KeyFigure("Attempts / request", numbers.number(report.amplification)),
    ]


def _tables(what: str, shares: Sequence[Share]) -> tuple[Table, ...]:
    of_tokens = Table(
        (what, *words.TOKEN_HEAD),
        [(share.name or "(none)", *words.token_cells(share)) for share in shares],
        "Gaps between the tokens of a stream",
    )
    return (
        Table(
            (what, *words.LATENCY_HEAD),
            [(share.name or "(none)", *words.latency_cells(share)) for share in shares],
            "Latency from when each request was due",
        ),
        Table(
            (what, *words.OUTCOME_HEAD),
            [(share.name or "(none)", *words.outcome_cells(share)) for share in shares],
            "What became of the requests",
        ),
        *([of_tokens] if any(share.gaps for share in shares) else []),
    )
