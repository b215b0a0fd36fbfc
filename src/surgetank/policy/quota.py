"""A tenant's quotas: requests and tokens per minute (prompt, output, both), all or nothing.

Rule: every reservation ends in exactly one settlement; work that was refused costs nothing. Who was
refused is told when the bucket will have refilled for it, and finds it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.promise import Key, Promises, key_of
from surgetank.policy.request import Outcome, Request
from surgetank.policy.tenant import Tenant


class Amounts(NamedTuple):
    """Tokens of one request, as expected or as used."""

    prompt: float
    output: float


class Stock(NamedTuple):
    """One limit: what it counts of a request, its bucket, and what was promised of it."""

    of: Callable[[Amounts], float]
    outcome: Outcome
    bucket: TokenBucket
    promises: Promises


class Quota:
    """The buckets of one tenant, each with its limit; one that is None has no bucket."""

    __slots__ = ("_all", "_tokens", "requests")

    def __init__(self, tenant: Tenant) -> None:
        limits = (
            (_one, Outcome.QUOTA_REQUESTS, tenant.requests_per_minute),
            (_both, Outcome.QUOTA_TOKENS, tenant.tokens_per_minute),
            (_prompt, Outcome.QUOTA_TOKENS, tenant.input_tokens_per_minute),
            (_output, Outcome.QUOTA_TOKENS, tenant.output_tokens_per_minute),
        )
        self._take_up(
            Stock(of, outcome, bucket, Promises(1.0))
            for of, outcome, limit in limits
            if (bucket := _bucket(limit, tenant.burst_seconds)) is not None
        )

    def _take_up(self, stocks: Iterable[Stock]) -> None:
        self._all = tuple(stocks)
        by = {stock.of: stock.bucket for stock in self._all}
        self.requests = by.get(_one)
        self._tokens = tuple(bucket for of, bucket in by.items() if of is not _one)

    @property
    def stocks(self) -> tuple[Stock, ...]:
        """All that limit, requests first."""
        return self._all

    def told_tokens(self, now: float) -> tuple[int, int, float] | None:
        """What clients are told of tokens: the limit with the least part left; None without any.

        Any other would show plenty beside a refusal.
        """
        buckets = self._tokens
        if len(buckets) > 1:
            return min(buckets, key=lambda b: b.level(now) / b.burst if b.burst else 0.0).told(now)
        return buckets[0].told(now) if buckets else None

    def reserve(self, amounts: Amounts, now: float, request: Request) -> Outcome | None:
        """Take one request and its tokens; on None all are taken, else nothing is.

        Who was refused before, and comes when told, has what it was promised.
        """
        for number, stock in enumerate(self._all):
            if not _reserve(stock.bucket, stock.promises, stock.of(amounts), now, request):
                for taken in self._all[:number]:
                    taken.bucket.refund(taken.of(amounts), now)
                return stock.outcome
        return None

    def settle(self, reserved: Amounts, used: Amounts, now: float) -> None:
        """The request ran: its tokens are corrected to what it used."""
        for stock in self._all:
            if stock.of is not _one:
                stock.bucket.settle(stock.of(reserved), stock.of(used), now)

    def refund(self, reserved: Amounts, now: float) -> None:
        """The request did not run: it and its tokens are given back."""
        for stock in self._all:
            stock.bucket.refund(stock.of(reserved), now)

    def promise(
        self, amounts: Amounts, now: float, most: float, key: Key, *, again: bool
    ) -> float | None:
        """Seconds until all can be had, promised up to `most`; None when they never can.

        `again`: it is a retry; what came before its time has its promise already.
        """
        if again:
            known = [wait for stock in self._all if (wait := stock.promises.of(key, now))]
            if known:
                return max(known)
        wait = 0.0
        for of, _, bucket, promises in self._all:
            amount = of(amounts)
            if amount > bucket.burst:
                return None
            wait = max(wait, promises.wait(bucket.level(now), bucket.rate, amount, now))
        if wait == inf:
            return None
        if wait <= most:
            for stock in self._all:
                stock.promises.keep(wait, stock.of(amounts), now, key)
        return wait


def _one(_amounts: Amounts) -> float:
    return 1.0


def _both(amounts: Amounts) -> float:
    return amounts[0] + amounts[1]


def _prompt(amounts: Amounts) -> float:
    return amounts[0]


def _output(amounts: Amounts) -> float:
    return amounts[1]


def is_limited(tenant: Tenant) -> bool:
    """Whether a tenant has any quota."""
    limits = (
        tenant.requests_per_minute,
        tenant.tokens_per_minute,
        tenant.input_tokens_per_minute,
        tenant.output_tokens_per_minute,
    )
    return any(limit is not None for limit in limits)


def _reserve(
    bucket: TokenBucket,
    promises: Promises,
    amount: float,
    now: float,
    request: Request,
) -> bool:
    """Take it, unless that would break a promise to somebody else."""
    if not len(promises):
        return bucket.reserve(amount, now)
    promises.expire(now)
    if promises.take(key_of(request), now):
        return bucket.reserve(amount, now)
    if not promises.leaves(bucket.level(now) - amount, bucket.rate, now):
        return False
    return bucket.reserve(amount, now)


def retuned(
    quota: Quota | None, tenant: Tenant, reserved: Iterable[Amounts], now: float
) -> Quota | None:
    """The quota of a tenant whose limits may have changed; None when it has none (any more).

    A bucket that goes on keeps the part that is filled, and what was promised of it. A new one
    starts full, less what the requests that are here have `reserved`: they will be settled with it.
    """
    if not is_limited(tenant):
        return None
    made = Quota(tenant)
    kept = {stock.of: stock for stock in quota.stocks} if quota is not None else {}
    estimates = list(reserved)
    stocks = []
    for stock in made.stocks:
        old, new = kept.get(stock.of), stock.bucket
        if old is None:
            new.settle(0, sum(stock.of(amounts) for amounts in estimates), now)
            stocks.append(stock)
            continue
        if (old.bucket.rate, old.bucket.burst) != (new.rate, new.burst):
            old.bucket.resize(new.rate, new.burst, now)
        stocks.append(old)
    made._take_up(stocks)  # noqa: SLF001 - it is one of this module's own
    return made


def _bucket(per_minute: float | None, burst_seconds: float) -> TokenBucket | None:
    """Room for at least one, or a low limit with a short burst would admit nothing ever."""
    if per_minute is None:
        return None
    rate = per_minute / 60
    return TokenBucket(rate, max(rate * burst_seconds, 1.0) if rate > 0 else 0.0)
