"""Times to first token of the last seconds: percentiles, and how fast they rise.

Rule: too few first tokens give None, not a number.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

SPAN: Final = 10.0  # seconds of first tokens behind a percentile
SLOPE_SPAN: Final = 5.0  # seconds behind a slope
_SLOPE_POINTS: Final = 4  # with fewer, one slow request would be a trend
_SLOPE_SPREAD: Final = 2.0  # seconds between the oldest and the newest: over less it means nothing
_POINTS: Final = 12  # dots a second at most: 15 minutes of them stay below 11,000
_KEPT: Final = 20_000  # first tokens at most: 2,000 a second for SPAN

FirstToken = tuple[float, float, str]  # Unix seconds of the first token, TTFT in seconds, tenant


class Spread(msgspec.Struct, frozen=True):
    """P50 and P95 in seconds over SPAN, and the slope in seconds per second over SLOPE_SPAN."""

    p50: float | None = None
    p95: float | None = None
    slope: float | None = None


class FirstTokens:
    """Joins the overlapping lists that a source gives into one window without counting twice."""

    def __init__(self) -> None:
        self._window: deque[FirstToken] = deque(maxlen=_KEPT)
        self._last: Counter[FirstToken] = Counter()

    def clear(self) -> None:
        """Forget all: the source began anew."""
        self._window.clear()
        self._last.clear()

    def take(self, listed: Iterable[FirstToken], now: float) -> list[FirstToken]:
        """Add what the source lists, all of its last seconds. Returns those not listed before."""
        current = Counter(listed)
        fresh = sorted((current - self._last).elements())
        self._last = current
        self._window.extend(fresh)
        while self._window and self._window[0][0] < now - SPAN:
            self._window.popleft()
        return fresh

    def spread(self, now: float) -> Spread:
        """All tenants together."""
        return _spread(self._window, now)

    def per_tenant(self, most: int, now: float) -> list[tuple[str, Spread]]:
        """The `most` tenants with the most first tokens, busiest first."""
        groups: dict[str, list[FirstToken]] = {}
        for token in self._window:
            groups.setdefault(token[2], []).append(token)
        busiest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
        return [(tenant, _spread(tokens, now)) for tenant, tokens in busiest[:most]]


def thin(tokens: Sequence[FirstToken]) -> list[FirstToken]:
    """At most _POINTS of them, evenly over their TTFT, the slowest among them."""
    if len(tokens) <= _POINTS:
        return list(tokens)
    ordered = sorted(tokens, key=lambda token: token[1])
    step = (len(ordered) - 1) / (_POINTS - 1)
    return [ordered[round(i * step)] for i in range(_POINTS)]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def slope(tokens: Iterable[FirstToken], now: float) -> float | None:
    """Least-squares slope of TTFT over the time of the first token, in seconds per second."""
    recent = [token for token in tokens if token[0] >= now - SLOPE_SPAN]
    if len(recent) < _SLOPE_POINTS:
        return None
    times = [token[0] for token in recent]
    if max(times) - min(times) < _SLOPE_SPREAD:
        return None
    mean_t = sum(times) / len(times)
    mean_y = sum(token[1] for token in recent) / len(recent)
    above = sum((t - mean_t) * (y - mean_y) for t, y, _ in recent)
    return above / sum((t - mean_t) ** 2 for t in times)


def _spread(tokens: Iterable[FirstToken], now: float) -> Spread:
    kept = [token for token in tokens if token[0] >= now - SPAN]
    if not kept:
        return Spread()
    ordered = sorted(token[1] for token in kept)
    steep = slope(kept, now)
    return Spread(
        p50=round(percentile(ordered, 0.5), 4),
        p95=round(percentile(ordered, 0.95), 4),
        slope=None if steep is None else round(steep, 3),
    )
