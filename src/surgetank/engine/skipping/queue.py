"""The two lines of an engine, running and waiting, linked through the slots.

The running stand in order of admission. The waiting stand in a list (fcfs: a preempted one goes to
its front), or in a pairing heap on (priority, arrival) whose root is `first`; a heap's `next` is
the next sibling, its `prev` the sibling before or the parent (Fredman et al. 1986).
"""

from __future__ import annotations

from typing import Any

from surgetank.engine.skipping.layout import FREE, Records
from surgetank.engine.skipping.marks import called, inner


@inner
def take(slots: Records) -> int:
    """Take a free slot, of which there must be one."""
    s: int = slots[0].next
    slots[0].next = slots[s].next
    return s


@inner
def give(slots: Records, s: int) -> None:
    """Make a slot free."""
    slots[s].state = FREE
    slots[s].next = slots[0].next
    slots[0].next = s


@inner
def seat(engine: Any, slots: Records, s: int) -> None:
    """Append to the running."""
    slots[s].seat = engine.admitted
    engine.admitted += 1
    slots[s].next = 0
    slots[s].prev = engine.tail
    if engine.tail:
        slots[engine.tail].next = s
    else:
        engine.head = s
    engine.tail = s
    engine.running += 1


@inner
def unseat(engine: Any, slots: Records, s: int) -> None:
    """Take out of the running."""
    before = slots[s].prev
    after = slots[s].next
    if before:
        slots[before].next = after
    else:
        engine.head = after
    if after:
        slots[after].prev = before
    else:
        engine.tail = before
    engine.running -= 1


@inner
def enqueue(engine: Any, slots: Records, s: int, front: bool) -> None:  # noqa: FBT001 - compiled
    """Put among the waiting, where the policy says; only fcfs has a front."""
    slots[s].next = 0
    slots[s].prev = 0
    if engine.by_priority:
        slots[s].child = 0
        engine.first = meld(slots, engine.first, s)
    elif engine.waiting == 0:
        engine.first = s
        engine.last = s
    elif front:
        slots[s].next = engine.first
        slots[engine.first].prev = s
        engine.first = s
    else:
        slots[s].prev = engine.last
        slots[engine.last].next = s
        engine.last = s
    engine.waiting += 1


@inner
def dequeue(engine: Any, slots: Records, s: int) -> None:
    """Take out of the waiting, wherever it stands."""
    engine.waiting -= 1
    before = slots[s].prev
    after = slots[s].next
    if engine.by_priority:
        rest = pairs(slots, slots[s].child)
        if s == engine.first:
            engine.first = rest
            return
        if slots[before].child == s:
            slots[before].child = after
        else:
            slots[before].next = after
        if after:
            slots[after].prev = before
        engine.first = meld(slots, engine.first, rest)
        return
    if before:
        slots[before].next = after
    else:
        engine.first = after
    if after:
        slots[after].prev = before
    else:
        engine.last = before


@inner
def goes_before(slots: Records, s: int, t: int) -> bool:
    """Compare by (priority, arrival), then order."""
    if slots[s].priority != slots[t].priority:
        return bool(slots[s].priority < slots[t].priority)
    if slots[s].arrived != slots[t].arrived:
        return bool(slots[s].arrived < slots[t].arrived)
    return bool(slots[s].order < slots[t].order)


@called
def meld(slots: Records, s: int, t: int) -> int:
    """Join two heaps, either of which may be empty; return the root."""
    if s == 0 or t == 0:
        return s + t
    if goes_before(slots, t, s):
        s, t = t, s
    other = slots[s].child
    slots[t].next = other
    slots[t].prev = s
    if other:
        slots[other].prev = t
    slots[s].child = t
    return s


@called
def pairs(slots: Records, s: int) -> int:
    """Join siblings, s the first, into one heap: by twos, then from the last to the first."""
    joined = 0  # heaps of two, linked by `next`, the latest first
    while s:
        t = slots[s].next
        following = 0
        slots[s].next = 0
        slots[s].prev = 0
        if t:
            following = slots[t].next
            slots[t].next = 0
            slots[t].prev = 0
        two = meld(slots, s, t)
        slots[two].next = joined
        joined = two
        s = following
    root = 0
    while joined:
        following = slots[joined].next
        slots[joined].next = 0
        root = meld(slots, root, joined)
        joined = following
    return root
