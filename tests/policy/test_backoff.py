"""Delays grow, are capped and spread; retries are a share of the traffic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.backoff import Backoff, RetryBudget


@pytest.mark.parametrize(
    ("failures", "delay"),
    [(0, 0.0), (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (9, 256.0), (10, 300.0), (5000, 300.0)],
)
def test_delays_double_up_to_the_cap(failures: int, delay: float) -> None:
    backoff = Backoff(first=1.0, cap=300.0)
    assert backoff.delay(failures, draw=0.0) == delay / 2
    assert backoff.delay(failures, draw=1.0) == delay


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(1, 200), st.floats(0.0, 1.0))
def test_a_delay_is_never_less_than_half_and_never_more_than_the_cap(n: int, draw: float) -> None:
    delay = Backoff(first=0.5, factor=3.0, cap=40.0).delay(n, draw)
    assert 0.25 <= delay <= 40.0


def test_retries_are_a_tenth_of_the_requests_and_one_more() -> None:
    budget = RetryBudget(0.1, window=10.0)
    for second in range(50):
        budget.requested(second * 0.1)
    made = 0
    while budget.allows(5.0):
        budget.retried(5.0)
        made += 1
    assert made == 6


def test_a_lone_request_may_be_tried_again_once() -> None:
    budget = RetryBudget()
    assert budget.allows(0.0)
    budget.retried(0.0)
    assert not budget.allows(1.0)


def test_the_budget_comes_back_with_the_window() -> None:
    budget = RetryBudget(window=10.0)
    budget.retried(0.0)
    assert not budget.allows(9.0)
    assert budget.allows(10.6)
