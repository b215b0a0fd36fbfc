"""A square pulse fitted to a stream's rate: base, peak, width and period, or nothing.

1. Windows of about four expected requests; their autocorrelation's highest peaks are candidates for
   the period, and those whose first cycles fit two levels best are taken.
2. Each is sharpened by folding ever more cycles: the period, start and length of the high part that
   maximise the Poisson likelihood of a rate of two levels.
3. Levels are those of the inner parts; the width is the area above the base over peak - base, which
   does not care how the edges fall into the windows.

It is kept only if the log has at least three cycles, the two levels explain 88 % of the folded
profile (a sine would reach 81 %) and 60 % of all variance beyond Poisson noise (clumps and single
bursts stay far below), and peak >= 1.3 x base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.analysis import Pulse
from surgetank.traffic.binned import Binned

SCALES: Final = (1, 2, 5, 10, 30, 60, 300, 600, 3600)
IN_A_WINDOW: Final = 4.0
MOST_WINDOWS: Final = 1 << 16
LEAST_WINDOWS: Final = 24
LEAST_CYCLES: Final = 3.0
CANDIDATES: Final = 6
MOST_PEAKS: Final = 100
NEARLY: Final = 0.7  # of the highest peak
SHARPENED: Final = 2  # of the candidates, those whose first three cycles fit best
LEAST_CORRELATION: Final = 0.1
PHASES: Final = 120
PROFILE_EXPLAINED: Final = 0.88
SERIES_EXPLAINED: Final = 0.60
LEAST_RATIO: Final = 1.3

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Fold:
    """The best two levels at one period: phases [start, start + length) of `phases` are high."""

    period: float
    gain: float  # log likelihood above a constant rate
    start: int
    length: int
    sums: Floats
    seconds: Floats


def fit_pulse(binned: Binned, finest: int) -> Pulse | None:
    """Fit a periodic square pulse; None when there is none. `finest`: narrowest window allowed."""
    window = _window(binned, finest)
    if window is None:
        return None
    starts, sums = binned.timed_windows(binned.counts, window)
    best: _Fold | None = None
    for lag in _candidates(starts, sums, window):
        fold = _sharpened(starts, sums, window, lag)
        if best is None or fold.gain > best.gain:
            best = fold
    if best is None or binned.span < LEAST_CYCLES * best.period:
        return None
    return _pulse(best, starts, sums, window, binned)


def _window(binned: Binned, finest: int) -> int | None:
    if binned.covered <= 0:
        return None
    rate = binned.requests / binned.covered
    for scale in SCALES:
        if (
            scale >= finest
            and binned.fits(scale)
            and scale * rate >= IN_A_WINDOW
            and binned.span / scale <= MOST_WINDOWS
        ):
            return scale if binned.covered / scale >= LEAST_WINDOWS else None
    return None


def autocorrelation(starts: Floats, sums: Floats, window: float) -> Floats:
    """Correlation of counts with themselves, by lag in windows; missing windows hold the mean."""
    at = np.round((starts - starts[0]) / window).astype(np.int64)
    grid = np.zeros(int(at[-1]) + 1)
    grid[at] = sums - sums.mean()
    size = 1 << int(2 * len(grid) - 1).bit_length()
    power = np.abs(np.fft.rfft(grid, size)) ** 2
    raw = np.fft.irfft(power, size)[: len(grid)]
    if raw[0] <= 0:
        return np.zeros(len(grid))
    overlap = np.arange(len(grid), 0, -1) / len(grid)
    return np.asarray(raw / raw[0] / overlap)


def peaks_of(correlation: Floats, longest: int, most: int, least: float) -> list[int]:
    """Give the lags of the highest peaks from lag 2 on, best first; `least`: height, prominence."""
    r = correlation[: longest + 2]
    if len(r) < 5:
        return []
    smooth = np.convolve(r, np.ones(3) / 3, mode="same")
    middle = smooth[2:-1]
    top = np.flatnonzero((middle >= smooth[1:-2]) & (middle > smooth[3:] if len(r) > 3 else True))
    lags = top + 2
    lowest_before = np.minimum.accumulate(smooth)[lags]
    lags = lags[(r[lags] > least) & (smooth[lags] - lowest_before > least)]
    chosen: list[int] = []
    for lag in lags[np.argsort(-r[lags], kind="stable")].tolist():
        # A neighbour of a better peak is its slope.
        if all(abs(lag - other) > max(3, 0.1 * other) for other in chosen):
            chosen.append(lag)
        if len(chosen) == most:
            break
    return chosen


def rhythm(correlation: Floats, longest: int, most: int, least: float) -> list[tuple[int, float]]:
    """Give the first peaks of the autocorrelation, as (lag, r), that are nearly the highest.

    A rhythm's multiples correlate as well as itself: the shortest lags are what is asked for.
    """
    lags = peaks_of(correlation, longest, MOST_PEAKS, least)
    if not lags:
        return []
    high = NEARLY * float(correlation[lags[0]])
    return [(lag, float(correlation[lag])) for lag in sorted(lags) if correlation[lag] >= high][
        :most
    ]


def _candidates(starts: Floats, sums: Floats, window: int) -> list[int]:
    if len(starts) < LEAST_WINDOWS or sums.std() == 0:
        return []
    r = autocorrelation(starts, sums, window)
    longest = int(len(r) / (LEAST_CYCLES - 0.5))
    lags = [lag for lag, _ in rhythm(r, longest, CANDIDATES, LEAST_CORRELATION)]

    def worth(lag: int) -> float:
        used = starts < starts[0] + 3 * lag * window
        fold = _folded(starts[used], sums[used], window, lag * window)
        return fold.gain / max(float(sums[used].sum()), 1.0)

    return sorted(lags, key=worth, reverse=True)[:SHARPENED]


def _sharpened(starts: Floats, sums: Floats, window: int, lag: int) -> _Fold:
    """Fold ever more cycles: an error of the period shows with the number of cycles."""
    best_period = float(lag * window)
    reach = 1.5 * window
    cycles = 4.0
    total = (starts[-1] - starts[0]) / best_period
    while True:
        used = starts < starts[0] + cycles * best_period
        trials = best_period + reach * np.linspace(-1.0, 1.0, 9)
        folds = [
            _folded(starts[used], sums[used], window, p) for p in trials.tolist() if p > 2 * window
        ]
        best = max(folds, key=lambda f: f.gain)
        best_period = best.period
        if cycles >= total:
            break
        reach = max(reach / 2, 1.5 * window / cycles)
        cycles = min(cycles * 2, total + 1)
    for _ in range(3):
        reach /= 3
        trials = best_period + reach * np.linspace(-1.0, 1.0, 7)
        best = max(
            (_folded(starts, sums, window, p) for p in trials.tolist() if p > 2 * window),
            key=lambda f: f.gain,
        )
        best_period = best.period
    return best


def _folded(starts: Floats, sums: Floats, window: float, period: float) -> _Fold:
    """Find the two levels of highest likelihood over all starts and lengths of the high part."""
    # Phases of whole windows: each is passed equally often.
    phases = max(round(period / (window * np.ceil(period / window / PHASES))), 4)
    middle = (starts + window / 2) / period
    phase = np.minimum(((middle - np.floor(middle)) * phases).astype(np.int64), phases - 1)
    number = np.bincount(phase, weights=sums, minlength=phases).astype(float)
    seconds = np.bincount(phase, minlength=phases).astype(float) * window
    cum = np.concatenate([[0.0], np.cumsum(np.tile(number, 2))])
    cum_s = np.concatenate([[0.0], np.cumsum(np.tile(seconds, 2))])
    begin = np.arange(phases)[:, None]
    length = np.arange(1, phases)[None, :]
    on, on_s = cum[begin + length] - cum[begin], cum_s[begin + length] - cum_s[begin]
    total, total_s = number.sum(), seconds.sum()
    off, off_s = total - on, total_s - on_s
    with np.errstate(divide="ignore", invalid="ignore"):
        high, low = on / on_s, off / off_s
        gain = (
            np.where(on > 0, on * np.log(high), 0.0)
            + np.where(off > 0, off * np.log(low), 0.0)
            - total * np.log(total / total_s)
        )
    gain = np.where((on_s > 0) & (off_s > 0) & (high > low), gain, -np.inf)
    place = int(np.argmax(gain))
    a, b = divmod(place, phases - 1)
    return _Fold(period, float(gain[a, b]), a, b + 1, number, seconds)


def _pulse(fold: _Fold, starts: Floats, sums: Floats, window: int, binned: Binned) -> Pulse | None:
    phases = len(fold.sums)
    at = (np.arange(phases) - fold.start) % phases  # the high part is [0, length)
    guard = 1 if min(fold.length, phases - fold.length) > 4 else 0
    high = (at >= guard) & (at < fold.length - guard)
    low = (at >= fold.length + guard) & (at < phases - guard)
    if not fold.seconds[high].sum() or not fold.seconds[low].sum():
        return None
    peak = fold.sums[high].sum() / fold.seconds[high].sum()
    base = fold.sums[low].sum() / fold.seconds[low].sum()
    if peak < LEAST_RATIO * base or peak <= 0:
        return None
    rate = fold.sums / np.maximum(fold.seconds, 1e-9)
    around = (at <= fold.length) | (at == phases - 1)  # with a phase before and one after
    above = float((fold.sums - base * fold.seconds)[around].sum())
    # The log need not end with a cycle: how often these phases were passed is what counts.
    cycles = float(fold.seconds[around].sum()) / (around.sum() * fold.period / phases)
    width = above / float(peak - base) / cycles
    explained = _explained(fold, at < fold.length, rate)
    if explained < PROFILE_EXPLAINED or _series_explained(fold, starts, sums, window) < (
        SERIES_EXPLAINED
    ):
        return None
    # The middle of the pulse does not care how its edges fall into the phases either.
    weight = np.where(around, np.maximum(rate - base, 0.0), 0.0)
    offset = np.where(at == phases - 1, -1, at) + 0.5
    middle = fold.start + float((offset * weight).sum() / weight.sum())
    start = middle / phases * fold.period - width / 2
    first = start + np.ceil((binned.first - width / 2 - start) / fold.period) * fold.period
    return Pulse(
        base_rps=float(base),
        peak_rps=float(peak),
        width_s=float(width),
        period_s=float(fold.period),
        start_s=float(first),
        cycles=float(binned.span / fold.period),
        explained=explained,
    )


def _explained(fold: _Fold, high: NDArray[np.bool_], rate: Floats) -> float:
    """Share of the profile's variance that two levels explain, Poisson noise taken out."""
    seen = fold.seconds > 0
    noise = fold.sums[seen].sum() / fold.seconds[seen].sum() / fold.seconds[seen]
    total = float(((rate[seen] - rate[seen].mean()) ** 2).sum() - noise.sum())
    left = 0.0
    for part in (high & seen, ~high & seen):
        if part.any():
            left += float(((rate[part] - rate[part].mean()) ** 2).sum())
    return 1.0 - max(left - float(noise.sum()), 0.0) / total if total > 0 else 0.0


def _series_explained(fold: _Fold, starts: Floats, sums: Floats, window: float) -> float:
    """Share of the counts' variance beyond Poisson noise that the two levels explain."""
    phases = len(fold.sums)
    middle = (starts + window / 2) / fold.period
    phase = np.minimum(((middle - np.floor(middle)) * phases).astype(np.int64), phases - 1)
    high = (phase - fold.start) % phases < fold.length
    if high.all() or not high.any():
        return 0.0
    fitted = np.where(high, sums[high].mean(), sums[~high].mean())
    beyond = float(sums.var() - sums.mean())
    return float(fitted.var()) / beyond if beyond > 0 else 1.0
