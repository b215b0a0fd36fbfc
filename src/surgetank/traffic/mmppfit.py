"""A two-state Markov-modulated Poisson process with a stream's mean, IDC curve and skewness.

Its rate has the autocovariance sigma^2 exp(-s t), so

    IDC(w) = 1 + A (1 - (1 - exp(-s w)) / (s w)),   A = 2 sigma^2 / (s mean)

(Heffes & Lucantoni, IEEE JSAC 4(6), 1986). A and s are fitted to log IDC(w) on a grid, and the
share of the high state to the third moment of counts.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import WINDOWS, Mmpp2
from surgetank.traffic.binned import Binned
from surgetank.traffic.dispersion import index_of_dispersion, poisson_band

LEAST_WINDOWS: Final = 10
LEAST_IDC: Final = 1.5


def fit_mmpp2(binned: Binned, finest: int) -> Mmpp2 | None:
    """Fit the process; None for a stream that is not over-dispersed, or too short to tell."""
    if binned.covered <= 0:
        return None
    mean = binned.requests / binned.covered
    widths, values, weights = [], [], []
    for window in WINDOWS:
        if window < finest or not binned.fits(window):
            continue
        sums = binned.windows(binned.counts, window)
        idc = index_of_dispersion(sums) if len(sums) >= LEAST_WINDOWS else None
        if idc is not None:
            widths.append(window)
            values.append(idc)
            weights.append(float(len(sums)))
    band = poisson_band(int(weights[-1])) if weights else None
    if len(widths) < 3 or band is None or max(values) < max(LEAST_IDC, band[1]):
        return None
    w, excess = np.array(widths, float), np.array(values) - 1.0
    s, a = _fit_curve(w, excess, np.sqrt(weights))
    sigma = sqrt(a * s * mean / 2)
    share = _high_share(binned, min(widths, key=lambda x: abs(x - 0.5 / s)), mean, sigma)
    low = mean - sigma * sqrt(share / (1 - share))
    if low < 0:  # the rate cannot be negative: as skewed as the variance needs
        share = mean**2 / (mean**2 + sigma**2)
        low = 0.0
    high = mean + sigma * sqrt((1 - share) / share)
    return Mmpp2(low, high, 1 / (s * share), 1 / (s * (1 - share)))


def _fit_curve(
    w: NDArray[np.float64], excess: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float]:
    """Search s and A on a grid: least squares of log IDC, wide windows (few of them) weigh less."""
    rates = np.geomspace(0.2 / w[-1], 5.0 / w[0], 120)
    rise = 1 - (1 - np.exp(-rates[:, None] * w)) / (rates[:, None] * w)
    middle = np.maximum(np.median(excess / rise, axis=1), 1e-6)
    heights = middle[:, None] * np.geomspace(0.5, 2.0, 25)
    seen = 1 + np.maximum(excess, -0.9)
    misfit = np.log((1 + heights[:, :, None] * rise[:, None, :]) / seen)
    error = (weights * misfit**2).sum(axis=2)
    at_rate, at_height = np.unravel_index(int(np.argmin(error)), error.shape)
    return float(rates[at_rate]), float(heights[at_rate, at_height])


def _high_share(binned: Binned, window: int, mean: float, sigma: float) -> float:
    """Share of time in the high state, from the skewness of counts in windows short against 1/s.

    The third cumulant of Poisson counts of a random rate R over w: w^3 k3 + 3 w^2 k2 + w mean.
    """
    sums = binned.windows(binned.counts, window)
    third = float(((sums - sums.mean()) ** 3).mean())
    variance = max(float(sums.var()) - mean * window, 1e-9)
    skew = (third - 3 * variance - mean * window) / variance**1.5
    # Two values with share p high: skewness (1 - 2p) / sqrt(p (1 - p)).
    p = 0.5 * (1 - skew / sqrt(skew**2 + 4))
    return float(np.clip(p, 0.01, 0.99)) if sigma > 0 else 0.5
