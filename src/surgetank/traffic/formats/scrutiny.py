"""What looks wrong with a whole log though each of its rows can be read.

Rule: these are notes for people, never corrections: the rows stay as they were logged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np

from surgetank.traffic.formats.reading import Account
from surgetank.traffic.trace import Batch, Counts

_LEAST_ROWS: Final = 100  # fewer show nothing
_CAP: Final = 256  # tokens: a smaller largest value is just a small value
_CAPPED_SHARE: Final = 0.005  # of the rows at the largest value, and
_CAPPED_TIMES: Final = 5  # times as many as at the second largest
_GAP_SECONDS: Final = 300.0  # a shorter silence is traffic's own
_GAP_TIMES: Final = 200  # times the mean gap of the rest


@dataclass(slots=True)
class Top:
    """The two largest values seen and how often."""

    first: int = -1
    times: int = 0
    second: int = -1
    second_times: int = 0
    rows: int = 0

    def add(self, column: Counts) -> None:
        """Take in a column; gaps are negative."""
        self.rows += len(column)
        for value, times in _two_largest(column):
            if value == self.first:
                self.times += times
            elif value > self.first:
                self.second, self.second_times = self.first, self.times
                self.first, self.times = value, times
            elif value == self.second:
                self.second_times += times
            elif value > self.second:
                self.second, self.second_times = value, times

    @property
    def capped(self) -> bool:
        """The largest value repeats as no distribution of lengths does."""
        return (
            self.first >= _CAP
            and self.second >= 0
            and self.times >= max(10, _CAPPED_SHARE * self.rows)
            and self.times >= _CAPPED_TIMES * self.second_times
        )


@dataclass(slots=True)
class Scrutiny:
    """Looks at batches in the log's order."""

    account: Account
    running: int = 0  # rows whose status says that the request had not ended
    _tops: dict[str, Top] = field(default_factory=dict)
    _rows: int = 0
    _first: float = np.inf
    _last: float = -np.inf  # latest arrival so far
    _before: float = np.nan  # arrival of the row before
    _unsorted: int = 0
    _gap: float = 0.0
    _gap_at: float = 0.0

    def look(self, batch: Batch) -> None:
        """Take in some rows."""
        if not len(batch):
            return
        for name in ("prompt_tokens", "output_tokens"):
            column = getattr(batch, name)
            if column is not None:
                self._tops.setdefault(name, Top()).add(column)
        steps = np.diff(batch.arrived, prepend=self._before)
        self._unsorted += int((steps < 0).sum())
        self._before = float(batch.arrived[-1])
        reached = np.maximum.accumulate(np.concatenate(([self._last], batch.arrived)))
        silence = batch.arrived - reached[:-1]
        longest = int(np.argmax(np.where(np.isfinite(silence), silence, -1.0)))
        if np.isfinite(silence[longest]) and silence[longest] > self._gap:
            self._gap, self._gap_at = float(silence[longest]), float(reached[longest])
        self._rows += len(batch)
        self._first = min(self._first, float(batch.arrived.min()))
        self._last = float(reached[-1])

    def conclude(self) -> None:
        """Note what the rows together show."""
        if self.running:
            self.account.note(
                f"{self.running} rows have a status that is not final: they count as arrivals, how"
                " they ended is unknown; a log with a row for each state counts requests twice"
            )
        if self._unsorted:
            self.account.note(f"{self._unsorted} rows are earlier than the one before: not sorted")
        if self._rows < _LEAST_ROWS:
            return
        for name, top in self._tops.items():
            if top.capped:
                self.account.note(
                    f"{name} seems capped by what wrote the log: {top.times} rows hold exactly"
                    f" {top.first}, the next largest value occurs {top.second_times} times"
                )
        rest = (self._last - self._first - self._gap) / (self._rows - 2)
        if not self._unsorted and self._gap >= max(_GAP_SECONDS, _GAP_TIMES * rest):
            self.account.note(
                f"no rows for {self._gap:.0f} s from {_when(self._gap_at)}: missing data or"
                " idleness?"
            )


def _two_largest(column: Counts) -> list[tuple[int, int]]:
    found = []
    for _ in range(2):
        if not len(column):
            break
        largest = int(column.max())
        if largest < 0:
            break
        found.append((largest, int((column == largest).sum())))
        column = column[column < largest]
    return found


def _when(seconds: float) -> str:
    if seconds < 1e8:
        return f"{seconds:.0f} s"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
