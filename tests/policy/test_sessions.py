"""Sessions: what has begun is finished first, what burns too much waits, and shares stay."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.effect import Dispatch, Effect, Refuse
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.session import Burn, session_hash
from surgetank.policy.tenant import Tenant, Tier

SPEC = FlowSpec(queue_timeout=1e6, request_timeout=1e6, max_queued=10_000, max_in_flight=64)


def asks(name: str, session: str = "", tenant: str = "t", *, tokens: int = 100) -> Request:
    return Request(
        name, tenant, "m", 4 * tokens, 4 * tokens,
        prompt_tokens=tokens, max_tokens=25, session=session,
    )  # fmt: skip


def flow(slots: int = 1, *, spec: FlowSpec = SPEC, tenants: tuple[Tenant, ...] = ()) -> FlowControl:
    control = FlowControl(spec, models=["m"], tenants=tenants)
    control.join(Replica("one", "m", slots=slots, kv_tokens=1_000_000), 0.0)
    return control


def end(control: FlowControl, name: str, now: float) -> list[str]:
    """End a request; the ids of those that are sent then."""
    effects = control.finish(name, Outcome.COMPLETED, Usage(100, 25), now)
    return [effect.request.id for effect in effects if isinstance(effect, Dispatch)]


def refused(effects: Sequence[Effect]) -> Refuse:
    (effect,) = effects
    assert isinstance(effect, Refuse)
    return effect


def test_what_waits_of_a_session_that_has_begun_goes_before_what_came_earlier() -> None:
    control = flow()
    control.offer(asks("a1", "a"), 0.0)
    for name, session in (("b1", "b"), ("plain", ""), ("c1", "c"), ("a2", "a"), ("a3", "a")):
        control.offer(asks(name, session), 1.0)
    order, running = [], "a1"
    for step in range(5):
        (running,) = end(control, running, 2.0 + step)
        order.append(running)
    assert order == ["a2", "a3", "b1", "plain", "c1"]


def test_a_fan_out_that_waits_whole_follows_its_first_request() -> None:
    control = flow()
    control.offer(asks("x"), 0.0)
    for name in ("a1", "b1", "a2", "b2", "a3", "b3"):
        control.offer(asks(name, name[0]), 1.0)
    order, running = [], "x"
    for step in range(6):
        (running,) = end(control, running, 2.0 + step)
        order.append(running)
    assert order == ["a1", "a2", "a3", "b1", "b2", "b3"]


def test_a_session_that_was_idle_for_too_long_begins_anew() -> None:
    control = flow()
    control.offer(asks("a1", "a"), 0.0)
    end(control, "a1", 1.0)
    control.offer(asks("x"), 302.0)
    control.offer(asks("b1", "b"), 303.0)
    control.offer(asks("a2", "a"), 304.0)
    assert end(control, "x", 305.0) == ["b1"]


def test_where_there_is_no_room_a_new_session_is_refused_for_one_that_has_begun() -> None:
    control = flow(tenants=(Tenant("t", max_queued=2),))
    control.offer(asks("a1", "a"), 0.0)
    control.offer(asks("b1", "b"), 0.1)
    control.offer(asks("c1", "c"), 0.2)
    gone = refused(control.offer(asks("a2", "a"), 0.3))
    assert (gone.request.id, gone.outcome) == ("c1", Outcome.TENANT_QUEUE_FULL)
    assert refused(control.offer(asks("d1", "d"), 0.4)).request.id == "d1"
    gone = refused(control.offer(asks("a3", "a"), 0.5))
    assert gone.request.id == "b1"
    assert refused(control.offer(asks("a4", "a"), 0.6)).request.id == "a4"
    assert control.counts("t").queued == 2


def test_no_more_sessions_are_under_way_than_may_be_and_who_comes_when_told_may_begin() -> None:
    control = flow(8, tenants=(Tenant("t", max_sessions=2),), spec=FlowSpec(session_timeout=50.0))
    control.offer(asks("a1", "a"), 0.0)
    control.offer(asks("b1", "b"), 10.0)
    end(control, "a1", 20.0)
    first = refused(control.offer(asks("c1", "c"), 30.0))
    second = refused(control.offer(asks("d1", "d"), 30.0))
    assert first.outcome is second.outcome is Outcome.QUOTA_SESSIONS
    assert first.retry_after == pytest.approx(40.0)  # a is over at 70
    assert second.retry_after == pytest.approx(50.0)  # b runs: at 80 at the earliest
    end(control, "b1", 30.0)
    assert refused(control.offer(asks("e1", "e"), 69.0)).request.id == "e1"
    (sent,) = control.offer(asks("c2", "c"), 30.0 + (first.retry_after or 0))
    assert isinstance(sent, Dispatch)
    (more,) = control.offer(asks("c3", "c"), 71.0)
    assert isinstance(more, Dispatch)
    (sent,) = control.offer(asks("d2", "d"), 30.0 + (second.retry_after or 0) + 0.001)
    assert isinstance(sent, Dispatch)


def test_a_session_that_burns_too_much_is_told_when_it_will_have_faded() -> None:
    tenant = Tenant("t", session_tokens_per_minute=250.0)
    control = flow(8, tenants=(tenant,))
    for name in ("a1", "a2"):  # 250 tokens
        (sent,) = control.offer(asks(name, "a"), 0.0)
        assert isinstance(sent, Dispatch)
        end(control, name, 0.0)
    (other,) = control.offer(asks("b1", "b"), 0.0)
    assert isinstance(other, Dispatch)
    (sent,) = control.offer(asks("a3", "a"), 1.0)  # 375 from here
    end(control, "a3", 1.0)
    told = refused(control.offer(asks("a4", "a"), 2.0))
    assert told.outcome is Outcome.QUOTA_SESSION_TOKENS
    assert told.retry_after is not None
    assert told.should_retry
    early = refused(control.offer(asks("a5", "a"), 2.0 + 0.9 * told.retry_after))
    assert early.outcome is Outcome.QUOTA_SESSION_TOKENS
    (sent,) = control.offer(asks("a6", "a"), 2.0 + told.retry_after)
    assert isinstance(sent, Dispatch)


def test_burning_fades_over_a_minute_and_is_corrected() -> None:
    burn = Burn()
    burn.add(600, 0.0)
    assert burn.at(0.0) == 10.0
    assert burn.at(60.0) == pytest.approx(10 / exp(1))
    assert burn.at(burn.wait(2.5, 0.0)) == pytest.approx(2.5)
    burn.add(-6000, 60.0)
    assert burn.at(60.0) == 0.0
    assert burn.at(50.0) == 0.0  # time that runs backwards


def test_a_session_goes_where_it_was_served_while_that_is_no_more_loaded() -> None:
    control = flow(64)
    control.join(Replica("two", "m", slots=64, kv_tokens=1_000_000), 0.0)
    (first,) = control.offer(asks("a1", "a", tokens=4000), 0.0)
    assert isinstance(first, Dispatch)
    home = first.legs
    control.first_token("a1", 1.0)
    end(control, "a1", 2.0)
    (other,) = control.offer(asks("x", tokens=4000), 3.0)
    assert isinstance(other, Dispatch)
    control.first_token("x", 3.5)
    (again,) = control.offer(asks("a2", "a", tokens=4000), 4.0)
    assert isinstance(again, Dispatch)
    assert again.legs == home
    control.leave(home[0].replica, 5.0)
    (elsewhere,) = control.offer(asks("a3", "a", tokens=4000), 6.0)
    assert isinstance(elsewhere, Dispatch)
    assert elsewhere.legs != home


def test_sessions_are_shown_by_a_hash_and_the_one_that_burns_most_first() -> None:
    control = flow(8)
    control.offer(asks("a1", "secret-a"), 0.0)
    control.offer(asks("b1", "secret-b"), 0.0)
    control.offer(asks("b2", "secret-b"), 0.0)
    end(control, "a1", 1.0)
    views = control.sessions(2.0)
    assert [(v.here, v.served, v.begun) for v in views] == [(2, 0, True), (0, 1, True)]
    assert views[0].session == f"{session_hash(asks('z', 'secret-b').tenant, 'secret-b'):016x}"
    assert "secret" not in repr(views)
    assert control.sessions(2.0, most=1) == views[:1]


@settings(max_examples=15, deadline=None)
@given(
    weights=st.lists(st.floats(0.2, 5), min_size=2, max_size=3),
    sizes=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 100)), min_size=90, max_size=90),
    sessions=st.lists(st.sampled_from(["", "x", "y", "z"]), min_size=90, max_size=90),
)
def test_weighted_shares_hold_whoever_has_sessions(
    weights: list[float], sizes: list[tuple[int, int]], sessions: list[str]
) -> None:
    names = "abc"[: len(weights)]
    tenants = [Tenant(n, weight=w) for n, w in zip(names, weights, strict=True)]
    control = FlowControl(SPEC, tenants=tenants)
    control.join(Replica("one", "m", slots=1), 0.0)
    running = ""
    for i, ((prompt, output), session) in enumerate(zip(sizes, sessions, strict=True)):
        tenant = names[i % len(names)]
        request = Request(
            f"{tenant}{i}", tenant, "m", 4 * prompt,
            prompt_tokens=prompt, max_tokens=output, session=session,
        )  # fmt: skip
        for effect in control.offer(request, 0.0):
            running = effect.request.id
    got = dict.fromkeys(names, 0.0)
    for step in range(90):
        tenant, number = running[0], int(running[1:])
        prompt, output = sizes[number]
        effects: list[Effect] = list(
            control.finish(running, Outcome.COMPLETED, Usage(prompt, output), float(step))
        )
        got[tenant] += prompt + 4 * output
        if not all(control.counts(n).queued for n in names):
            break
        running = effects[0].request.id
        normalised = [got[n] / w for n, w in zip(names, weights, strict=True)]
        assert max(normalised) - min(normalised) <= 2 * 800 / min(weights)


def test_a_tier_below_keeps_its_minimum_share_of_sessions_above() -> None:
    control = FlowControl(
        SPEC,
        tenants=[Tenant("h", "high"), Tenant("l", "low")],
        tiers=[Tier("high", 0), Tier("low", 2, min_share=0.25)],
    )
    control.join(Replica("one", "m", slots=1), 0.0)
    running = ""
    for i in range(100):
        for effect in control.offer(asks(f"h{i}", "one", "h"), 0.0):
            running = effect.request.id
        control.offer(asks(f"l{i}", "", "l"), 0.0)
    order = []
    for step in range(100):
        (running,) = end(control, running, 1.0 + step)
        order.append(running[0])
    assert abs(order.count("l") - 25) <= 2


def test_a_foretold_wait_refuses_who_begins_and_not_who_has_begun() -> None:
    control = flow()
    control.offer(asks("a1", "a"), 0.0)
    for step in range(30):  # the rate of service is learnt in a backlog: a request a second
        control.offer(asks(f"a{step + 2}", "a"), step + 0.5)
        end(control, f"a{step + 1}", step + 1.0)
    begun = [control.offer(asks(f"more{n}", "a"), 30.5) for n in range(8)]
    assert not any(begun)  # all of them wait, for 8 s of an objective of 2
    assert refused(control.offer(asks("new", "n"), 30.5)).outcome is Outcome.PREDICTED_WAIT
