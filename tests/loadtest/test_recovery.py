"""Recovery time and overshoot, on hand-made TTFT."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.loadtest.phases import Cycle
from surgetank.loadtest.recovery import (
    Seconds,
    limit_of,
    overshoots,
    recoveries,
    window_of,
    windows,
)

_ONE = (Cycle(0, 0, 10, 20, 30, 50, whole=True),)
_DUE = np.arange(0, 50, 0.1)


def _recovery(ttft: Seconds) -> tuple[float, bool]:
    found = recoveries(_DUE, ttft, _ONE, limit=0.5, window=2.0)
    return float(found.seconds[0]), bool(found.recovered[0])


def test_recovery_is_from_the_pulses_end_to_the_last_crossing() -> None:
    falling = np.where((_DUE >= 10) & (_DUE < 27), 3.0, 0.1)
    # The window around 26.95 is half bad: from there on its median is within the limit.
    seconds, recovered = _recovery(falling)
    assert seconds == pytest.approx(7.0, abs=0.11)
    assert recovered


def test_a_service_that_kept_up_recovers_at_once() -> None:
    assert _recovery(np.full(500, 0.1)) == (0.0, True)


def test_a_relapse_before_the_next_pulse_counts() -> None:
    again = np.where((_DUE >= 40) & (_DUE < 43), 3.0, 0.1)
    assert _recovery(again)[0] == pytest.approx(23.0, abs=0.11)


def test_a_hiccup_shorter_than_half_a_window_does_not() -> None:
    assert _recovery(np.where((_DUE >= 40) & (_DUE < 40.8), 3.0, 0.1)) == (0.0, True)


def test_who_is_not_back_before_the_next_pulse_is_censored_there() -> None:
    found = recoveries(_DUE, np.full(500, 3.0), _ONE, limit=0.5, window=2.0)
    assert found.seconds.tolist() == [30.0]
    assert found.censored == 1


def test_refused_requests_are_not_recovered() -> None:
    shed = np.where((_DUE >= 20) & (_DUE < 30), np.inf, 0.1)
    assert _recovery(shed)[0] == pytest.approx(10.0, abs=0.11)


def test_a_cycle_without_requests_after_its_pulse_is_unknown() -> None:
    found = recoveries(np.array([1.0, 12.0]), np.array([0.1, 3.0]), _ONE, limit=0.5, window=2.0)
    assert np.isnan(found.seconds[0])
    assert found.censored == 0


def test_the_limit_is_the_calms_p95_and_a_margin() -> None:
    assert limit_of([np.arange(1, 101) / 100]) == pytest.approx(0.95 * 1.1)
    assert limit_of([np.arange(1, 101) / 10_000]) == pytest.approx(0.0095 + 0.010)


def test_a_calm_that_a_backlog_reached_into_does_not_raise_the_limit() -> None:
    quiet, flooded = np.full(30, 0.2), np.full(30, 9.0)
    assert limit_of([quiet, flooded, flooded]) == pytest.approx(0.22)


def test_the_limit_is_of_those_that_were_served_while_they_are_most() -> None:
    never = np.full(30, np.inf)
    assert limit_of([np.append(np.full(30, 0.2), never[:29])]) == pytest.approx(0.22)
    assert limit_of([np.append(np.full(29, 0.2), never)]) is None
    assert limit_of([]) is None


def test_short_calms_are_taken_together() -> None:
    assert limit_of([np.full(10, 0.2), np.full(10, 0.4)]) == pytest.approx(0.44)


def test_windows_are_5_s_or_a_sixth_of_the_shortest_watch() -> None:
    assert window_of(_ONE) == 5.0
    assert window_of((Cycle(0, 0, 10, 20, 24, 32, whole=True),)) == 2.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60).map(sorted), st.floats(0.1, 20))
def test_a_window_holds_its_request_and_ten_where_there_are_ten(
    due: list[float], width: float
) -> None:
    at = np.array(due)
    first, last = windows(at, width)
    for i, (low, high) in enumerate(zip(first, last, strict=True)):
        assert low <= i < high
        # At an edge a window reaches to one side only.
        assert high - low >= min(5, len(at))
        inside = np.flatnonzero((at >= at[i] - width / 2) & (at <= at[i] + width / 2))
        assert low <= inside[0]
        assert high > inside[-1]
    assert all(a <= b for a, b in pairwise(first))


def test_overshoot_is_the_worst_windows_median_above_the_limit() -> None:
    hill = np.where((_DUE >= 12) & (_DUE < 20), 3.0, 0.1)
    assert overshoots(_DUE, hill, _ONE, 0.5, 2.0).tolist() == [pytest.approx(2.5)]
    assert overshoots(_DUE, np.full(500, 0.1), _ONE, 0.5, 2.0).tolist() == [0.0]
    shed = np.where((_DUE >= 12) & (_DUE < 20), np.inf, 0.1)
    assert overshoots(_DUE, shed, _ONE, 0.5, 2.0).tolist() == [np.inf]


@given(st.integers(0, 10_000))
def test_overshoot_equals_the_medians_taken_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    due = np.sort(rng.uniform(10, 50, 80))
    ttft = rng.exponential(1.0, 80)
    first, last = windows(due, 3.0)
    # Of an even number, the lower one: at most half lie above it.
    medians = [np.sort(ttft[a:b])[(b - a - 1) // 2] for a, b in zip(first, last, strict=True)]
    found = overshoots(due, ttft, _ONE, 0.0, 3.0)[0]
    assert found == pytest.approx(max(medians))
