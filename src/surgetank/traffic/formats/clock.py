"""One time stamp of an access or server log, as Unix seconds.

For logs whose lines must be looked at one by one anyway; `stamps` reads whole columns.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final

import msgspec

from surgetank.traffic.formats.rows import NOT_JSON, BadLineError

_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,12}))?\d* ?(Z|UTC|[+-]\d\d(?::?\d\d)?)?\Z",
    re.ASCII,
)
_COMMON: Final = re.compile(
    r"(\d\d)/(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)/(\d{4}):(\d\d):(\d\d):(\d\d)"
    r" ([+-])(\d\d)(\d\d)\Z",
    re.ASCII,
)
_MONTHS: Final = (
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
)
# What a log collector puts before each line: docker logs -t, kubectl logs --timestamps, a node's
# files of containerd (stdout F), a shipper's milliseconds and tab.
_PREFIX: Final = re.compile(
    r"(?:(\d{13})\t)?"
    r"(?:(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,12})?(?:Z|[+-]\d\d:\d\d))[ \t]"
    r"(?:std(?:out|err) [FP] )?)?",
    re.ASCII,
)
_WRAPPED: Final = '{"log":"'  # a node's files of Docker: each line in a JSON object


class _Wrapped(msgspec.Struct, gc=False):
    log: str
    time: str


def iso(text: str, zone: tzinfo) -> float:
    """Read an ISO date and time; without a zone of its own it is in `zone`. BadLineError if none.

    Fractions of any length count (7 digits are 100-ns ticks).
    """
    match = _ISO.match(text)
    if match is None:
        raise BadLineError("no ISO time stamp where one belongs")
    date, time, fraction, own = match.groups()
    whole = _second(date, time, own, zone)
    return whole + int(fraction) / 10 ** len(fraction) if fraction else whole


@lru_cache(maxsize=4096)
def _second(date: str, time: str, own: str | None, zone: tzinfo) -> float:
    if own is None or own in {"Z", "UTC"}:
        own = "+00:00" if own else ""
    elif len(own) == 5:
        own = f"{own[:3]}:{own[3:]}"
    elif len(own) == 3:
        own += ":00"
    try:
        moment = datetime.fromisoformat(f"{date}T{time}{own}")
        return (moment if own else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        raise BadLineError("no such date or time of day") from None


@lru_cache(maxsize=4096)
def common_log(text: str) -> float:
    """Read the common log format's time, "30/Nov/2026:10:47:12 +0800". BadLineError if none."""
    match = _COMMON.match(text)
    if match is None:
        raise BadLineError("no time stamp like 30/Nov/2026:10:47:12 +0800")
    day, month, year, hour, minute, second, sign, east_h, east_m = match.groups()
    offset = timedelta(hours=int(east_h), minutes=int(east_m)) * (-1 if sign == "-" else 1)
    try:
        return datetime(
            int(year),
            _MONTHS.index(month) + 1,
            int(day),
            int(hour),
            int(minute),
            int(second),
            tzinfo=timezone(offset),
        ).timestamp()
    except (ValueError, OverflowError):
        raise BadLineError("no such date or time of day") from None


def collected(line: str) -> tuple[float | None, str]:
    """Split what a log collector put around a line: its time stamp, if any, and the line itself.

    Raises BadLineError when that is broken.
    """
    if line.startswith(_WRAPPED):
        try:
            wrapped = msgspec.json.decode(line, type=_Wrapped)
        except NOT_JSON:
            raise BadLineError("a broken JSON object of the log collector") from None
        return iso(wrapped.time, UTC), wrapped.log.rstrip("\r\n")
    match = _PREFIX.match(line)
    if match is None or not match.end():
        return None, line
    epoch_ms, text = match.groups()
    stamp = int(epoch_ms) / 1000.0 if epoch_ms else iso(text, UTC)
    return stamp, line[match.end() :]


def without_prefix(line: str) -> str:
    """Give a line without what a log collector put around it."""
    try:
        return collected(line)[1]
    except BadLineError:
        return line
