"""A tenant's quotas: requests and tokens per minute, reserved together or not at all.

Rule: every reservation ends in exactly one settlement; work that was refused costs nothing.
"""

from __future__ import annotations

from math import isinf

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.request import Outcome
from surgetank.policy.tenant import Tenant


class Quota:
    """The two buckets of one tenant; a limit that is None has no bucket."""

    __slots__ = ("requests", "tokens")

    def __init__(self, tenant: Tenant) -> None:
        self.requests = _bucket(tenant.requests_per_minute, tenant.burst_seconds)
        self.tokens = _bucket(tenant.tokens_per_minute, tenant.burst_seconds)

    def reserve(self, tokens: float, now: float) -> Outcome | None:
        """Take one request and `tokens`; on None both are taken, else neither is."""
        requests, bucket = self.requests, self.tokens
        if requests is not None and not requests.reserve(1, now):
            return Outcome.QUOTA_REQUESTS
        if bucket is not None and not bucket.reserve(tokens, now):
            if requests is not None:
                requests.refund(1, now)
            return Outcome.QUOTA_TOKENS
        return None

    def settle(self, reserved: float, used: float, now: float) -> None:
        """The request ran: its tokens are corrected to what it used."""
        if self.tokens is not None:
            self.tokens.settle(reserved, used, now)

    def refund(self, reserved: float, now: float) -> None:
        """The request did not run: it and its tokens are given back."""
        if self.requests is not None:
            self.requests.refund(1, now)
        if self.tokens is not None:
            self.tokens.refund(reserved, now)

    def wait(self, tokens: float, now: float) -> float | None:
        """Seconds until both can be reserved; None when they never can."""
        wait = 0.0
        if self.requests is not None:
            wait = self.requests.wait(1, now)
        if self.tokens is not None:
            wait = max(wait, self.tokens.wait(tokens, now))
        return None if isinf(wait) else wait


def _bucket(per_minute: float | None, burst_seconds: float) -> TokenBucket | None:
    """Room for at least one, or a low limit with a short burst would admit nothing ever."""
    if per_minute is None:
        return None
    rate = per_minute / 60
    return TokenBucket(rate, max(rate * burst_seconds, 1.0) if rate > 0 else 0.0)
