"""Gamma and Weibull shapes of gaps by maximum likelihood, from a histogram's bins.

Rule: gaps of 0 (equal stamps) have no logarithm and are left out: the shape is that of the others.
"""

from __future__ import annotations

from math import log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.loghistogram import LogHistogram


def gamma_shape(gaps: LogHistogram) -> float | None:
    """Shape k of a gamma distribution; solves log k - digamma(k) = log mean - mean log.

    Start and Newton steps as in Minka, "Estimating a Gamma distribution" (2002). None without
    three different gaps.
    """
    values, weights = _positive(gaps)
    if len(values) < 3:
        return None
    s = log(float(np.average(values, weights=weights))) - float(
        np.average(np.log(values), weights=weights)
    )
    if s <= 0:
        return None
    k = (3 - s + sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    for _ in range(20):
        step = (log(k) - digamma(k) - s) / (1 / k - trigamma(k))
        k = max(k - step, k / 10)
        if abs(step) < 1e-9 * k:
            break
    return k


def weibull_shape(gaps: LogHistogram) -> float | None:
    """Shape k of a Weibull distribution; Newton on its likelihood. None as above."""
    values, weights = _positive(gaps)
    if len(values) < 3:
        return None
    logs = np.log(values)
    mean_log = float(np.average(logs, weights=weights))
    spread = sqrt(float(np.average((logs - mean_log) ** 2, weights=weights)))
    if spread <= 0:
        return None
    k = pi / sqrt(6) / spread  # of the logarithms' variance: a good start
    scaled = logs - logs.max()
    for _ in range(100):
        power = weights * np.exp(k * scaled)
        a = float((power * logs).sum() / power.sum())
        b = float((power * logs**2).sum() / power.sum())
        step = (1 / k + mean_log - a) / (-1 / k**2 - (b - a * a))
        k = max(k - step, k / 2)
        if abs(step) < 1e-9 * k:
            break
    return k


def digamma(x: float) -> float:
    """Logarithmic derivative of the gamma function, x > 0 (recurrence, then asymptotic series)."""
    result = 0.0
    while x < 6:
        result -= 1 / x
        x += 1
    f = 1 / (x * x)
    series = f * (1 / 12 - f * (1 / 120 - f * (1 / 252 - f * (1 / 240 - f / 132))))
    return result + log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    """Derivative of `digamma`."""
    result = 0.0
    while x < 6:
        result += 1 / (x * x)
        x += 1
    f = 1 / (x * x)
    return result + 1 / x + f / 2 + f / x * (1 / 6 - f * (1 / 30 - f * (1 / 42 - f / 30)))


def _positive(gaps: LogHistogram) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    counts, sums = gaps.counts[1:], gaps.sums[1:]
    used = counts > 0
    return sums[used] / counts[used], counts[used]
