"""A comparison in words and cells, the same on a terminal and in a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from surgetank.report import numbers

if TYPE_CHECKING:
    from surgetank.loadtest.verdict import Comparison, Judged

HEAD: Final = ("figure", "A", "B", "change", "95 % interval", "p", "verdict")


def value(figure: Judged, number: float | None) -> str:
    """Write a figure's value with its unit; infinite ones as a word."""
    if number is None:
        return "infinite" if figure.note.startswith("infinite") else numbers.NONE
    return amount(figure.unit, number)


def amount(unit: str, number: float) -> str:
    """Write a number of a unit."""
    if unit == "seconds":
        return numbers.seconds(number)
    if unit == "share":
        return numbers.percent(number)
    return numbers.compact(number)


def change(figure: Judged) -> str:
    """How far B is from A: points of a share, else per cent of A, else the difference itself."""
    if figure.difference is None:
        return numbers.NONE
    if figure.points:
        return f"{_signed(100 * figure.difference)} points"
    if figure.relative is None:
        return f"{'+' if figure.difference > 0 else ''}{amount(figure.unit, figure.difference)}"
    return f"{_signed(100 * figure.relative)} %"


def interval(figure: Judged) -> str:
    """Write its interval in the unit of the change."""
    if figure.low is None or figure.high is None:
        return numbers.NONE
    if figure.points:
        return f"{_signed(100 * figure.low)} to {_signed(100 * figure.high)}"
    if figure.relative is None or not figure.a:
        return f"{amount(figure.unit, figure.low)} to {amount(figure.unit, figure.high)}"
    return f"{_signed(100 * figure.low / figure.a)} to {_signed(100 * figure.high / figure.a)} %"


def chance(figure: Judged) -> str:
    """Write its p, the adjusted one where it decides."""
    p = figure.p if figure.adjusted is None else figure.adjusted
    if p is None:
        return numbers.NONE
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def cells(figure: Judged) -> tuple[str, ...]:
    """Give a row under HEAD."""
    return (
        figure.title,
        value(figure, figure.a),
        value(figure, figure.b),
        change(figure),
        interval(figure),
        chance(figure),
        figure.says if figure.says != "unknown" else numbers.NONE,
    )


def sentence(outcome: str, deciding: Sequence[Judged], cycles: int) -> str:
    """Give the verdict in one line."""
    over = f" (over {cycles} cycles)"
    moved = [f for f in deciding if f.says == outcome]
    against = [f for f in deciding if f.says == "better" and outcome == "worse"]
    if outcome == "no difference":
        told = "; ".join(f"{f.title} {change(f)}" for f in deciding if f.difference is not None)
        return f"No difference beyond the threshold: {told}{over}"
    line = f"{outcome.capitalize()}: " + "; ".join(_moved(f) for f in moved)
    if against:
        line += "; but better: " + "; ".join(_moved(f) for f in against)
    return line + over


def _moved(figure: Judged) -> str:
    told = f"{figure.title} {value(figure, figure.a)} to {value(figure, figure.b)}"
    if figure.difference is None:
        return told
    return f"{told}, {change(figure)} ({interval(figure)})"


def method(found: Comparison) -> list[str]:
    """Say how it was judged, in sentences."""
    limit = found.threshold
    titles = ", ".join(f.title for f in found.deciding)
    points, unserved = (numbers.number(100 * p) for p in (limit.points, limit.unserved))
    promised = numbers.seconds(found.objective_ttft)
    judged = (
        f"Different: p at most 0.05, and a change of {numbers.percent(limit.relative)} or more "
        f"({points} points of attainment, {unserved} points of requests not served)."
    )
    kept = (
        f"Attainment: completed with TTFT within {promised} of when the request was due (or its "
        "tenant's own objective), of all requests. Not served: refused, timed out, failed or left."
    )
    lines = [
        f"Deciding figures: {titles}; their p values are adjusted together (Holm).",
        "The other figures are told and decide nothing.",
        judged,
        "Intervals: 95 %, block bootstrap over cycles in pairs, 4,000 resamples, Student's t.",
        kept,
    ]
    if found.limit is not None:
        window, within = numbers.seconds(found.window), numbers.seconds(found.limit)
        lines.append(
            f"Recovery time: from a pulse's end until every window of {window} has a median TTFT "
            f"within {within} (the P95 of A's calmest calm and a margin)."
        )
    return lines


def _signed(number: float) -> str:
    text = numbers.number(number)
    return f"+{text}" if number > 0 and text != "0" else text.replace("-", "\N{MINUS SIGN}")
