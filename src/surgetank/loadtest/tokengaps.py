"""Gaps between the tokens of a run's streams (ITL), counted by bin for each tenant and phase.

Rule: they are counted where they were seen. A request that was refused has none, and one that broke
has those of the tokens that came; tokens of one read have gaps of zero. Bins are `policy.gaps`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.policy.gaps import BOUNDS, gap_quantile

BINS: Final = len(BOUNDS) + 1
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """Rows of one length: `count` gaps in a bin, of a tenant's requests due in a phase.

    `tenant`: codes of the samples' names; `phase`: codes into phases.ORDER, -1 for none.
    """

    tenant: NDArray[np.int32]
    phase: NDArray[np.int8]
    bin: NDArray[np.int16]
    count: Counts

    def __post_init__(self) -> None:
        rows = {len(getattr(self, name)) for name in self.__slots__}
        if len(rows) != 1:
            raise ValueError(f"token_gaps: columns of {sorted(rows)} rows: must be of one length")
        if len(self.count) and self.count.min() < 0:
            raise ValueError("token_gaps.count: must be >= 0")

    def __len__(self) -> int:
        return len(self.count)

    @classmethod
    def none(cls) -> TokenGaps:
        """Of a run that counted none."""
        return cls._of(np.empty((0, 4), np.int64))

    @classmethod
    def counted(
        cls,
        gaps: Sequence[Sequence[int]],
        tenant: NDArray[np.int32],
        phase: NDArray[np.int8],
    ) -> TokenGaps:
        """Add up what each request saw: bin, count, bin, count... (`policy.gaps.flattened`)."""
        total: dict[tuple[int, int, int], int] = {}
        for flat, whose, when in zip(gaps, tenant.tolist(), phase.tolist(), strict=True):
            for at in range(0, len(flat) - 1, 2):
                key = whose, when, flat[at]
                total[key] = total.get(key, 0) + flat[at + 1]
        rows = [(*key, count) for key, count in sorted(total.items())]
        return cls._of(np.array(rows, np.int64).reshape(-1, 4))

    @classmethod
    def _of(cls, rows: NDArray[np.int64]) -> TokenGaps:
        tenant, phase, bin_, count = rows.T
        return cls(
            tenant.astype(np.int32), phase.astype(np.int8), bin_.astype(np.int16), count.copy()
        )

    def by_bin(self, rows: NDArray[Any] | None = None) -> Counts:
        """Add up some rows (a mask), or all of them: one number for each of the BINS."""
        bins, count = (self.bin, self.count) if rows is None else (self.bin[rows], self.count[rows])
        return np.bincount(bins, weights=count, minlength=BINS).astype(np.int64)


def itl(by_bin: Counts, share: float) -> float | None:
    """Quantile of gaps in seconds, by nearest rank; None without a gap."""
    return gap_quantile({int(i): int(by_bin[i]) for i in np.flatnonzero(by_bin)}, share)
