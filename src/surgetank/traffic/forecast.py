"""Forecasters of a rate behind the one protocol: from the last value to a season.

Each is fed the mean rate of every step, in order, and asked for that of the step which ends
`horizon` seconds later. Rates may be requests/s or tokens/s, of a tenant or of all.

Rule: a forecaster that does not know says None; it never answers with less than 0 or with what is
no number. A gap in the readings is no rate of 0: what was there before is kept, and the steps
between are unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Final

import numpy as np

from surgetank.policy.forecaster import Forecaster, LastValue

HOUR: Final = 3600.0
DAY: Final = 86400.0
WEEK: Final = 7 * DAY

_SMOOTHED: Final = 1  # steps on either side of a season's value that are averaged with it
_LAGS: Final = 6  # steps that the autoregression looks at
_SLOW: Final = 30  # steps of its slow mean
_FORGETTING: Final = 0.999  # of the recursive least squares: a memory of 1,000 steps
_RIDGE: Final = 100.0  # its initial covariance: large is uncertain
_BEYOND: Final = 3.0  # times the largest seen lately: no forecast goes further
_LATELY: Final = 720  # steps


class MovingMean:
    """The mean of the last `seconds`: what a burst's first second should not change."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def observe(self, rate: float, now: float) -> None:
        self._seen.append((now, rate))
        self._sum += rate
        while self._seen[0][0] <= now - self._seconds:
            self._sum -= self._seen.popleft()[1]

    def predict(self, horizon: float, now: float) -> float | None:  # noqa: ARG002 - the protocol's
        return max(0.0, self._sum / len(self._seen)) if self._seen else None


class Seasonal:
    """The value one period before, with a neighbour on either side (hour, day, week, or found)."""

    def __init__(self, period: float, step: float) -> None:
        self._period = period
        self._step = step
        self._known: dict[int, float] = {}
        self._kept = round(period / step) + 2 * _SMOOTHED + 1

    def observe(self, rate: float, now: float) -> None:
        index = round(now / self._step)
        self._known[index] = rate
        self._known.pop(index - 2 * self._kept, None)
        if len(self._known) > 4 * self._kept:  # gaps left some behind
            oldest = index - 2 * self._kept
            self._known = {i: r for i, r in self._known.items() if i > oldest}

    def predict(self, horizon: float, now: float) -> float | None:
        at = round((now + horizon - self._period) / self._step)
        around = range(at - _SMOOTHED, at + _SMOOTHED + 1)
        values = [self._known[i] for i in around if i in self._known]
        return sum(values) / len(values) if values else None


class Autoregressive:
    """The rate `horizon` ahead as a linear function of the last steps, learnt as it goes.

    Recursive least squares with forgetting (Haykin, Adaptive Filter Theory, chapter 10), one direct
    model for the one horizon. Features: 1, the last six steps, and their slow mean, all divided by
    that mean, so that a change of scale has not to be learnt anew.
    """

    def __init__(self, horizon: float, step: float) -> None:
        self._ahead = max(1, round(horizon / step))
        self._step = step
        self._lags: deque[float] = deque(maxlen=_LAGS)
        self._slow = 0.0
        self._waiting: deque[tuple[int, np.ndarray, float]] = deque()  # step, features, scale
        size = _LAGS + 2
        self._weights = np.zeros(size)
        self._weights[1] = 1.0  # the last value, until something better is learnt
        self._covariance = np.eye(size) * _RIDGE
        self._recent: deque[float] = deque(maxlen=_LATELY)
        self._most = 0.0
        self._last: int | None = None

    def observe(self, rate: float, now: float) -> None:
        index = round(now / self._step)
        if self._last is not None and index > self._last + 1:
            self._lags.clear()  # a gap: what was before it says nothing of what follows
            self._waiting.clear()
        self._last = index
        while self._waiting and self._waiting[0][0] + self._ahead <= index:
            made, features, scale = self._waiting.popleft()
            if made + self._ahead == index:
                self._learn(features, rate / scale)
        self._slow = rate if not self._recent else self._slow + (rate - self._slow) / _SLOW
        if len(self._recent) == _LATELY and self._recent[0] >= self._most:
            self._most = max([*list(self._recent)[1:], rate])
        self._recent.append(rate)
        self._most = max(self._most, rate)
        self._lags.appendleft(rate)
        if len(self._lags) == _LAGS:
            scale = max(self._slow, 1e-9)
            self._waiting.append((index, self._features(scale), scale))

    def _features(self, scale: float) -> np.ndarray:
        return np.array([1.0, *(lag / scale for lag in self._lags), self._slow / scale])

    def _learn(self, x: np.ndarray, wanted: float) -> None:
        covariance = self._covariance
        projected = covariance @ x
        gain = projected / (_FORGETTING + float(x @ projected))
        self._weights += gain * (wanted - float(self._weights @ x))
        covariance = (covariance - np.outer(gain, projected)) / _FORGETTING
        # No wind-up: without news in some direction its uncertainty would grow for ever.
        trace = float(np.trace(covariance))
        most = _RIDGE * len(x)
        self._covariance = covariance * (most / trace) if trace > most else covariance

    def predict(self, horizon: float, now: float) -> float | None:  # noqa: ARG002 - one horizon
        if not self._waiting or self._last is None:
            return None
        _, features, scale = self._waiting[-1]
        value = float(self._weights @ features) * scale
        if not isfinite(value):
            return None
        return min(max(0.0, value), _BEYOND * self._most)


class HoltWinters:
    """Level, damped trend and (with a period) an additive season.

    Exponential smoothing as in Hyndman and Athanasopoulos, Forecasting: Principles and Practice,
    section 8.3, with fixed weights: they are tuned to no log.
    """

    LEVEL: Final = 0.2
    TREND: Final = 0.02
    SEASON: Final = 0.15
    DAMPING: Final = 0.95

    def __init__(self, step: float, period: float | None = None) -> None:
        self._step = step
        self._cycle = 0 if period is None else max(2, round(period / step))
        self._season = [0.0] * self._cycle
        self._opening: dict[int, float] = {}  # the first cycle, until it is whole
        self._level: float | None = None
        self._trend = 0.0
        self._most = 0.0
        self._last = 0

    def observe(self, rate: float, now: float) -> None:
        index = round(now / self._step)
        self._last = index
        self._most = max(rate, self._most * 0.9999)
        if self._level is None:
            self._open(rate, index)
            return
        season = self._season[index % self._cycle] if self._cycle else 0.0
        before = self._level + self.DAMPING * self._trend
        level = self.LEVEL * (rate - season) + (1 - self.LEVEL) * before
        self._trend = (
            self.TREND * (level - self._level) + (1 - self.TREND) * self.DAMPING * self._trend
        )
        self._level = level
        if self._cycle:
            self._season[index % self._cycle] += self.SEASON * (rate - level - season)

    def _open(self, rate: float, index: int) -> None:
        """Take the first value as the level; with a season, the first cycle's mean."""
        if not self._cycle:
            self._level = rate
            return
        self._opening[index % self._cycle] = rate
        if len(self._opening) == self._cycle:
            self._level = sum(self._opening.values()) / self._cycle
            self._season = [self._opening[i] - self._level for i in range(self._cycle)]
            self._opening = {}

    def predict(self, horizon: float, now: float) -> float | None:  # noqa: ARG002 - from the last
        if self._level is None:
            return None
        ahead = max(1, round(horizon / self._step))
        phi = self.DAMPING
        drift = self._trend * phi * (1 - phi**ahead) / (1 - phi)
        season = self._season[(self._last + ahead) % self._cycle] if self._cycle else 0.0
        return min(max(0.0, self._level + drift + season), _BEYOND * self._most)


@dataclass(frozen=True, slots=True)
class Named:
    """A kind of forecaster: its name, what it does, and how one is made for a horizon and step."""

    name: str
    about: str
    make: Callable[[float, float], Forecaster]


def named(span: float, rhythms: Iterable[float] = ()) -> tuple[Named, ...]:
    """Give the forecasters that a log of `span` seconds can feed; `rhythms`: periods found in it.

    A season is offered when the log holds two of it: one to learn, one to be judged.
    """
    found = [
        Named("last value", "what was there last", lambda _h, _s: LastValue()),
        Named("mean", "the mean of the last ten horizons", lambda h, _s: MovingMean(10 * h)),
        Named("autoregression", "recursive least squares", Autoregressive),
        Named("Holt-Winters", "level and damped trend", lambda _h, s: HoltWinters(s)),
    ]
    seasons = {"hour": HOUR, "day": DAY, "week": WEEK}
    periods = {name: p for name, p in seasons.items() if span >= 2 * p}
    for rhythm in rhythms:
        if span >= 3 * rhythm and all(abs(rhythm - p) > 0.02 * p for p in periods.values()):
            periods[f"{rhythm:.3g} s"] = rhythm
    for name, period in periods.items():
        found += [
            Named(f"season: {name}", f"the {name} before", _seasonal(period)),
            Named(f"Holt-Winters: {name}", f"with a season of a {name}", _winters(period)),
        ]
    return tuple(found)


def _seasonal(period: float) -> Callable[[float, float], Forecaster]:
    return lambda _horizon, step: Seasonal(period, step)


def _winters(period: float) -> Callable[[float, float], Forecaster]:
    return lambda _horizon, step: HoltWinters(step, period)
