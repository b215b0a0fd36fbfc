"""How well a log could have been forecast: everything up to a moment, then the next horizon.

Rule: chronological. A forecaster sees the steps in their order and is asked before each; the first
half of the log teaches, the second is judged. Nothing is fitted to the half that is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.policy.forecaster import Forecaster
from surgetank.traffic.forecast import Named
from surgetank.traffic.intervals import Best, Conformal, Interval, pinball

Rates = NDArray[np.float64]

BEST: Final = "surgetank"
"""The mix that Surgetank itself would use."""

SUM: Final = "sum of tenants"
"""The tenants' own forecasts, added up."""

_LEAST_STEPS: Final = 60


@dataclass(frozen=True, slots=True)
class Judged:
    """One forecaster on one series, over the second half. Rates in the series' unit."""

    forecaster: str
    forecasts: int  # that it gave there
    missed: int  # steps for which it gave none
    mae: float | None  # mean absolute error of the point
    pinball: float | None  # mean loss of the upper quantile
    coverage: float | None  # share of the steps at or below it


@dataclass(frozen=True, slots=True)
class Backtest:
    """All forecasters on one series. `kept`: upper bounds of the best, for a chart (NaN: none)."""

    series: str
    step: float
    horizon: float
    level: float
    mean: float
    judged: tuple[Judged, ...]
    preferred: str | None  # by the mix, at the end
    rates: Rates
    point: Rates  # of the mix, at the step that it is for
    upper: Rates
    next: Interval | None  # from the end of the log on

    @property
    def best_single(self) -> Judged | None:
        """Of the single forecasters, the one with the least loss among those that always knew."""
        fit = [j for j in self.judged if j.forecaster not in {BEST, SUM} and j.pinball is not None]
        whole = max((j.forecasts for j in fit), default=0)
        fit = [j for j in fit if j.forecasts >= 0.9 * whole]
        return min(fit, key=lambda j: j.pinball or 0.0, default=None)

    @property
    def mix(self) -> Judged:
        """The mix."""
        return next(j for j in self.judged if j.forecaster == BEST)


def backtest(
    name: str,
    rates: Rates,
    kinds: Sequence[Named],
    *,
    step: float,
    horizon: float,
    level: float = 0.95,
    first: int = 0,
    progress: Callable[[int], None] = lambda _steps: None,
) -> Backtest:
    """Run every kind over a series of mean rates per step (NaN: not known), and judge the half.

    `first`: index of the first step on the clock, so that a season falls on its place. Raises
    InputError for a series too short to say anything.
    """
    ahead = max(1, round(horizon / step))
    if len(rates) < max(_LEAST_STEPS, 4 * ahead):
        raise InputError(
            f"{name}: {len(rates)} steps of {step:g} s: a horizon of {horizon:g} s needs at least "
            f"{max(_LEAST_STEPS, 4 * ahead)}: give a shorter --horizon or --step"
        )
    makers = {kind.name: kind.make for kind in kinds}
    singles = {
        n: Conformal(make(horizon, step), level=level, horizon=horizon, step=step)
        for n, make in makers.items()
    }
    inner: dict[str, Forecaster] = {n: make(horizon, step) for n, make in makers.items()}
    mix = Best(inner, level=level, horizon=horizon, step=step)
    everyone: dict[str, Conformal | Best] = {**singles, BEST: mix}
    size = len(rates) + ahead
    points = {n: np.full(size, np.nan) for n in everyone}
    uppers = {n: np.full(size, np.nan) for n in everyone}
    latest: Interval | None = None
    for i, rate in enumerate(rates.tolist()):
        now = (first + i) * step
        for n, forecaster in everyone.items():
            if not isnan(rate):
                forecaster.observe(rate, now)
            told = forecaster.predict(now)
            if told is not None:
                points[n][i + ahead], uppers[n][i + ahead] = told.point, told.upper
            if n == BEST:
                latest = told
        if not i % 1000:
            progress(i)
    half = len(rates) // 2
    judged = tuple(
        _judge(n, rates[half:], points[n][half : len(rates)], uppers[n][half : len(rates)], level)
        for n in everyone
    )
    return Backtest(
        series=name,
        step=step,
        horizon=horizon,
        level=level,
        mean=float(np.nanmean(rates)),
        judged=judged,
        preferred=mix.preferred(),
        rates=rates,
        point=points[BEST][: len(rates)],
        upper=uppers[BEST][: len(rates)],
        next=latest,
    )


def _judge(name: str, rates: Rates, point: Rates, upper: Rates, level: float) -> Judged:
    known = ~np.isnan(rates)
    told = known & ~np.isnan(upper)
    count = int(told.sum())
    if not count:
        return Judged(name, 0, int(known.sum()), None, None, None)
    losses = [
        pinball(r, u, level)
        for r, u in zip(rates[told].tolist(), upper[told].tolist(), strict=True)
    ]
    return Judged(
        forecaster=name,
        forecasts=count,
        missed=int(known.sum()) - count,
        mae=float(np.abs(rates[told] - point[told]).mean()),
        pinball=float(np.mean(losses)),
        coverage=float((rates[told] <= upper[told]).mean()),
    )


def with_sum(whole: Backtest, parts: Sequence[Backtest]) -> Backtest:
    """Judge the sum of the tenants' mixes on the series of all, made conformal as any other."""
    step, level, ahead = whole.step, whole.level, max(1, round(whole.horizon / whole.step))
    summed = np.sum([part.point for part in parts], axis=0)
    given = _Told(summed, ahead)
    forecaster = Conformal(given, level=level, horizon=whole.horizon, step=step)
    size = len(whole.rates)
    upper = np.full(size + ahead, np.nan)
    for i, rate in enumerate(whole.rates.tolist()):
        given.at = i
        forecaster.observe(rate, i * step)
        told = forecaster.predict(i * step)
        if told is not None:
            upper[i + ahead] = told.upper
    half = size // 2
    judged = _judge(SUM, whole.rates[half:], summed[half:], upper[half:size], level)
    return replace(whole, judged=(*whole.judged, judged))


class _Told:
    """Forecasts made before, each for the step `ahead` of the one that is asked at."""

    def __init__(self, points: Rates, ahead: int) -> None:
        self._points = points
        self._ahead = ahead
        self.at = 0

    def observe(self, rate: float, now: float) -> None:
        pass

    def predict(self, horizon: float, now: float) -> float | None:  # noqa: ARG002 - the protocol's
        at = self.at + self._ahead
        value = float(self._points[at]) if at < len(self._points) else float("nan")
        return None if isnan(value) else value
