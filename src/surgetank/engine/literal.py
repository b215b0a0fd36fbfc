"""The continuous batcher step by step: vLLM's V1 scheduler, the specification for faster twins.

A step schedules what runs, takes `step_seconds`, then gives a token to each sequence whose tokens
are all computed:

    budget = max_num_batched_tokens
    running, in order of admission: n = min(tokens left, budget); while its blocks cannot be had,
        preempt (fcfs: the last admitted; priority: the largest (priority, arrival)): free its
        blocks, compute it all again later, from the front of the queue; if it preempts itself, stop
    waiting, only if nothing was preempted: while budget and seats last, the head of the line;
        with the full-prompt gate all its tokens must fit in the free blocks, else stop

Source: vLLM 0.33 `v1/core/sched/scheduler.py`, without asynchronous scheduling; the golden files in
tests/data/golden are its own results.

The prefix cache is approximate: whoever adds a sequence says how many tokens of its prompt are
cached. Those need no computing, each time it is admitted (also after a preemption), but they hold
blocks of its own and stand before its first chunk as context; at least one token is computed. Real
engines share cached blocks between sequences, evict them, and find whole blocks only.

Rule: no clock. Inputs come in order of time, and every step due before an input is run before it:

    while (due := batcher.due) is not None and due < now: deliver(batcher.step(due))
    batcher.add(...)  # or abort
"""

from __future__ import annotations

from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from surgetank.engine.profile import EngineProfile
from surgetank.engine.steptime import StepWork, step_seconds


class EventKind(StrEnum):
    """What a step can tell of a sequence."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of text
    TOKEN = "token"  # noqa: S105 - a token of text
    FINISHED = "finished"  # follows its last token
    PREEMPTED = "preempted"


class Event(NamedTuple):
    """Something happened to sequence `id` at time `at`; `tokens` is its output so far."""

    kind: EventKind
    id: str
    at: float
    tokens: int


class _Sequence:
    """One sequence. `length` = prompt and generated; KV is held for `computed` of them."""

    __slots__ = (
        "arrived",
        "blocks",
        "cached",
        "computed",
        "decoding",
        "gone",
        "id",
        "length",
        "order",
        "priority",
        "prompt",
        "scheduled",
        "total",
        "waiting",
    )

    def __init__(
        self,
        id_: str,
        prompt: int,
        output: int,
        *,
        cached: int,
        priority: int,
        order: int,
        arrived: float,
    ) -> None:
        self.id = id_
        self.prompt = prompt
        self.total = prompt + output
        self.cached = min(cached, prompt - 1)
        self.priority = priority
        self.order = order
        self.arrived = arrived
        self.length = prompt
        self.computed = 0
        self.blocks = 0
        self.scheduled = 0  # tokens of it in the step in flight
        self.waiting = True
        self.decoding = False  # has had a token since it was admitted
        self.gone = False  # finished or aborted


class Batcher:
    """One engine. Times in seconds on any clock that never runs backwards.

    Sheds (`add` returns False) when `max_queued` sequences are in flight, waiting or running, as
    vLLM's `--max-num-queued-reqs` counts them.
    """

    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.preemptions = 0
        self.steps = 0
        self._alive: dict[str, _Sequence] = {}
        self._running: list[_Sequence] = []
        self._queue: list[tuple[float, float, int, _Sequence]] = []  # a heap; the gone ones stay in
        self._waiting = 0
        self._free = profile.kv_blocks
        self._batch: list[_Sequence] = []  # in the step in flight
        self._due: float | None = None
        self._orders = 0
        self._front = 0  # counts down: each preempted sequence goes before all others

    @property
    def due(self) -> float | None:
        """When `step` must be called next; None while idle."""
        return self._due

    @property
    def running(self) -> int:
        """Sequences that hold KV."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that hold none, the preempted ones too."""
        return self._waiting

    @property
    def kv_blocks_used(self) -> int:
        """Blocks held by running sequences."""
        return self.profile.kv_blocks - self._free

    @property
    def decoding(self) -> int:
        """Sequences past their prefill: the decode batch."""
        return sum(s.decoding for s in self._running)

    @property
    def kv_tokens_used(self) -> int:
        """Tokens in the KV, those of the step in flight too (blocks are fuller or emptier)."""
        return sum(s.computed for s in self._running)

    @property
    def prefill_backlog(self) -> int:
        """Tokens to compute before everyone in flight decodes; chunks in flight count as done."""
        waiting = sum(s.length - s.cached for s in self._alive.values() if s.waiting)
        return waiting + sum(s.length - s.computed for s in self._running if not s.decoding)

    def tokens(self, id_: str) -> int:
        """Return the output so far of a sequence in flight. Raises KeyError for any other."""
        sequence = self._alive[id_]
        return sequence.length - sequence.prompt

    def prefilled(self, id_: str) -> int:
        """Return how much of its prompt was computed since it was admitted, cached tokens not.

        A chunk in flight counts as done. Raises KeyError for a sequence not in flight.
        """
        sequence = self._alive[id_]
        return max(0, min(sequence.computed, sequence.prompt) - sequence.cached)

    def has_room(self, sequences: int = 1) -> bool:
        """Tell whether so many more would be admitted, not shed."""
        most = self.profile.max_queued
        return most is None or len(self._alive) + sequences <= most

    def add(
        self,
        id_: str,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        *,
        priority: int = 0,
        cached_tokens: int = 0,
    ) -> bool:
        """Queue a sequence that will produce exactly `output_tokens`; False when it is shed.

        A lower `priority` goes first (with the priority policy only). `cached_tokens` of the prompt
        are found in the prefix cache. Raises ValueError for what a server must have refused before:
        no tokens, more than `max_model_len`, an id in use.
        """
        self._in_order(now)
        total = prompt_tokens + output_tokens
        if prompt_tokens < 1 or output_tokens < 1 or total > self.profile.max_model_len:
            limit = self.profile.max_model_len
            raise ValueError(
                f"{prompt_tokens} prompt and {output_tokens} output tokens:"
                f" must be >= 1 each and <= {limit} in all"
            )
        if cached_tokens < 0:
            raise ValueError(f"{cached_tokens} cached tokens: must be >= 0")
        if id_ in self._alive:
            raise ValueError(f"sequence {id_!r} is in flight already: must be new")
        if not self.has_room():
            return False
        self._orders += 1
        sequence = _Sequence(
            id_,
            prompt_tokens,
            output_tokens,
            cached=cached_tokens,
            priority=priority,
            order=self._orders,
            arrived=now,
        )
        self._alive[id_] = sequence
        self._enqueue(sequence)
        if self._due is None:
            self._due = now
        return True

    def abort(self, id_: str, now: float) -> bool:
        """Forget a sequence and free its KV at once; False when it is not in flight.

        The step in flight keeps its length: its work was given to the GPU already.
        """
        self._in_order(now)
        sequence = self._alive.pop(id_, None)
        if sequence is None:
            return False
        if sequence.waiting:
            self._waiting -= 1
            if len(self._queue) > 2 * self._waiting + 64:  # a crowd left: do not keep its shadows
                self._queue = [
                    entry
                    for entry in self._queue
                    if entry[-1] is not sequence and not entry[-1].gone
                ]
                heapify(self._queue)
        else:
            self._running.remove(sequence)
            self._release(sequence)
        sequence.gone = True
        return True

    def step(self, now: float) -> list[Event]:
        """End the step that is due and begin the next one, both at the time it was due.

        Nothing happens before `due`. The events are in the order in which they happened.
        """
        at = self._due
        if at is None or now < at:
            return []
        events = self._complete(at)
        self._begin(at, events)
        return events

    def _in_order(self, now: float) -> None:
        if self._due is not None and now > self._due:
            raise ValueError(f"input at {now} while a step was due at {self._due}: step first")

    def _complete(self, at: float) -> list[Event]:
        events: list[Event] = []
        finished = False
        for sequence in self._batch:
            if sequence.gone or sequence.computed < sequence.length:
                continue  # aborted meanwhile, or a chunk that leaves some of its prompt
            sequence.length += 1
            sequence.decoding = True
            tokens = sequence.length - sequence.prompt
            kind = EventKind.FIRST_TOKEN if tokens == 1 else EventKind.TOKEN
            events.append(Event(kind, sequence.id, at, tokens))
            if sequence.length == sequence.total:
                events.append(Event(EventKind.FINISHED, sequence.id, at, tokens))
                self._release(sequence)
                sequence.gone = finished = True
                del self._alive[sequence.id]
        if finished:
            self._running = [s for s in self._running if not s.gone]
        self._batch = []
        return events

    def _begin(self, at: float, events: list[Event]) -> None:
        self._schedule(at, events)
        while self._alive and not any(s.scheduled for s in self._running):
            self._schedule(at, events)  # the first in line preempted itself (by priority): go on
        work = StepWork()
        batch = [s for s in self._running if s.scheduled]
        for sequence in batch:
            n = sequence.scheduled
            if (
                n == 1
                and sequence.length > sequence.prompt
                and sequence.computed + 1 == sequence.length
            ):
                work.decodes += 1
                work.decode_context += sequence.length
            else:
                work.add_prefill(n, sequence.computed)
            sequence.computed += n
            sequence.scheduled = 0
        self._batch = batch
        if batch:
            self.steps += 1
            self._due = at + step_seconds(self.profile, work)
        else:
            self._due = None

    def _schedule(self, at: float, events: list[Event]) -> None:
        budget, preempted = self._schedule_running(at, events)
        if not preempted:
            self._schedule_waiting(budget)

    def _schedule_running(self, at: float, events: list[Event]) -> tuple[int, bool]:
        """Give the budget to what runs, preempting where KV is short; (budget left, preempted)."""
        budget = self.profile.max_num_batched_tokens
        size = self.profile.block_size
        running = self._running
        preempted = False
        i = 0
        while i < len(running) and budget:
            sequence = running[i]
            n = min(sequence.length - sequence.computed, budget)
            more = -(-(sequence.computed + n) // size) - sequence.blocks
            while more > self._free:
                victim = self._victim()
                if victim.scheduled:  # under the priority policy it may stand before us
                    budget += victim.scheduled
                    i -= 1
                self._preempt(victim)
                events.append(
                    Event(EventKind.PREEMPTED, victim.id, at, victim.length - victim.prompt)
                )
                preempted = True
                if victim is sequence:
                    return budget, True
            self._free -= more
            sequence.blocks += more
            sequence.scheduled = n
            budget -= n
            i += 1
        return budget, preempted

    def _schedule_waiting(self, budget: int) -> None:
        size = self.profile.block_size
        while budget and len(self._running) < self.profile.max_num_seqs:
            sequence = self._head()
            if sequence is None:
                return
            n = min(sequence.length - sequence.cached, budget)
            blocks = -(-(sequence.cached + n) // size)
            if (
                -(-sequence.length // size) if self.profile.full_prompt_gate else blocks
            ) > self._free:
                return  # the head of the line blocks those behind it
            heappop(self._queue)
            self._waiting -= 1
            sequence.waiting = False
            sequence.computed = sequence.cached
            self._free -= blocks
            sequence.blocks = blocks
            sequence.scheduled = n
            self._running.append(sequence)
            budget -= n

    def _victim(self) -> _Sequence:
        if self.profile.scheduling == "priority":
            return max(self._running, key=lambda s: (s.priority, s.arrived, s.order))
        return self._running[-1]

    def _preempt(self, victim: _Sequence) -> None:
        self._running.remove(victim)
        self._release(victim)
        victim.computed = victim.scheduled = 0
        victim.waiting = True
        victim.decoding = False
        self.preemptions += 1
        self._front -= 1
        self._enqueue(victim, front=True)

    def _enqueue(self, sequence: _Sequence, *, front: bool = False) -> None:
        """Put it where its policy says; only fcfs has a front."""
        self._waiting += 1
        if self.profile.scheduling == "priority":
            key = (sequence.priority, sequence.arrived)
        else:
            key = (0, self._front if front else 1)
        heappush(self._queue, (*key, sequence.order, sequence))

    def _head(self) -> _Sequence | None:
        while self._queue and self._queue[0][-1].gone:
            heappop(self._queue)
        return self._queue[0][-1] if self._queue else None

    def _release(self, sequence: _Sequence) -> None:
        self._free += sequence.blocks
        sequence.blocks = 0
