"""What may come after a log: no more where its minutes are independent, more where it is slow."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from surgetank.simulation.workload import Workload
from surgetank.studies.planning.growth import Growth, growth, independent, prediction_limit
from surgetank.studies.planning.traffic import one_pool
from surgetank.traffic.trace import Batch, Trace

MINUTES = 24


def load_of(per_minute: NDArray[np.float64]) -> Workload:
    """So many requests a minute, evenly apart."""
    counts = np.round(per_minute).astype(int)
    parts = [60.0 * i + 60.0 * np.arange(n) / n for i, n in enumerate(counts.tolist()) if n]
    times = np.append(np.concatenate(parts), 60.0 * len(counts))
    tokens = np.full(len(times), 10)
    batch = Batch(times, prompt_tokens=tokens, output_tokens=tokens)
    return one_pool(Trace.of([batch]), "m")[0]


def found(per_minute: NDArray[np.float64]) -> Growth:
    load = load_of(per_minute)
    return growth(load, np.ones(len(load)))


def test_values_without_memory_are_all_independent() -> None:
    worth = [independent(np.random.default_rng(seed).normal(size=200)) for seed in range(20)]
    assert np.median(worth) > 120


def test_correlated_values_are_worth_what_the_theory_says() -> None:
    """An autoregression of 0.8: (1 + 0.8) / (1 - 0.8) values are worth one."""
    rng = np.random.default_rng(2)
    noise = rng.normal(size=20_000)
    series = np.zeros_like(noise)
    for i in range(1, len(noise)):
        series[i] = 0.8 * series[i - 1] + noise[i]
    assert independent(series) == pytest.approx(len(series) / 9, rel=0.15)


def test_the_limit_is_that_of_the_textbook_for_independent_values() -> None:
    series = np.array([3.0, 5.0, 4.0, 6.0, 2.0])
    expected = 4.0 + 2.132 * sqrt(2.5) * sqrt(1 + 1 / 5)  # t of 4 degrees: 2.132
    assert prediction_limit(series, 5.0) == pytest.approx(expected, rel=1e-3)


def test_it_covers_the_next_value_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    draws = rng.normal(10.0, 2.0, size=(4000, 9))
    below = [row[8] <= prediction_limit(row[:8], 8.0) for row in draws]
    assert np.mean(below) == pytest.approx(0.95, abs=0.012)


def test_a_steady_log_does_not_grow() -> None:
    assert found(np.full(MINUTES, 60.0)).factor == 1.0


def test_a_log_of_one_slow_wave_may_rise_above_its_peak() -> None:
    wave = 100.0 + 40.0 * np.sin(2 * np.pi * np.arange(MINUTES) / MINUTES)
    seen = found(wave)
    assert seen.independent is not None
    assert seen.independent < 6
    assert seen.factor == seen.ahead > 1.1


def test_many_waves_show_their_peak() -> None:
    wave = 100.0 + 40.0 * np.sin(2 * np.pi * np.arange(110) / 5)
    assert found(wave).factor == 1.0


def test_growth_within_the_log_is_planned_for_again() -> None:
    steps = np.where(np.arange(MINUTES) < MINUTES / 2, 40.0, 60.0)
    assert found(steps).seen == pytest.approx(1.5)
    assert found(steps).factor >= 1.5


def test_what_may_be_more_than_twice_the_peak_is_not_promised() -> None:
    steps = np.where(np.arange(MINUTES) < MINUTES / 2, 10.0, 60.0)
    seen = found(steps)
    assert seen.factor == 2.0
    assert seen.unbounded


def test_a_few_minutes_say_nothing() -> None:
    seen = found(np.array([10.0, 90.0, 10.0]))
    assert seen.factor == 1.0
    assert seen.independent is None
