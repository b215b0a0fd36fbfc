"""The engine's time beside the real one: straight lines, one after the other.

Rule: engine time never jumps and never runs backwards. A slower stretch slows every step in it, the
one that is under way for the rest of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class EngineClock:
    """Runs `speed` engine seconds in a second of `clock`."""

    def __init__(self, speed: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock  # not the loop's: uvloop's stands still within a round
        self._speed = speed
        self._rate = speed
        self._engine = 0.0
        self._real = clock()

    def now(self) -> float:
        """Return engine time, seconds."""
        return self._engine + (self._clock() - self._real) * self._rate

    def until(self, engine: float) -> float:
        """Return the real seconds from now to an engine time, at the rate of now."""
        return self._real + (engine - self._engine) / self._rate - self._clock()

    def slow(self, factor: float) -> None:
        """From now on, let everything take `factor` times as long as at its own speed."""
        real = self._clock()
        self._engine += (real - self._real) * self._rate
        self._real = real
        self._rate = self._speed / factor
