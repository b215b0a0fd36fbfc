"""The last minutes of a stream that goes on: an accumulator a minute, merged for the figures.

Rule: the figures are those that a log of these minutes would give, since the same accumulators make
them. What is older than the window goes by whole minutes; memory does not grow with requests.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from surgetank.traffic.analysis import Analysis
from surgetank.traffic.burstiness import CAPACITY_DELAY, Accumulator
from surgetank.traffic.trace import Batch, Source

PART: Final = 60  # seconds


class LiveWindow:
    """Arrivals of the last `span` seconds (whole minutes of them); they may come out of order."""

    def __init__(self, span: float = 900.0, *, counts_only: bool = False) -> None:
        self._span = span
        self._counts_only = counts_only
        self._parts: dict[int, Accumulator] = {}  # by minute
        self._newest = 0

    def add(self, batch: Batch) -> None:
        """Take requests; their times must be finite."""
        minutes = np.floor(batch.arrived / PART).astype(np.int64)
        for minute in np.unique(minutes).tolist():
            self._part(minute).add(batch.take(minutes == minute))
        self._forget()

    def add_second(self, second: int, requests: int, prompt_tokens: int | None = None) -> None:
        """Take what was counted: so many requests came in `second`, with prompts of so many."""
        prompts = None if prompt_tokens is None else np.array([prompt_tokens])
        self._part(second // PART).add_seconds(second, np.array([requests]), prompts)
        self._forget()

    def analyse(self, *, capacity_delay: float = CAPACITY_DELAY) -> Analysis:
        """Make the figures of the window, which ends with the latest arrival."""
        whole = Accumulator(counts_only=self._counts_only)
        for minute in sorted(self._parts):
            whole.merge(self._parts[minute])
        return whole.analyse(
            Source(format="live", rows=whole.requests), capacity_delay=capacity_delay
        )

    def _part(self, minute: int) -> Accumulator:
        self._newest = max(self._newest, minute)
        if minute not in self._parts:
            self._parts[minute] = Accumulator(counts_only=self._counts_only)
        return self._parts[minute]

    def _forget(self) -> None:
        oldest = self._newest - self._span / PART
        for minute in [m for m in self._parts if m <= oldest]:
            del self._parts[minute]
