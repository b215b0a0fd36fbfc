"""Gateways that decide little, to compare with: FlowControl's inputs in, its effects out.

Rule: they refuse nothing of their own; what the engines shed is refused as ENGINE_BUSY.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, Protocol
from zlib import crc32

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.effect import Dispatch, Effect, Leg, Refuse
from surgetank.policy.flow import Counts, RetryCause
from surgetank.policy.ingress import Ingress
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.policy.request import ENDINGS, Kind, Outcome, Request, Usage

Choice = Literal["round_robin", "least_outstanding", "consistent_hash"]


class Gateway(Protocol):
    """What a simulation drives: FlowControl, its Journal, or one of the plain ones."""

    def offer(self, request: Request, now: float) -> Sequence[Effect]: ...
    def first_token(self, request_id: str, now: float) -> Sequence[Effect]: ...
    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]: ...
    def abandon(self, request_id: str, usage: Usage | None, now: float) -> Sequence[Effect]: ...
    def retry(
        self, request_id: str, cause: RetryCause, retry_after: float | None, now: float
    ) -> Sequence[Effect]: ...
    def join(self, replica: Replica, now: float) -> Sequence[Effect]: ...
    def leave(self, replica_id: str, now: float) -> Sequence[Effect]: ...
    def observe(self, replica_id: str, signals: Signals, now: float) -> Sequence[Effect]: ...
    def expect(self, model: str, etas: Iterable[float], now: float) -> Sequence[Effect]: ...
    def advance(self, now: float) -> Sequence[Effect]: ...
    def next_deadline(self) -> float | None: ...


class Questions(Protocol):
    """What a simulation asks beside: FlowControl answers it too."""

    def counts(self, tenant: str | None = None) -> Counts: ...
    def ingress(self, name: str, role: Role, now: float, *, gateway: str = "") -> Ingress: ...
    def ttft_objective(self, tenant: str) -> float: ...


class _Row:
    """One request that is here."""

    __slots__ = ("arrived", "attempt", "gone", "replica", "request", "tokens")

    def __init__(self, request: Request, arrived: float) -> None:
        self.request = request
        self.arrived = arrived
        self.replica = ""  # where it runs; "" while it waits
        self.attempt = 0
        self.gone = False  # it left while it waited
        self.tokens = 0  # of KV, as they were estimated when it started


class Turns:
    """Who waits, one tenant's after the other's in turn. Used as the deque of a plain queue is."""

    def __init__(self) -> None:
        self._of: dict[str, deque[_Row]] = {}  # by tenant, whose turn it is first

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __getitem__(self, index: int) -> _Row:
        return next(iter(self._of.values()))[index]

    def __iter__(self) -> Iterator[_Row]:
        return (row for line in self._of.values() for row in line)

    def append(self, row: _Row) -> None:
        self._of.setdefault(row.request.tenant, deque()).append(row)

    def popleft(self) -> _Row:
        tenant = next(iter(self._of))
        line = self._of.pop(tenant)
        row = line.popleft()
        if line:
            self._of[tenant] = line  # behind the others
        return row


class _Place:
    """A replica. `chosen` numbers the latest request sent there, -1 before the first."""

    __slots__ = ("chosen", "joined", "kv", "load", "name", "order", "tokens")

    def __init__(self, name: str, order: int) -> None:
        self.name = name
        self.order = order
        self.load = 0
        self.tokens = 0
        self.kv = float("inf")
        self.chosen = -1
        self.joined = True


_Entry = tuple[int, int, int, int, _Place]
"""Load, when it was chosen, its order; and what no two entries share."""


class PlainGateway:
    """One global queue, first come first served, and at most `cap` requests on a replica.

    `cap` None is the pass-through: no queue here while a replica is there, all of it in the
    engines' own. Ties of least_outstanding go to who was chosen longest ago, as in `engine.bulk`.
    consistent_hash sends a prompt by its first 512 characters (rendezvous: the replica whose hash
    with them is largest, of those below the cap), one without a beginning by its id.
    `turns`: tenants are served in turn, while prompt and expected output fit into a replica's KV.
    `bucket`: requests a minute of each tenant; beyond that they are refused, told to come back in a
    second as most such limiters say.
    """

    def __init__(
        self,
        *,
        cap: int | None,
        choice: Choice = "least_outstanding",
        objective: float = 2.0,
        turns: bool = False,
        bucket: float | None = None,
    ) -> None:
        self._turns = turns
        self._bucket = bucket
        self._buckets: dict[str, TokenBucket] = {}
        self._output, self._outputs = 256.0, 0  # mean of what was seen
        self._cap = float("inf") if cap is None else cap
        self._choice = choice
        self._objective = objective
        self._rows: dict[str, _Row] = {}
        self._waiting: dict[str, deque[_Row] | Turns] = {}  # by model; those that left stay in
        self._replicas: dict[str, list[_Place]] = {}  # by model; those that are joined
        self._places: dict[str, _Place] = {}  # by name; those that left too
        self._least: dict[str, list[_Entry]] = {}  # by model: a heap, what is out of date stays in
        self._turn: dict[str, int] = {}  # by model, of round_robin
        self._ended = dict.fromkeys(Kind, 0)
        self._offered = 0
        self._dispatched = self._noted = 0
        self._queued = 0
        self._totals: dict[str, list[float]] = {}  # by model: arrivals, prompt, expected output
        self._first_tokens: dict[str, deque[tuple[float, float]]] = {}

    # What happened.

    def offer(self, request: Request, now: float) -> Sequence[Effect]:
        self._offered += 1
        totals = self._totals.setdefault(request.model, [0.0, 0.0, 0.0])
        totals[0] += 1
        totals[1] += request.prompt_bytes // 4
        if self._bucket is not None and not self._may_come(request.tenant, now):
            self._ended[Kind.REFUSED] += 1
            return [Refuse(request, Outcome.QUOTA_REQUESTS, "its bucket is empty", 1.0)]
        row = self._rows[request.id] = _Row(request, now)
        if not self._waiting.get(request.model):
            replica = self._choose(request)
            if replica is not None and self._fits(row, replica):
                return [self._start(row, replica, now)]
        line = self._waiting.get(request.model)
        if line is None:
            line = self._waiting[request.model] = Turns() if self._turns else deque()
        line.append(row)
        self._queued += 1
        return ()

    def first_token(self, request_id: str, now: float) -> Sequence[Effect]:
        row = self._rows[request_id]
        points = self._first_tokens.get(row.request.model)
        if points is None:
            points = self._first_tokens[row.request.model] = deque(maxlen=1024)
        points.append((now, now - row.arrived))
        return ()

    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]:
        kind = Kind.COMPLETED if outcome is Outcome.COMPLETED else ENDINGS[outcome].kind
        row = self._end(request_id, kind)
        if usage is not None:
            self._outputs = min(self._outputs + 1, 100)
            self._output += (usage.output_tokens - self._output) / self._outputs
            self._totals[row.request.model][2] += usage.output_tokens
        return self._fill(row.request.model, now)

    def abandon(self, request_id: str, usage: Usage | None, now: float) -> Sequence[Effect]:  # noqa: ARG002 - the protocol's form
        return self._fill(self._end(request_id, Kind.ABANDONED).request.model, now)

    def retry(
        self, request_id: str, cause: RetryCause, retry_after: float | None, now: float
    ) -> Sequence[Effect]:
        """Pass an engine's refusal, or its death, on to the client."""
        outcome = Outcome.ENGINE_BUSY if cause == "busy" else Outcome.UPSTREAM_FAILED
        row = self._end(request_id, ENDINGS[outcome].kind)
        refusal = Refuse(row.request, outcome, "passed on", retry_after)
        return [refusal, *self._fill(row.request.model, now)]

    def join(self, replica: Replica, now: float) -> Sequence[Effect]:
        known = self._replicas.setdefault(replica.model, [])
        place = self._places.get(replica.id)
        if place is None:
            place = self._places[replica.id] = _Place(replica.id, len(self._places))
        if replica.kv_tokens is not None:
            place.kv = replica.kv_tokens
        if place not in known:
            known.append(place)
            place.joined = True
            self._note(replica.model, place)
        return self._fill(replica.model, now)

    def leave(self, replica_id: str, now: float) -> Sequence[Effect]:  # noqa: ARG002 - same
        place = self._places.get(replica_id)
        for known in self._replicas.values():
            if place is not None and place in known:
                known.remove(place)
                place.joined = False
        return ()

    def observe(self, replica_id: str, signals: Signals, now: float) -> Sequence[Effect]:  # noqa: ARG002 - same
        return ()

    def expect(self, model: str, etas: Iterable[float], now: float) -> Sequence[Effect]:  # noqa: ARG002 - same
        return ()

    def advance(self, now: float) -> Sequence[Effect]:  # noqa: ARG002 - same
        return ()

    def next_deadline(self) -> float | None:
        return None

    def sleeps_until(self, moment: float) -> bool:  # noqa: ARG002 - as FlowControl's
        """Whether nothing waits, so that nothing can be started."""
        return not self._queued

    # What can be asked.

    def counts(self, tenant: str | None = None) -> Counts:  # noqa: ARG002 - all are alike here
        ended = self._ended
        return Counts(
            offered=self._offered,
            completed=ended[Kind.COMPLETED],
            refused=ended[Kind.REFUSED],
            abandoned=ended[Kind.ABANDONED],
            failed=ended[Kind.FAILED],
            queued=self._queued,
            running=len(self._rows) - self._queued,
        )

    def ttft_objective(self, tenant: str) -> float:  # noqa: ARG002 - all are alike here
        return self._objective

    def ingress(self, name: str, role: Role, now: float, *, gateway: str = "") -> Ingress:  # noqa: ARG002 - no roles here
        arrivals, prompt, output = self._totals.get(name, (0.0, 0.0, 0.0))
        queue = [row for row in self._waiting.get(name, ()) if not row.gone]
        running = sum(1 for r in self._rows.values() if r.replica and r.request.model == name)
        return Ingress(
            gateway=gateway,
            as_of=now,
            arrivals=int(arrivals),
            prompt_tokens=prompt,
            expected_output=output,
            first_tokens=tuple(self._first_tokens.get(name, ())),
            queued=len(queue),
            queue_age=now - queue[0].arrived if queue else 0.0,
            running=running,
            serving=len(self._replicas.get(name, ())),
        )

    # Placing.

    def _may_come(self, tenant: str, now: float) -> bool:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            assert self._bucket is not None  # noqa: S101 - its one caller asks
            bucket = self._buckets[tenant] = TokenBucket(self._bucket / 60, max(1.0, self._bucket))
        return bucket.reserve(1.0, now)

    def _fits(self, row: _Row, replica: str) -> bool:
        """Whether a replica's KV has room for what a request will likely take."""
        place = self._places[replica]
        if not self._turns or not place.load:
            return True
        return place.tokens + self._size(row) <= place.kv

    def _size(self, row: _Row) -> int:
        return row.request.prompt_bytes // 4 + round(self._output)

    def _choose(self, request: Request) -> str | None:
        model = request.model
        places = self._replicas.get(model)
        if not places:
            return None
        if self._choice == "consistent_hash":
            free = [place.name for place in places if place.load < self._cap]
            key = request.prefix[0] if request.prefix else request.id
            return max(free, key=lambda name: crc32(f"{name}/{key}".encode()), default=None)
        if self._choice == "round_robin":
            return self._in_turn(model, places)
        heap = self._least[model]
        while True:
            load, chosen, _, _, place = heap[0]
            if place.joined and load == place.load and chosen == place.chosen:
                return place.name if load < self._cap else None
            heappop(heap)

    def _in_turn(self, model: str, places: list[_Place]) -> str | None:
        turn = self._turn.get(model, 0)
        for i in range(turn, turn + len(places)):
            place = places[i % len(places)]
            if place.load < self._cap:
                self._turn[model] = i + 1
                return place.name
        return None

    def _note(self, model: str, place: _Place) -> None:
        """Give a replica its place in the heap anew, after its load has changed."""
        if self._choice != "least_outstanding" or not place.joined:
            return
        heap = self._least.setdefault(model, [])
        if len(heap) > 4 * len(self._places) + 64:  # mostly out of date
            heap[:] = [self._entry(p) for p in self._replicas[model] if p is not place]
            heapify(heap)
        heappush(heap, self._entry(place))

    def _entry(self, place: _Place) -> _Entry:
        self._noted += 1
        return (place.load, place.chosen, place.order, self._noted, place)

    def _start(self, row: _Row, replica: str, now: float) -> Dispatch:
        row.replica = replica
        row.attempt += 1
        place = self._places[replica]
        place.load += 1
        row.tokens = self._size(row)
        place.tokens += row.tokens
        place.chosen = self._dispatched
        self._dispatched += 1
        self._note(row.request.model, place)
        waited = now - row.arrived
        return Dispatch(row.request, (Leg(Role.BOTH, replica),), None, waited, row.attempt)

    def _fill(self, model: str, now: float) -> Sequence[Effect]:
        queue = self._waiting.get(model)
        out: list[Effect] = []
        while queue:
            if queue[0].gone:
                queue.popleft()
                continue
            replica = self._choose(queue[0].request)
            if replica is None or not self._fits(queue[0], replica):
                break
            self._queued -= 1
            out.append(self._start(queue.popleft(), replica, now))
        return out

    def _end(self, request_id: str, kind: Kind) -> _Row:
        row = self._rows.pop(request_id)
        self._ended[kind] += 1
        if row.replica:
            place = self._places[row.replica]
            place.load -= 1
            place.tokens -= row.tokens
            self._note(row.request.model, place)
        else:
            self._queued -= 1
            row.gone = True
        return row
