"""Forecasters, their quantiles, and the back-test that judges them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.errors import InputError
from surgetank.policy.forecaster import Forecaster, LastValue
from surgetank.traffic import arrivals
from surgetank.traffic.backtest import BEST, SUM, Backtest, backtest, with_sum
from surgetank.traffic.forecast import (
    Autoregressive,
    HoltWinters,
    MovingMean,
    Named,
    Seasonal,
    named,
)
from surgetank.traffic.intervals import Best, Conformal, pinball
from surgetank.traffic.rates import OTHERS, rates
from surgetank.traffic.trace import Batch, Labels

STEP = 1.0
HORIZON = 10.0

MAKERS: list[Callable[[], Forecaster]] = [
    LastValue,
    lambda: MovingMean(100.0),
    lambda: Seasonal(60.0, STEP),
    lambda: Autoregressive(HORIZON, STEP),
    lambda: HoltWinters(STEP),
    lambda: HoltWinters(STEP, 60.0),
]


def feed(forecaster: Forecaster, values: list[float], first: int = 0) -> float | None:
    for i, value in enumerate(values, first):
        forecaster.observe(value, i * STEP)
    return forecaster.predict(HORIZON, (first + len(values) - 1) * STEP)


def poisson_rates(
    rate: float, seconds: int, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times = arrivals.poisson(np.random.default_rng(seed), rate, float(seconds))
    return np.bincount(times.astype(np.int64), minlength=seconds)[:seconds].astype(np.float64)


@pytest.mark.parametrize("make", MAKERS)
def test_a_constant_rate_is_foretold_by_everybody(make: Callable[[], Forecaster]) -> None:
    assert feed(make(), [7.0] * 300) == pytest.approx(7.0, rel=1e-6)


@pytest.mark.parametrize("make", MAKERS)
@given(
    values=st.lists(st.floats(0, 1e6), min_size=1, max_size=120),
    gap=st.integers(0, 500),
)
@settings(max_examples=25, deadline=None)
def test_whatever_comes_a_forecast_is_a_finite_rate_or_unknown(
    make: Callable[[], Forecaster], values: list[float], gap: int
) -> None:
    forecaster = make()
    for told in (feed(forecaster, values), feed(forecaster, values, len(values) + gap)):
        assert told is None or (math.isfinite(told) and told >= 0)


@pytest.mark.parametrize("make", MAKERS)
def test_nobody_knows_anything_at_first(make: Callable[[], Forecaster]) -> None:
    assert make().predict(HORIZON, 0.0) is None


def test_a_season_repeats_what_was_there_one_period_before() -> None:
    values = [10.0 if i % 60 in {20, 21, 22} else 1.0 for i in range(200)]
    assert feed(Seasonal(60.0, STEP), values[:192]) == pytest.approx(10.0)  # 191 + 10 = 180 + 21
    assert feed(Seasonal(60.0, STEP), values[:45]) is None


def test_holt_winters_follows_a_trend_and_a_season() -> None:
    rising = [0.1 * i for i in range(600)]
    told = feed(HoltWinters(STEP), rising)
    assert told is not None
    assert 58.0 < told < 61.0
    wave = [10 + 5 * math.sin(2 * math.pi * i / 60) for i in range(1200)]
    told = feed(HoltWinters(STEP, 60.0), wave)
    assert told == pytest.approx(10 + 5 * math.sin(2 * math.pi * (1199 + 10) / 60), abs=0.5)


def test_an_autoregression_learns_what_a_last_value_cannot() -> None:
    wave = [10 + 5 * math.sin(2 * math.pi * i / 40) for i in range(2000)]
    told = feed(Autoregressive(HORIZON, STEP), wave)
    assert told == pytest.approx(10 + 5 * math.sin(2 * math.pi * (1999 + 10) / 40), abs=0.2)


def coverage(
    make: Callable[[], Forecaster], values: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    found = backtest(
        "x",
        values,
        [Named("one", "", lambda _h, _s: make())],
        step=STEP,
        horizon=HORIZON,
    )
    one = found.judged[0].coverage
    assert one is not None
    return one


@pytest.mark.parametrize("make", [LastValue, lambda: MovingMean(100.0), lambda: HoltWinters(STEP)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_quantile_is_kept_for_a_poisson_stream(make: Callable[[], Forecaster], seed: int) -> None:
    assert coverage(make, poisson_rates(20.0, 4000, seed)) == pytest.approx(0.95, abs=0.02)


def test_a_quantile_is_kept_when_the_errors_change_their_law() -> None:
    rng = np.random.default_rng(3)
    calm = poisson_rates(20.0, 3000, 4)
    wild = calm * rng.lognormal(0.0, 0.6, len(calm))
    assert coverage(lambda: MovingMean(100.0), np.concatenate([calm, wild])) == pytest.approx(
        0.95, abs=0.03
    )


def test_an_outage_of_the_metrics_winds_nothing_up() -> None:
    def told(outage: int) -> float:
        forecaster = Conformal(MovingMean(60.0), level=0.95, horizon=HORIZON, step=STEP)
        values = poisson_rates(20.0, 2000, 5).tolist()
        for i, value in enumerate(values[:1000]):
            forecaster.observe(value, i * STEP)
            forecaster.predict(i * STEP)
        for i in range(1000, 1000 + outage):
            forecaster.predict(i * STEP)  # asked on, and told nothing
        for i, value in enumerate(values[1000:], 1000 + outage):
            forecaster.observe(value, i * STEP)
            interval = forecaster.predict(i * STEP)
        assert interval is not None
        return interval.upper

    assert told(5000) == pytest.approx(told(0), rel=0.1)


@given(
    values=st.lists(st.floats(0, 1e5), min_size=40, max_size=150),
    level=st.floats(0.5, 0.99),
    horizon=st.integers(1, 20),
)
@settings(max_examples=30, deadline=None)
def test_an_upper_bound_is_finite_and_not_below_zero(
    values: list[float], level: float, horizon: int
) -> None:
    mix = Best(
        {"last": LastValue(), "mean": MovingMean(30.0)},
        level=level,
        horizon=float(horizon),
        step=STEP,
    )
    for i, value in enumerate(values):
        mix.observe(value, i * STEP)
        told = mix.predict(i * STEP)
        assert told is None or (math.isfinite(told.upper) and told.upper >= 0)


def test_pinball_by_hand() -> None:
    assert pinball(10.0, 8.0, 0.95) == pytest.approx(1.9)
    assert pinball(8.0, 10.0, 0.95) == pytest.approx(0.1)


def shapes() -> list[Backtest]:
    """Streams of several shapes, each back-tested; regime changes and rhythms among them."""
    rng = np.random.default_rng(7)
    seconds = 3000.0
    streams = [
        arrivals.poisson(rng, 8.0, seconds),
        arrivals.pulse(rng, 4.0, 16.0, 30.0, 90.0, seconds),
        arrivals.mmpp2(rng, arrivals.Mmpp2Spec(4.0, 15.0, 60.0, 30.0), seconds),
        arrivals.diurnal(rng, 8.0, 0.8, seconds, period=1500.0, busiest=300.0),
        arrivals.gamma_renewal(rng, 8.0, seconds, cv=3.0),
    ]
    found = []
    for times in streams:
        counts = np.bincount((times // 2).astype(np.int64), minlength=1500)[:1500] / 2
        found.append(backtest("all", counts, named(seconds), step=2.0, horizon=20.0))
    return found


def test_the_mix_covers_and_loses_no_more_than_the_best_single_one_overall() -> None:
    found = shapes()
    told = sum(b.mix.forecasts for b in found)
    hits = sum((b.mix.coverage or 0.0) * b.mix.forecasts for b in found)
    assert 0.93 <= hits / told <= 0.97
    names = {j.forecaster for b in found for j in b.judged} - {BEST}

    def loss(name: str) -> float:
        return sum(
            next(j.pinball or 0.0 for j in b.judged if j.forecaster == name) / b.mean for b in found
        )

    assert loss(BEST) <= 1.05 * min(loss(name) for name in names)


def test_a_backtest_never_sees_what_it_foretells() -> None:
    values = poisson_rates(5.0, 800, 9)
    changed = values.copy()
    changed[600:] += 1000.0
    kinds = named(800.0)
    one = backtest("x", values, kinds, step=STEP, horizon=HORIZON)
    two = backtest("x", changed, kinds, step=STEP, horizon=HORIZON)
    assert np.array_equal(one.point[:610], two.point[:610], equal_nan=True)


def test_the_sum_of_tenants_is_judged_on_the_whole() -> None:
    parts = [poisson_rates(5.0, 1000, seed) for seed in (1, 2, 3)]
    kinds = named(1000.0)
    tenants = [backtest(f"t{i}", p, kinds, step=STEP, horizon=HORIZON) for i, p in enumerate(parts)]
    whole = backtest("all", np.sum(parts, axis=0), kinds, step=STEP, horizon=HORIZON)
    judged = with_sum(whole, tenants).judged[-1]
    assert judged.forecaster == SUM
    assert judged.coverage == pytest.approx(0.95, abs=0.03)


def test_a_season_is_offered_only_when_the_log_holds_two_of_it() -> None:
    assert not any("season" in k.name for k in named(3600.0))
    assert "season: hour" in {k.name for k in named(7200.0)}
    assert "season: 90 s" in {k.name for k in named(600.0, [90.0])}


def test_too_short_a_series_says_what_would_do() -> None:
    with pytest.raises(InputError, match="a horizon of 60 s needs at least 240: give a shorter"):
        backtest("x", np.ones(100), named(100.0), step=1.0, horizon=60.0)


def test_rates_are_of_whole_steps_and_tenants_add_up() -> None:
    names = ["a", "a", "b", "c", "a", "b"] * 50
    at = np.sort(np.random.default_rng(1).uniform(0.3, 30.2, 300))
    batch = Batch(at, tenant=Labels.of(names), prompt_tokens=np.full(300, 10))
    found = rates(batch, 2.0, "prompt-tokens", top=2)
    assert list(found.by_tenant) == ["a", "b", OTHERS]
    assert found.first == 1
    assert len(found.total) == 14
    assert np.sum(list(found.by_tenant.values()), axis=0) == pytest.approx(found.total)
    with pytest.raises(InputError, match="--of output-tokens: the log states no output tokens"):
        rates(batch, 2.0, "output-tokens")
