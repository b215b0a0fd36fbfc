"""Token bucket for quotas: reserve before the work, settle with what it really used.

Rule: each verb takes the time it happens at; a clock that runs backwards refills nothing. After
golang.org/x/time/rate, with a debt: real usage above the reservation is paid off by later refill.
"""

from __future__ import annotations

from math import floor, inf

_ROUNDING = 1e-9  # relative: after exactly `wait` seconds a reservation succeeds in spite of floats


class TokenBucket:
    """`burst` tokens when full (it starts full), refilled by `rate` tokens a second."""

    __slots__ = ("_as_of", "_level", "burst", "rate", "size")

    def __init__(self, rate: float, burst: float) -> None:
        if not (rate >= 0 and burst >= 0):
            raise ValueError(f"TokenBucket(rate={rate}, burst={burst}): both must be >= 0")
        self.rate = rate
        self.burst = burst
        self.size = floor(burst)  # in whole tokens, as clients are told
        self._level = burst
        self._as_of = -inf

    def level(self, now: float) -> float:
        """Tokens there are; negative while in debt, never above `burst`."""
        level, burst = self._level, self.burst
        if now <= self._as_of or level >= burst:
            return level
        level += (now - self._as_of) * self.rate
        return level if level < burst else burst

    def told(self, now: float) -> tuple[int, int, float]:
        """Size, whole tokens left and seconds until full, as clients are told."""
        level, burst, rate = self.level(now), self.burst, self.rate
        reset = (burst - level) / rate if rate else 0.0
        return self.size, int(level) if level > 0 else 0, reset

    def reserve(self, n: float, now: float) -> bool:
        """Take `n` tokens if they are there; else take nothing."""
        level, burst, elapsed = self._level, self.burst, now - self._as_of
        if elapsed > 0 and level < burst:  # as level() has it: a call less
            level += elapsed * self.rate
            if level > burst:
                level = burst
        if level < n - _ROUNDING * (n + burst):
            return False
        self._level = level - n
        if elapsed > 0:
            self._as_of = now
        return True

    def settle(self, reserved: float, used: float, now: float) -> None:
        """Correct a reservation to what was used; may leave the bucket in debt."""
        level = self.level(now) + reserved - used
        self._level = level if level < self.burst else self.burst
        if now > self._as_of:
            self._as_of = now

    def refund(self, n: float, now: float) -> None:
        """Give a reservation back unused."""
        self.settle(n, 0.0, now)

    def resize(self, rate: float, burst: float, now: float) -> None:
        """Change rate and size: the part (0..1) that is filled stays; so does a debt, in tokens."""
        level = self.level(now)
        if level > 0:
            level *= burst / self.burst
        self.rate = rate
        self.burst = burst
        self.size = floor(burst)
        self._level = min(level, burst)
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
