"""What FlowControl is set to, and what it answers when asked.

Rule: settings and answers are frozen values; defaults live here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from surgetank.policy.ladder import LadderSpec
from surgetank.policy.replica import Role
from surgetank.policy.tenant import Tenant, Tier

_LADDER: Final = LadderSpec()


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """Settings of admission and queueing. Times in seconds, sizes in tokens, requests or bytes."""

    # shadow: what would be refused or wait is counted and recorded, and everything is let through.
    admission: Literal["on", "shadow"] = "on"
    max_in_flight: int | None = None  # requests per replica at once; unset: as many as it bears
    prefill_share: float = 0.25  # part of ttft_objective that a prompt may wait inside an engine
    when_full: Literal["wait", "refuse"] = "wait"  # refuse: no queue at all, 429 when all are full
    max_queued: int = 200  # requests waiting in all; one more is refused with 429
    max_queued_bytes: int = 256 << 20  # bodies waiting in all: 200 of 10 MB would be 2 GB
    max_queued_bytes_per_tenant: int = 64 << 20  # so that one cannot fill the queue's memory
    max_running: int | None = None  # requests running in all, over every replica
    batching_window: float = 0.25  # longest wait for company, where engines run whole batches
    queue_timeout: float = 30.0  # longest wait; below load balancers' usual idle timeout, 60 s
    request_timeout: float = 60.0  # total, from arrival to the last byte
    ttft_objective: float = 2.0  # promised time to the first token; orders a tenant's queue
    default_output_tokens: int = 256  # expected output where nothing is known yet
    max_default_output_tokens: int = 1024  # output bound injected where an engine cannot preempt
    prefill_weight: float = 1.0  # cost of an uncached prompt token
    decode_weight: float = 4.0  # cost of an output token, relative to a prompt token
    replays: int = 1  # further attempts when an upstream dies before the first byte
    retry_ratio: float = 0.1  # replays of all requests, at most this part of them
    release_grace: float = (
        0.25  # seconds a cut request's room stays taken on an engine that cannot preempt
    )
    slack_bucket: float = 0.5  # seconds: waiting requests this close in slack are ordered by size
    session_timeout: float = 300.0  # without a request, after which a session has ended
    ageing: float = 500.0  # cost per second: how much size one second of waiting outweighs

    @property
    def prefill_budget(self) -> float:
        """Seconds a prompt may wait behind others inside an engine."""
        return self.prefill_share * self.ttft_objective


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """What can change while requests run. `models`: names that are known without replicas."""

    spec: FlowSpec = FlowSpec()
    tenants: tuple[Tenant, ...] = ()
    tiers: tuple[Tier, ...] = ()
    models: tuple[str, ...] = ()
    ladder: LadderSpec = _LADDER


class Budget(NamedTuple):
    """What is left of limits, for the headers that tell it; None where there is none."""

    limit_requests: int | None
    remaining_requests: int | None
    reset_requests: float | None  # seconds until full
    limit_tokens: int | None
    remaining_tokens: int | None
    reset_tokens: float | None
    limit_input_tokens: int | None = None
    remaining_input_tokens: int | None = None
    reset_input_tokens: float | None = None
    limit_output_tokens: int | None = None
    remaining_output_tokens: int | None = None
    reset_output_tokens: float | None = None
    limit_concurrent: int | None = None
    remaining_concurrent: int | None = None


class LevelBudget(NamedTuple):
    """What one level has left. `key` and `model`: "" where it is of all of them."""

    key: str
    model: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class Counts:
    """Conservation: offered = completed + refused + abandoned + failed + queued + running."""

    offered: int = 0
    completed: int = 0
    refused: int = 0
    abandoned: int = 0
    failed: int = 0
    queued: int = 0
    running: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a tenant stands now. Tokens as expected; `oldest`: seconds the first in line waits."""

    tenant: Tenant
    tier: Tier
    waiting: int
    waiting_bytes: int
    waiting_tokens: int  # prompt and output
    oldest: float  # 0 with nothing waiting
    running: int
    running_tokens: int


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica as a metrics page shows it. `limit`: requests at once it is believed to bear."""

    id: str
    model: str
    role: Role
    in_flight: int
    kv_reserved: int
    kv_tokens: int | None
    prefill_backlog: int
    limit: int
    paused: bool
    joined: bool
