"""Who sends requests, and what each may use: tenants, in tiers.

Rule: None means "no limit" for a cap and "as the flow's default" for a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of service. Times left out are the flow's; a client's hint may only shorten them."""

    name: str = "standard"  # what tenants refer to
    priority: int = 1  # lower is served first, down to the others' min_share
    min_share: float = 0.0  # part (0..1) of dispatched work it gets even while higher ones wait
    ttft_objective: float | None = None  # time to the first token it is promised
    queue_timeout: float | None = None  # longest wait; then 429
    request_timeout: float | None = None  # total, from arrival to the last byte
    max_tokens: int | None = None  # cap on a request's output
    predicted_wait: bool = False  # refuse at once what would wait too long (see theta)
    theta: float = 1.0  # too long is min(queue_timeout, theta x ttft_objective)
    kv_fill: float = 1.0  # part (0..1) of a replica's KV cache it may fill


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer, team or application."""

    name: str  # what API keys and records refer to
    tier: str = "standard"  # its class of service
    weight: float = 1.0  # share among the tenants of its tier, relative to theirs
    requests_per_minute: float | None = None  # refill of its request bucket
    tokens_per_minute: float | None = None  # refill of its token bucket, prompt and output
    input_tokens_per_minute: float | None = None  # of a bucket of prompt tokens alone
    output_tokens_per_minute: float | None = None  # of a bucket of output tokens alone
    burst_seconds: float = 60.0  # size of all its buckets, in time to refill them
    max_running: int | None = None  # requests running at once
    max_queued: int | None = None  # requests waiting at once
    max_queued_bytes: int | None = None  # bodies waiting at once
