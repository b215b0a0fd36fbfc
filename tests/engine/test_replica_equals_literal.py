"""The fast batcher against its specification, whatever comes in, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings

from surgetank.engine.literal import Batcher, Event, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica
from tests.engine.drawn import inputs, profiles

ROUNDING = 1e-7  # seconds: far more than sums differ by, far less than a step


@dataclass
class Both:
    """The two of them, fed alike and compared after each input."""

    literal: Batcher
    replica: Replica
    now: float = 0.0
    at: tuple[float, float] = (0.0, 0.0)  # of the latest input
    began: float = 0.0  # of the specification's step under way
    alive: list[str] = field(default_factory=list)
    expected: list[Event] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)
    count: int = 0

    def run(self, until: float) -> None:
        while (due := self.literal.due) is not None and due < until:
            self.step()
        while (due := self.replica.due) is not None and due < until:
            self.told += self.replica.step(due)

    def step(self) -> None:
        due = self.literal.due
        assert due is not None
        self.began = self.now = due
        events = self.literal.step(due)
        self.expected += [e for e in events if e.kind is not EventKind.TOKEN]
        gone = {e.id for e in events if e.kind is EventKind.FINISHED}
        self.alive = [id_ for id_ in self.alive if id_ not in gone]

    def pass_steps(self, steps: int, share: float) -> tuple[float, float]:
        """Go on; return the time of the next input for each of the two.

        It is never near a step's end, or exactly there for both.
        """
        for _ in range(steps):
            if self.literal.due is not None:
                self.step()
        due = self.literal.due
        if due is None:
            self.now += share
        elif due > self.now:
            if share == 1.0:
                return self.meet()
            self.now = max(self.now, self.began + share * (due - self.began))
        elif not steps:
            return self.at  # the step due has not been run: the next input comes with the last
        self.run(self.now)
        self.at = (self.now, self.now)
        return self.at

    def meet(self) -> tuple[float, float]:
        """Go to the end of the replica's stretch, and stand there before it is run."""
        while (end := self.replica.due) is not None and end < self.began + ROUNDING:
            self.told += self.replica.step(end)
        assert end is not None
        while (due := self.literal.due) is not None and due < end - ROUNDING:
            self.step()
        assert due is not None
        assert due == pytest.approx(end, rel=1e-9)
        self.now = due
        self.at = (due, end)
        return self.at

    def apply(self, what: tuple[Any, ...], at: tuple[float, float]) -> None:
        literal, replica = self.literal, self.replica
        if what[0] == "add":
            _, size, share, priority, cached = what
            longest = literal.profile.max_model_len
            prompt = 1 + round(size * (longest - 2))
            output = 1 + round(share * (longest - prompt - 1))
            id_ = str(self.count)
            self.count += 1
            options = {"priority": priority, "cached_tokens": int(cached * prompt)}
            room = literal.has_room()
            assert replica.has_room() == room
            assert literal.add(id_, prompt, output, at[0], **options) == room
            assert replica.add(id_, prompt, output, at[1], **options) == room
            if room:
                self.alive.append(id_)
        elif what[0] == "abort" and self.alive:
            id_ = self.alive.pop(int(what[1] * len(self.alive)))
            assert literal.abort(id_, at[0])
            assert replica.abort(id_, at[1])
            assert not replica.abort(id_, at[1])
        else:
            replica.observe(at[1])
        self.compare()

    def compare(self) -> None:
        literal, replica = self.literal, self.replica
        for name in (
            "running",
            "waiting",
            "decoding",
            "kv_blocks_used",
            "kv_tokens_used",
            "prefill_backlog",
            "preemptions",
            "steps",
        ):
            assert getattr(replica, name) == getattr(literal, name), name
        assert replica.kv_blocks_used <= replica.profile.kv_blocks
        assert replica.running + replica.waiting == len(self.alive)
        for id_ in self.alive:
            assert replica.tokens(id_) == literal.tokens(id_)
        self.compare_events()

    def compare_events(self) -> None:
        assert [(e.kind, e.id, e.tokens) for e in self.told] == [
            (e.kind, e.id, e.tokens) for e in self.expected
        ]
        assert [e.at for e in self.told] == pytest.approx([e.at for e in self.expected], rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(profiles(), inputs())
def test_events_times_and_state_equal_the_specification(
    profile: EngineProfile, inputs: list[tuple[Any, ...]]
) -> None:
    both = Both(Batcher(profile), Replica(profile))
    for steps, share, what in inputs:
        both.apply(what, both.pass_steps(steps, share))
    both.run(float("inf"))
    both.compare_events()
    assert both.replica.due is None
    assert not both.alive
    assert (both.replica.running, both.replica.waiting) == (0, 0)
    assert both.replica.kv_blocks_used == both.replica.kv_tokens_used == 0
    assert both.replica.prefill_backlog == both.replica.decoding == 0
