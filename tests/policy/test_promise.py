"""Promises of a stock that fills: whoever comes when told finds its amount, whoever else came."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.promise import Promises, key_of
from surgetank.policy.quota import Amounts, Quota
from surgetank.policy.request import Outcome, Request
from surgetank.policy.tenant import Tenant


def asked(number: int) -> Request:
    """A request that no other looks like."""
    return Request(f"r{number}", "a", "m", number)


def test_each_promise_is_for_when_the_stock_covers_those_before_it_too() -> None:
    promises = Promises(1.0)
    told = [promises.keep(promises.wait(5.0, 2.0, 10.0, 0.0), 10.0, 0.0, ()) for _ in range(3)]
    assert told == pytest.approx([2.5, 7.5, 12.5])
    # A small one fits before them all, since the stock covers each with it.
    promises = Promises(1.0)
    promises.keep(20.0, 10.0, 0.0, ())
    assert promises.wait(5.0, 2.0, 9.0, 0.0) == pytest.approx(2.0)


def test_a_stock_that_never_fills_promises_nothing() -> None:
    assert Promises().wait(0.0, 0.0, 1.0, 0.0) == float("inf")
    assert Promises().wait(2.0, 0.0, 1.0, 0.0) == 0.0


def test_it_is_taken_by_whom_it_was_made_to_and_not_before_its_time() -> None:
    promises = Promises(1.0)
    promises.keep(2.0, 1.0, 0.0, (1,))
    promises.keep(4.0, 1.0, 0.0, (2,))
    assert promises.of((2,), 1.0) == 3.0
    assert promises.of((3,), 1.0) is None
    assert not promises.take((1,), 1.9)
    assert not promises.take((2,), 1.96)
    assert promises.take((1,), 1.96)
    assert not promises.take((1,), 2.0)
    assert len(promises) == 1


def test_others_get_what_leaves_every_promise_covered() -> None:
    promises = Promises(1.0)
    promises.keep(10.0, 8.0, 0.0, ())
    assert promises.leaves(3.0, 0.5, 0.0)  # 3 + 5 by then
    assert not promises.leaves(2.9, 0.5, 0.0)
    promises.expire(11.5)
    assert promises.leaves(0.0, 0.0, 11.5)


@given(
    rate=st.floats(1.0, 50.0),
    amounts=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    gaps=st.lists(st.floats(0.0, 2.0), min_size=40, max_size=40),
)
@settings(deadline=None)
def test_with_a_bucket_every_retry_at_the_time_told_succeeds(
    rate: float, amounts: list[int], gaps: list[float]
) -> None:
    """Fresh requests come all the time, and take whatever they are given."""
    quota = Quota(Tenant("a", tokens_per_minute=60 * rate, burst_seconds=60 / rate))
    now, back = 0.0, list[tuple[float, int, int]]()
    for number, (amount, gap) in enumerate(zip(amounts, gaps, strict=False)):
        now += gap
        while back and back[0][0] <= now:
            at, promised, whom = back.pop(0)
            assert quota.reserve(Amounts(promised, 0), at, asked(whom)) is None
        if quota.reserve(Amounts(amount, 0), now, asked(number)) is not None:
            told = quota.promise(Amounts(amount, 0), now, 110.0, key_of(asked(number)), again=False)
            if told is not None and told <= 110.0:
                back.append((now + told, amount, number))
    for at, promised, whom in back:
        assert quota.reserve(Amounts(promised, 0), at, asked(whom)) is None


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 30)), min_size=5, max_size=60))
@settings(deadline=None)
def test_promises_never_let_more_through_than_the_bucket_holds(
    arrivals: list[tuple[float, int]],
) -> None:
    quota = Quota(Tenant("a", tokens_per_minute=600, burst_seconds=3))
    plain = TokenBucket(10.0, 30.0)
    now = admitted = 0.0
    for gap, amount in arrivals:
        now += gap
        if quota.reserve(Amounts(amount, 0), now, asked(amount if amount % 2 else -1)) is None:
            admitted += amount
        else:
            quota.promise(Amounts(amount, 0), now, 110.0, key_of(asked(amount)), again=False)
    assert admitted <= plain.burst + plain.rate * now + 1e-6


def test_clients_are_told_of_the_token_limit_that_is_nearest() -> None:
    """The answer to a request that the output limit refused must not show plenty of input left."""
    quota = Quota(Tenant("a", input_tokens_per_minute=1000, output_tokens_per_minute=200))
    assert quota.told_tokens(0.0) == (1000, 1000, 0.0)
    assert quota.reserve(Amounts(10, 190), 0.0, asked(1)) is None
    assert quota.told_tokens(0.0) == (200, 10, 57.0)
    assert Quota(Tenant("a", requests_per_minute=5)).told_tokens(0.0) is None


def test_input_and_output_have_limits_of_their_own() -> None:
    quota = Quota(Tenant("a", input_tokens_per_minute=1000, output_tokens_per_minute=200))
    assert quota.reserve(Amounts(10, 100), 0.0, asked(0)) is None
    assert quota.reserve(Amounts(10, 100), 0.0, asked(0)) is None
    assert quota.reserve(Amounts(10, 1), 0.0, asked(0)) is Outcome.QUOTA_TOKENS
    quota.settle(Amounts(10, 100), Amounts(500, 0), 0.0)  # it was long, and said nothing
    assert quota.reserve(Amounts(490, 100), 0.0, asked(0)) is None
    assert quota.reserve(Amounts(1, 0), 0.0, asked(0)) is Outcome.QUOTA_TOKENS
    quota.refund(Amounts(490, 100), 0.0)
    assert quota.reserve(Amounts(490, 0), 0.0, asked(0)) is None
