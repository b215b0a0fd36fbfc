"""What a run of records comes to, per tenant.

Rule: percentiles are by nearest rank over every request that was sent. One that was refused or
failed never got its first token, so it counts as infinite: shedding cannot look like a cure. A
percentile that falls on an infinite value is None. A client that left after its first token keeps
that token's time; one that left before it counts as infinite too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from surgetank.loadtest.outcome import kind_of
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Kind

_SAW_ITS_TOKEN: Final = frozenset({Kind.COMPLETED, Kind.ABANDONED})


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds by nearest rank; None where the rank falls on a value that never came."""

    p50: float | None
    p95: float | None
    p99: float | None

    def as_json(self) -> dict[str, float | None]:
        return {"p50": self.p50, "p95": self.p95, "p99": self.p99}


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts, TTFT in seconds from when each request was due, and tokens.

    requests = completed + refused + abandoned + failed. `wasted_tokens`: generated (as far as the
    client saw) for requests that did not complete. `retried`: requests of more than one attempt.
    """

    requests: int
    completed: int
    refused: int
    abandoned: int
    failed: int
    ttft: Percentiles
    output_tokens: int
    wasted_tokens: int
    retried: int = 0
    attempts: int = 0

    @property
    def amplification(self) -> float | None:
        """Attempts per request: what the clients' retries make of the load; None without one."""
        return self.attempts / self.requests if self.requests else None

    def as_json(self) -> dict[str, Any]:
        """Give the numbers stable names."""
        return {
            "requests": self.requests,
            "completed": self.completed,
            "refused": self.refused,
            "abandoned": self.abandoned,
            "failed": self.failed,
            "ttft": self.ttft.as_json(),
            "output_tokens": self.output_tokens,
            "wasted_tokens": self.wasted_tokens,
            "retried": self.retried,
            "attempts": self.attempts,
            "amplification": self.amplification,
        }


def nearest_rank(ordered: Sequence[float], quantile: float) -> float:
    """Return the smallest of the values that at least `quantile` (0..1) do not exceed."""
    if not ordered:
        return math.nan
    # 1e-9: 0.95 * 20 is 19.000000000000004 in floating point, and must stay rank 19.
    return ordered[max(0, math.ceil(quantile * len(ordered) - 1e-9) - 1)]


def percentiles(values: Iterable[float]) -> Percentiles:
    """P50, P95 and P99; infinite values count, and no value at all gives None thrice."""
    ordered = sorted(values)

    def at(quantile: float) -> float | None:
        value = nearest_rank(ordered, quantile)
        return value if math.isfinite(value) else None

    return Percentiles(at(0.50), at(0.95), at(0.99))


def summarize(records: Iterable[RequestRecord]) -> Summary:
    """All records as one. Raises ValueError when one has no outcome of the closed set."""
    counts = dict.fromkeys(Kind, 0)
    ttfts: list[float] = []
    tokens = wasted = retried = attempts = 0
    for record in records:
        kind = kind_of(record.outcome)
        counts[kind] += 1
        ttft = record.ttft if kind in _SAW_ITS_TOKEN else None
        ttfts.append(math.inf if ttft is None else ttft)
        made = max(1, record.attempts)  # older records have none
        attempts += made
        retried += made > 1
        generated = record.output_tokens or 0
        tokens += generated
        wasted += generated if kind is not Kind.COMPLETED else 0
    return Summary(
        requests=len(ttfts),
        completed=counts[Kind.COMPLETED],
        refused=counts[Kind.REFUSED],
        abandoned=counts[Kind.ABANDONED],
        failed=counts[Kind.FAILED],
        ttft=percentiles(ttfts),
        output_tokens=tokens,
        wasted_tokens=wasted,
        retried=retried,
        attempts=attempts,
    )


def by_tenant(records: Iterable[RequestRecord]) -> dict[str, Summary]:
    """One summary for each tenant, in the order of their names."""
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        groups[record.tenant].append(record)
    return {tenant: summarize(groups[tenant]) for tenant in sorted(groups)}
