"""The same figures as text, as JSON and as a page.

Rule: every number is of the second half of the log, which no forecaster had seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from rich.console import Console

from surgetank.report import numbers, terminal
from surgetank.report.charts import Axis, Band, Chart, Series
from surgetank.report.page import KeyFigure, Page, Section, Table, Text
from surgetank.traffic.backtest import BEST, Backtest, Judged

_HOW: Final = (
    "The first half of the log teaches, the second is judged: in its order, each step forecast"
    " before it came. * is the best of the single ones."
)
_PLACES: Final = 900  # of a chart

Unit = str


def to_json(whole: Backtest, tenants: Sequence[Backtest], source: dict[str, Any]) -> dict[str, Any]:
    """Give the stable form."""
    return {
        "source": source,
        "horizon_s": whole.horizon,
        "step_s": whole.step,
        "level": whole.level,
        "all": _series(whole),
        "tenants": [_series(tenant) for tenant in tenants],
    }


def _series(found: Backtest) -> dict[str, Any]:
    best = found.best_single
    return {
        "name": found.series,
        "steps": len(found.rates),
        "mean": found.mean,
        "preferred": found.preferred,
        "best_single": None if best is None else best.forecaster,
        "next": None
        if found.next is None
        else {"point": found.next.point, "upper": found.next.upper},
        "forecasters": [
            {
                "name": j.forecaster,
                "forecasts": j.forecasts,
                "missed": j.missed,
                "mae": j.mae,
                "pinball": j.pinball,
                "coverage": j.coverage,
            }
            for j in found.judged
        ],
    }


_HEAD: Final = ("forecaster", "mean error", "pinball loss", "beside last value", "coverage")


def _rows(found: Backtest) -> list[tuple[str, ...]]:
    last = next((j.pinball for j in found.judged if j.forecaster == "last value"), None)
    return [(_name(j, found), *_cells(j, last)) for j in found.judged]


def _name(judged: Judged, found: Backtest) -> str:
    if judged.forecaster == BEST:
        return f"{BEST} (the mix)"
    best = found.best_single
    return f"{judged.forecaster} *" if judged == best else judged.forecaster


def _cells(judged: Judged, last: float | None) -> tuple[str, ...]:
    if judged.pinball is None or judged.mae is None:
        return ("not known", "", "", "")
    beside = f"{judged.pinball / last:.2f}x" if last else ""
    return (
        numbers.number(judged.mae),
        numbers.number(judged.pinball),
        beside,
        numbers.percent(judged.coverage),
    )


_TENANTS: Final = ("tenant", "mean", "pinball loss", "coverage", "best lately", "next, at most")


def _tenant(found: Backtest) -> tuple[str, ...]:
    mix = found.mix
    return (
        found.series,
        numbers.number(found.mean),
        numbers.number(mix.pinball),
        numbers.percent(mix.coverage),
        found.preferred or "",
        numbers.number(None if found.next is None else found.next.upper),
    )


def show(whole: Backtest, tenants: Sequence[Backtest], unit: Unit, out: Console) -> None:
    """Print the figures."""
    out.print(
        f"{len(whole.rates):,} steps of {numbers.seconds(whole.step)}, "
        f"{numbers.number(whole.mean)} {unit} in the mean; "
        f"forecast {numbers.seconds(whole.horizon)} ahead"
    )
    out.print(terminal.table(_HEAD, _rows(whole)))
    out.print(
        f"* best of the single ones. Errors in {unit}, over the second half of the log; coverage "
        f"of the upper {numbers.percent(whole.level)} quantile."
    )
    if tenants:
        out.print(terminal.table(_TENANTS, [_tenant(t) for t in tenants]))
    if whole.next is not None:
        out.print(
            f"Next, {numbers.seconds(whole.horizon)} after the end: "
            f"{numbers.number(whole.next.point)} {unit}, at most "
            f"{numbers.number(whole.next.upper)} ({numbers.percent(whole.level)})"
        )


def page(
    whole: Backtest, tenants: Sequence[Backtest], unit: Unit, *, start: float, about: str
) -> Page:
    """Draw the second half with its forecasts, and the tables."""
    mix = whole.mix
    figures = [
        KeyFigure(
            "coverage",
            numbers.percent(mix.coverage),
            f"asked: {numbers.percent(whole.level)}",
        ),
        KeyFigure("pinball loss", numbers.number(mix.pinball), unit),
    ]
    if whole.next is not None:
        figures.append(
            KeyFigure(
                f"in {numbers.seconds(whole.horizon)}",
                numbers.number(whole.next.point),
                f"at most {numbers.number(whole.next.upper)} {unit}",
            )
        )
    sections = [
        Section("Forecasts", (_chart(whole, unit, start),)),
        Section(
            "Forecasters",
            (
                Table(_HEAD, _rows(whole)),
                Text((_HOW,)),
            ),
        ),
    ]
    if tenants:
        rows = [_tenant(tenant) for tenant in tenants]
        sections.append(Section("Tenants", (Table(_TENANTS, rows, words=(4,)),)))
    return Page(title="Forecast", about=about, figures=tuple(figures), sections=tuple(sections))


def _chart(found: Backtest, unit: Unit, start: float) -> Chart:
    half = len(found.rates) // 2
    rates, point, upper = found.rates[half:], found.point[half:], found.upper[half:]
    every = max(1, -(-len(rates) // _PLACES))
    places = range(0, len(rates), every)

    def highest(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float | None]:
        parts = [values[i : i + every] for i in places]
        return [None if np.isnan(p).all() else float(np.nanmax(p)) for p in parts]

    x = [start + (half + i) * found.step for i in places]
    low = [0.0 if value is not None else None for value in highest(upper)]
    return Chart(
        name="forecast",
        title=f"Rate, and what was foretold {numbers.seconds(found.horizon)} before",
        x=x,
        series=(
            Series("came", highest(rates), colour=0),
            Series("foretold", highest(point), colour=1, dashed=True),
        ),
        x_axis=Axis("", kind="time"),
        y_axis=Axis(unit),
        bands=(Band(f"up to {numbers.percent(found.level)}", low, highest(upper)),),
        wide=True,
        note="What came should lie within the band but for one step in twenty.",
        says=f"Coverage {numbers.percent(found.mix.coverage)}.",
    )
