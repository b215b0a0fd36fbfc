"""Where a request fits: each replica's load, and the choice among those with room.

Rule: what we have placed is counted exactly and at once; an engine's signals correct that, and
neither an old signal nor a missing one stops traffic. An idle replica takes any one request that
its context can hold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from surgetank.policy.effect import Leg
from surgetank.policy.replica import Replica, Signals

if TYPE_CHECKING:
    from surgetank.policy.job import Job

_UNKNOWN_SLOTS: Final = 4  # requests at once a replica of unknown size starts with
_FRESH: Final = 2.0  # seconds a signal is believed
_STALE_FILL: Final = 0.95  # part of the usual KV fill once the signals have gone stale
_PAUSE: Final = 0.25  # seconds without dispatch after a replica shed or failed
_LONGEST_PAUSE: Final = 2.0
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more

# A load's key orders by KV tokens reserved, then by requests in flight, then by place in its group.
_PLACES: Final = 1 << 20
_FLIGHTS: Final = 1 << 20
_ONE: Final = _PLACES  # request in flight
_TOKEN: Final = _PLACES * _FLIGHTS


class Load:
    """One replica and what is on it. Sizes that are unknown are infinite here.

    `held`: of the KV reserved, what prompts take whose first token has come; `lingering`: what is
    reserved for requests that were cut off. `key`, `filed` and `order` are its `Group`'s.
    """

    __slots__ = (
        "_as_of",
        "_cut_at",
        "_foreign",
        "_grow_fast",
        "_held_until",
        "_pause",
        "_said_kv",
        "block_size",
        "cap",
        "context",
        "filed",
        "held",
        "id",
        "in_flight",
        "joined",
        "key",
        "kv",
        "kv_reserved",
        "legs",
        "limit",
        "lingering",
        "most",
        "order",
        "paused_until",
        "preempts",
        "prefill_backlog",
        "replica",
        "role",
        "shape",
    )

    def __init__(self, replica: Replica, max_in_flight: int) -> None:
        self.id = replica.id
        self.in_flight = 0
        self.kv_reserved = 0
        self.prefill_backlog = 0
        self.held = 0
        self.lingering = 0
        self.key = 0
        self.filed = False
        self.order: list[int] | None = None
        self.paused_until = -inf
        self._pause = 0.0
        self._cut_at = -inf
        self._as_of = -inf
        self._held_until = -inf
        self._foreign = 0.0
        self._said_kv = False
        self._grow_fast = replica.slots is None
        self.joined = True
        self.describe(replica, max_in_flight)
        self.limit = float(self.cap if replica.slots is not None else min(self.cap, _UNKNOWN_SLOTS))

    def describe(self, replica: Replica, max_in_flight: int) -> None:
        """Take a (new) description of the replica; what is on it stays."""
        self.replica = replica
        self.role = replica.role
        self.legs: tuple[Leg, ...] = (Leg(replica.role, replica.id),)  # of what runs here alone
        self.preempts = replica.preempts
        self.block_size = max(1, replica.block_size)
        self.kv: float = inf if replica.kv_tokens is None else replica.kv_tokens
        self.context: float = inf if replica.max_context is None else replica.max_context
        self.most = min(self.kv, self.context)
        self.shape = (self.role, self.preempts, self.block_size, self.kv, self.context)
        self.cap = max(1, min(max_in_flight, replica.slots or max_in_flight))
        self.limit = min(getattr(self, "limit", float(self.cap)), float(self.cap))

    def recap(self, max_in_flight: int) -> None:
        """Take another bound on requests at once; a limit that stood at known slots follows it."""
        at_cap = self.limit >= self.cap
        self.describe(self.replica, max_in_flight)
        if at_cap and self.replica.slots is not None:
            self.limit = float(self.cap)
        self.refile()

    def admits(self, tokens: int, fill: float, now: float) -> bool:
        """Whether there is room for one more that reserves `tokens`."""
        in_flight = self.in_flight
        if now < self.paused_until or in_flight + 1 > self.limit:
            return False
        if not in_flight:
            return True
        if now < self._held_until:
            return False
        reserved = self.kv_reserved + tokens
        if now < self._as_of + _FRESH:
            reserved += int(self._foreign)
        elif self._said_kv and self.preempts:
            fill *= _STALE_FILL  # what else is on it is not known for now
        return reserved <= fill * self.kv

    def free_after(self, tokens: int) -> float:
        """Part (0..1) of it left free after placing: of its KV, or of its limit where unknown."""
        if self.kv == inf:
            return 1 - (self.in_flight + 1) / self.limit
        return 1 - (self.kv_reserved + tokens) / self.kv

    def take(self, tokens: int, prompt: int) -> None:
        """A request was placed here."""
        self.in_flight = in_flight = self.in_flight + 1
        self.kv_reserved += tokens
        self.prefill_backlog += prompt
        order = self.order
        if order is not None:
            key = self.key
            if self.filed:
                del order[bisect_left(order, key)]
            self.key = key = key + tokens * _TOKEN + _ONE
            self.filed = filed = in_flight + 1 <= self.limit
            if filed:
                insort(order, key)

    def release(self, tokens: int, *, served: bool) -> None:
        """Give the room of a request back; `served`: it ended well.

        Then the limit grows additively while it binds: by one per round of requests, or by one per
        request (doubling) while nothing is known.
        """
        if served:
            self._pause = 0.0
            if self.limit < self.cap and self.in_flight + 1 > self.limit:
                more = 1.0 if self._grow_fast else 1 / self.limit
                self.limit = min(self.cap, self.limit + more)
        self.in_flight = in_flight = self.in_flight - 1
        self.kv_reserved -= tokens
        order = self.order
        if order is not None:
            key = self.key
            if self.filed:
                del order[bisect_left(order, key)]
            self.key = key = key - tokens * _TOKEN - _ONE
            self.filed = filed = in_flight + 1 <= self.limit
            if filed:
                insort(order, key)

    def refile(self) -> None:
        """The limit was moved: say anew whether there is a free slot."""
        order = self.order
        if order is None:
            return
        filed = self.in_flight + 1 <= self.limit
        if filed and not self.filed:
            insort(order, self.key)
        elif self.filed and not filed:
            del order[bisect_left(order, self.key)]
        self.filed = filed

    def shed(
        self, dispatched: float, retry_after: float | None, now: float, *, alone: bool
    ) -> None:
        """It refused a request dispatched at `dispatched`: halve the limit, and pause.

        Refusals of one burst halve once: those dispatched before the last cut only bring the limit
        down to what the replica holds on to. To be called after the request was released.
        """
        if dispatched >= self._cut_at:
            self.limit = max(1.0, self.limit // 2)
            self._cut_at = now
            self._grow_fast = False
        else:
            self.limit = max(1.0, min(self.limit, self.in_flight))
        self.refile()
        self.pause(retry_after, now, alone=alone)

    def pause(self, seconds: float | None, now: float, *, alone: bool) -> None:
        """No dispatch for `seconds` (0.25, doubling), 2 at most; 0.25 when no other may serve."""
        if now < self.paused_until:
            return
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause or _PAUSE)
        wanted = self._pause if seconds is None else max(self._pause, seconds)
        self.paused_until = now + (_PAUSE if alone else min(_LONGEST_PAUSE, wanted))

    def observe(self, signals: Signals, now: float) -> None:
        """Believe a newer signal: work waiting inside the engine means our limit is too high."""
        if signals.as_of <= self._as_of:
            return
        self._as_of = signals.as_of
        self._held_until = -inf
        self._foreign = 0.0
        if now >= signals.as_of + _FRESH:
            return
        if signals.waiting:
            self.limit = max(1.0, min(self.limit, self.in_flight - signals.waiting))
            self._grow_fast = False
            self._held_until = signals.as_of + _FRESH
            self.refile()
        self._said_kv = signals.kv_used is not None
        if signals.kv_used is not None and self.kv < inf:
            self._foreign = max(0.0, signals.kv_used * self.kv - self.kv_reserved)

    def wakes(self, now: float) -> float:
        """When time alone may open it again; inf for never."""
        wake = self.paused_until if now < self.paused_until else inf
        if now < self._held_until < wake:
            wake = self._held_until
        if self._foreign and now < self._as_of + _FRESH < wake:
            wake = self._as_of + _FRESH
        return wake


class Placed(NamedTuple):
    """One leg of a running request, and the KV tokens it reserves."""

    load: Load
    tokens: int


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
        tokens = job.on(load)
        if load.admits(tokens, job.fill, now):
            return _new(Placed, (load, tokens))
        most = job.fill * load.kv
        for key in order[1:]:
            load = loads[key % _PLACES]
            if load.in_flight and load.kv_reserved + tokens > most:
                return None  # nor is there room on those after it, which hold more
            if load.admits(tokens, job.fill, now):
                return _new(Placed, (load, tokens))
        return None

    def _compare(self, job: Job, now: float) -> Placed | None:
        """Choose by looking at all: they are not alike, or some are left out."""
        if len(self.loads) == 1:  # nothing to compare it with, and none other to go to
            load = self.loads[0]
            tokens = job.on(load)
            if load.admits(tokens, job.fill, now):
                return _new(Placed, (load, tokens))
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
        return None if best is None else Placed(best, best_tokens)

    def alone(self, load: Load, now: float) -> bool:
        """Whether pausing this one would leave no other that may serve."""
        return not any(x is not load and now >= x.paused_until for x in self.loads)


def _id(load: Load) -> str:
    return load.id
