"""Times between one arrival and the next, in one pass over rows that are nearly in order.

Rule: exact when every row comes within `HELD` rows of its place, or in runs that do not overlap (a
log that is newest first, files in any order, parts of a file that were read side by side). Rows
that fall into a stretch already counted would split gaps that are gone: they are left out, and
`late` says how many. Long parts that overlap in time and are merged set `overlap`. The `KEPT`
largest gaps stay apart, so that a hole in a log, or one absurd stamp, can be taken out again.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.kernels import is_sorted
from surgetank.traffic.loghistogram import LogHistogram

HELD: Final = 8192  # latest rows that wait for earlier ones
KEPT: Final = 16
STRETCHES: Final = 512

Stamps = NDArray[np.float64]


class Gaps:
    """Moments and a histogram of the gaps between stamps."""

    __slots__ = ("_held", "_largest", "_stretches", "histogram", "late", "overlap", "rows")

    def __init__(self) -> None:
        self.histogram = LogHistogram(low=-30, high=31, fine=5)  # 1 ns to 68 years
        self.rows = 0
        self.late = 0
        self.overlap = False
        self._held = np.empty(0)
        self._largest: list[float] = []  # ascending; not in the histogram
        self._stretches: list[tuple[float, float]] = []  # counted, ascending, apart

    def add(self, stamps: Stamps) -> None:
        """Add rows in the log's order."""
        self.rows += len(stamps)
        joined = np.concatenate([self._held, stamps]) if len(self._held) else stamps
        if not is_sorted(joined):
            joined = np.sort(joined)
        cut = max(len(joined) - HELD, 0)
        self._count(joined[:cut])
        self._held = joined[cut:].copy()

    def merge(self, other: Gaps) -> None:
        """Add the gaps of another part; parts that overlap in time make rows late."""
        self.rows += other.rows
        self.late += other.late
        self.overlap |= other.overlap
        self.histogram.merge(other.histogram)
        self._keep(np.array(other._largest))
        for first, last in other._stretches:
            self._enter(first, last)
        held = np.sort(np.concatenate([self._held, other._held]))
        cut = max(len(held) - HELD, 0)
        self._count(held[:cut])
        self._held = held[cut:].copy()

    def finished(self) -> tuple[LogHistogram, list[float]]:
        """Give the histogram of all gaps but the largest, and those, ascending."""
        whole = Gaps()
        whole.histogram = self.histogram.copy()
        whole._largest = list(self._largest)
        whole._stretches = list(self._stretches)
        whole._count(self._held)
        ends = np.array(whole._stretches)
        if len(ends) > 1:
            whole._keep(ends[1:, 0] - ends[:-1, 1])
        return whole.histogram, whole._largest

    def _count(self, stamps: Stamps) -> None:
        """Count sorted stamps: each run between stretches already counted is one of its own."""
        if not len(stamps):
            return
        if not self._stretches or stamps[0] >= self._stretches[-1][1]:
            self._run(stamps)
            return
        bounds = np.array(self._stretches)
        # An odd place lies inside a stretch, an even one between two; ends are inside.
        place = np.searchsorted(bounds[:, 0], stamps, "left") + np.searchsorted(
            bounds[:, 1], stamps, "left"
        )
        inside = (place % 2 == 1) & (place < 2 * len(bounds))
        self.late += int(inside.sum())
        outside, where = stamps[~inside], place[~inside]
        for run in np.split(outside, np.flatnonzero(np.diff(where)) + 1):
            if len(run):
                self._run(run)

    def _run(self, stamps: Stamps) -> None:
        """Count a sorted run that overlaps no stretch; what follows the last one extends it."""
        first, last = float(stamps[0]), float(stamps[-1])
        if self._stretches and first >= self._stretches[-1][1]:
            begun, end = self._stretches.pop()
            self._keep(np.array([first - end]))
            first = begun
        self._stretches.insert(bisect_right(self._stretches, (first, last)), (first, last))
        self._keep(self.histogram.add_gaps(stamps, self._least()))
        if len(self._stretches) > STRETCHES:
            self._join_nearest()

    def _keep(self, gaps: Stamps) -> None:
        """Enter gaps, holding the largest apart."""
        if not len(gaps):
            return
        large = gaps > self._least()
        if large.any():
            pool = np.sort(np.concatenate([self._largest, gaps[large]]))
            cut = max(len(pool) - KEPT, 0)
            self.histogram.add(pool[:cut])
            self._largest = pool[cut:].tolist()
            gaps = gaps[~large]
        self.histogram.add(gaps)

    def _least(self) -> float:
        """Give the value above which a gap is one of the largest."""
        return self._largest[0] if len(self._largest) == KEPT else -1.0

    def _enter(self, first: float, last: float) -> None:
        """Take over a stretch that another part has counted; join those that overlap."""
        joined = [s for s in self._stretches if s[0] < last and s[1] > first]
        if joined:
            # Which rows fell among which is not known any more.
            first, last = min(first, joined[0][0]), max(last, joined[-1][1])
            self._stretches = [s for s in self._stretches if s not in joined]
            self.overlap = True
        self._stretches.insert(bisect_right(self._stretches, (first, last)), (first, last))
        if len(self._stretches) > STRETCHES:
            self._join_nearest()

    def _join_nearest(self) -> None:
        """Halve the number of stretches: nearest neighbours become one, their gap is counted."""
        ends = np.array(self._stretches)
        between = ends[1:, 0] - ends[:-1, 1]
        joined = np.zeros(len(ends), bool)
        joined[1 + np.argsort(between, kind="stable")[: len(between) // 2]] = True
        self._keep(between[joined[1:]])
        starts = ends[~joined, 0]
        lasts = ends[np.append(~joined[1:], True), 1]
        self._stretches = list(zip(starts.tolist(), lasts.tolist(), strict=True))
