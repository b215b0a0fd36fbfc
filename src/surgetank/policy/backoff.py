"""How long to wait before trying again, and how often trying again is allowed at all.

Rule: delays grow, are capped and are spread by a draw handed in; retries are a share of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from surgetank.policy.window import RateWindow


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays: 1, 2, 4, 8 ... seconds up to `cap`, half of each drawn at random.

    "Equal jitter": the fixed half keeps a pause, the drawn half keeps many from retrying at once.
    """

    first: float = 1.0  # seconds
    factor: float = 2.0
    cap: float = 300.0  # seconds

    def delay(self, failures: int, draw: float) -> float:
        """Seconds to wait after so many failures in a row (1 is the first); draw in [0, 1)."""
        if failures < 1:
            return 0.0
        # 2 to the 64th is beyond any cap, and a larger exponent would overflow a float.
        whole = min(self.cap, self.first * self.factor ** min(failures - 1, 64))
        return whole * (0.5 + 0.5 * draw)


class RetryBudget:
    """Retries may be `ratio` of the requests of the last `window` seconds, and a few more.

    A fixed number of attempts per request multiplies load exactly when there is too much of it; a
    share of the traffic cannot (10 % is the figure of Finagle's and Envoy's budgets).
    """

    def __init__(self, ratio: float = 0.1, *, window: float = 10.0, reserve: float = 1.0) -> None:
        self._ratio = ratio
        self._window = window
        self._reserve = reserve  # retries per window that need no traffic: one lone request
        self._requests = RateWindow(window)
        self._retries = RateWindow(window)

    def requested(self, now: float) -> None:
        """Note a first attempt."""
        self._requests.add(1.0, now)

    def retried(self, now: float) -> None:
        """Note a retry."""
        self._retries.add(1.0, now)

    def allows(self, now: float) -> bool:
        """Whether one more retry fits."""
        allowed = self._reserve + self._ratio * self._requests.total(self._window, now)
        return self._retries.total(self._window, now) + 1.0 <= allowed + 1e-9
