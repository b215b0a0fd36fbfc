"""Each tenant's part of the load, and of its variance.

The variance of a sum is the sum of the covariances of its parts with it: a tenant's share is
cov(own counts, all counts) / var(all counts). The shares of all tenants add up to 1; one that is
much larger than the share of load belongs to who makes the bursts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import TenantFigures
from surgetank.traffic.binned import Binned
from surgetank.traffic.dispersion import index_of_dispersion
from surgetank.traffic.tenants import Tenants

SHOWN: Final = 50
WIDTHS: Final = (10, 60, 600, 3600)  # s
MOST_WINDOWS: Final = 1 << 17  # 15 days of 10 s; longer logs are looked at more coarsely
OTHERS: Final = "others"

Floats = NDArray[np.float64]


def tenant_figures(
    tenants: Tenants | None, binned: Binned
) -> tuple[tuple[TenantFigures, ...], TenantFigures | None]:
    """Make the figures of the 50 largest tenants, and those of all others together."""
    if tenants is None or not tenants.named or binned.covered <= 0:
        return (), None
    grid = _Grid(tenants, binned)
    totals = tenants.totals()
    whole = totals.sum(axis=0) + tenants.others
    shown = tenants.largest(SHOWN)
    figures = []
    rest = grid.total.copy()
    for name in shown:
        own = grid.of(name)
        rest -= own
        figures.append(_figures(name, own, totals[tenants.slot_of[name]], whole, grid))
    others = whole - totals[[tenants.slot_of[n] for n in shown]].sum(axis=0)
    if not others[0]:
        return tuple(figures), None
    return tuple(figures), _figures(OTHERS, np.maximum(rest, 0.0), others, whole, grid)


class _Grid:
    """Windows of the tenants' width from the first request to the last, holes left out."""

    def __init__(self, tenants: Tenants, binned: Binned) -> None:
        width = max(tenants.width, binned.width)
        while binned.span / width > MOST_WINDOWS:
            width = next((w for w in (*WIDTHS, 86400) if w > width), width * 10)
        self.width = width
        self.covered = binned.covered
        self.states_prompts = binned.prompt is not None
        self.states_outputs = binned.output is not None
        self._tenants = tenants
        self._begin = int(np.rint(binned.first / self.width))
        self._number = max(int(np.rint(binned.last / self.width)) - self._begin, 0)
        starts = (self._begin + np.arange(self._number)) * float(self.width)
        self.keep = np.ones(self._number, bool)
        for hole in binned.holes:
            self.keep &= (starts >= hole.start + hole.duration) | (
                starts + self.width <= hole.start
            )
        at = binned.start + np.arange(len(binned.counts)) * binned.width
        self.total = self._laid(at, binned.counts)

    def of(self, name: str) -> Floats:
        """Counts of one tenant."""
        return self._laid(*self._tenants.series(name))

    def _laid(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> Floats:
        at = starts // self.width - self._begin
        inside = (at >= 0) & (at < self._number)
        laid = np.bincount(at[inside], weights=counts[inside], minlength=self._number)
        return laid.astype(float)[self.keep]


def _figures(
    name: str,
    own: Floats,
    totals: NDArray[np.int64],
    whole: NDArray[np.int64],
    grid: _Grid,
) -> TenantFigures:
    variance = float(grid.total.var(ddof=1)) if len(grid.total) > 1 else 0.0
    share = None
    if variance > 0:
        share = float(np.cov(own, grid.total, ddof=1)[0, 1]) / variance
    tokens = int(whole[1] + whole[2])
    idc: dict[str, float | None] = {}
    for w in WIDTHS:
        if w < grid.width or w % grid.width:
            continue
        per = w // grid.width
        full = len(own) // per
        idc[str(w)] = index_of_dispersion(own[: full * per].reshape(full, per).sum(axis=1))
    return TenantFigures(
        name=name,
        requests=int(totals[0]),
        share=float(totals[0] / whole[0]),
        token_share=float((totals[1] + totals[2]) / tokens) if tokens else None,
        variance_share=share,
        rate=float(totals[0]) / grid.covered,
        peak_rate=float(own.max() / grid.width) if own.any() else None,
        idc=idc,
        prompt_tokens=int(totals[1]) if grid.states_prompts else None,
        output_tokens=int(totals[2]) if grid.states_outputs else None,
        window_s=grid.width,
    )
