"""Rates over equal steps, of each tenant and of all, as a forecaster is fed.

Rule: whole steps only: the first and the last, cut off by the log's ends, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.traffic.trace import Batch

ALL: Final = "all"
OTHERS: Final = "others"

Counted = Literal["requests", "prompt-tokens", "output-tokens"]


@dataclass(frozen=True, slots=True)
class RateSeries:
    """Mean rates per second of each step; `first`: the first step's number on the log's clock.

    `by_tenant`: the largest ones, and OTHERS for the rest together; they add up to `total`.
    """

    step: float
    first: int
    total: NDArray[np.float64]
    by_tenant: dict[str, NDArray[np.float64]]

    @property
    def start(self) -> float:
        """When the first step begins, in the log's own time."""
        return self.first * self.step


def rates(batch: Batch, step: float, counted: Counted = "requests", *, top: int = 8) -> RateSeries:
    """Count a log. Raises InputError for one without such tokens, or without two whole steps."""
    amounts = _amounts(batch, counted)
    if not len(batch):
        raise InputError("the log holds no request")
    index = np.floor(batch.arrived / step).astype(np.int64)
    first, last = int(index.min()) + 1, int(index.max())  # those cut off are not counted
    size = last - first
    if size < 2:
        raise InputError(f"the log is shorter than two steps of {step:g} s: give a shorter --step")
    inside = (index >= first) & (index < last)
    at, amount = index[inside] - first, amounts[inside]

    def counts(rows: NDArray[np.bool_] | slice) -> NDArray[np.float64]:
        return np.bincount(at[rows], weights=amount[rows], minlength=size) / step

    total = counts(slice(None))
    if batch.tenant is None:
        return RateSeries(step, first, total, {})
    codes = batch.tenant.codes[inside]
    sums = np.bincount(codes[codes >= 0], weights=amount[codes >= 0])
    largest = [int(c) for c in np.argsort(-sums, kind="stable")[:top] if sums[c] > 0]
    found = {batch.tenant.names[code]: counts(codes == code) for code in largest}
    rest = ~np.isin(codes, largest)
    if rest.any():
        found[OTHERS if OTHERS not in found else f"{OTHERS} "] = counts(rest)
    return RateSeries(step, first, total, found if len(found) > 1 else {})


def _amounts(batch: Batch, counted: Counted) -> NDArray[np.float64]:
    if counted == "requests":
        return np.ones(len(batch))
    column = batch.prompt_tokens if counted == "prompt-tokens" else batch.output_tokens
    if column is None or not (column >= 0).any():
        raise InputError(f"--of {counted}: the log states no {counted.replace('-', ' ')}")
    return np.maximum(0, column).astype(np.float64)
