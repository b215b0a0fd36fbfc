"""Where a request fits: each replica's load, and the choice among those with room.

Rule: what we have placed is counted exactly and at once; an engine's signals correct that, and
neither an old signal nor a missing one stops traffic. An idle replica takes any one request that
its context can hold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection
from math import inf
from typing import TYPE_CHECKING, Final

from surgetank.policy.effect import Leg
from surgetank.policy.limit import ConcurrencyLimit
from surgetank.policy.replica import Replica, Role, Signals

if TYPE_CHECKING:
    from surgetank.policy.job import Job

_FRESH: Final = 2.0  # seconds a signal is believed
_PREFILL: Final = Role.PREFILL  # a member looked up in its enum takes 0.15 us, a global nothing
_STALE_FILL: Final = 0.95  # part of the usual KV fill once the signals have gone stale
_PAUSE: Final = 0.25  # seconds without dispatch after a replica shed or failed
_LONGEST_PAUSE: Final = 2.0

# A load's key orders by KV tokens reserved, then by requests in flight, then by place in its group.
_PLACES: Final = 1 << 20
_FLIGHTS: Final = 1 << 20
_ONE: Final = _PLACES  # request in flight
_TOKEN: Final = _PLACES * _FLIGHTS


class Load:
    """One replica and what is on it. Sizes that are unknown are infinite here.

    `held`: of the KV reserved, what prompts take whose first token has come; `lingering`: what is
    reserved for requests that were cut off. `limit` and `window` are what `learnt` allows; of the
    streams here, `unseen` wait for their first token, with `pending` prompt tokens in all. `key`,
    `filed` and `order` are its `Group`'s.
    """

    __slots__ = (
        "_as_of",
        "_foreign",
        "_held_until",
        "_pause",
        "_said_kv",
        "_taken",
        "batch_at",
        "block_size",
        "context",
        "filed",
        "held",
        "id",
        "in_flight",
        "joined",
        "key",
        "kv",
        "kv_reserved",
        "learnt",
        "legs",
        "limit",
        "lingering",
        "most",
        "order",
        "paused_until",
        "pending",
        "preempts",
        "prefill_backlog",
        "replica",
        "role",
        "shape",
        "static",
        "unseen",
        "window",
    )

    def __init__(self, replica: Replica, max_in_flight: int | None, budget: float) -> None:
        """`budget`: seconds a prompt may wait behind others in the engine."""
        self.id = replica.id
        self.in_flight = 0
        self.kv_reserved = 0
        self.prefill_backlog = 0
        self.pending = 0
        self.unseen = 0
        self.held = 0
        self.lingering = 0
        self.key = 0
        self.filed = False
        self.order: list[int] | None = None
        self.paused_until = -inf
        self.batch_at = -inf  # static: the moment at which it may be sent a batch
        self._pause = 0.0
        self._as_of = -inf
        self._held_until = -inf
        self._foreign = 0.0
        self._taken = 0  # the same in whole tokens
        self._said_kv = False
        self.joined = True
        known = replica.slots is not None
        self.learnt = ConcurrencyLimit(_cap(replica, max_in_flight), budget, known=known)
        self.describe(replica, max_in_flight, budget)

    def describe(self, replica: Replica, max_in_flight: int | None, budget: float) -> None:
        """Take a (new) description of the replica; what is on it stays, and what was learnt.

        A limit that stood at known slots follows them.
        """
        self.replica = replica
        self.role = replica.role
        self.legs: tuple[Leg, ...] = (Leg(replica.role, replica.id),)  # of what runs here alone
        self.static = replica.batching == "static"
        self.preempts = replica.preempts
        self.block_size = max(1, replica.block_size)
        self.kv: float = inf if replica.kv_tokens is None else replica.kv_tokens
        self.context: float = inf if replica.max_context is None else replica.max_context
        self.most = min(self.kv, self.context)
        self.shape = (self.role, self.preempts, self.block_size, self.kv, self.context)
        known = replica.slots is not None
        self.learnt.recap(_cap(replica, max_in_flight), budget, known=known)
        self._take_limits()

    def _take_limits(self) -> None:
        """What was learnt may have changed; of whole batches the size is known."""
        learnt, static = self.learnt, self.static
        self.limit = learnt.cap if static else learnt.value
        self.window = inf if static else learnt.window
        self.refile()

    def admits(self, tokens: int, fill: float, now: float) -> bool:
        """Whether there is room for one more that reserves `tokens`."""
        in_flight = self.in_flight
        if now < self.paused_until or in_flight + 1 > self.limit:
            return False
        if self.static and now != self.batch_at:
            return False
        if not in_flight:
            return True
        if now < self._held_until or self.pending >= self.window:
            return False
        reserved = self.kv_reserved + tokens
        if now < self._as_of + _FRESH:
            reserved += self._taken
        elif self._said_kv and self.preempts:
            fill *= _STALE_FILL  # what else is on it is not known for now
        return reserved <= fill * self.kv

    def free_after(self, tokens: int) -> float:
        """Part (0..1) of it left free after placing: of its KV, or of its limit where unknown."""
        if self.kv == inf:
            return 1 - (self.in_flight + 1) / self.limit
        return 1 - (self.kv_reserved + tokens) / self.kv

    def take(self, tokens: int, prompt: int, *, streams: bool) -> None:
        """A request was placed here; `streams`: its first token will be seen."""
        self.in_flight = in_flight = self.in_flight + 1
        self.kv_reserved += tokens
        self.prefill_backlog += prompt
        if streams:
            self.pending += prompt
            self.unseen += 1
        order = self.order
        if order is not None:
            key = self.key
            if self.filed:
                del order[bisect_left(order, key)]
            self.key = key = key + tokens * _TOKEN + _ONE
            self.filed = filed = in_flight + 1 <= self.limit and self.pending < self.window
            if filed:
                insort(order, key)

    def first_token(
        self, prompt: int, ahead: int, dispatched: float, now: float, *, streams: bool
    ) -> None:
        """A prompt is computed, behind `ahead` tokens of streams that were here, and its own."""
        self.prefill_backlog -= prompt
        if streams:
            self.pending -= prompt
            self.unseen -= 1
            learnt, in_flight = self.learnt, self.in_flight
            seconds, running = now - dispatched, in_flight - self.unseen
            binds = in_flight + 1 > self.limit
            learnt.first_token(ahead, seconds, dispatched, running, now, binds=binds)
            if not self.static:
                self.limit = limit = learnt.value
                self.window = window = learnt.window
                filed = in_flight + 1 <= limit and self.pending < window
                if filed is not self.filed:
                    self.refile()

    def unsent(self, prompt: int, *, streams: bool) -> None:
        """A prompt will not be computed."""
        self.prefill_backlog -= prompt
        if streams:
            self.pending -= prompt
            self.unseen -= 1
            self.refile()

    def release(self, tokens: int, *, served: bool) -> None:
        """Give the room of a request back; `served`: it ended well."""
        if served:
            self._pause = 0.0
            if self.in_flight + 1 > self.limit:
                self.learnt.served(binds=True)
                if not self.static:
                    self.limit = self.learnt.value
        self.in_flight = in_flight = self.in_flight - 1
        self.kv_reserved -= tokens
        order = self.order
        if order is not None:
            key = self.key
            if self.filed:
                del order[bisect_left(order, key)]
            self.key = key = key - tokens * _TOKEN - _ONE
            self.filed = filed = in_flight + 1 <= self.limit and self.pending < self.window
            if filed:
                insort(order, key)

    def refile(self) -> None:
        """A limit was moved: say anew whether there is a free slot."""
        order = self.order
        if order is None:
            return
        filed = self.in_flight + 1 <= self.limit and self.pending < self.window
        if filed and not self.filed:
            insort(order, self.key)
        elif self.filed and not filed:
            del order[bisect_left(order, self.key)]
        self.filed = filed

    def shed(
        self, dispatched: float, retry_after: float | None, now: float, *, alone: bool
    ) -> None:
        """It refused a request dispatched at `dispatched`: trust it with less, and pause.

        To be called after the request was released.
        """
        self.learnt.shed(self.in_flight, dispatched, now)
        self._take_limits()
        self.pause(retry_after, now, alone=alone)

    def pause(self, seconds: float | None, now: float, *, alone: bool) -> None:
        """No dispatch for `seconds` (0.25, doubling), 2 at most; 0.25 when no other may serve."""
        if now < self.paused_until:
            return
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause or _PAUSE)
        wanted = self._pause if seconds is None else max(self._pause, seconds)
        self.paused_until = now + (_PAUSE if alone else min(_LONGEST_PAUSE, wanted))

    def observe(self, signals: Signals, now: float) -> None:
        """Believe a newer signal: work waiting inside the engine means our limit is too high.

        Streams without a first token wait as they should: `window` sees to those.
        """
        if signals.as_of <= self._as_of:
            return
        self._as_of = signals.as_of
        self._held_until = -inf
        self._foreign, self._taken = 0.0, 0
        if now >= signals.as_of + _FRESH:
            return
        waiting = signals.waiting
        # A static one's wait for the batch before theirs.
        if waiting is not None and waiting > self.unseen and not self.static:
            self.learnt.waits(self.in_flight + self.unseen - waiting)
            self._held_until = signals.as_of + _FRESH
            self._take_limits()
        self._said_kv = signals.kv_used is not None
        if signals.kv_used is not None and self.kv < inf:
            self._foreign = max(0.0, signals.kv_used * self.kv - self.kv_reserved)
            self._taken = int(self._foreign)

    def wakes(self, now: float) -> float:
        """When time alone may open it again; inf for never."""
        wake = self.paused_until if now < self.paused_until else inf
        if now < self._held_until < wake:
            wake = self._held_until
        if self._foreign and now < self._as_of + _FRESH < wake:
            wake = self._as_of + _FRESH
        return wake


def _cap(replica: Replica, max_in_flight: int | None) -> float:
    """Never more at once; inf where nothing says so."""
    bounds = [n for n in (max_in_flight, replica.slots) if n is not None]
    return float(max(1, min(bounds))) if bounds else inf


Placed = tuple[Load, int]
"""One leg of a running request, and the KV tokens it reserves: a plain pair is unpacked fastest."""


class Group:
    """The replicas of one (model, role).

    Where all are alike and their KV is known, as in most fleets, `_order` holds the keys of those
    with a free slot, the one with most room first: whoever is to be placed looks at one or two.
    """

    __slots__ = ("_changed", "_order", "loads", "most")

    def __init__(self) -> None:
        self.loads: list[Load] = []  # by id
        self.most = 0.0  # tokens of the largest
        self._order: list[int] | None = None
        self._changed = False

    def add(self, load: Load) -> None:
        if load not in self:
            insort(self.loads, load, key=_id)
        self.most = max(self.most, load.most)
        self._changed = True

    def discard(self, load: Load) -> None:
        load.order = None
        if load in self:
            del self.loads[bisect_left(self.loads, load.id, key=_id)]
        self.most = max((x.most for x in self.loads), default=0.0)
        self._changed = True

    def __contains__(self, load: Load) -> bool:
        at = bisect_left(self.loads, load.id, key=_id)
        return at < len(self.loads) and self.loads[at] is load

    def _put_in_order(self) -> None:
        """Make the order anew, if there is one, after replicas came or left."""
        self._changed = False
        loads = self.loads
        alike = len(loads) > 1 and loads[0].kv < inf and len({x.shape for x in loads}) == 1
        order: list[int] | None = [] if alike else None
        self._order = order
        for place, load in enumerate(loads):
            load.order = order
            load.key = load.kv_reserved * _TOKEN + load.in_flight * _ONE + place
            load.filed = False
            load.refile()

    def choose(self, job: Job, now: float) -> Placed | None:
        """The one with most room left after it, then fewest in flight, then the least id.

        Only replicas as large as the request needs (the largest, when none is). Those it failed on
        are left out while there is another.
        """
        if self._changed:
            self._put_in_order()
        order, loads = self._order, self.loads
        if order is None or job.failed_on:
            return self._compare(job, now)
        if not order:
            return None
        load = loads[order[0] % _PLACES]
        if load.preempts and load.role is not _PREFILL:  # as most: what `on` says of them
            block = load.block_size
            tokens = -(-job.estimate // block) * block
            if tokens > load.most:
                tokens = int(load.most)
        else:
            tokens = job.on(load)
        if load.admits(tokens, job.fill, now):
            return load, tokens
        most = job.fill * load.kv
        for key in order[1:]:
            load = loads[key % _PLACES]
            if load.in_flight and load.kv_reserved + tokens > most:
                return None  # nor is there room on those after it, which hold more
            if load.admits(tokens, job.fill, now):
                return load, tokens
        return None

    def _compare(self, job: Job, now: float) -> Placed | None:
        """Choose by looking at all: they are not alike, or some are left out."""
        if len(self.loads) == 1:  # nothing to compare it with, and none other to go to
            load = self.loads[0]
            tokens = job.on(load)
            if load.admits(tokens, job.fill, now):
                return load, tokens
            return None
        failed: Collection[str] = job.failed_on
        needs = min(job.needs, self.most)
        if failed and all(x.id in failed for x in self.loads if x.most >= needs):
            failed = ()
        best: Load | None = None
        best_tokens = tokens = 0
        best_free = 0.0
        shape: object = None
        for load in self.loads:
            in_flight = load.in_flight
            if in_flight + 1 > load.limit or load.most < needs or (failed and load.id in failed):
                continue
            if load.shape != shape:  # a fleet is mostly of one kind
                shape = load.shape
                tokens = job.on(load)
            if not load.admits(tokens, job.fill, now):
                continue
            free = load.free_after(tokens)
            if (
                best is None
                or free > best_free
                or (free == best_free and in_flight < best.in_flight)
            ):
                best, best_tokens, best_free = load, tokens, free
        return None if best is None else (best, best_tokens)

    def equals(self, load: Load, draw: Callable[[], float]) -> tuple[Load, Load] | None:
        """Two drawn of those as little loaded as `load`, the least; None where it is alone in that.

        Where they are not in an order, two of all are drawn, and `load` stands for one that is not.
        """
        order, loads = self._order, self.loads
        if order is None:
            if len(loads) < 2:
                return None
            one, other = loads[int(draw() * len(loads))], loads[int(draw() * len(loads))]
            return (one if _alike(one, load) else load), (other if _alike(other, load) else load)
        if not order or loads[order[0] % _PLACES] is not load:
            return None  # others are paused or full
        count = bisect_left(order, (order[0] // _PLACES + 1) * _PLACES)
        if count == 1:
            return None
        first, second = order[int(draw() * count)], order[int(draw() * count)]
        return loads[first % _PLACES], loads[second % _PLACES]

    def alone(self, load: Load, now: float) -> bool:
        """Whether pausing this one would leave no other that may serve."""
        return not any(x is not load and now >= x.paused_until for x in self.loads)


def _alike(load: Load, other: Load) -> bool:
    return (
        load.in_flight == other.in_flight
        and load.kv_reserved == other.kv_reserved
        and load.shape == other.shape
    )


def _id(load: Load) -> str:
    return load.id
