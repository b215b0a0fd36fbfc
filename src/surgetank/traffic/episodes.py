"""Stretches in which the rate stands clearly above its surroundings.

Windows are as wide as about ten requests need at the mean rate. Noise between one window and the
next is at least Poisson's; clumps have more (dispersion: from the median step between neighbours,
which bursts hardly change). The base is the 30th percentile of blocks of 120 windows, brought up by
that noise to their mean and smoothed by the median of five blocks: it follows the day, not a burst.

A stretch begins where a window exceeds base + 5 sigma and 1.5 x base, reaches back to base + 2
sigma, and ends after two windows below that. It counts when its excess is 6 standard deviations of
what noise would add over as long a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import Episode
from surgetank.traffic.binned import Binned
from surgetank.traffic.tenants import Tenants

SCALES: Final = (1, 2, 5, 10, 30, 60, 300, 600, 3600, 6 * 3600, 86400)
IN_A_WINDOW: Final = 10.0  # expected requests
MOST: Final = 50
BLOCK: Final = 120  # windows
ENTER_SIGMAS: Final = 5.0
STAY_SIGMAS: Final = 2.0
LEAST_RATIO: Final = 1.5
LEAST_AREA_SIGMAS: Final = 6.0
PERCENTILE: Final = 0.30
PERCENTILE_SIGMAS: Final = 0.524  # a normal's 30th percentile lies so far below its mean
MEDIAN_TO_SIGMA: Final = 1.4826  # of absolute deviations of a normal
BLAMED: Final = 32  # largest tenants that are asked whether an episode was theirs
BLAME_SHARE: Final = 0.5  # of the excess

Floats = NDArray[np.float64]


def find_episodes(binned: Binned, tenants: Tenants | None, finest: int) -> tuple[Episode, ...]:
    """Find the (at most 50 largest) episodes, by start. `finest`: narrowest window allowed (s)."""
    window = episode_window(binned, finest)
    if window is None:
        return ()
    starts, sums = binned.timed_windows(binned.counts, window)
    dispersion = _dispersion(sums)
    base = _base(sums, dispersion)
    found = _stretches(sums, base, dispersion)
    if not found:
        return ()
    total = [c for c in (binned.prompt, binned.output) if c is not None]
    tokens = np.sum([binned.windows(c, window) for c in total], axis=0) if total else None
    mean_tokens = float(tokens.sum() / max(sums.sum(), 1.0)) if tokens is not None else 0.0
    blame = _Blame(tenants, [(starts[a], starts[b - 1] + window) for a, b in found])
    episodes = []
    for a, b in found:
        excess = float((sums[a:b] - base[a:b]).sum())
        above = None
        if tokens is not None:
            above = max(float(tokens[a:b].sum()) - mean_tokens * float(base[a:b].sum()), 0.0)
        begin, end = float(starts[a]), float(starts[b - 1] + window)
        tenant, share = blame.of(begin, end, excess)
        episodes.append(
            Episode(
                start=begin,
                duration=end - begin,
                base=float(base[a:b].mean() / window),
                peak=float(sums[a:b].max() / window),
                requests=excess,
                tokens=above,
                window_s=window,
                tenant=tenant,
                tenant_share=share,
            )
        )
    largest = sorted(episodes, key=lambda e: -e.requests)[:MOST]
    return tuple(sorted(largest, key=lambda e: e.start))


def episode_window(binned: Binned, finest: int) -> int | None:
    """Give the window (s) of about ten expected requests; None when there are too few of them."""
    if binned.covered <= 0:
        return None
    rate = binned.requests / binned.covered
    fitting = [s for s in SCALES if s >= finest and binned.fits(s)]
    window = next((s for s in fitting if s * rate >= IN_A_WINDOW), None)
    return window if window is not None and binned.covered >= 5 * window else None


def _dispersion(sums: Floats) -> float:
    """Variance / mean of the noise between neighbours; at least 1."""
    steps = np.abs(np.diff(sums))
    if not len(steps) or not sums.any():
        return 1.0
    sigma = MEDIAN_TO_SIGMA * float(np.median(steps))
    return max(sigma * sigma / 2 / float(sums.mean()), 1.0)


def _base(sums: Floats, dispersion: float) -> Floats:
    """Give the rate's local floor at every window, as the mean of what is quiet."""
    blocks = max(len(sums) // BLOCK, 1)
    per = len(sums) // blocks  # windows a block; the few that are left over belong to the last
    low = np.quantile(sums[: blocks * per].reshape(blocks, per), PERCENTILE, axis=1)
    low = low + PERCENTILE_SIGMAS * np.sqrt(dispersion * low)
    padded = np.pad(low, 2, mode="symmetric")
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    return np.append(np.repeat(smooth, per), np.full(len(sums) - blocks * per, smooth[-1]))


def _stretches(sums: Floats, base: Floats, dispersion: float) -> list[tuple[int, int]]:
    """Find the index ranges [a, b) of the episodes."""
    variance = dispersion * np.maximum(base, 1.0)
    sigma = np.sqrt(variance)
    enter = (sums > base + ENTER_SIGMAS * sigma) & (sums >= LEAST_RATIO * base)
    stay = sums > base + STAY_SIGMAS * sigma
    # One window below does not end a stretch.
    held = stay.copy()
    held[1:-1] |= stay[:-2] & stay[2:]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], held.astype(np.int8), [0]])))
    begins, ends = edges[::2], edges[1::2]
    entered = np.concatenate([[0], np.cumsum(enter)])
    area = np.concatenate([[0.0], np.cumsum(sums - base)])
    noise = np.concatenate([[0.0], np.cumsum(variance)])
    real = (entered[ends] > entered[begins]) & (
        area[ends] - area[begins] >= LEAST_AREA_SIGMAS * np.sqrt(noise[ends] - noise[begins])
    )
    return list(zip(begins[real].tolist(), ends[real].tolist(), strict=True))


class _Blame:
    """Finds the tenant whose requests made an episode."""

    def __init__(self, tenants: Tenants | None, stretches: list[tuple[float, float]]) -> None:
        self._width = tenants.width if tenants is not None else 0
        self._tenants = []
        for name in tenants.largest(BLAMED) if tenants is not None else []:
            starts, counts = tenants.series(name) if tenants is not None else ((), ())
            at, number = np.asarray(starts, float), np.asarray(counts, float)
            inside = np.zeros(len(at), bool)
            for begin, end in stretches:
                inside |= (at + self._width > begin) & (at < end)
            self._tenants.append((name, at, np.concatenate([[0.0], np.cumsum(number)]), inside))

    def of(self, begin: float, end: float, excess: float) -> tuple[str | None, float | None]:
        """Name the tenant with the largest excess, if half of the episode's, and its share."""
        best: tuple[str | None, float] = (None, 0.0)
        for name, at, cumulated, inside in self._tenants:
            a, b = np.searchsorted(at, [begin - self._width + 1e-9, end], "left").tolist()
            if len(at) < 1:
                continue
            number = np.diff(cumulated)
            quiet = float(number[~inside].sum())
            length = float(at[-1] - at[0] + self._width) - float(inside.sum()) * self._width
            rate = quiet / length if length > 0 else 0.0
            above = float(cumulated[b] - cumulated[a]) - rate * (end - begin + self._width)
            if above > best[1]:
                best = (name, above)
        if best[0] is None or excess <= 0 or best[1] < BLAME_SHARE * excess:
            return None, None
        return best[0], min(best[1] / excess, 1.0)
