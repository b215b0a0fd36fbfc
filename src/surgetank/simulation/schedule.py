"""A scaler that knows the future: it follows a schedule made from all arrivals.

Rule: it can be carried out in the same simulator, with the same starts, failures and drains; what
it costs can be had by whoever knew.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from surgetank.policy.plan import Observation, ScalePlan
from surgetank.simulation.bound import Bound

_HAIR = 1e-6  # a solver's 2.0000001 is 2


class Scheduled:
    """Follow a bound's solution, in whole replicas, each ready when it is needed.

    `lead`: seconds a start takes at the most (its P95); `wake`: standby to serving. After the end
    of the schedule its last step holds.
    """

    def __init__(self, found: Bound, *, lead: float, wake: float, least: int, most: int) -> None:
        self._begin = found.begin
        self._step = found.step
        self._serving = _ahead(_whole(found.serving, least, most), wake, found.step)
        loaded = _ahead(_whole(found.loaded, least, most), lead, found.step)
        self._loaded = np.maximum(loaded, self._serving)

    def tick(self, seen: Observation, now: float) -> ScalePlan:  # noqa: ARG002 - it knows better
        """Give the step of the schedule that is due."""
        at = math.floor((now - self._begin) / self._step)
        at = min(max(at, 0), len(self._serving) - 1)
        serving = int(self._serving[at])
        return ScalePlan(
            replicas=serving,
            launch=serving,
            standbys=int(self._loaded[at]) - serving,
            surge=False,
            demand=None,
            reasons=(),
        )


def _whole(values: NDArray[np.float64], least: int, most: int) -> NDArray[np.int64]:
    return np.clip(np.ceil(values - _HAIR), least, most).astype(np.int64)


def _ahead(values: NDArray[np.int64], seconds: float, step: float) -> NDArray[np.int64]:
    """Give at each step the most of it and of the steps within `seconds` after it."""
    steps = math.ceil(seconds / step)
    padded = np.concatenate([values, np.full(steps, values[-1])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, steps + 1)
    most: NDArray[np.int64] = windows.max(axis=1)
    return most
