"""Numbers as people read them, the same in terminal, page and picture.

Rule: three significant digits, the unit beside them, a dash for what is unknown. Reports for
machines carry the numbers themselves, never these words.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

NONE: Final = "–"  # noqa: RUF001 - the dash that stands for an unknown figure
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_DAY: Final = 86400.0
_CALENDAR: Final = 1e8  # seconds: later stamps are Unix time, earlier ones count from a log's start
_LAST: Final = 253_402_300_799.0  # the end of the year 9999


def number(value: float | None) -> str:
    """Three significant digits: 0.0123, 1.23, 45.6, 1,234; whole numbers stay whole."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 1e15:
        return f"{value:.2e}"
    if size >= 99.95 or value == int(value):
        return _fixed(value, 0)
    if size < 0.0001:
        return f"{value:.1e}".replace("e-0", "e-")
    digits = 2 if size >= 0.9995 else 2 - math.floor(math.log10(size))
    return _fixed(value, 1 if size >= 9.995 else digits)


def _fixed(value: float, digits: int) -> str:
    """Round halves away from 0, as the page's script does."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):,f}"


def _tenths(value: float) -> str:
    return f"{math.floor(value * 10 + 0.5) / 10:g}"


def between(low: float | None, high: float | None, *, most: int = 3) -> str:
    """Write a range with the decimals (at most so many) that tell its ends apart: 0.997-1.003."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return NONE
    wide = high - low
    # Two digits of the width: 0.006 takes three decimals, 0.12 two, 3.7 one.
    decimals = most if wide <= 0 else min(most, max(0, 1 - math.floor(math.log10(wide))))
    return f"{low:,.{decimals}f}-{high:,.{decimals}f}"


def count(value: float | None) -> str:
    """Write a whole number with thousands: 1,234,567."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """Write a large number short: 950, 12.3k, 4.56M, 7.89G."""
    if value is None or not math.isfinite(value):
        return NONE
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return number(value / (1e3 if unit == "k" else limit)) + unit
    return number(value)


def rate(value: float | None, of: str = "") -> str:
    """Write a rate per second; `of` names what is counted: "12.3 req/s"."""
    return compact(value) if value is None or not of else f"{compact(value)} {of}/s"


def percent(share: float | None) -> str:
    """Write a share of one as per cent: 0.123 is "12.3 %"."""
    return NONE if share is None or not math.isfinite(share) else f"{number(100 * share)} %"


def seconds(value: float | None) -> str:
    """Write a duration in the unit that suits its size: 12 ms, 1.23 s, 12 min, 3.4 h, 2.1 days."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if 0 < size < 0.001:
        return f"{number(value * 1e6)} µs"
    if 0 < size < 0.9995:
        return f"{number(value * 1000)} ms"
    if size < 2 * _MINUTE:
        return f"{number(value)} s"
    for limit, unit, name in ((2 * _HOUR, _MINUTE, "min"), (2 * _DAY, _HOUR, "h")):
        if size < limit:
            return f"{_tenths(value / unit)} {name}"
    return f"{_tenths(value / _DAY)} days"


def is_calendar(stamp: float) -> bool:
    """Whether a stamp is Unix time, and not seconds from the beginning of some log."""
    return _CALENDAR <= stamp <= _LAST


def moment(stamp: float | None) -> str:
    """Write a point in time: UTC for Unix seconds, else the time since the log's origin."""
    if stamp is None or not math.isfinite(stamp):
        return NONE
    if is_calendar(stamp):
        return datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return elapsed(stamp)


def elapsed(value: float) -> str:
    """Write a time since the log's origin: 0:07:30, 2 d 03:00:00."""
    whole = math.floor(abs(value))
    days, rest = divmod(whole, int(_DAY))
    hours, rest = divmod(rest, int(_HOUR))
    minutes, left = divmod(rest, 60)
    sign = "-" if value < 0 else ""
    if days:
        return f"{sign}{days:,} d {hours:02}:{minutes:02}:{left:02}"
    return f"{sign}{hours}:{minutes:02}:{left:02}"


def plural(amount: float, noun: str) -> str:
    """Write a count with its noun: "1 row", "2 rows"."""
    return f"{count(amount)} {noun}{'' if amount == 1 else 's'}"
