"""What a rule would have cost, and whom it would have kept waiting, on the arrivals just seen.

A virtual fleet follows one simple rule on the work that really came: how many replicas are loaded,
how many of those serve, and how long the first-come queue in front of them would have been. The
queue is a fluid: prefill work in replica-seconds waits in turn; decodes already under way take
their share of every serving replica first.

    capacity = rho x serving - share x decode,     wait = queue / capacity

Who would have waited longer than the slack of the objective is a miss. It takes microseconds a
second, so dozens of rules are followed at once, and the one that would have been the cheapest while
keeping the target is known at any time without simulating anything again.

Rule: a virtual fleet sees no more than the real one saw by then; its starts take as long as the
real ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

_LEAST_PART = 0.15  # of a replica, which prefills get even when decodes would take all
_PARTS = (1.0, 0.92, 0.85, 0.78, 0.7, 0.62, 0.55)  # of the stated capacity, which are believed
_MINUTE = 60.0  # s: a burst and those whom it made late, most of them
_PRESSED = 0.5  # part of the slack: who waits as long gets everything that is loaded


@dataclass(frozen=True, slots=True)
class Fluid:
    """What came within one step, in replica-seconds at full use."""

    seconds: float
    requests: float
    prefill: float  # work that waits in turn
    decode: float  # replicas that the decodes under way take
    need: float  # replicas that the demand envelope asks for now
    ahead: float = 0.0  # the same as foretold, the most of what a start takes
    soon: float = 0.0  # the most of what waking a standby takes


@dataclass(frozen=True, slots=True)
class Terms:
    """What a fleet's replicas take and cost. Seconds; `standby_cost` of a serving replica."""

    start: float
    wake: float
    standby_cost: float
    slack: float  # seconds that a request may wait for its prefill
    rho: float  # usable part of a replica
    least: int
    most: int
    memory: float = 600.0  # in which what was seen counts half
    best: int = 1  # the best fixed number of the last records


@dataclass(frozen=True, slots=True)
class Rule:
    """How loaded and serving replicas follow the need.

    Loaded are `fixed`, or the best fixed number and `beyond`, or `head` x what was needed within
    `keep` starts (`capped`: no more than the best fixed number). All of them serve, or with `rest`
    only `head` x what was needed within that many seconds (and `load` x is loaded). `foretold`: it
    believes in the rhythm.
    """

    fixed: int | None = None
    beyond: int | None = None
    keep: float = 0.0
    capped: bool = False
    rest: float | None = None
    head: float = 1.0
    load: float | None = None
    foretold: bool = False

    def __str__(self) -> str:
        if self.fixed is not None:
            words = [f"{self.fixed} always"]
        elif self.beyond is not None:
            extra = f" and {self.beyond}" if self.beyond else ""
            words = [f"the best fixed number{extra}"]
        else:
            head = self.head if self.load is None else self.load
            words = [f"{head:g} x what was needed within {self.keep:g} start times"]
            words += ["no more than the best fixed number"] if self.capped else []
        if self.rest is not None:
            words.append(f"of which {self.head:g} x the need of the last {self.rest:g} s serves")
        if self.foretold:
            words.append("ahead of the rhythm")
        return ", ".join(words)


class _Most:
    """The largest value of a time just past."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, value: int, span: float, now: float) -> int:
        points = self._points
        while points and points[-1][1] <= value:
            points.pop()
        points.append((now, value))
        over = now - span
        while points[0][0] < over:
            points.popleft()
        return points[0][1]


class VirtualFleet:
    """One rule, followed. `loaded` and `serving` are what it would have now, asked for."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.loaded = self.serving = rule.fixed or 0
        self.queue = 0.0  # replica-seconds of prefill that wait
        self._loaded_most = _Most()
        self._serving_most = _Most()
        self._loaded_since: list[float] = []  # of each layer, from the lowest
        self._serving_since: list[float] = []
        self._begun = False
        self.returns = 0  # times that it grew after it had shrunk
        self._shrunk = False
        self._last = 0

    def step(self, came: Fluid, terms: Terms, now: float) -> tuple[float, float]:
        """Follow the rule for a step; give what it cost (replica-seconds) and who missed."""
        fixed = self.rule.fixed
        if fixed is not None:  # always there: nothing to decide, and most of the candidates
            return fixed * came.seconds, self.serve(came, terms, fixed)
        self._decide(came, terms, now)
        ready = bisect_right(self._loaded_since, now - terms.start)
        awake = bisect_right(self._serving_since, now - terms.wake)
        active = min(ready, awake) if self.rule.rest is not None else ready
        missed = self.serve(came, terms, max(active, terms.least))
        self._count_returns()
        starting = self.loaded - min(ready, self.loaded)
        warm = max(0, self.loaded - starting - self.serving)
        return (self.loaded - (1 - terms.standby_cost) * warm) * came.seconds, missed

    def _decide(self, came: Fluid, terms: Terms, now: float) -> None:
        rule, rho, least, most = self.rule, terms.rho, terms.least, terms.most
        if rule.beyond is not None:
            loaded = min(max(terms.best + rule.beyond, least), most)
        else:
            need = max(came.need, came.ahead) if rule.foretold else came.need
            if rule.capped:
                most = min(most, max(least, terms.best))
            head = rule.head if rule.load is None else rule.load
            wanted = min(max(math.ceil(head * need / rho - 0.02), least), most)
            loaded = self._loaded_most.add(wanted, rule.keep * terms.start, now)
        self.loaded = loaded
        since = now if self._begun else -math.inf
        self._begun = True
        _resize(self._loaded_since, loaded, since)
        if rule.rest is None:
            self.serving = loaded
            return
        need = max(came.need, came.soon) if rule.foretold else came.need
        wanted = math.ceil(rule.head * need / rho - 0.02)
        if self.queue > _PRESSED * terms.slack * rho * max(1, len(self._serving_since)):
            wanted = loaded
        wanted = min(max(wanted, terms.least), loaded)
        self.serving = min(self._serving_most.add(wanted, rule.rest, now), loaded)
        _resize(self._serving_since, self.serving, since)

    def _count_returns(self) -> None:
        """Count what it let go and took again: a rule not put to the test says nothing."""
        now = self.serving if self.rule.rest is not None else self.loaded
        if now < self._last:
            self._shrunk = True
        elif now > self._last and self._shrunk:
            self._shrunk = False
            self.returns += 1
        self._last = now

    def serve(self, came: Fluid, terms: Terms, active: float) -> float:
        """Let a step's work in and out; give the requests that waited too long."""
        rate = max(_LEAST_PART * active, terms.rho * active - came.decode)
        seconds, prefill = came.seconds, came.prefill
        before = self.queue / rate
        # A second's requests may come together; what comes within longer steps is spread over them.
        lump = prefill if seconds <= 1.0 else prefill / seconds
        after = before + lump / rate
        if seconds > 1.0:
            after += max(0.0, (prefill - lump) / rate - (seconds - 1.0))
        self.queue = max(0.0, self.queue + prefill - rate * seconds)
        if after <= terms.slack or not came.requests:
            return 0.0
        if before >= terms.slack:
            return came.requests
        return came.requests * (after - terms.slack) / (after - before)


def _resize(since: list[float], size: int, now: float) -> None:
    if len(since) > size:
        del since[size:]
    while len(since) < size:
        since.append(now)


class Believed:
    """What a replica really does of what is said of it: the part that explains who was late.

    The real fleet is followed with several parts of the stated capacity. What a part leaves
    unexplained, all in all, was late for `other` reasons: a share of the requests that is the same
    at all times. That part is believed which, with its share, comes nearest to the late requests of
    each minute; the largest of equals.
    """

    def __init__(self) -> None:
        self._fleets = [(part, VirtualFleet(Rule())) for part in _PARTS]
        self._late = [0.0] * len(_PARTS)
        self._minute = [0.0] * len(_PARTS)  # foretold in the minute that is not over
        self._errors = [0.0] * len(_PARTS)
        self._requests = self._seen = 0.0
        self._told = 0.0  # late by what was believed at the time
        self._seconds = self._seen_minute = self._came_minute = 0.0
        self._since: list[float] = []  # of each that serves, from the lowest
        self.part = 1.0
        self.other = 0.0  # part of the requests

    def step(self, came: Fluid, terms: Terms, serving: int, late: float, now: float) -> None:
        """Follow the real fleet for a step in which so many requests turned out to be late."""
        _resize(self._since, max(1, serving), now if self._since else -math.inf)
        awake = max(1, bisect_right(self._since, now - terms.wake))
        fading = 0.5 ** (came.seconds / terms.memory)
        self._requests = fading * self._requests + came.requests
        self._seen = fading * self._seen + late
        told = 0.0
        for number, (part, fleet) in enumerate(self._fleets):
            missed = fleet.serve(came, terms, part * awake)
            self._late[number] = fading * self._late[number] + missed
            self._minute[number] += missed
            self._errors[number] *= fading
            told += missed if part == self.part else 0.0
        self._told = fading * self._told + told
        self._seen_minute += late
        self._came_minute += came.requests
        self._seconds += came.seconds
        if self._seconds >= _MINUTE:
            self._judge()

    def _judge(self) -> None:
        for number, foretold in enumerate(self._minute):
            explained = foretold + self._left(self._late[number]) * self._came_minute
            self._errors[number] += abs(explained - self._seen_minute)
            self._minute[number] = 0.0
        self._seconds = self._seen_minute = self._came_minute = 0.0
        best = min(range(len(_PARTS)), key=self._errors.__getitem__)
        # The rules' records are of what was believed at the time: what that explained is no other.
        self.part, self.other = _PARTS[best], self._left(max(self._told, self._late[best]))

    def _left(self, explained: float) -> float:
        """Part of the requests that were late beyond those."""
        return max(0.0, self._seen - explained) / max(self._requests, 1.0)
