"""What a replica is trusted with: never more than it says, soon what it can do, and again after."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.effect import Dispatch
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.limit import ConcurrencyLimit
from surgetank.policy.replica import Replica, Signals
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tier

SPEC = FlowSpec(max_queued=100_000, queue_timeout=1e6, request_timeout=1e6)


@dataclass
class Engine:
    """An engine of `slots` that computes prompts one after the other, then decodes for `service`.

    Always more is offered than it can do. Prompts of 100 tokens.
    """

    slots: int
    rate: float = 10_000.0  # prompt tokens per second
    service: float = 2.0
    says: int | None = None
    now: float = 0.0
    waiting: deque[str] = field(default_factory=deque)
    running: dict[str, float] = field(default_factory=dict)  # when each is done
    most: int = 0  # in flight
    late: float = 0.0  # longest from dispatch to the first token
    prompt_done: float = 0.0
    freed: float = 0.0  # when there was last a slot again
    sent: dict[str, float] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        patient = Tier(predicted_wait=False)
        self.flow = FlowControl(SPEC, models=["m"], tiers=[patient])
        self.flow.join(Replica("one", "m", slots=self.says), 0.0)

    def run(self, seconds: float) -> None:
        """Let time pass in steps of a hundredth."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.01
            while self.flow.counts().queued < 20:
                self.number += 1
                asked = Request(str(self.number), "a", "m", 400, prompt_tokens=100, stream=True)
                self.take(self.flow.offer(asked, self.now))
            for name in [name for name, done in self.running.items() if done <= self.now]:
                if len(self.running) >= self.slots:
                    self.freed = self.now
                del self.running[name]
                self.take(self.flow.finish(name, Outcome.COMPLETED, Usage(100, 9), self.now))
            self.compute()

    def compute(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            began = max(self.prompt_done, self.freed, self.sent[self.waiting[0]])
            if began + 100 / self.rate > self.now:
                return
            self.prompt_done = began + 100 / self.rate
            name = self.waiting.popleft()
            self.running[name] = self.now + self.service
            self.late = max(self.late, self.now - self.sent[name])
            self.take(self.flow.first_token(name, self.now))

    def take(self, effects: object) -> None:
        for effect in effects:  # type: ignore[attr-defined]  # a sequence of effects
            assert isinstance(effect, Dispatch)
            self.sent[effect.request.id] = self.now
            self.waiting.append(effect.request.id)
        self.most = max(self.most, len(self.waiting) + len(self.running))


@pytest.mark.parametrize("slots", [8, 64, 400])
def test_an_engine_that_says_nothing_soon_runs_all_it_can(slots: int) -> None:
    engine = Engine(slots, rate=50_000.0)
    engine.run(15.0)
    assert len(engine.running) >= 0.9 * slots
    engine.most = 0
    engine.run(10.0)
    assert engine.most <= 1.2 * slots + 2  # and few wait inside it


def test_slots_that_an_engine_says_are_used_at_once_and_never_passed() -> None:
    engine = Engine(32, says=32)
    engine.run(2.0)
    assert len(engine.running) >= 31
    engine.run(10.0)
    assert engine.most <= 32


def test_prompts_inside_an_engine_wait_no_longer_than_their_part_of_the_objective() -> None:
    """A quarter of 2 s; 500 slots could take 50,000 tokens at once, 25 s of them."""
    engine = Engine(500, rate=2000.0, service=30.0, says=500)
    engine.run(5.0)
    engine.late = 0.0
    engine.run(10.0)
    assert engine.late <= 0.8
    assert len(engine.running) > 200  # all that 15 s of prefill could start: none was held back


@pytest.mark.parametrize("says", [None, 64])
def test_after_a_bad_spell_a_replica_is_soon_trusted_with_as_much_as_before(
    says: int | None,
) -> None:
    engine = Engine(64, says=says)
    engine.run(20.0)
    before = engine.flow.replicas()[0].limit
    engine.slots, engine.rate = 6, 200.0  # a neighbour has taken the rest of it
    engine.run(30.0)
    assert engine.flow.replicas()[0].limit < before
    engine.slots, engine.rate = 64, 10_000.0
    engine.run(20.0)
    assert len(engine.running) >= 0.9 * 64


def test_a_latency_that_no_shorter_queue_would_save_holds_nothing_up() -> None:
    """A far engine: 3 s to any first token, above the whole budget, however few prompts it has."""
    limit = ConcurrencyLimit(200.0, 0.5, known=True)
    pending = 0
    for turn in range(60):
        at = 3.0 * turn
        pending = 0
        while pending < limit.window and pending < 2000:
            pending += 10
        for first in range(10, pending + 1, 10):
            limit.first_token(first, 3.0, at, first // 10, at + 3.0, binds=False)
    assert pending == 2000
    assert limit.value == 200.0


def test_streams_that_wait_for_their_first_token_do_not_count_as_work_beyond_the_limit() -> None:
    flow = FlowControl(SPEC, models=["m"])
    flow.join(Replica("one", "m", slots=64), 0.0)
    for number in range(16):
        asked = Request(str(number), "a", "m", 400, prompt_tokens=100, stream=True)
        flow.offer(asked, 0.0)
    flow.observe("one", Signals(as_of=0.5, waiting=16), 0.5)
    assert flow.replicas()[0].limit == 64
    flow.observe("one", Signals(as_of=0.6, waiting=20), 0.6)  # somebody else's
    assert flow.replicas()[0].limit == 12


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["first", "served", "shed", "waits"]),
        st.integers(0, 5000),
        st.floats(0, 20),
        st.booleans(),
    ),
    max_size=60,
)


@given(events=EVENTS, cap=st.none() | st.integers(1, 50), known=st.booleans())
def test_a_limit_stays_between_one_and_its_cap(
    events: list[tuple[str, int, float, bool]], cap: int | None, *, known: bool
) -> None:
    most = inf if cap is None else float(cap)
    limit = ConcurrencyLimit(most, 0.5, known=known and cap is not None)
    now = 0.0
    for what, number, seconds, binds in events:
        now += seconds
        if what == "first":
            limit.first_token(number, seconds, now - seconds, number % 60, now, binds=binds)
        elif what == "served":
            limit.served(binds=binds)
        elif what == "shed":
            limit.shed(number % 60, now - seconds, now)
        else:
            limit.waits(number % 60)
        assert 1 <= limit.value <= most
        assert limit.window >= 0
