"""What keeps a fleet from flapping: the scale-down delay, and a guard against turning around.

Rule: both only ever hold a decision back; neither asks for a replica by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Wanted:
    at: float
    work: int
    symptom: int

    @property
    def both(self) -> int:
        return max(self.work, self.symptom)


class WantedLately:
    """Stabilisation maximum: the most that any tick of the last `delay` seconds wanted.

    What a tick wanted holds until the next tick, so a gap between ticks is not a time in which
    nothing was wanted. What only a symptom (a slow first token) asked for is kept apart: it can be
    taken back.
    """

    def __init__(self, delay: float, initial: int, now: float) -> None:
        self._delay = delay
        self._entries: deque[_Wanted] = deque([_Wanted(now, initial, 0)])

    def add(self, work: int, symptom: int, now: float) -> None:
        """Note what this tick wants."""
        last = self._entries[-1]
        if (last.work, last.symptom) != (work, symptom):
            self._entries.append(_Wanted(now, work, symptom))
        while len(self._entries) > 1 and self._entries[1].at <= now - self._delay:
            self._entries.popleft()

    def most(self) -> int:
        """Give the largest want of the window, of whatever kind."""
        return max(entry.both for entry in self._entries)

    def work(self, since: float | None = None) -> int:
        """Give the largest want for work, of the whole window or from `since` on."""
        if since is None:
            return max(entry.work for entry in self._entries)
        return max(entry.work for entry in self._from(since))

    def take_back(self, since: float) -> None:
        """Forget what symptoms asked for from `since` on."""
        for entry in self._from(since):
            entry.symptom = 0

    def _from(self, since: float) -> list[_Wanted]:
        later = [entry for entry in self._entries if entry.at >= since]
        before = [entry for entry in self._entries if entry.at < since]
        return before[-1:] + later if not later or later[0].at > since else later


class DirectionGuard:
    """At most one change of direction within one start time, unless demand has moved.

    A start that is reversed before it could serve was paid for nothing. `tolerance`: part by which
    demand must have moved since the last change to allow the next.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._direction = 0
        self._changed: tuple[float, float] | None = None  # when, and the demand then

    def allows(self, step: int, demand: float, start_time: float, now: float) -> bool:
        """Whether a move by `step` (its sign counts) may be made now."""
        if not self._turns(step) or self._changed is None:
            return True
        at, then = self._changed
        return now - at >= start_time or abs(demand - then) > self._tolerance * then

    def moved(self, step: int, demand: float, now: float) -> None:
        """Note a move that was made."""
        if self._turns(step):
            self._changed = (now, demand)
        self._direction = 1 if step > 0 else -1

    def _turns(self, step: int) -> bool:
        return self._direction != 0 and (step > 0) is not (self._direction > 0)
