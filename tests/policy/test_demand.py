"""The envelope, the token gap and the KV balance against sums made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.demand import HORIZONS, DemandEnvelope, TokenGap, kv_balance
from surgetank.policy.forecaster import LastValue


def test_the_envelope_of_nothing_is_unknown() -> None:
    assert DemandEnvelope(0.5).peak(10.0) is None


def test_a_burst_is_found_by_the_short_horizon_and_a_load_by_the_long_one() -> None:
    envelope = DemandEnvelope(0.5)
    envelope.add(40.0, 40.0, since=0.0)  # 1 a second for 40 s
    load = envelope.peak(40.0)
    assert load is not None
    assert load.horizon == 32.0
    assert load.rate == pytest.approx(32 / 32.5)
    envelope.add(10.0, 41.0, since=40.0)  # 10 in one second
    burst = envelope.peak(41.0)
    assert burst is not None
    assert burst.horizon == 1.0
    assert burst.rate == pytest.approx(10 / 1.5)


def test_slack_forgives_what_the_queue_may_absorb() -> None:
    strict, patient = DemandEnvelope(0.1), DemandEnvelope(4.0)
    for envelope in (strict, patient):
        envelope.add(10.0, 1.0, since=0.0)
    hard, soft = strict.peak(1.0), patient.peak(1.0)
    assert hard is not None
    assert soft is not None
    assert hard.rate == pytest.approx(10 / 1.1)
    assert soft.rate == pytest.approx(10 / 5.0)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=60), st.floats(0.1, 3.0))
def test_the_envelope_is_the_largest_of_its_horizons(work: list[float], slack: float) -> None:
    envelope = DemandEnvelope(slack)
    for second, amount in enumerate(work, 1):
        envelope.add(amount, float(second), since=second - 1.0)
    by_hand = max(sum(work[-int(t) :]) / (t + slack) for t in HORIZONS)
    peak = envelope.peak(float(len(work)))
    assert peak is not None
    assert peak.rate == pytest.approx(by_hand, rel=1e-9, abs=1e-9)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.floats(0.0, 5.0), min_size=5, max_size=20), st.floats(0.2, 2.0))
def test_a_server_at_the_largest_envelope_keeps_every_deadline(
    work: list[float], slack: float
) -> None:
    """FIFO at the peak rate: what came by t is done by t + slack (within the horizons)."""
    envelope = DemandEnvelope(slack, horizons=tuple(float(n) for n in range(1, len(work) + 1)))
    rate = 0.0
    for second, amount in enumerate(work, 1):
        envelope.add(amount, float(second), since=second - 1.0)
        peak = envelope.peak(float(second))
        assert peak is not None
        rate = max(rate, peak.rate)
    backlog = 0.0
    for amount in work:
        backlog = max(0.0, backlog + amount - rate)
        assert backlog <= rate * slack + 1e-6


def test_the_token_gap_is_what_streams_need_minus_what_they_got() -> None:
    gap = TokenGap(5.0, tpot_objective=0.05)
    assert gap.rates(0.0) is None
    for at in (1.0, 2.0, 3.0):
        gap.add(100.0, 1e6, 500.0, at, since=at - 1.0)
    assert gap.rates(3.0) == pytest.approx((2000.0, 500.0))


def test_streams_about_to_end_need_no_more_than_they_have_left() -> None:
    gap = TokenGap(5.0, tpot_objective=0.05)
    gap.add(100.0, 30.0, 30.0, 1.0, since=0.0)
    assert gap.rates(1.0) == pytest.approx((30.0, 30.0))


def test_a_steady_state_keeps_its_kv_balance() -> None:
    for hold in (5.0, 30.0, 90.0):
        balance = kv_balance(
            held=100.0 * hold,
            to_be_held=0.0,
            influx_rate=100.0,
            hold=hold,
            capacity=100.0 * hold,
            horizon=30.0,
        )
        assert balance.shortfall == pytest.approx(0.0)


def test_a_doubled_influx_is_short_by_what_it_will_hold() -> None:
    balance = kv_balance(
        held=1000.0, to_be_held=0.0, influx_rate=200.0, hold=10.0, capacity=1000.0, horizon=30.0
    )
    assert balance.shortfall == pytest.approx(1000.0)  # 200/s for 10 s each is 2,000 blocks


def test_a_long_queue_is_not_released_before_it_was_held() -> None:
    balance = kv_balance(
        held=1000.0, to_be_held=9000.0, influx_rate=0.0, hold=5.0, capacity=1000.0, horizon=30.0
    )
    assert balance.releases == pytest.approx(6000.0)  # the capacity turns over six times
    assert balance.shortfall == pytest.approx(3000.0)


def test_the_last_value_is_expected_to_stay() -> None:
    last = LastValue()
    assert last.predict(30.0, 0.0) is None
    last.observe(7.0, 1.0)
    last.observe(9.0, 2.0)
    assert last.predict(300.0, 2.0) == 9.0
