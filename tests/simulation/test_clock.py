"""The order of many engines' steps, and what is run of them in one go."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.engine.numbered import MOST_AT_ONCE, Clock, Numbered, Told
from surgetank.policy.flow import FlowSpec
from surgetank.simulation.clients import KINDS
from surgetank.simulation.engines import SteppedClock
from surgetank.simulation.run import simulate
from tests.simulation.build import bursts, engine, load, scenario


class Fleet:
    """Engines on the compiled clock, and beside them the same on the one that is a plain heap."""

    def __init__(self, count: int) -> None:
        profile = engine(max_num_seqs=4)
        self.clock, self.stepped = Clock(), SteppedClock()
        self.here = [Numbered(profile, self.clock) for _ in range(count)]
        self.there = [Numbered(profile) for _ in range(count)]
        for alone in self.there:
            self.stepped.enter(alone)

    def run(self, until: float, most: int = 1) -> list[Told]:
        told = list(self.clock.run(until, most))
        assert told == list(self.stepped.run(until, most))
        assert self.clock.steps == self.stepped.steps
        return told

    def add(self, number: int, row: int, output: int, now: float) -> None:
        for each in (self.here[number], self.there[number]):
            assert each.add(row, 100, output, 0, 0, now)
        self.stepped.arm(number)

    def abort(self, number: int, row: int, now: float) -> None:
        assert self.here[number].abort(row, now) == self.there[number].abort(row, now)
        self.stepped.arm(number)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), count=st.sampled_from((1, 2, 5, 20)), most=st.integers(1, 4))
def test_engines_step_in_the_order_of_a_heap_also_at_one_moment(
    seed: int, count: int, most: int
) -> None:
    # Steps of 10 ms whatever is in them, so that many are due at one moment, and due again at it
    # after an arrival has brought them forward.
    rng = np.random.default_rng(seed)
    fleet = Fleet(count)
    now = 0.0
    for row in range(80):
        if rng.random() < 0.6:
            now = round(now + 0.01 * float(rng.integers(0, 3)), 2)
        while fleet.run(now, most):
            pass
        fleet.add(int(rng.integers(count)), row, int(rng.integers(1, 8)), now)
        if rng.random() < 0.2:
            fleet.abort(int(rng.integers(count)), int(rng.integers(row + 1)), now)
    while fleet.run(inf, most):
        pass
    assert all(each.due == inf and not len(each) for each in fleet.here)


def test_an_engine_that_is_taken_off_its_clock_steps_no_more() -> None:
    clock = Clock()
    first, second = Numbered(engine(), clock), Numbered(engine(), clock)
    for each in (first, second):
        each.add(each.number, 100, 3, 0, 0, 0.0)
    clock.remove(first.number)
    told: list[Told] = []
    while more := list(clock.run(inf)):
        told += more
    assert {number for _, number, _, _ in told} == {second.number}
    assert first.due == 0.0


def test_more_engines_and_sequences_than_there_was_room_for_find_it() -> None:
    clock = Clock()
    engines = [Numbered(engine(max_num_seqs=512), clock) for _ in range(40)]
    for row in range(40 * 150):
        engines[row % 40].add(row, 10, 2, 0, 0, 0.0)
    assert [len(each) for each in engines] == [150] * 40
    finished = []
    while told := list(clock.run(inf, MOST_AT_ONCE)):
        finished += [(number, row) for _, number, kind, row in told if kind == 1]
    assert sorted(finished) == sorted((row % 40, row) for row in range(40 * 150))


def test_what_an_engine_must_not_be_given_is_refused() -> None:
    one = Numbered(engine())
    for prompt, output, cached in ((0, 1, 0), (1, 0, 0), (1, 1, -1), (16_384, 1, 0)):
        with pytest.raises(ValueError, match="must be"):
            one.add(0, prompt, output, cached, 0, 0.0)
    assert one.add(0, 10, 5, 0, 0, 0.0)
    with pytest.raises(ValueError, match="step first"):
        one.add(1, 10, 5, 0, 0, 1.0)
    with pytest.raises(KeyError):
        one.tokens(1)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(("surgetank", "static:3", "counters")),
    rate=st.floats(2.0, 60.0),
    seats=st.sampled_from((2, 8, 64)),
    patience=st.none() | st.floats(0.05, 3.0),
)
def test_steps_run_in_one_go_give_the_same_records_as_one_after_the_other(
    *, seed: int, policy: str, rate: float, seats: int, patience: float | None
) -> None:
    sizes = np.random.default_rng(seed).integers(1, 60, 300)
    made = scenario(
        load(bursts(300, rate, seed), prompt=300, output=sizes, tenants=["a", "b", "c"] * 100),
        profile=engine(max_num_seqs=seats, b_us=20.0),
        policy=policy,
        replicas=2,
        standbys=1,
        max_replicas=4,
        clients=replace(KINDS["sdk"], patience=patience),
        flow=FlowSpec(queue_timeout=2.0, request_timeout=6.0, max_queued=20),
        seed=seed,
    )
    # A journal has to be told of everything at its moment: with one, nothing is run ahead.
    alone = simulate(made, journal=lambda _line: None)
    ahead = simulate(made)
    assert ahead.events == alone.events
    assert [r.to_line() for r in ahead.records()] == [r.to_line() for r in alone.records()]
