"""Index of dispersion for counts and for work, and where a Poisson stream's would lie.

IDC(w) = variance / mean of the counts in windows of w seconds: sample variance, full windows only
(Gusella, "Characterizing the variability of arrival processes with indexes of dispersion", IEEE
JSAC 9(2), 1991). For work the same of token sums (Fendick & Whitt, Proc. IEEE 77(1), 1989); a
compound Poisson stream of tokens X has E[X^2] / E[X] at every w.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

Z_99: Final = 2.5758  # two-sided 99 %


def index_of_dispersion(sums: NDArray[np.float64]) -> float | None:
    """Variance / mean; None with fewer than two windows or nothing in them."""
    if len(sums) < 2 or not sums.any():
        return None
    return float(sums.var(ddof=1) / sums.mean())


def poisson_band(windows: int) -> tuple[float, float] | None:
    """99 % range of the IDC of a Poisson stream over so many windows.

    (n - 1) IDC is about chi-squared with n - 1 degrees of freedom.
    """
    return _chi_squared_range(windows - 1) if windows > 1 else None


def compound_band(
    windows: int, reference: float, requests: int, square: float, fourth: float
) -> tuple[float, float] | None:
    """Give the 99 % range of the token IDC of a compound Poisson stream.

    `square` and `fourth` are E[X^2] and E[X^4] of the tokens of `requests` requests. The relative
    variance of a sample variance is 2/(n-1) + kurtosis/n; the fourth cumulant of a window's sum is
    (requests / n) E[X^4]. The same variance as a chi-squared gives the range's shape.
    """
    if windows < 2 or not requests or not square:
        return None
    spread = 2.0 / (windows - 1) + fourth / (requests * square**2)
    low, high = _chi_squared_range(2.0 / spread)
    return low * reference, high * reference


def _chi_squared_range(freedom: float) -> tuple[float, float]:
    """Quantiles 0.5 % and 99.5 % of chi-squared / freedom (Wilson & Hilferty 1931)."""
    step = 2.0 / (9.0 * freedom)
    low = max(1.0 - step - Z_99 * sqrt(step), 0.0) ** 3
    return low, (1.0 - step + Z_99 * sqrt(step)) ** 3
