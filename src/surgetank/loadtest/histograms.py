"""Histograms of a report: how often something took how long.

Rule: nothing is left out. What lies on an edge belongs to the bin above it, the last edge to the
last bin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest.tokengaps import Counts
from surgetank.policy.gaps import BOUNDS

_MOST: Final = 12  # bins of equal width
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Histogram:
    """counts[i] values lie between edges[i] and edges[i + 1], in seconds."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def middles(self) -> list[float]:
        """Middle of each bin; geometric where bins grow."""
        pairs = list(zip(self.edges, self.edges[1:], strict=False))
        grows = len(pairs) > 1 and self.edges[-1] - self.edges[-2] > 1.01 * (
            self.edges[1] - self.edges[0]
        )
        return [math.sqrt(a * b) if grows and a > 0 else (a + b) / 2 for a, b in pairs]


def of_seconds(values: NDArray[np.float64]) -> Histogram | None:
    """Count finite values >= 0 in at most a dozen bins of a round width; None without one."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    top = float(known.max())
    step = _step(top)
    edges = [round(step * i, 9) for i in range(int(top // step) + 2)]
    places = np.minimum(known // step, len(edges) - 2).astype(np.int64)
    counts = np.bincount(places, minlength=len(edges) - 1)
    return Histogram(tuple(edges), tuple(counts.tolist()))


def of_gaps(by_bin: Counts) -> Histogram | None:
    """Take the bins of token gaps from the first that holds one to the last; None without one."""
    held = np.flatnonzero(by_bin)
    if not len(held):
        return None
    first, last = int(held[0]), int(held[-1])
    longest = BOUNDS[-1] * (BOUNDS[-1] / BOUNDS[-2])  # of the bin that has no upper bound
    edges = (0.0, *BOUNDS, longest)
    return Histogram(edges[first : last + 2], tuple(by_bin[first : last + 1].tolist()))


def _step(top: float) -> float:
    """Width of the bins, 1, 2 or 5 times a power of ten, so that there are a dozen at most."""
    least = max(top / (_MOST - 1), 1e-3)
    scale = 10.0 ** math.floor(math.log10(least))
    return next(scale * step for step in _STEPS if scale * step >= least * (1 - 1e-9))
