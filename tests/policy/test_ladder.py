"""The degradation ladder: its steps and their times, and what they take from whom."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.policy.degrading import session_share
from surgetank.policy.effect import Dispatch, Effect, Refuse
from surgetank.policy.flow import FlowControl, FlowSettings, FlowSpec
from surgetank.policy.journal import Journal, replay
from surgetank.policy.ladder import (
    TOP,
    DegradationLadder,
    Fallback,
    LadderSpec,
    Rung,
    Step,
    rungs_of,
)
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier

SPEC = LadderSpec(enabled=True)
TIERS = (Tier("core", priority=0), Tier("standard", priority=1), Tier("batch", priority=2))
TENANTS = (
    Tenant(
        "core", tier="core"
    ),  # with a small share of the queue: it has no right to others' places
    *(Tenant(name, tier=name, weight=5) for name in ("standard", "batch")),
)

# The ladder alone: looked at four times a second.

PRESSURES = st.lists(
    st.tuples(st.integers(1, 40), st.sampled_from([0.0, 0.3, 0.39, 0.5, 0.76, 2.0])), max_size=30
)


def climb(ladder: DegradationLadder, phases: Sequence[tuple[int, float]]) -> list[Step]:
    """Look at so many times with each pressure, a quarter of a second apart."""
    steps: list[Step] = []
    now = 100.0
    for looks, pressure in phases:
        for _ in range(looks):
            step = ladder.look(pressure, None, "pressed", now)
            if step is not None:
                steps.append(step)
            now += 0.25
    return steps


@given(PRESSURES)
def test_it_takes_one_step_at_a_time_and_keeps_the_times_between(
    phases: list[tuple[int, float]],
) -> None:
    steps = climb(DegradationLadder("m", SPEC), phases)
    level, before = 0, -1e9
    for step in steps:
        assert step.was == level
        assert abs(step.level - step.was) == 1
        assert 0 <= step.level <= TOP
        assert step.at - before >= (2.0 if step.level > step.was else 10.0)
        level, before = step.level, step.at


@given(PRESSURES)
def test_two_reversals_are_a_minute_apart(phases: list[tuple[int, float]]) -> None:
    steps = climb(DegradationLadder("m", SPEC), phases)
    turns = [
        b.at for a, b in pairwise(steps) if a.level < a.was and b.level > b.was and a.level > 0
    ]
    assert all(b - a >= 60 for a, b in pairwise(turns))


@given(PRESSURES)
def test_after_a_calm_it_is_back_at_0(phases: list[tuple[int, float]]) -> None:
    ladder = DegradationLadder("m", SPEC)
    climb(ladder, phases)
    now = 1000.0
    while now < 2000.0:
        ladder.look(0.0, None, "", now)
        now += 0.25
    assert ladder.level == 0


def test_between_the_bounds_it_stays_where_it_is() -> None:
    ladder = DegradationLadder("m", SPEC)
    assert climb(ladder, [(1, 0.8), (400, 0.5)]) == [Step(100.0, "m", 0, 1, "pressed")]


def test_it_stays_up_while_what_comes_would_not_fit() -> None:
    ladder = DegradationLadder("m", SPEC)
    climb(ladder, [(17, 0.8)])
    assert ladder.level == 3
    now = 105.0
    for second in range(60):  # 400 a second with the batch, 200 without it, of 300 it can do
        ladder.offered.add(Rung.CORE, 100.0, 100.0, now + second)
        ladder.offered.add(Rung.STANDARD, 150.0, 100.0, now + second)
        ladder.offered.add(Rung.BATCH, 200.0, 200.0, now + second)
        assert ladder.look(0.1, 300.0, "", now + second) is None
    below = [ladder.look(0.1, 300.0, "", now + 60 + second) for second in range(60)]
    assert [step.level for step in below if step] == [2, 1, 0]


@pytest.mark.parametrize("waiting", [False, True], ids=["nothing waits", "some wait"])
def test_from_step_1_it_comes_down_only_when_what_comes_is_served(*, waiting: bool) -> None:
    ladder = DegradationLadder("m", SPEC)
    climb(ladder, [(1, 0.8)])
    steps = []
    for second in range(60):  # 400 a second; it was seen to do 300 while some waited
        ladder.offered.add(Rung.STANDARD, 400.0, 400.0, 101.0 + second)
        step = ladder.look(0.1, 300.0, "", 101.0 + second, waiting=waiting)
        steps += [] if step is None else [step.level]
    assert steps == ([] if waiting else [0])


# Who is what.


def test_tiers_are_core_standard_or_batch_by_priority_unless_they_say_so() -> None:
    tiers = (Tier("gold", 0), Tier(), Tier("silver", 1), Tier("bulk", 5))
    core, standard, batch = Rung.CORE, Rung.STANDARD, Rung.BATCH
    assert rungs_of(tiers) == {
        "gold": core, "standard": standard, "silver": standard, "bulk": batch
    }  # fmt: skip
    assert rungs_of((Tier("people"), Tier("bulk", 2))) == {"people": core, "bulk": batch}
    told = rungs_of((Tier("gold", 0), Tier(), Tier("bulk", 5, degrades="core")))
    assert told["bulk"] is core


# In a flow: one replica with four slots, and requests that are told apart by their tenants.


class Flow:
    """A journalled flow that is pressed by a core request that waits."""

    def __init__(self, spec: LadderSpec = SPEC, **settings: Any) -> None:
        self.lines: list[str] = []
        self.journal = Journal(
            self.lines.append,
            FlowSpec(**settings),
            tenants=TENANTS,
            tiers=TIERS,
            models=("m", "small"),
            ladder=spec,
        )
        self.flow = self.journal.flow
        self.number = 0
        self.effects: list[Effect] = []
        self.take(self.journal.join(Replica("a", "m", slots=4), 0.0))

    def take(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        self.effects += effects
        return effects

    def offer(self, tenant: str, now: float, **fields: Any) -> Request:
        self.number += 1
        fields = {"model": "m", "prompt_bytes": 400, **fields}
        request = Request(f"{self.number}", tenant, **fields)
        self.take(self.journal.offer(request, now))
        return request

    def fill(self, now: float = 0.0) -> list[Request]:
        """Four that run for long, and a core request that waits for them."""
        return [self.offer("core", now, request_timeout=1e4) for _ in range(5)]

    def climb(self, level: int) -> float:
        """Let time pass until it is on a step; returns when."""
        now = 0.0
        while self.flow.degradation()["m"] < level:
            self.offer("core", now, queue_timeout=0.01)
            now += 0.25
            self.take(self.journal.advance(now))
            assert now < 60
        return now

    def of(self, request: Request) -> Effect | None:
        """What was decided of a request last."""
        found = [effect for effect in self.effects if effect.request.id == request.id]
        return found[-1] if found else None


def on_step(level: int, spec: LadderSpec = SPEC, **settings: Any) -> tuple[Flow, float]:
    flow = Flow(spec, **{"max_queued": 1000, "queue_timeout": 100.0, **settings})
    flow.running = flow.fill()  # type: ignore[attr-defined]  # for who ends them
    return flow, flow.climb(level)


def drain(flow: Flow, now: float) -> None:
    """End what runs, until nothing waits."""
    while True:
        running = [
            e.request.id
            for e in flow.effects
            if isinstance(e, Dispatch) and e.request.id in flow.flow._state.jobs
        ]
        if not running:
            return
        for number in dict.fromkeys(running):
            flow.take(flow.journal.finish(number, Outcome.COMPLETED, Usage(100, 5), now))


def test_without_pressure_nothing_is_taken_from_anyone() -> None:
    flow = Flow()
    for tenant in ("core", "standard", "batch"):
        sent = flow.of(flow.offer(tenant, 1.0, max_tokens=4000))
        assert isinstance(sent, Dispatch)
        assert (sent.degraded, sent.max_tokens) == ("", None)
    assert flow.flow.degradation() == {"m": 0, "small": 0}


@pytest.mark.parametrize("tenant", ["standard", "batch"])
def test_on_step_1_lower_tiers_wait_less_long_and_are_told_so(tenant: str) -> None:
    flow, now = on_step(1)
    waits = flow.offer(tenant, now)
    flow.take(flow.journal.advance(now + 9.9))
    assert flow.of(waits) is None
    flow.take(flow.journal.advance(now + 10.1))
    refused = flow.of(waits)
    assert isinstance(refused, Refuse)
    assert refused.outcome is Outcome.QUEUE_TIMEOUT
    assert refused.degraded == "1; queue_timeout=10"


@pytest.mark.parametrize("level", [0, 1])
def test_on_a_step_lower_tiers_have_no_share_of_their_own(level: int) -> None:
    spec = LadderSpec(enabled=level > 0)
    tiers = (Tier("core", priority=0), Tier("standard", priority=1, min_share=0.5))
    flow = FlowControl(
        FlowSpec(max_queued=100), tenants=TENANTS[:2], tiers=tiers, models=["m"], ladder=spec
    )
    flow.join(Replica("a", "m", slots=1), 0.0)
    for i in range(5):
        flow.offer(Request(f"c{i}", "core", "m", 400), 0.0)
        flow.offer(Request(f"s{i}", "standard", "m", 400), 0.0)
    flow.offer(Request("last", "core", "m", 400), 1.0)  # the others have waited for longer
    assert flow.degradation()["m"] == level
    sent = "c0"
    order = []
    for i in range(4):
        ended = flow.finish(sent, Outcome.COMPLETED, Usage(100, 256), 1.0 + 0.01 * i)
        (dispatched,) = [e for e in ended if isinstance(e, Dispatch)]
        sent = dispatched.request.id
        order.append(dispatched.request.tenant)
    assert ("standard" in order) == (level == 0)


def test_on_step_2_answers_of_lower_tiers_are_capped_and_they_are_told_so() -> None:
    flow, now = on_step(2)
    asked = [flow.offer("standard", now, max_tokens=n) for n in (100, 4000)]
    asked.append(flow.offer("standard", now))
    core = flow.offer("core", now, max_tokens=4000)
    drain(flow, now + 0.1)
    sent = [flow.of(request) for request in [*asked, core]]
    assert [(e.max_tokens, e.degraded) for e in sent if isinstance(e, Dispatch)] == [
        (None, "2; queue_timeout=10"),
        (256, "2; queue_timeout=10; max_tokens=256"),
        (256, "2; queue_timeout=10; max_tokens=256"),
        (None, ""),
    ]


def test_lengths_are_not_learnt_from_answers_that_were_capped() -> None:
    flow, now = on_step(2)
    for tenant, bound in (("batch", None), ("standard", 200)):
        for _ in range(12):
            flow.offer(tenant, now, max_tokens=bound)
    drain(flow, now + 0.1)
    assert flow.flow.counts("batch").completed == flow.flow.counts("standard").completed == 12
    learned = str(flow.flow.learned()["outputs"])
    assert "standard" in learned
    assert "batch" not in learned


def test_on_step_3_batch_is_refused_and_long_prompts_of_lower_tiers_too() -> None:
    flow, now = on_step(3)
    batch, long = flow.offer("batch", now), flow.offer("standard", now, prompt_tokens=2001)
    for request in (batch, long):
        refused = flow.of(request)
        assert isinstance(refused, Refuse)
        assert refused.outcome is Outcome.DEGRADED
        assert refused.degraded.startswith("3; ")
        assert refused.retry_after is not None
        assert refused.retry_after >= 9.0  # no step down comes before ten seconds of calm
    assert flow.of(flow.offer("standard", now)) is None
    assert flow.of(flow.offer("core", now, prompt_tokens=2001)) is None


def test_what_waits_is_refused_when_its_step_comes() -> None:
    flow = Flow(max_queued=1000, queue_timeout=100.0)
    flow.fill()
    batch = [flow.offer("batch", 0.1) for _ in range(3)]
    standard = flow.offer("standard", 0.1)
    flow.climb(3)
    refused = [e for e in flow.effects if isinstance(e, Refuse) and e.outcome is Outcome.DEGRADED]
    assert [e.request for e in refused] == batch[::-1]  # the newest first
    assert flow.of(standard) is None


def test_a_long_prompt_goes_to_the_fallback_model_with_its_answer_capped() -> None:
    spec = LadderSpec(enabled=True, fallbacks=(Fallback("m", "small"),))
    flow, now = on_step(3, spec)
    flow.take(flow.journal.join(Replica("b", "small", slots=4), now))
    sent = flow.of(flow.offer("standard", now, prompt_tokens=2001))
    assert isinstance(sent, Dispatch)
    assert sent.legs[0].replica == "b"
    assert (sent.model, sent.max_tokens) == ("small", 256)
    assert sent.degraded == "3; queue_timeout=10; max_tokens=256; model=small"
    assert flow.of(flow.offer("standard", now)) is None  # a short one waits for its own


def test_on_step_4_the_same_sessions_stay_in() -> None:
    flow, now = on_step(4)
    sessions = [f"s{i}" for i in range(200)]
    first = [flow.of(flow.offer("standard", now, session=s)) is None for s in sessions]
    again = [flow.of(flow.offer("standard", now, session=s)) is None for s in sessions]
    assert first == again
    assert 60 < sum(first) < 140
    assert all(
        kept == (session_share(Request("", "standard", "m", 0, session=s)) < 0.5)
        for s, kept in zip(sessions, first, strict=True)
    )


def test_on_step_5_the_core_alone_is_served() -> None:
    flow, now = on_step(5)
    for tenant in ("standard", "batch"):
        for number in range(20):
            refused = flow.of(flow.offer(tenant, now, session=f"s{number}"))
            assert isinstance(refused, Refuse)
            assert refused.outcome is Outcome.DEGRADED
    assert flow.of(flow.offer("core", now)) is None


@pytest.mark.parametrize(
    ("waiting", "goes"),
    [
        (["standard"] * 3, 2),
        (["batch", "batch", "standard"], 1),
        (["standard", "batch", "core"], 1),
    ],
)
def test_a_full_queue_makes_room_for_the_core_by_its_newest_of_the_lowest_tier(
    waiting: list[str], goes: int
) -> None:
    flow = Flow(max_queued=3)
    for _ in range(4):
        flow.offer("standard", 0.0)
    before = [flow.offer(tenant, 0.1 * i) for i, tenant in enumerate(waiting, 1)]
    core = flow.offer("core", 0.5)
    assert flow.of(core) is None
    refused = [flow.of(request) for request in before]
    assert [effect is not None for effect in refused] == [i == goes for i in range(3)]
    gone = refused[goes]
    assert isinstance(gone, Refuse)
    assert gone.outcome is Outcome.DEGRADED
    assert flow.flow.degradation()["m"] == 1
    assert flow.flow.steps[-1].reason == "the queue was full"


def test_a_queue_full_of_the_core_makes_no_room() -> None:
    flow = Flow(max_queued=3)
    for _ in range(7):
        flow.offer("core", 0.0)
    refused = flow.of(flow.offer("core", 0.1))
    assert isinstance(refused, Refuse)
    assert refused.outcome is Outcome.QUEUE_FULL


def test_when_it_is_calm_it_comes_down_by_itself_though_nothing_comes() -> None:
    flow, now = on_step(2)
    drain(flow, now)
    for _ in range(400):
        deadline = flow.journal.next_deadline()
        if deadline is None:
            break
        now = max(now, deadline)
        flow.take(flow.journal.advance(now))
    assert flow.flow.degradation()["m"] == 0
    assert flow.journal.next_deadline() is None  # nothing polls in calm


def test_it_is_off_by_default_and_where_all_tiers_are_of_the_core() -> None:
    for spec, tiers in ((LadderSpec(), TIERS), (SPEC, ())):
        flow = FlowControl(FlowSpec(max_queued=50), tiers=tiers, models=["m"], ladder=spec)
        flow.join(Replica("a", "m", slots=1), 0.0)
        for number in range(40):
            flow.offer(Request(f"{number}", "x", "m", 400), 0.5 * number)
        assert flow.degradation() == {"m": 0}
        assert not flow.steps


def test_it_can_be_switched_off_and_on_while_it_runs() -> None:
    flow, now = on_step(3)
    off = FlowSettings(
        FlowSpec(max_queued=1000), TENANTS, TIERS, ("m", "small"), LadderSpec(enabled=False)
    )
    flow.take(flow.journal.reconfigure(off, now))
    assert flow.flow.degradation()["m"] == 0
    assert flow.of(flow.offer("batch", now)) is None
    on = FlowSettings(FlowSpec(max_queued=1000), TENANTS, TIERS, ("m", "small"), SPEC)
    flow.take(flow.journal.reconfigure(on, now))
    flow.offer("core", now + 5.0)
    assert flow.flow.degradation()["m"] == 1
    assert replay(flow.lines) is None


OFFERS = st.lists(
    st.tuples(
        st.sampled_from(["core", "standard", "batch"]),
        st.floats(0.01, 0.4),
        st.sampled_from([None, 50, 2000]),
        st.sampled_from([100, 3000]),
        st.integers(0, 3),
    ),
    min_size=20,
    max_size=120,
)


@settings(max_examples=40)
@given(OFFERS)
def test_the_core_gives_nothing_and_what_others_give_is_told_and_replays(
    offers: list[tuple[str, float, int | None, int, int]],
) -> None:
    flow = Flow(LadderSpec(enabled=True, step_up_interval=0.5), max_queued=12)
    now = 0.0
    for tenant, gap, bound, prompt, ends in offers:
        now += gap
        request = flow.offer(tenant, now, max_tokens=bound, prompt_tokens=prompt)
        alive = flow.flow._state.jobs
        sent = [e.request.id for e in flow.effects if isinstance(e, Dispatch)]
        for number in [x for x in sent if x in alive][:ends] if request.id.endswith("5") else []:
            flow.take(flow.journal.finish(number, Outcome.COMPLETED, Usage(prompt, 9), now))
    for effect in flow.effects:
        core = effect.request.tenant == "core"
        if isinstance(effect, Dispatch):
            assert not (core and (effect.degraded or effect.max_tokens is not None))
            if effect.max_tokens is not None:
                assert "max_tokens=256" in effect.degraded
        elif isinstance(effect, Refuse):
            assert not (core and (effect.degraded or effect.outcome is Outcome.DEGRADED))
            assert effect.outcome is not Outcome.DEGRADED or effect.degraded
    assert replay(flow.lines) is None
