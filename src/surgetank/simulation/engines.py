"""The engine of a simulated replica: what the simulation needs of one, and which there are.

Rule: nothing here changes a time. Requests are the ledger's rows; the step-by-step batcher, which
names them and tells every token, is read the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final, Protocol

from surgetank.engine.literal import Batcher, EventKind
from surgetank.engine.numbered import Clock, Event, Numbered, Told
from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping.layout import FINISHED, FIRST_TOKEN, PREEMPTED
from surgetank.engine.static import StaticBatcher

_KINDS: Final = {
    EventKind.FIRST_TOKEN: FIRST_TOKEN,
    EventKind.FINISHED: FINISHED,
    EventKind.PREEMPTED: PREEMPTED,
}


class Engine(Protocol):
    """One replica's batcher. Inputs come in order of time, none after `due` (inf while idle).

    `newcomers`: sequences that came since its latest step began. `push` is `add` in a hurry: more
    than 0 when it is queued, else `add` has to be asked.
    """

    @property
    def due(self) -> float: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def newcomers(self) -> int: ...
    @property
    def kv_blocks_used(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    def add(
        self, number: int, prompt: int, output: int, cached: int, priority: int, now: float
    ) -> bool: ...
    def push(
        self, number: int, prompt: int, output: int, cached: int, priority: int, now: float
    ) -> int: ...
    def abort(self, number: int, now: float) -> bool: ...
    def observe(self, now: float) -> None: ...
    def step(self) -> Sequence[Event]: ...
    def tokens(self, number: int) -> int: ...
    def all_tokens(self) -> int: ...
    def prefilled(self, number: int) -> int: ...


class SteppedClock:
    """`engine.numbered.Clock` for engines of any kind: `arm` has to be called for them.

    Of steps due at one moment, the one goes first whose due time was known first.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._engines: list[Engine] = []
        self._armed: list[float] = []  # when the next step of each stands in the heap
        self._heap: list[tuple[float, int, int]] = []  # what was overtaken stays in
        self._order = count()

    def enter(self, engine: Engine) -> None:
        """Take in the next engine; they are numbered from 0."""
        self._engines.append(engine)
        self._armed.append(inf)

    def arm(self, number: int) -> None:
        """Note when an engine's next step is due, after anything that may have moved it."""
        due = self._engines[number].due
        if due != self._armed[number]:
            self._armed[number] = due
            if due != inf:
                heappush(self._heap, (due, next(self._order), number))

    def run(self, until: float, most: int = 1) -> Iterable[Told]:
        """Run the steps due before `until`, in order, up to the one that makes `most` events."""
        heap, told = self._heap, list[Told]()
        while heap and len(told) < most and heap[0][0] < until:
            due, _, number = heap[0]
            if due == self._armed[number]:
                self.steps += 1
                engine = self._engines[number]
                told += [(due, number, kind, row) for kind, row in engine.step()]
                if engine.due == due:
                    continue
                self.arm(number)
            heappop(heap)  # its place is further behind, or it was overtaken
        return told

    def remove(self, number: int) -> None:
        """Run its steps no more."""
        self._armed[number] = inf


class LiteralEngine:
    """The specification itself: a step for every token. Or another batcher that does so."""

    def __init__(self, profile: EngineProfile, batcher: StaticBatcher | None = None) -> None:
        self.batcher = batcher or Batcher(profile)
        self._rows: set[int] = set()
        self.due = inf
        self.newcomers = 0

    @property
    def running(self) -> int:
        return self.batcher.running

    @property
    def waiting(self) -> int:
        return self.batcher.waiting

    @property
    def kv_blocks_used(self) -> int:
        return self.batcher.kv_blocks_used

    @property
    def preemptions(self) -> int:
        return self.batcher.preemptions

    def add(
        self, number: int, prompt: int, output: int, cached: int, priority: int, now: float
    ) -> bool:
        """Queue a sequence; False when it is shed."""
        added = self.batcher.add(
            str(number), prompt, output, now, priority=priority, cached_tokens=cached
        )
        if added:
            self._rows.add(number)
            self.newcomers += 1
        self._note()
        return added

    def push(
        self, number: int, prompt: int, output: int, cached: int, priority: int, now: float
    ) -> int:
        """Queue a sequence; 0 when it is shed."""
        return int(self.add(number, prompt, output, cached, priority, now))

    def abort(self, number: int, now: float) -> bool:
        """Forget a sequence; False when it is not in flight."""
        self._rows.discard(number)
        found = self.batcher.abort(str(number), now)
        self._note()
        return found

    def observe(self, now: float) -> None:
        """Bring what it tells up to `now`: it is."""

    def step(self) -> list[Event]:
        """End the step that is due; its events without the single tokens."""
        self.newcomers = 0
        told = [
            (_KINDS[event.kind], int(event.id))
            for event in self.batcher.step(self.due)
            if event.kind is not EventKind.TOKEN
        ]
        self._rows.difference_update(row for kind, row in told if kind == FINISHED)
        self._note()
        return told

    def tokens(self, number: int) -> int:
        """Return the output so far of a sequence in flight. Raises KeyError for any other."""
        return self.batcher.tokens(str(number))

    def prefilled(self, number: int) -> int:
        """Return how much of its prompt was computed since it was admitted, cached tokens not."""
        return self.batcher.prefilled(str(number))

    def all_tokens(self) -> int:
        """Return the output so far of all sequences in flight."""
        return sum(self.batcher.tokens(str(row)) for row in self._rows)

    def _note(self) -> None:
        due = self.batcher.due
        self.due = inf if due is None else due


Make = Callable[[EngineProfile, int | None], Engine]
"""Makes an engine of a profile and, where it runs whole batches, their size."""


def engines(kind: str, *, static: bool) -> tuple[Clock | SteppedClock, Make]:
    """Give a run's clock, and what makes its engines, which enter it in the order they are made.

    "exact" skips what repeats, "literal" takes every step, as those of whole batches always do
    (`static`: there are any).
    """
    if kind != "literal" and not static:
        clock = Clock()
        return clock, lambda profile, _batch: Numbered(profile, clock)
    stepped = SteppedClock()

    def engine(profile: EngineProfile, static_batch: int | None) -> Engine:
        made: Engine
        if static_batch is not None:
            made = LiteralEngine(profile, StaticBatcher(profile, static_batch))
        else:
            made = LiteralEngine(profile) if kind == "literal" else Numbered(profile)
        stepped.enter(made)
        return made

    return stepped, engine
