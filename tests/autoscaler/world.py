"""A world in virtual time around one controller: replicas that take their time, streams, traffic.

Replicas behave: they start after a while or fail, crash, drain as long as they have streams, and
take a moment to stop. All that happens is put in order on one heap.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from surgetank.adapters.fleet import FleetEvents, Found
from surgetank.autoscaler.controller import PoolController, Sinks
from surgetank.autoscaler.spec import PoolConfig
from surgetank.policy.budget import Budget
from surgetank.policy.ingress import Ingress
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.record import FleetSample
from surgetank.policy.replica import Role

# One replica takes 1,000 prompt tokens/s at full use; outputs cost next to nothing.
SCALE = ScaleSpec(
    prompt_tokens_per_replica=1000.0,
    output_tokens_per_replica=1e9,
    utilisation=1.0,
    standbys=0,
    max_standbys=0,
    scale_down_delay=30.0,
    start_time=5.0,
)
CONFIG = PoolConfig("m", max_replicas=6, scale=SCALE, drain_timeout=60.0, start_timeout=20.0)


class World:
    """Fleet, Routing and Observer in one, with a clock of its own."""

    def __init__(
        self,
        config: PoolConfig = CONFIG,
        *,
        start_time: float = 5.0,
        advisory: bool = False,
        learned: dict[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.now = 100.0
        self.start_time = start_time
        self.fails = 0  # how many of the next starts fail
        self.tokens_per_second = 0.0
        self.silent = False  # the gateway gives no readings
        self.known: dict[str, str] = {}  # routing: replica -> url
        self.serving: set[str] = set()
        self.expected: list[float] = []  # as the gateway was told last
        self.alive: set[str] = set()
        self.streams: dict[str, int] = {}
        self.calls: list[str] = []
        self.lines: list[dict[str, Any]] = []
        self.samples: list[FleetSample] = []
        self.outside: int = 0  # replicas of others that serve
        self._draining: dict[str, Callable[[str], None]] = {}
        self._tokens = 0.0
        self._counted = self.now
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.controller = PoolController(
            config,
            observer=self,
            routing=self,
            fleet=None if advisory else self,
            clock=lambda: self.now,
            wall_offset=1_000_000.0,
            sinks=Sinks(
                decision=lambda line: self.lines.append(json.loads(line)),
                sample=lambda line: self.samples.append(FleetSample.from_line(line)),
            ),
            learned=learned,
            budget=budget,
        )

    # Time.

    def run(self, seconds: float) -> None:
        """Tick once a second, and let happen what is due in between."""
        end = self.now + seconds
        while self.now < end:
            self.controller.tick(self.now)
            self.until(self.now + 1.0)

    def until(self, time: float) -> None:
        """Let happen what is due, deadlines included."""
        while True:
            event = self._heap[0][0] if self._heap else math.inf
            deadline = self.controller.next_deadline()
            due = math.inf if deadline is None else max(deadline, self.now)
            if min(event, due) > time:
                break
            if due < event:
                self._advance(due)
                self.controller.advance(due)
            else:
                _, _, happen = heapq.heappop(self._heap)
                self._advance(event)
                happen()
        self._advance(time)

    def _advance(self, time: float) -> None:
        self._tokens += self.tokens_per_second * (time - self._counted)
        self._counted = self.now = time

    def later(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), happen))

    # Observer.

    def read(self, model: str, role: Role, now: float) -> Sequence[Ingress]:
        if self.silent:
            return []
        return [
            Ingress(
                gateway="g",
                as_of=now,
                arrivals=round(self._tokens / 100),
                prompt_tokens=self._tokens,
                expected_output=0.0,
                queued=0,
                queue_age=0.0,
                running=sum(self.streams.values()),
                outstanding_output=0.0,
                serving=len(self.serving) + self.outside,
            )
        ]

    # Fleet.

    async def adopt(self, events: FleetEvents) -> Sequence[Found]:
        return ()

    def start(self, replica: str, *, as_standby: bool) -> None:
        assert replica not in self.alive, "it runs already"
        self.calls.append(f"start {replica}")
        self.alive.add(replica)
        if self.fails > 0:
            self.fails -= 1
            self.later(0.5, lambda: self._fail(replica))
        else:
            self.later(self.start_time, lambda: self._ready(replica))

    def _ready(self, replica: str) -> None:
        if replica in self.alive:
            self.controller.became_ready(replica, f"http://{replica}")

    def _fail(self, replica: str) -> None:
        if replica in self.alive:
            self.alive.discard(replica)
            self.controller.failed(replica, "no GPU")

    def crash(self, replica: str) -> None:
        self.alive.discard(replica)
        self.streams.pop(replica, None)
        self.controller.crashed(replica, "ended with signal SIGKILL")

    def stop(self, replica: str) -> None:
        assert replica not in self.serving, "it is stopped while it gets requests"
        self.calls.append(f"stop {replica}")
        self.later(0.2, lambda: self._stopped(replica))

    def _stopped(self, replica: str) -> None:
        if replica in self.alive:
            self.alive.discard(replica)
            self.streams.pop(replica, None)
            self.controller.stopped(replica)

    async def close(self, *, keep: bool) -> None:
        raise AssertionError("a controller closes nothing")

    # Routing, and the fleet's notes of it.

    def add(self, replica: str, url: str) -> None:
        self.known[replica] = url

    def attach(self, replica: str) -> None:
        assert replica in self.known, "it is attached before it is known"
        self._draining.pop(replica, None)
        self.serving.add(replica)

    def expect(self, seconds: Sequence[float]) -> None:
        self.expected = [round(s, 3) for s in seconds]

    def detach(self, replica: str) -> None:
        self.serving.discard(replica)

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        self.calls.append(f"drain {replica}")
        self.serving.discard(replica)
        self._draining[replica] = drained
        self._tell_if_drained(replica)

    def end_stream(self, replica: str) -> None:
        self.streams[replica] -= 1
        self._tell_if_drained(replica)

    def _tell_if_drained(self, replica: str) -> None:
        if not self.streams.get(replica) and replica in self._draining:
            self._draining.pop(replica)(replica)

    def remove(self, replica: str) -> None:
        self.known.pop(replica, None)
        self.serving.discard(replica)
        self._draining.pop(replica, None)

    # What is looked at.

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == name]

    @property
    def ticks(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "plan" in line]
