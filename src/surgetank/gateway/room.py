"""How many clients a process's file descriptors leave room for.

Rule: whatever clients do, a descriptor is left for each call to an engine, for health checks, the
admin listener and the files.
"""

from __future__ import annotations

from typing import Final

MOST_TURNED_AWAY: Final = 64  # connections beyond the bound that are being told so
MOST_ADMIN: Final = 120  # a scrape and a few health checks need ten; a flood of them needs a bound
_ADMIN: Final = MOST_ADMIN + 8  # those that are being turned away, too
_FILES: Final = 64  # records, journal, state, the loop's own, pipes of engines that are started
_WATCHING: Final = 2  # per replica: a health check and a scrape
RESERVE: Final = MOST_TURNED_AWAY + _ADMIN + _FILES


def upstream_descriptors(in_flight: int) -> int:
    """Count what a replica takes at most that runs `in_flight` requests at once."""
    return in_flight + _WATCHING


def connections_within(limit: int, wanted: int, upstream: int) -> int:
    """Return how many of `wanted` client connections fit; 0 or less: none does.

    `upstream` is all that the replicas could take. When there is no room for it either, half is
    kept for it: a request that runs has one connection on each side.
    """
    room = limit - RESERVE
    return min(wanted, max(room - upstream, room // 2))
