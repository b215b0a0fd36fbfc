"""Dates as people and servers write them, one at a time: what the fast path does not know.

Rule: a date that can be read in two ways is refused, never guessed.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from surgetank.errors import InputError

LONGEST: Final = 64  # characters of a stamp; a longer cell is none

_TIME: Final = r"(?P<h>\d{1,2}):(?P<min>\d{2})(?::(?P<s>\d{2})(?:[.,](?P<frac>\d{1,18}))?)?"
_HALF: Final = r"(?:\s*(?P<half>[AaPp]\.?[Mm]\.?))?"
_ZONE: Final = (
    r"(?:\s*(?P<zone>Z|z|(?:UTC|GMT)?(?:[+-]\d{2}(?::?\d{2})?)?))?(?:\s*\([A-Za-z ]+\))?$"
)
_DAY: Final = r"(?:[A-Za-z]{3,9}\.?,?\s+)?"
_FORMS: Final = tuple(
    re.compile(form + _ZONE, re.ASCII)
    for form in (
        r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?:[T _]\s*" + _TIME + ")?" + _HALF,
        (
            r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})[T ]?(?P<h>\d{2}):?(?P<min>\d{2}):?(?P<s>\d{2})"
            r"(?:[.,](?P<frac>\d{1,18}))?"
        ),
        # 30/Nov/2026:10:47:12 +0800, Mon, 30 Nov 2026 10:47:12 GMT
        _DAY + r"(?P<d>\d{1,2})[ /-](?P<name>[A-Za-z]{3,9})\.?[ /-](?P<y>\d{4})"
        r"(?:[ :T,]\s*" + _TIME + ")?" + _HALF,
        # Mon Nov 30 10:47:12 2026, Nov 30 10:47:12
        _DAY + r"(?P<name>[A-Za-z]{3,9})\.? +(?P<d>\d{1,2}) +" + _TIME + r"(?: (?P<y>\d{4}))?",
        _DAY + r"(?P<name>[A-Za-z]{3,9})\.? +(?P<d>\d{1,2}), *(?P<y>\d{4})"
        r"(?:,? +(?:at +)?" + _TIME + ")?" + _HALF,
        r"(?P<one>\d{1,2})(?P<sep>[/.-])(?P<two>\d{1,2})(?P=sep)(?P<y>\d{4})"
        r"(?:,?[ T]\s*" + _TIME + ")?" + _HALF,
        r"(?P<m>\d{2})-(?P<d>\d{2}) " + _TIME,  # a server's log, without a year
    )
)
MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_FULL: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTHS: Final = (
    {name.lower(): i for i, name in enumerate(MONTHS, 1)}
    | {name: i for i, name in enumerate(_FULL, 1)}
    | {"sept": 9}
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).toordinal()


class Ambiguous(Exception):  # noqa: N818 - no error: a question that the caller settles
    """Day and month can be read both ways."""


def zone(text: str) -> tzinfo:
    """Read a time zone: "UTC", "+08:00", or a name such as "Asia/Shanghai". Raises InputError."""
    found = re.fullmatch(r"([+-])(\d{2}):?(\d{2})?", text)
    if found:
        seconds = offset_seconds(text)
        if abs(seconds) < 86400:
            return timezone(timedelta(seconds=seconds))
    elif text.upper() in {"UTC", "Z", "GMT"}:
        return UTC
    else:
        try:
            return ZoneInfo(text)
        except (ValueError, OSError):  # unknown names are a KeyError below
            pass
        except KeyError:
            pass
    raise InputError(f"timezone = {text!r}: must be UTC, an offset such as +08:00 or a zone name")


def offset_seconds(text: str) -> int:
    """Seconds east of UTC of "Z", "UTC", "+0800", "+08:00", "+08", "GMT+08:00"."""
    digits = re.sub(r"[^0-9+-]", "", text)
    if not digits:
        return 0
    seconds = int(digits[1:3]) * 3600 + int(digits[3:5] or 0) * 60
    return -seconds if digits[0] == "-" else seconds


def day_order(text: str) -> bool | None:
    """Tell whether a date of two numbers and a year is day first; None when it does not say."""
    found = _FORMS[5].match(text)
    if not found:
        return None
    one, two = int(found["one"]), int(found["two"])
    if found["sep"] == ".":
        return True  # 30.11.2026 is written day first wherever it is written
    return True if one > 12 >= two else False if two > 12 >= one else None


def read(
    text: str,
    *,
    year: int | None,
    day_first: bool | None,
    offset_of: Callable[[int], int],
) -> tuple[int, float] | None:
    """Read one date as whole Unix seconds and their fraction; None when it is none we know.

    `offset_of` gives the seconds east of UTC of a naive time. Raises Ambiguous.
    """
    if len(text) > LONGEST:
        return None
    for form in _FORMS:
        if found := form.match(text):
            return _value(found.groupdict(), year, day_first, offset_of)
    return None


def _value(
    part: dict[str, str | None],
    year: int | None,
    day_first: bool | None,  # noqa: FBT001 - handed on
    offset_of: Callable[[int], int],
) -> tuple[int, float] | None:
    y = int(part.get("y") or year or 0)
    month, day = _month_and_day(part, day_first)
    if not (1 <= y <= 9999 and 1 <= month <= 12 and 1 <= day <= monthrange(y, month)[1]):
        return None
    hour, minute, second = (int(part.get(k) or 0) for k in ("h", "min", "s"))
    if half := part.get("half"):
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half[0] in "pP" else 0)
    if hour > 23 or minute > 59 or second > 60:
        return None
    days = datetime(y, month, day, tzinfo=UTC).toordinal() - _EPOCH
    naive = days * 86400 + hour * 3600 + minute * 60 + second
    zone_text = part.get("zone")
    fraction = part.get("frac") or ""
    at = naive - (offset_seconds(zone_text) if zone_text else offset_of(naive))
    return at, int(fraction or 0) / 10.0 ** len(fraction)


def _month_and_day(part: dict[str, str | None], day_first: bool | None) -> tuple[int, int]:  # noqa: FBT001 - handed on
    if name := part.get("name"):
        return _MONTHS.get(name.lower(), 0), int(part["d"] or 0)
    if part.get("one") is None:
        return int(part["m"] or 0), int(part["d"] or 0)
    one, two = int(part["one"] or 0), int(part["two"] or 0)
    if part["sep"] == "." or (one > 12 >= two):
        return two, one
    if two > 12 or one == two:
        return one, two
    if day_first is None:
        raise Ambiguous
    return (two, one) if day_first else (one, two)
