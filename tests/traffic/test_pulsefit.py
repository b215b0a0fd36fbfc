"""The fitted pulse: within 5 % where there is one, and nothing where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng

from surgetank.traffic import arrivals
from surgetank.traffic.analysis import Pulse
from surgetank.traffic.burstiness import analyse
from tests.traffic.streams import trace


def assert_pulse(
    found: Pulse | None, base: float, peak: float, width: float, period: float
) -> None:
    assert found is not None
    assert found.base_rps == pytest.approx(base, rel=0.05)
    assert found.peak_rps == pytest.approx(peak, rel=0.05)
    assert found.width_s == pytest.approx(width, rel=0.05)
    assert found.period_s == pytest.approx(period, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
def test_the_pulse_of_ten_minutes_of_log_is_fitted_within_5_percent(seed: int) -> None:
    times = arrivals.pulse(default_rng(seed), 20, 80, 30, 90, 600)
    found = analyse(trace(times + 1.7e9 + seed * 0.137)).pulse
    assert_pulse(found, 20, 80, 30, 90)
    assert found is not None
    assert (found.start_s - 1.7e9 - seed * 0.137) % 90 == pytest.approx(60, abs=1)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_fitted_from_stamps_of_whole_seconds_and_of_even_spacing(seed: int) -> None:
    rng = default_rng(seed)
    cut = np.floor(arrivals.pulse(rng, 20, 80, 30, 90, 600))
    assert_pulse(analyse(trace(cut)).pulse, 20, 80, 30, 90)
    even = arrivals.pulse(rng, 20, 80, 30, 90, 600, even=True)
    assert_pulse(analyse(trace(even)).pulse, 20, 80, 30, 90)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_fitted_from_stamps_of_the_end_less_a_rounded_duration(seed: int) -> None:
    """An access log: end stamps and durations of whole milliseconds, in order of the end."""
    rng = default_rng(seed)
    times = arrivals.pulse(rng, 20, 80, 30, 90, 600)
    duration = np.round(rng.lognormal(1.0, 0.8, len(times)), 3)
    ends = np.round(times + duration, 3)
    order = np.argsort(ends)
    assert_pulse(analyse(trace(ends[order] - duration[order])).pulse, 20, 80, 30, 90)


@pytest.mark.parametrize(
    ("base", "peak", "width", "period", "duration"),
    [
        (5, 50, 8, 60, 900),
        (100, 200, 60, 120, 1200),
        (10, 40, 45.5, 77.7, 1500),
        (2, 30, 20, 300, 7200),
        (50, 500, 5, 30, 600),
        (1, 6, 600, 3600, 8 * 3600),
        (20, 80, 30, 90, 20_000),
    ],
)
def test_other_pulses_are_fitted_too(
    base: float, peak: float, width: float, period: float, duration: float
) -> None:
    times = arrivals.pulse(default_rng(1), base, peak, width, period, duration)
    assert_pulse(analyse(trace(times)).pulse, base, peak, width, period)


def test_a_pulse_out_of_silence_has_a_base_of_nothing() -> None:
    found = analyse(trace(arrivals.pulse(default_rng(1), 0, 50, 20, 120, 1200))).pulse
    assert found is not None
    assert found.base_rps == pytest.approx(0, abs=0.01)
    assert found.peak_rps == pytest.approx(50, rel=0.05)
    assert found.width_s == pytest.approx(20, rel=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_streams_without_a_rhythm_have_no_pulse(seed: int) -> None:
    rng = default_rng(seed)
    spec = arrivals.Mmpp2Spec.of_dispersion(20, 40, time_scale=15)
    for times in (
        arrivals.poisson(rng, 40, 600),
        arrivals.gamma_renewal(rng, 40, 600, cv=3),
        arrivals.gamma_renewal(rng, 2, 6000, cv=4),
        arrivals.mmpp2(rng, spec, 1200),
        arrivals.flash_crowd(rng, 10, 100, start=300, ramp=5, hold=60, decay=30, duration=1200),
    ):
        assert analyse(trace(times)).pulse is None


def test_a_sine_is_no_square_pulse() -> None:
    times = arrivals.varying(
        default_rng(1), lambda t: 40 * (1 + 0.8 * np.sin(2 * np.pi * t / 120)), 2400, step=1
    )
    analysis = analyse(trace(times))
    assert analysis.verdict.shape == "pulses"
    assert analysis.pulse is None
    assert analysis.periodicity is not None
    assert analysis.periodicity.autocorrelation[0][0] == pytest.approx(120, abs=3)


def test_two_cycles_are_too_few_to_call_it_a_rhythm() -> None:
    assert analyse(trace(arrivals.pulse(default_rng(1), 20, 80, 30, 90, 200))).pulse is None
