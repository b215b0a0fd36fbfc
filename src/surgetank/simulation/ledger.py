"""Every attempt of every request, as columns: what happened to it and when.

Rule: a row for each call of the gateway; the first rows are the workload's own, in its order, and
retries follow. Times are the simulation's seconds; NaN did not happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.policy.request import Outcome
from surgetank.simulation.workload import Workload

OPEN: Final = -1
OUTCOMES: Final = tuple(Outcome)
CODES: Final = {outcome: code for code, outcome in enumerate(OUTCOMES)}
COMPLETED: Final = CODES[Outcome.COMPLETED]


class Ledger:
    """Plain lists, since single items are written to: an array would box each of them."""

    __slots__ = (
        "arrived",
        "attempts",
        "cached",
        "degraded",
        "dispatched",
        "ended",
        "first",
        "outcome",
        "output",
        "position",
        "predicted",
        "preemptions",
        "prefilled",
        "queued",
        "reasons",
        "replica",
        "retry",
        "root",
    )

    def __init__(self, workload: Workload) -> None:
        rows = len(workload)
        self.root = list(range(rows))  # the workload's row that it is an attempt of
        self.retry = [0] * rows  # the client's retries before it
        self.arrived: list[float] = workload.arrived.tolist()
        self.queued = [False] * rows
        self.dispatched = [nan] * rows
        self.first = [nan] * rows
        self.ended = [nan] * rows
        self.output = [0] * rows  # tokens generated
        self.outcome = [OPEN] * rows
        self.replica = [-1] * rows
        self.attempts = [0] * rows  # dispatches
        self.preemptions = [0] * rows
        self.reasons: dict[int, str] = {}
        self.predicted: dict[int, float] = {}
        self.cached: dict[int, int] = {}  # prompt tokens found in a simulated cache
        self.position: dict[int, int] = {}
        self.degraded: dict[int, str] = {}
        self.prefilled: dict[
            int, int
        ] = {}  # prompt tokens computed where it was cut before its first token

    def __len__(self) -> int:
        return len(self.root)

    def again(self, row: int, at: float) -> int:
        """Add a row for the client's next attempt of a row's request."""
        self.root.append(self.root[row])
        self.retry.append(self.retry[row] + 1)
        self.arrived.append(at)
        self.queued.append(False)
        for times in (self.dispatched, self.first, self.ended):
            times.append(nan)
        for counts in (self.output, self.attempts, self.preemptions):
            counts.append(0)
        self.outcome.append(OPEN)
        self.replica.append(-1)
        return len(self.root) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The same where nobody waits at the gateway or tries again: a row for each of the workload's.

    For millions of requests: arrays of plain numbers.
    """

    root: NDArray[np.int32]
    first: NDArray[np.float64]
    ended: NDArray[np.float64]
    output: NDArray[np.int32]
    outcome: NDArray[np.int16]
    replica: NDArray[np.int32]
    preemptions: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.root)

    def listed(self, workload: Workload) -> Ledger:
        """Write the ledger that the simulation of single events would have kept."""
        ledger = Ledger(workload)
        for name in ("first", "ended", "output", "outcome", "replica", "preemptions"):
            values: Any = getattr(self, name).tolist()
            setattr(ledger, name, values)
        ledger.dispatched = list(ledger.arrived)
        ledger.attempts = [1] * len(self)
        busy = CODES[Outcome.ENGINE_BUSY]
        shed = np.flatnonzero(self.outcome == busy).tolist()
        ledger.reasons, ledger.position = dict.fromkeys(shed, "passed on"), dict.fromkeys(shed, 0)
        return ledger
