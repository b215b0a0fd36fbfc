"""Times as logs write them, a column at a time, as Unix seconds or seconds from the log's origin.

Rule: the first number of a log tells its unit by its magnitude, and all others must agree; a naive
date is UTC unless an option says a zone. Numbers: 1e8..1e10 are seconds (1973 to 2286), a thousand
times more milliseconds, and so on; below 1e8 they count from the log's own origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats import dateforms
from surgetank.traffic.formats.reading import ReadOptions, TimeUnit, UnreadableError
from surgetank.traffic.trace import Seconds

Cell = str | int | float | None

PER_SECOND: Final[dict[TimeUnit, float]] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_ABSOLUTE: Final = 1e8  # seconds: 1973; smaller numbers count from the log's own origin
_LATEST: Final = 1e10  # seconds: 2286
_POWERS: Final = np.array([10.0**i for i in range(20)])
_COMPACT_FROM: Final = 19 * 10**12  # 20261130104712 and the like, as numbers
_COMPACT_TO: Final = 21 * 10**12
_ZONE: Final = re.compile(r"Z|z|(?:UTC|GMT)?(?:[+-]\d{2}(?::?\d{2})?)?")
_MONTH_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_WORTH_IT: Final = 16  # cells: fewer are read sooner one by one
_MEMO: Final = 100_000  # stamps remembered: logs repeat them up to 90 %


class _Layout(NamedTuple):
    marks: tuple[tuple[int, bytes], ...]
    numbers: tuple[tuple[int, ...], ...]  # year, day, hour, minute, second
    month: tuple[int, ...]
    end: int


_ISO: Final = _Layout(  # 2026-11-30 10:47:12
    ((4, b"-/"), (7, b"-/"), (10, b" T"), (13, b":"), (16, b":")),
    ((0, 1, 2, 3), (8, 9), (11, 12), (14, 15), (17, 18)),
    (5, 6),
    19,
)
_CLF: Final = _Layout(  # 30/Nov/2026:10:47:12, of access logs
    ((2, b"/"), (6, b"/"), (11, b":"), (14, b":"), (17, b":")),
    ((7, 8, 9, 10), (0, 1), (12, 13), (15, 16), (18, 19)),
    (3, 4, 5),
    20,
)
_BY_NAME: Final = sorted(
    (int.from_bytes(name.lower().encode()), number)
    for number, name in enumerate(dateforms.MONTHS, 1)
)
_NAMED_MONTHS: Final = np.array([key for key, _ in _BY_NAME])
_NUMBERS_OF_MONTHS: Final = np.array([number for _, number in _BY_NAME])


class Stamps:
    """Reads one column of times. State: the unit and the origin that the log was found to have."""

    def __init__(self, options: ReadOptions, *, unit: TimeUnit | None = None) -> None:
        """`unit` is what the column's name or the format says; the option goes before it."""
        self.relative: bool | None = None  # counts from the log's own origin; None: not known yet
        self.zeros = 0  # stamps of 0 before that was known
        self._unit = options.time_unit or unit
        self._given = self._unit is not None
        self._options = options
        self._day_first = options.day_first
        self._memo: dict[str, float] = {}

    def read(self, cells: Sequence[Cell]) -> Seconds:
        """Give the time of each cell, NaN where it has none. Raises UnreadableError.

        That is when a date's day and month can be told neither from it nor from its neighbours.
        """
        numbers = _numbers(cells)
        if numbers is not None and not self._may_be_compact(numbers):
            return self._from_numbers(numbers)
        dates: Seconds | None = None
        rest = list(range(len(cells)))
        if numbers is None and len(cells) >= _WORTH_IT and all(type(c) is str for c in cells):
            dates, done = iso(cells, self._options.timezone)  # type: ignore[arg-type] # checked above
            rest = np.flatnonzero(~done).tolist()
        if self._day_first is None and rest:
            self._day_first = _day_order(cells[i] for i in rest)
        return self._merged(cells, dates, rest)

    def sure(self, column: Seconds | NDArray[np.bytes_]) -> Seconds | None:
        """Give what `read` gives of a column of numbers, or of text, when all of it is plain.

        None, and nothing learned, unless each is a time in the unit that the rows before told.
        """
        if self.relative is None or not len(column):
            return None
        if column.dtype.kind == "S":
            if self.relative or len(column) < _WORTH_IT:
                return None
            dates, done = _laid_out_bytes(column, self._options.timezone)  # type: ignore[arg-type] # text
            return dates if done.all() else None
        if self._unit is None or self._may_be_compact(column):  # type: ignore[arg-type] # numbers
            return None
        found = self._from_numbers(column)  # type: ignore[arg-type] # numbers
        return None if np.isnan(found).any() else found

    def _merged(self, cells: Sequence[Cell], dates: Seconds | None, rest: list[int]) -> Seconds:
        """Read the `rest` one by one; in the log's order, for the first time tells the origin."""
        found = np.full(len(cells), np.nan) if dates is None else dates
        read = 0
        if dates is not None and len(rest) < len(cells) and self.relative is None:
            first = int(np.argmax(~np.isnan(dates)))
            while read < len(rest) and rest[read] < first:
                found[rest[read]] = self._one(cells[rest[read]])
                read += 1
            if self.relative is None:
                self.relative = False
        if self.relative:  # dates among seconds from an origin
            later = np.ones(len(cells), bool)
            later[rest[:read]] = False
            found[later] = np.nan
        for i in rest[read:]:
            found[i] = self._one(cells[i])
        return found

    def _one(self, cell: Cell) -> float:
        if isinstance(cell, int) and _COMPACT_FROM <= cell < _COMPACT_TO:
            return self._text(str(cell))
        if not isinstance(cell, str):
            numbers = _numbers([cell])
            return np.nan if numbers is None else float(self._from_numbers(numbers)[0])
        known = self._memo.get(cell)
        if known is None:
            known = self._text(cell.strip().strip("\"'[]"))
            if self.relative is not None and len(cell) <= dateforms.LONGEST:
                if len(self._memo) >= _MEMO:
                    self._memo.clear()
                self._memo[cell] = known
        return known

    def _may_be_compact(self, numbers: Seconds) -> bool:
        """20261130104712 is a date: no unit gives that magnitude a sense."""
        if self._given:
            return False
        return bool(np.any((numbers >= _COMPACT_FROM) & (numbers < _COMPACT_TO)))

    def _text(self, text: str) -> float:
        numbers = _numbers([text])
        if numbers is not None and not self._may_be_compact(numbers):
            return float(self._from_numbers(numbers)[0])
        try:
            found = dateforms.read(
                text,
                year=self._options.year,
                day_first=self._day_first,
                offset_of=lambda naive: naive_offset(naive, self._options.timezone),
            )
        except dateforms.Ambiguous:
            raise UnreadableError(
                f"{text}: day and month can be read both ways; say which comes first (--day-first"
                " or --month-first), or write dates as 2026-11-30"
            ) from None
        if found is None or self.relative:
            return np.nan
        self.relative = False
        return found[0] + found[1]

    def _from_numbers(self, numbers: Seconds) -> Seconds:
        """Scale to seconds; NaN where the magnitude is not that of the log's unit."""
        told = 0  # rows before it are zeros or unreadable: nothing told the unit yet
        if self._unit is None or self.relative is None:
            telling = np.isfinite(numbers) & (numbers != 0)
            if self._unit is None:
                telling &= _has_unit(numbers)
            told = int(np.argmax(telling)) if telling.any() else len(numbers)
            if told < len(numbers):
                self._learn(float(numbers[told]))
        seconds = numbers / PER_SECOND[self._unit] if self._unit not in {None, "s"} else numbers
        size = np.abs(seconds)
        good = np.isfinite(seconds) & (size < _LATEST)
        if not self._given and self.relative is not None:
            good &= (size < _ABSOLUTE) if self.relative else (seconds >= _ABSOLUTE)
        good[:told] = numbers[:told] == 0
        self.zeros += int(good[:told].sum())
        return np.where(good, seconds, np.nan)

    def _learn(self, first: float) -> None:
        if self._unit is None:
            self._unit = _unit_of(first)
        if self.relative is None:
            self.relative = first / PER_SECOND[self._unit] < _ABSOLUTE


def iso(cells: Sequence[str], zone: tzinfo) -> tuple[Seconds, NDArray[np.bool_]]:
    """Read cells such as `YYYY-MM-DD HH:MM:SS` and `DD/Mon/YYYY:HH:MM:SS` at once.

    Gives Unix seconds, and which cells were such. T may separate date and time; a fraction of up to
    18 digits and a zone may follow; rows may differ in all of it.
    """
    if max(map(len, cells), default=0) > dateforms.LONGEST:
        cells = [c if len(c) <= dateforms.LONGEST else "" for c in cells]
    try:
        packed = np.array(cells, dtype="S")
    except UnicodeEncodeError:
        packed = np.array([c.encode("ascii", "replace") for c in cells])
    return _laid_out_bytes(packed, zone)


def _laid_out_bytes(packed: NDArray[np.bytes_], zone: tzinfo) -> tuple[Seconds, NDArray[np.bool_]]:
    n, width = len(packed), packed.dtype.itemsize
    if n == 0 or width < 19:
        return np.full(n, np.nan), np.zeros(n, bool)
    text = packed.view(np.uint8).reshape(n, width)
    found, done = _laid_out(text, _ISO, zone)
    if not done.all() and width >= 20:
        rest = np.flatnonzero(~done)
        found[rest], done[rest] = _laid_out(text[rest], _CLF, zone)
    return found, done


def naive_offset(naive: int, zone: tzinfo) -> int:
    """Seconds east of UTC in `zone` when its clocks show the naive time (seconds from 1970)."""
    if zone is UTC:
        return 0
    try:
        shown = datetime(1970, 1, 1) + timedelta(seconds=naive)  # noqa: DTZ001 - naive on purpose
        offset = shown.replace(tzinfo=zone).utcoffset()
    except OverflowError:
        return 0
    return int(offset.total_seconds()) if offset is not None else 0


def _laid_out(
    text: NDArray[np.uint8], layout: _Layout, zone: tzinfo
) -> tuple[Seconds, NDArray[np.bool_]]:
    done = np.ones(len(text), bool)
    for at, allowed in layout.marks:
        mark = text[:, at]
        is_mark = mark == allowed[0]
        for other in allowed[1:]:
            is_mark |= mark == other
        done &= is_mark
    year, day, hour, minute, second = (_digits(text, at, done) for at in layout.numbers)
    month = _month(text, layout.month, done)
    done &= (year > 0) & (month >= 1) & (month <= 12) & (day >= 1)
    done &= (hour < 24) & (minute < 60) & (second <= 60)
    days = _days_from_civil(year, month, day)
    done &= day <= _days_in_month(year, np.where(done, month, 1))
    naive = days * 86400 + hour * 3600 + minute * 60 + second
    fraction, end = _fraction(text, layout.end)
    found = naive - _offsets(text, end, naive, done, zone) + fraction
    return np.where(done, found, np.nan), done


def _digits(
    text: NDArray[np.uint8], at: tuple[int, ...], done: NDArray[np.bool_]
) -> NDArray[np.int64]:
    value = np.zeros(len(text), np.int64)
    for i in at:
        digit = text[:, i] - np.uint8(48)  # wraps: what is no digit becomes > 9
        done &= digit <= 9
        value = value * 10 + digit
    return value


def _month(
    text: NDArray[np.uint8], at: tuple[int, ...], done: NDArray[np.bool_]
) -> NDArray[np.int64]:
    if len(at) == 2:
        return _digits(text, at, done)
    key = np.zeros(len(text), np.int64)
    for i in at:
        key = key * 256 + (text[:, i] | 0x20)  # lower case
    where = np.searchsorted(_NAMED_MONTHS, key).clip(max=11)
    done &= _NAMED_MONTHS[where] == key
    month: NDArray[np.int64] = _NUMBERS_OF_MONTHS[where]
    return month


def _fraction(text: NDArray[np.uint8], start: int) -> tuple[Seconds, NDArray[np.int64]]:
    """Give the fraction of a second, and where the text after it begins."""
    n, width = text.shape
    value = np.zeros(n, np.int64)
    length = np.zeros(n, np.int64)
    if width <= start + 1:
        return np.zeros(n), np.full(n, start)
    more = (text[:, start] == 46) | (text[:, start] == 44)  # . or ,
    for i in range(start + 1, min(width, start + 19)):
        digit = text[:, i] - np.uint8(48)
        more &= digit <= 9
        if not more.any():
            break
        value = np.where(more, value * 10 + digit, value)
        length += more
    return value / _POWERS[length], np.where(length > 0, start + 1 + length, start)


def _offsets(
    text: NDArray[np.uint8],
    end: NDArray[np.int64],
    naive: NDArray[np.int64],
    done: NDArray[np.bool_],
    zone: tzinfo,
) -> NDArray[np.int64]:
    """Seconds east of UTC of each row, by what follows its time; unknown endings are not done."""
    n, width = text.shape
    offset = np.zeros(n, np.int64)
    for at in np.unique(end):
        rows = np.flatnonzero((end == at) & done)
        if not len(rows):
            continue
        if at >= width:
            offset[rows] = _naive_offsets(naive[rows], zone)
            continue
        tails = np.ascontiguousarray(text[rows, at:]).view(f"S{width - at}").ravel()
        kinds = tails[:1] if (tails == tails[0]).all() else np.unique(tails)
        for tail in kinds:
            mine = rows[tails == tail]
            ending = tail.decode("latin-1").strip()
            if not ending:
                offset[mine] = _naive_offsets(naive[mine], zone)
            elif _ZONE.fullmatch(ending):
                offset[mine] = dateforms.offset_seconds(ending)
            else:
                done[mine] = False
    return offset


def _naive_offsets(naive: NDArray[np.int64], zone: tzinfo) -> NDArray[np.int64]:
    if zone is UTC:
        return np.zeros(len(naive), np.int64)
    quarters, where = np.unique(naive // 900, return_inverse=True)  # zones change on the quarter
    return np.array([naive_offset(int(q) * 900, zone) for q in quarters], np.int64)[where]


def _days_from_civil(
    year: NDArray[np.int64], month: NDArray[np.int64], day: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Days from 1970-01-01 (Hinnant, chrono-compatible low-level date algorithms)."""
    y = year - (month <= 2)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    days: NDArray[np.int64] = (
        era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    )
    return days


def _days_in_month(year: NDArray[np.int64], month: NDArray[np.int64]) -> NDArray[np.int64]:
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    days: NDArray[np.int64] = _MONTH_DAYS[month] + (leap & (month == 2))
    return days


def _numbers(cells: Sequence[Cell]) -> Seconds | None:
    """All cells as floats, gaps as NaN; None when one of them is something else."""
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))  # type: ignore[arg-type] # None raises
    except (TypeError, ValueError, OverflowError):
        pass
    found = np.empty(len(cells))
    for i, cell in enumerate(cells):
        if cell is None or cell in ("", "-", "null", "None"):
            found[i] = np.nan
        else:
            try:
                found[i] = float(cell)
            except OverflowError:
                found[i] = np.nan
            except (TypeError, ValueError):
                return None
    return found


def _day_order(cells: Iterable[Cell]) -> bool | None:
    """Day first or month first, from the first cell that can be read one way only."""
    for cell in cells:
        if isinstance(cell, str) and len(cell) <= dateforms.LONGEST:
            order = dateforms.day_order(cell.strip().strip("\"'[]"))
            if order is not None:
                return order
    return None


def _has_unit(numbers: Seconds) -> NDArray[np.bool_]:
    size = np.abs(numbers)
    known = size < _LATEST
    for per_second in (1e3, 1e6, 1e9):
        known |= (size >= _ABSOLUTE * per_second) & (size < _LATEST * per_second)
    return known


def _unit_of(number: float) -> TimeUnit:
    size = abs(number)
    for unit, per_second in PER_SECOND.items():
        if size < _LATEST * per_second:
            return unit
    return "ns"
