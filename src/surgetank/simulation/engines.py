"""The engine of a simulated replica: what the simulation needs of one, and which there are.

Rule: nothing here changes a time. Requests are the ledger's rows; the step-by-step batcher, which
names them and tells every token, is read the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Protocol

from surgetank.engine.literal import Batcher, EventKind
from surgetank.engine.numbered import Numbered, Told
from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping.layout import FINISHED, FIRST_TOKEN, PREEMPTED
from surgetank.engine.static import StaticBatcher

_KINDS: Final = {
    EventKind.FIRST_TOKEN: FIRST_TOKEN,
    EventKind.FINISHED: FINISHED,
    EventKind.PREEMPTED: PREEMPTED,
}


class Engine(Protocol):
    """One replica's batcher. Inputs come in order of time, none after `due` (inf while idle)."""

    due: float

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_blocks_used(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    def add(
        self, number: int, prompt: int, output: int, cached: int, now: float, *, priority: int = 0
    ) -> bool: ...
    def abort(self, number: int, now: float) -> bool: ...
    def observe(self, now: float) -> None: ...
    def step(self) -> Sequence[Told]: ...
    def tokens(self, number: int) -> int: ...
    def all_tokens(self) -> int: ...
    def prefilled(self, number: int) -> int: ...


class LiteralEngine:
    """The specification itself: a step for every token. Or another batcher that does so."""

    def __init__(self, profile: EngineProfile, batcher: StaticBatcher | None = None) -> None:
        self.batcher = batcher or Batcher(profile)
        self._rows: set[int] = set()
        self.due = inf

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
        self, number: int, prompt: int, output: int, cached: int, now: float, *, priority: int = 0
    ) -> bool:
        """Queue a sequence; False when it is shed."""
        added = self.batcher.add(
            str(number), prompt, output, now, priority=priority, cached_tokens=cached
        )
        if added:
            self._rows.add(number)
        self._note()
        return added

    def abort(self, number: int, now: float) -> bool:
        """Forget a sequence; False when it is not in flight."""
        self._rows.discard(number)
        found = self.batcher.abort(str(number), now)
        self._note()
        return found

    def observe(self, now: float) -> None:
        """Bring what it tells up to `now`: it is."""

    def step(self) -> list[Told]:
        """End the step that is due; its events without the single tokens."""
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


def engine_maker(kind: str) -> Callable[[EngineProfile, int | None], Engine]:
    """Give what makes an engine of a profile and, where it runs whole batches, their size.

    "exact" skips what repeats, "literal" takes every step, as those of whole batches always do.
    """
    make: Callable[[EngineProfile], Engine] = LiteralEngine if kind == "literal" else Numbered

    def engine(profile: EngineProfile, static_batch: int | None) -> Engine:
        if static_batch is None:
            return make(profile)
        return LiteralEngine(profile, StaticBatcher(profile, static_batch))

    return engine
