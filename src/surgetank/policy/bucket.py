"""Token bucket for quotas: reserve before the work, settle with what it really used.

Rule: each verb takes the time it happens at; a clock that runs backwards refills nothing. After
golang.org/x/time/rate, with a debt: real usage above the reservation is paid off by later refill.

What is given back must not let a burst through a second time: while a large reservation is out, the
bucket fills up again, is emptied, and then gets the unused part back on top. So each reservation
that is out has a credit, what it can get back at most, and at all times

    level + all credits <= burst

Refill that would break this takes credits away, the oldest first. In any window from s to t what is
let in, less what it did not use, is then at most burst + rate x (t - s): level(s) and the credits
of that moment are all that earlier requests can bring into it.
"""

from __future__ import annotations

from collections import OrderedDict
from math import floor, inf

_ROUNDING = 1e-9  # relative: after exactly `wait` seconds a reservation succeeds in spite of floats


class TokenBucket:
    """`burst` tokens when full (it starts full), refilled by `rate` tokens a second.

    A reservation that says whose it is has a credit; one that does not gets all back.
    """

    __slots__ = ("_as_of", "_credit", "_credits", "_level", "burst", "rate", "size")

    def __init__(self, rate: float, burst: float) -> None:
        if not (rate >= 0 and burst >= 0):
            raise ValueError(f"TokenBucket(rate={rate}, burst={burst}): both must be >= 0")
        self.rate = rate
        self.burst = burst
        self.size = floor(burst)  # in whole tokens, as clients are told
        self._level = burst
        self._as_of = -inf
        self._credits: OrderedDict[str, float] = OrderedDict()  # the oldest first
        self._credit = 0.0  # their sum

    def level(self, now: float) -> float:
        """Tokens there are; negative while in debt, never above `burst`."""
        level, burst = self._level, self.burst
        if now <= self._as_of or level >= burst:
            return level
        level += (now - self._as_of) * self.rate
        return level if level < burst else burst

    def told(self, now: float) -> tuple[int, int, float]:
        """Size, whole tokens left and seconds until full, as clients are told."""
        level, burst, rate = self._level, self.burst, self.rate
        if level < burst and now > self._as_of:  # as level() has it: a call less
            level += (now - self._as_of) * rate
            if level > burst:
                level = burst
        reset = (burst - level) / rate if rate else 0.0
        return self.size, int(level) if level > 0 else 0, reset

    def holds(self, n: float, now: float) -> bool:
        """Whether `n` tokens can be reserved."""
        level, burst, elapsed = self._level, self.burst, now - self._as_of
        if elapsed > 0 and level < burst:  # as level() has it: a call less
            level += elapsed * self.rate
            if level > burst:
                level = burst
        return level >= n - _ROUNDING * (n + burst)

    def reserve(self, n: float, now: float, *, whose: str = "") -> bool:
        """Take `n` tokens if they are there; else take nothing."""
        level, burst, elapsed = self._level, self.burst, now - self._as_of
        if elapsed > 0 and level < burst:  # as level() has it: a call less
            level += elapsed * self.rate
            if level > burst:
                level = burst
        if level < n - _ROUNDING * (n + burst):
            return False
        if elapsed > 0:
            self._as_of = now
        if whose:
            if self._credit > burst - level:
                self._void(self._credit - burst + level)
            self._credits[whose] = n
            self._credit += n
        self._level = level - n
        return True

    def owe(self, n: float, now: float, *, whose: str) -> None:
        """Take what was reserved elsewhere, whether it is there or not."""
        self.settle(0.0, n, now)
        self._credits[whose] = n
        self._credit += n

    def settle(self, reserved: float, used: float, now: float, *, whose: str = "") -> None:
        """Correct a reservation to what was used; may leave the bucket in debt."""
        level, burst = self.level(now), self.burst
        back = reserved - used
        if whose:
            if self._credit > burst - level:
                self._void(self._credit - burst + level)
            credit = self._credits.pop(whose, 0.0)
            self._credit = self._credit - credit if self._credits else 0.0
            if back > credit:
                back = credit
        level += back
        self._level = level if level < burst else burst
        if now > self._as_of:
            self._as_of = now

    def refund(self, n: float, now: float, *, whose: str = "") -> None:
        """Give a reservation back unused."""
        self.settle(n, 0.0, now, whose=whose)

    def _void(self, amount: float) -> None:
        """Take so much credit away, of the oldest first."""
        held = self._credits
        while held and amount > 0:
            whose, credit = next(iter(held.items()))
            if credit > amount:
                held[whose] = credit - amount
                self._credit -= amount
                return
            del held[whose]
            self._credit -= credit
            amount -= credit
        if not held:
            self._credit = 0.0

    def resize(self, rate: float, burst: float, now: float) -> None:
        """Change rate and size: the part (0..1) that is filled stays; so does a debt, in tokens."""
        level = self.level(now)
        if level > 0:
            level *= burst / self.burst
        self.rate = rate
        self.burst = burst
        self.size = floor(burst)
        self._level = level = min(level, burst)
        self._void(self._credit - burst + level)
        if now > self._as_of:
            self._as_of = now

    def wait(self, n: float, now: float) -> float:
        """Seconds until `n` tokens can be reserved; inf when they never can."""
        missing = n - self.level(now)
        if missing <= 0:
            return 0.0
        if n > self.burst or self.rate == 0:
            return inf
        return missing / self.rate
