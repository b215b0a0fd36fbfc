"""One contender at one knob: a run that goes on as far as a question needs, and no further.

Rule: a question is answered as soon as nothing that may still come can change the answer; what was
run for one question is not run again for the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from surgetank.simulation.arena.score import Score, missed, replica_hours, score, standby_hours
from surgetank.simulation.result import Result
from surgetank.simulation.run import Course

WARM_UP: Final = 300.0  # s: a fleet that begins with one replica is not judged by its first ones
_LOOK: Final = 60.0  # s between looks at what has been missed
_HAIR: Final = 1e-9  # 0.05 of 20 is one

FIRST: Final = 0
SECOND: Final = 1


@dataclass(frozen=True, slots=True)
class Price:
    """Replica-hours, where a standby costs so much of a serving replica."""

    standby_cost: float
    hours: float


class Half(Protocol):
    """A trial as a choice sees it."""

    def keeps(self, target: float, half: int, most: Price | None = None) -> bool: ...
    def lasted(self, target: float, half: int) -> float: ...
    def score(self, half: int) -> Score: ...


class Trial:
    """A run over both halves, of `half` seconds each, once it is asked; `ttft`: the objective, s.

    The first half is judged when it ends, from its 300th second to one objective before its end: a
    request that is still being answered then is judged by its first token. The second is judged
    when every request of it has ended.
    """

    def __init__(self, begin: Callable[[], Course], half: float, ttft: float) -> None:
        self._begin = begin
        self._course: Course | None = None
        self._ttft = ttft
        self._now = 0.0
        self._seen: Result | None = None  # at the last look
        self._stretches = ((WARM_UP, half - ttft), (half, 2 * half))
        self._ends = (half, math.inf)
        self._looks: tuple[list[tuple[float, int]], ...] = ([], [])
        self._counts: dict[int, int] = {}
        self._scores: dict[int, Score] = {}

    def keeps(self, target: float, half: int, most: Price | None = None) -> bool:
        """Tell whether a half keeps a target (for less than `most`); run on until it is certain."""
        while half not in self._scores:
            if self.lasted(target, half) < math.inf or (most and self._spent(half, most)):
                return False
            self._run_on(half)
        found = self._scores[half]
        cheap = most is None or found.cost(most.standby_cost) < most.hours
        return found.attainment >= target and cheap

    def _spent(self, half: int, most: Price) -> bool:
        """Tell whether a half has cost so much by the last look."""
        since = self._stretches[half][0]
        if self._seen is None or self._now <= since:
            return False
        hours = replica_hours(self._seen, since, self._now)
        standby = standby_hours(self._seen, since, self._now)
        return hours - (1 - most.standby_cost) * standby >= most.hours

    def lasted(self, target: float, half: int) -> float:
        """Give the second at which more had been missed than the target allows, by what was run."""
        if half not in self._counts:
            return math.inf
        allowed = math.floor((1 - target) * self._counts[half] + _HAIR)
        return next((at for at, count in self._looks[half] if count > allowed), math.inf)

    def score(self, half: int) -> Score:
        """Run a half to its end; its score."""
        while half not in self._scores:
            self._run_on(half, look=False)
        return self._scores[half]

    def _run_on(self, half: int, *, look: bool = True) -> None:
        """Run to the next look at a half, or straight to its end."""
        if self._course is None:
            self._course = self._begin()
        if half == SECOND and FIRST not in self._scores:
            self._run_on(FIRST, look=False)
        since, until = self._stretches[half]
        when = max(self._now, since) + _LOOK if look else math.inf
        if when < until:
            self._seen = seen = self._course.until(when)
            self._now = when
            arrived = seen.scenario.workload.arrived
            self._counts[half] = int(np.count_nonzero((arrived >= since) & (arrived < until)))
            self._looks[half].append((when, missed(seen, since, when - self._ttft)))
        elif half == FIRST:
            self._now = self._ends[FIRST]
            seen = self._course.until(self._now)
            self._scores[half] = score(seen, since, until, under_way=True)
        else:
            self._scores[half] = score(self._course.rest(), since, until)
            self._course = self._seen = None  # they hold every request


def choose(
    trials: Sequence[tuple[float, Half]], standby_cost: float, target: float, half: int = FIRST
) -> tuple[float, bool]:
    """Choose among knobs, from costly to cheap: the cheapest that keeps the target, and whether.

    They are tried from the cheap end on, since what keeps nothing shows it soon; a costlier one is
    gone on with as long as it has cost less than the best so far, since a knob that starts sooner
    may cost less after all. Where none keeps it, the one is taken that lasted the longest, the
    costlier one of equals; in the second half, where only those choose who know it, the one that
    attained the most.
    """
    best: Price | None = None
    chosen: float | None = None
    for knob, trial in trials[::-1]:
        if trial.keeps(target, half, best):
            best, chosen = Price(standby_cost, trial.score(half).cost(standby_cost)), knob
    if chosen is not None:
        return chosen, True
    if half == SECOND:
        return max(trials, key=lambda pair: pair[1].score(half).attainment)[0], False
    return max(trials, key=lambda pair: pair[1].lasted(target, half))[0], False


def least(
    trial: Callable[[int], Half], low: int, high: int, target: float, half: int
) -> tuple[int, bool]:
    """Find the least whole number from `low` to `high` that keeps a target, by halving.

    `high` where none does.
    """
    while low < high:
        middle = (low + high) // 2
        kept = trial(middle).keeps(target, half)
        low, high = (low, middle) if kept else (middle + 1, high)
    return low, trial(low).keeps(target, half)
