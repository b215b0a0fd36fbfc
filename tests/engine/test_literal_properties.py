"""What must hold of the batcher whatever comes in, in whatever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from surgetank.engine.literal import Batcher, Event, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.steptime import StepWork, step_seconds


def profile(**changes: Any) -> EngineProfile:
    """Describe a small engine: 10 ms a step, 12 blocks of 4 tokens, 4 seats, 16 tokens a step."""
    settings_: dict[str, Any] = {
        "name": "small",
        "a_ms": 10.0,
        "b_us": 100.0,
        "c_ns": 10.0,
        "d_us": 500.0,
        "e_ns": 100.0,
        "kv_blocks": 12,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 48,
    }
    return EngineProfile(**(settings_ | changes))


def run_to_end(batcher: Batcher) -> list[Event]:
    events: list[Event] = []
    while (due := batcher.due) is not None:
        events += batcher.step(due)
    return events


class AnyOrder(RuleBasedStateMachine):
    """Arrivals, aborts and steps in any order, against a model that counts tokens only."""

    scheduling = "fcfs"
    gate = True

    def __init__(self) -> None:
        super().__init__()
        self.batcher = Batcher(
            profile(scheduling=self.scheduling, full_prompt_gate=self.gate, max_queued=9)
        )
        self.now = 0.0
        self.count = 0
        self.wanted: dict[str, int] = {}
        self.got: dict[str, int] = {}
        self.preempted = 0

    @rule(
        prompt=st.integers(1, 30),
        output=st.integers(1, 18),
        priority=st.integers(-2, 2),
    )
    def arrives(self, prompt: int, output: int, priority: int) -> None:
        name = str(self.count)
        self.count += 1
        admitted = self.batcher.add(name, prompt, output, self.now, priority=priority)
        assert admitted == (len(self.wanted) < 9)
        if admitted:
            self.wanted[name] = output
            self.got[name] = 0

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.wanted)))
        assert self.batcher.abort(name, self.now)
        assert not self.batcher.abort(name, self.now)
        del self.wanted[name]

    @precondition(lambda self: self.batcher.due is not None)
    @rule(share=st.floats(0, 1, exclude_max=True))
    def time_passes_within_a_step(self, share: float) -> None:
        due = self.batcher.due
        assert due is not None
        self.now += (due - self.now) * share
        if self.now < due:
            assert self.batcher.step(self.now) == []

    @precondition(lambda self: self.batcher.due is not None)
    @rule()
    def steps(self) -> None:
        due = self.batcher.due
        assert due is not None
        assert due >= self.now
        self.now = due
        for event in self.batcher.step(due):
            self._account(event)

    def _account(self, event: Event) -> None:
        assert event.at == self.now
        assert event.id in self.wanted
        if event.kind is EventKind.PREEMPTED:
            self.preempted += 1
            assert event.tokens == self.got[event.id]
        elif event.kind is EventKind.FINISHED:
            assert event.tokens == self.got[event.id] == self.wanted.pop(event.id)
        else:
            self.got[event.id] += 1
            assert event.tokens == self.got[event.id]
            assert (event.kind is EventKind.FIRST_TOKEN) == (event.tokens == 1)

    @invariant()
    def kv_is_never_over_and_what_is_held_is_accounted_for(self) -> None:
        batcher = self.batcher
        held = sum(s.blocks for s in batcher._running)
        assert held == batcher.kv_blocks_used <= batcher.profile.kv_blocks
        for sequence in batcher._running:
            assert sequence.computed <= sequence.length
            assert sequence.blocks == -(-sequence.computed // 4)

    @invariant()
    def everyone_is_running_or_waiting(self) -> None:
        assert self.batcher.running + self.batcher.waiting == len(self.wanted)
        assert self.batcher.running <= self.batcher.profile.max_num_seqs
        assert self.batcher.preemptions == self.preempted
        assert (self.batcher.due is not None) or not self.wanted

    def teardown(self) -> None:
        for event in run_to_end(self.batcher):
            self.now = event.at
            self._account(event)
        assert not self.wanted
        assert (self.batcher.running, self.batcher.waiting) == (0, 0)
        assert self.batcher.kv_blocks_used == 0


class AnyOrderByPriority(AnyOrder):
    scheduling = "priority"
    gate = False


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestAnyOrderByPriority = AnyOrderByPriority.TestCase
TestAnyOrderByPriority.settings = TestAnyOrder.settings


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 30)), min_size=1, max_size=12),
)
def test_with_one_seat_the_priority_policy_serves_by_priority_then_arrival(
    requests: list[tuple[int, int]],
) -> None:
    batcher = Batcher(profile(scheduling="priority", max_num_seqs=1))
    for i, (priority, prompt) in enumerate(requests):
        batcher.add(str(i), prompt, 2, 0.0, priority=priority)
    order = [e.id for e in run_to_end(batcher) if e.kind is EventKind.FINISHED]
    assert order == [
        str(i) for i in sorted(range(len(requests)), key=lambda i: (requests[i][0], i))
    ]


def test_the_priority_policy_preempts_the_least_important_even_if_admitted_first() -> None:
    batcher = Batcher(profile(scheduling="priority", kv_blocks=4, max_model_len=16))
    batcher.add("cheap", 7, 9, 0.0, priority=5)
    batcher.add("dear", 7, 9, 0.0, priority=0)
    events = run_to_end(batcher)
    assert {e.id for e in events if e.kind is EventKind.PREEMPTED} == {"cheap"}
    assert [e.id for e in events if e.kind is EventKind.FINISHED] == ["dear", "cheap"]


def test_fcfs_preempts_the_last_admitted_and_resumes_it_before_the_queue() -> None:
    batcher = Batcher(profile(kv_blocks=4, max_model_len=16, max_num_seqs=2))
    for name in ("a", "b", "c"):
        batcher.add(name, 7, 9, 0.0)
    events = run_to_end(batcher)
    assert {e.id for e in events if e.kind is EventKind.PREEMPTED} >= {"b"}
    assert [e.id for e in events if e.kind is EventKind.FINISHED] == ["a", "b", "c"]


def test_the_gate_keeps_a_prompt_out_until_all_of_it_fits() -> None:
    def first_token_of_long(*, gate: bool) -> float:
        batcher = Batcher(profile(full_prompt_gate=gate))
        batcher.add("short", 16, 12, 0.0)
        batcher.add("long", 36, 1, 0.0)
        return next(
            e.at for e in run_to_end(batcher) if e.id == "long" and e.kind is EventKind.FIRST_TOKEN
        )

    # 4 of 12 blocks are the short one's, and a fifth from its first decode on: 9 do not fit
    assert first_token_of_long(gate=False) < first_token_of_long(gate=True)


def test_an_abort_frees_kv_at_once_and_the_step_in_flight_keeps_its_length() -> None:
    batcher = Batcher(profile())
    batcher.add("a", 16, 5, 0.0)
    assert batcher.step(0.0) == []
    due = batcher.due
    assert batcher.kv_blocks_used == 4
    assert batcher.abort("a", 0.001)
    assert batcher.kv_blocks_used == 0
    assert batcher.due == due
    assert run_to_end(batcher) == []


def test_simultaneous_arrivals_share_the_first_step() -> None:
    batcher = Batcher(profile())
    batcher.add("a", 4, 1, 1.0)
    batcher.add("b", 4, 1, 1.0)
    work = StepWork()
    work.add_prefill(4, 0)
    work.add_prefill(4, 0)
    end = 1.0 + step_seconds(batcher.profile, work)
    assert [(e.id, e.at) for e in run_to_end(batcher)] == [("a", end)] * 2 + [("b", end)] * 2


def test_a_step_is_timed_by_its_formula() -> None:
    # 10 + 0.1 * 8 + 1e-5 * 8 * (4 + 4) + 0.5 * 3 + 1e-4 * 40 = 12.30464 ms
    work = StepWork(decodes=3, decode_context=40)
    work.add_prefill(8, 4)
    assert step_seconds(profile(), work) == pytest.approx(12.30464e-3)
    # 2 of 4 experts each, 2 tokens: 1 - (1/2) ** 2 of f
    moe = profile(f_ms=8.0, expert_share=0.5)
    two = StepWork(decodes=2)
    assert step_seconds(moe, two) - step_seconds(profile(), two) == pytest.approx(6e-3)


def test_an_input_that_overtakes_a_due_step_is_refused() -> None:
    batcher = Batcher(profile())
    batcher.add("a", 4, 1, 1.0)
    with pytest.raises(ValueError, match="step first"):
        batcher.add("b", 4, 1, 1.5)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (47, 2)])
def test_what_could_never_finish_is_refused(prompt: int, output: int) -> None:
    batcher = Batcher(profile())
    with pytest.raises(ValueError, match="must be"):
        batcher.add("a", prompt, output, 0.0)


def test_a_crowd_that_leaves_the_queue_leaves_nothing_behind() -> None:
    batcher = Batcher(profile())
    for i in range(1000):
        batcher.add(str(i), 4, 4, 0.0)
    for i in range(1, 1000):
        batcher.abort(str(i), 0.0)
    assert len(batcher._queue) < 100
    assert [e.id for e in run_to_end(batcher) if e.kind is EventKind.FINISHED] == ["0"]
