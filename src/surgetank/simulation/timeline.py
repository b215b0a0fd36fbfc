"""What will happen at its time: all but arrivals, engine steps and the gateway's deadline."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class Timeline:
    """Calls in order of time, equal times in the order they were set."""

    __slots__ = ("_heap", "_set", "next")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        self._set = 0
        self.next = inf  # when the first is due

    def at(self, when: float, call: Callable[[Any, float], None], what: Any) -> None:
        """Have `call(what, when)` made at its time."""
        self._set += 1
        heappush(self._heap, (when, self._set, call, what))
        self.next = self._heap[0][0]

    def run(self) -> None:
        """Make the first call."""
        when, _, call, what = heappop(self._heap)
        self.next = self._heap[0][0] if self._heap else inf
        call(what, when)
