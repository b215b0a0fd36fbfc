"""What clients do when they are refused, cut off or kept waiting.

    none   takes every answer as it is, and waits for ever
    sdk    as openai-python: two retries of what 429, 5xx or a time-out ended; obeys Retry-After,
           otherwise 0.5 s doubling to 8 s, jittered; an answer that has begun is not asked again
    naive  tries again after a fixed pause, whatever the server says, five times

Rule: a retry is a new request to the gateway, so that retries load it as they do in life.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from surgetank.policy.backoff import Backoff

_LONGEST_RETRY_AFTER: Final = 120.0  # openai-python does not retry at all beyond it


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """How one kind of client behaves. Times in seconds; None is never.

    `patience` is of the person behind it: without a first token by then they leave, and do not come
    back. `timeout` is of the program: without the whole answer by then it hangs up, and retries.
    """

    retries: int = 0
    obeys_retry_after: bool = True
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, cap=8.0))
    pause: float | None = None  # a fixed pause instead of the backoff
    timeout: float | None = None
    patience: float | None = None

    def delay(
        self, retries: int, retry_after: float | None, draw: float, *, should_retry: bool = True
    ) -> float | None:
        """Seconds until it tries again after so many retries; None: it gives up.

        `retry_after` and `should_retry` are the server's; `draw` in [0, 1) is for jitter.
        """
        if retries >= self.retries:
            return None
        if self.obeys_retry_after:
            if not should_retry or (retry_after or 0.0) > _LONGEST_RETRY_AFTER:
                return None
            if retry_after:
                return retry_after
        if self.pause is not None:
            return self.pause
        return self.backoff.delay(retries + 1, draw)


KINDS: Final = {
    "none": ClientSpec(),
    "sdk": ClientSpec(retries=2, timeout=600.0),  # openai-python's defaults
    "naive": ClientSpec(retries=5, obeys_retry_after=False, pause=0.1, timeout=30.0),
}
"""By the name that a user types."""
