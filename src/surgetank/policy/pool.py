"""Pool: the replicas of one (model, role), and what has to be done so that they follow the plan.

Rule: tell it what happened and what time it is; carry out the effects it returns, in order; call
`advance` no later than `next_deadline`. Nothing is stopped while it has streams, until its drain
times out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

from surgetank.errors import ConfigError
from surgetank.policy.backoff import Backoff
from surgetank.policy.lifecycle import TRANSITIONS, Event, State
from surgetank.policy.plan import ScalePlan
from surgetank.policy.replica import Role

# A member looked up in its enum takes 0.15 us, a global nothing.
_STARTING: Final = State.STARTING
_STANDBY: Final = State.STANDBY
_SERVING: Final = State.SERVING

StopReason = Literal["drained", "drain timeout", "start cancelled", "start timeout"]


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """Settings of one pool. Times in seconds."""

    base: int = 1  # replicas that always serve, first started, last drained: on reserved machines
    max_replicas: int = 64  # all that exist, the draining ones included
    drain_timeout: float = 600.0  # longest stream that is waited for; then it is cut off
    start_timeout: float = 900.0  # twice the slowest start reported (439 s): it has failed
    stop_timeout: float = 60.0  # a stop that was not confirmed by then is asked for again
    settled_after: float = 60.0  # a crash sooner after the start counts as a failed start
    backoff: Backoff = field(default_factory=Backoff)  # between failed starts
    starts_remembered: int = 64  # for the P95 start time

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        if not 0 <= self.base <= self.max_replicas:
            raise ConfigError(
                f"pool.base = {self.base}: must be between 0 and max_replicas ({self.max_replicas})"
            )
        for name in ("drain_timeout", "start_timeout", "stop_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"pool.{name} = {getattr(self, name)}: must be > 0")


@dataclass(frozen=True, slots=True)
class Start:
    """Start a replica. `as_standby`: it is meant to be kept warm; `base`: it always serves."""

    replica: str
    as_standby: bool
    base: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Give it requests from now on."""

    replica: str


@dataclass(frozen=True, slots=True)
class Detach:
    """Give it no new requests; it finishes its streams and stays warm as a standby."""

    replica: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Give it no new requests, and say `drained` when its last stream has ended."""

    replica: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End it now, and say `stopped` when it is gone."""

    replica: str
    reason: StopReason


PoolEffect = Start | Attach | Detach | Drain | Stop


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Conservation: known = starting + refilling + standby + serving + draining + gone."""

    starting: int = 0  # in order to serve
    refilling: int = 0  # in order to be standbys
    standby: int = 0
    serving: int = 0
    draining: int = 0
    gone: int = 0
    known: int = 0


@dataclass(slots=True)
class _Member:
    id: str
    state: State
    base: bool
    since: float  # start asked for, or found
    ready: float | None = None
    deadline: float | None = None
    stopping: Stop | None = None


class Pool:
    """Base, elastic and standby replicas of one model in one role.

    Standbys are promoted first, and refilled behind: a refill is an ordinary start that nothing
    waits for. Shrinking takes starts that are still under way, then the youngest elastic replicas;
    base ones last. `draw`: random numbers in [0, 1) for the backoff. `starts`: start times learnt
    in an earlier life, as `starts()` gave them. `room`: replicas that may be started now beside
    all that exist, where pools share a budget; None: only its own `max_replicas` bounds it.
    """

    def __init__(
        self,
        spec: PoolSpec,
        model: str,
        role: Role = Role.BOTH,
        *,
        draw: Callable[[], float] = lambda: 0.5,
        starts: Iterable[float] = (),
        room: Callable[[], int] | None = None,
    ) -> None:
        self._spec = spec
        self._room = room
        self._prefix = f"{model}-{role}"
        self._draw = draw
        self._members: dict[str, _Member] = {}  # by age; those gone are only counted
        self._gone = 0
        self._bases = 0  # base replicas that are not draining
        self._named = 0
        self._planned = False  # before the first plan nothing is known to be wanted or not
        self._want = 0
        self._launch = 0
        self._standbys = 0
        self._failures = 0
        self._failed_at = -math.inf
        self._retry_at = -math.inf
        self._healthy_since: float | None = None
        self._held_back = False
        self._starts: deque[float] = deque(starts, maxlen=spec.starts_remembered)

    # What happened.
    def reconcile(self, plan: ScalePlan, now: float) -> Sequence[PoolEffect]:
        """Follow the plan from now on."""
        self._planned = True
        self._want = min(max(plan.replicas, self._spec.base), self._spec.max_replicas)
        self._launch = max(plan.launch, self._spec.base)
        self._standbys = min(plan.standbys, self._spec.max_replicas - self._want)
        return self._settle(now)

    def adopt(self, replica: str, now: float, *, serving: bool) -> Sequence[PoolEffect]:
        """Take in a replica found running (the controller came up); a known id is ignored."""
        if replica in self._members:
            return ()
        member = self._join(replica, Event.BECAME_READY, now)
        member.ready = now
        if serving:
            self._apply(member, Event.PROMOTE)
        return ()  # the next plan decides what becomes of it

    def became_ready(self, replica: str, now: float) -> Sequence[PoolEffect]:
        """Note that it can serve."""
        member = self._members.get(replica)
        if member is None or not self._apply(member, Event.BECAME_READY):
            return ()
        member.ready = now
        member.deadline = None
        self._starts.append(now - member.since)
        if self._healthy_since is None:
            self._healthy_since = now
        return self._settle(now)

    def drained(self, replica: str, now: float) -> Sequence[PoolEffect]:
        """Note that its last stream has ended."""
        member = self._members.get(replica)
        if member is None or member.stopping or not self._apply(member, Event.DRAINED):
            return ()
        return [self._stop(member, "drained", now), *self._settle(now)]

    def failed(self, replica: str, now: float) -> Sequence[PoolEffect]:
        """Note that it never came up, and nothing of it is left to stop."""
        return self._leave(replica, Event.FAILED, now)

    def crashed(self, replica: str, now: float) -> Sequence[PoolEffect]:
        """Note that it died."""
        return self._leave(replica, Event.CRASHED, now)

    def stopped(self, replica: str, now: float) -> Sequence[PoolEffect]:
        """Note that it is gone, because we asked or because somebody took it away."""
        return self._leave(replica, Event.STOPPED, now)

    # What time it is.
    def advance(self, now: float) -> Sequence[PoolEffect]:
        """Act on every deadline that has passed."""
        effects: list[PoolEffect] = []
        for member in list(self._members.values()):
            if member.deadline is None or member.deadline > now:
                continue
            if member.stopping:
                member.deadline = now + self._spec.stop_timeout
                effects.append(member.stopping)
            elif member.state is State.STARTING:
                self._count_failure(member, now)
                self._apply(member, Event.DRAIN)
                effects.append(self._stop(member, "start timeout", now))
            else:
                effects.append(self._stop(member, "drain timeout", now))
        return [*effects, *self._settle(now)]

    def next_deadline(self) -> float | None:
        """When `advance` has something to do; None while only events matter."""
        times = [m.deadline for m in self._members.values() if m.deadline is not None]
        if self._held_back:
            times.append(self._retry_at)
        return min(times, default=None)

    # What can be asked; changes nothing.
    def counts(self) -> PoolCounts:
        """Replicas by state."""
        starting, standby, serving = self._alive()
        known = len(self._members)
        to_serve = min(starting, max(0, self._want - serving))
        return PoolCounts(
            starting=to_serve,
            refilling=starting - to_serve,
            standby=standby,
            serving=serving,
            draining=known - starting - standby - serving,
            gone=self._gone,
            known=self._gone + known,
        )

    def expected(self, now: float, usual: float) -> tuple[float, ...]:
        """When those that start in order to serve are likely to, in order; not those overdue.

        By the median of this pool's own starts, before the first by the `usual` time of one. What
        waits for the backoff of failed starts counts from the end of that.
        """
        if self._starts:
            usual = median(self._starts)
        etas = [m.since + usual for m in self._members.values() if m.state is _STARTING]
        etas = etas[: self.counts().starting]
        if self._held_back:
            missing = min(self._want, self._launch) - sum(self._alive())
            etas += [self._retry_at + usual] * max(0, missing)
        return tuple(sorted(at for at in etas if at > now))

    def state(self, replica: str) -> State:
        """Where a replica is; GONE for one never heard of."""
        member = self._members.get(replica)
        return State.GONE if member is None else member.state

    def states(self) -> dict[str, State]:
        """Give the state of every replica that is not gone."""
        return {member.id: member.state for member in self._members.values()}

    def start_time(self) -> float | None:
        """P95 of this pool's own start times, seconds; None before the first start ended."""
        if not self._starts:
            return None
        ordered = sorted(self._starts)
        return ordered[math.ceil(0.95 * len(ordered)) - 1]

    def starts(self) -> tuple[float, ...]:
        """The latest start times, seconds, oldest first: worth keeping over a restart."""
        return tuple(self._starts)

    def _alive(self) -> tuple[int, int, int]:
        """Count who is starting, standby and serving."""
        starting = standby = serving = 0
        for member in self._members.values():
            state = member.state
            if state is _SERVING:
                serving += 1
            elif state is _STARTING:
                starting += 1
            elif state is _STANDBY:
                standby += 1
        return starting, standby, serving

    def _in(self, state: State) -> list[_Member]:
        return [m for m in self._members.values() if m.state is state]

    def _join(self, replica: str, event: Event, now: float) -> _Member:
        base = self._bases < self._spec.base
        member = _Member(replica, TRANSITIONS[None, event], base, now)
        self._members[replica] = member
        self._bases += base
        return member

    def _apply(self, member: _Member, event: Event) -> bool:
        """Change the state by the table; False if the event came too late for it."""
        to = TRANSITIONS.get((member.state, event))
        if to is None:
            return False
        self._bases -= self._stays(member)
        member.state = to
        self._bases += self._stays(member)
        return True

    def _stays(self, member: _Member) -> bool:
        return member.base and member.state is not State.DRAINING and member.state is not State.GONE

    def _leave(self, replica: str, event: Event, now: float) -> Sequence[PoolEffect]:
        member = self._members.get(replica)
        if member is None:
            return ()
        before = member.state
        if not self._apply(member, event):
            return ()
        del self._members[replica]
        self._gone += 1
        young = member.ready is None or now - member.ready < self._spec.settled_after
        wanted = before is not State.DRAINING
        if wanted and (event is Event.FAILED or (event is Event.CRASHED and young)):
            self._count_failure(member, now)
        return self._settle(now)

    def _count_failure(self, member: _Member, now: float) -> None:
        """One step of backoff; starts asked for before the last failure belong to that one."""
        healthy = self._healthy_since
        if healthy is not None and now - healthy >= self._spec.settled_after:
            self._failures = 0
        if member.since < self._failed_at and self._failures:
            return
        self._healthy_since = None
        self._failures += 1
        self._failed_at = now
        self._retry_at = now + self._spec.backoff.delay(self._failures, self._draw())

    def _settle(self, now: float) -> list[PoolEffect]:
        """Everything that follows from the plan and the states, promotions first."""
        if not self._planned:
            return []
        starting, standby, serving = self._alive()
        effects: list[PoolEffect] = []
        if serving < self._want:
            effects += self._promote(self._want - serving)
            starting, standby, serving = self._alive()
        if serving > self._want or starting + standby + serving > self._want + self._standbys:
            effects += self._shrink(now)
        return effects + self._launch_missing(now)

    def _promote(self, missing: int) -> list[PoolEffect]:
        leaving = [m for m in self._in(State.DRAINING) if not m.stopping and m.ready is not None]
        standby = sorted(self._in(State.STANDBY), key=lambda m: not m.base)
        warm = [*standby, *reversed(leaving)][:missing]
        for member in warm:
            self._apply(member, Event.PROMOTE)
            member.deadline = None
        return [Attach(member.id) for member in warm]

    def _shrink(self, now: float) -> list[PoolEffect]:
        effects: list[PoolEffect] = []
        starting, standby = self._in(State.STARTING), self._in(State.STANDBY)
        serving = sorted(self._in(State.SERVING), key=lambda m: not m.base)  # base first, by age
        surplus = len(starting) + len(standby) + len(serving) - self._want - self._standbys
        idle = len(serving) - self._want
        for member in reversed(starting):
            if surplus <= 0:
                break
            self._apply(member, Event.DRAIN)
            effects.append(self._stop(member, "start cancelled", now))
            surplus -= 1
        leaving = serving[len(serving) - max(0, min(surplus, idle)) :]
        surplus -= len(leaving)
        leaving += standby[len(standby) - max(0, surplus) :]
        for member in leaving:
            self._apply(member, Event.DRAIN)
            member.deadline = now + self._spec.drain_timeout
            effects.append(Drain(member.id))
        rest = [m for m in serving if m.state is State.SERVING]
        for member in rest[self._want :]:
            self._apply(member, Event.DEMOTE)
            effects.append(Detach(member.id))
        return effects

    def _launch_missing(self, now: float) -> list[PoolEffect]:
        starting, standby, serving = self._alive()
        alive = starting + serving + standby
        to_serve = min(self._want, self._launch)
        room = self._spec.max_replicas - len(self._members)
        if self._room is not None:
            room = min(room, self._room())
        missing = min(to_serve + self._standbys - alive, room)
        self._held_back = missing > 0 and now < self._retry_at
        if missing <= 0 or self._held_back:
            return []
        short = to_serve - serving - starting
        return [self._start(now, as_standby=number >= short) for number in range(missing)]

    def _start(self, now: float, *, as_standby: bool) -> Start:
        self._named += 1
        while f"{self._prefix}-{self._named}" in self._members:
            self._named += 1
        member = self._join(f"{self._prefix}-{self._named}", Event.STARTED, now)
        member.deadline = now + self._spec.start_timeout
        return Start(member.id, as_standby=as_standby, base=member.base)

    def _stop(self, member: _Member, reason: StopReason, now: float) -> Stop:
        member.stopping = Stop(member.id, reason)
        member.deadline = now + self._spec.stop_timeout
        return member.stopping
