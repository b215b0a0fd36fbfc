"""A pilot of the second act in virtual time: what the fleet will cost, told before the run.

Rule: the decisions are the live ones (FlowControl, ScalePolicy, Pool), the replicas the engine's
own batcher; only sockets, processes and the clock are left out. It takes a second or two, and a
run that cost more than its pilot said is reported as such.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from surgetank.adapters.fleet import FleetEvents, Found
from surgetank.autoscaler.controller import PoolController, Sinks
from surgetank.autoscaler.ports import FlowObserver
from surgetank.engine import replica as engine
from surgetank.engine.literal import Event, EventKind
from surgetank.loadtest.sender import Shot
from surgetank.policy.effect import Cancel, Dispatch, Effect
from surgetank.policy.flow import FlowControl
from surgetank.policy.record import FleetSample
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.studies.fleet_demo.measure import at_rest, replica_seconds
from surgetank.studies.fleet_demo.pulse import MODEL, Schedule
from surgetank.studies.fleet_demo.setup import TENANTS, TIERS, FleetSetup

_SPAWN: Final = 0.7  # seconds a process takes before it begins to load
_WARM_UP: Final = 5.0  # seconds between the last standby and the first request
_STOP: Final = 0.1
_MARGIN: Final = 1.1  # a real machine's starts and stops take longer: measured, 4 to 5 %
_MOST: Final = 600.0  # seconds after the last arrival; beyond it something never ends


@dataclass(frozen=True, slots=True)
class Foretold:
    """What the fleet will cost from the first request until it is at rest again."""

    replica_seconds: float
    seconds: float

    @property
    def least_fixed(self) -> int:
        """The least fixed number of replicas that costs as much, with the margin."""
        return math.ceil(_MARGIN * self.replica_seconds / self.seconds)


class Pilot:
    """Fleet, Routing and the engines at once, around one controller and one FlowControl."""

    def __init__(self, setup: FleetSetup, schedule: Schedule) -> None:
        self.samples: list[FleetSample] = []
        self.first_tokens: dict[str, float] = {}  # request -> TTFT
        self.outcomes: dict[str, Outcome] = {}
        self._setup = setup
        self._schedule = schedule
        self._profile = setup.profile()
        self._now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._engines: dict[str, engine.Replica] = {}
        self._streams: dict[str, set[str]] = {}
        self._draining: dict[str, Callable[[str], None]] = {}
        self._shots: dict[str, Shot] = {shot.id: shot for shot in schedule.shots}
        self._flow = FlowControl(setup.flow(), tenants=TENANTS, tiers=TIERS, models=[MODEL])
        self._controller = PoolController(
            setup.pool(),
            observer=FlowObserver(self._flow),
            routing=self,
            fleet=self,
            clock=lambda: self._now,
            sinks=Sinks(sample=lambda line: self.samples.append(FleetSample.from_line(line))),
        )

    def run(self) -> Foretold:
        """Run until every request has ended and the fleet is at rest."""
        begins = self._setup.cold_start + _WARM_UP
        for shot in self._schedule.shots:
            self._at(begins + shot.at, lambda shot=shot: self._offer(shot))  # type: ignore[misc]  # mypy cannot infer a lambda's default
        ends = begins + self._schedule.length
        self._at(0.0, self._tick)
        while len(self.outcomes) < len(self._shots) or self._now < ends or not self._at_rest():
            self._step()
            if self._now > ends + _MOST:
                raise RuntimeError(f"{len(self._shots) - len(self.outcomes)} requests never end")
        return Foretold(replica_seconds(self.samples, begins, self._now), self._now - begins)

    def _at_rest(self) -> bool:
        setup = self._setup
        return at_rest(self.samples[-1], serving=setup.base, standby=setup.standbys)

    # Time.

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time, next(self._order), happen))

    def _step(self) -> None:
        flow = self._flow.next_deadline() or math.inf
        scaling = self._controller.next_deadline() or math.inf
        event = self._heap[0][0]
        self._now = max(self._now, min(flow, scaling, event))
        if flow <= min(scaling, event):
            self._carry_out(self._flow.advance(self._now))
        elif scaling <= event:
            self._controller.advance(self._now)
        else:
            heapq.heappop(self._heap)[2]()

    def _tick(self) -> None:
        self._controller.tick(self._now)
        self._at(self._now + 1.0, self._tick)

    # Requests.

    def _offer(self, shot: Shot) -> None:
        request = Request(
            shot.id,
            shot.tenant,
            MODEL,
            prompt_bytes=len(shot.body),
            prompt_chars=len(shot.body),
            max_tokens=shot.max_tokens,
            stream=True,
        )
        self._carry_out(self._flow.offer(request, self._now))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Dispatch):
                self._dispatch(effect.request, effect.legs[0].replica)
                continue
            self.outcomes[effect.request.id] = effect.outcome
            if isinstance(effect, Cancel):
                for replica, streams in self._streams.items():
                    if effect.request.id in streams:
                        self._engines[replica].abort(effect.request.id, self._now)
                        self._wake(replica)  # it cuts the stretch under way
                        self._ended(replica, effect.request.id)
                self._carry_out(
                    self._flow.finish(effect.request.id, effect.outcome, None, self._now)
                )

    def _dispatch(self, request: Request, replica: str) -> None:
        batcher = self._engines[replica]
        prompt = max(1, request.prompt_bytes // 4)
        batcher.add(request.id, prompt, self._shots[request.id].max_tokens or 1, self._now)
        self._streams[replica].add(request.id)
        self._wake(replica)

    def _wake(self, replica: str) -> None:
        due = self._engines[replica].due
        if due is not None:
            self._at(due, lambda: self._engine_step(replica, due))

    def _engine_step(self, replica: str, due: float) -> None:
        batcher = self._engines.get(replica)
        if batcher is None or batcher.due != due:
            return
        events = batcher.step(self._now)
        self._wake(replica)
        for event in events:
            self._hear(replica, event)

    def _hear(self, replica: str, event: Event) -> None:
        if event.id not in self._streams.get(replica, ()):
            return
        if event.kind is EventKind.FIRST_TOKEN:
            shot = self._shots[event.id]
            begins = self._setup.cold_start + _WARM_UP
            self.first_tokens[event.id] = self._now - begins - shot.at
            self._carry_out(self._flow.first_token(event.id, self._now))
        elif event.kind is EventKind.FINISHED:
            self.outcomes[event.id] = Outcome.COMPLETED
            usage = Usage(None, event.tokens)
            self._ended(replica, event.id)
            self._carry_out(self._flow.finish(event.id, Outcome.COMPLETED, usage, self._now))

    def _ended(self, replica: str, request: str) -> None:
        self._streams[replica].discard(request)
        if not self._streams[replica] and replica in self._draining:
            self._draining.pop(replica)(replica)

    # Fleet.

    async def adopt(self, events: FleetEvents) -> Sequence[Found]:
        """Find nothing: there is no earlier life."""
        del events
        return ()

    def start(self, replica: str, *, as_standby: bool) -> None:
        del as_standby
        self._engines[replica] = engine.Replica(self._profile, plain=True)
        self._streams[replica] = set()
        ready = self._now + _SPAWN + self._setup.cold_start
        self._at(ready, lambda: self._ready(replica))

    def _ready(self, replica: str) -> None:
        if replica in self._engines:
            self._controller.became_ready(replica, "")

    def stop(self, replica: str) -> None:
        self._at(self._now + _STOP, lambda: self._stopped(replica))

    def _stopped(self, replica: str) -> None:
        if self._engines.pop(replica, None) is not None:
            self._controller.stopped(replica)

    async def close(self, *, keep: bool) -> None:
        """Nothing to end."""

    # Routing; the fleet's own notes of it are not needed.

    def add(self, replica: str, url: str) -> None:
        """It is known already."""

    def attach(self, replica: str) -> None:
        self._draining.pop(replica, None)
        profile = self._profile
        described = Replica(
            replica,
            MODEL,
            kv_tokens=profile.kv_tokens,
            block_size=profile.block_size,
            max_context=profile.max_model_len,
        )
        self._carry_out(self._flow.join(described, self._now))

    def expect(self, seconds: Sequence[float]) -> None:
        etas = [self._now + s for s in seconds]
        self._carry_out(self._flow.expect(MODEL, etas, self._now))

    def detach(self, replica: str) -> None:
        self._carry_out(self._flow.leave(replica, self._now))

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        self.detach(replica)
        if self._streams[replica]:
            self._draining[replica] = drained
        else:
            drained(replica)

    def remove(self, replica: str) -> None:
        self.detach(replica)
