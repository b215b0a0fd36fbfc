"""The order inside a tenant's line: what is learnt meanwhile moves nobody past its equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.effect import Dispatch, Effect
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.ordering import place
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tier

PATIENT = FlowSpec(queue_timeout=1e6, request_timeout=1e6, max_queued=10_000)
NEVER_TOO_LONG = Tier(predicted_wait=False)
KINDS = (
    {"prompt_bytes": 40},
    {"prompt_bytes": 4000, "prompt_chars": 2000},
    {"prompt_bytes": 400, "prompt_tokens": 90, "max_tokens": 20},
    {"prompt_bytes": 400, "max_tokens": 700, "choices": 2},
    {"prompt_bytes": 4000, "ttft_objective": 0.4},
    {"prompt_bytes": 40, "session": "s"},
    {"prompt_bytes": 900, "prompt_chars": 900, "prefix": (1, 2)},
)
COMES = st.tuples(st.just("come"), st.integers(0, len(KINDS) - 1), st.floats(0, 0.7))
EVENTS = st.one_of(
    COMES,
    COMES,  # so that a line grows
    st.tuples(st.just("first"), st.floats(0, 3), st.just(0)),
    st.tuples(
        st.just("end"),
        st.one_of(st.integers(0, 6), st.integers(0, 5000)),
        st.tuples(st.integers(1, 6000), st.integers(0, 3000), st.floats(0, 3)),
    ),
)


def ask(number: int, kind: int) -> Request:
    return Request(f"{kind}-{number}", "t", "m", **KINDS[kind])


@settings(max_examples=200, deadline=None)
@given(
    slots=st.integers(1, 2),
    ageing=st.sampled_from((5.0, 500.0)),
    bucket=st.sampled_from((0.5, 100.0)),
    events=st.lists(EVENTS, min_size=20, max_size=120),
)
def test_equal_requests_start_in_the_order_they_came_whatever_is_learnt_meanwhile(
    slots: int, ageing: float, bucket: float, events: list[tuple[str, int, object]]
) -> None:
    spec = replace(PATIENT, ageing=ageing, slack_bucket=bucket)
    flow = FlowControl(spec, tiers=[NEVER_TOO_LONG])
    flow.join(Replica("one", "m", slots=slots), 0.0)
    running: list[str] = []
    started: list[str] = []
    now, number = 0.0, 0

    def took(effects: Sequence[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Dispatch), effect
            running.append(effect.request.id)
            started.append(effect.request.id)

    for event, what, more in events:
        if event == "come":
            assert isinstance(more, float)
            now, number = now + more, number + 1
            took(flow.offer(ask(number, what), now))
        elif running and event == "first":
            now += what
            took(flow.first_token(running[-1], now))
        elif running and isinstance(more, tuple):
            prompt, cached, seconds = more
            now += seconds
            usage = Usage(prompt, what, min(prompt, cached))
            took(flow.finish(running.pop(0), Outcome.COMPLETED, usage, now))
    while running:
        now += 0.1
        took(flow.finish(running.pop(0), Outcome.COMPLETED, Usage(5, 3), now))
    assert len(started) == number
    for kind in range(len(KINDS)):
        mine = [int(name.split("-")[1]) for name in started if name[0] == str(kind)]
        assert all(one < other for one, other in pairwise(mine)), (kind, mine)


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 8000), min_size=2, max_size=60),
    answers=st.lists(st.integers(0, 4000), min_size=60, max_size=60),
)
def test_a_line_that_is_measured_anew_holds_what_it_held_and_its_cost_is_the_sum(
    sizes: list[int], answers: list[int]
) -> None:
    flow = FlowControl(PATIENT)
    flow.join(Replica("one", "m", slots=1), 0.0)
    running = ""
    for i, size in enumerate(sizes):
        for effect in flow.offer(Request(f"q{i}", "t", "m", size), 0.01 * i):
            assert isinstance(effect, Dispatch)
            running = effect.request.id
    lane = flow._state.accounts["t"].lanes["m"]
    for i, answer in enumerate(answers[: len(sizes) // 2]):
        now = 1.0 + i
        (then,) = flow.finish(running, Outcome.COMPLETED, Usage(None, answer), now)
        assert isinstance(then, Dispatch)
        running = then.request.id
        flow.offer(Request(f"n{i}", "t", "m", 40), now)
        waiting = [job for job in flow._state.jobs.values() if job.waiting is not None]
        assert lane.size == len(waiting)
        total = sum(job.cost for job in waiting)
        assert abs(lane.cost - total) <= 1e-6 * (1 + total)
        assert abs(lane.level.cost - total) <= 1e-6 * (1 + total)
        assert lane.head().item is min(waiting, key=lambda job: place(job, PATIENT))


def test_a_default_that_was_far_too_long_refuses_nobody_once_answers_are_known() -> None:
    """Three answers of 3 tokens in 0.6 s: those that came before are not foretold by 256 each.

    By that each would take 17 s, and all five that wait 86; they take a second.
    """
    flow = FlowControl(FlowSpec())
    flow.join(Replica("one", "m", slots=1), 0.0)
    for i in range(8):
        assert all(isinstance(e, Dispatch) for e in flow.offer(Request(f"q{i}", "t", "m", 40), 0.0))
    for i in range(3):
        flow.finish(f"q{i}", Outcome.COMPLETED, Usage(10, 3), 0.2 * (i + 1))
    assert list(flow.offer(Request("later", "t", "m", 40), 0.61)) == []
    assert flow.counts().refused == 0


def test_what_says_it_is_smaller_or_more_urgent_still_overtakes() -> None:
    flow = FlowControl(FlowSpec())
    flow.join(Replica("one", "m", slots=1), 0.0)
    flow.offer(Request("runs", "t", "m", 40), 0.0)
    flow.offer(Request("large", "t", "m", 4000), 0.1)
    flow.offer(Request("small", "t", "m", 40), 0.11)
    flow.offer(Request("urgent", "t", "m", 4000, ttft_objective=0.5), 0.12)
    names = []
    running = "runs"
    for i in range(3):
        (then,) = flow.finish(running, Outcome.COMPLETED, Usage(10, 3), 0.2 * (i + 1))
        running = then.request.id
        names.append(running)
    assert names == ["urgent", "small", "large"]
