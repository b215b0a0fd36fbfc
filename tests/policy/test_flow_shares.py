"""Shares over whole runs: weights, minimum shares, large requests, and who may not starve whom."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.simulator import simulate

from surgetank.policy.effect import Dispatch
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier

PATIENT = FlowSpec(queue_timeout=1e6, request_timeout=1e6, max_queued=10_000, max_in_flight=99)


def asks(tenant: str, number: int, prompt: int, output: int) -> Request:
    return Request(
        f"{tenant}{number}", tenant, "m", 4 * prompt, prompt_tokens=prompt, max_tokens=output
    )


@settings(max_examples=15, deadline=None)
@given(
    weights=st.lists(st.floats(0.2, 5), min_size=2, max_size=3),
    sizes=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 100)), min_size=90, max_size=90),
    real=st.lists(st.integers(1, 100), min_size=90, max_size=90),
)
def test_backlogged_tenants_get_tokens_by_weight_within_two_requests(
    weights: list[float], sizes: list[tuple[int, int]], real: list[int]
) -> None:
    """Within one request's cost, and another for a start beside a request not yet settled.

    Who arrives is lifted to the counter of the last one served, which holds an expected cost until
    that request ends.
    """
    names = "abc"[: len(weights)]
    tenants = [Tenant(n, weight=w) for n, w in zip(names, weights, strict=True)]
    flow = FlowControl(PATIENT, tenants=tenants)
    running = ""
    flow.join(Replica("one", "m", slots=1), 0.0)
    for i, (prompt, output) in enumerate(sizes):
        for effect in flow.offer(asks(names[i % len(names)], i, prompt, output), 0.0):
            running = effect.request.id
    got = dict.fromkeys(names, 0.0)
    low, high = min(weights), 400 + 4 * 100
    for step in range(200):
        tenant, number = running[0], int(running[1:])
        prompt, output = sizes[number]
        used = min(real[number], output)
        effects = flow.finish(running, Outcome.COMPLETED, Usage(prompt, used), float(step))
        got[tenant] += prompt + 4 * used
        if not all(flow.counts(n).queued for n in names):
            break
        running = effects[0].request.id
        normalised = [got[n] / w for n, w in zip(names, weights, strict=True)]
        assert max(normalised) - min(normalised) <= 2 * high / low


def test_a_tier_that_floods_leaves_the_other_its_minimum_share_and_no_more_than_it_needs() -> None:
    tiers = [Tier("high", 0), Tier("low", 2, min_share=0.25)]
    tenants = [Tenant("h", "high"), Tenant("l", "low")]
    flow = FlowControl(PATIENT, tiers=tiers, tenants=tenants)
    flow.join(Replica("one", "m", slots=2), 0.0)
    arrivals = [(0.0, asks(name, i, 100, 25)) for i in range(200) for name in "hl"]
    ended = simulate(flow, arrivals, lambda _: 1.0)
    first = [name[0] for _, name, _ in ended[:200]]
    assert abs(first.count("l") - 50) <= 2
    assert {outcome for _, _, outcome in ended} == {Outcome.COMPLETED}


def test_a_large_request_is_served_under_a_steady_stream_of_small_ones_of_its_tenant() -> None:
    flow = FlowControl(PATIENT)
    flow.join(Replica("one", "m", slots=99, kv_tokens=4000), 0.0)
    arrivals = [(0.03 * i, asks("a", i, 100, 100)) for i in range(700)]  # 17 of 19 places
    arrivals.append((10.0, asks("big", 0, 3000, 900)))
    arrivals.append((10.0, asks("a", 9999, 3000, 900)))
    ended = simulate(flow, arrivals, lambda _: 0.5)
    at = {name: now for now, name, _ in ended}
    assert at["big0"] < 12.0
    assert at["a9999"] < 14.0


def test_slots_of_clients_that_leave_come_back_every_time() -> None:
    flow = FlowControl(PATIENT)
    flow.join(Replica("one", "m", slots=1), 0.0)
    for number in range(50):
        (effect,) = flow.offer(asks("a", number, 10, 10), float(number))
        assert isinstance(effect, Dispatch)
        flow.abandon(effect.request.id, Usage(10, 1), number + 0.5)
    assert flow.replicas()[0].in_flight == 0


def test_memory_of_past_requests_is_bounded() -> None:
    """Deadlines of requests that ended are dropped, whatever their timeout."""
    flow = FlowControl(PATIENT)
    flow.join(Replica("one", "m", slots=4), 0.0)
    for number in range(5000):
        flow.offer(asks("a", number, 10, 10), float(number))
        flow.finish(f"a{number}", Outcome.COMPLETED, None, float(number))
    assert len(flow._state.line) + len(flow._state.heap) <= 70
    assert flow.next_deadline() is None
