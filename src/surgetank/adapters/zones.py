"""The clocks of time zones, for what is said in local time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from surgetank.traffic.formats import dateforms

_zone = lru_cache(maxsize=64)(dateforms.zone)


def check_zone(name: str) -> None:
    """Raise InputError for a zone that is not known here."""
    _zone(name)


def local_seconds(zone: str, now: float) -> float:
    """Seconds since 1970 on a zone's clocks at `now` (Unix seconds). Raises InputError."""
    offset = datetime.fromtimestamp(now, UTC).astimezone(_zone(zone)).utcoffset()
    return now + (0.0 if offset is None else offset.total_seconds())
