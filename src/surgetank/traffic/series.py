"""The curves that charts draw, thinned so that no peak is lost.

Rule: a thinned curve shows the highest value of each block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import (
    Dispersion,
    Episode,
    GapBars,
    IdcCurve,
    Line,
    Series,
    Stack,
)
from surgetank.traffic.binned import Binned
from surgetank.traffic.loghistogram import LogHistogram
from surgetank.traffic.tenants import Tenants

if TYPE_CHECKING:
    from surgetank.traffic.burstiness import Accumulator

POINTS: Final = 2000
STACK_POINTS: Final = 500
STACKED: Final = 8
PER_OCTAVE: Final = 4  # bars of the gap histogram


class Allows(Protocol):
    """Tells which windows the stamps allow."""

    def why(self, window: float) -> str | None:
        """Say why not; None when allowed."""


def draw_series(
    taken: Accumulator,
    binned: Binned,
    gaps: LogHistogram | None,
    allowed: Allows,
    *,
    idc: Dispersion,
    episodes: Sequence[Episode],
) -> Series:
    """Draw every curve that the log can give."""
    if not binned.requests:
        return Series()
    widths = [w for w in (1, 10, 60) if allowed.why(w) is None]
    token_window = widths[0] if widths else binned.width
    return Series(
        rates=tuple(line for w in widths if (line := _line(binned, binned.counts, w))),
        prompt_rate=_line(binned, binned.prompt, token_window),
        output_rate=_line(binned, binned.output, token_window),
        gaps=None if gaps is None else gap_bars(gaps),
        tenants=None if taken.tenants is None else _stack(taken.tenants, binned),
        idc_requests=_curve(idc.requests, idc.requests_band, 1.0),
        idc_prompt_tokens=_curve(
            idc.prompt_tokens, idc.prompt_tokens_band, idc.prompt_tokens_reference
        ),
        episodes=tuple((e.start, e.start + e.duration) for e in episodes),
    )


def _curve(
    idc: Mapping[str, float | None] | None,
    band: Mapping[str, tuple[float, float] | None] | None,
    reference: float | None,
) -> IdcCurve | None:
    known = [(w, v) for w, v in (idc or {}).items() if v is not None]
    if not known:
        return None
    ranges = [(band or {}).get(w) or (np.nan, np.nan) for w, _ in known]
    return IdcCurve(
        window_s=np.array([float(w) for w, _ in known]),
        idc=np.array([v for _, v in known]),
        low=np.array([r[0] for r in ranges]),
        high=np.array([r[1] for r in ranges]),
        reference=np.nan if reference is None else reference,
    )


def _line(binned: Binned, column: NDArray[np.int64] | None, window: int) -> Line | None:
    if column is None or not binned.fits(window):
        return None
    starts, sums = binned.timed_windows(column, window)
    if not len(sums):
        return None
    block = -(-len(sums) // POINTS)
    if block > 1:
        cuts = np.arange(0, len(sums), block)
        starts, sums = starts[cuts], np.maximum.reduceat(sums, cuts)
    return Line(float(window), starts, sums / window)


def gap_bars(gaps: LogHistogram) -> GapBars | None:
    """Coarsen the histogram to four bars an octave, beside the exponential of the same mean."""
    edges = gaps.edges()
    used = np.flatnonzero(gaps.counts[1:]) + 1
    if not len(used) or not gaps.mean:
        return None
    step = 8  # 32 bins an octave
    low = 1 + (int(used[0]) - 1) // step * step
    high = int(used[-1]) + 1
    cuts = np.arange(low, high, step)
    share = np.add.reduceat(gaps.counts[:high], cuts) / gaps.number
    bounds = np.append(edges[cuts], edges[min(int(cuts[-1]) + step, len(edges) - 1)])
    exponential = np.diff(-np.exp(-bounds / gaps.mean))
    return GapBars(bounds, share, exponential)


def _stack(tenants: Tenants, binned: Binned) -> Stack | None:
    names = tenants.largest(STACKED)
    if not names:
        return None
    width = max(tenants.width, binned.width)
    points = int(binned.span // width) + 1
    window = width * -(-points // STACK_POINTS)
    begin = int(binned.start // window)
    number = int((binned.start + len(binned.counts) * binned.width) // window) - begin + 1
    curves = []
    for name in names:
        starts, counts = tenants.series(name)
        curves.append(_on_grid(starts, counts, window, begin, number))
    total = _on_grid(
        binned.start + np.arange(len(binned.counts)) * binned.width,
        binned.counts,
        window,
        begin,
        number,
    )
    rest = np.maximum(total - np.sum(curves, axis=0), 0.0)
    if rest.sum() > 0.5 / window:
        names = [*names, "others"]
        curves.append(rest)
    at = (begin + np.arange(number, dtype=np.float64)) * window
    # As for every window: one of which less than half lies in the log would draw a fall to nothing.
    inside = np.minimum(at + window, binned.last) - np.maximum(at, binned.first)
    full = inside >= window / 2
    if not full.any():
        return None
    scale = window / inside[full]  # and the outer ones have their rate while the log lasts
    return Stack(
        float(window), at[full], tuple(names), tuple(curve[full] * scale for curve in curves)
    )


def _on_grid(
    starts: NDArray[np.int64], counts: NDArray[np.int64], window: int, begin: int, number: int
) -> NDArray[np.float64]:
    at = starts // window - begin
    inside = (at >= 0) & (at < number)
    laid = np.bincount(at[inside], weights=counts[inside], minlength=number).astype(float)
    return laid / window
