"""Limits on levels: all or nothing, a bound on every window, and what clients are told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.effect import Dispatch, Effect, Refuse
from surgetank.policy.flow import FlowControl, FlowSettings, FlowSpec
from surgetank.policy.journal import Journal, replay
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import KeyLimits, ModelLimits, Tenant, Tier

LEVELS = (("", ""), ("", "m"), ("k", ""), ("k", "m"))


def request(name: str, key: str = "", model: str = "m", **more: Any) -> Request:
    fields = {"prompt_bytes": 400, "prompt_tokens": 100, "max_tokens": 100}
    return Request(id=name, tenant="a", model=model, key=key, **{**fields, **more})


def flow_of(*tenants: Tenant, spec: FlowSpec | None = None, **more: Any) -> FlowControl:
    flow = FlowControl(spec or FlowSpec(max_in_flight=9999), tenants=tenants, **more)
    for model in ("m", "n"):
        flow.join(Replica(f"of {model}", model, slots=9999), 0.0)
    return flow


def only(effects: Sequence[Effect]) -> Effect:
    (effect,) = effects
    return effect


def refusal(effects: Sequence[Effect]) -> Refuse:
    effect = only(effects)
    assert isinstance(effect, Refuse), effect
    return effect


def left(flow: FlowControl, now: float = 0.0) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Of each level requests, tokens and places that are left."""
    return {
        (key, model): (b.remaining_requests, b.remaining_tokens, b.remaining_concurrent)
        for key, model, b in flow.levels("a", now)
    }


def on_all_levels(**limits: Any) -> Tenant:
    model = ModelLimits("m", **limits)
    return Tenant("a", **limits, keys=(KeyLimits("k", **limits, models=(model,)),), models=(model,))


# What a request counts on.


def test_a_request_takes_from_each_level_it_belongs_to_and_from_no_other() -> None:
    flow = flow_of(on_all_levels(requests_per_minute=10, tokens_per_minute=2000, max_concurrent=5))
    flow.offer(request("r1", "k", "m"), 0.0)
    assert left(flow) == dict.fromkeys(LEVELS, (9, 1800, 4))
    flow.offer(request("r2", "other", "m"), 0.0)
    flow.offer(request("r3", "k", "n"), 0.0)
    assert left(flow) == {
        ("", ""): (7, 1400, 2),
        ("", "m"): (8, 1600, 3),
        ("k", ""): (8, 1600, 3),
        ("k", "m"): (9, 1800, 4),
    }


@pytest.mark.parametrize(
    ("limit", "outcome", "words"),
    [
        ({"requests_per_minute": 1}, Outcome.QUOTA_REQUESTS, "requests per minute"),
        ({"tokens_per_minute": 300}, Outcome.QUOTA_TOKENS, "tokens per minute"),
        ({"input_tokens_per_minute": 150}, Outcome.QUOTA_TOKENS, "input tokens per minute"),
        ({"output_tokens_per_minute": 150}, Outcome.QUOTA_TOKENS, "output tokens per minute"),
        ({"max_concurrent": 1}, Outcome.TENANT_BUSY, "requests at once"),
    ],
)
@pytest.mark.parametrize("place", LEVELS)
def test_what_one_level_refuses_leaves_all_others_untouched_and_is_told_whose_limit_it_was(
    place: tuple[str, str], limit: dict[str, Any], outcome: Outcome, words: str
) -> None:
    roomy = {"requests_per_minute": 50, "tokens_per_minute": 9000, "max_concurrent": 50}
    tight = {name: roomy | (limit if name == place else {}) for name in LEVELS}
    flow = flow_of(
        Tenant(
            "a",
            **tight["", ""],
            keys=(KeyLimits("k", **tight["k", ""], models=(ModelLimits("m", **tight["k", "m"]),)),),
            models=(ModelLimits("m", **tight["", "m"]),),
        )
    )
    assert isinstance(only(flow.offer(request("r1", "k"), 0.0)), Dispatch)
    before = left(flow)
    refused = refusal(flow.offer(request("r2", "k"), 0.0))
    assert left(flow) == before
    key, model = place
    of_model = f" of model {model}" if model else ""
    assert refused.outcome is outcome
    assert refused.reason == f"{f'key {key}' if key else 'the tenant'}: {words}{of_model}"
    assert refused.retry_after is not None
    assert flow.counts("a").running == 1


def test_a_key_or_model_without_limits_counts_on_the_levels_above_it() -> None:
    flow = flow_of(Tenant("a", keys=(KeyLimits("k", requests_per_minute=1),)))
    for number in range(5):
        assert isinstance(only(flow.offer(request(f"r{number}", "free"), 0.0)), Dispatch)
    assert isinstance(only(flow.offer(request("k1", "k"), 0.0)), Dispatch)
    assert refusal(flow.offer(request("k2", "k"), 0.0)).outcome is Outcome.QUOTA_REQUESTS


def test_more_than_a_bucket_ever_holds_is_told_so_by_that_bucket() -> None:
    flow = flow_of(
        Tenant("a", requests_per_minute=1, keys=(KeyLimits("k", output_tokens_per_minute=50),))
    )
    flow.offer(request("r1"), 0.0)
    refused = refusal(flow.offer(request("r2", "k"), 0.0))  # the first limit would have waited
    assert (refused.retry_after, refused.should_retry) == (None, False)
    assert refused.reason == (
        "key k: output tokens per minute: 100 are more than its bucket ever holds"
    )


def test_who_comes_back_when_told_finds_a_place_of_those_at_once() -> None:
    flow = flow_of(Tenant("a", keys=(KeyLimits("k", max_concurrent=2),)))
    now = 0.0
    for number in range(4):  # a request is here for 3 s
        flow.offer(request(f"w{number}", "k"), now)
        now += 3.0
        flow.finish(f"w{number}", Outcome.COMPLETED, Usage(100, 100), now)
    flow.offer(request("r1", "k"), now)
    flow.offer(request("r2", "k"), now + 1.0)
    told = refusal(flow.offer(request("r3", "k"), now + 1.0)).retry_after
    assert told is not None
    assert told >= 2.0
    flow.finish("r1", Outcome.COMPLETED, Usage(100, 100), now + 3.0)
    back = now + 1.0 + told
    assert refusal(flow.offer(request("thief", "k", prompt_bytes=1), back)).retry_after
    again = request("r3 again", "k", client_retry=1)
    assert isinstance(only(flow.offer(again, back)), Dispatch)


# What is taken ahead.


def test_the_most_that_may_come_is_taken_ahead_or_what_came_lately() -> None:
    most = Tenant("a", tokens_per_minute=9000)
    expected = replace(most, reserve="expected")
    for tenant, taken in ((most, 100 + 3 * 400), (expected, 100 + 3 * 256)):
        flow = flow_of(tenant)
        flow.offer(request("r", max_tokens=400, choices=3), 0.0)
        assert flow.budget("a", 0.0).remaining_tokens == 9000 - taken
        flow.finish("r", Outcome.COMPLETED, Usage(100, 30), 0.0)
        assert flow.budget("a", 0.0).remaining_tokens == 9000 - 130


def test_a_tier_bounds_what_is_taken_of_those_who_give_no_bound() -> None:
    flow = flow_of(Tenant("a", tokens_per_minute=9000), tiers=[Tier(max_output_tokens=1500)])
    effect = only(flow.offer(request("r", max_tokens=None), 0.0))
    assert isinstance(effect, Dispatch)
    assert effect.max_tokens == 1500
    assert flow.budget("a", 0.0).remaining_tokens == 9000 - 100 - 1500


# Output that a tier gives.


@pytest.mark.parametrize(
    ("asked", "written", "refused"),
    [(2001, None, True), (2000, None, False), (5, None, False), (None, 2000, False)],
)
def test_a_tier_may_refuse_what_asks_for_more_before_anything_is_taken(
    asked: int | None, written: int | None, *, refused: bool
) -> None:
    tiers = [Tier(max_output_tokens=2000, when_above="refuse")]
    flow = flow_of(Tenant("a", requests_per_minute=5), tiers=tiers)
    effect = only(flow.offer(request("r", max_tokens=asked), 0.0))
    if refused:
        assert isinstance(effect, Refuse)
        assert (effect.outcome, effect.should_retry) == (Outcome.OUTPUT_TOO_LONG, False)
        assert effect.reason == (
            "2001 output tokens are asked for: tier standard gives 2000 at most"
        )
        assert flow.budget("a", 0.0).remaining_requests == 5
    else:
        assert isinstance(effect, Dispatch)
        assert effect.max_tokens == written


def test_a_tenant_without_limits_is_held_to_its_tiers_output_too() -> None:
    flow = flow_of(tiers=[Tier(max_output_tokens=50, when_above="refuse")])
    assert refusal(flow.offer(request("r"), 0.0)).outcome is Outcome.OUTPUT_TOO_LONG
    assert isinstance(only(flow.offer(request("s", max_tokens=50), 0.0)), Dispatch)


# What clients are told.


def test_the_three_numbers_are_of_the_level_with_the_least_left() -> None:
    flow = flow_of(
        Tenant(
            "a",
            requests_per_minute=60,
            tokens_per_minute=60_000,
            input_tokens_per_minute=30_000,
            max_concurrent=9,
            keys=(
                KeyLimits("k", tokens_per_minute=6000, burst_seconds=10, max_concurrent=3),
                KeyLimits("wide", tokens_per_minute=600_000, requests_per_minute=600),
            ),
            models=(ModelLimits("m", requests_per_minute=6, output_tokens_per_minute=12_000),),
        )
    )
    flow.offer(request("r1", "k", "m"), 0.0)
    told = flow.budget("a", 0.0, "k", "m")
    assert told[:3] == (6, 5, 10.0)  # of the model
    assert told[3:6] == (1000, 800, 2.0)  # of the key: 100 a second
    assert told[6:8] == (30_000, 29_900)
    assert told.reset_input_tokens == pytest.approx(0.2)
    assert told[9:11] == (12_000, 11_900)
    assert told.reset_output_tokens == pytest.approx(0.5)
    assert told[12:] == (3, 2)
    told = flow.budget("a", 0.0, "wide", "n")
    assert told[:3] == (60, 59, 1.0)
    assert told[3:5] == (60_000, 59_800)
    assert told.reset_tokens == pytest.approx(0.2)
    assert told[9:] == (None, None, None, 9, 8)


# No window passes a bucket.


def most_in_any_window(admitted: Sequence[tuple[float, float]], rate: float) -> float:
    """The largest, over all windows, of what was let in less the window's refill."""
    over = most = last = 0.0
    for at, amount in admitted:
        over = max(0.0, over - rate * (at - last)) + amount
        most, last = max(most, over), at
    return most


def test_the_largest_window_is_found() -> None:
    assert most_in_any_window([(0, 5), (1, 4), (100, 6), (100, 2), (101, 3)], 2.0) == 9.0


ENDINGS = ("all", "part", "nothing", "left", "failed")
CALLS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.0, 0.1, 2.0, 30.0]),  # after the one before, s
        st.sampled_from(["", "k", "j"]),
        st.sampled_from(["m", "n"]),
        st.integers(1, 300),  # prompt
        st.integers(1, 400),  # most output
        st.sampled_from(ENDINGS),
        st.sampled_from([0.0, 1.0, 15.0, 45.0]),  # it is here, s
        st.sampled_from([1, 1, 20]),  # of them at once
    ),
    min_size=3,
    max_size=20,
)
LIMITS: dict[str, Any] = {
    "requests_per_minute": 120, "tokens_per_minute": 3000, "input_tokens_per_minute": 1200,
    "output_tokens_per_minute": 2000, "burst_seconds": 20.0,
}  # fmt: skip


def play(flow: FlowControl, calls: Sequence[Any]) -> list[tuple[float, Request, Usage | None]]:
    """Offer them, end each as it says; what was let in, and what it used (None: nothing).

    The last of a call's values is how many come at once.
    """
    now, ends, used = 0.0, list[Any](), dict[str, tuple[float, Request, Usage | None]]()

    def end(until: float) -> None:
        while ends and ends[0][0] <= until:
            at, _, one, ending, most = heappop(ends)
            usage: Usage | None = Usage(one.prompt_tokens, most)
            if ending in {"part", "left"}:
                usage = Usage(one.prompt_tokens, most // 7)
            if ending == "left":
                flow.abandon(one.id, usage, at)
            elif ending == "nothing":
                usage = None
                flow.finish(one.id, Outcome.SHUTDOWN, None, at)
            elif ending == "failed":
                usage = Usage(0, 0)
                flow.finish(one.id, Outcome.UPSTREAM_FAILED, None, at)
            else:
                flow.finish(one.id, Outcome.COMPLETED, usage, at)
            used[one.id] = (used[one.id][0], one, usage)

    for number, (gap, key, model, prompt, most, ending, stay, times) in enumerate(calls):
        now += gap
        end(now)
        for each in range(times):
            one = request(f"r{number}-{each}", key, model, prompt_tokens=prompt, max_tokens=most)
            if isinstance(only(flow.offer(one, now)), Dispatch):
                used[one.id] = (now, one, Usage(prompt, most))
                heappush(ends, (now + stay, number * 1000 + each, one, ending, most))
    end(now + 100.0)
    return list(used.values())


def check_windows(let_in: Sequence[tuple[float, Request, Usage | None]]) -> float:
    """Hold every level's every bucket to its bound; how full the fullest window was, 0..1."""
    fullest = 0.0
    kinds: dict[str, Callable[[Usage], float]] = {
        "requests_per_minute": lambda _: 1.0,
        "tokens_per_minute": lambda u: (u.prompt_tokens or 0) + u.output_tokens,
        "input_tokens_per_minute": lambda u: u.prompt_tokens or 0,
        "output_tokens_per_minute": lambda u: u.output_tokens,
    }
    for key, model in LEVELS:
        here = [
            (at, usage)
            for at, one, usage in let_in
            if usage is not None and key in {"", one.key} and model in {"", one.model}
        ]
        for name, count in kinds.items():
            rate = LIMITS[name] / 60
            burst = rate * LIMITS["burst_seconds"]
            most = most_in_any_window([(at, count(usage)) for at, usage in here], rate)
            assert most <= burst + 1e-6
            fullest = max(fullest, most / burst)
    return fullest


@given(CALLS)
@settings(deadline=None, max_examples=60)
def test_in_no_window_and_on_no_level_more_is_used_than_bucket_and_refill(calls: Any) -> None:
    check_windows(play(flow_of(on_all_levels(**LIMITS)), calls))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_burst_of_thirty_times_the_bucket_gets_the_bucket_and_no_token_more(ending: str) -> None:
    """1000 tokens, 30,000 asked for at once; again when all is refilled, and as the first end."""
    calls = [(gap, "k", "m", 72, 128, ending, 45.0, 150) for gap in (0.0, 30.0, 15.001)]
    flow = flow_of(on_all_levels(**LIMITS))
    let_in = play(flow, calls)
    fullest = check_windows(let_in)
    if ending == "all":
        assert fullest == 1.0  # it is the bound that holds, not the load that is low


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_a_long_request_did_not_use_is_no_second_burst(ending: str) -> None:
    """600 tokens are taken for 45 s; just before and after its end everybody else comes."""
    calls = [(0.0, "k", "m", 200, 400, ending, 45.0, 1)]
    calls += [(gap, "k", "m", 72, 128, "all", 1.0, 150) for gap in (44.9, 0.2)]
    assert check_windows(play(flow_of(on_all_levels(**LIMITS)), calls)) == 1.0


def test_a_bucket_that_filled_up_meanwhile_gets_nothing_back_on_top() -> None:
    """Else a burst that empties it would be followed by another, of what was given back."""
    bucket = TokenBucket(10, 100)
    assert bucket.reserve(60, 0.0, whose="long")
    assert bucket.reserve(100, 6.0, whose="burst")  # it is full again
    bucket.refund(60, 6.0, whose="long")
    assert bucket.level(6.0) == 0.0
    bucket.settle(100, 30, 6.0, whose="burst")
    assert bucket.level(6.0) == 70.0


def test_what_is_given_back_is_whole_while_nothing_was_refilled_in_its_place() -> None:
    bucket = TokenBucket(10, 100)
    assert bucket.reserve(60, 0.0, whose="a")
    assert bucket.reserve(40, 0.0, whose="b")
    bucket.settle(40, 40, 2.0, whose="b")  # 20 were refilled, at the cost of a's credit
    assert bucket.level(2.0) == 20.0
    bucket.refund(60, 2.0, whose="a")
    assert bucket.level(2.0) == 60.0  # 100, less the 40 that b used
    assert bucket.level(6.0) == 100.0


# Steady load.


@pytest.mark.parametrize("most", [100, 300])
def test_a_steady_load_at_95_percent_of_every_level_is_never_refused(most: int) -> None:
    """Two keys on two models, 100 + 100 tokens used of 100 + `most` taken, 5 s each."""
    per_key_and_model: dict[str, Any] = {"requests_per_minute": 60, "tokens_per_minute": 12_000}
    models = tuple(ModelLimits(m, **per_key_and_model) for m in "mn")
    per_key: dict[str, Any] = {name: 2 * limit for name, limit in per_key_and_model.items()}
    whole: dict[str, Any] = {name: 4 * limit for name, limit in per_key_and_model.items()}
    keys = tuple(KeyLimits(k, **per_key, models=models) for k in "kj")
    both = tuple(ModelLimits(m, **per_key) for m in "mn")
    flow = flow_of(Tenant("a", **whole, keys=keys, models=both))
    ends: list[tuple[float, str]] = []
    for number in range(1200):  # 300 s of each
        now = number // 4 / 0.95
        while ends and ends[0][0] <= now:
            at, name = ends.pop(0)
            flow.finish(name, Outcome.COMPLETED, Usage(100, 100), at)
        one = request(f"r{number}", "kj"[number % 2], "mn"[number // 2 % 2], max_tokens=most)
        assert isinstance(only(flow.offer(one, now)), Dispatch), (number, now)
        ends.append((now + 5.0, one.id))


# Settings that change.


def test_a_reload_keeps_the_part_that_is_filled_on_every_level_and_settles_what_runs() -> None:
    flow = flow_of(on_all_levels(requests_per_minute=10, tokens_per_minute=2000, max_concurrent=5))
    for number in range(5):
        flow.offer(request(f"r{number}", "k"), 0.0)
    flow.finish("r0", Outcome.COMPLETED, Usage(100, 100), 0.0)
    wider = on_all_levels(requests_per_minute=20, tokens_per_minute=4000, max_concurrent=8)
    flow.reconfigure(FlowSettings(FlowSpec(), (wider,)), 0.0)
    assert left(flow) == dict.fromkeys(LEVELS, (10, 2000, 4))  # halves of twice as much
    for number in range(1, 5):
        flow.finish(f"r{number}", Outcome.COMPLETED, Usage(100, 0), 0.0)
    assert left(flow) == dict.fromkeys(LEVELS, (10, 2400, 8))


def test_a_level_that_is_new_counts_what_runs_and_one_that_goes_forgets_it() -> None:
    flow = flow_of(Tenant("a"))
    flow.offer(request("r0", "k"), 0.0)
    flow.offer(request("r1", "j"), 0.0)
    limits: Any = {"requests_per_minute": 10, "tokens_per_minute": 2000, "max_concurrent": 1}
    tenant = Tenant("a", keys=(KeyLimits("k", **limits),))
    flow.reconfigure(FlowSettings(FlowSpec(), (tenant,)), 0.0)
    assert left(flow) == {("k", ""): (9, 1800, 0)}
    assert refusal(flow.offer(request("r2", "k"), 0.0)).outcome is Outcome.TENANT_BUSY
    flow.finish("r0", Outcome.COMPLETED, Usage(50, 50), 0.0)
    flow.finish("r1", Outcome.COMPLETED, Usage(50, 50), 0.0)
    assert left(flow) == {("k", ""): (9, 1900, 1)}
    flow.reconfigure(FlowSettings(FlowSpec(), (Tenant("a"),)), 0.0)
    assert left(flow) == {}


def test_a_changed_way_of_reserving_settles_what_was_taken_the_other_way() -> None:
    flow = flow_of(Tenant("a", tokens_per_minute=9000))
    flow.offer(request("r", max_tokens=5000), 0.0)
    changed = Tenant("a", tokens_per_minute=9000, reserve="expected")
    flow.reconfigure(FlowSettings(FlowSpec(), (changed,)), 0.0)
    assert flow.budget("a", 0.0).remaining_tokens == 9000 - 5100
    flow.finish("r", Outcome.COMPLETED, Usage(100, 20), 0.0)
    assert flow.budget("a", 0.0).remaining_tokens == 9000 - 120


def test_the_journal_holds_levels_and_replays_them() -> None:
    lines: list[str] = []
    tenant = on_all_levels(requests_per_minute=2, max_concurrent=1)
    journal = Journal(lines.append, FlowSpec(), tenants=[tenant])
    journal.join(Replica("one", "m", slots=4), 0.0)
    for number in range(3):
        journal.offer(request(f"r{number}", "k"), 0.0)
    journal.reconfigure(FlowSettings(FlowSpec(), (tenant,)), 1.0)
    journal.offer(request("r3", "k"), 1.0)
    assert replay(lines) is None
    assert any('"keys":[{"name":"k"' in line for line in lines)
