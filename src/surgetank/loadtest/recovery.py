"""How long a service takes to be itself again after a pulse.

Recovery time of a cycle: seconds from the pulse's end to the moment from which every window of
requests due has a median TTFT within the limit, until the next pulse. The limit is the P95 of the
TTFT in the calmest cycle's calm and a margin on top.

A request is judged by when it was due, so the figure says: from here on a client that comes is
served as ever. A refused one is not within any limit. A window is W seconds wide, W / 2 to both
sides of a request, and holds ten requests or more. Its median, not its P95, is compared: the calm's
own P95 would exceed itself every other window. A service that is not back when the next pulse
begins is censored there: its time is at least that, and counts as that.

Rule: the estimator's noise is that of a crossing. While a backlog drains, TTFT falls by seconds
within a second or two, and the median of a window crosses the limit once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest.latency import rank
from surgetank.loadtest.phases import Cycle

Seconds = NDArray[np.float64]

WINDOW: Final = 5.0  # seconds
LEAST: Final = 10  # requests in a window
_MOST_OF_STRETCH: Final = 1 / 6  # a window is no longer than this part of the shortest stretch
_ENOUGH: Final = 20  # served requests of a calm that make a P95
_MARGIN: Final = 0.10  # of the calm's P95
_LEAST_MARGIN: Final = 0.010  # seconds: no client is hurt by less


@dataclass(frozen=True, slots=True)
class Recoveries:
    """One row a cycle: seconds (NaN: nobody came after the pulse), and whether it was back."""

    seconds: Seconds
    recovered: NDArray[np.bool_]
    watched: Seconds  # from the pulse's end to the next pulse

    @property
    def censored(self) -> int:
        """Cycles in which it was not back before the next pulse."""
        return int((~self.recovered & np.isfinite(self.seconds)).sum())


def limit_of(calms: Sequence[Seconds]) -> float | None:
    """Give the limit from the TTFT of each cycle's calm; None when in none of them was calm.

    It is the least of their P95s: a calm that a backlog reached into would raise the level that the
    backlog is measured by. It is a level, so it is taken from those that had a first token, where
    they are at least half and 20 (else from all calms together).
    """
    served = [calm[np.isfinite(calm)] for calm in calms]
    levels = [
        rank(part, 0.95)
        for part, calm in zip(served, calms, strict=True)
        if len(part) >= _ENOUGH and 2 * len(part) >= len(calm)
    ]
    if not levels:
        together = np.concatenate(served) if served else np.empty(0)
        if 2 * len(together) >= sum(len(calm) for calm in calms):
            levels = [rank(together, 0.95)]
    normal = min((level for level in levels if level is not None), default=None)
    return None if normal is None else normal + max(_MARGIN * normal, _LEAST_MARGIN)


def window_of(cycles: Sequence[Cycle]) -> float:
    """Give the width of the windows: 5 s, less where pulses follow each other closely."""
    shortest = min((c.until - c.pulse_end for c in cycles), default=np.inf)
    return float(min(WINDOW, shortest * _MOST_OF_STRETCH))


def recoveries(
    due: Seconds, ttft: Seconds, cycles: Sequence[Cycle], limit: float, window: float
) -> Recoveries:
    """Find it for each cycle. `due` in order; `ttft` infinite where there was no first token."""
    bad = ttft > limit
    seconds = np.full(len(cycles), np.nan)
    recovered = np.zeros(len(cycles), np.bool_)
    for i, cycle in enumerate(cycles):
        first, last = np.searchsorted(due, (cycle.pulse_end, cycle.until))
        if last <= first:
            continue
        at = due[first:last]
        late = np.flatnonzero(_mostly(bad[first:last], at, window))
        if not len(late):
            seconds[i], recovered[i] = 0.0, True
        elif late[-1] + 1 < len(at):
            seconds[i], recovered[i] = at[late[-1] + 1] - cycle.pulse_end, True
        else:
            seconds[i] = cycle.until - cycle.pulse_end
    watched = np.array([c.until - c.pulse_end for c in cycles], float)
    return Recoveries(seconds, recovered, watched)


def _mostly(bad: NDArray[np.bool_], at: Seconds, window: float) -> NDArray[np.bool_]:
    """Tell around which requests most of the window is bad: its median is above the limit."""
    first, last = windows(at, window)
    total = np.concatenate([[0], np.cumsum(bad)])
    most: NDArray[np.bool_] = 2 * (total[last] - total[first]) > last - first
    return most


def windows(at: Seconds, window: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows [first, last) of the window around each row, ten rows or more where there are so many.

    Windows do not reach beyond the stretch that `at` holds.
    """
    rows = np.arange(len(at))
    first = np.minimum(np.searchsorted(at, at - window / 2, side="left"), rows - LEAST // 2)
    last = np.maximum(np.searchsorted(at, at + window / 2, side="right"), rows + LEAST - LEAST // 2)
    return np.maximum(first, 0), np.minimum(last, len(at))


def overshoots(
    due: Seconds, ttft: Seconds, cycles: Sequence[Cycle], limit: float, window: float
) -> Seconds:
    """Seconds by which the worst window's median TTFT exceeds the limit, a cycle; at least 0.

    From a pulse's start to the next one's. Infinite where most of a window was refused, NaN where
    nobody came.
    """
    found = np.full(len(cycles), np.nan)
    for i, cycle in enumerate(cycles):
        first, last = np.searchsorted(due, (cycle.pulse, cycle.until))
        if last > first:
            found[i] = max(0.0, _worst_median(due[first:last], ttft[first:last], window) - limit)
    return found


def _worst_median(at: Seconds, ttft: Seconds, window: float) -> float:
    """Highest of the windows' medians, by bisection over the values that occur."""
    first, last = windows(at, window)
    values = np.unique(ttft)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        total = np.concatenate([[0], np.cumsum(ttft > values[middle])])
        if (2 * (total[last] - total[first]) > last - first).any():
            low = middle + 1
        else:
            high = middle
    return float(values[low])
