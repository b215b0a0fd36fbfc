"""Settings that change while requests run: what is here stays, what comes is served by the new."""

from __future__ import annotations

from typing import Any

import pytest

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.effect import Dispatch, Refuse
from surgetank.policy.flow import FlowControl, FlowSettings, FlowSpec
from surgetank.policy.journal import Journal, replay
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier


def request(name: str, tenant: str = "a", **more: Any) -> Request:
    fields = {"model": "m", "prompt_bytes": 400, "prompt_tokens": 100, "max_tokens": 100}
    return Request(id=name, tenant=tenant, **{**fields, **more})


def flow_of(slots: int = 1, spec: FlowSpec | None = None, **more: Any) -> FlowControl:
    flow = FlowControl(spec or FlowSpec(), models=("m",), **more)
    flow.join(Replica("one", "m", slots=slots), 0.0)
    return flow


def settings(**more: Any) -> FlowSettings:
    return FlowSettings(**{"models": ("m",), **more})


def dispatched(effects: Any) -> list[str]:
    return [e.request.id for e in effects if isinstance(e, Dispatch)]


@pytest.mark.parametrize(
    ("level", "rate", "burst", "after"),
    [
        (100.0, 2.0, 200.0, 200.0),  # full stays full
        (50.0, 2.0, 200.0, 100.0),
        (50.0, 0.1, 10.0, 5.0),
        (0.0, 2.0, 200.0, 0.0),
        (-30.0, 2.0, 200.0, -30.0),  # a debt is owed in tokens
        (-30.0, 0.1, 10.0, -30.0),
    ],
)
def test_a_resized_bucket_keeps_the_part_that_is_filled(
    level: float, rate: float, burst: float, after: float
) -> None:
    bucket = TokenBucket(1.0, 100.0)
    bucket.settle(0.0, 100.0 - level, 5.0)
    bucket.resize(rate, burst, 5.0)
    assert bucket.level(5.0) == pytest.approx(after)
    assert bucket.level(6.0) == pytest.approx(min(burst, after + rate))


def test_a_new_limit_counts_the_reservations_of_what_already_runs() -> None:
    """100 prompt and 100 output tokens run; they will be settled with the new bucket exactly."""
    flow = flow_of()
    flow.offer(request("r"), 0.0)
    limited = Tenant("a", tokens_per_minute=1000, requests_per_minute=10)
    flow.reconfigure(settings(tenants=(limited,)), 1.0)
    budget = flow.budget("a", 1.0)
    assert (budget.remaining_tokens, budget.remaining_requests) == (800, 9)
    flow.finish("r", Outcome.COMPLETED, Usage(100, 20), 1.0)
    assert flow.budget("a", 1.0).remaining_tokens == 880


def test_a_limit_that_is_taken_away_holds_no_more() -> None:
    flow = flow_of(slots=9, tenants=[Tenant("a", requests_per_minute=1)])
    flow.offer(request("r0"), 0.0)
    assert isinstance(flow.offer(request("r1"), 0.0)[0], Refuse)
    flow.reconfigure(settings(), 0.0)
    assert dispatched(flow.offer(request("r2"), 0.0)) == ["r2"]
    flow.finish("r0", Outcome.COMPLETED, None, 1.0)
    assert flow.budget("a", 1.0).limit_requests is None


def test_nothing_that_waits_or_runs_is_lost() -> None:
    flow = flow_of()
    for number in range(6):
        flow.offer(request(f"r{number}", "ab"[number % 2]), 0.0)
    before = flow.counts()
    effects = flow.reconfigure(settings(spec=FlowSpec(max_queued=1, queue_timeout=1.0)), 0.5)
    assert list(effects) == []
    assert flow.counts() == before
    assert not flow.advance(20.0)  # those here keep the 30 s they came with
    running, served = ["r0"], 0
    while running:
        served += 1
        running = dispatched(flow.finish(running[0], Outcome.COMPLETED, None, 20.0))
    assert served == 6
    assert flow.counts().completed == 6


def test_waiting_requests_go_with_their_tenant_to_its_new_tier() -> None:
    tiers = (Tier("gold", 0), Tier("bulk", 2))
    flow = flow_of(tiers=tiers, tenants=[Tenant("a", "bulk"), Tenant("b", "gold")])
    flow.offer(request("running", "c"), 0.0)
    flow.offer(request("a1", "a"), 0.0)
    flow.offer(request("b1", "b"), 0.0)
    swapped = (Tenant("a", "gold"), Tenant("b", "bulk"))
    flow.reconfigure(settings(tiers=tiers, tenants=swapped), 1.0)
    assert dispatched(flow.finish("running", Outcome.COMPLETED, None, 2.0)) == ["a1"]
    assert dispatched(flow.finish("a1", Outcome.COMPLETED, None, 3.0)) == ["b1"]
    assert flow.tier("a").name == "gold"


def test_a_new_weight_counts_from_now_on() -> None:
    flow = flow_of(tenants=[Tenant("a"), Tenant("b")])
    flow.offer(request("running", "c"), 0.0)
    flow.reconfigure(settings(tenants=(Tenant("a", weight=3.0), Tenant("b"))), 0.0)
    for number in range(8):
        flow.offer(request(f"a{number}", "a"), 0.0)
        flow.offer(request(f"b{number}", "b"), 0.0)
    last, order = "running", ""
    for _ in range(8):
        (last,) = dispatched(flow.finish(last, Outcome.COMPLETED, Usage(100, 100), 1.0))
        order += last[0]
    assert order.count("a") == 6


def test_a_cap_is_lifted_and_lowered_at_once() -> None:
    flow = flow_of(slots=9, tenants=[Tenant("a", max_running=1)])
    for number in range(4):
        flow.offer(request(f"r{number}"), 0.0)
    assert flow.counts("a").running == 1
    effects = flow.reconfigure(settings(tenants=(Tenant("a", max_running=3),)), 1.0)
    assert dispatched(effects) == ["r1", "r2"]
    flow.reconfigure(settings(tenants=(Tenant("a", max_running=1),)), 2.0)
    assert not dispatched(flow.finish("r0", Outcome.COMPLETED, None, 3.0))
    assert not dispatched(flow.finish("r1", Outcome.COMPLETED, None, 3.0))
    assert dispatched(flow.finish("r2", Outcome.COMPLETED, None, 3.0)) == ["r3"]


def test_more_in_flight_lets_in_what_waits_and_less_cuts_nothing() -> None:
    flow = flow_of(slots=8, spec=FlowSpec(max_in_flight=1))
    for number in range(4):
        flow.offer(request(f"r{number}"), 0.0)
    effects = flow.reconfigure(settings(spec=FlowSpec(max_in_flight=3)), 1.0)
    assert dispatched(effects) == ["r1", "r2"]
    assert not flow.reconfigure(settings(spec=FlowSpec(max_in_flight=1)), 1.0)
    assert flow.counts().running == 3


@pytest.mark.parametrize(("limit", "stays"), [(4, True), (3, False)])
def test_a_rate_measured_with_other_limits_foretells_no_waits(limit: int, *, stays: bool) -> None:
    """Else a Retry-After after fewer may run at once is too short, burst after burst."""
    flow = flow_of(slots=4, spec=FlowSpec(max_in_flight=4, max_queued=4))
    for n in range(40):  # four a second run, and some always wait
        flow.offer(request(f"r{n}"), n * 0.25)
        if n >= 7:
            flow.finish(f"r{n - 7}", Outcome.COMPLETED, Usage(100, 100), n * 0.25)
    seen = flow._state.models["m"].rate
    before = seen.at_least()
    assert before is not None
    flow.reconfigure(settings(spec=FlowSpec(max_in_flight=limit, max_queued=9)), 10.0)
    assert seen.at_least() == (before if stays else None)


def test_a_model_is_unknown_again_once_nothing_is_left_of_it() -> None:
    flow = flow_of()
    flow.offer(request("r"), 0.0)
    flow.offer(request("w"), 0.0)
    flow.leave("one", 0.0)
    flow.reconfigure(settings(models=("n",)), 1.0)
    flow.finish("r", Outcome.COMPLETED, None, 1.0)
    (still,) = flow.offer(request("s"), 1.0)
    assert isinstance(still, Refuse)
    assert still.outcome is Outcome.NO_REPLICA  # one waits for it still
    flow.abandon("w", None, 2.0)
    flow.reconfigure(settings(models=("n",)), 2.0)
    (gone,) = flow.offer(request("t"), 2.0)
    assert isinstance(gone, Refuse)
    assert gone.outcome is Outcome.UNKNOWN_MODEL


def test_settings_that_do_not_fit_change_nothing() -> None:
    flow = flow_of(tenants=[Tenant("a", requests_per_minute=60)])
    wrong = settings(spec=FlowSpec(when_full="refuse"), tenants=(Tenant("a", tier="none"),))
    with pytest.raises(ValueError, match="must be one of standard"):
        flow.reconfigure(wrong, 1.0)
    with pytest.raises(ValueError, match="more than 1"):
        flow.reconfigure(settings(tiers=(Tier("x", 0, 0.6), Tier("y", 1, 0.6))), 1.0)
    assert flow.budget("a", 1.0).limit_requests == 60
    flow.offer(request("r0"), 1.0)
    assert not flow.offer(request("r1"), 1.0)  # it waits: when_full is as it was


def test_after_a_change_all_is_decided_as_if_it_had_been_so_from_the_start() -> None:
    tiers = (Tier("gold", 0, min_share=0.2, theta=2.0, predicted_wait=True), Tier("standard", 1))
    tenants = (Tenant("a", "gold", weight=2.0, max_running=1), Tenant("b", max_queued=1))
    spec = FlowSpec(max_in_flight=2, max_queued=3, queue_timeout=3.0, decode_weight=2.0, replays=0)
    changed = flow_of(slots=4, tenants=[Tenant("a", max_running=9)], tiers=[Tier("old", 5)])
    changed.reconfigure(FlowSettings(spec, tenants, tiers, ("m",)), 0.0)
    fresh = FlowControl(spec, tenants=tenants, tiers=tiers, models=("m",))
    fresh.join(Replica("one", "m", slots=4), 0.0)
    for number in range(20):
        at = number * 0.25
        one, other = (
            f.offer(request(f"r{number}", "abc"[number % 3]), at) for f in (changed, fresh)
        )
        assert list(one) == list(other)
        if number % 5 == 4:
            running = f"r{number - 4}"
            jobs = changed._state.jobs
            runs = running in jobs and jobs[running].legs
            one, other = (
                f.retry(running, "failed", None, at) if runs else f.advance(at)
                for f in (changed, fresh)
            )
            assert list(one) == list(other)
        assert changed.next_deadline() == fresh.next_deadline()
    assert list(changed.advance(60.0)) == list(fresh.advance(60.0))


def test_the_journal_replays_a_change_of_settings() -> None:
    lines: list[str] = []
    journal = Journal(lines.append, FlowSpec(max_in_flight=1), models=["m"])
    journal.join(Replica("one", "m", slots=4), 0.0)
    for number in range(3):
        journal.offer(request(f"r{number}"), 0.0)
    tenants = (Tenant("a", "gold", requests_per_minute=60),)
    journal.reconfigure(settings(tenants=tenants, tiers=(Tier("gold", 0),)), 1.0)
    with pytest.raises(ValueError, match="must be one of"):
        journal.reconfigure(settings(tenants=(Tenant("a", tier="none"),)), 1.0)
    journal.offer(request("r3"), 1.0)
    assert replay(lines) is None
    assert any('"do":"reconfigure"' in line for line in lines)
