"""Block bootstrap over cycles: how far a figure would move if other cycles had come.

Requests of one pulse share its queue, so they are no repeats of each other; cycles are. Each
resample draws as many cycles as there are, with replacement, and works the figure out anew from all
that happened in them (Carlstein, Annals of Statistics 14(3), 1986: blocks that do not overlap).

Two runs of one schedule are resampled in pairs: cycle 7 of the one with cycle 7 of the other, since
both met the same arrivals, and what the arrivals did cancels.

The interval is Student's, about the figure itself, with the resamples' standard deviation and one
degree of freedom less than there are cycles; the factor sqrt(n / (n - 1)) undoes the bootstrap's
narrowness with few blocks (Hesterberg, The American Statistician 69(4), 2015, section 3.2).

A service that drifts makes neighbouring cycles alike, and ten alike cycles are no ten repeats. From
15 cycles on the correlation of each cycle's contribution with the next one's is read off, and a
positive one widens the interval as if there were fewer cycles.

Rule: `weights` rows are resamples, columns are cycles; nothing loops over resamples in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest.student import quantile, two_sided

Values = NDArray[np.float64]

RESAMPLES: Final = 4000
_CELLS: Final = (
    4_000_000  # of a table of cycles by values: beyond, every so many values are left out
)


_FEWEST_CORRELATED: Final = 15  # cycles: a correlation of fewer cannot be told from chance
_MOST_CORRELATED: Final = 0.9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, its interval at 95 %, and the two-sided p of its being 0."""

    value: float
    low: float
    high: float
    p: float


def weights(cycles: int, seed: int, resamples: int = RESAMPLES) -> Values:
    """How often each resample has each cycle; the same seed gives the same."""
    if not cycles:
        return np.zeros((resamples, 0))
    rng = np.random.default_rng(seed)
    share = np.full(cycles, 1.0 / cycles)
    return rng.multinomial(cycles, share, size=resamples).astype(np.float64)


def means(each: Values, drawn: Values) -> Values:
    """Mean over cycles of one value a cycle, for each resample; cycles with NaN are left out."""
    known = np.isfinite(each)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Values = (drawn @ np.where(known, each, 0.0)) / (drawn @ known.astype(float))
    return found


def ratios(parts: Values, wholes: Values, drawn: Values) -> Values:
    """Sum of parts over sum of wholes, one pair a cycle, for each resample."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Values = (drawn @ parts) / (drawn @ wholes)
    return found


def quantiles(groups: Sequence[Values], share: float, drawn: Values) -> Values:
    """Quantile by nearest rank of all values in the drawn cycles, for each resample.

    `groups`: the values of each cycle, sorted. A resample without a value gives NaN. The quantile
    of several groups together lies between the least and the greatest of their own.
    """
    some = [group for group in groups if len(group)]
    if not some:
        return np.full(len(drawn), np.nan)
    own = [group[max(0, int(np.ceil(share * len(group) - 1e-9)) - 1)] for group in some]
    near = np.unique(np.concatenate([g[(g >= min(own)) & (g <= max(own))] for g in some]))
    most = max(2, _CELLS // len(groups))
    scale = near[np.unique(np.linspace(0, len(near) - 1, min(most, len(near))).round().astype(int))]
    below = np.array([np.searchsorted(group, scale, side="right") for group in groups], float)
    rows = drawn @ np.array([len(group) for group in groups], float)
    wanted = np.ceil(share * rows - 1e-9) - 1e-6
    low = np.zeros(len(drawn), np.int64)
    high = np.full(len(drawn), len(scale) - 1)
    while (low < high).any():
        middle = (low + high) // 2
        reached = np.einsum("rc,cr->r", drawn, below[:, middle]) >= wanted
        high = np.where(reached, middle, high)
        low = np.where(reached, low, np.minimum(middle + 1, high))
    found: Values = np.where(rows > 0, scale[low], np.nan)
    return found


def left_out(cycles: int) -> Values:
    """Weights that leave each cycle out in turn, a row each."""
    return np.ones((cycles, cycles)) - np.eye(cycles)


def estimate(value: float, resampled: Values, without: Values) -> Estimate:
    """Interval and p of a figure from its resamples.

    `without`: the figure with each cycle left out in turn (`left_out`), in the order of the cycles.
    Where nothing moves, the interval is the value itself, and p is 1 for 0, else 0.
    """
    cycles = len(without)
    known = resampled[np.isfinite(resampled)]
    if not np.isfinite(value) or len(known) < 2 or cycles < 2:
        return Estimate(value, np.nan, np.nan, 1.0)
    error = float(known.std(ddof=1)) * np.sqrt(cycles / (cycles - 1))
    if error <= 1e-12 * max(1.0, abs(value)):
        return Estimate(value, value, value, 1.0 if abs(value) <= 1e-12 else 0.0)
    repeats = cycles / _inflation(without)
    error *= np.sqrt(cycles / repeats)
    freedom = max(1.0, repeats - 1)
    reach = quantile(0.975, freedom) * error
    return Estimate(value, value - reach, value + reach, two_sided(value / error, freedom))


def _inflation(without: Values) -> float:
    """Give how many cycles tell as much as one independent one, from the lag-1 correlation.

    (1 + r) / (1 - r) of what each cycle contributes, at least 1 (Bartlett 1946); r is corrected for
    its bias in short series, (n r + 1) / (n - 4) (Marriott & Pope, Biometrika 41, 1954).
    """
    cycles = len(without)
    if cycles < _FEWEST_CORRELATED or not np.isfinite(without).all():
        return 1.0
    part = without - without.mean()
    total = float(part @ part)
    if total <= 0:
        return 1.0
    found = float(part[1:] @ part[:-1]) / total
    r = min(_MOST_CORRELATED, max(0.0, (cycles * found + 1) / (cycles - 4)))
    return (1 + r) / (1 - r)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values of figures that decide together (Holm, Scand. J. Statist. 6, 1979)."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted = [0.0] * len(ps)
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = least
    return adjusted
