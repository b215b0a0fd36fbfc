"""A replica that answers its health check and fails its requests: out for a while, then on trial.

Rule: `_FAILURES` failed requests in a row put it out; each return that fails doubles the time, one
request that ends well clears it. Overload (429, 503) is no failure: who sheds is well. (Envoy's
consecutive-failure outlier detection, with a half-open trial.)
"""

from __future__ import annotations

from math import inf
from typing import Final

_FAILURES: Final = 5  # in a row: one poisoned request fails on its own, and twice with its replay
_FIRST: Final = 1.0  # seconds out the first time
_LONGEST: Final = 60.0


class Outlier:
    """What one replica's requests say of it. Times in seconds of any one clock."""

    __slots__ = ("_out_until", "_rounds", "failures", "on_trial")

    def __init__(self) -> None:
        self.failures = 0  # since a request last ended well
        self.on_trial = False  # back, for one request at a time
        self._rounds = 0
        self._out_until = -inf

    def failed(self) -> bool:
        """A request failed on it: whether it should be put out, which `put_out` then does."""
        self.failures += 1
        return self.on_trial or self.failures >= _FAILURES

    def put_out(self, now: float) -> float:
        """It gets no requests for the seconds returned."""
        seconds = min(_LONGEST, _FIRST * 2.0 ** min(self._rounds, 16))
        self._rounds += 1
        self._out_until = now + seconds
        self.on_trial = True
        return seconds

    def is_out(self, now: float) -> bool:
        return now < self._out_until

    def cleared(self) -> None:
        """A request ended well on it."""
        self.failures = self._rounds = 0
        self.on_trial = False
