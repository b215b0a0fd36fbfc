"""How much above a log's own peak a plan from it has to reach: what may come after the log ends.

Two estimates, of which the larger is taken. What was seen: the second half's peak over the first's.
What may come: the upper 95 % prediction limit of one more window of a stationary series,

    limit = mean + t(0.95, n' - 1) x deviation x sqrt(1 + 1 / n'),    n' = n / (1 + 2 x sum of r)

over the peak of the n windows. n' is the number of independent windows that n correlated ones are
worth (Geyer, "Practical Markov chain Monte Carlo", 1992: the autocorrelations r up to the first
that is not positive). Traffic without memory has n' near n, and its peak is seldom below the limit;
a log that holds one slow wave is worth three or four windows, and t is wide.

Rule: less than a tenth is chance, for which plans are tried with a tenth more anyway; what is more
than twice the log's peak is not planned for, and said.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.simulation.workload import Workload

_SHORT: Final = 60.0  # s: windows of a log up to two hours
_LONG: Final = 600.0
_DENSE: Final = 7200.0  # s
_GROWN: Final = 1.1
_MOST: Final = 2.0
_PARTS: Final = 4  # windows in each half, at least: the peaks of fewer say nothing
_SURE: Final = 0.95  # one-sided, as prediction limits are usually given


@dataclass(frozen=True, slots=True)
class Growth:
    """Factors of a log's peak work; 1 for none.

    `factor`: what is planned for; `seen`: of the second half over the first; `ahead`: the
    prediction limit's, however large. `windows` of `window` seconds are worth `independent` ones;
    None: too few to say anything.
    """

    factor: float
    seen: float
    ahead: float
    window: float
    windows: int
    independent: float | None

    @property
    def unbounded(self) -> bool:
        """More may come than is planned for: the log is too short beside its own slow changes."""
        return max(self.seen, self.ahead) > self.factor * _GROWN


def growth(load: Workload, work: NDArray[np.float64]) -> Growth:
    """Estimate it from the replica-seconds that each request of a load takes."""
    window = _SHORT if load.span < _DENSE else _LONG
    number = int(load.span // window)
    if number < 2 * _PARTS:
        return Growth(1.0, 1.0, 1.0, window, number, None)
    index = ((load.arrived - load.arrived[0]) // window).astype(np.int64)
    sums = np.bincount(index, weights=work, minlength=number)[:number].astype(float)
    first, second = float(sums[: number // 2].max()), float(sums[number // 2 :].max())
    seen = max(1.0, second / first) if first > 0 else 1.0
    worth = independent(sums)
    ahead = max(1.0, prediction_limit(sums, worth) / float(sums.max())) if sums.any() else 1.0
    found = max(seen, ahead)
    factor = min(_MOST, found) if found >= _GROWN else 1.0
    return Growth(factor, seen, ahead, window, number, worth)


def independent(series: NDArray[np.float64]) -> float:
    """Independent values that a series is worth, 1 to its length."""
    number = len(series)
    away = series - series.mean()
    power = float((away * away).sum())
    if power <= 0:
        return float(number)
    time = 1.0
    for lag in range(1, number // 2):
        correlation = float((away[:-lag] * away[lag:]).sum()) / power
        if correlation <= 0:
            break
        time += 2 * correlation
    return max(1.0, number / time)


def prediction_limit(series: NDArray[np.float64], worth: float) -> float:
    """The value that one more is below with 95 %, of a series worth so many independent ones."""
    from scipy.special import stdtrit  # noqa: PLC0415 - heavy, and only here

    free = max(1.0, worth - 1)
    deviation = float(series.std()) * sqrt(worth / max(worth - 1, 0.5))
    wide = float(stdtrit(free, _SURE))
    return float(series.mean()) + wide * deviation * sqrt(1 + 1 / worth)
