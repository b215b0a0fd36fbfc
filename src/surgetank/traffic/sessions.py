"""Calls of agent sessions: kept row by row for a sample of sessions, in bounded memory.

Rule: a session is in the sample by the hash of its name, so all of its calls are, and parts of a
log agree on the sample. It halves when more than `MAX_CALLS` are held. Order does not matter.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.trace import Batch

MAX_CALLS: Final = 1 << 19  # 21 MB
MAX_LEVEL: Final = 20


class Sessions:
    """Arrival, duration and tokens of the calls of one session in 2**level."""

    __slots__ = ("_blocks", "_held", "calls", "level", "names")

    def __init__(self) -> None:
        self.level = 0
        self.calls = 0  # of all sessions, sampled or not
        self.names: dict[str, int] = {}
        self._held = 0
        self._blocks: list[NDArray[np.float64]] = []  # session, arrived, duration, tokens

    def add(self, batch: Batch) -> None:
        """Add the rows that name a session."""
        if batch.session is None:
            return
        codes = batch.session.codes
        self.calls += int((codes >= 0).sum())
        numbers = np.full(len(batch.session.names) + 1, -1, np.int64)
        present = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=1))
        for code in present.tolist():
            name = batch.session.names[code]
            if name in self.names or self._sampled(name):
                numbers[code] = self.names.setdefault(name, len(self.names))
        taken = numbers[codes] >= 0
        if taken.any():
            self._hold(numbers[codes[taken]], batch.take(taken))
        self._thin()

    def merge(self, other: Sessions) -> None:
        """Add the calls of another part."""
        self.calls += other.calls
        self.level = max(self.level, other.level)
        names = list(other.names)
        for block in other._blocks:
            fresh = block.copy()
            to = np.array([self.names.setdefault(n, len(self.names)) for n in names], float)
            fresh[0] = to[block[0].astype(np.int64)]
            self._blocks.append(fresh)
            self._held += fresh.shape[1]
        self._keep_sampled()
        self._thin()

    def table(self) -> NDArray[np.float64]:
        """Give the held calls as rows session, arrived, duration, tokens (NaN: unknown)."""
        return np.concatenate(self._blocks, axis=1) if self._blocks else np.empty((4, 0))

    def _sampled(self, name: str) -> bool:
        return not crc32(name.encode("utf-8", "surrogatepass")) & ((1 << self.level) - 1)

    def _hold(self, numbers: NDArray[np.int64], calls: Batch) -> None:
        unknown = np.full(len(calls), np.nan)
        duration = unknown if calls.duration is None else calls.duration
        columns = [c for c in (calls.prompt_tokens, calls.output_tokens) if c is not None]
        total = unknown
        if columns:
            stated = np.any([c >= 0 for c in columns], axis=0)
            total = np.where(stated, np.sum([np.maximum(c, 0) for c in columns], axis=0), np.nan)
        self._blocks.append(np.stack([numbers.astype(float), calls.arrived, duration, total]))
        self._held += len(calls)

    def _thin(self) -> None:
        while self._held > MAX_CALLS and self.level < MAX_LEVEL:
            self.level += 1
            self._keep_sampled()

    def _keep_sampled(self) -> None:
        kept = [name for name in self.names if self._sampled(name)]
        if len(kept) == len(self.names):
            return
        to = np.full(len(self.names), -1.0)
        for number, name in enumerate(kept):
            to[self.names[name]] = number
        table = self.table()
        table[0] = to[table[0].astype(np.int64)]
        table = table[:, table[0] >= 0]
        self.names = {name: number for number, name in enumerate(kept)}
        self._blocks = [table]
        self._held = table.shape[1]
