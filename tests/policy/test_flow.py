"""FlowControl case by case; the state machine beside it covers their combinations."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from tests.policy.simulator import simulate

from surgetank.policy.effect import Cancel, Dispatch, Effect, Refuse
from surgetank.policy.flow import Budget, FlowControl, FlowSpec
from surgetank.policy.promise import MARGIN, START
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier


def request(
    number: int | str = 0,
    tenant: str = "a",
    prompt: int = 100,
    output: int | None = 100,
    model: str = "m",
    **more: Any,
) -> Request:
    return Request(
        id=f"r{number}",
        tenant=tenant,
        model=model,
        prompt_bytes=4 * prompt,
        prompt_tokens=prompt,
        max_tokens=output,
        **more,
    )


def test_of_sixty_at_once_those_feasible_succeed_and_the_rest_is_told_when_to_return() -> None:
    """Cap 8, queue 16, timeout 4 s, service 1.4 s: 8 + 16 run in three waves (0, 1.4, 2.8 s)."""
    flow = FlowControl(FlowSpec(max_in_flight=8, max_queued=16, queue_timeout=4.0))
    flow.join(Replica("one", "m", slots=8), 0.0)
    ended = simulate(flow, [(0.0, request(i)) for i in range(60)], lambda _: 1.4)
    outcomes = [outcome for _, _, outcome in ended]
    assert outcomes.count(Outcome.COMPLETED) == 24
    assert outcomes.count(Outcome.QUEUE_FULL) == 36
    assert flow.counts().running == flow.counts().queued == 0


def replica(
    name: str = "one", slots: int | None = 2, kv: int | None = None, **more: Any
) -> Replica:
    return Replica(name, more.pop("model", "m"), slots=slots, kv_tokens=kv, **more)


def flow_of(*replicas: Replica, spec: FlowSpec | None = None, **more: Any) -> FlowControl:
    flow = FlowControl(spec or FlowSpec(), **more)
    for one in replicas:
        assert list(flow.join(one, 0.0)) == []
    return flow


def only(effects: Sequence[Effect]) -> Effect:
    assert len(effects) == 1, effects
    return effects[0]


def refusal(effects: Sequence[Effect]) -> Refuse:
    effect = only(effects)
    assert isinstance(effect, Refuse)
    return effect


def dispatch(effects: Sequence[Effect]) -> Dispatch:
    effect = only(effects)
    assert isinstance(effect, Dispatch)
    return effect


def done(flow: FlowControl, number: int | str, now: float, output: int = 100) -> list[str]:
    """Finish one; the ids of those that are dispatched by it."""
    effects = flow.finish(f"r{number}", Outcome.COMPLETED, Usage(100, output), now)
    return [e.request.id for e in effects if isinstance(e, Dispatch)]


# Models and replicas.


def test_an_undeclared_model_is_unknown_and_a_declared_one_without_replica_is_unavailable() -> None:
    flow = FlowControl(FlowSpec(), models=["m"])
    unknown = refusal(flow.offer(request(1, model="x"), 0.0))
    assert (unknown.outcome, unknown.should_retry) == (Outcome.UNKNOWN_MODEL, False)
    missing = refusal(flow.offer(request(2), 0.0))
    assert (missing.outcome, missing.should_retry) == (Outcome.NO_REPLICA, True)
    assert missing.retry_after is not None


def test_without_declared_models_any_name_is_known_once_a_replica_has_it() -> None:
    flow = FlowControl(FlowSpec())
    assert refusal(flow.offer(request(1), 0.0)).outcome is Outcome.NO_REPLICA
    flow.join(replica(), 0.0)
    assert dispatch(flow.offer(request(2), 0.0)).legs[0].replica == "one"
    assert refusal(flow.offer(request(3, model="x"), 0.0)).outcome is Outcome.UNKNOWN_MODEL


def test_a_replica_of_any_model_serves_names_that_no_other_has() -> None:
    flow = flow_of(replica("named"), replica("any", model="*"))
    assert dispatch(flow.offer(request(1), 0.0)).legs[0].replica == "named"
    assert dispatch(flow.offer(request(2, model="x"), 0.0)).legs[0].replica == "any"


def test_waiting_requests_outlive_the_last_replica_and_are_served_by_the_next() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(queue_timeout=5.0))
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    flow.offer(request(3), 1.0)
    assert list(flow.leave("one", 1.0)) == []
    assert refusal(flow.advance(5.0)).outcome is Outcome.NO_REPLICA
    assert dispatch(flow.join(replica("two"), 5.5)).request.id == "r3"
    assert [view.joined for view in flow.replicas()] == [False, True]
    done(flow, 1, 6.0)
    assert [view.id for view in flow.replicas()] == ["two"]


def test_a_replica_that_comes_back_still_bears_what_runs_on_it() -> None:
    flow = flow_of(replica(slots=2))
    flow.offer(request(1), 0.0)
    flow.leave("one", 1.0)
    flow.join(replica(slots=2), 2.0)
    assert flow.replicas()[0].in_flight == 1
    flow.offer(request(2), 2.0)
    assert list(flow.offer(request(3), 2.0)) == []
    assert done(flow, 1, 3.0) == ["r3"]


def test_requests_go_where_most_kv_stays_free() -> None:
    flow = flow_of(replica("a", 9, 10_000), replica("b", 9, 5_000), replica("c", 9, 10_000))
    chosen = [dispatch(flow.offer(request(i), 0.0)).legs[0].replica for i in range(6)]
    assert chosen == ["a", "c", "b", "a", "c", "a"]  # b as free as a at the third, and idle


def test_a_free_replica_gets_the_request_while_another_is_full() -> None:
    flow = flow_of(replica("a", 1, 9000), replica("b", 1, 4000))
    assert dispatch(flow.offer(request(1), 0.0)).legs[0].replica == "a"
    assert dispatch(flow.offer(request(2), 0.0)).legs[0].replica == "b"


def test_prefill_and_decode_replicas_serve_in_two_legs_and_prefill_is_free_at_first_token() -> None:
    flow = flow_of(
        replica("p", 1, 4096, role=Role.PREFILL), replica("d", 2, 4096, role=Role.DECODE)
    )
    first = dispatch(flow.offer(request(1), 0.0))
    assert [(leg.role, leg.replica) for leg in first.legs] == [("prefill", "p"), ("decode", "d")]
    assert list(flow.offer(request(2), 0.0)) == []
    assert dispatch(flow.first_token("r1", 0.5)).request.id == "r2"
    views = {view.id: view for view in flow.replicas()}
    assert (views["p"].in_flight, views["d"].in_flight) == (1, 2)
    done(flow, 1, 1.0)
    flow.abandon("r2", None, 1.0)
    assert all(v.in_flight == v.kv_reserved == v.prefill_backlog == 0 for v in flow.replicas())


def test_a_prefill_replica_that_comes_back_is_another_than_the_one_a_request_has_left() -> None:
    prefill = replica("p", 1, role=Role.PREFILL)
    flow = flow_of(prefill, replica("d", 2, role=Role.DECODE))
    flow.offer(request(1), 0.0)
    flow.first_token("r1", 0.5)
    flow.leave("p", 1.0)
    flow.join(prefill, 2.0)
    done(flow, 1, 3.0)
    assert [view.id for view in flow.replicas()] == ["d", "p"]
    dispatch(flow.offer(request(2), 4.0))


# Size.


def test_a_prompt_that_no_replica_can_hold_is_refused_for_good() -> None:
    flow = flow_of(replica("small", 4, 2048), replica("large", 4, 99_999, max_context=4096))
    refused = refusal(flow.offer(request(1, prompt=4096), 0.0))
    assert (refused.outcome, refused.should_retry) == (Outcome.TOO_LARGE, False)
    assert refused.retry_after is None
    assert dispatch(flow.offer(request(2, prompt=4095), 0.0)).legs[0].replica == "large"


def test_an_output_bound_that_does_not_fit_is_lowered_where_the_engine_cannot_preempt() -> None:
    engine = replica(kv=2048, preempts=False)
    assert dispatch(flow_of(engine).offer(request(1, output=5000), 0.0)).max_tokens == 1948
    assert dispatch(flow_of(engine).offer(request(1, output=500), 0.0)).max_tokens is None
    injected = dispatch(flow_of(engine).offer(request(1, output=None), 0.0))
    assert injected.max_tokens == 512  # a quarter of a small KV cache
    roomy = replica(kv=90_000, preempts=False)
    assert dispatch(flow_of(roomy).offer(request(1, output=None), 0.0)).max_tokens == 1024
    unknown = replica(preempts=False)
    assert dispatch(flow_of(unknown).offer(request(1, output=None), 0.0)).max_tokens == 1024


def test_where_the_engine_preempts_the_bound_stays_the_clients_unless_the_tier_caps_it() -> None:
    engine = replica(kv=2048)
    assert dispatch(flow_of(engine).offer(request(1, output=5000), 0.0)).max_tokens is None
    assert dispatch(flow_of(engine).offer(request(1, output=None), 0.0)).max_tokens is None
    capped = [Tier(max_output_tokens=64)]
    for asked, written in ((None, 64), (500, 64), (64, None), (8, None)):
        flow = flow_of(engine, tiers=capped)
        assert dispatch(flow.offer(request(1, output=asked), 0.0)).max_tokens == written


def test_embeddings_have_no_output_to_bound() -> None:
    flow = flow_of(replica(kv=2048, preempts=False))
    effect = dispatch(flow.offer(request(1, output=None, route="/v1/embeddings"), 0.0))
    assert effect.max_tokens is None
    assert flow.replicas()[0].kv_reserved == 112


def test_the_worst_case_is_reserved_where_the_engine_cannot_preempt_and_blocks_are_whole() -> None:
    for preempts, tokens in ((True, 256 + 4 + 12), (False, 1024 + 16 + 8 + 12)):
        flow = flow_of(replica(kv=9999, preempts=preempts, block_size=16))
        flow.offer(Request("r1", "a", "m", 1024, 1024, max_tokens=12), 0.0)
        assert flow.replicas()[0].kv_reserved == -(-tokens // 16) * 16


def test_an_idle_replica_takes_what_may_need_more_than_it_has_and_then_nothing_else() -> None:
    flow = flow_of(replica(slots=4, kv=2048, preempts=False))
    big = Request("r1", "a", "m", 6000, 6000, max_tokens=100)  # 1504 tokens likely, 6024 at worst
    assert dispatch(flow.offer(big, 0.0)).max_tokens is None
    assert list(flow.offer(request(2, prompt=1, output=1), 0.0)) == []
    assert done(flow, 1, 1.0) == ["r2"]


def test_a_tier_may_fill_only_its_part_of_the_kv() -> None:
    tiers = [Tier("low", 2, kv_fill=0.5), Tier("high", 0)]
    tenants = [Tenant("l", "low"), Tenant("h", "high")]
    flow = flow_of(replica(slots=9, kv=1600), tiers=tiers, tenants=tenants)
    for number in range(4):  # 200 tokens, 208 in blocks
        flow.offer(request(number, "l"), 0.0)
    assert flow.counts().running == 3
    dispatch(flow.offer(request("h", "h"), 0.0))


# The queue.


def test_a_head_that_does_not_fit_keeps_its_place_and_nobody_overtakes_it() -> None:
    flow = flow_of(replica(slots=9, kv=2048))
    flow.offer(request(1, prompt=900), 0.0)
    flow.offer(request(2, prompt=900), 0.0)
    flow.offer(request("big", prompt=1500), 0.1)
    flow.offer(request("small", prompt=10, output=1), 3.2)
    assert flow.counts().queued == 2
    assert done(flow, 1, 4.0) == []
    assert done(flow, 2, 5.0) == ["rbig", "rsmall"]


def test_a_tenant_at_its_own_cap_is_skipped_and_holds_nobody_up() -> None:
    flow = flow_of(replica(slots=3), tenants=[Tenant("a", max_running=1)])
    flow.offer(request(1, "a"), 0.0)
    flow.offer(request(2, "a"), 0.0)
    assert flow.counts("a").queued == 1
    dispatch(flow.offer(request(3, "b"), 0.0))
    assert done(flow, 1, 1.0) == ["r2"]


def test_a_tenant_at_its_own_cap_is_refused_where_nothing_may_wait() -> None:
    spec = FlowSpec(when_full="refuse")
    flow = flow_of(replica(slots=2), tenants=[Tenant("a", max_running=1)], spec=spec)
    flow.offer(request(1, "a"), 0.0)
    assert refusal(flow.offer(request(2, "a"), 0.0)).outcome is Outcome.TENANT_BUSY
    flow.offer(request(3, "b"), 0.0)
    assert refusal(flow.offer(request(4, "b"), 0.0)).outcome is Outcome.NO_SLOT


def test_each_bound_of_the_queue_has_its_own_outcome() -> None:
    spec = FlowSpec(max_queued=3, max_queued_bytes=1000, max_queued_bytes_per_tenant=600)
    tenants = [Tenant("few", max_queued=1), Tenant("thin", max_queued_bytes=100)]
    flow = flow_of(replica(slots=1), spec=spec, tenants=tenants)
    flow.offer(request(0), 0.0)
    assert list(flow.offer(request(1, "few"), 0.0)) == []
    outcomes = [
        refusal(flow.offer(each, 0.0)).outcome
        for each in (
            request(2, "few"),
            request(3, "thin", body_bytes=101),
            request(4, "x", body_bytes=601),
        )
    ]
    assert outcomes == [Outcome.TENANT_QUEUE_FULL] * 3
    assert list(flow.offer(request(5, "x", body_bytes=600), 0.0)) == []
    assert refusal(flow.offer(request(6, "y", body_bytes=401), 0.0)).outcome is Outcome.QUEUE_BYTES
    assert list(flow.offer(request(7, "y", body_bytes=400), 0.0)) == []
    assert refusal(flow.offer(request(8, "z"), 0.0)).outcome is Outcome.QUEUE_FULL
    assert flow.queued_by_tenant() == {"few": 1, "x": 1, "y": 1}
    assert flow.queued_bytes() == 1000


def test_what_is_dispatched_at_once_does_not_count_against_the_queue() -> None:
    spec = FlowSpec(max_queued=0, max_queued_bytes=0)
    flow = flow_of(replica(slots=1), spec=spec)
    dispatch(flow.offer(request(1, body_bytes=5000), 0.0))
    assert refusal(flow.offer(request(2), 0.0)).outcome is Outcome.QUEUE_FULL


def test_a_request_of_a_higher_tier_is_dispatched_past_a_full_queue() -> None:
    tiers = [Tier("core", 0), Tier("bulk", 2, kv_fill=0.5)]
    tenants = [Tenant("c", "core"), Tenant("k", "bulk")]
    flow = flow_of(
        replica(slots=9, kv=1600), tiers=tiers, tenants=tenants, spec=FlowSpec(max_queued=1)
    )
    for number in range(4):
        flow.offer(request(number, "k"), 0.0)
    assert flow.counts("k").queued == 1
    dispatch(flow.offer(request("c", "c"), 0.0))
    assert refusal(flow.offer(request(9, "k"), 0.0)).outcome is Outcome.QUEUE_FULL


def test_the_cap_on_all_that_runs_holds_over_models_and_the_oldest_goes_first() -> None:
    flow = flow_of(replica("a"), replica("b", model="n"), spec=FlowSpec(max_running=1))
    flow.offer(request(1), 0.0)
    flow.offer(request(2, model="n"), 0.1)
    flow.offer(request(3), 0.2)
    flow.offer(request(4, model="n"), 0.3)
    assert [done(flow, n, 1.0) for n in (1, 2, 3, 4)] == [["r2"], ["r3"], ["r4"], []]


def test_less_slack_goes_first_and_among_equals_the_smaller() -> None:
    flow = flow_of(replica(slots=1))
    flow.offer(request(0), 0.0)
    flow.offer(request("large", prompt=900), 0.10)
    flow.offer(request("small", prompt=9), 0.11)
    flow.offer(request("urgent", prompt=900, ttft_objective=0.5), 0.12)
    assert done(flow, 0, 1.0) == ["rurgent"]
    assert done(flow, "urgent", 2.0) == ["rsmall"]


def test_waiting_outweighs_size_in_the_end() -> None:
    """Within one slack bucket a second of waiting is worth `ageing` cost, here 500."""
    flow = flow_of(replica(slots=1), spec=FlowSpec(slack_bucket=100.0, queue_timeout=60.0))
    flow.offer(request(0), 0.0)
    flow.offer(request("large", prompt=1100, output=100), 0.0)  # cost 1500: as if 3 s younger
    flow.offer(request("small", prompt=100, output=100), 1.9)  # cost 500: 1 s
    assert done(flow, 0, 2.0) == ["rsmall"]
    flow.offer(request("later", prompt=100, output=100), 2.1)
    assert done(flow, "small", 3.0) == ["rlarge"]


# Time.


def test_what_waited_too_long_is_refused_and_never_dispatched_however_late_it_is_noticed() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(queue_timeout=5.0))
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    assert flow.next_deadline() == 5.0
    effects = flow.finish("r1", Outcome.COMPLETED, None, 5.0)
    assert refusal(effects).outcome is Outcome.QUEUE_TIMEOUT


def test_a_running_request_is_cancelled_at_its_total_time_and_its_room_is_free() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(request_timeout=8.0))
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 7.0)
    assert flow.next_deadline() == 8.0
    (cancel,) = flow.advance(8.5)
    assert isinstance(cancel, Cancel)
    assert (cancel.request.id, cancel.outcome) == ("r1", Outcome.REQUEST_TIMEOUT)
    assert flow.next_deadline() == 15.0  # only the other one's own total time is left
    (then,) = flow.finish("r1", cancel.outcome, Usage(10, 479), 8.5)
    assert isinstance(then, Dispatch)
    assert then.queued_for == 1.5
    with pytest.raises(KeyError, match="r1"):
        flow.finish("r1", Outcome.COMPLETED, None, 9.0)
    assert flow.counts().failed == 1


def test_a_total_time_that_ends_while_waiting_is_a_request_timeout() -> None:
    flow = flow_of(replica(slots=1))
    flow.offer(request(1), 0.0)
    flow.offer(request(2, request_timeout=3.0), 0.0)
    assert refusal(flow.advance(3.0)).outcome is Outcome.REQUEST_TIMEOUT
    assert flow.counts().failed == 1


def test_a_clients_times_may_only_shorten_those_of_its_tier() -> None:
    tiers = [Tier(queue_timeout=4.0)]
    flow = flow_of(replica(slots=1), tiers=tiers)
    flow.offer(request(0), 0.0)
    flow.offer(request(1, queue_timeout=1.0), 0.0)
    flow.offer(request(2, queue_timeout=900.0), 0.0)
    flow.offer(request(3, queue_timeout=-1.0), 0.0)
    assert [e.request.id for e in flow.advance(1.0)] == ["r1"]
    assert [e.request.id for e in flow.advance(4.0)] == ["r2", "r3"]


def test_time_running_backwards_counts_as_standing_still() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(queue_timeout=5.0))
    flow.offer(request(1), 100.0)
    flow.offer(request(2), 90.0)
    assert flow.next_deadline() == 105.0


# Quotas.


def test_a_quota_is_reserved_before_and_refused_work_costs_nothing() -> None:
    tenants = [Tenant("a", requests_per_minute=6, tokens_per_minute=2000)]
    flow = flow_of(replica(slots=1), tenants=tenants, spec=FlowSpec(max_queued=1))
    for number in range(4):  # one runs, one waits, two are refused; 200 tokens each
        flow.offer(request(number), 0.0)
    assert flow.budget("a", 0.0) == Budget(6, 4, 20.0, 2000, 1600, 12.0)
    flow.abandon("r1", None, 0.0)
    done(flow, 0, 0.0, output=40)
    left = flow.budget("a", 0.0)
    assert (left.remaining_requests, left.remaining_tokens) == (5, 2000 - 140)


def test_five_at_once_never_get_more_than_the_bucket_holds() -> None:
    flow = flow_of(replica(slots=9), tenants=[Tenant("a", tokens_per_minute=500)])
    effects = [only(flow.offer(request(number), 0.0)) for number in range(5)]
    assert [isinstance(e, Dispatch) for e in effects] == [True, True, False, False, False]
    refused = effects[2]
    assert isinstance(refused, Refuse)
    assert refused.outcome is Outcome.QUOTA_TOKENS
    assert refused.retry_after == pytest.approx((200 - 100) / (500 / 60))
    assert refused.should_retry


def test_a_request_above_the_whole_quota_is_told_not_to_come_back() -> None:
    flow = flow_of(replica(), tenants=[Tenant("a", tokens_per_minute=100)])
    refused = refusal(flow.offer(request(1), 0.0))
    assert (refused.outcome, refused.retry_after) == (Outcome.QUOTA_TOKENS, None)
    assert not refused.should_retry


def test_a_request_refused_for_tokens_does_not_cost_a_request() -> None:
    tenants = [Tenant("a", requests_per_minute=5, tokens_per_minute=100)]
    flow = flow_of(replica(), tenants=tenants)
    flow.offer(request(1), 0.0)
    assert flow.budget("a", 0.0).remaining_requests == 5


def test_steady_load_just_below_a_limit_is_never_refused() -> None:
    tenants = [Tenant("a", requests_per_minute=60, tokens_per_minute=12_000)]
    flow = flow_of(replica(slots=9), tenants=tenants)
    arrivals = [(number / 0.95, request(number)) for number in range(300)]
    ended = simulate(flow, arrivals, lambda _: 1.0, usage=lambda _: Usage(100, 100))
    assert {outcome for _, _, outcome in ended} == {Outcome.COMPLETED}


@pytest.mark.parametrize(
    ("started", "ending", "used"),
    [
        (False, Outcome.COMPLETED, 200),
        (False, Outcome.UPSTREAM_ERROR, 0),
        (True, Outcome.UPSTREAM_FAILED, 200),
        (True, Outcome.ABANDONED, 200),
        (False, Outcome.ABANDONED, 100),
        (False, Outcome.SHUTDOWN, 0),
    ],
)
def test_what_ran_without_reported_usage_is_charged_by_how_far_it_came(
    *, started: bool, ending: Outcome, used: int
) -> None:
    flow = flow_of(replica(), tenants=[Tenant("a", tokens_per_minute=1000)])
    flow.offer(request(1), 0.0)
    if started:
        flow.first_token("r1", 0.0)
    if ending is Outcome.ABANDONED:
        flow.abandon("r1", None, 0.0)
    else:
        flow.finish("r1", ending, None, 0.0)
    assert flow.budget("a", 0.0).remaining_tokens == 1000 - used


def test_cached_prompt_tokens_count_for_the_quota_and_not_for_the_share() -> None:
    flow = flow_of(replica(slots=1), tenants=[Tenant("a", tokens_per_minute=60_000)])
    flow.offer(request(1, "a", prompt=10_000, output=1), 0.0)
    flow.finish("r1", Outcome.COMPLETED, Usage(10_000, 1, cached_tokens=10_000), 0.0)
    assert flow.budget("a", 0.0).remaining_tokens == 60_000 - 10_001
    flow.offer(request(2, "b", prompt=1, output=1), 0.0)
    flow.offer(request(3, "b", prompt=1, output=100), 0.0)
    flow.offer(request(4, "a", prompt=1, output=1), 0.0)
    assert done(flow, 2, 1.0, output=1) == ["r4"]


# Engines that shed or fail.


def test_an_engine_that_sheds_gets_half_and_the_request_goes_to_another() -> None:
    flow = flow_of(replica("a", 8), replica("b", 8))
    assert dispatch(flow.offer(request(1), 0.0)).legs[0].replica == "a"
    again = dispatch(flow.retry("r1", "busy", None, 0.1))
    assert (again.legs[0].replica, again.attempt) == ("b", 2)
    view = flow.replicas()[0]
    assert (view.limit, view.paused) == (4, True)
    refused = refusal(flow.retry("r1", "busy", 7.0, 0.2))
    assert refused.outcome is Outcome.ENGINE_BUSY
    assert refused.retry_after == pytest.approx(7.0)


def test_a_burst_of_sheddings_halves_once_and_service_restores_the_limit() -> None:
    flow = flow_of(replica("a", 8))
    for number in range(8):
        flow.offer(request(number), 0.0)
    for number in range(4, 8):
        assert list(flow.retry(f"r{number}", "busy", 30.0, 0.1)) == []
    assert flow.replicas()[0].limit == 4
    assert flow.next_deadline() == pytest.approx(0.35)  # alone: not paused for longer
    now = 1.0
    flow.advance(now)
    running = [f"r{number}" for number in range(4)]
    for number in range(100, 160):
        flow.offer(request(number), now)
    while flow.replicas()[0].limit < 8:
        now += 0.1
        assert now < 8.0
        effects = flow.finish(running.pop(0), Outcome.COMPLETED, Usage(100, 100), now)
        running += [e.request.id for e in effects if isinstance(e, Dispatch)]


def test_an_engine_smaller_than_believed_keeps_what_it_took_and_the_rest_waits_unharmed() -> None:
    """12 of 32 were accepted; the 20 that were shed run later, none is refused."""
    flow = flow_of(replica("a", 32))
    for number in range(32):
        flow.offer(request(number), 0.0)
    for number in range(12, 32):
        flow.retry(f"r{number}", "busy", None, 0.1)
    assert flow.replicas()[0].limit == 12
    assert list(flow.advance(0.35)) == []
    assert done(flow, 0, 1.0) == ["r12"]
    assert (flow.counts().refused, flow.counts().queued) == (0, 19)


def test_pauses_grow_to_two_seconds_while_another_replica_serves() -> None:
    flow = flow_of(replica("a", 8, 90_000), replica("b", 8, 1_000))
    now, pauses = 0.0, []
    for number in range(6):
        assert dispatch(flow.offer(request(number), now)).legs[0].replica == "a"
        flow.retry(f"r{number}", "busy", None, now)
        flow.abandon(f"r{number}", None, now)
        since = now
        while flow.replicas()[0].paused:
            now += 0.125
            flow.advance(now)
        pauses.append(now - since)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]


def test_a_failed_replica_is_avoided_while_there_is_another_and_attempts_are_counted() -> None:
    flow = flow_of(replica("a", 8, 90_000), replica("b", 8, 4096), spec=FlowSpec(replays=1))
    assert dispatch(flow.offer(request(1), 0.0)).legs[0].replica == "a"
    assert dispatch(flow.retry("r1", "failed", None, 5.0)).legs[0].replica == "b"
    refused = refusal(flow.retry("r1", "failed", None, 9.0))
    assert refused.outcome is Outcome.UPSTREAM_FAILED
    assert flow.counts().failed == 1


def test_a_request_waits_for_another_replica_than_the_one_it_failed_on() -> None:
    flow = flow_of(replica("a", 1), replica("b", 1))
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    assert list(flow.retry("r1", "failed", None, 1.0)) == []
    assert list(flow.advance(2.0)) == []  # a pauses no more
    effects = flow.finish("r2", Outcome.COMPLETED, None, 3.0)
    assert dispatch(effects).legs[0].replica == "b"


def test_a_retried_request_goes_before_those_that_waited_and_keeps_its_times() -> None:
    flow = flow_of(replica(slots=2), spec=FlowSpec(queue_timeout=5.0, request_timeout=9.0))
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    flow.offer(request(3, ttft_objective=0.1), 0.5)
    assert list(flow.retry("r1", "busy", None, 1.0)) == []
    assert done(flow, 2, 1.1) == []
    assert [e.request.id for e in flow.advance(1.25)] == ["r1", "r3"]
    assert [e.request.id for e in flow.advance(9.0)] == ["r1"]


def test_a_retried_request_waits_no_longer_in_all_than_it_may() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(queue_timeout=5.0))
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    assert done(flow, 1, 3.0) == ["r2"]
    flow.leave("one", 4.0)
    flow.retry("r2", "failed", None, 10.0)
    assert flow.next_deadline() == 12.0
    assert refusal(flow.advance(12.0)).outcome is Outcome.NO_REPLICA


def test_a_request_whose_only_large_replica_left_does_not_hold_up_the_others() -> None:
    flow = flow_of(replica("small", 1, 1024), replica("large", 1, 8192))
    flow.offer(request(1, prompt=10), 0.0)
    flow.offer(request(2, prompt=10), 0.0)
    flow.offer(request("big", prompt=4000), 1.0)
    flow.offer(request(3, prompt=10), 1.6)
    assert refusal(flow.leave("large", 2.0)).outcome is Outcome.NO_REPLICA
    assert {
        e.request.id for e in (*flow.abandon("r1", None, 3.0), *flow.abandon("r2", None, 3.0))
    } == {"r3"}


def test_an_unknown_replica_starts_small_and_is_trusted_with_more_as_it_serves() -> None:
    flow = flow_of(replica(slots=None), spec=FlowSpec(max_in_flight=16))
    for number in range(100):
        flow.offer(request(number), 0.0)
    assert flow.counts().running == 4
    running = [f"r{number}" for number in range(4)]
    for now, expected in ((1.0, 8), (2.0, 16), (3.0, 16)):
        batch, running = running, []
        for each in batch:
            effects = flow.finish(each, Outcome.COMPLETED, Usage(100, 100), now)
            running += [e.request.id for e in effects if isinstance(e, Dispatch)]
        assert flow.replicas()[0].limit == flow.counts().running == expected


def test_work_waiting_inside_an_engine_stops_dispatch_to_it_for_two_seconds_at_most() -> None:
    flow = flow_of(replica(slots=8))
    for number in range(4):
        flow.offer(request(number), 0.0)
    flow.observe("one", Signals(as_of=1.0, waiting=1), 1.0)
    assert flow.replicas()[0].limit == 3
    assert list(flow.offer(request(5), 1.0)) == []
    assert done(flow, 0, 1.1) == []
    assert done(flow, 1, 1.2) == []
    assert flow.next_deadline() == 3.0
    assert dispatch(flow.advance(3.0)).request.id == "r5"


def test_a_newer_signal_without_waiting_work_opens_the_engine_again() -> None:
    flow = flow_of(replica(slots=8))
    for number in range(4):
        flow.offer(request(number), 0.0)
    flow.observe("one", Signals(as_of=1.0, waiting=1), 1.0)
    flow.offer(request(5), 1.0)
    done(flow, 0, 1.0)
    done(flow, 1, 1.0)
    assert list(flow.observe("one", Signals(as_of=0.5, waiting=0), 1.1)) == []
    assert dispatch(flow.observe("one", Signals(as_of=1.2, waiting=0), 1.2)).request.id == "r5"


def test_kv_that_others_use_is_counted_while_the_signal_is_fresh() -> None:
    flow = flow_of(replica(slots=8, kv=1000, block_size=1))
    flow.offer(request(1), 0.0)
    flow.observe("one", Signals(as_of=0.0, kv_used=0.9), 0.0)
    assert list(flow.offer(request(2), 0.1)) == []
    assert flow.next_deadline() == 2.0
    assert dispatch(flow.advance(2.0)).request.id == "r2"


def test_an_idle_replica_serves_whatever_its_engine_says() -> None:
    flow = flow_of(replica(slots=8, kv=1000))
    flow.observe("one", Signals(as_of=0.0, waiting=9, kv_used=1.0), 0.0)
    dispatch(flow.offer(request(1), 0.1))


def test_once_signals_are_old_a_little_kv_is_kept_free() -> None:
    flow = flow_of(replica(slots=8, kv=1000, block_size=1))
    flow.observe("one", Signals(as_of=0.0, kv_used=0.0), 0.0)
    for number in range(4):
        dispatch(flow.offer(request(number), 0.5))
    dispatch(flow.offer(request(4, prompt=60), 1.0))  # 960 of 1000
    done(flow, 4, 2.5)
    assert list(flow.offer(request(5, prompt=60), 2.5)) == []
    dispatch(flow.observe("one", Signals(as_of=2.6, kv_used=0.8), 2.6))


# Foretold waits.


def steady(flow: FlowControl, count: int) -> float:
    """Keep one waiting while `count` requests of cost 500 take a second each; the time after."""
    flow.offer(request("s0"), 0.0)
    for number in range(1, count):
        flow.offer(request(f"s{number}"), float(number) - 1)
        done(flow, f"s{number - 1}", float(number))
    return float(count - 1)


def test_predicted_wait_is_backlog_by_learnt_rate_and_refuses_only_where_the_tier_says() -> None:
    tiers = [
        Tier("strict", 1, predicted_wait=True, theta=2.0),
        Tier("calm", 1, predicted_wait=False),
    ]
    tenants = [Tenant("a", "calm"), Tenant("b", "strict")]
    flow = flow_of(replica(slots=1), tiers=tiers, tenants=tenants)
    now = steady(flow, 12)
    for number in range(6):
        assert list(flow.offer(request(number), now)) == []
    # b is served in turns with a: 2 s for each of its own, of 2 x 2 s allowed.
    assert list(flow.offer(request("b1", "b"), now)) == []
    assert list(flow.offer(request("b2", "b", output=50), now)) == []
    refused = refusal(flow.offer(request("b3", "b"), now))
    assert refused.outcome is Outcome.PREDICTED_WAIT
    assert refused.predicted_wait == pytest.approx(2 * (500 + 300 + 500) / 500, rel=0.1)
    # Worked off to what it may wait, 4 s, with a margin that nobody who came has corrected yet.
    excess = (refused.predicted_wait or 0.0) - 4.0
    assert refused.retry_after == pytest.approx(excess * START, rel=0.01)


def test_refusals_say_when_there_will_be_a_place_each_its_own() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(max_queued=4, ttft_objective=60.0))
    now = steady(flow, 12)
    for number in range(4):
        flow.offer(request(number), now)
    for turn in (1, 2, 3):  # a second each, with a margin
        refused = refusal(flow.offer(request(f"late{turn}"), now))
        assert refused.outcome is Outcome.QUEUE_FULL
        assert refused.retry_after == pytest.approx(MARGIN * turn, rel=0.15)
        assert refused.position == 4


def test_the_longest_wait_that_an_engine_asked_for_is_told_and_not_cut_by_the_spread() -> None:
    for draw in (0.0, 0.5, 0.999999):
        for first, second in ((9.0, 3.0), (3.0, 9.0), (9.0, None)):
            flow = flow_of(replica("x"), replica("y"), draw=lambda d=draw: d)
            flow.offer(request(1), 0.0)
            assert dispatch(flow.retry("r1", "busy", first, 0.1)).attempt == 2
            refused = refusal(flow.retry("r1", "busy", second, 0.2))
            assert refused.retry_after is not None
            assert 9.0 - 1e-6 <= refused.retry_after <= 11.1


def test_a_place_that_was_promised_is_there_for_who_comes_back_and_for_nobody_else() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(max_queued=4, ttft_objective=60.0))
    now = steady(flow, 12)
    for number in range(4):
        flow.offer(request(number), now)
    told = refusal(flow.offer(request("late"), now)).retry_after
    assert told is not None
    done(flow, "s11", now + 1.0)
    fresh = refusal(flow.offer(request("fresh", prompt=99), now + 1.0))
    assert fresh.outcome is Outcome.QUEUE_FULL
    early = refusal(flow.offer(request("early", client_retry=1), now + 1.0))
    assert early.retry_after == pytest.approx(max(0.1, told - 1.0))
    assert list(flow.offer(request("late again"), now + told)) == []


def test_replays_are_a_tenth_of_the_requests_but_for_the_first_ten() -> None:
    flow = flow_of(replica("x", slots=99), replica("y", slots=99))
    again = []
    for number in range(200):
        now = 10.0 * number  # no replica is on its pause
        flow.offer(request(number), now)
        effects = list(flow.retry(f"r{number}", "failed", None, now))
        again.append(isinstance(effects[-1], Dispatch))
        if again[-1]:
            flow.finish(f"r{number}", Outcome.UPSTREAM_FAILED, None, now)
    assert all(again[:10])
    assert sum(again[:100]) == 10
    assert sum(again) == 20
    # What was never sent is not counted.
    flow.offer(request("last"), 4000.0)
    assert isinstance(flow.retry("rlast", "unreached", None, 4000.0)[-1], Dispatch)


def test_a_promise_nobody_comes_for_is_void_after_a_second() -> None:
    flow = flow_of(replica(slots=1), spec=FlowSpec(max_queued=4, ttft_objective=60.0))
    now = steady(flow, 12)
    for number in range(4):
        flow.offer(request(number), now)
    told = refusal(flow.offer(request("late"), now)).retry_after
    assert told is not None
    done(flow, "s11", now + 1.0)
    assert list(flow.offer(request("fresh"), now + told + 1.1)) == []


def test_who_is_refused_by_a_quota_is_told_when_it_has_refilled_each_later_than_the_last() -> None:
    flow = flow_of(replica(slots=9), tenants=[Tenant("a", tokens_per_minute=500)])
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    for number, told in ((3, 12.0), (4, 36.0), (5, 60.0)):  # 100 of 200 tokens are left
        refused = refusal(flow.offer(request(number), 0.0))
        assert refused.retry_after == pytest.approx(told)
    # At 12 s there are 200 tokens, promised to the third: nobody else gets them.
    assert refusal(flow.offer(request(6, output=101), 12.0)).outcome is Outcome.QUOTA_TOKENS
    dispatch(flow.offer(request("3 again"), 12.0))
    early = refusal(flow.offer(request("4 too early", client_retry=1), 13.0))
    assert early.retry_after == pytest.approx(23.0)
    dispatch(flow.offer(request("4 again"), 36.0))


def test_what_is_no_promise_is_spread_by_a_tenth_and_stays_where_clients_obey_it() -> None:
    for draw, factor in ((0.0, 0.9), (0.75, 1.05), (0.999999, 1.1)):
        flow = flow_of(models=["m"], draw=lambda d=draw: d)
        refused = refusal(flow.offer(request(1), 0.0))
        assert refused.outcome is Outcome.NO_REPLICA
        assert refused.retry_after == pytest.approx(5.0 * factor, rel=1e-4)
    tenant = Tenant("a", requests_per_minute=0.1, burst_seconds=600)
    slow = flow_of(replica(), tenants=[tenant], draw=lambda: 0.999999)
    slow.offer(request(1), 0.0)
    refused = refusal(slow.offer(request(2), 0.0))
    assert refused.retry_after == pytest.approx(110.0, rel=1e-4)
    assert not refused.should_retry


# Misuse.


def test_ids_are_offered_once_and_known_until_they_end() -> None:
    flow = flow_of(replica(slots=1))
    flow.offer(request(1), 0.0)
    with pytest.raises(ValueError, match="r1 was offered before"):
        flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    with pytest.raises(KeyError, match="r2 waits"):
        flow.first_token("r2", 0.0)
    with pytest.raises(KeyError, match="r9"):
        flow.abandon("r9", None, 0.0)
    assert dispatch(flow.finish("r1", Outcome.COMPLETED, None, 0.0)).request.id == "r2"
    assert flow.counts().offered == 2


def test_a_waiting_request_can_be_ended_by_the_shell() -> None:
    flow = flow_of(replica(slots=1), tenants=[Tenant("a", requests_per_minute=5)])
    flow.offer(request(1), 0.0)
    flow.offer(request(2), 0.0)
    flow.finish("r2", Outcome.SHUTDOWN, None, 0.0)
    assert (flow.counts().refused, flow.budget("a", 0.0).remaining_requests) == (1, 4)


def test_settings_that_contradict_each_other_are_named() -> None:
    with pytest.raises(ValueError, match="tenant a: tier = gold: must be one of standard"):
        FlowControl(FlowSpec(), tenants=[Tenant("a", "gold")])
    with pytest.raises(ValueError, match="min_share"):
        FlowControl(FlowSpec(), tiers=[Tier("x", min_share=0.6), Tier("y", min_share=0.6)])
    with pytest.raises(ValueError, match="tenant a: weight = 0"):
        FlowControl(FlowSpec(), tenants=[Tenant("a", weight=0)])


def test_what_was_learnt_can_be_handed_to_the_next_run() -> None:
    flow = flow_of(replica(slots=1))
    for number in range(20):
        flow.offer(Request(f"r{number}", "a", "m", 1000, 1000), float(number))
        flow.finish(f"r{number}", Outcome.COMPLETED, Usage(500, 30), float(number))
    again = flow_of(replica(kv=99_999, block_size=1), learned=flow.learned())
    again.offer(Request("r", "a", "m", 1000, 1000), 0.0)
    assert again.replicas()[0].kv_reserved == 500 + 30


def test_an_answer_in_no_time_at_all_divides_by_nothing() -> None:
    """As where a clock stands still between a request and its end."""
    flow = FlowControl(FlowSpec(when_full="refuse"))
    flow.join(Replica("a", "m", slots=1), 0.0)
    flow.offer(Request("first", "t", "m", 10), 1.0)
    flow.finish("first", Outcome.COMPLETED, Usage(1, 1), 1.0)
    flow.offer(Request("second", "t", "m", 10), 1.0)
    (refused,) = flow.offer(Request("third", "t", "m", 10), 1.0)
    assert isinstance(refused, Refuse)
    assert refused.retry_after is not None
    assert refused.retry_after > 0
    flow.finish("second", Outcome.COMPLETED, Usage(1, 1), 1.0)
    (effect,) = flow.offer(Request("fourth", "t", "m", 10), 1.0)
    assert isinstance(effect, Dispatch | Refuse)


def test_a_timer_sleeps_no_longer_than_a_ladder_or_whoever_waits() -> None:
    flow = flow_of(replica(slots=1))
    flow.offer(request(1), 0.0)
    assert flow.sleeps_until(7.0)
    flow._state.wake = 5.0  # a step of the ladder is due then
    assert flow.sleeps_until(5.0)
    assert not flow.sleeps_until(7.0)
    flow._state.wake = inf
    flow.offer(request(2), 1.0)  # it waits
    assert not flow.sleeps_until(1.0)
