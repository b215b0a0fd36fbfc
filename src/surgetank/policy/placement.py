"""Where a request fits: each replica's load, and the choice among those with room.

Rule: what we have placed is counted exactly and at once; an engine's signals correct that, and
neither an old signal nor a missing one stops traffic. An idle replica takes any one request that
its context can hold.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, NamedTuple

from surgetank.policy.effect import Leg
from surgetank.policy.replica import Replica, Role, Signals

_UNKNOWN_SLOTS: Final = 4  # requests at once a replica of unknown size starts with
_FRESH: Final = 2.0  # seconds a signal is believed
_STALE_FILL: Final = 0.95  # part of the usual KV fill once the signals have gone stale
_PAUSE: Final = 0.25  # seconds without dispatch after a replica shed or failed
_LONGEST_PAUSE: Final = 2.0
_PREFILL: Final = Role.PREFILL  # a member looked up in its enum takes 0.15 us, a global nothing
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more


class Demand:
    """What one request may take. Tokens; `bound`: most output of a choice, None when not given.

    `default`: the output bound written where an engine cannot preempt and the client gave none.
    `fill`: part of a replica's KV its tier may use. `outputs` False (embeddings): no output at all.
    """

    __slots__ = (
        "bound",
        "choices",
        "default",
        "expected",
        "fill",
        "least",
        "needs",
        "output",
        "outputs",
        "worst",
    )

    def __init__(
        self,
        least: int,
        expected: int,
        worst: int,
        output: int,
        bound: int | None,
        default: int,
        choices: int,
        fill: float,
        outputs: bool,  # noqa: FBT001 - a keyword costs the hot path, and one caller makes all
    ) -> None:
        self.least = least
        self.expected = expected
        self.worst = worst
        self.output = output
        self.bound = bound
        self.default = default
        self.choices = choices
        self.fill = fill
        self.outputs = outputs
        self.needs = expected + (output if bound is None else bound)

    def on(self, load: Load) -> int:
        """KV tokens to reserve on a replica, in whole blocks, never more than it could use."""
        if load.role is _PREFILL:
            tokens = (self.expected if load.preempts else self.worst) + 1
        elif load.preempts:
            tokens = self.expected + self.output * self.choices
        else:
            tokens = self.worst + self._bound(load) * self.choices
        block = load.block_size
        tokens = -(-tokens // block) * block
        return tokens if tokens <= load.most else int(load.most)

    def max_tokens(self, load: Load) -> int | None:
        """The output bound that holds on this replica; None for none."""
        if not self.outputs or load.preempts:
            return self.bound if self.outputs else None
        return self._bound(load)

    def _bound(self, load: Load) -> int:
        if not self.outputs:
            return 0
        bound: float = self.bound if self.bound is not None else min(self.default, load.kv // 4)
        room = min(load.context - self.least, (load.kv - self.least) // self.choices)
        return int(max(1, min(bound, room)))


class Load:
    """One replica and what is on it. Sizes that are unknown are infinite here."""

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
        "id",
        "in_flight",
        "joined",
        "kv",
        "kv_reserved",
        "leg",
        "limit",
        "most",
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
        self.leg = Leg(replica.role, replica.id)
        self.preempts = replica.preempts
        self.block_size = max(1, replica.block_size)
        self.kv: float = inf if replica.kv_tokens is None else replica.kv_tokens
        self.context: float = inf if replica.max_context is None else replica.max_context
        self.most = min(self.kv, self.context)
        self.shape = (self.role, self.preempts, self.block_size, self.kv, self.context)
        self.cap = max(1, min(max_in_flight, replica.slots or max_in_flight))
        self.limit = min(getattr(self, "limit", float(self.cap)), float(self.cap))

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
        self.in_flight += 1
        self.kv_reserved += tokens
        self.prefill_backlog += prompt

    def release(self, tokens: int) -> None:
        self.in_flight -= 1
        self.kv_reserved -= tokens

    def served(self) -> None:
        """A request is about to end well here: additive increase while the limit binds.

        One more per round of requests; one more per request (doubling) while nothing is known.
        """
        self._pause = 0.0
        if self.limit < self.cap and self.in_flight + 1 > self.limit:
            self.limit = min(self.cap, self.limit + (1.0 if self._grow_fast else 1 / self.limit))

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
    """The replicas of one (model, role)."""

    __slots__ = ("loads", "most")

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self.most = 0.0  # tokens of the largest

    def add(self, load: Load) -> None:
        self.loads = sorted({*self.loads, load}, key=lambda x: x.id)
        self.most = max(x.most for x in self.loads)

    def discard(self, load: Load) -> None:
        self.loads = [x for x in self.loads if x is not load]
        self.most = max((x.most for x in self.loads), default=0.0)

    def holds(self, demand: Demand) -> bool:
        """Whether any of them, idle, could hold it."""
        return demand.least + demand.outputs <= self.most

    def choose(self, demand: Demand, failed: Collection[str], now: float) -> Placed | None:
        """The one with most room left after it, then fewest in flight, then the least id.

        Only replicas as large as the request needs (the largest, when none is). Those it `failed`
        on are left out while there is another.
        """
        if len(self.loads) == 1:  # nothing to compare it with, and none other to go to
            load = self.loads[0]
            tokens = demand.on(load)
            if load.admits(tokens, demand.fill, now):
                return _new(Placed, (load, tokens))
            return None
        needs = demand.needs if demand.needs < self.most else self.most
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
                tokens = demand.on(load)
            if not load.admits(tokens, demand.fill, now):
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
