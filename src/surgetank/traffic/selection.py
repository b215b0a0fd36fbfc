"""A part of a log: some tenants, some stretch of time.

Rule: what is left out is counted, and what there was is remembered, so that an empty selection can
be told from an empty log.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from surgetank.traffic.trace import Batch

_NAMES = 10_000  # tenants remembered


@dataclass(slots=True)
class Selection:
    """Rows of these tenants (none: all) that arrived in [start, end)."""

    tenants: frozenset[str] = frozenset()
    start: float | None = None  # s, in the log's own time
    end: float | None = None
    seen: int = 0  # rows that came
    first: float = math.inf  # their earliest and latest arrival
    last: float = -math.inf
    names: set[str] = field(default_factory=set)  # tenants that came

    @property
    def is_all(self) -> bool:
        """Whether nothing can be left out."""
        return not self.tenants and self.start is None and self.end is None

    def take(self, batch: Batch) -> Batch:
        """Give the rows that belong to it."""
        if self.is_all or not len(batch):
            return batch
        self.seen += len(batch)
        kept = np.ones(len(batch), np.bool_)
        if self.start is not None or self.end is not None:
            self.first = min(self.first, float(np.nanmin(batch.arrived, initial=math.inf)))
            self.last = max(self.last, float(np.nanmax(batch.arrived, initial=-math.inf)))
            if self.start is not None:
                kept &= batch.arrived >= self.start
            if self.end is not None:
                kept &= batch.arrived < self.end
        if self.tenants:
            kept &= self._of_tenants(batch)
        return batch if kept.all() else batch.take(kept)

    def _of_tenants(self, batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        if batch.tenant is None:
            return np.zeros(len(batch), np.bool_)
        if len(self.names) < _NAMES:
            self.names.update(batch.tenant.names)
        wanted = [i for i, name in enumerate(batch.tenant.names) if name in self.tenants]
        return np.isin(batch.tenant.codes, wanted)
