"""What several gateways saw adds up to what one would have seen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.flow import FlowControl
from surgetank.policy.flowspec import FlowSpec
from surgetank.policy.ingress import Ingress, observation
from surgetank.policy.plan import Observation
from surgetank.policy.pool import PoolCounts
from surgetank.policy.replica import Replica, Role
from surgetank.policy.request import Outcome, Request, Usage

COUNTS = PoolCounts(starting=1, standby=2, serving=3)


def add_up(readings: list[Ingress], before: dict[str, Ingress] | None = None) -> Observation:
    return observation(readings, before or {}, COUNTS, start_time=60.0, block_size=16)


Arrival = tuple[float, int, int, int]  # when, at which gateway, prompt and output tokens
ARRIVALS = st.lists(
    st.tuples(st.floats(0, 10), st.integers(0, 3), st.integers(1, 1000), st.integers(0, 1000)),
    max_size=40,
)


def totals(arrivals: list[Arrival], gateway: int | None, at: float) -> Ingress:
    """Read one gateway at a time; None: one that got all."""
    mine = [a for a in arrivals if a[0] <= at and gateway in {None, a[1]}]
    return Ingress(
        gateway=f"g{gateway}",
        as_of=at,
        arrivals=len(mine),
        prompt_tokens=sum(a[2] for a in mine),
        expected_output=sum(a[3] for a in mine),
        first_tokens=tuple(sorted((a[0], a[2] / 1000) for a in mine)),
        paces=tuple(sorted((a[0], a[3] / 1000) for a in mine)),
        queued=len(mine) // 2,
        queue_age=max((at - a[0] for a in mine), default=0.0),
        running=len(mine) - len(mine) // 2,
        outstanding_output=sum(a[3] for a in mine),
        kv_held=sum(a[2] for a in mine),
        kv_to_be_held=sum(a[3] for a in mine),
        kv_capacity=4096.0,
    )


@given(ARRIVALS, st.floats(0, 10), st.floats(0, 10))
def test_gateways_read_together_are_as_one(
    arrivals: list[Arrival], one: float, other: float
) -> None:
    first, then = sorted((one, other))
    apart = add_up(
        [totals(arrivals, g, then) for g in range(4)],
        {f"g{g}": totals(arrivals, g, first) for g in range(4)},
    )
    whole = add_up([totals(arrivals, None, then)], {"gNone": totals(arrivals, None, first)})
    assert streams(apart) == streams(whole)  # halves of odd numbers differ, their sums do not
    assert replace(apart, queue_length=0, running=0) == replace(whole, queue_length=0, running=0)


def streams(seen: Observation) -> int:
    assert seen.queue_length is not None
    assert seen.running is not None
    return seen.queue_length + seen.running


@given(
    ARRIVALS, st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=11, max_size=11)
)
def test_lost_readings_lose_no_arrival(arrivals: list[Arrival], lost: list[list[bool]]) -> None:
    """Each second some gateways do not answer; at first and at last, all do."""
    before: dict[str, Ingress] = {}
    arrived = tokens = 0.0
    points: list[tuple[float, float]] = []
    for second, missing in enumerate([[False] * 4, *lost, [False] * 4]):
        at = second - 1.0
        readings = [totals(arrivals, g, at) for g in range(4) if not missing[g]]
        seen = add_up(readings, before)
        before |= {r.gateway: r for r in readings}
        arrived += seen.arrivals or 0
        tokens += seen.prompt_tokens or 0
        points += seen.ttft_points
    assert arrived == len(arrivals)
    assert tokens == sum(a[2] for a in arrivals)
    assert sorted(points) == sorted((a[0], a[2] / 1000) for a in arrivals)


@given(ARRIVALS, st.floats(0, 10))
def test_the_order_of_gateways_does_not_matter(arrivals: list[Arrival], at: float) -> None:
    readings = [totals(arrivals, g, at) for g in range(4)]
    before = {f"g{g}": totals(arrivals, g, at / 2) for g in range(4)}
    assert add_up(readings, before) == add_up(readings[::-1], before)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_gateway_that_began_anew_never_counts_below_zero(before: int, after: int) -> None:
    old, new = Ingress("g", 1.0, arrivals=before), Ingress("g", 2.0, arrivals=after)
    seen = add_up([new], {"g": old})
    assert seen.arrivals == (after - before if after >= before else after)


def test_no_reading_is_unknown_and_replicas_are_known_all_the_same() -> None:
    assert add_up([]) == Observation(serving=3, starting=1, standby=2, start_time=60.0)


def test_a_gateway_seen_first_tells_its_state_and_no_amounts() -> None:
    seen = add_up([Ingress("g", 5.0, arrivals=100, queued=4, queue_age=0.5, running=2)])
    assert (seen.as_of, seen.since) == (5.0, None)
    assert (seen.arrivals, seen.prompt_tokens) == (None, None)
    assert (seen.queue_length, seen.queue_age, seen.running) == (4, 0.5, 2)


def test_a_second_gateway_does_not_add_its_past_when_it_is_seen_first() -> None:
    before = {"a": Ingress("a", 1.0, arrivals=10)}
    seen = add_up([Ingress("a", 2.0, arrivals=13), Ingress("b", 2.0, arrivals=900)], before)
    assert seen.arrivals == 3


KNOWN = totals([(0.0, 0, 10, 10)], 0, 1.0)


@pytest.mark.parametrize(
    ("unknown", "name"),
    [
        (replace(KNOWN, gateway="b", queued=None), "queue_length"),
        (replace(KNOWN, gateway="b", queue_age=None), "queue_age"),
        (replace(KNOWN, gateway="b", running=None), "running"),
        (replace(KNOWN, gateway="b", kv_held=None), "kv_held"),
        (replace(KNOWN, gateway="b", kv_capacity=None), "kv_capacity"),
    ],
)
def test_what_one_gateway_does_not_know_is_unknown_of_all(unknown: Ingress, name: str) -> None:
    assert getattr(add_up([KNOWN]), name) is not None
    assert getattr(add_up([KNOWN, unknown]), name) is None


def test_the_oldest_reading_dates_the_sum() -> None:
    before = {"a": Ingress("a", 1.0), "b": Ingress("b", 1.5)}
    seen = add_up([Ingress("a", 2.0), Ingress("b", 4.5)], before)
    assert (seen.as_of, seen.since) == (2.0, 1.0)


def test_kv_is_in_blocks_and_its_capacity_is_shared() -> None:
    one = Ingress("a", 1.0, kv_held=160.0, kv_to_be_held=32.0, kv_capacity=1600.0)
    seen = add_up([one, replace(one, gateway="b")])
    assert (seen.kv_held, seen.kv_to_be_held, seen.kv_capacity) == (20.0, 4.0, 100.0)


# FlowControl's own reading.


def request(number: int, tokens: int = 100) -> Request:
    return Request(
        f"r{number}", "t", "m", 4 * tokens, prompt_tokens=tokens, max_tokens=50, body_bytes=10
    )


def flow(*, kv: int | None = 10_000, slots: int = 2) -> FlowControl:
    made = FlowControl(FlowSpec(), models=["m"])
    made.join(Replica("a", "m", slots=slots, kv_tokens=kv, block_size=1), 0.0)
    return made


def test_flow_counts_what_it_let_in_and_what_is_here() -> None:
    made = flow()
    for number, at in enumerate((1.0, 2.0, 3.0, 4.0)):
        made.offer(request(number), at)
    made.first_token("r0", 5.0)
    seen = made.ingress("m", Role.BOTH, 6.0, gateway="g")
    assert (seen.gateway, seen.as_of, seen.serving) == ("g", 6.0, 1)
    assert (seen.arrivals, seen.prompt_tokens, seen.expected_output) == (4, 400, 200)
    assert (seen.running, seen.queued, seen.queue_age) == (2, 2, 3.0)
    assert seen.outstanding_output == 200
    assert seen.first_tokens == ((5.0, 4.0),)
    assert (seen.kv_held, seen.kv_to_be_held) == (100, 500)  # four of 150 in all
    assert seen.kv_capacity == 10_000


def test_a_stream_that_began_in_time_tells_its_pace_when_it_ends() -> None:
    made = flow(slots=5)
    for number in range(5):
        made.offer(request(number), 1.0)
    for number, at in enumerate((2.0, 2.0, 2.0, 9.0, 9.0)):  # the last two late
        made.first_token(f"r{number}", at)
    made.finish("r0", Outcome.COMPLETED, Usage(100, 21), 10.0)
    made.finish("r1", Outcome.COMPLETED, Usage(100, 1), 11.0)  # one token has no pace
    made.abandon("r2", None, 12.0)
    made.finish("r3", Outcome.COMPLETED, Usage(100, 50), 13.0)
    made.abandon("r4", None, 13.5)
    made.offer(request(5)._replace(client_retry=1), 13.6)
    made.first_token("r5", 13.7)
    made.abandon("r5", None, 13.8)  # it was counted when it was lost first
    assert made.ingress("m", Role.BOTH, 14.0).paces == ((10.0, 0.4), (12.0, math.inf))


def test_totals_stay_when_requests_end() -> None:
    made = flow()
    made.offer(request(0), 1.0)
    made.finish("r0", Outcome.COMPLETED, Usage(100, 50), 2.0)
    seen = made.ingress("m", Role.BOTH, 3.0)
    assert (seen.arrivals, seen.running, seen.queued, seen.queue_age) == (1, 0, 0, 0.0)
    assert (seen.kv_held, seen.kv_to_be_held, seen.outstanding_output) == (0, 0, 0)


def test_what_found_no_replica_was_asked_for_all_the_same() -> None:
    made = FlowControl(FlowSpec(), models=["m"])
    made.offer(request(0), 1.0)
    assert made.ingress("m", Role.BOTH, 2.0).arrivals == 1
    assert made.ingress("m", Role.BOTH, 2.0).serving == 0


def test_kv_of_unknown_size_is_unknown() -> None:
    assert flow(kv=None).ingress("m", Role.BOTH, 1.0).kv_capacity is None


def test_a_model_that_nobody_knows_has_seen_nothing() -> None:
    seen = flow().ingress("other", Role.BOTH, 1.0)
    assert (seen.arrivals, seen.queued, seen.queue_age, seen.serving) == (0, 0, 0.0, 0)
    assert not math.isnan(seen.as_of)
