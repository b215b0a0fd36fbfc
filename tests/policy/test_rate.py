"""ServiceRate: what replicas can do is learnt under backlog only."""

from __future__ import annotations

import pytest

from surgetank.policy.rate import ServiceRate


def serve(rate: ServiceRate, seconds: range, cost: float, *, waiting: bool) -> None:
    """One request of `cost` ends each second."""
    for second in seconds:
        rate.mark(float(second), waiting=waiting, running=True)
        rate.settle(cost, float(second + 1))
    rate.mark(float(seconds.stop), waiting=False, running=False)


def test_nothing_is_known_before_three_requests_ended() -> None:
    rate = ServiceRate()
    serve(rate, range(2), 100.0, waiting=True)
    assert rate.capacity() is rate.at_least() is None
    serve(rate, range(2, 3), 100.0, waiting=True)
    assert rate.capacity() == pytest.approx(100.0, rel=0.05)


def test_light_load_gives_a_lower_bound_and_no_capacity() -> None:
    rate = ServiceRate()
    serve(rate, range(30), 100.0, waiting=False)
    assert rate.capacity() is None
    assert rate.at_least() == pytest.approx(100.0, rel=0.05)
    serve(rate, range(30, 60), 300.0, waiting=True)
    assert rate.capacity() == rate.at_least() == pytest.approx(300.0, rel=0.05)


def test_idle_time_does_not_count() -> None:
    rate = ServiceRate()
    serve(rate, range(10), 100.0, waiting=True)
    before = rate.capacity()
    rate.mark(5000.0, waiting=True, running=True)
    assert rate.capacity() == before


def test_the_last_twenty_seconds_outweigh_what_was_before() -> None:
    rate = ServiceRate()
    serve(rate, range(100), 100.0, waiting=True)
    serve(rate, range(100, 120), 200.0, waiting=True)
    faded = 2.718281828**-1
    assert rate.capacity() == pytest.approx(100 * faded + 200 * (1 - faded), rel=0.05)
