"""A stream as evenly spaced bins from its first arrival to its last, ready for windows.

Rule: only full windows count, from the first request on. The outer bins count as full when at least
half of them lies within the log. Stray stamps (a few rows, further away than ten times the rest is
long) are cut off; pauses that look like missing data are left out of every window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import Hole
from surgetank.traffic.seconds import WIDTHS, Seconds

MAX_BINS: Final = 1 << 22
STRAY_SHARE: Final = 0.01  # of the rows, or one row of ten
STRAY_DISTANCE: Final = 10.0  # times the span of the rest
HOLE_RATIO: Final = 20.0  # longer than the next longest pause by this factor
HOLE_SHORTEST: Final = 60.0  # s
MAX_HOLES: Final = 5

Columns = NDArray[np.int64]
Windows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Binned:
    """Counts per bin of `width` seconds; bin 0 starts at `start`."""

    start: int  # s, a multiple of the width
    width: int
    counts: Columns
    prompt: Columns | None
    output: Columns | None
    first: float  # earliest and latest stamp, strays left out
    last: float
    holes: tuple[Hole, ...] = ()
    strays: int = 0
    _known: dict[tuple[int, float], Windows] = field(
        default_factory=dict, repr=False, compare=False
    )  # sums by column and width: many figures ask for the same

    @property
    def requests(self) -> int:
        """Rows in the bins."""
        return int(self.counts.sum())

    @property
    def span(self) -> float:
        """Seconds from the first stamp to the last."""
        return self.last - self.first

    @property
    def covered(self) -> float:
        """Seconds of the span that are not missing."""
        return self.span - sum(h.duration for h in self.holes)

    def fits(self, seconds: float) -> bool:
        """Tell whether windows of so many seconds can be made of whole bins."""
        return seconds >= self.width and seconds % self.width == 0

    def windows(self, column: Columns, seconds: float) -> Windows:
        """Sum a column over all full windows of `seconds` that touch no hole."""
        return self.timed_windows(column, seconds)[1]

    def timed_windows(self, column: Columns, seconds: float) -> tuple[Windows, Windows]:
        """Give the starts and the sums of those windows; not to be written to."""
        begin, number, bins = self._cut(seconds)
        key = (id(column), seconds)
        if key not in self._known:
            full = column[begin : begin + number * bins].reshape(number, bins)
            sums: Windows = full.sum(axis=1, dtype=np.float64)
            self._known[key] = sums[self._whole(seconds)] if self.holes else sums
        starts = self._starts(seconds)
        return starts[self._whole(seconds)] if self.holes else starts, self._known[key]

    def _cut(self, seconds: float) -> tuple[int, int, int]:
        """First bin, number of full windows, and bins of each."""
        bins = int(seconds) // self.width
        begin = int(np.rint((self.first - self.start) / self.width))
        end = int(np.rint((self.last - self.start) / self.width))
        return begin, max(end - begin, 0) // bins, bins

    def _starts(self, seconds: float) -> Windows:
        begin, number, bins = self._cut(seconds)
        starts = begin * self.width + np.arange(number, dtype=np.float64) * (bins * self.width)
        starts += self.start
        return starts

    def _whole(self, seconds: float) -> NDArray[np.bool_]:
        """Which windows touch no hole."""
        starts = self._starts(seconds)
        keep = np.ones(len(starts), bool)
        for hole in self.holes:
            keep &= (starts >= hole.start + hole.duration) | (starts + seconds <= hole.start)
        return keep


def bin_stream(seconds: Seconds, first: float, last: float) -> Binned:
    """Lay the used bins out on one grid; `first` and `last` are the exact outer stamps."""
    numbers, counts, prompt, output = seconds.bins()
    if not len(numbers):
        return Binned(0, 1, np.zeros(0, np.int64), None, None, 0.0, 0.0)
    kept, strays = _without_strays(numbers, counts)
    numbers, counts = numbers[kept], counts[kept]
    width = seconds.width
    if strays:
        first = max(first, float(numbers[0] * width))
        last = min(last, float((numbers[-1] + 1) * width))
    needed = int(numbers[-1] - numbers[0] + 1) * width
    while needed // width > MAX_BINS:
        width = next((w for w in WIDTHS if w > width), width * 10)
    at = numbers * seconds.width // width
    start = int(at[0])

    def laid(column: Columns | None) -> Columns | None:
        if column is None:
            return None
        grid = np.zeros(int(at[-1]) - start + 1, np.int64)
        np.add.at(grid, at - start, column)
        return grid

    grid = laid(counts)
    assert grid is not None  # noqa: S101 - counts are never None
    return Binned(
        start * width,
        width,
        grid,
        laid(None if prompt is None else prompt[kept]),
        laid(None if output is None else output[kept]),
        first,
        last,
        _holes(grid, start * width, width),
        strays,
    )


def _without_strays(numbers: Columns, counts: Columns) -> tuple[slice, int]:
    """Cut off the few rows that lie absurdly far from the rest; how many they are."""
    low, high = 0, len(numbers)
    rows = np.concatenate([[0], np.cumsum(counts)])
    total = int(rows[-1])
    most = max(int(STRAY_SHARE * total), 1 if total >= 10 else 0)
    strays = 0
    while high - low > 1:
        between = np.diff(numbers[low:high])
        cut = low + int(np.argmax(between)) + 1
        left, right = int(rows[cut] - rows[low]), int(rows[high] - rows[cut])
        rest = numbers[cut - 1] - numbers[low] if left > right else numbers[high - 1] - numbers[cut]
        far = between.max() > STRAY_DISTANCE * max(int(rest), 1)
        if not far or strays + min(left, right) > most:
            break
        strays += min(left, right)
        low, high = (low, cut) if left > right else (cut, high)
    return slice(low, high), strays


def _holes(counts: Columns, start: int, width: int) -> tuple[Hole, ...]:
    """Find up to five pauses, far longer than every other, that are not most of the span."""
    used = np.flatnonzero(counts)
    if len(used) < 3:
        return ()
    pauses = np.diff(used) - 1
    order = np.argsort(-pauses, kind="stable")[: MAX_HOLES + 1]
    lengths = pauses[order]
    for n in range(min(MAX_HOLES, len(lengths) - 1), 0, -1):
        longest_other = max(int(lengths[n]), 1)
        if (
            lengths[n - 1] >= HOLE_RATIO * longest_other
            and lengths[n - 1] * width >= HOLE_SHORTEST
            and lengths[:n].sum() <= (used[-1] - used[0]) / 2
        ):
            found = sorted(order[:n].tolist())
            return tuple(
                Hole(float(start + (used[i] + 1) * width), float(pauses[i] * width)) for i in found
            )
    return ()
