"""How fast a model's replicas work off cost: what waiting times are foretold from.

Rule: only time in which requests were waiting says what the replicas can do; time in which some
merely ran gives a lower bound, good enough for a Retry-After, never a reason to refuse.
"""

from __future__ import annotations

from math import exp

_WINDOW = 20.0  # seconds of busy time after which old observations weigh 1/e
_ENOUGH_SECONDS = 0.5
_ENOUGH_REQUESTS = 3


class Meter:
    """Cost per second over an exponentially fading window of the time that counts."""

    __slots__ = ("_cost", "_seconds", "_settled")

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._settled = 0

    def elapse(self, seconds: float) -> None:
        """So much of the time that counts has passed."""
        fade = exp(-seconds / _WINDOW)
        self._cost *= fade
        self._seconds = self._seconds * fade + _WINDOW * (1 - fade)

    def add(self, cost: float) -> None:
        self._cost += cost
        self._settled += 1

    def rate(self) -> float | None:
        """Cost per second; None before enough was seen."""
        if self._settled < _ENOUGH_REQUESTS or self._seconds < _ENOUGH_SECONDS or self._cost <= 0:
            return None
        return self._cost / self._seconds


class ServiceRate:
    """Settled cost per second of one model: `capacity` under backlog, `at_least` otherwise.

    `working`: something runs, by the last mark; `backlogged`: and something waits.
    """

    __slots__ = ("_since", "_when_backlogged", "_when_working", "backlogged", "working")

    def __init__(self) -> None:
        self._when_backlogged = Meter()
        self._when_working = Meter()
        self.backlogged = False
        self.working = False
        self._since = 0.0

    def mark(self, now: float, *, waiting: bool, running: bool) -> None:
        """Take the state as it is from `now` on."""
        backlogged = waiting and running
        if backlogged is not self.backlogged or running is not self.working:
            self._account(now)
            self.backlogged = backlogged
            self.working = running

    def settle(self, cost: float, now: float) -> None:
        """A request ended, having used `cost`; `mark` comes after it, with the new state."""
        if now != self._since:
            self._account(now)
        if self.working:
            self._when_working.add(cost)
            if self.backlogged:
                self._when_backlogged.add(cost)

    def _account(self, now: float) -> None:
        """Add the time since the last account to the state it was spent in."""
        elapsed = now - self._since
        if elapsed > 0:
            if self.backlogged:
                self._when_backlogged.elapse(elapsed)
            if self.working:
                self._when_working.elapse(elapsed)
        self._since = now

    def forget(self) -> None:
        """What was seen is true no more, such as after a change of how many run at once."""
        self._when_backlogged = Meter()
        self._when_working = Meter()

    def capacity(self) -> float | None:
        """Cost per second under backlog; None when there was none yet."""
        return self._when_backlogged.rate()

    def at_least(self) -> float | None:
        """Cost per second they surely can: as under backlog, else as seen while working."""
        return self._when_backlogged.rate() or self._when_working.rate()
