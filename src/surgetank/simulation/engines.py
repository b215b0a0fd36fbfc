"""The engine of a simulated replica: what the simulation needs of one, and which there are.

Rule: nothing here changes a time. The step-by-step batcher tells every token; here only what both
tell is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from surgetank.engine.literal import Batcher, Event, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica


class Engine(Protocol):
    """One replica's batcher. Inputs come in order of time, none after `due`."""

    @property
    def due(self) -> float | None: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_blocks_used(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    def add(
        self,
        id_: str,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        *,
        priority: int = 0,
        cached_tokens: int = 0,
    ) -> bool: ...
    def abort(self, id_: str, now: float) -> bool: ...
    def observe(self, now: float) -> None: ...
    def step(self, now: float) -> Sequence[Event]: ...
    def tokens(self, id_: str) -> int: ...


class LiteralEngine(Batcher):
    """The specification itself: a step for every token."""

    def step(self, now: float) -> list[Event]:
        """End the step that is due; its events without the single tokens."""
        return [event for event in super().step(now) if event.kind is not EventKind.TOKEN]

    def observe(self, now: float) -> None:
        """Bring what it tells up to `now`: it is."""


def engine_maker(kind: str) -> Callable[[EngineProfile], Engine]:
    """Give what makes an engine: "exact" skips what repeats, "literal" takes every step."""
    return LiteralEngine if kind == "literal" else Replica
