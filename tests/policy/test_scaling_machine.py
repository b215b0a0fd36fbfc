"""Pool and ScalePolicy under anything the world may do: random plans, then the closed loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from surgetank.policy.plan import ScalePlan
from surgetank.policy.pool import Attach, Detach, Drain, Pool, PoolEffect, PoolSpec, Start, Stop
from surgetank.policy.scaling import Observation, ScalePolicy, ScaleSpec, Signal

MAX = 12
POOL = PoolSpec(max_replicas=MAX, drain_timeout=50.0, start_timeout=200.0, stop_timeout=20.0)
PICK = st.integers(0, 10**6)


class World(RuleBasedStateMachine):
    """Machines that carry out effects, and check that each was allowed to be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = Pool(POOL, "m", draw=lambda: 0.5)
        self.phase: dict[str, str] = {}  # starting, warm, routed, leaving, stopping
        self.streams: dict[str, int] = {}
        self.leaving_since: dict[str, float] = {}
        self.told_drained: set[str] = set()
        self.used: set[str] = set()
        self.want = self.launch = self.standbys = 0
        self.planned = False

    def do(self, effects: Sequence[PoolEffect]) -> None:
        for effect in effects:
            name = effect.replica
            match effect:
                case Start():
                    assert name not in self.used
                    self.used.add(name)
                    self.phase[name] = "starting"
                    self.streams[name] = 0
                    assert len(self.phase) <= MAX
                case Attach():
                    assert self.phase[name] in {"warm", "leaving"}
                    assert name not in self.told_drained
                    self.phase[name] = "routed"
                case Detach():
                    assert self.phase[name] == "routed"
                    self.phase[name] = "warm"
                case Drain():
                    assert self.phase[name] in {"warm", "routed"}
                    self.phase[name] = "leaving"
                    self.leaving_since[name] = self.now
                case Stop():
                    self.check_stop(effect)
                    self.phase[name] = "stopping"

    def check_stop(self, stop: Stop) -> None:
        phase = self.phase[stop.replica]
        if phase == "leaving" and stop.replica not in self.told_drained:
            assert stop.reason == "drain timeout"
            assert self.now >= self.leaving_since[stop.replica] + POOL.drain_timeout
        else:
            assert phase in {"starting", "leaving", "stopping"}

    def follow(self, plan: ScalePlan) -> None:
        before = self.pool.counts()
        effects = self.pool.reconcile(plan, self.now)
        self.want, self.launch = plan.replicas, plan.launch
        self.standbys = min(plan.standbys, MAX - plan.replicas)
        self.planned = True
        promoted = sum(isinstance(effect, Attach) for effect in effects)
        assert promoted <= before.standby + before.draining
        self.do(effects)

    def end(self, name: str) -> None:
        for kept in (self.phase, self.streams, self.leaving_since):
            kept.pop(name, None)
        self.told_drained.discard(name)

    def those(self, *phases: str) -> list[str]:
        return [name for name, phase in self.phase.items() if phase in phases]

    def pick(self, number: int, *phases: str) -> str:
        names = self.those(*phases)
        return names[number % len(names)]

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (deadline := self.pool.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.do(self.pool.advance(self.now))
            again = self.pool.next_deadline()
            assert again is None or again > self.now
        self.now = until

    @initialize(serving=st.integers(0, 4), warm=st.integers(0, 3))
    def found(self, serving: int, warm: int) -> None:
        for number in range(serving + warm):
            name = f"found-{number}"
            self.do(self.pool.adopt(name, self.now, serving=number < serving))
            self.used.add(name)
            self.phase[name] = "routed" if number < serving else "warm"
            self.streams[name] = 0

    @precondition(lambda self: self.those("starting"))
    @rule(number=PICK)
    def becomes_ready(self, number: int) -> None:
        name = self.pick(number, "starting")
        self.phase[name] = "warm"
        self.do(self.pool.became_ready(name, self.now))

    @precondition(lambda self: self.those("starting"))
    @rule(number=PICK)
    def fails(self, number: int) -> None:
        name = self.pick(number, "starting")
        self.end(name)
        self.do(self.pool.failed(name, self.now))

    @precondition(lambda self: self.phase)
    @rule(number=PICK)
    def crashes(self, number: int) -> None:
        name = self.pick(number, *self.phase.values())
        self.end(name)
        self.do(self.pool.crashed(name, self.now))

    @precondition(lambda self: self.phase)
    @rule(number=PICK)
    def is_taken_away(self, number: int) -> None:
        name = self.pick(number, *self.phase.values())
        self.end(name)
        self.do(self.pool.stopped(name, self.now))

    @precondition(lambda self: self.those("stopping"))
    @rule(number=PICK)
    def stop_is_confirmed(self, number: int) -> None:
        name = self.pick(number, "stopping")
        self.end(name)
        self.do(self.pool.stopped(name, self.now))

    @precondition(lambda self: self.those("routed"))
    @rule(number=PICK)
    def gets_a_stream(self, number: int) -> None:
        self.streams[self.pick(number, "routed")] += 1

    @precondition(lambda self: self.those("routed", "warm", "leaving"))
    @rule(number=PICK)
    def ends_its_streams(self, number: int) -> None:
        name = self.pick(number, "routed", "warm", "leaving")
        self.streams[name] = 0

    @precondition(lambda self: any(not self.streams[name] for name in self.those("leaving")))
    @rule()
    def reports_drained(self) -> None:
        name = next(name for name in self.those("leaving") if not self.streams[name])
        self.told_drained.add(name)
        self.do(self.pool.drained(name, self.now))
        assert self.phase[name] == "stopping"

    @rule(seconds=st.sampled_from((0.1, 1.0, 7.0, 45.0, 260.0)))
    def waits(self, seconds: float) -> None:
        self.pass_time(seconds)

    @invariant()
    def replicas_are_conserved_over_the_states(self) -> None:
        counts = self.pool.counts()
        assert counts.starting + counts.refilling == len(self.those("starting"))
        assert counts.standby == len(self.those("warm"))
        assert counts.serving == len(self.those("routed"))
        assert counts.draining == len(self.those("leaving", "stopping"))
        assert counts.gone == len(self.used) - len(self.phase)
        assert counts.known == len(self.used)

    @invariant()
    def the_plan_is_followed(self) -> None:
        if not self.planned:
            return
        counts = self.pool.counts()
        alive = counts.starting + counts.refilling + counts.standby + counts.serving
        assert counts.serving <= self.want
        assert counts.serving == self.want or not self.those("warm")  # promotion never waits
        assert alive <= self.want + self.standbys  # what starts is counted
        cold = min(self.want, self.launch) + self.standbys
        room = MAX - counts.draining
        assert alive >= min(cold, room) or self.pool._held_back  # refilled behind


class PoolMachine(World):
    """Plans that jump about."""

    @rule(
        replicas=st.integers(1, MAX),
        standbys=st.integers(0, 4),
        launch=st.integers(1, MAX),
    )
    def is_planned(self, replicas: int, standbys: int, launch: int) -> None:
        self.follow(
            ScalePlan(
                replicas=replicas,
                launch=min(launch, replicas),
                standbys=standbys,
                surge=False,
                demand=None,
                reasons=(),
            )
        )


SPEC = ScaleSpec(
    max_replicas=MAX,
    scale_down_delay=40.0,
    start_time=90.0,
    step_period=10.0,
    max_step=4,
    hindsight=False,
)
OPTIONAL = ("prompt_tokens", "queue_age", "kv_held", "output_tokens", "as_of", "stale")


class ClosedLoop(World):
    """The policy ticks on what the pool is, with any load and with data that goes missing."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = ScalePolicy(SPEC)
        self.last: ScalePlan | None = None
        self.last_tick = 0.0
        self.ticks: list[tuple[float, int, int]] = []  # when, wanted then, planned
        self.taken_back = -math.inf
        self.direction = 0
        self.turned: tuple[float, float] | None = None

    @rule(
        seconds=st.sampled_from((0.5, 1.0, 2.0, 5.0, 41.0)),
        rate=st.sampled_from((0.0, 1000.0, 4000.0, 9000.0, 10_500.0, 20_000.0, 300_000.0)),
        ttft=st.sampled_from((None, 0.2, 0.9, 3.0, 9.0)),
        waited=st.sampled_from((0.0, 0.3, 1.0, 6.0)),
        missing=st.sampled_from((*OPTIONAL, *(None for _ in range(30)))),
        times=st.integers(1, 6),
    )
    def ticks_on(
        self,
        *,
        seconds: float,
        rate: float,
        ttft: float | None,
        waited: float,
        missing: str | None,
        times: int,
    ) -> None:
        for _ in range(times):
            self.pass_time(seconds)
            plan = self.policy.tick(self.seen(rate, ttft, waited, missing), self.now)
            self.check(plan, missing)
            self.last, self.last_tick = plan, self.now
            self.follow(plan)

    @rule(levels=st.lists(st.sampled_from((21.0, 24.0, 27.0, 30.0)), min_size=3, max_size=5))
    def load_wobbles(self, levels: list[float]) -> None:
        """Go up and down by an eighth, with nothing wrong: what makes a fleet turn around."""
        for level in levels:
            for _ in range(25):
                self.ticks_on(
                    seconds=2.0, rate=level * 1e3, ttft=0.2, waited=0.0, missing=None, times=1
                )

    def seen(
        self, rate: float, ttft: float | None, waited: float, missing: str | None
    ) -> Observation:
        counts = self.pool.counts()
        span = self.now - self.last_tick
        known: dict[str, float | None] = {
            "as_of": self.now - 100.0 if missing == "stale" else self.now,
            "prompt_tokens": rate * span,
            "queue_age": waited,
            "kv_held": 1000.0 * counts.serving,
            "output_tokens": 100.0 * span,
        }
        if missing in known:
            known[missing] = None
        return Observation(
            serving=counts.serving,
            starting=counts.starting,
            standby=counts.standby,
            as_of=known["as_of"],
            since=self.last_tick,
            arrivals=int(rate * span / 1000.0),
            prompt_tokens=known["prompt_tokens"],
            output_tokens=known["output_tokens"],
            ttft_points=() if ttft is None else ((self.now - 0.01, ttft),),
            queue_length=int(waited * 10),
            queue_age=known["queue_age"],
            running=counts.serving * 4,
            kv_held=known["kv_held"],
            kv_to_be_held=100.0,
            start_time=self.pool.start_time(),
        )

    def check(self, plan: ScalePlan, missing: str | None) -> None:
        assert SPEC.min_replicas <= plan.replicas <= SPEC.max_replicas
        assert plan.replicas + plan.standbys <= SPEC.max_replicas
        assert 0 <= plan.launch <= plan.replicas
        assert plan.reasons
        before = self.last.replicas if self.last else None
        if any(reason.signal is Signal.SURGE_PASSED for reason in plan.reasons):
            self.taken_back = self.now
        if before is not None and plan.replicas != before:
            self.check_move(plan, before, missing)
        wanted = before if missing and before else 0
        wanted = max(wanted or 0, math.ceil((plan.demand or 0.0) - 0.02))
        self.ticks.append((self.now, min(wanted, MAX), plan.replicas))

    def check_move(self, plan: ScalePlan, before: int, missing: str | None) -> None:
        step = 1 if plan.replicas > before else -1
        if step < 0:
            assert missing is None  # nothing is scaled down on data that is not there
            if self.taken_back <= self.now - SPEC.scale_down_delay:
                lately = [w for at, w, _ in self.ticks if at > self.now - SPEC.scale_down_delay]
                assert max(lately, default=0) <= plan.replicas
                assert self.ticks[0][0] <= self.now - SPEC.scale_down_delay
        demand = plan.demand or 0.0
        if self.direction and step != self.direction:
            if self.turned is not None:
                at, then = self.turned
                start_time = self.pool.start_time() or SPEC.start_time
                assert self.now - at >= start_time or abs(demand - then) > 0.2 * then
            self.turned = (self.now, demand)
        self.direction = step


class TaughtLoop(ClosedLoop):
    """The same loop while hindsight decides: it may shrink sooner, and keeps everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = ScalePolicy(
            replace(SPEC, hindsight=True, standby_cost=0.25, burst_factor=2.0)
        )

    def check(self, plan: ScalePlan, missing: str | None) -> None:
        assert SPEC.min_replicas <= plan.replicas <= SPEC.max_replicas
        assert plan.replicas + plan.standbys <= SPEC.max_replicas
        assert 0 <= plan.launch <= plan.replicas
        assert plan.standbys >= 0
        assert plan.reasons
        if missing is not None and self.last is not None:
            assert plan.replicas >= self.last.replicas  # nothing shrinks without data


TaughtLoop.TestCase.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
TestTaughtLoop = TaughtLoop.TestCase
PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
ClosedLoop.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
TestClosedLoop = ClosedLoop.TestCase
