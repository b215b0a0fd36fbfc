"""Who sends requests, and what each may use: tenants, in tiers.

Rule: None means "no limit" for a cap and "as the flow's default" for a time. A request counts on
each level it belongs to: its tenant, its key, and its model on either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of service. Times left out are the flow's; a client's hint may only shorten them."""

    name: str = "standard"  # what tenants refer to
    priority: int = 1  # lower is served first, down to the others' min_share
    min_share: float = 0.0  # part (0..1) of dispatched work it gets even while higher ones wait
    ttft_objective: float | None = None  # time to the first token it is promised
    queue_timeout: float | None = None  # longest wait; then 429
    request_timeout: float | None = None  # total, from arrival to the last byte
    max_output_tokens: int | None = None  # of one answer, written where a client gives no bound
    when_above: Literal["cap", "refuse"] = "cap"  # what asks for more gets that many, or a 400
    predicted_wait: bool = True  # refuse at once what would wait too long (see theta)
    theta: float = 1.0  # too long is min(queue_timeout, theta x ttft_objective)
    kv_fill: float = 1.0  # part (0..1) of a replica's KV cache it may fill
    # What it is to the degradation ladder. Unset: the least priority is the core, what comes after
    # `standard` is batch, the rest is standard.
    degrades: Literal["core", "standard", "batch"] | None = None


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What may be asked of one model."""

    name: str  # of the model, as clients say it
    requests_per_minute: float | None = None  # refill of its request bucket
    tokens_per_minute: float | None = None  # refill of its token bucket, prompt and output
    input_tokens_per_minute: float | None = None  # of a bucket of prompt tokens alone
    output_tokens_per_minute: float | None = None  # of a bucket of output tokens alone
    burst_seconds: float = 60.0  # size of all its buckets, in time to refill them
    max_concurrent: int | None = None  # here at once, waiting ones too; one more is refused


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What may be asked with one API key, or with all that share its name."""

    name: str  # of the key, given by `surgetank keys new --name`; otherwise its id
    requests_per_minute: float | None = None  # refill of its request bucket
    tokens_per_minute: float | None = None  # refill of its token bucket, prompt and output
    input_tokens_per_minute: float | None = None  # of a bucket of prompt tokens alone
    output_tokens_per_minute: float | None = None  # of a bucket of output tokens alone
    burst_seconds: float = 60.0  # size of all its buckets, in time to refill them
    max_concurrent: int | None = None  # here at once, waiting ones too; one more is refused
    models: tuple[ModelLimits, ...] = ()  # of these models with this key


@dataclass(frozen=True, slots=True)
class Tenant:
    """One customer, team or application."""

    name: str  # what API keys and records refer to
    tier: str = "standard"  # its class of service
    admission: Literal["on", "shadow"] | None = None  # shadow: count, and let it through; flow's
    weight: float = 1.0  # share among the tenants of its tier, relative to theirs
    requests_per_minute: float | None = None  # refill of its request bucket
    tokens_per_minute: float | None = None  # refill of its token bucket, prompt and output
    input_tokens_per_minute: float | None = None  # of a bucket of prompt tokens alone
    output_tokens_per_minute: float | None = None  # of a bucket of output tokens alone
    burst_seconds: float = 60.0  # size of all its buckets, in time to refill them
    # Output taken ahead: the most that may come, or what came lately (more at once, and debts).
    reserve: Literal["most", "expected"] = "most"
    max_concurrent: int | None = None  # here at once, waiting ones too; one more is refused
    max_running: int | None = None  # requests running at once; the rest waits
    max_queued: int | None = None  # requests waiting at once
    max_queued_bytes: int | None = None  # bodies waiting at once
    max_sessions: int | None = None  # sessions under way at once; a request may name its session
    session_tokens_per_minute: float | None = None  # most that one session may burn on average
    keys: tuple[KeyLimits, ...] = ()  # limits of some of its keys, within its own
    models: tuple[ModelLimits, ...] = ()  # limits of some models, all its keys together


Limited = Tenant | KeyLimits | ModelLimits
"""What a level's limits stand in."""
