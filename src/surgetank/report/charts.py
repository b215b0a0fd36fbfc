"""What a chart shows, as data: drawn in the page by the one vendored library, told as a table too.

Rule: a chart is complete without its picture. Each has a sentence that says what is seen and a
table of its figures; colours repeat what labels, dashes and patterns say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from surgetank.report import numbers

Values = Sequence[float | None]
"""One number for each x; None or NaN where there is none."""

Kind = Literal["time", "number", "log", "names"]
Show = Literal["number", "compact", "seconds", "percent"]

COLOURS: Final = 8  # of the palette; one more, for "others", is grey
_ROWS: Final = 24  # of a chart's table; more would be a wall that nobody reads
_DIGITS: Final = 4  # significant, of what is drawn

_WRITE: Final = {
    "number": numbers.number,
    "compact": numbers.compact,
    "seconds": numbers.seconds,
    "percent": numbers.percent,
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a chart."""

    title: str = ""  # what is measured and its unit: "requests/s"
    kind: Kind = "number"  # "time": Unix seconds (UTC) or seconds from the log's origin
    show: Show = "number"  # how its values are written
    ticks: tuple[float, ...] = ()  # where labels stand; empty: chosen
    names: tuple[str, ...] = ()  # of kind "names": labels of 0, 1, 2...


@dataclass(frozen=True, slots=True)
class Series:
    """One curve."""

    label: str
    values: Values
    draw: Literal["line", "area", "step", "bar", "points"] = "line"
    colour: int | None = 0  # of the palette, 0 to 7; None is the grey of "others"
    width: float = 1.5  # CSS pixels
    dashed: bool = False
    show: Show | None = None  # None: as the y axis


@dataclass(frozen=True, slots=True)
class Band:
    """A filled stretch between two curves: what chance alone would do."""

    label: str
    low: Values
    high: Values


@dataclass(frozen=True, slots=True)
class Span:
    """A marked stretch of the x axis."""

    start: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of some series over one x."""

    name: str  # an id within its page: letters, digits, hyphens
    title: str
    x: Sequence[float]
    series: tuple[Series, ...]
    x_axis: Axis = Axis()
    y_axis: Axis = Axis()
    bands: tuple[Band, ...] = ()
    spans: tuple[Span, ...] = ()
    spans_are: str = "episode"  # what a span is, for the legend
    stacked: bool = False  # the first series stands on the axis
    wide: bool = False  # takes the whole width of a page
    note: str = ""  # how to read it, in one or two sentences
    says: str = ""  # what is seen, in one sentence: all that a listener gets at first
    empty: str = "There is nothing to draw."

    def __post_init__(self) -> None:
        columns = [s.values for s in self.series]
        columns += [v for b in self.bands for v in (b.low, b.high)]
        for column in columns:
            if len(column) != len(self.x):
                raise ValueError(
                    f"chart {self.name}: {len(column)} values for {len(self.x)} places of x"
                )

    @property
    def is_empty(self) -> bool:
        """Whether no series has a value."""
        return not any(_present(v) for s in self.series for v in s.values)


def data(chart: Chart) -> dict[str, Any]:
    """Give what the page's script draws from."""
    return {
        "x": _xs(chart.x),
        "xAxis": _axis(chart.x_axis),
        "yAxis": _axis(chart.y_axis),
        "calendar": bool(len(chart.x)) and numbers.is_calendar(float(chart.x[0])),
        "stacked": chart.stacked,
        "series": [
            {
                "label": s.label,
                "draw": s.draw,
                "colour": s.colour,
                "width": s.width,
                "dashed": s.dashed,
                "show": s.show or chart.y_axis.show,
                "values": _short(s.values),
            }
            for s in chart.series
        ],
        "bands": [
            {"label": b.label, "low": _short(b.low), "high": _short(b.high)} for b in chart.bands
        ],
        "spans": [[round(s.start, 3), round(s.end, 3), s.label] for s in chart.spans],
        "spansAre": chart.spans_are,
        "empty": chart.empty if chart.is_empty else "",
    }


def script_json(value: object) -> str:
    """Write JSON that can stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for bad in "<>&\u2028\u2029":
        text = text.replace(bad, f"\\u{ord(bad):04x}")
    return text


@dataclass(frozen=True, slots=True)
class Rows:
    """A chart as a table."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str  # what was left out


def table(chart: Chart) -> Rows:
    """Tell a chart as at most 24 rows; a longer one by the highest moment of each of its parts."""
    head = [chart.x_axis.title or "x", *(s.label for s in chart.series)]
    head += [f"{b.label}, {end}" for b in chart.bands for end in ("from", "to")]
    rows = tuple(_row(chart, i) for i in _told(chart))
    note = (
        "" if len(rows) == len(chart.x) else "Of each stretch, the moment with the highest value."
    )
    return Rows(tuple(head), rows, note)


def _told(chart: Chart) -> Iterator[int]:
    places = len(chart.x)
    if places <= _ROWS:
        yield from range(places)
        return
    for part in range(_ROWS):
        first, last = part * places // _ROWS, (part + 1) * places // _ROWS
        yield max(range(first, last), key=lambda i: _total(chart, i))


def _total(chart: Chart, i: int) -> float:
    found = [float(v) for s in chart.series if (v := s.values[i]) is not None and _present(v)]
    return sum(found) if found else -math.inf


def _row(chart: Chart, i: int) -> tuple[str, ...]:
    shown = _WRITE[chart.y_axis.show]
    cells = [_place(chart.x_axis, float(chart.x[i]))]
    cells += [_WRITE[s.show or chart.y_axis.show](_rounded(s.values[i])) for s in chart.series]
    cells += [shown(_rounded(v[i])) for b in chart.bands for v in (b.low, b.high)]
    return tuple(cells)


def _place(axis: Axis, x: float) -> str:
    if axis.kind == "time":
        return numbers.moment(x)
    if axis.kind == "names":
        return axis.names[round(x)]
    return _WRITE[axis.show](x)


def _axis(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"title": axis.title, "kind": axis.kind, "show": axis.show}
    if axis.ticks:
        found["ticks"] = list(axis.ticks)
    if axis.names:
        found["names"] = list(axis.names)
    return found


def _present(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _xs(x: Sequence[float]) -> Any:
    """Evenly spaced places are told by start, step and number; a long log's are mostly that."""
    values = [float(v) for v in x]
    if len(values) > 2:
        step = (values[-1] - values[0]) / (len(values) - 1)
        near = 1e-6 * max(abs(step), 1e-9)
        if all(abs(values[0] + i * step - v) <= near for i, v in enumerate(values)):
            return {"start": values[0], "step": step, "n": len(values)}
    return [round(v, 6) if abs(v) >= 1 else v for v in values]


def _short(values: Values) -> list[float | None]:
    """Four significant digits are more than a screen shows, and halve a page's size."""
    return [_rounded(v) for v in values]


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short
