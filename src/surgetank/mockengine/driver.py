"""The batcher on a real clock: one timer, and a listener for each sequence.

Engine time runs `speed` times as fast as real time. Rule: every step happens at the engine time the
batcher says, however late its timer fires; so rates are exact and only single tokens jitter, by
what the event loop's timers do (a millisecond).

The batcher is the simulations' own, asked for every token, in plain Python: a server streams each
token of each step, so there is little to skip, and numba would take longer to load than all the
rest (docs/concepts/engine-model.md).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from surgetank.engine.literal import Event, EventKind
from surgetank.mockengine.batcher import Batcher
from surgetank.mockengine.clock import EngineClock
from surgetank.mockengine.metrics import EngineMetrics
from surgetank.mockengine.text import Answer

Listener = Callable[[Event], None]


class _Sequence:
    """What the metrics need to know of a sequence in flight."""

    __slots__ = ("added", "first", "last", "listener", "prompt_tokens", "reason")

    def __init__(self, listener: Listener, added: float, prompt_tokens: int, reason: str) -> None:
        self.listener = listener
        self.reason = reason
        self.added = added
        self.prompt_tokens = prompt_tokens
        self.first = 0.0
        self.last = 0.0


class Driver:
    """Feeds the batcher in order of time and hands its events on."""

    def __init__(
        self,
        batcher: Batcher,
        metrics: EngineMetrics,
        loop: asyncio.AbstractEventLoop,
        speed: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batcher = batcher
        self._metrics = metrics
        self._loop = loop
        self._clock = EngineClock(speed, clock)
        self._sequences: dict[str, _Sequence] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = math.inf
        self._delivering: float | None = None  # the engine time of the step being delivered
        self._given = 0  # its tokens

    def now(self) -> float:
        """Return engine time, seconds; inside a listener, when its event happened."""
        if self._delivering is not None:
            return self._delivering
        return self._clock.now()

    def add(
        self,
        id_: str,
        prompt_tokens: int,
        answer: Answer,
        priority: int,
        listener: Listener,
        *,
        cached: int = 0,
    ) -> None:
        """Queue a sequence there is room for; its listener gets the events, from the next round.

        `cached` tokens of its prompt are in the prefix cache.
        """
        now = self._catch_up()
        added = self._batcher.add(
            id_, prompt_tokens, answer.tokens, now, priority=priority, cached_tokens=cached
        )
        if not added:
            raise RuntimeError(f"sequence {id_} was shed: ask has_room first")
        self._sequences[id_] = _Sequence(listener, now, prompt_tokens, answer.finish_reason)
        self._arm()

    def abort(self, id_: str, reason: str = "abort") -> None:
        """Forget a sequence, its KV included; one that has finished meanwhile is no error."""
        if self._batcher.abort(id_, self._catch_up()):
            self._metrics.success[reason].inc()
            del self._sequences[id_]
        self._arm()

    def has_room(self, sequences: int) -> bool:
        """Tell whether so many more would be admitted; the steps due are run first."""
        self._catch_up()
        return self._batcher.has_room(sequences)

    def slow(self, factor: float) -> None:
        """From now on, let each step take `factor` times as long as its speed says."""
        self._catch_up()
        self._clock.slow(factor)
        self._armed = math.nan  # whatever is due is due at another real time
        self._arm()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed = math.inf

    def _catch_up(self) -> float:
        """Run the steps due before now, and return now."""
        now = self.now()
        if self._delivering is None:
            while (due := self._batcher.ends) is not None and due < now:
                self._step(due)
        return now

    def _step(self, due: float) -> None:
        self._delivering = due
        try:
            events = self._batcher.tick(due)
            self._metrics.stepped()
            for event in events:
                self._deliver(event)
        finally:
            self._delivering = None
            self._metrics.generation_tokens.inc(self._given)
            self._given = 0

    def _deliver(self, event: Event) -> None:
        sequence = self._sequences.get(event.id)
        if sequence is None:  # aborted by an event of this very step
            return
        metrics = self._metrics
        if event.kind is EventKind.TOKEN:
            self._given += 1
            metrics.itl.observe(event.at - sequence.last)
            sequence.last = event.at
        elif event.kind is EventKind.FIRST_TOKEN:
            self._given += 1
            metrics.prompt_tokens.inc(sequence.prompt_tokens)
            metrics.ttft.observe(event.at - sequence.added)
            sequence.first = sequence.last = event.at
        elif event.kind is EventKind.PREEMPTED:
            metrics.preemptions.inc()
        else:
            self._finish(event, sequence)
        sequence.listener(event)

    def _finish(self, event: Event, sequence: _Sequence) -> None:
        del self._sequences[event.id]
        self._metrics.success[sequence.reason].inc()
        self._metrics.prompt_size.observe(sequence.prompt_tokens)
        self._metrics.generation_size.observe(event.tokens)
        self._metrics.e2e.observe(event.at - sequence.added)
        if event.tokens > 1:
            self._metrics.tpot.observe((event.at - sequence.first) / (event.tokens - 1))

    def _arm(self) -> None:
        """Set the timer for the next step, unless it is set already."""
        due = self._batcher.ends
        if due == self._armed or self._delivering is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed = math.inf
        if due is not None:
            delay = self._clock.until(due)
            # Timers count milliseconds and round: rounded up here, no timer is early and re-armed.
            self._timer = self._loop.call_later(max(0, math.ceil(delay * 1e3)) / 1e3, self._ring)
            self._armed = due

    def _ring(self) -> None:
        self._timer = None
        self._armed = math.inf
        now = self.now()
        while (due := self._batcher.ends) is not None and due <= now:
            self._step(due)
        self._arm()
