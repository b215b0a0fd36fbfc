"""Gaps between the tokens of a stream, as counts in logarithmic bins that add up.

Rule: bin 0 is below 0.1 ms (tokens that came in one read among them); from there eight bins double
the gap, so a figure read back is within 4.5 % of what was measured. Sums are exact: bins merge over
requests, processes and runs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import sub
from typing import Final

_SMALLEST: Final = 1e-4  # seconds
_PER_DOUBLING: Final = 8
_BINS: Final = 184  # up to 0.1 ms * 2^23: 14 minutes
BOUNDS: Final = tuple(_SMALLEST * 2 ** (n / _PER_DOUBLING) for n in range(_BINS))
"""Upper bounds of the bins in seconds; one more bin holds what is longer."""


def count_gaps(moments: Sequence[float], tokens: int) -> dict[int, int]:
    """Count by bin the tokens - 1 gaps of a stream.

    `moments`: seconds at which reads brought tokens, ascending; tokens that came with the one
    before them have gaps of zero.
    """
    if tokens < 2 or not moments:
        return {}
    gaps = Counter([bisect_right(BOUNDS, gap) for gap in map(sub, moments[1:], moments)])
    together = tokens - len(moments)
    if together > 0:
        gaps[0] += together
    return dict(sorted(gaps.items()))


def flattened(gaps: Mapping[int, int]) -> tuple[int, ...]:
    """Write bin, count, bin, count ... in ascending order, as a record keeps them."""
    return tuple(number for pair in sorted(gaps.items()) for number in pair)


def merged(records: Iterable[Sequence[int]]) -> dict[int, int]:
    """Add up what `flattened` wrote."""
    total: Counter[int] = Counter()
    for flat in records:
        for at in range(0, len(flat) - 1, 2):
            total[flat[at]] += flat[at + 1]
    return dict(sorted(total.items()))


def gap_quantile(gaps: Mapping[int, int], quantile: float) -> float | None:
    """Seconds by nearest rank (the geometric middle of its bin); None without a gap."""
    count = sum(gaps.values())
    if not count:
        return None
    rank = max(1, math.ceil(quantile * count - 1e-9))
    for bin_, inside in sorted(gaps.items()):
        rank -= inside
        if rank <= 0:
            return _middle(bin_)
    raise AssertionError("the ranks of a distribution end in it")


def _middle(bin_: int) -> float:
    if bin_ == 0:
        return 0.0
    if bin_ >= _BINS:
        return BOUNDS[-1]
    return math.sqrt(BOUNDS[bin_ - 1] * BOUNDS[bin_])
