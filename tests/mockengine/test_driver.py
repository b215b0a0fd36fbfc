"""The driver in virtual time: over the fast batcher as over its specification."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.engine.literal import Batcher, Event
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica
from surgetank.mockengine.driver import Driver
from surgetank.mockengine.metrics import EngineMetrics
from surgetank.mockengine.text import Answer
from tests.engine.drawn import profiles


class Specification(Batcher):
    """The step-by-step batcher, asked as a driver asks."""

    @property
    def ends(self) -> float | None:
        return self.due

    def tick(self, now: float) -> list[Event]:
        return self.step(now)


class Handle:
    """A timer."""

    def __init__(self, happen: Callable[[], None]) -> None:
        self.happen = happen
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Time that passes when it is told to; every timer is late, by a millisecond at most."""

    def __init__(self, late: random.Random) -> None:
        self.now = 0.0
        self._late = late
        self._timers: list[tuple[float, int, Handle]] = []
        self._count = itertools.count()

    def call_later(self, delay: float, happen: Callable[[], None]) -> Handle:
        handle = Handle(happen)
        at = self.now + delay + self._late.random() * 1e-3
        heapq.heappush(self._timers, (at, next(self._count), handle))
        return handle

    def run(self, until: float) -> None:
        while self._timers and self._timers[0][0] <= until:
            self.now, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled:
                handle.happen()
        if until < float("inf"):
            self.now = until


def play(
    batcher: Batcher | Replica, seed: int, speed: float
) -> tuple[list[tuple[str, Event]], dict[str, float]]:
    """Let requests come and leave; every event as its listener got it, and the metrics at the end.

    Some leave when they hear a token, as clients do that have read enough.
    """
    chance = random.Random(seed)
    loop = Loop(random.Random(seed + 1))
    fast = cast("Replica", batcher)
    metrics = EngineMetrics("m", batcher.profile, fast)
    clock = cast("asyncio.AbstractEventLoop", loop)
    driver = Driver(fast, metrics, clock, speed, clock=lambda: loop.now)
    heard: list[tuple[str, Event]] = []
    longest = batcher.profile.max_model_len
    step = batcher.profile.a_ms * 1e-3 / speed

    def listen(id_: str, enough: int) -> Callable[[Event], None]:
        def listener(event: Event) -> None:
            heard.append((id_, event))
            if event.tokens >= enough:
                driver.abort(id_)

        return listener

    for number in range(40):
        loop.run(loop.now + chance.expovariate(1 / (chance.choice((0.1, 1.0, 10.0)) * step)))
        if number and chance.random() < 0.2:
            driver.abort(str(chance.randrange(number)))
        if driver.has_room(1):
            prompt = chance.randint(1, longest - 2)
            answer = Answer(chance.randint(1, longest - prompt), "length", 0)
            enough = chance.choice((3, longest, longest))
            driver.add(
                str(number), prompt, answer, chance.randint(-1, 1), listen(str(number), enough)
            )
    loop.run(float("inf"))
    assert (batcher.running, batcher.waiting, fast.ends) == (0, 0, None)
    lines = metrics.render().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    told = {name: float(value) for name, _, value in samples if "_created{" not in name}
    return heard, told


@settings(max_examples=25)
@given(profiles(), st.integers(0, 2**32), st.sampled_from([1.0, 20.0]))
def test_tokens_and_metrics_are_the_specifications(
    profile: EngineProfile, seed: int, speed: float
) -> None:
    profile = replace(profile, a_ms=profile.a_ms * 1.0371)  # steps on no histogram's bound
    expected, counted = play(Specification(profile), seed, speed)
    heard, told = play(Replica(profile, plain=True), seed, speed)
    assert [(id_, e.kind, e.id, e.tokens) for id_, e in heard] == [
        (id_, e.kind, e.id, e.tokens) for id_, e in expected
    ]
    assert [e.at for _, e in heard] == pytest.approx([e.at for _, e in expected], rel=1e-9)
    assert told == pytest.approx(counted, rel=1e-9)
