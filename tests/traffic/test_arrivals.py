"""Generators: what they make has the moments that their names and arguments state.

Bounds are three to four standard errors of the estimate at the given length and seed.
"""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from surgetank.traffic import arrivals


@pytest.fixture
def rng() -> Generator:
    return default_rng(20261130)


def idc(times: NDArray[np.float64], window: float, duration: float) -> float:
    counts = np.histogram(times, np.arange(0.0, duration + window / 2, window))[0]
    return float(counts.var(ddof=1) / counts.mean())


def gap_cv(times: NDArray[np.float64]) -> float:
    gaps = np.diff(times)
    return float(gaps.std(ddof=1) / gaps.mean())


def test_poisson_has_its_rate_an_idc_of_one_and_exponential_gaps(rng: Generator) -> None:
    times = arrivals.poisson(rng, 50, 2000)
    assert len(times) / 2000 == pytest.approx(50, abs=4 * sqrt(50 / 2000))
    assert idc(times, 1, 2000) == pytest.approx(1.0, abs=0.12)
    assert gap_cv(times) == pytest.approx(1.0, abs=0.02)
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0
    assert times[-1] < 2000


def test_the_same_seed_gives_the_same_arrivals() -> None:
    one = arrivals.pulse(default_rng(7), 5, 20, 10, 40, 200)
    two = arrivals.pulse(default_rng(7), 5, 20, 10, 40, 200)
    assert np.array_equal(one, two)


def test_regular_arrivals_keep_one_distance(rng: Generator) -> None:
    times = arrivals.regular(rng, 8, 100)
    assert np.diff(times) == pytest.approx(0.125)
    assert len(times) in {800, 801}


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 4.0])
def test_gamma_gaps_have_the_cv_asked_for_and_idc_tends_to_its_square(
    rng: Generator, cv: float
) -> None:
    times = arrivals.gamma_renewal(rng, 20, 20_000, cv=cv)
    assert len(times) / 20_000 == pytest.approx(20, rel=0.01 * max(cv, 1))
    assert gap_cv(times) == pytest.approx(cv, rel=0.03)
    # The slack term of a renewal stream's variance is below 5 % at 20 s here.
    assert idc(times, 20, 20_000) == pytest.approx(cv**2, rel=0.2)


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_weibull_gaps_have_the_cv_asked_for(rng: Generator, cv: float) -> None:
    times = arrivals.weibull_renewal(rng, 20, 10_000, cv=cv)
    assert len(times) / 10_000 == pytest.approx(20, rel=0.02)
    assert gap_cv(times) == pytest.approx(cv, rel=0.04)


def test_a_renewal_stream_begins_in_equilibrium_not_with_a_clump() -> None:
    """The expected number in the first second is the rate, whatever the shape."""
    first = [len(arrivals.gamma_renewal(default_rng(i), 2.0, 1.0, cv=3.0)) for i in range(4000)]
    assert np.mean(first) == pytest.approx(2.0, abs=0.25)


def test_a_weibull_shape_is_found_from_its_cv() -> None:
    assert arrivals.weibull_shape_of_cv(1.0) == pytest.approx(1.0)
    assert arrivals.weibull_shape_of_cv(sqrt(5.0)) == pytest.approx(0.5)  # Gamma(5)/Gamma(3)^2 - 1


def test_mmpp_by_dispersion_has_that_mean_and_that_limit() -> None:
    spec = arrivals.Mmpp2Spec.of_dispersion(20, 30, time_scale=5, high_share=0.3)
    assert spec.mean == pytest.approx(20)
    assert spec.idc(1e7) == pytest.approx(30, rel=1e-5)
    assert 1 / (1 / spec.low_stay + 1 / spec.high_stay) == pytest.approx(5)


def test_mmpp_arrivals_follow_the_closed_form_of_their_idc(rng: Generator) -> None:
    spec = arrivals.Mmpp2Spec.of_dispersion(20, 30, time_scale=5, high_share=0.3)
    times = arrivals.mmpp2(rng, spec, 100_000)
    assert len(times) / 100_000 == pytest.approx(20, rel=0.02)
    for window in (1, 10, 50):
        assert idc(times, window, 100_000) == pytest.approx(spec.idc(window), rel=0.1)


def test_an_impossible_dispersion_is_refused_with_the_possible_one() -> None:
    with pytest.raises(ValueError, match="at most 601 is possible"):
        arrivals.Mmpp2Spec.of_dispersion(20, 1000, time_scale=5, high_share=0.25)


@pytest.mark.parametrize("even", [False, True])
def test_a_pulse_has_its_two_rates_where_they_belong(rng: Generator, *, even: bool) -> None:
    times = arrivals.pulse(rng, 20, 80, 30, 90, 9000, even=even)
    phase = times % 90
    high = phase >= 60
    assert high.sum() / 3000 == pytest.approx(80, abs=0.1 if even else 0.7)
    assert (~high).sum() / 6000 == pytest.approx(20, abs=0.1 if even else 0.25)


def test_a_pulse_begins_where_it_is_told(rng: Generator) -> None:
    times = arrivals.pulse(rng, 0, 50, 10, 60, 600, offset=5)
    assert np.all((times % 60 >= 5) & (times % 60 < 15))
    wrapped = arrivals.pulse(rng, 0, 50, 10, 60, 600, offset=-5)
    assert np.all((wrapped % 60 < 5) | (wrapped % 60 >= 55))


def test_even_spacing_at_a_constant_rate_has_gaps_of_one_length(rng: Generator) -> None:
    times = arrivals.stepped(rng, [0, 10, 20], [5, 10], even=True)
    assert np.diff(times[times < 10]) == pytest.approx(0.2)
    assert np.diff(times[times >= 10]) == pytest.approx(0.1)


def test_a_flash_crowd_climbs_holds_and_decays(rng: Generator) -> None:
    times = arrivals.flash_crowd(rng, 10, 200, start=100, ramp=10, hold=30, decay=20, duration=400)
    rate = np.histogram(times, np.arange(0, 401, 10))[0] / 10
    assert rate[:10].mean() == pytest.approx(10, abs=1.3)
    assert rate[11:14].mean() == pytest.approx(200, abs=11)
    # 10 + 190 exp(-t / 20) over the ten seconds from 20 s after the hold
    expected = 10 + 190 * 20 * (exp(-1) - exp(-1.5)) / 10
    assert rate[16] == pytest.approx(expected, abs=4 * sqrt(expected / 10))
    assert rate[-5:].mean() == pytest.approx(10, abs=1.5)


def test_cron_spikes_stand_on_the_full_minute(rng: Generator) -> None:
    times = arrivals.cron_spike(rng, 1, 40, every=60, duration=6000, spread=1.0)
    in_spike = times % 60 < 5
    # All but exp(-5) of a spike lies in its first five seconds.
    assert in_spike.sum() / 100 == pytest.approx(40 * (1 - exp(-5)) + 5, abs=2.5)
    assert (~in_spike).sum() / 5500 == pytest.approx(1, abs=0.06)


def test_a_day_swings_around_its_mean(rng: Generator) -> None:
    times = arrivals.diurnal(rng, 2, 0.5, 2 * 86400, busiest=14 * 3600)
    assert len(times) / (2 * 86400) == pytest.approx(2, rel=0.01)
    hours = np.bincount((times % 86400 // 3600).astype(int), minlength=24) / 7200
    assert hours[13:15].mean() == pytest.approx(3, rel=0.03)
    assert hours[1:3].mean() == pytest.approx(1, rel=0.05)


def test_scaled_copies_have_the_rate_asked_for_and_name_their_row(rng: Generator) -> None:
    times = arrivals.pulse(rng, 5, 20, 30, 90, 900)
    scaled, rows = arrivals.superposed(rng, times, 2.5, jitter=1.0, duration=900)
    assert len(scaled) / len(times) == pytest.approx(2.5, abs=0.02)
    assert np.all(np.diff(scaled) >= 0)
    assert scaled[0] >= 0
    assert scaled[-1] <= 900
    moved = np.abs(scaled - times[rows])
    assert np.all(np.minimum(moved, 900 - moved) <= 1.0)
    assert set(np.bincount(rows)) <= {2, 3}


def test_a_stream_scaled_by_one_is_itself(rng: Generator) -> None:
    times = arrivals.poisson(rng, 5, 100)
    scaled, rows = arrivals.superposed(rng, times, 1.0, jitter=3.0)
    assert np.array_equal(scaled, times)
    assert np.array_equal(rows, np.arange(len(times)))


@pytest.mark.parametrize("pattern", ["Gamma", "weibull"])
def test_a_clients_window_is_filled_by_its_pattern(rng: Generator, pattern: str) -> None:
    times = arrivals.window_arrivals(rng, 6000, 6000, 3, pattern=pattern, shape=0.5)
    assert times[0] >= 6000
    assert times[-1] < 12_000
    assert len(times) / 6000 == pytest.approx(3, rel=0.07)
    assert gap_cv(times) == pytest.approx(sqrt(2 if pattern == "Gamma" else 5), rel=0.1)


def test_wrong_arguments_are_told(rng: Generator) -> None:
    with pytest.raises(ValueError, match="rate = 0: must be above 0"):
        arrivals.poisson(rng, 0, 10)
    with pytest.raises(ValueError, match="either the shape of the gaps or their cv"):
        arrivals.gamma_renewal(rng, 1, 10)
    with pytest.raises(ValueError, match="below the period"):
        arrivals.pulse(rng, 1, 2, 10, 10, 100)
    with pytest.raises(ValueError, match="must be gamma, weibull or poisson"):
        arrivals.window_arrivals(rng, 0, 1, 1, pattern="Pareto", shape=1)
