"""One pool's controller: observe, decide, act, with every decision on a line of its own.

Rule: a shell calls `tick` once an interval and `advance` at `next_deadline`, and tells at once what
happens in between; nothing here waits. In advisory mode it decides and logs the same, and does
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from surgetank.adapters.fleet import Fleet, Found
from surgetank.autoscaler.line import event_line, tick_line
from surgetank.autoscaler.ports import Observer, Routing
from surgetank.autoscaler.spec import PoolConfig
from surgetank.policy.budget import Budget
from surgetank.policy.calendar import Calendar, Expecting
from surgetank.policy.forecaster import Forecaster
from surgetank.policy.ingress import Ingress, observation
from surgetank.policy.lifecycle import State
from surgetank.policy.plan import Observation, ScalePlan, ScaleSpec
from surgetank.policy.pool import (
    Attach,
    Detach,
    Drain,
    Pool,
    PoolCounts,
    PoolEffect,
    Start,
    Stop,
)
from surgetank.policy.record import FleetSample
from surgetank.policy.replica import Role
from surgetank.policy.scaling import ScalePolicy

_FORGOTTEN: Final = 60.0  # seconds after which a gateway's last reading is no base any more


@dataclass(slots=True)
class _Since:
    """What happened since the last sample."""

    started: int = 0
    failed: int = 0
    crashed: int = 0
    start_times: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where lines go: decisions, and samples among the request records."""

    decision: Callable[[str], object] = lambda _: None
    sample: Callable[[str], object] = lambda _: None


class PoolController:
    """ScalePolicy and Pool of one pool, joined to the world. It takes the Fleet's events itself.

    `clock`: monotonic seconds, asked when an event comes; `wall_offset`: Unix seconds less those;
    `draw`: numbers in [0, 1) for the backoff; `learned`: what an earlier `learned()` returned.
    `fleet` None is advisory mode. `budget`: what it shares with other pools, which it has joined.
    `changed` is called after each event: `next_deadline` may have moved.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        observer: Observer,
        routing: Routing,
        fleet: Fleet | None,
        clock: Callable[[], float],
        wall_offset: float = 0.0,
        sinks: Sinks | None = None,
        draw: Callable[[], float] = lambda: 0.5,
        forecaster: Forecaster | None = None,
        calendar: Calendar | None = None,
        learned: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.config = config
        self.fleet = fleet
        self._observer = observer
        self._routing = routing
        self._clock = clock
        self._wall_offset = wall_offset
        self._sinks = sinks or Sinks()
        self._scale = config.scale_spec()
        self._forecaster = forecaster
        self._expecting = Expecting(calendar, wall_offset=wall_offset) if calendar else None
        self._policy = self._made()
        starts = [float(x) for x in learned["starts"]] if learned else []
        self._budget = budget
        self._pool = Pool(
            config.pool_spec(),
            config.model,
            config.role,
            draw=draw,
            starts=starts,
            room=None if budget is None else partial(budget.room, config.name),
        )
        if budget is not None:
            budget.counted(config.name, self._pool.counts)
        self._before: dict[str, Ingress] = {}
        self._asked: dict[str, float] = {}  # starts under way: when they were asked for
        self._effects: deque[PoolEffect] = deque()
        self._acting = False
        self._since = _Since()
        self._held = False
        self._foretold = False
        self._decided: tuple[Observation, ScalePlan] | None = None
        self.plan: ScalePlan | None = None  # the one that is acted on
        self.changed: Callable[[], None] = lambda: None

    # Once an interval.

    def tick(self, now: float) -> ScalePlan:
        """Decide, write the decision and a sample, and act."""
        self.decide(now)
        return self.act(now)

    def decide(self, now: float) -> None:
        """Observe, and say what this pool wants; where several share a budget all say it first."""
        readings = list(self._observer.read(self.config.model, self.config.role, now))
        seen = self._observe(readings, now)
        plan = self._policy.tick(seen, now)
        if self._budget is not None:
            self._budget.want(self.config.name, plan)
        self._decided = seen, plan

    def act(self, now: float) -> ScalePlan:
        """Follow what was decided last, within the budget."""
        assert self._decided is not None  # noqa: S101 - `decide` comes first
        seen, plan = self._decided
        if self._budget is not None:
            plan = self._budget.within(self.config.name, plan)
        if not self._held or self.plan is None:
            self.plan = plan
        effects: Sequence[PoolEffect] = ()
        if self.fleet is not None:
            effects = [*self._pool.reconcile(self.plan, now), *self._pool.advance(now)]
        row = self._row(now) | ({"held": self.plan.replicas} if self._held else {})
        self._sinks.decision(tick_line(row, seen, plan, effects))
        self._carry_out(effects, now)
        self._foretell(now)
        self._sinks.sample(self._sample(seen, self.plan, now).to_line())
        return self.plan

    def _foretell(self, now: float) -> None:
        """Say when what starts will serve, so that nobody is told to come back later than that."""
        if self.fleet is None or self.config.role is not Role.BOTH:
            return
        etas = self._pool.expected(now, self._scale.start_time)
        if etas or self._foretold:
            self._routing.expect([at - now for at in etas])
        self._foretold = bool(etas)

    def hold(self, *, on: bool) -> None:
        """Keep to the plan of the last tick, whatever is decided from now on; or no more.

        Decisions are made and written all the same, and a replica that dies is replaced.
        """
        self._held = on

    def use(self, scale: ScaleSpec, why: str) -> bool:
        """Scale by other settings from now on, within the pool's own sizes; False: they are in use.

        What serves stays as if it had been wanted, for the scale-down delay.
        """
        config = self.config
        most = config.max_replicas
        least = min(max(scale.min_replicas, config.base), most)
        scale = replace(
            scale, min_replicas=least, max_replicas=max(least, min(scale.max_replicas, most))
        )
        if scale == self._scale:
            return False
        self._scale = scale
        self._policy = self._made()
        self._note("portfolio", "", why, (), self._clock())
        return True

    @property
    def scale(self) -> ScaleSpec:
        """The settings in use."""
        return self._scale

    def start_times(self) -> tuple[float, ...]:
        """The latest start times, seconds, oldest first."""
        return self._pool.starts()

    def _made(self) -> ScalePolicy:
        return ScalePolicy(
            self._scale,
            role=self.config.role,
            forecaster=self._forecaster,
            expecting=self._expecting,
        )

    def _observe(self, readings: Sequence[Ingress], now: float) -> Observation:
        seen = observation(
            readings,
            self._before,
            self._counts(readings),
            start_time=self._pool.start_time(),
            block_size=self._scale.block_size,
        )
        kept = {**self._before, **{reading.gateway: reading for reading in readings}}
        self._before = {n: r for n, r in kept.items() if now - r.as_of < _FORGOTTEN}
        return seen

    def _counts(self, readings: Sequence[Ingress]) -> PoolCounts:
        if self.fleet is not None:
            return self._pool.counts()
        return PoolCounts(serving=max((r.serving for r in readings), default=0))

    @property
    def starting(self) -> bool:
        """A replica was asked for, and is not ready yet."""
        return bool(self._asked)

    # What time it is, in between.

    def advance(self, now: float) -> None:
        """Act on every deadline that has passed."""
        effects = self._pool.advance(now)
        if effects:
            self._happened("time", "", "a deadline passed", effects, now)

    def next_deadline(self) -> float | None:
        """When `advance` has something to do; None while only events matter."""
        return None if self.fleet is None else self._pool.next_deadline()

    # What happened in between.

    def adopt(self, found: Sequence[Found]) -> None:
        """Take in replicas of an earlier life, before the first tick."""
        now = self._clock()
        for replica in found:
            self._routing.add(replica.replica, replica.url)
            effects = self._pool.adopt(replica.replica, now, serving=replica.serving)
            self._note("adopted", replica.replica, "", effects, now)
            if replica.serving:
                self._routing.attach(replica.replica)
            self._carry_out(effects, now)

    def became_ready(self, replica: str, url: str) -> None:
        now = self._clock()
        asked = self._asked.pop(replica, None)
        if asked is not None:
            self._since.start_times.append(now - asked)
        self._routing.add(replica, url)
        self._happened("became_ready", replica, "", self._pool.became_ready(replica, now), now)

    def failed(self, replica: str, why: str) -> None:
        now = self._clock()
        self._since.failed += 1
        self._forget(replica)
        self._happened("failed", replica, why, self._pool.failed(replica, now), now)

    def crashed(self, replica: str, why: str) -> None:
        now = self._clock()
        self._since.crashed += 1
        self._forget(replica)
        self._happened("crashed", replica, why, self._pool.crashed(replica, now), now)

    def stopped(self, replica: str) -> None:
        now = self._clock()
        self._forget(replica)
        self._happened("stopped", replica, "", self._pool.stopped(replica, now), now)

    def drained(self, replica: str) -> None:
        """Its last stream has ended."""
        now = self._clock()
        self._happened("drained", replica, "", self._pool.drained(replica, now), now)

    def unresponsive(self, replica: str, why: str) -> None:
        """It runs and has not answered for long: it counts as crashed, and is ended."""
        if self.fleet is None or self._pool.state(replica) is State.GONE:
            return
        now = self._clock()
        self._since.crashed += 1
        self._forget(replica)
        effects = self._pool.crashed(replica, now)
        self.fleet.stop(replica)
        self._happened("unresponsive", replica, why, effects, now)

    # What can be asked.

    def counts(self) -> PoolCounts:
        """Replicas by state; those of advisory mode are not ours, and not counted."""
        return self._pool.counts()

    def learned(self) -> dict[str, Any]:
        """What is worth keeping over a restart, JSON-able."""
        return {"starts": list(self._pool.starts())}

    # Acting.

    def _forget(self, replica: str) -> None:
        self._asked.pop(replica, None)
        self._routing.remove(replica)

    def _happened(
        self, event: str, replica: str, why: str, effects: Sequence[PoolEffect], now: float
    ) -> None:
        self._note(event, replica, why, effects, now)
        self._carry_out(effects, now)
        self._foretell(now)
        self.changed()

    def _note(
        self, event: str, replica: str, why: str, effects: Sequence[PoolEffect], now: float
    ) -> None:
        self._sinks.decision(event_line(self._row(now), event, replica, why, effects))

    def _carry_out(self, effects: Sequence[PoolEffect], now: float) -> None:
        """Act in order, also when acting brings the next event at once."""
        self._effects.extend(effects)
        if self._acting:
            return
        self._acting = True
        try:
            while self._effects:
                self._act(self._effects.popleft(), now)
        finally:
            self._acting = False

    def _act(self, effect: PoolEffect, now: float) -> None:
        fleet, routing = self.fleet, self._routing
        if fleet is None:
            return
        replica = effect.replica
        match effect:
            case Start():
                self._since.started += 1
                self._asked[replica] = now
                fleet.start(replica, as_standby=effect.as_standby)
            case Attach():
                routing.attach(replica)
                fleet.attach(replica)
            case Detach():
                routing.detach(replica)
                fleet.detach(replica)
            case Drain():
                fleet.detach(replica)
                routing.drain(replica, self.drained)
            case Stop():
                routing.remove(replica)
                fleet.stop(replica)

    # Writing.

    def _row(self, now: float) -> dict[str, Any]:
        return {
            "t": round(now + self._wall_offset, 6),
            "now": now,
            "model": self.config.model,
            "role": self.config.role,
            "advisory": self.fleet is None,
        }

    def _sample(self, seen: Observation, plan: ScalePlan, now: float) -> FleetSample:
        counts = self._pool.counts()
        since, self._since = self._since, _Since()
        held, capacity = seen.kv_held, seen.kv_capacity
        return FleetSample(
            t=round(now + self._wall_offset, 6),
            model=self.config.model,
            role=self.config.role.value,
            starting=counts.starting,
            refilling=counts.refilling,
            standby=counts.standby,
            serving=counts.serving if self.fleet is not None else seen.serving,
            draining=counts.draining,
            wanted=plan.replicas,
            queued=seen.queue_length,
            queue_age=seen.queue_age,
            running=seen.running,
            kv=held / capacity if held is not None and capacity else None,
            started=since.started,
            failed=since.failed,
            crashed=since.crashed,
            start_times=tuple(since.start_times),
        )
