"""Student's t distribution, without a library for it.

Tail probability through the regularised incomplete beta function: P(|T| > t) = I_x(v/2, 1/2) with
x = v / (v + t^2), by Lentz's continued fraction (Numerical Recipes, section 6.4); quantiles by
bisection on it. Exact to about 1e-12.
"""

from __future__ import annotations

from functools import cache
from math import exp, lgamma, log
from typing import Final

_TINY: Final = 1e-300
_STEPS: Final = 300


def two_sided(t: float, freedom: float) -> float:
    """P(|T| > |t|)."""
    if t == 0:
        return 1.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@cache
def quantile(share: float, freedom: float) -> float:
    """Give the t below which a share (0.5 .. 1) of the distribution lies."""
    if not 0.5 <= share < 1 or freedom <= 0:
        raise ValueError(f"share = {share}, freedom = {freedom}: must be in [0.5, 1) and > 0")
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 2 * (1 - share):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if two_sided(middle, freedom) > 2 * (1 - share):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    found = d
    for m in range(1, _STEPS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + factor * d
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = 1 + factor / (c if abs(c) > _TINY else _TINY)
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found
