"""The rhythm of a fleet's own need: is there a period, and what did it bring last time.

The autocorrelation of the need finds a period, in coarse steps and a few lags a tick, so that no
tick is long; the finest steps make it exact. What is foretold is what was there one and two periods
before, with some seconds on either side.

Rule: it foretells and decides nothing. Whoever believes it is followed in hindsight beside the same
rule that does not, so a rhythm that is none costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import islice
from math import ceil, floor, inf
from operator import mul

_KEPT = 3600  # fine steps
_COARSE = 5  # fine steps in a coarse one
_A_TICK = 2  # lags
_SHORTEST = 6  # coarse steps: 30 s
_LONGEST = 240  # coarse steps: 20 min
_CYCLES = 2.5  # that must have been seen
_STRONG = 0.35  # autocorrelation of a rhythm
_SLOP = 4.0  # s on either side: onsets are not exact


class Rhythm:
    """Feed it the need of every second, in order."""

    def __init__(self, step: float = 1.0) -> None:
        self._step = step
        self._fine: deque[float] = deque(maxlen=_KEPT)
        self._ends = -inf  # when the last fine step ended
        self._over = 0.0  # of a fine step that is not over
        self._most = 0.0
        self._coarse: deque[float] = deque(maxlen=_KEPT // _COARSE)
        self._part: list[float] = []
        self._scan: list[float] = []  # a copy of the coarse steps, being looked at
        self._found: list[float] = []  # autocorrelation by lag so far
        self._exact: Generator[None, None, float] | None = None  # a period being refined
        self.period: float | None = None  # s

    def add(self, need: float, now: float) -> None:
        """Take the need of the time since the last reading."""
        if self._ends == -inf:
            self._ends = now
            return
        self._most = max(self._most, need)
        steps = floor((now - self._ends) / self._step + 1e-6)
        for _ in range(min(steps, _KEPT)):
            self._fine.append(self._most)
            self._part.append(self._most)
            if len(self._part) == _COARSE:
                self._coarse.append(sum(self._part) / _COARSE)
                self._part.clear()
        if steps:
            self._ends += steps * self._step
            self._most = 0.0
        self._look()

    def foretold(self, span: float) -> float:
        """Give the most that the rhythm brings within `span` seconds from now; 0: no rhythm."""
        if self.period is None:
            return 0.0
        most, size = 0.0, len(self._fine)
        for cycles in (1, 2):
            back = cycles * self.period
            first = size - ceil((back + _SLOP) / self._step)
            last = size - floor((back - span - _SLOP) / self._step)
            if first < 0:
                break
            last = min(last, size)
            if last > first:
                most = max(most, *islice(self._fine, first, last))
        return most

    def _look(self) -> None:
        """Some lags more; a whole scan is judged, its period refined, and the next begins."""
        if self._exact is not None:
            try:
                next(self._exact)
            except StopIteration as found:
                self.period, self._exact = found.value, None
            return
        if not self._scan:
            if len(self._coarse) < _SHORTEST * 3:
                return
            mean = sum(self._coarse) / len(self._coarse)
            self._scan = [value - mean for value in self._coarse]
            self._found = []
        scan = self._scan
        longest = min(_LONGEST, floor(len(scan) / _CYCLES))
        for _ in range(_A_TICK):
            lag = len(self._found)
            if lag > longest:
                self._judge()
                self._scan = []
                return
            total = sum(map(mul, islice(scan, lag, None), scan))
            self._found.append(total / (len(scan) - lag))

    def _judge(self) -> None:
        found = self._found
        if not found or found[0] <= 0:
            self.period = None
            return
        r = [value / found[0] for value in found]
        best = None
        lowest = 1.0
        for lag in range(1, len(r) - 1):
            lowest = min(lowest, r[lag])
            if (
                lag >= _SHORTEST
                and r[lag] >= _STRONG
                and r[lag] >= r[lag - 1]
                and r[lag] >= r[lag + 1]
                and r[lag] - lowest >= _STRONG
            ):
                best = lag
                break
        if best is None:
            self.period = None
        else:
            self._exact = self._refined(best)

    def _refined(self, lag: int) -> Generator[None, None, float]:
        """Refine, a lag a tick, by the finest steps at a multiple of the period: errors shrink."""
        fine = list(self._fine)
        mean = sum(fine) / len(fine)
        fine = [value - mean for value in fine]
        guess, cycles = float(lag * _COARSE), 1
        reach = _COARSE
        while True:
            around = range(round(guess * cycles) - reach, round(guess * cycles) + reach + 1)
            fits: list[tuple[float, int]] = []
            for at in around:
                fits.append((sum(map(mul, islice(fine, at, None), fine)) / (len(fine) - at), at))
                yield
            guess = max(fits)[1] / cycles
            if (cycles * 2 + 1) * guess > len(fine) or cycles >= 4:
                return guess * self._step
            cycles, reach = cycles * 2, 3
