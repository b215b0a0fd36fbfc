"""What to do about the bursts, in numbers: their length against the time that capacity takes.

Rule: capacity that arrives after the burst does not help it. What helps is what is warm already, a
queue that users accept, or less work.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np

from surgetank.traffic.analysis import Episode, Pulse, Verdict
from surgetank.traffic.binned import Binned
from surgetank.traffic.episodes import episode_window
from surgetank.traffic.verdict import ENOUGH, RELIABLE

HABIT: Final = 2  # episodes: one may be chance
COUNTABLE: Final = 20  # requests: fewer in a window are told as a number, not as a rate
PER: Final = 10  # replicas that the advice counts by
FLOOR: Final = 0.05  # of the peak: a base below it is none


def burst_seconds(
    verdict: Verdict, episodes: Sequence[Episode], pulse: Pulse | None
) -> float | None:
    """How long a burst lasts (s): the pulse's width, else the episodes' median by requests."""
    if pulse is not None:
        return pulse.width_s
    if verdict.beneath == "poisson" or not episodes:
        return None
    return _weighted_median([e.duration for e in episodes], [e.requests for e in episodes])


def advise(
    binned: Binned,
    verdict: Verdict,
    episodes: Sequence[Episode],
    pulse: Pulse | None,
    *,
    length: float | None,
    capacity_delay: float,
    finest: int,
) -> tuple[str, ...]:
    """Say what to do, one sentence or two each; `finest`: narrowest window to count in (s)."""
    if binned.covered <= 0 or not verdict.confident:
        needed = f"{ENOUGH} requests and {RELIABLE} s or more, a few bursts among them"
        return (f"too little for advice: take a longer log ({needed})",)
    advice = []
    if length is not None:
        advice.append(
            _bursts(episodes, pulse, length, capacity_delay, binned=binned, finest=finest)
        )
    elif verdict.beneath == "clumps":
        advice.append(_clumps(binned, max(finest, binned.width)))
    elif verdict.beneath == "pulses":
        advice.append(
            "the rate drifts without distinct bursts: capacity that follows the rate of the last"
            f" {_seconds(capacity_delay)} keeps up as long as it has room for the"
            f" {_growth(binned, capacity_delay):.0%} that the rate grows within that time"
        )
    else:
        advice.append(_steady(binned, capacity_delay))
        if len(episodes) >= HABIT:
            highest = max(episodes, key=lambda e: e.requests)
            advice.append(
                f"{len(episodes)} short bursts stand out of it all the same; the largest brought"
                f" {highest.requests:.0f} requests more than the base within"
                f" {_seconds(highest.duration)}: let a queue take them in"
            )
    if verdict.shape == "quantised":
        advice.append("log finer time stamps: what happens within a step cannot be seen here")
    return tuple(advice)


def _clumps(binned: Binned, window: int) -> str:
    busiest = "second" if window == 1 else _seconds(window)
    return (
        "requests come in handfuls at a steady rate: scaling on the rate does nothing for them; a"
        f" queue of a few seconds, or room for {_busiest(binned, window):.3g} requests/s (the"
        f" busiest {busiest}), does"
    )


def _steady(binned: Binned, delay: float) -> str:
    window = max(ceil(delay), 1)
    window += -window % binned.width
    peak, mean = _busiest(binned, window), binned.requests / binned.covered
    if not peak:
        return "no bursts to prepare for"
    if peak * window < COUNTABLE:
        return (
            f"no bursts to prepare for: no more than {peak * window:.0f} requests came in any"
            f" {_seconds(window)}; capacity for as many is enough"
        )
    return (
        f"no bursts to prepare for: the busiest {_seconds(window)} bring {peak:.3g} requests/s,"
        f" the mean is {mean:.3g}; capacity for the former is enough"
    )


def _bursts(
    episodes: Sequence[Episode],
    pulse: Pulse | None,
    length: float,
    delay: float,
    *,
    binned: Binned,
    finest: int,
) -> str:
    if pulse is not None:
        base, peak = pulse.base_rps, pulse.peak_rps
    else:
        weight = [e.requests for e in episodes]
        base = _weighted_median([e.base for e in episodes], weight)
        peak = _weighted_median([e.peak for e in episodes], weight)
    shed = 1 - base / peak
    if base > FLOOR * peak:
        needed = ceil(PER * peak / base - 1e-9)
        keep = (
            f"for every {PER} replicas that the base of {base:.3g} requests/s fills, keep {needed}"
            f" (for {peak:.3g} requests/s), or {needed - PER} warm standbys"
        )
    else:
        keep = (
            f"keep replicas or warm standbys for {peak:.3g} requests/s ready (between bursts there"
            f" are {base:.3g} requests/s)"
        )
        # Nobody runs capacity for next to nothing: the mean rate is what it is held against.
        base = min(binned.requests / binned.covered, peak)
        shed = 1 - base / peak
    intro = f"your bursts last {_seconds(length)} and new capacity takes {_seconds(delay)}: "
    if length <= delay:
        return (
            f"{intro}launching replicas cannot help them; {keep}, or, with capacity for"
            f" {base:.3g} requests/s, shed up to {shed:.0%} of a burst's requests"
            f" ({_share_above(binned, base, finest):.0%} of all)"
        )
    above = (peak - base) * delay
    return (
        f"{intro}launching helps after that; until then each brings {above:.0f} requests more than"
        f" the base. {keep[0].upper()}{keep[1:]} that bridge the first {_seconds(delay)}, queue"
        f" them, or shed {shed * delay / length:.0%} of a burst's requests"
    )


def _share_above(binned: Binned, capacity: float, finest: int) -> float:
    """Share of all requests that come above `capacity` requests/s, in windows of ten requests."""
    window = max(episode_window(binned, finest) or 60, binned.width)
    sums = binned.windows(binned.counts, window)
    if not sums.any():
        return 0.0
    return float(np.maximum(sums - capacity * window, 0.0).sum() / sums.sum())


def _busiest(binned: Binned, window: int) -> float:
    """Highest rate (requests/s) over full windows; 0.0 without one."""
    if not binned.fits(window):
        return 0.0
    sums = binned.windows(binned.counts, window)
    return float(sums.max() / window) if len(sums) else 0.0


def _growth(binned: Binned, delay: float) -> float:
    """How much the rate grows within `delay` seconds, P95.

    Windows of 400 expected requests or more, so that noise (5 %) is not taken for growth.
    """
    window = max(ceil(delay), ceil(400 * binned.covered / binned.requests), 1)
    window += -window % binned.width
    sums = binned.windows(binned.counts, window)
    if len(sums) < 3:
        return 0.0
    grown = sums[1:] / np.maximum(sums[:-1], 1.0) - 1
    return max(float(np.quantile(grown, 0.95)), 0.0) * min(delay / window, 1.0)


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(np.asarray(weights)[order])
    return float(np.asarray(values)[order][int(np.searchsorted(cumulated, cumulated[-1] / 2))])


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
