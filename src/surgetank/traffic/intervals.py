"""Quantiles of a forecast that are kept, whatever the forecaster: online conformal prediction.

A forecast's errors of the recent past, each divided by the size of what was forecast, are a sample
of its error now. The wanted quantile of that sample is added; and the level at which it is read is
moved a little with every hit and miss (adaptive conformal inference, Gibbs and Candes, NeurIPS
2021), so that the coverage holds when the errors change their law.

Rule: the level moves within bounds and not while nothing is measured, so that an outage of the
metrics winds nothing up; a bound is finite, and never below 0.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import floor, isfinite
from typing import Final

from surgetank.policy.forecaster import Forecaster

_REMEMBERED: Final = 720  # errors
_LEAST: Final = 20  # errors, before a quantile is told
_STEP: Final = 0.002  # of the level, per hit or miss; 0.005 without bounds is known to wind up
_BOUND: Final = 3.0  # the level's distance from 1 stays within 1/3 and 3 times what was asked
_MEMORY: Final = 100.0  # steps of the mean that sizes are measured against
_LOSS_MEMORY: Final = 120.0  # steps over which forecasters are compared
_SHARPNESS: Final = 20  # how clearly the better one is preferred


@dataclass(frozen=True, slots=True)
class Interval:
    """A forecast: the point, and the rate that is not exceeded with the asked probability."""

    point: float
    upper: float


class Conformal:
    """A forecaster with a quantile. `step`: seconds between readings; `horizon`: always the same.

    `observe` and `predict` in turn, once a step.
    """

    def __init__(self, inner: Forecaster, *, level: float, horizon: float, step: float) -> None:
        if not 0 < level < 1:
            raise ValueError(f"level = {level}: must be between 0 and 1")
        self._inner = inner
        self._miss = 1 - level
        self._now_miss = 1 - level
        self._horizon = horizon
        self._step = step
        self._ahead = max(1, round(horizon / step))
        self._pending: deque[tuple[int, float, float, float | None]] = deque()
        self._errors: deque[float] = deque()
        self._sorted: list[float] = []
        self._mean = 0.0
        self._seen = 0

    def observe(self, rate: float, now: float) -> None:
        """Take the rate of the step that ends now."""
        index = round(now / self._step)
        while self._pending and self._pending[0][0] <= index:
            due, point, size, upper = self._pending.popleft()
            if due == index:
                self._settle(rate, point, size, upper)
        self._seen += 1
        self._mean += (rate - self._mean) / min(self._seen, _MEMORY)
        self._inner.observe(rate, now)

    def _settle(self, rate: float, point: float, size: float, upper: float | None) -> None:
        error = (rate - point) / size
        if upper is not None:
            target = self._miss - (1.0 if rate > upper else 0.0)
            low, high = self._miss / _BOUND, min(self._miss * _BOUND, 0.5)
            self._now_miss = min(max(self._now_miss + _STEP * target, low), high)
        self._errors.append(error)
        insort(self._sorted, error)
        if len(self._errors) > _REMEMBERED:
            old = self._errors.popleft()
            del self._sorted[bisect_left(self._sorted, old)]

    def predict(self, now: float) -> Interval | None:
        """Forecast the step that ends `horizon` later; None: nothing is known yet."""
        point = self._inner.predict(self._horizon, now)
        if point is None or not isfinite(point):
            return None
        size = point + self._mean + 1e-9
        index = round(now / self._step)
        upper: float | None = None
        if len(self._sorted) >= _LEAST:
            upper = max(0.0, point + size * self._quantile())
        self._pending.append((index + self._ahead, point, size, upper))
        return None if upper is None else Interval(point, upper)

    def _quantile(self) -> float:
        """The errors' quantile at the level of now (the next larger of the sample)."""
        at = floor((1 - self._now_miss) * (len(self._sorted) + 1))
        return self._sorted[min(at, len(self._sorted) - 1)]


def pinball(rate: float, upper: float, level: float) -> float:
    """Loss of a quantile forecast: level x shortfall, (1 - level) x excess (Koenker, Bassett)."""
    gap = rate - upper
    return level * gap if gap >= 0 else (level - 1) * gap


class Best:
    """The quantiles of several forecasters, weighted by how they did lately, and kept true again.

    Each is made conformal by itself; weights are (least loss / loss)^20 of the discounted pinball
    losses. The loss is convex, so the mix loses no more than its parts do on average.
    """

    def __init__(
        self, inner: dict[str, Forecaster], *, level: float, horizon: float, step: float
    ) -> None:
        self._level = level
        self._step = step
        self._ahead = max(1, round(horizon / step))
        self._inner = {
            name: Conformal(f, level=level, horizon=horizon, step=step) for name, f in inner.items()
        }
        self._losses = dict.fromkeys(inner, 0.0)
        self._weights_seen = dict.fromkeys(inner, 0.0)
        self._pending: deque[tuple[int, dict[str, float]]] = deque()

    def observe(self, rate: float, now: float) -> None:
        """Take the rate of the step that ends now."""
        index = round(now / self._step)
        while self._pending and self._pending[0][0] <= index:
            due, uppers = self._pending.popleft()
            if due == index:
                self._judge(rate, uppers)
        for forecaster in self._inner.values():
            forecaster.observe(rate, now)

    def _judge(self, rate: float, uppers: dict[str, float]) -> None:
        keep = 1 - 1 / _LOSS_MEMORY
        for name, upper in uppers.items():
            self._losses[name] = keep * self._losses[name] + pinball(rate, upper, self._level)
            self._weights_seen[name] = keep * self._weights_seen[name] + 1.0

    def predict(self, now: float) -> Interval | None:
        """Forecast; None while no forecaster knows anything."""
        told = {name: f.predict(now) for name, f in self._inner.items()}
        known = {name: i for name, i in told.items() if i is not None}
        if not known:
            return None
        index = round(now / self._step)
        self._pending.append((index + self._ahead, {n: i.upper for n, i in known.items()}))
        weights = self._weights(known)
        return Interval(
            sum(weights[n] * i.point for n, i in known.items()),
            sum(weights[n] * i.upper for n, i in known.items()),
        )

    def _weights(self, known: dict[str, Interval]) -> dict[str, float]:
        mean = {
            n: self._losses[n] / self._weights_seen[n] if self._weights_seen[n] else None
            for n in known
        }
        seen = [loss for loss in mean.values() if loss is not None]
        if not seen:
            return {n: 1 / len(known) for n in known}
        least = max(min(seen), 1e-12)
        raw = {
            n: 0.0 if loss is None else (least / max(loss, least)) ** _SHARPNESS
            for n, loss in mean.items()
        }
        total = sum(raw.values())
        return {n: w / total for n, w in raw.items()}

    def preferred(self) -> str | None:
        """Who did best lately; None before anybody was judged."""
        mean = {n: self._losses[n] / seen for n, seen in self._weights_seen.items() if seen > 0}
        return min(mean, key=lambda n: mean[n]) if mean else None
