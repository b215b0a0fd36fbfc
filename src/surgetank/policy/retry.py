"""When a client tries again, and after how long: the rules of real clients, and one that is kind.

Rule: a rule is data. The draw in [0, 1) is handed in, and what the server asked for (Retry-After,
x-should-retry) comes as a `Refusal`, read from its headers elsewhere.

- NO_RETRIES: never.
- SDK: as openai-python does by default (its `_base_client.py`, release 3.57): twice, after 0.5, 1 s
  ... at most 8, of which up to a quarter is drawn off; a Retry-After of up to 120 s is taken as it
  stands, and a longer one ends it; x-should-retry is obeyed.
- NAIVE: four times, after 1, 2, 4, 8 s without a draw, whatever the server asked for.
- POLITE: four times, after a draw from 0 to 1, 2, 4, 8 s ("full jitter"), on top of Retry-After.

Full jitter: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015. A server
that tells a thousand clients "5" gets a thousand back at once from SDK; from POLITE spread out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_RETRIED: Final = frozenset({408, 409, 429})  # and everything from 500 on
_MOST_DOUBLINGS: Final = 64  # beyond any cap; more would overflow a float


@dataclass(frozen=True, slots=True)
class Refusal:
    """What came instead of an answer.

    `status`: HTTP's, 0 when none came (no connection, or the time ran out). `retry_after`: seconds
    the server asked for. `should_retry`: its x-should-retry. None: it said nothing.
    """

    status: int
    retry_after: float | None = None
    should_retry: bool | None = None


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Exponential backoff: before retry n (from 0) it waits `first` * 2^n, at most `cap` seconds.

    `most`: retries after the first attempt. `jitter`: the part of the wait that is drawn, 0..1.
    `longest_retry_after`: seconds up to which Retry-After is obeyed, and beyond which the client
    gives up; None: the server is not heard at all, x-should-retry included. `spread`: obeying
    Retry-After, it waits the drawn backoff on top of it.
    """

    name: str
    most: int
    first: float = 1.0
    cap: float = 8.0
    jitter: float = 0.0
    longest_retry_after: float | None = None
    spread: bool = False

    def wait(self, refusal: Refusal, retries: int, draw: float) -> float | None:
        """Seconds until the next attempt after so many retries; None: it gives up."""
        if retries >= self.most:
            return None
        asked = refusal.retry_after
        if self.longest_retry_after is None:
            asked = None
            again = _is_retried(refusal.status)
        else:
            if asked is not None and math.isfinite(asked) and asked > self.longest_retry_after:
                return None
            told = refusal.should_retry
            again = _is_retried(refusal.status) if told is None else told
        if not again:
            return None
        whole = min(self.cap, self.first * 2.0 ** min(retries, _MOST_DOUBLINGS))
        backoff = whole * (1.0 - self.jitter * draw)
        if asked is None or not math.isfinite(asked) or asked <= 0:
            return backoff
        return asked + backoff if self.spread else asked


def _is_retried(status: int) -> bool:
    return status == 0 or status in _RETRIED or status >= 500


NO_RETRIES: Final = RetryRule("none", most=0)
SDK: Final = RetryRule("sdk", most=2, first=0.5, jitter=0.25, longest_retry_after=120.0)
NAIVE: Final = RetryRule("naive", most=4)
POLITE: Final = RetryRule("polite", most=4, jitter=1.0, longest_retry_after=120.0, spread=True)
RULES: Final = MappingProxyType({rule.name: rule for rule in (NO_RETRIES, SDK, NAIVE, POLITE)})
"""The rules by their names, as options take them."""
