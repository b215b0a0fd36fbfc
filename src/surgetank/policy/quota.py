"""One level's limits: requests and tokens per minute (prompt, output, both), and requests at once.

Rule: what is asked of a level changes nothing; what was taken of it is given back or settled once.
Who was refused is told when there will be room for it, and finds it so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from surgetank.policy.bucket import TokenBucket
from surgetank.policy.promise import Promises, key_of
from surgetank.policy.request import Outcome, Request
from surgetank.policy.tenant import KeyLimits, Limited, ModelLimits, Tenant


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
    words: str  # whose limit it is, and on what

    def has(self, amounts: Amounts, request: Request, now: float) -> bool:
        """Whether a request may have so much, with every promise to somebody else kept.

        Who was refused before, and comes when told, has what it was promised.
        """
        amount, bucket, promises = self.of(amounts), self.bucket, self.promises
        if not bucket.holds(amount, now):
            return False
        if not len(promises):
            return True
        promises.expire(now)
        if promises.due(key_of(request), now):
            return True
        return promises.leaves(bucket.level(now) - amount, bucket.rate, now)

    def take(self, amounts: Amounts, request: Request, now: float) -> None:
        """Take what it has."""
        if len(self.promises):
            self.promises.take(key_of(request), now)
        self.bucket.reserve(self.of(amounts), now, whose=request.id)


class Cap:
    """Requests of a level at once. `places`: what was promised of them."""

    __slots__ = ("most", "places", "used", "words")

    def __init__(self, most: int, words: str) -> None:
        self.most = most
        self.words = words
        self.used = 0
        self.places = Promises()

    def has(self, request: Request, service: float, now: float) -> bool:
        """Whether one more may come. `service`: seconds a request is here."""
        if self.used >= self.most:
            return False
        places = self.places
        if not len(places):
            return True
        places.expire(now)
        if places.due(key_of(request), now):
            return True
        return places.leaves(self.most - self.used - 1.0, self.pace(service), now)

    def take(self, request: Request, now: float) -> None:
        if len(self.places):
            self.places.take(key_of(request), now)
        self.used += 1

    def pace(self, service: float) -> float:
        """Requests that leave in a second."""
        return max(1, self.used) / service


class Level:
    """What one level has left. `key` and `model`: "" where it is of all of them."""

    __slots__ = ("cap", "key", "model", "stocks")

    def __init__(self, limits: Limited, key: str, model: str) -> None:
        self.key = key
        self.model = model
        whose = f"key {key}" if key else "the tenant"
        of_model = f" of model {model}" if model else ""
        kinds = (
            (_one, Outcome.QUOTA_REQUESTS, limits.requests_per_minute, "requests"),
            (_both, Outcome.QUOTA_TOKENS, limits.tokens_per_minute, "tokens"),
            (_prompt, Outcome.QUOTA_TOKENS, limits.input_tokens_per_minute, "input tokens"),
            (_output, Outcome.QUOTA_TOKENS, limits.output_tokens_per_minute, "output tokens"),
        )
        self.stocks = tuple(
            Stock(of, outcome, bucket, Promises(1.0), f"{whose}: {what} per minute{of_model}")
            for of, outcome, limit, what in kinds
            if (bucket := _bucket(limit, limits.burst_seconds)) is not None
        )
        most = limits.max_concurrent
        self.cap = None if most is None else Cap(most, f"{whose}: requests at once{of_model}")

    def take_over(self, old: Level | None, taken: Mapping[str, Amounts], now: float) -> None:
        """Go on where another left off. `taken`: what is here of this level, by request.

        A bucket that goes on keeps the part that is filled, and what was promised of it. A new one
        starts full, less what the requests that are here have taken: they will be settled with it.
        """
        if self.cap is not None:
            self.cap.used = len(taken)
            if old is not None and old.cap is not None:
                self.cap.places = old.cap.places
        kept = {} if old is None else {stock.of: stock for stock in old.stocks}
        stocks = []
        for stock in self.stocks:
            known, new = kept.get(stock.of), stock.bucket
            if known is None:
                for request_id, amounts in taken.items():
                    new.owe(stock.of(amounts), now, whose=request_id)
                stocks.append(stock)
                continue
            bucket = known.bucket
            if (bucket.rate, bucket.burst) != (new.rate, new.burst):
                bucket.resize(new.rate, new.burst, now)
            stocks.append(known)
        self.stocks = tuple(stocks)


def _one(_amounts: Amounts) -> float:
    return 1.0


def _both(amounts: Amounts) -> float:
    return amounts[0] + amounts[1]


def _prompt(amounts: Amounts) -> float:
    return amounts[0]


def _output(amounts: Amounts) -> float:
    return amounts[1]


KINDS = (_one, _both, _prompt, _output)
"""What can be counted of a request: itself, all its tokens, its prompt, its output."""


def limits_of(tenant: Tenant) -> list[tuple[Limited, str, str]]:
    """The levels of a tenant that have limits, the outermost first, with their key and model."""
    found: list[tuple[Limited, str, str]] = [(tenant, "", "")]
    found += [(model, "", model.name) for model in tenant.models]
    for key in tenant.keys:
        found.append((key, key.name, ""))
        found += [(model, key.name, model.name) for model in key.models]
    return [level for level in found if _is_limited(level[0])]


def _is_limited(limits: Tenant | KeyLimits | ModelLimits) -> bool:
    told = (
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.input_tokens_per_minute,
        limits.output_tokens_per_minute,
        limits.max_concurrent,
    )
    return any(limit is not None for limit in told)


def wait_of(stock: Stock, amount: float, now: float) -> float | None:
    """Seconds until so much can be promised of it; None when it never can."""
    bucket = stock.bucket
    if amount > bucket.burst:
        return None
    wait = stock.promises.wait(bucket.level(now), bucket.rate, amount, now)
    return None if wait == inf else wait


def _bucket(per_minute: float | None, burst_seconds: float) -> TokenBucket | None:
    """Room for at least one, or a low limit with a short burst would admit nothing ever."""
    if per_minute is None:
        return None
    rate = per_minute / 60
    return TokenBucket(rate, max(rate * burst_seconds, 1.0) if rate > 0 else 0.0)
