"""The fair queue of one model: tiers by priority, tenants by virtual token counters.

Rule: `peek` names the one request that goes next and takes nothing out; while its head does not
fit, nobody of this queue overtakes it into the room that is being kept for it.

Tiers: the lowest priority number goes first, but a backlogged tier below it gets `min_share` of all
dispatched cost: its credit grows by min_share x c with every dispatch of cost c, its own dispatches
take c from it, and its head goes first once the credit covers the head's cost. The credit is gone
when the tier empties.
Tenants of a tier: VTC (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). Each
has a counter of cost / weight; the least goes first. Charged at dispatch with the expected cost,
corrected at the end with the real one, and lifted on return to the least among those waiting (to
the one served last when none is), so that idle time is not saved up. Lifted to what that one was
served, without what it runs: VTC charges tokens as they are made, and expected ones that never come
would be given back to it and not to the newcomer (54 requests before the first of a new tenant,
where 256 tokens were expected and 3 came). Always-backlogged tenants
i, j: |served_i / w_i - served_j / w_j| <= max cost / min weight.
Inside a tenant: (slack, rank), see `ordering`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from surgetank.policy.ordering import Measure
from surgetank.policy.promise import START, Promises

T = TypeVar("T")

_GARBAGE = 16  # removed entries a heap may carry beyond as many as are alive


class Waiting(Generic[T]):
    """One entry of the queue, and the handle to take it out again."""

    __slots__ = ("alive", "cost", "item", "lane")

    def __init__(self, item: T, lane: Lane[T], cost: float) -> None:
        self.item = item
        self.lane = lane
        self.cost = cost
        self.alive = True


class Lane(Generic[T]):
    """One tenant's place in the queue: its counter, and what it has waiting."""

    __slots__ = (
        "cost",
        "counter",
        "heap",
        "joined",
        "level",
        "measure",
        "order",
        "promises",
        "running",
        "size",
        "suspended",
        "version",
        "weight",
    )

    def __init__(self, level: Level[T], weight: float, order: int) -> None:
        self.level = level
        self.weight = weight
        self.order = order
        self.counter = 0.0
        self.cost = 0.0
        self.running = 0.0  # charged at dispatch and not settled yet
        self.size = 0
        self.suspended = False
        self.version = 0
        self.promises = Promises(START)  # of its share of the service
        self.measure: Measure | None = None  # what its line is ordered by
        self.joined = 0  # the line since then
        self.heap: list[tuple[float, float, int, Waiting[T]]] = []

    def served(self) -> float:
        """Its counter without what runs."""
        return self.counter - self.running / self.weight

    def head(self) -> Waiting[T]:
        heap = self.heap
        while not heap[0][3].alive:
            heappop(heap)
        return heap[0][3]


class Level(Generic[T]):
    """The lanes of one priority. `active`: those that have something waiting and may be served."""

    __slots__ = (
        "active",
        "base",
        "cost",
        "credit",
        "heap",
        "last",
        "priority",
        "share",
        "size",
        "weight",
    )

    def __init__(self, priority: int, share: float) -> None:
        self.priority = priority
        self.share = share
        self.credit = 0.0
        self.last: Lane[T] | None = None  # the lane served last
        self.base = 0.0  # the floor where that one has gone to another tier
        self.active = 0
        self.size = 0
        self.cost = 0.0
        self.weight = 0.0
        self.heap: list[tuple[float, int, int, Lane[T]]] = []

    def first(self) -> Lane[T]:
        heap = self.heap
        while heap[0][2] != heap[0][3].version:
            heappop(heap)
        return heap[0][3]

    def floor(self) -> float:
        """Where a returning tenant's counter starts at least."""
        lane = self.first() if self.active else self.last
        return self.base if lane is None else lane.served()

    def place(self, lane: Lane[T]) -> None:
        """Put an active lane where its counter belongs, and make its older entries void."""
        lane.version += 1
        heappush(self.heap, (lane.counter, lane.order, lane.version, lane))
        if len(self.heap) > 2 * self.active + _GARBAGE:
            self.heap = [entry for entry in self.heap if entry[2] == entry[3].version]
            heapify(self.heap)

    def enter(self, lane: Lane[T]) -> None:
        lane.counter = max(lane.counter, self.floor())
        self.active += 1
        self.cost += lane.cost
        self.weight += lane.weight
        self.place(lane)

    def exit(self, lane: Lane[T]) -> None:
        lane.version += 1
        self.active -= 1
        if self.active:
            self.cost -= lane.cost
            self.weight -= lane.weight
        else:
            self.credit = self.cost = self.weight = 0.0
            self.heap.clear()


class FairQueue(Generic[T]):
    """Waiting requests of one model: `size` of them.

    `shares`: priority -> min_share of the tiers there.
    """

    __slots__ = ("_levels", "_order", "_shares", "size")

    def __init__(self, shares: Mapping[int, float] | None = None) -> None:
        self._shares = dict(shares or {})
        self._levels: list[Level[T]] = []
        self._order = count()
        self.size = 0

    def __len__(self) -> int:
        return self.size

    @property
    def cost(self) -> float:
        """Cost of all that waits and may be served."""
        return sum(level.cost for level in self._levels)

    def lane(self, priority: int, weight: float) -> Lane[T]:
        """Make a tenant's lane; the caller keeps it for the queue's life."""
        if not weight > 0:
            raise ValueError(f"weight = {weight}: must be > 0")
        return Lane(self._level(priority), weight, next(self._order))

    def _level(self, priority: int) -> Level[T]:
        level = next((x for x in self._levels if x.priority == priority), None)
        if level is None:
            level = Level(priority, self._shares.get(priority, 0.0))
            self._levels.append(level)
            self._levels.sort(key=lambda x: x.priority)
        return level

    def move(self, lane: Lane[T], priority: int, weight: float) -> None:
        """Give a tenant's lane another tier or weight, with all that waits in it.

        Under another weight its counter stays; in another tier it starts as one who returns.
        """
        old = lane.level
        if (old.priority, lane.weight) == (priority, weight):
            return
        active = lane.size > 0 and not lane.suspended
        if active:
            old.exit(lane)
        level = self._level(priority)
        if level is not old:
            if old.last is lane:
                old.base, old.last = lane.served(), None
            lane.counter = lane.running / weight
        old.size -= lane.size
        level.size += lane.size
        lane.level = level
        lane.weight = weight
        if active:
            level.enter(lane)

    def reshare(self, shares: Mapping[int, float]) -> None:
        """Give the tiers other shares; the credit of a share that is gone is gone."""
        self._shares = dict(shares)
        for level in self._levels:
            level.share = self._shares.get(level.priority, 0.0)
            if not level.share:
                level.credit = 0.0

    def push(self, lane: Lane[T], item: T, cost: float, slack: float, rank: float) -> Waiting[T]:
        """Queue `item`; among its tenant's, least (slack, rank) first, then the oldest entry."""
        waiting = Waiting(item, lane, cost)
        heappush(lane.heap, (slack, rank, next(self._order), waiting))
        level = lane.level
        self.size += 1
        level.size += 1
        lane.size += 1
        lane.cost += cost
        if lane.suspended:
            return waiting
        if lane.size == 1:
            level.enter(lane)
        else:
            level.cost += cost
        return waiting

    def hasten(self, waiting: Waiting[T], slack: float, rank: float) -> None:
        """Let it go before others of its tenant that waits already; its older entry stays behind.

        The tenant's counter, and what it has waiting, are as they were.
        """
        heappush(waiting.lane.heap, (slack, rank, next(self._order), waiting))

    def reorder(self, lane: Lane[T], anew: Callable[[T], tuple[float, float, float]]) -> None:
        """Give all that a tenant has waiting the slack, rank and cost that are told of each."""
        first: dict[Waiting[T], int] = {}  # in which order they came; one that was hastened, once
        for _, _, number, waiting in lane.heap:
            if waiting.alive:
                first[waiting] = min(number, first.get(waiting, number))
        lane.heap, before = [], lane.cost
        for waiting, number in first.items():
            slack, rank, waiting.cost = anew(waiting.item)
            lane.heap.append((slack, rank, number, waiting))
        heapify(lane.heap)
        lane.cost = sum(waiting.cost for waiting in first)
        if lane.size and not lane.suspended:
            lane.level.cost += lane.cost - before

    def peek(self) -> Waiting[T] | None:
        """The request that goes next, left where it is; None when none may."""
        first: Waiting[T] | None = None
        for level in self._levels:
            if not level.active:
                continue
            if first is None:
                first = level.first().head()
            elif level.share > 0:
                head = level.first().head()
                if level.credit >= head.cost:
                    return head
        return first

    def pop(self, waiting: Waiting[T]) -> None:
        """`waiting` is dispatched: out of the queue, and charged."""
        lane = waiting.lane
        lane.level.last = lane
        lane.counter += waiting.cost / lane.weight
        lane.running += waiting.cost
        for level in self._levels:
            if level.share > 0 and level.active:
                level.credit += level.share * waiting.cost
                if level is lane.level:
                    level.credit = max(0.0, level.credit - waiting.cost)
        self.remove(waiting)
        if lane.size and not lane.suspended:
            lane.level.place(lane)

    def remove(self, waiting: Waiting[T]) -> None:
        """`waiting` left without being served (or is being popped); once only."""
        lane, level = waiting.lane, waiting.lane.level
        waiting.alive = False
        self.size -= 1
        level.size -= 1
        lane.size -= 1
        if not lane.size:
            if not lane.suspended:
                level.exit(lane)
            lane.cost = 0.0
            lane.heap.clear()
            return
        lane.cost -= waiting.cost
        if not lane.suspended:
            level.cost -= waiting.cost
        if len(lane.heap) > 2 * lane.size + _GARBAGE:
            lane.heap = [entry for entry in lane.heap if entry[3].alive]
            heapify(lane.heap)

    def passed(self, lane: Lane[T], cost: float) -> None:
        """Charge a request that never had to wait, as push and pop would have."""
        level, counter = lane.level, lane.counter
        if not lane.size:
            last = level.last
            if level.active or last is None:
                floor = level.floor()
            else:
                floor = last.counter - last.running / last.weight
            if floor > counter:
                counter = floor
        level.last = lane
        lane.counter = counter + cost / lane.weight
        lane.running += cost

    def settle(self, lane: Lane[T], charged: float, cost: float) -> None:
        """What ran has ended: it was charged so much at dispatch, and has cost so much."""
        lane.running -= charged
        lane.counter += (cost - charged) / lane.weight
        if lane.size and not lane.suspended:
            lane.level.place(lane)

    def suspend(self, lane: Lane[T]) -> None:
        """Skip this tenant (it is at a cap of its own) until `resume`."""
        if not lane.suspended:
            lane.suspended = True
            if lane.size:
                lane.level.exit(lane)

    def resume(self, lane: Lane[T]) -> None:
        if lane.suspended:
            lane.suspended = False
            if lane.size:
                lane.level.enter(lane)

    def ahead(self, priority: int) -> int:
        """How many wait at this priority or before it."""
        return sum(level.size for level in self._levels if level.priority <= priority)

    def wait(self, lane: Lane[T], rate: float) -> float:
        """Seconds until all this tenant has waiting is dispatched, at `rate` cost per second.

        W = (cost waiting in tiers before it + N) / (rate x (1 - shares owed to tiers after it)),
        N = min(own cost / weight share, cost of the tier); at most N / (rate x min_share).
        """
        level = lane.level
        weight, cost = level.weight, level.cost
        if lane.suspended or not lane.size:
            weight += lane.weight
            cost += lane.cost
        need = min(lane.cost * weight / lane.weight, cost)
        before = sum(x.cost for x in self._levels if x.priority < level.priority)
        owed = sum(x.share for x in self._levels if x.priority > level.priority and x.active)
        wait = (before + need) / (rate * max(0.01, 1 - owed))
        return min(wait, need / (rate * level.share)) if level.share > 0 else wait

    def __iter__(self) -> Iterator[Level[T]]:
        return iter(self._levels)
