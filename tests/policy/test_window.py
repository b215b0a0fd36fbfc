"""Sliding windows: steady things read as themselves, silence is None, noise has no slope."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.window import InfluxIntegral, RateWindow, Slope, least_squares


def test_a_window_that_has_seen_nothing_knows_nothing() -> None:
    window = RateWindow(10.0)
    assert window.rate(5.0) is None
    assert window.gradient(5.0) is None
    assert window.total(10.0, 5.0) == 0.0


@pytest.mark.parametrize("now", [10.0, 10.1, 10.25, 10.49, 12.0])
def test_a_steady_rate_reads_as_itself_at_any_phase_of_the_buckets(now: float) -> None:
    window = RateWindow(10.0, 20)
    window.add(100.0 * now, now, since=0.0)
    assert window.rate(now) == pytest.approx(100.0)
    assert window.total(3.3, now) == pytest.approx(330.0)
    assert window.gradient(now) == pytest.approx(0.0, abs=1e-9)


def test_one_reading_every_five_seconds_is_no_burst_of_one_second() -> None:
    window = RateWindow(32.0, 128)
    for at in (5.0, 10.0, 15.0):
        window.add(500.0, at, since=at - 5.0)
    assert window.total(1.0, 15.0) == pytest.approx(100.0)


def test_amounts_leave_the_window_a_bucket_at_a_time_and_in_part() -> None:
    window = RateWindow(10.0, 10)
    window.add(50.0, 0.5)
    assert window.total(10.0, 9.0) == pytest.approx(50.0)
    assert window.total(10.0, 10.5) == pytest.approx(25.0)
    assert window.total(10.0, 11.0) == 0.0
    assert window.rate(1000.0) == 0.0


def test_time_running_backwards_is_held() -> None:
    window = RateWindow(10.0, 10)
    window.add(5.0, 20.0)
    window.add(7.0, 12.0)
    assert window.total(1.0, 3.0) == pytest.approx(12.0)


def test_a_short_history_is_averaged_over_itself() -> None:
    window = RateWindow(10.0, 20)
    window.add(200.0, 2.0, since=0.0)
    assert window.rate(2.0) == pytest.approx(100.0)


def test_the_gradient_of_a_ramp_is_its_steepness() -> None:
    window = RateWindow(10.0, 20)
    for step in range(1, 21):
        at = step * 0.5
        window.add(0.5 * 10.0 * (at - 0.25), at, since=at - 0.5)  # 10 per second squared
    assert window.gradient(10.0) == pytest.approx(10.0, rel=0.01)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(
        st.tuples(st.floats(0.01, 4.0), st.floats(0.0, 1e6)),
        min_size=1,
        max_size=40,
    )
)
def test_a_window_longer_than_the_history_loses_nothing(steps: list[tuple[float, float]]) -> None:
    window = RateWindow(200.0, 50)
    now = 0.0
    for step, amount in steps:
        window.add(amount, now + step, since=now)
        now += step
    assert window.total(200.0, now) == pytest.approx(sum(a for _, a in steps), rel=1e-9, abs=1e-6)


def test_least_squares_needs_two_different_times() -> None:
    assert least_squares([]) is None
    assert least_squares([(1.0, 2.0), (1.0, 5.0)]) is None
    assert least_squares([(0.0, 1.0), (2.0, 2.0), (4.0, 3.0)]) == pytest.approx(0.5)


def _slope(points: list[tuple[float, float]]) -> Slope:
    slope = Slope(5.0, points=4, spread=0.4)
    for at, value in points:
        slope.add(value, at)
    return slope


RISING = [(0.0, 0.3), (1.0, 0.7), (2.0, 1.1), (3.0, 1.5)]


def test_the_slope_of_a_rise_is_its_steepness() -> None:
    assert _slope(RISING).value(3.0) == pytest.approx(0.4)


def test_too_few_samples_have_no_slope() -> None:
    assert _slope(RISING[:3]).value(2.0) is None


def test_samples_within_a_moment_have_no_slope() -> None:
    assert _slope([(2.0, 0.3), (2.003, 0.7), (2.006, 1.1), (2.01, 1.5)]).value(3.0) is None


def test_samples_older_than_the_window_do_not_count() -> None:
    assert _slope(RISING).value(6.5) is None
    assert _slope([(-3.0, 9.0), *RISING]).value(3.0) == pytest.approx(0.4)


def test_a_sample_that_is_no_number_is_left_out() -> None:
    assert _slope([*RISING, (3.5, float("nan"))]).value(3.5) == pytest.approx(0.4)


def test_influx_counts_prompt_output_and_half_a_block_per_request() -> None:
    influx = InfluxIntegral(10.0, block_size=16)
    influx.add(3200.0, 1600.0, 10.0, 5.0, since=0.0)
    assert influx.blocks(5.0) == pytest.approx((3200 + 1600) / 16 + 5)
    assert influx.output_per_request(5.0) == pytest.approx(160.0)
    assert influx.prompt_rate(5.0) == pytest.approx(640.0)


def test_influx_without_arrivals_knows_no_mean() -> None:
    influx = InfluxIntegral(10.0, block_size=16)
    influx.add(0.0, 0.0, 0.0, 5.0, since=0.0)
    assert influx.output_per_request(5.0) is None
    assert influx.blocks(5.0) == 0.0
