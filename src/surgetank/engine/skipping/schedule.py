"""One step: what ends with it, and what the next one computes (see engine.literal for the rules).

Where the KV suffices, as nearly always, scheduling what runs needs no look at the decoding
sequences: a step takes one token of the budget for each, and a block for those in its phase. Where
it does not, `squeeze` goes through them one by one, as the specification does.

Who runs and does not decode is the one whose prefill is cut in chunks (`partial`), the last of the
running: it takes all the budget there is, so nobody is admitted behind it.
"""

from __future__ import annotations

import math
from typing import Any

from surgetank.engine.skipping import finishes, queue
from surgetank.engine.skipping.layout import (
    CHUNKED,
    DECODING,
    FINISHED,
    FIRST_TOKEN,
    PREEMPTED,
    PREFILLED,
    TOKEN,
    WAITING,
    Ints,
    Records,
)
from surgetank.engine.skipping.marks import called, inner
from surgetank.engine.skipping.stretch import (
    advance,
    lasting,
    new_blocks,
    plan,
    quotient,
    remainder,
)


@inner
def blocks_for(engine: Any, tokens: int) -> int:
    """Count the KV blocks that hold so many tokens."""
    return quotient(engine, tokens + engine.size - 1)


@inner
def phase_of(engine: Any, total: int, finish: int) -> int:
    """Return in which steps, modulo the block size, a decoding sequence needs a new block."""
    return remainder(engine, finish + 1 - total)  # begun at 1 token more than full blocks


@inner
def tell(events: Records, n: int, kind: int, slots: Records, s: int, tokens: int) -> int:
    """Write an event; return the count of events."""
    events[n].kind = kind
    events[n].slot = s
    events[n].request = slots[s].request
    events[n].tokens = tokens
    return n + 1


@inner
def stop_decoding(engine: Any, slots: Records, phases: Ints, s: int) -> int:
    """Take a sequence out of the decode batch; return its length."""
    finish = slots[s].finish
    length = slots[s].total - (finish - engine.done)
    phases[phase_of(engine, slots[s].total, finish)] -= 1
    engine.decoding -= 1
    engine.context -= length
    return int(length)


@inner
def start_decoding(
    engine: Any, slots: Records, heap: Ints, phases: Ints, s: int, tokens: int
) -> None:
    """Put a sequence that has so many tokens into the decode batch."""
    total = slots[s].total
    length = slots[s].prompt + tokens
    finish = engine.done + total - length
    slots[s].state = DECODING
    slots[s].finish = finish
    slots[s].stalled = -1
    finishes.push(engine, heap, finish, s)
    phases[phase_of(engine, total, finish)] += 1
    engine.decoding += 1
    engine.context += length


@inner
def complete(engine: Any, slots: Records, heap: Ints, phases: Ints, events: Records) -> int:
    """End the stretch: give the tokens, free who has finished; return the count of events."""
    if engine.left == 0:
        return 0
    if engine.left > 1:
        engine.free -= new_blocks(engine, phases, engine.left - 1)
    advance(engine, engine.left)
    engine.left = 0
    n = 0
    ends = (engine.done + 1) << finishes.BITS
    while engine.finishes and heap[0] < ends:
        s = finishes.pop(engine, heap)
        length = stop_decoding(engine, slots, phases, s)
        engine.free += blocks_for(engine, length - 1)
        i = n  # in order of admission
        while i > 0 and slots[events[i - 1].slot].seat > slots[s].seat:
            events[i].slot = events[i - 1].slot
            i -= 1
        events[i].slot = s
        n += 1
    for i in range(n):
        s = events[i].slot
        tell(events, i, FINISHED, slots, s, slots[s].total - slots[s].prompt)
        queue.unseat(engine, slots, s)
        queue.give(slots, s)
    s = engine.fresh
    engine.fresh = 0
    while s and slots[s].state == PREFILLED:
        following = slots[s].next
        length = slots[s].length
        tokens = length + 1 - slots[s].prompt
        engine.prefilled -= length
        n = tell(events, n, FIRST_TOKEN if tokens == 1 else TOKEN, slots, s, tokens)
        if length + 1 == slots[s].total:
            n = tell(events, n, FINISHED, slots, s, tokens)
            engine.free += blocks_for(engine, length)
            queue.unseat(engine, slots, s)
            queue.give(slots, s)
        else:
            start_decoding(engine, slots, heap, phases, s, tokens)
        s = following
    return n


@inner
def prefill(engine: Any, slots: Records, s: int, tokens: int) -> None:
    """Compute a chunk, for which blocks were taken, in the step that begins."""
    computed = slots[s].computed + tokens
    slots[s].computed = computed
    engine.prefilled += tokens
    engine.backlog -= tokens
    if computed == slots[s].length:
        slots[s].state = PREFILLED
        if engine.fresh == 0:
            engine.fresh = s
        if engine.partial == s:
            engine.partial = 0
    else:
        slots[s].state = CHUNKED
        engine.partial = s


@inner
def begin(
    engine: Any, slots: Records, heap: Ints, phases: Ints, events: Records, n: int, at: float
) -> int:
    """Schedule the next step at `at`, and as many alike as follow; return the count of events."""
    engine.began = at
    while True:
        decodes = engine.decoding
        context = engine.context
        budget = engine.budget - decodes
        s = engine.partial
        chunk = computed = 0
        needed = phases[engine.phase]
        if s:
            computed = slots[s].computed
            chunk = min(slots[s].length - computed, budget)
            needed += blocks_for(engine, computed + chunk) - blocks_for(engine, computed)
        if needed <= engine.free:
            break
        n = squeeze(engine, slots, heap, phases, events, n)
        if engine.left:
            return n
    engine.free -= needed
    tokens = 0
    attention = 0.0
    if s:
        if again(slots, s, chunk):
            decodes += 1
            context += slots[s].length
        else:
            tokens += chunk
            attention += chunk * (computed + 0.5 * chunk)
        budget -= chunk
        prefill(engine, slots, s, chunk)
    while budget > 0 and engine.waiting and engine.running < engine.seats:
        s = engine.first
        cached = slots[s].cached
        length = slots[s].length
        chunk = min(length - cached, budget)
        blocks = blocks_for(engine, cached + chunk)
        if (blocks_for(engine, length) if engine.gate else blocks) > engine.free:
            break  # the head of the line blocks those behind it
        queue.dequeue(engine, slots, s)
        queue.seat(engine, slots, s)
        engine.free -= blocks
        slots[s].computed = cached
        engine.prefilled += cached
        prefill(engine, slots, s, chunk)
        tokens += chunk
        attention += chunk * (cached + 0.5 * chunk)
        budget -= chunk
    if engine.running == 0:
        engine.due = math.inf
        return n
    engine.cost = seconds(engine, tokens, attention, decodes, context)
    if engine.fresh or engine.partial:
        engine.left = 1
        engine.due = at + engine.cost
        return n
    engine.slope = engine.e * decodes
    engine.left = plan(engine, heap, phases)
    engine.due = at + lasting(engine, engine.left)
    return n


@inner
def seconds(engine: Any, tokens: int, attention: float, decodes: int, context: int) -> float:
    """Compute how long a step takes (`engine.steptime`)."""
    time = (
        engine.a
        + engine.b * tokens
        + engine.c * attention
        + engine.d * decodes
        + engine.e * context
    )
    if engine.f > 0.0:
        time += engine.f * (1.0 - engine.asleep ** (tokens + decodes))
    return float(time)


@inner
def victim(engine: Any, slots: Records) -> int:
    """Choose who is preempted: the last admitted; by priority the largest (priority, arrival)."""
    worst = engine.tail
    if engine.by_priority:
        s = engine.head
        while s:
            if queue.goes_before(slots, worst, s):
                worst = s
            s = slots[s].next
    return int(worst)


@called
def preempt(engine: Any, slots: Records, heap: Ints, phases: Ints, s: int) -> int:
    """Send a running sequence back to the waiting; return its tokens so far."""
    if slots[s].state == DECODING:
        finishes.remove(engine, heap, slots[s].finish, s)
        length = stop_decoding(engine, slots, phases, s)
        slots[s].length = length
        held = length if slots[s].scheduled else length - 1
        engine.free += blocks_for(engine, held)
    else:  # the partial one; it is the last, so nothing of it is scheduled yet
        engine.partial = 0
        engine.free += blocks_for(engine, slots[s].computed)
        engine.prefilled -= slots[s].computed
        engine.backlog -= slots[s].length - slots[s].computed
    engine.preemptions += 1
    slots[s].computed = 0
    slots[s].state = WAITING
    engine.backlog += slots[s].length - slots[s].cached
    queue.unseat(engine, slots, s)
    queue.enqueue(engine, slots, s, True)
    return int(slots[s].length - slots[s].prompt)


@called
def squeeze(engine: Any, slots: Records, heap: Ints, phases: Ints, events: Records, n: int) -> int:
    """Schedule the running one by one, preempting where the KV is short; return the events' count.

    The step is begun unless nobody could be scheduled: the first in line preempted itself.
    """
    s = engine.head
    while s:
        slots[s].scheduled = 0
        s = slots[s].next
    budget = engine.budget
    s = engine.head
    while s and budget > 0:
        chunk = 1
        if slots[s].state == DECODING:
            computed = slots[s].total - (slots[s].finish - engine.done) - 1
        else:
            computed = slots[s].computed
            chunk = min(slots[s].length - computed, budget)
        needed = blocks_for(engine, computed + chunk) - blocks_for(engine, computed)
        stopped = False
        while needed > engine.free:
            v = victim(engine, slots)
            budget += slots[v].scheduled  # by priority it may stand before this one
            tokens = preempt(engine, slots, heap, phases, v)
            n = tell(events, n, PREEMPTED, slots, v, tokens)
            if v == s:
                stopped = True
                break
        if stopped:
            break
        engine.free -= needed
        slots[s].scheduled = chunk
        budget -= chunk
        s = slots[s].next
    launch(engine, slots, heap, phases)
    return n


@inner
def launch(engine: Any, slots: Records, heap: Ints, phases: Ints) -> None:
    """Begin a step with those that `squeeze` scheduled, if there are any; the others stall."""
    tokens = decodes = context = stalled = 0
    attention = 0.0
    s = engine.head
    while s:
        chunk = slots[s].scheduled
        if chunk == 0:
            stalled += 1
        elif slots[s].state == DECODING:
            decodes += 1
            context += slots[s].total - (slots[s].finish - engine.done)
        else:
            computed = slots[s].computed
            if again(slots, s, chunk):
                decodes += 1
                context += slots[s].length
            else:
                tokens += chunk
                attention += chunk * (computed + 0.5 * chunk)
            prefill(engine, slots, s, chunk)
        s = slots[s].next
    if tokens + decodes == 0:
        return
    s = engine.head
    while s and stalled:
        if slots[s].scheduled == 0 and slots[s].state == DECODING:
            stall(engine, slots, heap, phases, s)
        s = slots[s].next
    engine.cost = seconds(engine, tokens, attention, decodes, context)
    engine.left = 1
    engine.due = engine.began + engine.cost


@called
def stall(engine: Any, slots: Records, heap: Ints, phases: Ints, s: int) -> None:
    """Put off all that a decoding sequence does by a step, the one that begins."""
    total = slots[s].total
    finish = slots[s].finish
    finishes.remove(engine, heap, finish, s)
    finishes.push(engine, heap, finish + 1, s)
    phases[phase_of(engine, total, finish)] -= 1
    phases[phase_of(engine, total, finish + 1)] += 1
    slots[s].finish = finish + 1
    slots[s].stalled = engine.done
    engine.context -= 1


@inner
def again(slots: Records, s: int, chunk: int) -> bool:
    """Tell whether a chunk is the one last token of a sequence that is computed again.

    It costs what a decoding sequence does.
    """
    length = slots[s].length
    return bool(chunk == 1 and length > slots[s].prompt and slots[s].computed + 1 == length)
