"""Every token of the fast batcher, in plain Python, against its specification."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from surgetank.engine.literal import Batcher, Event
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica
from tests.engine.drawn import inputs, profiles

STATE = (
    "running",
    "waiting",
    "decoding",
    "kv_blocks_used",
    "kv_tokens_used",
    "prefill_backlog",
    "preemptions",
    "steps",
)


class Both:
    """The two in step: each ends one where the other does."""

    def __init__(self, profile: EngineProfile, *, plain: bool) -> None:
        self.literal = Batcher(profile)
        self.replica = Replica(profile, plain=plain)
        self.alive: list[str] = []
        self.count = 0
        self.now = 0.0

    def step(self) -> None:
        due, ends = self.literal.due, self.replica.ends
        assert due is not None
        assert ends is not None
        assert ends == pytest.approx(due, rel=1e-9)
        expected, told = self.literal.step(due), self.replica.tick(ends)
        assert [e._replace(at=due) for e in told] == expected
        assert all(event.at == ends for event in told)
        self._forget(expected)
        self.now = due
        self.compare()

    def _forget(self, events: Sequence[Event]) -> None:
        gone = {event.id for event in events if event.kind == "finished"}
        self.alive = [id_ for id_ in self.alive if id_ not in gone]

    def give(self, what: tuple[Any, ...], share: float) -> None:
        """Hand on an input, so far into the step under way; at its end for 1."""
        due, ends = self.literal.due, self.replica.ends
        if due is None or ends is None or due == self.now:
            at = (self.now, self.now)
        elif share == 1.0:
            at = (due, ends)
        else:
            self.now += share * (due - self.now)
            at = (self.now, self.now)
        if what[0] == "add":
            self._add(*what[1:], at=at)
        elif what[0] == "abort" and self.alive:
            id_ = self.alive.pop(int(what[1] * len(self.alive)))
            assert self.literal.abort(id_, at[0])
            assert self.replica.abort(id_, at[1])
        else:
            self.replica.observe(at[1])
        self.compare()

    def _add(
        self,
        size: float,
        share: float,
        priority: int,
        cached: float,
        *,
        at: tuple[float, float],
    ) -> None:
        longest = self.literal.profile.max_model_len
        prompt = 1 + round(size * (longest - 2))
        output = 1 + round(share * (longest - prompt - 1))
        id_ = str(self.count)
        self.count += 1
        options = {"priority": priority, "cached_tokens": int(cached * prompt)}
        added = self.literal.add(id_, prompt, output, at[0], **options)
        assert self.replica.add(id_, prompt, output, at[1], **options) == added
        if added:
            self.alive.append(id_)

    def compare(self) -> None:
        literal, replica = self.literal, self.replica
        for name in STATE:
            assert getattr(replica, name) == getattr(literal, name), name
        for id_ in self.alive:
            assert replica.tokens(id_) == literal.tokens(id_)
            assert replica.prefilled(id_) == literal.prefilled(id_)


def follow(profile: EngineProfile, inputs: list[tuple[Any, ...]], *, plain: bool) -> None:
    both = Both(profile, plain=plain)
    for steps, share, what in inputs:
        for _ in range(steps):
            if both.literal.due is not None:
                both.step()
        both.give(what, share)
    while both.literal.due is not None:
        both.step()
    assert both.replica.ends is None
    assert not both.alive


@settings(max_examples=150, deadline=None)
@given(profiles(), inputs())
def test_every_token_comes_as_the_specification_says(
    profile: EngineProfile, inputs: list[tuple[Any, ...]]
) -> None:
    follow(profile, inputs, plain=True)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(profiles(), inputs())
def test_compiled_it_tells_the_same_tokens(
    profile: EngineProfile, inputs: list[tuple[Any, ...]]
) -> None:
    follow(profile, inputs, plain=False)


def test_steps_and_ticks_can_be_mixed() -> None:
    profile = EngineProfile(
        name="", a_ms=10.0, b_us=0.0, c_ns=0.0, d_us=0.0, e_ns=100.0, kv_blocks=512
    )
    stepped, ticked = Replica(profile, plain=True), Replica(profile, plain=True)
    for replica in (stepped, ticked):
        replica.add("a", 100, 50, 0.0)
        replica.step(0.0)
        replica.step(0.01)
    for _ in range(20):
        assert ticked.ends is not None
        (event,) = ticked.tick(ticked.ends)
    assert event.tokens == ticked.tokens("a") == 21
    assert ticked.due == stepped.due
    assert stepped.due is not None
    assert ticked.step(stepped.due) == stepped.step(stepped.due)


def test_in_plain_python_it_loads_neither_numpy_nor_numba() -> None:
    code = (
        "import sys\n"
        "from surgetank.engine.profile import find\n"
        "from surgetank.engine.replica import Replica\n"
        "replica = Replica(find('tiny'), plain=True)\n"
        "replica.add('a', 5, 5, 0.0)\n"
        "while (ends := replica.ends) is not None: replica.tick(ends)\n"
        "print({'numpy', 'numba', 'llvmlite'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
