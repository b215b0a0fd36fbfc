"""Promises of a stock that fills: whoever comes when told finds its amount, whoever else came."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.levels import Chain, Levels
from surgetank.policy.promise import LEAST, MARGIN, Promises, key_of
from surgetank.policy.quota import Amounts, Stock
from surgetank.policy.request import Outcome, Request
from surgetank.policy.tenant import Tenant


def asked(number: int) -> Request:
    """A request that no other looks like."""
    return Request(f"r{number}", "a", "m", number)


def chain_of(**limits: float) -> Chain:
    return Levels(Tenant("a", **limits)).chain("", "m")  # type: ignore[arg-type] # all are numbers


def reserve(chain: Chain, amounts: Amounts, request: Request, now: float) -> Outcome | None:
    """Take it; None when it was there."""
    short = chain.reserve(amounts, request, 1.0, now)
    assert short is None or isinstance(short, Stock)
    return None if short is None else short.outcome


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
    chain = chain_of(tokens_per_minute=60 * rate, burst_seconds=60 / rate)
    now, back = 0.0, list[tuple[float, int, int]]()
    for number, (amount, gap) in enumerate(zip(amounts, gaps, strict=False)):
        now += gap
        while back and back[0][0] <= now:
            at, promised, whom = back.pop(0)
            assert reserve(chain, Amounts(promised, 0), asked(whom), at) is None
        if reserve(chain, Amounts(amount, 0), asked(number), now) is not None:
            told = chain.promise(Amounts(amount, 0), now, 110.0, key_of(asked(number)), again=False)
            if told is not None and told <= 110.0:
                back.append((now + told, amount, number))
    for at, promised, whom in back:
        assert reserve(chain, Amounts(promised, 0), asked(whom), at) is None


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(1, 30)), min_size=5, max_size=60))
@settings(deadline=None)
def test_promises_never_let_more_through_than_the_bucket_holds(
    arrivals: list[tuple[float, int]],
) -> None:
    chain = chain_of(tokens_per_minute=600, burst_seconds=3)
    plain = TokenBucket(10.0, 30.0)
    now = admitted = 0.0
    for gap, amount in arrivals:
        now += gap
        if reserve(chain, Amounts(amount, 0), asked(amount if amount % 2 else -1), now) is None:
            admitted += amount
        else:
            chain.promise(Amounts(amount, 0), now, 110.0, key_of(asked(amount)), again=False)
    assert admitted <= plain.burst + plain.rate * now + 1e-6


def test_clients_are_told_of_the_token_limit_that_is_nearest() -> None:
    """The answer to a request that the output limit refused must not show plenty of input left."""
    chain = chain_of(input_tokens_per_minute=1000, output_tokens_per_minute=200)
    assert chain.left(0.0)[3:6] == (1000, 1000, 0.0)
    assert reserve(chain, Amounts(10, 190), asked(1), 0.0) is None
    assert chain.left(0.0)[3:6] == (200, 10, 57.0)
    assert chain_of(requests_per_minute=5).left(0.0).limit_tokens is None


def test_input_and_output_have_limits_of_their_own() -> None:
    chain = chain_of(input_tokens_per_minute=1000, output_tokens_per_minute=200)
    assert reserve(chain, Amounts(10, 100), asked(0), 0.0) is None
    assert reserve(chain, Amounts(10, 100), asked(0), 0.0) is None
    assert reserve(chain, Amounts(10, 1), asked(0), 0.0) is Outcome.QUOTA_TOKENS
    chain.settle("r0", Amounts(10, 100), Amounts(500, 0), 0.0)  # it was long, and said nothing
    assert reserve(chain, Amounts(490, 100), asked(0), 0.0) is None
    assert reserve(chain, Amounts(1, 0), asked(0), 0.0) is Outcome.QUOTA_TOKENS
    chain.refund("r0", Amounts(490, 100), 0.0)
    assert reserve(chain, Amounts(490, 0), asked(0), 0.0) is None


def test_the_margin_follows_what_those_find_who_come_when_told() -> None:
    """Nobody waits: others are told sooner. A wait beyond the bound: later. Slowly, and bounded."""

    def told(promises: Promises) -> float:
        return promises.wait(0.0, 1.0, 10.0, 0.0)

    promises = Promises(1.0)
    for second in range(11):
        promises.came(0.0, float(second))
    assert 8.5 < told(promises) < 9.5
    for _ in range(1000):
        promises.came(0.0, 10.0)  # all in one moment teach no more than one
    assert 8.5 < told(promises) < 9.5
    for second in range(11, 200):
        promises.came(0.0, float(second))
    assert told(promises) == pytest.approx(10.0 * LEAST)
    for second in range(200, 400):
        promises.came(2.0, float(second))
    assert told(promises) == pytest.approx(10.0 * MARGIN)


def test_those_due_by_a_moment_are_counted_each() -> None:
    promises = Promises(1.0)
    for at in (1.0, 2.0, 2.0, 4.0):
        promises.keep(at, 1.0, 0.0, (at,))
    assert [promises.until(moment) for moment in (0.5, 1.0, 3.0, 9.0)] == [0, 1, 3, 4]
