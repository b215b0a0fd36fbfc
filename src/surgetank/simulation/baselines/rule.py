"""What a rule of somebody else's is asked, and the scaler that carries it.

Rule: a rule sees the same Observation as ours, with the same lag; where it knows nothing, nothing
changes. Limits and the warm pool are the pool's, alike for all.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from surgetank.policy.plan import Observation, ScalePlan


class Rule(Protocol):
    """How many replicas should serve. Called once a second; it keeps its own, slower clock."""

    def replicas(self, seen: Observation, now: float) -> int: ...


class Ruled:
    """A rule between a pool's limits, with so many warm replicas beside (a Scaler)."""

    def __init__(self, rule: Rule, *, least: int, most: int, standbys: int = 0) -> None:
        self._rule = rule
        self._least = least
        self._most = most
        self._standbys = standbys

    def tick(self, seen: Observation, now: float) -> ScalePlan:
        """Ask the rule."""
        wanted = min(max(self._rule.replicas(seen, now), self._least), self._most)
        return ScalePlan(
            replicas=wanted,
            launch=wanted,
            standbys=min(self._standbys, self._most - wanted),
            surge=False,
            demand=None,
            reasons=(),
        )


def current(seen: Observation) -> int:
    """Replicas there are as an orchestrator counts them: those serving and those starting."""
    return seen.serving + seen.starting


def ongoing(seen: Observation) -> float | None:
    """Requests running or waiting, of the whole pool; None: unknown."""
    if seen.running is None or seen.queue_length is None:
        return None
    return seen.running + seen.queue_length


class Samples:
    """Values of the last `span` seconds, (now - span, now]."""

    def __init__(self, span: float) -> None:
        self._span = span
        self._points: deque[tuple[float, float]] = deque()

    def add(self, value: float, now: float) -> None:
        self._points.append((now, value))
        self._drop(now - self._span)

    def _drop(self, before: float) -> None:
        while self._points and self._points[0][0] <= before:
            self._points.popleft()

    def mean(self, now: float, span: float | None = None) -> float | None:
        """Mean over the last `span` seconds (all of them by default); None without a value."""
        since = now - (self._span if span is None else span)
        values = [value for at, value in self._points if at > since]
        return sum(values) / len(values) if values else None

    def most(self, now: float) -> float | None:
        """Largest; None without a value."""
        self._drop(now - self._span)
        return max((value for _, value in self._points), default=None)


class Every:
    """A clock of its own: true when `period` seconds have passed since it last was."""

    def __init__(self, period: float, *, first: float = 0.0) -> None:
        self._period = period
        self._first = first
        self._due: float | None = None

    def due(self, now: float) -> bool:
        """Whether it is time; the first time `first` seconds after it was first asked."""
        if self._due is None:
            self._due = now + self._first
        if now < self._due:
            return False
        self._due = now + self._period
        return True


class Amounts:
    """What came in since it was last taken: requests, prompt tokens, expected output tokens.

    A reading that was counted before (its `as_of` is not new) is not counted again.
    """

    def __init__(self) -> None:
        self._as_of: float | None = None
        self.requests = self.prompt = self.output = 0.0

    def add(self, seen: Observation) -> None:
        if seen.as_of is None or (self._as_of is not None and seen.as_of <= self._as_of):
            return
        self._as_of = seen.as_of
        self.requests += seen.arrivals or 0
        self.prompt += seen.prompt_tokens or 0.0
        self.output += seen.expected_output or 0.0

    def take(self) -> tuple[float, float, float]:
        """Give them, and begin anew."""
        taken = self.requests, self.prompt, self.output
        self.requests = self.prompt = self.output = 0.0
        return taken


class LatestTtft:
    """Mean TTFT of the first tokens since the last reading; the one before when there were none."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0
        self._as_of: float | None = None
        self._last: float | None = None

    def add(self, seen: Observation) -> None:
        if seen.as_of is None or (self._as_of is not None and seen.as_of <= self._as_of):
            return
        self._as_of = seen.as_of
        self._sum += sum(ttft for _, ttft in seen.ttft_points)
        self._count += len(seen.ttft_points)

    def take(self) -> float | None:
        """Seconds; None before any first token was seen."""
        if self._count:
            self._last = self._sum / self._count
            self._sum, self._count = 0.0, 0
        return self._last
