"""What the server needs of an engine's batcher: the continuous one and that of whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from surgetank.engine.literal import Event
from surgetank.engine.profile import EngineProfile


class Batcher(Protocol):
    """One replica's batcher, asked for every token; see `engine.replica`, `engine.static`."""

    profile: EngineProfile

    @property
    def due(self) -> float | None: ...
    @property
    def ends(self) -> float | None: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_blocks_used(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def has_room(self, sequences: int = 1) -> bool: ...
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
    def step(self, now: float) -> Sequence[Event]: ...
    def tick(self, now: float) -> Sequence[Event]: ...
