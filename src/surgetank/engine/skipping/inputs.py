"""What comes in between steps: arrivals and aborts."""

from __future__ import annotations

import math
from typing import Any

from surgetank.engine.skipping import finishes, queue
from surgetank.engine.skipping.layout import (
    CHUNKED,
    DECODING,
    TOKEN,
    WAITING,
    Ints,
    Records,
)
from surgetank.engine.skipping.marks import called, inner
from surgetank.engine.skipping.schedule import begin, blocks_for, complete, stop_decoding, tell
from surgetank.engine.skipping.stretch import cut


@inner
def arrive(
    engine: Any,
    slots: Records,
    phases: Ints,
    request: int,
    prompt: int,
    output: int,
    priority: int,
    cached: int,
    now: float,
) -> int:
    """Queue a sequence; return its slot, or 0 when it is shed. There must be a free slot."""
    if engine.running + engine.waiting >= engine.most:
        return 0
    s = queue.take(slots)
    cached = min(cached, prompt - 1)
    slots[s].arrived = now
    slots[s].order = engine.orders
    slots[s].priority = priority
    slots[s].request = request
    slots[s].prompt = prompt
    slots[s].total = prompt + output
    slots[s].length = prompt
    slots[s].computed = 0
    slots[s].cached = cached
    slots[s].state = WAITING
    engine.orders += 1
    engine.newcomers += 1
    engine.backlog += prompt - cached
    queue.enqueue(engine, slots, s, False)
    if engine.due == math.inf:
        engine.due = now
    elif (
        engine.left > 1
        and engine.first == s
        and engine.running < engine.seats
        and engine.running < engine.budget
    ):
        cut(engine, phases, now)  # the next step may take it; behind others it changes nothing
    return s


@inner
def leave(engine: Any, slots: Records, heap: Ints, phases: Ints, s: int, now: float) -> None:
    """Forget a sequence in flight and free its KV; the step under way keeps its length."""
    state = slots[s].state
    if state == WAITING:
        if engine.left > 1 and engine.first == s:
            cut(engine, phases, now)
        engine.backlog -= slots[s].length - slots[s].cached
        queue.dequeue(engine, slots, s)
        queue.give(slots, s)
        return
    if engine.left > 1:
        cut(engine, phases, now)
    if state == DECODING:
        finishes.remove(engine, heap, slots[s].finish, s)
        held = stop_decoding(engine, slots, phases, s)
    else:
        held = slots[s].computed
        engine.prefilled -= held
        engine.backlog -= slots[s].length - held
        if state == CHUNKED:
            engine.partial = 0
        elif engine.fresh == s:
            engine.fresh = slots[s].next
    engine.free += blocks_for(engine, held)
    queue.unseat(engine, slots, s)
    queue.give(slots, s)


@called
def turn(engine: Any, slots: Records, heap: Ints, phases: Ints, events: Records) -> int:
    """End the stretch that is due and begin the next; return the count of events."""
    at = engine.due
    engine.newcomers = 0
    n = complete(engine, slots, heap, phases, events)
    return begin(engine, slots, heap, phases, events, n, at)


@inner
def give(engine: Any, slots: Records, given: Records) -> int:
    """Write the token that the step under way gives to each decoding sequence; return the count.

    In order of admission.
    """
    if engine.left == 0:
        return 0
    n = 0
    s = engine.head
    while s:
        if slots[s].state == DECODING and slots[s].stalled != engine.done:
            tokens = slots[s].total - slots[s].prompt - (slots[s].finish - engine.done) + 1
            n = tell(given, n, TOKEN, slots, s, tokens)
        s = slots[s].next
    return n


@inner
def tokens_of(engine: Any, slots: Records, s: int) -> int:
    """Return the output so far of a sequence in flight."""
    if slots[s].state != DECODING:
        return int(slots[s].length - slots[s].prompt)
    output = slots[s].total - slots[s].prompt
    tokens = output - (slots[s].finish - engine.done)
    return int(tokens + (slots[s].stalled == engine.done))
