"""How finely a log's stamps are cut, told from the stamps.

Two signs: all stamps are multiples of a round step (truncated to 1 s, to 1 ms), or most gaps
between different stamps are the same while several requests share a stamp (an exporter that writes
every 3 s). The step is the modal one; it says which figures a log forbids.

Rule: regular arrivals are no sign: as long as nearly every request has a stamp of its own, the step
is the traffic's.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.loghistogram import LogHistogram

STEPS: Final = np.array([60.0, 10.0, 1.0, 0.1, 0.01, 0.001, 0.0001])
_SAMPLE: Final = 256  # rows of a batch that are looked at
_ENOUGH: Final = 20
_NEARLY_ALL: Final = 0.99
_MOST: Final = 0.5
_SHARED: Final = 1.2  # rows per different stamp from which a step is the log's, not the traffic's


class StampSteps:
    """Counts how many stamps of a sample are multiples of each round step."""

    __slots__ = ("multiples", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.multiples = np.zeros(len(STEPS), np.int64)

    def add(self, stamps: NDArray[np.float64]) -> None:
        """Look at a few hundred rows of a batch."""
        sample = stamps[:: max(len(stamps) // _SAMPLE, 1)]
        self.seen += len(sample)
        for i, step in enumerate(STEPS.tolist()):
            off = np.abs(sample - np.round(sample / step) * step)
            # A double of the Unix time holds 2.4e-7 s.
            self.multiples[i] += int((off < np.minimum(1e-6, 0.01 * step)).sum())

    def merge(self, other: StampSteps) -> None:
        """Add the counts of another part."""
        self.seen += other.seen
        self.multiples += other.multiples

    def round_step(self) -> float | None:
        """Largest round step that nearly all stamps are multiples of; None when too few rows."""
        if self.seen < _ENOUGH:
            return None
        fits = np.flatnonzero(self.multiples >= _NEARLY_ALL * self.seen)
        return float(STEPS[fits[0]]) if len(fits) else 0.0


def resolution(steps: StampSteps, gaps: LogHistogram) -> float | None:
    """Give the stamps' step in seconds; 0.0: finer than 0.1 ms, None: too few rows to tell."""
    exact = steps.round_step()
    if exact is None:
        return None
    positive = gaps.counts[1:]
    different = int(positive.sum())
    if different < _ENOUGH or gaps.number < _SHARED * different:
        return exact
    mode = 1 + int(np.argmax(positive))
    near = slice(max(mode - 1, 1), mode + 2)
    if gaps.counts[near].sum() > _MOST * different:
        step = float(gaps.sums[near].sum() / gaps.counts[near].sum())
        return max(step, exact)
    return exact


def step_of_bins(counts: NDArray[np.int64], width: int) -> float:
    """Give the stamps' step as far as counts per bin show it: 2 bins and more, else 0.0.

    For logs that were only counted: most distances between used bins are one and the same.
    """
    used = np.flatnonzero(counts)
    if len(used) < _ENOUGH or counts.sum() < _SHARED * len(used):
        return 0.0
    distance, number = np.unique(np.diff(used), return_counts=True)
    mode = int(np.argmax(number))
    most = number[mode] > _MOST * (len(used) - 1)
    return float(distance[mode] * width) if most and distance[mode] > 1 else 0.0
