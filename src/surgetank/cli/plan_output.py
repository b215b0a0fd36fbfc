"""What `surgetank plan` shows: the fleet, its reasons and its cost; and progress meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import surgetank
from surgetank.report import numbers, page, terminal
from surgetank.report.charts import Axis, Chart, Series
from surgetank.report.page import KeyFigure, Page, Section, Table, Text
from surgetank.studies.planning.plan import Cost, Plan
from surgetank.studies.planning.wish import Size, Trial, Wish

_NAMES = {
    "plan": "this plan",
    "static_peak": "fixed: busiest minute",
    "static_average": "fixed: the mean",
    "static_least": "fixed: least that attains",
}


class Watch:
    """Progress on stderr, on a terminal only."""

    def __init__(self, most: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task("", total=float(most))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def told(self, number: int, size: Size, part: float) -> None:
        """Follow the trials."""
        self._bar.update(
            self._task, completed=number + part, description=f"simulating {size} replicas"
        )

    def say(self, text: str) -> None:
        """Tell why it takes a moment."""
        print(text, file=sys.stderr)


def show(
    plan: Plan, wish: Wish, second: Trial | None, about: str, *, written: Sequence[Path]
) -> None:
    """Print the plan."""
    out = terminal.console()
    out.print(terminal.clean(about))
    out.print(_headline(plan, wish))
    if second is not None:
        out.print(_on_second(second))
    out.print(terminal.table(_SIZES, _sizes(plan)))
    if plan.thresholds.tenants:
        out.print(terminal.table(_QUOTAS, _quotas(plan)))
    out.print(terminal.table(*_costs(plan)))
    out.print(terminal.table(_RATES, _rates(plan)))
    for reason in plan.reasons:
        out.print(f"- {terminal.clean(reason)}")
    for note in plan.notes:
        out.print(f"note: {terminal.clean(note)}")
    out.print(f"Simulated ({plan.trials} trials): {'; '.join(plan.parts)}")
    for file in written:
        out.print(f"Written: {file}")


def _headline(plan: Plan, wish: Wish) -> str:
    objective = f"TTFT {wish.ttft:g} s, {wish.tpot:g} s a token"
    if plan.cannot is not None:
        return f"It cannot: {plan.cannot.text}."
    return (
        f"{plan.size.base} base + {plan.size.elastic} elastic + {plan.size.standby} standby "
        f"replicas of {wish.profile.name}: {numbers.percent(plan.attainment)} of the requests "
        f"within {objective} ({numbers.percent(plan.asked)} asked), simulated"
    )


def _on_second(second: Trial) -> str:
    return (
        f"On the second half, which the plan had not seen: {numbers.percent(second.attainment)} of "
        f"{second.requests:,} requests"
    )


_SIZES = ("", "planned")


def _sizes(plan: Plan) -> list[tuple[str, str]]:
    limits = plan.thresholds
    return [
        ("base replicas", str(plan.size.base)),
        ("elastic replicas", str(plan.size.elastic)),
        ("standbys", str(plan.size.standby)),
        ("lead time", numbers.seconds(plan.lead_s)),
        ("in flight, per replica", str(limits.max_in_flight)),
        ("queued, in all", str(limits.max_queued)),
        ("load at which it scales", numbers.percent(limits.utilisation)),
        ("tenants with quotas", str(len(limits.tenants))),
    ]


_QUOTAS = ("quota a minute", "requests", "tokens", "busiest", "its tokens")


def _quotas(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (
            terminal.clean(limit.name),
            f"{limit.requests_per_minute:,}",
            f"{limit.tokens_per_minute:,}",
            f"{limit.busiest_requests:,}",
            f"{limit.busiest_tokens:,}",
        )
        for limit in plan.thresholds.tenants
    ]


def _costs(plan: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows, with a price if one is known."""

    def row(name: str, cost: Cost) -> tuple[str, ...]:
        price = () if cost.price_per_day is None else (f"{cost.price_per_day:,.2f}",)
        return (
            _NAMES[name],
            numbers.percent(cost.attainment),
            f"{cost.replicas:.2f}",
            f"{cost.replica_hours_per_day:.1f}",
            *price,
        )

    priced = plan.cost["plan"].price_per_day is not None
    head = ("", "attained", "replicas", "hours/day", *(("price/day",) if priced else ()))
    return head, [row(name, cost) for name, cost in plan.cost.items()]


_RATES = ("per second", "mean", "P95 minute", "P99 minute", "P95 10 min", "P99 10 min")


def _rates(plan: Plan) -> list[tuple[str, ...]]:
    traffic = plan.traffic
    rows = []
    for name, rates in (
        ("requests", traffic.requests_per_s),
        ("prompt tokens", traffic.prompt_tokens_per_s),
        ("output tokens", traffic.output_tokens_per_s),
        ("replicas' work", traffic.replicas_of_work),
    ):
        minute, ten = rates["60"], rates["600"]
        values = (minute.mean, minute.p95, minute.p99, ten.p95, ten.p99)
        rows.append((name, *(numbers.number(value) for value in values)))
    return rows


def html_page(plan: Plan, wish: Wish, second: Trial | None, about: str) -> str:
    """Write the same as a page."""
    figures = [
        KeyFigure("base", str(plan.size.base), "replicas that always serve"),
        KeyFigure("elastic", str(plan.size.elastic), "started when they are needed"),
        KeyFigure("standby", str(plan.size.standby), "kept warm"),
        KeyFigure(
            "attainment",
            numbers.percent(plan.attainment),
            f"asked: {numbers.percent(plan.asked)}",
            "bad" if plan.cannot else "good",
        ),
        KeyFigure("lead", numbers.seconds(plan.lead_s), "of a start, P95"),
    ]
    if second is not None:
        figures.append(KeyFigure("second half", numbers.percent(second.attainment), "held out"))
    told = Text((_headline(plan, wish),), "bad" if plan.cannot else "")
    quotas = [Table(_QUOTAS, _quotas(plan))] if plan.thresholds.tenants else []
    sections = (
        Section("The plan", (told, Table(_SIZES, _sizes(plan)), *quotas)),
        Section("What it costs", (Table(*_costs(plan)),)),
        Section("The traffic", (_course(plan), Table(_RATES, _rates(plan)))),
        Section("Why", (Text(plan.reasons), *([Text(plan.notes, "warn")] if plan.notes else []))),
        Section("What was simulated", (Text(plan.parts),), f"{plan.trials} trials"),
    )
    foot = f"Made by surgetank {surgetank.__version__}. It asks no other host for anything."
    return page.html(Page("Capacity plan", about, tuple(figures), sections, foot))


def _course(plan: Plan) -> Chart:
    """Draw the replicas that the traffic keeps busy beside those that the plan has."""
    course, size = plan.traffic.course, plan.size
    x = [i * course.window_s for i in range(len(course.replicas))]
    lines = [
        Series("work", course.replicas, "area"),
        Series("base", [size.base] * len(x), colour=1, dashed=True),
    ]
    if not size.fixed:
        lines.append(Series("all replicas", [size.total] * len(x), colour=2, dashed=True))
    most = max(course.replicas)
    return Chart(
        "work",
        "Replicas that the log keeps busy",
        x,
        tuple(lines),
        x_axis=Axis(kind="time"),
        y_axis=Axis("replicas"),
        wide=True,
        note=f"In windows of {numbers.seconds(course.window_s)}, as if a replica were always full.",
        says=f"At most {numbers.number(most)} of the plan's {size.total} replicas are busy.",
    )
