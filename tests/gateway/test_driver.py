"""The driver under virtual time decides what a bare simulator decides, request by request."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import count

import pytest

from surgetank.gateway.driver import Driver
from surgetank.policy.effect import Cancel, Dispatch, Refuse
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request
from surgetank.policy.tenant import Tenant, Tier
from tests.policy.simulator import simulate

TENANTS = (
    Tenant("gold", tier="core", weight=4),
    Tenant("free", weight=1, tokens_per_minute=240_000, burst_seconds=5, max_running=6),
    Tenant("spare", weight=2),
)
TIERS = (Tier("core", priority=0), Tier("standard", priority=1, min_share=0.2))
SPEC = FlowSpec(max_queued=40, queue_timeout=3.0, request_timeout=6.0)


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """An event loop's clock that jumps to the next timer."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._timers: list[tuple[float, int, Handle, Callable[[], None]]] = []

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None], /) -> Handle:
        handle = Handle()
        heapq.heappush(self._timers, (when, next(self._order), handle, callback))
        return handle

    def run(self) -> None:
        while self._timers:
            when, _, handle, callback = heapq.heappop(self._timers)
            if not handle.cancelled:
                self._now = max(self._now, when)
                callback()


class Caller:
    """A request whose service takes a known time; notes how and when it ended."""

    def __init__(self, clock: VirtualClock, driver: Driver, request: Request) -> None:
        self.clock = clock
        self.driver = driver
        self.request = request
        self.ended: list[tuple[float, Outcome]] = []
        self.service: Handle | None = None

    def offer(self) -> None:
        self.driver.offer(self.request, self)

    def dispatch(self, effect: Dispatch) -> None:
        at = self.clock.time() + service_time(effect.request)
        self.service = self.clock.call_at(at, self._finish)

    def _finish(self) -> None:
        self.ended.append((self.clock.time(), Outcome.COMPLETED))
        self.driver.finish(self.request.id, Outcome.COMPLETED, None)

    def refuse(self, effect: Refuse) -> None:
        self.ended.append((self.clock.time(), effect.outcome))

    def cancel(self, effect: Cancel) -> None:
        assert self.service is not None
        self.service.cancel()
        self.ended.append((self.clock.time(), effect.outcome))
        self.driver.finish(self.request.id, effect.outcome, None)


def service_time(request: Request) -> float:
    return round(0.05 + request.prompt_bytes / 8000 + (request.max_tokens or 0) / 80, 6)


def arrivals(seed: int, number: int = 400) -> list[tuple[float, Request]]:
    """Draw a base load with a pulse of three seconds in every nine."""
    rng = random.Random(seed)
    at, drawn = 0.0, []
    for i in range(number):
        at += rng.expovariate(60 if at % 9 >= 6 else 10)
        request = Request(
            id=f"r{i}",
            tenant=rng.choice(("gold", "free", "spare")),
            model="m",
            prompt_bytes=rng.randint(10, 3200),
            max_tokens=rng.randint(10, 400),
        )
        drawn.append((round(at, 6), request))
    return drawn


def control() -> FlowControl:
    flow = FlowControl(SPEC, tenants=TENANTS, tiers=TIERS, models=("m",), draw=lambda: 0.5)
    for name in ("a", "b"):
        flow.join(Replica(name, "m", slots=8, kv_tokens=6000, preempts=False), 0.0)
    return flow


def driven(shots: Sequence[tuple[float, Request]]) -> dict[str, tuple[float, Outcome]]:
    clock = VirtualClock()
    driver = Driver(control(), clock)
    callers = [Caller(clock, driver, request) for _, request in shots]
    for (at, _), caller in zip(shots, callers, strict=True):
        clock.call_at(at, caller.offer)
    clock.run()
    assert len(driver) == 0
    assert all(len(c.ended) == 1 for c in callers)
    return {c.request.id: c.ended[0] for c in callers}


@pytest.mark.parametrize("seed", range(20))
def test_the_driver_and_a_simulator_end_every_request_alike(seed: int) -> None:
    shots = arrivals(seed)
    simulated = {
        name: (at, outcome) for at, name, outcome in simulate(control(), shots, service_time)
    }
    live = driven(shots)
    assert {n: o for n, (_, o) in live.items()} == {n: o for n, (_, o) in simulated.items()}
    assert all(live[n][0] == pytest.approx(simulated[n][0], abs=1e-6) for n in live)
    assert len({o for _, o in live.values()}) >= 3  # the pulse makes some wait too long


class Endless:
    """A request that runs until it is told to end."""

    def dispatch(self, effect: Dispatch) -> None:
        """It runs on."""

    def refuse(self, effect: Refuse) -> None:
        raise AssertionError("shadow admission refuses nobody")

    def cancel(self, effect: Cancel) -> None:
        """Nothing more is asked of it."""


def test_a_deadline_of_the_shadow_alone_is_kept_though_the_flow_sleeps_longer() -> None:
    clock = VirtualClock()
    spec = FlowSpec(admission="shadow", max_in_flight=1, queue_timeout=3.0, request_timeout=60.0)
    flow = FlowControl(spec, tiers=(Tier(predicted_wait=False),), models=("m",))
    flow.join(Replica("a", "m"), 0.0)
    driver = Driver(flow, clock)
    assert driver.shadow is not None
    refused: list[tuple[float, int]] = []

    def look() -> None:
        assert driver.shadow is not None
        refused.append((clock.time(), sum(driver.shadow.counts.refused.values())))

    driver.offer(Request("runs", "t", "m", prompt_bytes=40, max_tokens=10), Endless())
    second = Request("waits", "t", "m", prompt_bytes=40, max_tokens=10)
    clock.call_at(1.0, lambda: driver.offer(second, Endless()))
    assert flow.sleeps_until(59.0)  # its one timer stands at the end of the first request
    clock.call_at(3.9, look)
    clock.call_at(4.1, look)  # nothing happened in between but the shadow's own deadline
    clock.call_at(4.2, driver.close)
    clock.run()
    assert refused == [(3.9, 0), (4.1, 1)]
