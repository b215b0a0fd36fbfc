"""Repetition in the counts: the busy second of the minute, minute of the hour, hour of the day.

A phase counts as a spike when it holds at least 1.5 times its part, when noise would hardly do that
(6 standard deviations, by the cycles' own dispersion), and when it stands out in most cycles: one
burst is no habit.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from surgetank.traffic.analysis import Periodicity, Spike
from surgetank.traffic.binned import Binned
from surgetank.traffic.episodes import episode_window
from surgetank.traffic.pulsefit import autocorrelation, rhythm

MINUTE: Final = (60, 1, 5)  # cycle (s), phase (s), least cycles
HOUR: Final = (3600, 60, 3)
SHARP: Final = (3600, 10, 3)  # a job of a second is lost in its minute
DAY: Final = (86400, 3600, 2)
LEAST_RATIO: Final = 1.5
LEAST_SIGMAS: Final = 6.0
MOST_CYCLES: Final = 0.6
UNIX: Final = 1e8  # stamps above are Unix times (1973), below them seconds from an origin
PEAKS: Final = 5


def find_periodicity(binned: Binned, finest: int) -> Periodicity | None:
    """Look for spikes and for peaks of the autocorrelation; None when the log is too short."""
    if binned.covered <= 0 or binned.requests < 10:
        return None
    minute, hour, sharp, day = (
        _spike(binned, finest, *cycle) for cycle in (MINUTE, HOUR, SHARP, DAY)
    )
    return Periodicity(
        minute=minute,
        hour=hour or sharp,
        day=day,
        autocorrelation=_lags(binned, finest),
        clock="UTC" if binned.first > UNIX else "origin",
    )


def _spike(binned: Binned, finest: int, cycle: int, phase: int, least: int) -> Spike | None:
    if phase < finest or not binned.fits(phase) or binned.covered < least * cycle:
        return None
    starts, sums = binned.timed_windows(binned.counts, phase)
    at = (np.floor(starts) // phase).astype(np.int64) % (cycle // phase)
    number = np.bincount(at, weights=sums, minlength=cycle // phase)
    seen = np.bincount(at, minlength=cycle // phase)
    total = sums.sum()
    if not total:
        return None
    expected = total * seen / seen.sum()
    busiest = int(np.argmax(number / np.maximum(expected, 1e-9)))
    ratio = float(number[busiest] / max(expected[busiest], 1e-9))
    # Clumps scatter more than Poisson: by how much, the cycles tell of each phase.
    rest = sums - (number / np.maximum(seen, 1))[at]
    freedom = max(len(sums) - int((seen > 0).sum()), 1)
    dispersion = max(float((rest * rest).sum()) / freedom / float(sums.mean()), 1.0)
    noise = np.sqrt(dispersion * max(expected[busiest], 1.0))
    sigmas = (number[busiest] - expected[busiest]) / noise
    there = sums[at == busiest]
    often = float((there > total / len(sums)).mean())
    if ratio < LEAST_RATIO or sigmas < LEAST_SIGMAS or often < MOST_CYCLES:
        return None
    return Spike(at=float(busiest * phase), ratio=ratio, share=float(number[busiest] / total))


def _lags(binned: Binned, finest: int) -> tuple[tuple[float, float], ...]:
    window = episode_window(binned, finest)
    if window is None:
        return ()
    starts, sums = binned.timed_windows(binned.counts, window)
    if len(sums) < 12 or sums.std() == 0:
        return ()
    r = autocorrelation(starts, sums, window)
    least = max(0.1, 4.0 / np.sqrt(len(sums)))
    lags = rhythm(r, len(r) // 2, PEAKS, float(least))
    return tuple((float(lag * window), height) for lag, height in lags)
