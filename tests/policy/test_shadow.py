"""Admission in shadow: nothing is refused, and what would have been is told."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.policy.simulator import simulate

from surgetank.policy.effect import Dispatch, Refuse
from surgetank.policy.flow import FlowControl, FlowSettings, FlowSpec
from surgetank.policy.journal import Journal, replay
from surgetank.policy.replica import Replica, Signals
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.shadow import Shadow, shadowed
from surgetank.policy.tenant import Tenant, Tier

SHADOW = FlowSpec(admission="shadow")


def request(number: int, tenant: str = "a", **more: Any) -> Request:
    return Request(f"r{number}", tenant, "m", 400, prompt_tokens=100, max_tokens=100, **more)


def shadow_of(spec: FlowSpec, *, slots: int = 1, **more: Any) -> Shadow:
    made = shadowed(FlowControl(spec, models=("m",), **more), 0.0)
    assert isinstance(made, Shadow)
    made.join(Replica("one", "m", slots=slots), 0.0)
    return made


def test_a_quota_that_is_used_up_is_told_and_refuses_nobody() -> None:
    tenants = [Tenant("a", requests_per_minute=2)]
    shadow = shadow_of(SHADOW, slots=8, tenants=tenants)
    for number in range(5):
        (effect,) = shadow.offer(request(number), 0.0)
        assert isinstance(effect, Dispatch)
    assert shadow.counts.refused == {("a", "quota_requests"): 3}
    assert shadow.counts.admitted == {"a": 2}
    assert shadow.flow.budget("a", 0.0).limit_requests is None  # clients are told of no limit
    told = [shadow.verdict(f"r{number}") for number in range(5)]
    assert [v.outcome for v in told if v] == ["admitted"] * 2 + ["quota_requests"] * 3
    assert shadow.verdict("r0") is None  # told once


def test_a_full_queue_a_cap_and_a_bound_on_the_output_hold_nobody_back() -> None:
    spec = FlowSpec(
        admission="shadow", max_queued=2, max_in_flight=1, max_running=1, request_timeout=5.0
    )
    tiers = [Tier(max_output_tokens=10)]
    shadow = shadow_of(spec, tiers=tiers, tenants=[Tenant("a", max_running=1)])
    effects = [e for number in range(6) for e in shadow.offer(request(number), 0.0)]
    assert all(isinstance(e, Dispatch) and e.max_tokens is None for e in effects)
    assert len(effects) == 6
    assert shadow.counts.refused == {("a", "queue_full"): 3}
    assert shadow.advance(100.0) == ()  # nor is anything cut off when its time has run out
    assert shadow.flow.counts().running == 6


def test_a_session_too_many_is_told_and_let_through() -> None:
    shadow = shadow_of(SHADOW, slots=8, tenants=[Tenant("a", max_sessions=1)])
    for number in range(3):
        (effect,) = shadow.offer(request(number, session=f"s{number}"), 0.0)
        assert isinstance(effect, Dispatch)
    assert shadow.counts.refused == {("a", "quota_sessions"): 2}


def test_one_tenant_can_be_in_shadow_while_another_is_not() -> None:
    tenants = [
        Tenant("a", requests_per_minute=1, admission="shadow"),
        Tenant("b", requests_per_minute=1),
    ]
    shadow = shadow_of(FlowSpec(), slots=8, tenants=tenants)
    kinds = [type(shadow.offer(request(number, "ab"[number % 2]), 0.0)[0]) for number in range(4)]
    assert kinds == [Dispatch, Dispatch, Dispatch, Refuse]
    assert shadow.counts.refused == {("a", "quota_requests"): 1}
    assert shadow.counts.offered == {"a": 2}
    assert shadow.verdict("r1") is None


def test_who_would_have_gone_before_whom_is_counted() -> None:
    tiers = [Tier("first", priority=0), Tier("standard")]
    tenants = [Tenant("high", tier="first"), Tenant("low")]
    shadow = shadow_of(SHADOW, tiers=tiers, tenants=tenants)
    for number, tenant in enumerate(["low", "low", "high"]):
        shadow.offer(request(number, tenant), 0.0)
    for number in range(3):
        shadow.first_token(f"r{number}", 1.0)
    shadow.finish("r0", Outcome.COMPLETED, Usage(100, 10), 2.0)
    assert shadow.counts.reordered == {("high", "earlier"): 1, ("low", "later"): 1}


def test_what_waits_in_the_twin_runs_there_as_long_as_it_did_in_truth() -> None:
    shadow = shadow_of(SHADOW)
    shadow.offer(request(9), 0.0)  # alone: its prompt takes 1 s
    shadow.first_token("r9", 1.0)
    shadow.finish("r9", Outcome.COMPLETED, Usage(100, 1), 1.0)
    for number in range(2):
        shadow.offer(request(number), 10.0)
    assert shadow.next_deadline() == pytest.approx(11.0)  # the first one's token
    assert shadow.advance(11.0) == ()
    for number in range(2):
        shadow.first_token(f"r{number}", 15.0)  # which the other slowed down
    for number in range(2):
        shadow.finish(f"r{number}", Outcome.COMPLETED, Usage(100, 10), 17.0)
    assert shadow.alive() == 1
    assert shadow.next_deadline() == pytest.approx(18.0)  # the second was sent at 17
    assert shadow.advance(18.0) == ()
    assert shadow.next_deadline() == pytest.approx(20.0)  # its answer took 2 s
    assert shadow.advance(20.0) == ()
    assert shadow.alive() == 0
    told = [shadow.verdict(f"r{number}") for number in (0, 1)]
    assert [(v.outcome, v.wait, v.ttft) for v in told if v] == [
        ("admitted", 0.0, 1.0),
        ("admitted", 7.0, 8.0),
    ]


def test_who_waits_inside_an_engine_is_served_in_the_twin_by_what_the_engine_ends() -> None:
    """The engine serves ten, one each 2 s, of which the twin lets in the first and the last."""
    shadow = shadow_of(FlowSpec(admission="shadow", max_queued=0))
    shadow.offer(request(0), 0.0)
    for number in range(1, 9):
        shadow.offer(request(number), 0.0)
    assert shadow.counts.refused == {("a", "queue_full"): 8}
    shadow.first_token("r0", 1.0)
    shadow.finish("r0", Outcome.COMPLETED, Usage(100, 10), 2.0)
    shadow.offer(request(9), 2.0)
    assert shadow.alive() == 1
    shadow.first_token("r1", 3.0)
    shadow.finish("r1", Outcome.COMPLETED, Usage(100, 10), 4.0)  # in the twin r9 ends
    assert shadow.alive() == 0
    shadow.offer(request(10), 4.0)
    assert shadow.counts.admitted == {"a": 3}


def test_the_twin_does_not_read_what_engines_say_of_the_traffic_it_keeps_out() -> None:
    shadow = shadow_of(SHADOW, slots=4)
    shadow.observe("one", Signals(1.0, waiting=50, kv_used=1.0), 1.0)
    for number in range(4):
        shadow.offer(request(number), 1.0)
    assert shadow.counts.admitted == {"a": 4}


def test_a_replica_that_pauses_is_left_alone_for_that_time_only() -> None:
    shadow = shadow_of(SHADOW)
    shadow.offer(request(0), 0.0)
    assert shadow.retry("r0", "busy", None, 0.0) == []
    assert shadow.next_deadline() == pytest.approx(0.25)
    (again,) = shadow.advance(0.25)
    assert isinstance(again, Dispatch)


def test_it_is_turned_on_and_off_while_requests_run() -> None:
    flow = FlowControl(FlowSpec(max_queued=0), models=("m",))
    flow.join(Replica("one", "m", slots=1), 0.0)
    flow.offer(request(0), 0.0)
    flow.reconfigure(FlowSettings(FlowSpec(admission="shadow", max_queued=0)), 1.0)
    shadow = shadowed(flow, 1.0)
    assert isinstance(shadow, Shadow)
    (effect,) = shadow.offer(request(1), 1.0)
    assert isinstance(effect, Dispatch)
    shadow.first_token("r0", 2.0)
    shadow.finish("r0", Outcome.COMPLETED, Usage(100, 5), 3.0)  # which the twin never knew
    assert shadow.counts.admitted == {"a": 1}
    shadow.reconfigure(FlowSettings(FlowSpec(max_queued=0)), 4.0)
    assert shadowed(shadow, 4.0) is flow
    (refused,) = flow.offer(request(2), 4.0)
    assert isinstance(refused, Refuse)


def test_its_journal_decides_the_same_again() -> None:
    lines: list[str] = []
    journal = Journal(lines.append, SHADOW, models=("m",))
    shadow = Shadow(journal, 0.0)
    shadow.join(Replica("one", "m", slots=1), 0.0)
    for number in range(3):
        shadow.offer(request(number), 0.0)
    shadow.finish("r1", Outcome.COMPLETED, Usage(100, 5), 1.0)
    assert replay(lines) is None


@pytest.mark.parametrize("seed", range(3))
def test_the_twin_changes_nothing_of_what_is_carried_out(seed: int) -> None:
    def run(*, twin: bool) -> tuple[list[tuple[float, str, Outcome]], Any]:
        rng = random.Random(seed)
        spec = FlowSpec(admission="shadow", max_queued=5, queue_timeout=2.0)
        flow: Any = FlowControl(spec, models=("m",), tiers=[Tier(predicted_wait=True)])
        if twin:
            flow = shadowed(flow, 0.0)
        flow.join(Replica("one", "m", slots=2), 0.0)
        flow.join(Replica("two", "m", slots=3), 0.0)
        at = [(rng.random() * 20, request(i, rng.choice("ab"))) for i in range(200)]
        took = {f"r{i}": rng.expovariate(1.0) + 0.01 for i in range(200)}
        ended = simulate(
            flow,
            at,
            lambda r: took[r.id],
            first_token_time=lambda r: took[r.id] / 3,
            usage=lambda _: Usage(100, 50),
        )
        return ended, flow

    alone, _ = run(twin=False)
    beside, shadow = run(twin=True)
    assert [row for row in beside if row[1]] == alone
    assert all(outcome is Outcome.COMPLETED for _, _, outcome in alone)
    counts = shadow.counts
    assert shadow.alive() == 0
    assert sum(counts.refused.values()) > 20
    assert sum(counts.offered.values()) == 200
    assert sum(counts.admitted.values()) + sum(counts.refused.values()) == 200


def test_nothing_of_what_has_ended_is_kept() -> None:
    shadow = shadow_of(SHADOW, slots=4)
    for number in range(2000):
        shadow.offer(request(number), number / 10)
        shadow.first_token(f"r{number}", number / 10)
        shadow.finish(f"r{number}", Outcome.COMPLETED, Usage(100, 5), number / 10 + 0.05)
    state = shadow.flow._state
    assert len(state.line) + len(state.heap) < 200
    assert shadow.alive() == 0
    assert len(shadow.verdicts) == 2000  # which nobody asked for; 100,000 at most
