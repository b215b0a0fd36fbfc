"""Seeded arrival times: the shapes of traffic that people meet, with known moments.

Every generator takes a numpy Generator first and returns sorted times in [0, duration) seconds.
Rates are requests per second.

Rule: a changing rate is no thinned one: times are drawn at unit rate and mapped through the inverse
of the cumulated rate, so a stream has exactly the intensity that it names, whatever its peak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, gamma, lgamma, log, pi, sqrt
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Times = NDArray[np.float64]
Gaps = Callable[[int], Times]
"""Draws so many gaps of mean 1."""

_SPARE: Final = 1.05  # gaps drawn beyond the expected number, so that a second draw is rare


def poisson(rng: Generator, rate: float, duration: float) -> Times:
    """Poisson arrivals: IDC 1 at every window, gap CV 1."""
    _check(rate=rate, duration=duration)
    return np.sort(rng.uniform(0.0, duration, rng.poisson(rate * duration)))


def regular(rng: Generator, rate: float, duration: float) -> Times:
    """Constant spacing 1 / rate, with a random phase."""
    _check(rate=rate, duration=duration)
    return _mapped(_unit_regular(rng, rate * duration), 1.0 / rate, duration)


def gamma_renewal(
    rng: Generator,
    rate: float,
    duration: float,
    *,
    shape: float | None = None,
    cv: float | None = None,
) -> Times:
    """Independent gamma gaps, by their shape or their CV = 1 / sqrt(shape).

    IDC goes to CV^2 for long windows. Equilibrium start: no clump at time 0.
    """
    k = _one_of(shape, cv, lambda c: 1.0 / c**2)
    _check(rate=rate, duration=duration, shape=k)
    # The interval that covers time 0 is length-biased: Gamma(k + 1).
    first = rng.gamma(k + 1, 1.0 / k)
    return _renewal(rng, lambda n: rng.gamma(k, 1.0 / k, n), first, rate, duration)


def weibull_renewal(
    rng: Generator,
    rate: float,
    duration: float,
    *,
    shape: float | None = None,
    cv: float | None = None,
) -> Times:
    """Independent Weibull gaps, by their shape or their CV."""
    k = _one_of(shape, cv, weibull_shape_of_cv)
    _check(rate=rate, duration=duration, shape=k)
    scale = 1.0 / gamma(1.0 + 1.0 / k)
    # Length-biased: (x / scale)^k is Gamma(1 + 1/k).
    first = scale * rng.gamma(1.0 + 1.0 / k) ** (1.0 / k)
    return _renewal(rng, lambda n: scale * rng.weibull(k, n), first, rate, duration)


def weibull_shape_of_cv(cv: float) -> float:
    """Give the Weibull shape whose gaps have this CV (bisection on its closed form)."""
    _check(cv=cv)
    low, high = 0.05, 50.0
    for _ in range(100):
        middle = sqrt(low * high)
        squared = exp(lgamma(1 + 2 / middle) - 2 * lgamma(1 + 1 / middle)) - 1.0
        low, high = (middle, high) if squared > cv * cv else (low, middle)
    return sqrt(low * high)


@dataclass(frozen=True, slots=True)
class Mmpp2Spec:
    """Two-state Markov-modulated Poisson process."""

    low: float  # requests/s in each state
    high: float
    low_stay: float  # mean seconds in each state
    high_stay: float

    @classmethod
    def of_dispersion(
        cls, mean: float, idc: float, *, time_scale: float, high_share: float = 0.25
    ) -> Mmpp2Spec:
        """Build the process with this mean rate and this IDC for long windows.

        `time_scale` (s) is that of the rate's correlation exp(-t / time_scale); `high_share` is the
        part of time in the high state. With sigma the rate's standard deviation,
        IDC = 1 + 2 sigma^2 time_scale / mean (Heffes & Lucantoni, IEEE JSAC 4(6), 1986).
        """
        _check(mean=mean, time_scale=time_scale)
        if idc < 1 or not 0 < high_share < 1:
            raise ValueError(f"idc = {idc}, high_share = {high_share}: must be >= 1 and in (0, 1)")
        sigma = sqrt((idc - 1) * mean / (2 * time_scale))
        low = mean - sigma * sqrt(high_share / (1 - high_share))
        high = mean + sigma * sqrt((1 - high_share) / high_share)
        if low < 0:
            least = 2 * mean * time_scale * (1 - high_share) / high_share + 1
            raise ValueError(
                f"idc = {idc:g}: at most {least:.4g} is possible with mean {mean:g}, time_scale"
                f" {time_scale:g} and high_share {high_share:g}"
            )
        return cls(low, high, time_scale / high_share, time_scale / (1 - high_share))

    @property
    def mean(self) -> float:
        """Mean rate, requests/s."""
        return (self.low * self.low_stay + self.high * self.high_stay) / (
            self.low_stay + self.high_stay
        )

    def idc(self, window: float) -> float:
        """IDC over windows of `window` seconds."""
        share = self.high_stay / (self.low_stay + self.high_stay)
        variance = share * (1 - share) * (self.high - self.low) ** 2
        s = 1 / self.low_stay + 1 / self.high_stay
        return 1 + 2 * variance / (s * self.mean) * (1 - (1 - exp(-s * window)) / (s * window))


def mmpp2(rng: Generator, spec: Mmpp2Spec, duration: float) -> Times:
    """Poisson arrivals whose rate jumps between two values after exponential stays."""
    _check(duration=duration, low_stay=spec.low_stay, high_stay=spec.high_stay)
    high = bool(rng.random() < spec.high_stay / (spec.low_stay + spec.high_stay))
    edges, rates = [0.0], []
    while edges[-1] < duration:
        stay = rng.exponential(spec.high_stay if high else spec.low_stay)
        edges.append(min(edges[-1] + stay, duration))
        rates.append(spec.high if high else spec.low)
        high = not high
    return stepped(rng, edges, rates)


def stepped(
    rng: Generator, edges: Sequence[float] | Times, rates: Sequence[float], *, even: bool = False
) -> Times:
    """Arrivals at `rates[i]` from `edges[i]` to `edges[i + 1]`: Poisson, or evenly spaced."""
    at, levels = np.asarray(edges, float), np.asarray(rates, float)
    if len(at) != len(levels) + 1 or np.any(np.diff(at) < 0) or np.any(levels < 0):
        raise ValueError("stepped needs ascending edges, one more than the rates, and rates >= 0")
    cumulated = np.concatenate([[0.0], np.cumsum(levels * np.diff(at))])
    unit = (
        _unit_regular(rng, cumulated[-1])
        if even
        else np.sort(rng.uniform(0.0, cumulated[-1], rng.poisson(cumulated[-1])))
    )
    inside = np.clip(np.searchsorted(cumulated, unit, "right") - 1, 0, len(levels) - 1)
    rate = np.maximum(levels[inside], 1e-300)
    times: Times = at[inside] + (unit - cumulated[inside]) / rate
    return times


def pulse(  # noqa: PLR0917 - base, peak, width, period, duration: as they are always told
    rng: Generator,
    base: float,
    peak: float,
    width: float,
    period: float,
    duration: float,
    *,
    offset: float | None = None,
    even: bool = False,
) -> Times:
    """Rate `base`, and `peak` for `width` of every `period` seconds; the first pulse at `offset`.

    By default a period begins with its base: offset = period - width. Poisson spacing, or `even`.
    """
    _check(width=width, period=period, duration=duration)
    if not 0 < width < period or base < 0 or peak < 0:
        raise ValueError(f"width = {width}: must be above 0 and below the period of {period} s")
    begin = period - width if offset is None else offset
    starts = begin % period - period + period * np.arange(int(duration / period) + 3)
    edges = np.stack([starts, starts + width], axis=1).ravel()
    rates = np.tile([peak, base], len(starts))[:-1]
    keep = np.clip(edges, 0.0, duration)
    return stepped(rng, keep, rates.tolist(), even=even)


def flash_crowd(
    rng: Generator,
    base: float,
    peak: float,
    *,
    start: float,
    ramp: float,
    hold: float,
    decay: float,
    duration: float,
) -> Times:
    """Rate that climbs from base to peak within `ramp`, holds, and decays by 1/e per `decay` s."""

    def rate(t: Times) -> Times:
        since = t - start
        climb = np.clip(since / ramp, 0.0, 1.0) if ramp > 0 else (since >= 0).astype(float)
        fall = np.exp(-np.maximum(since - ramp - hold, 0.0) / decay)
        return base + (peak - base) * climb * fall

    return varying(rng, rate, duration, step=min(1.0, max(ramp, 0.01) / 10, decay / 10))


def cron_spike(
    rng: Generator,
    base: float,
    spike: float,
    *,
    every: float,
    duration: float,
    offset: float = 0.0,
    spread: float = 1.0,
) -> Times:
    """Poisson base, and a Poisson number of requests (mean `spike`) at every `every` seconds.

    They come within `spread` seconds after it, exponentially thinning out.
    """
    _check(every=every, duration=duration)
    ticks = np.arange(offset, duration, every)
    at = np.repeat(ticks, rng.poisson(spike, len(ticks)))
    at = at + (rng.exponential(spread, len(at)) if spread > 0 else 0.0)
    quiet = poisson(rng, base, duration) if base > 0 else np.empty(0)
    return np.sort(np.concatenate([quiet, at[at < duration]]))


def diurnal(
    rng: Generator,
    mean: float,
    swing: float,
    duration: float,
    *,
    period: float = 86400.0,
    busiest: float = 14 * 3600.0,
) -> Times:
    """Rate mean x (1 + swing cos), highest `busiest` seconds into each period; swing <= 1."""
    if not 0 <= swing <= 1:
        raise ValueError(f"swing = {swing}: must be between 0 and 1")

    def rate(t: Times) -> Times:
        return mean * (1 + swing * np.cos(2 * pi * (t - busiest) / period))

    return varying(rng, rate, duration, step=period / 1000)


def varying(
    rng: Generator, rate: Callable[[Times], Times], duration: float, *, step: float
) -> Times:
    """Poisson arrivals of any rate(t), taken as constant over steps of `step` seconds."""
    _check(duration=duration, step=step)
    edges = np.linspace(0.0, duration, max(int(np.ceil(duration / step)), 1) + 1)
    return stepped(rng, edges, rate((edges[1:] + edges[:-1]) / 2).tolist())


def window_arrivals(
    rng: Generator, start: float, length: float, rate: float, *, pattern: str, shape: float
) -> Times:
    """One client's arrivals in one window of a per-client table (ServeGen): renewal gaps.

    `pattern` is "gamma", "weibull" or "poisson" in any case; times are from `start` on.
    """
    kind = pattern.strip().lower()
    if kind == "gamma":
        return start + gamma_renewal(rng, rate, length, shape=shape)
    if kind == "weibull":
        return start + weibull_renewal(rng, rate, length, shape=shape)
    if kind in {"poisson", "exponential", ""}:
        return start + poisson(rng, rate, length)
    raise ValueError(f"pattern {pattern!r}: must be gamma, weibull or poisson")


def superposed(
    rng: Generator, times: Times, factor: float, *, jitter: float, duration: float | None = None
) -> tuple[Times, NDArray[np.intp]]:
    """Scale a stream's rate by `factor`: jittered copies laid over each other.

    The rate's shape stays at scales above `jitter` seconds. Returns the times and for each the row
    it was copied from. A copy that would leave [0, duration) wraps around.
    """
    _check(factor=factor)
    whole = int(factor)
    picked = [np.arange(len(times))] * whole
    picked.append(np.flatnonzero(rng.random(len(times)) < factor - whole))
    rows = np.concatenate(picked)
    length = duration if duration is not None else float(times[-1]) if len(times) else 0.0
    moved = times[rows] + rng.uniform(-jitter, jitter, len(rows))
    if len(times) and whole:
        moved[: len(times)] = times  # the first copy is the stream itself
    if length > 0:
        moved = np.where((moved < 0) | (moved > length), np.mod(moved, length), moved)
    order = np.argsort(moved, kind="stable")
    return moved[order], rows[order]


def _renewal(rng: Generator, gaps: Gaps, first: float, rate: float, duration: float) -> Times:
    """Cumulate gaps of mean 1 / rate; `first` is the length of the gap that covers time 0."""
    horizon = rate * duration
    parts = [np.array([first * rng.random()])]
    reached = float(parts[0][0])
    while reached < horizon:
        more = reached + np.cumsum(gaps(int((horizon - reached) * _SPARE) + 16))
        parts.append(more)
        reached = float(more[-1])
    times = np.concatenate(parts) / rate
    return times[times < duration]


def _unit_regular(rng: Generator, length: float) -> Times:
    return np.arange(rng.random(), length, 1.0)


def _mapped(unit: Times, scale: float, duration: float) -> Times:
    times = unit * scale
    return times[times < duration]


def _one_of(shape: float | None, cv: float | None, convert: Callable[[float], float]) -> float:
    if (shape is None) == (cv is None):
        raise ValueError("give either the shape of the gaps or their cv")
    if shape is not None:
        return shape
    assert cv is not None  # noqa: S101 - the case above
    _check(cv=cv)
    return convert(cv)


def _check(**positive: float) -> None:
    for name, value in positive.items():
        if not (value > 0 and np.isfinite(log(value))):
            raise ValueError(f"{name} = {value}: must be above 0")
