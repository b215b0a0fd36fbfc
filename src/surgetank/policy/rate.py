"""How fast a model's replicas work off cost: what waiting times are foretold from.

Rule: only time in which requests were waiting says what the replicas can do; time in which some
merely ran gives a lower bound, good enough for a Retry-After, never a reason to refuse.
"""

from __future__ import annotations

from math import exp

_WINDOW = 20.0  # seconds of busy time after which old observations weigh 1/e
_ENOUGH_SECONDS = 0.5
_ENOUGH_REQUESTS = 3
_FADE = 0.98  # of the largest prefill rate seen, per look


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

    def scale(self, factor: float) -> None:
        """From now on so many times as much is done."""
        self._cost *= factor

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
        elapsed = now - self._since
        if self.backlogged or not self.working:
            if elapsed:
                self._account(now)
            if self.working:
                self._when_working.add(cost)
                self._when_backlogged.add(cost)
            return
        meter = self._when_working
        if elapsed > 0:
            meter.elapse(elapsed)
        self._since = now
        meter.add(cost)

    def _account(self, now: float) -> None:
        """Add the time since the last account to the state it was spent in."""
        elapsed = now - self._since
        if elapsed > 0:
            if self.backlogged:
                self._when_backlogged.elapse(elapsed)
            if self.working:
                self._when_working.elapse(elapsed)
        self._since = now

    def scale(self, factor: float) -> None:
        """The replicas have become so many times as many: what was seen is true of each."""
        self._when_backlogged.scale(factor)
        self._when_working.scale(factor)

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


class PrefillRate:
    """Prompt tokens per second of a model: the most seen between two looks, fading."""

    __slots__ = ("_at", "_busy", "_done", "rate")

    def __init__(self) -> None:
        self._at = self._done = 0.0
        self._busy = False
        self.rate: float | None = None

    def look(self, done: float, backlog: int, now: float) -> float | None:
        """Take in the tokens prefilled in all, and what is still to be; the rate, if it is known.

        Only time that began with a backlog tells what the replicas can do.
        """
        seconds, tokens = now - self._at, done - self._done
        if seconds > 0:
            if self._busy and tokens > 0:
                self.rate = max(tokens / seconds, (self.rate or 0.0) * _FADE)
            self._at, self._done = now, done
        self._busy = backlog > 0
        return self.rate
