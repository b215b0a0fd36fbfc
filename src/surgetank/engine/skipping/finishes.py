"""The heap of finishes: which decoding sequence ends in which step.

Entries are finish * 2^26 + slot in one number, so that one comparison orders them.
"""

from __future__ import annotations

from typing import Any, Final

from surgetank.engine.skipping.layout import Ints
from surgetank.engine.skipping.marks import called, inner

BITS: Final = 26  # 67 million sequences in flight, and steps without end
MASK: Final = (1 << BITS) - 1


@inner
def push(engine: Any, heap: Ints, finish: int, s: int) -> None:
    """Add an entry."""
    i = engine.finishes
    engine.finishes = i + 1
    rise(heap, i, (finish << BITS) | s)


@inner
def rise(heap: Ints, i: int, entry: int) -> None:
    """Put an entry where it belongs on the way from i to the root."""
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = entry


@inner
def pop(engine: Any, heap: Ints) -> int:
    """Remove the earliest; return its slot."""
    s = heap[0] & MASK
    last = engine.finishes - 1
    engine.finishes = last
    i = 0
    while True:  # the gap goes down to a leaf: the last entry mostly belongs there
        child = 2 * i + 1
        if child >= last:
            break
        if child + 1 < last and heap[child + 1] < heap[child]:
            child += 1
        heap[i] = heap[child]
        i = child
    rise(heap, i, heap[last])
    return int(s)


@called
def remove(engine: Any, heap: Ints, finish: int, s: int) -> None:
    """Remove an entry by looking at all: only aborts and preemptions do."""
    entry = (finish << BITS) | s
    i = 0
    while heap[i] != entry:
        i += 1
    while i > 0:  # to the root, as though it were the earliest
        parent = (i - 1) >> 1
        heap[i] = heap[parent]
        i = parent
    heap[0] = entry
    pop(engine, heap)
