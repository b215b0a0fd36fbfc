"""A request on its way through admission, and the tenant it counts for.

Rule: plain state; FlowControl alone changes it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from surgetank.policy.fairness import Lane, Waiting
from surgetank.policy.flowspec import FlowSpec
from surgetank.policy.placement import Demand, Placed
from surgetank.policy.quota import Quota
from surgetank.policy.request import Kind, Request
from surgetank.policy.tenant import Tenant, Tier

if TYPE_CHECKING:
    from surgetank.policy.model import Model


class Account:
    """One tenant: its caps, its quota and what it has in the system."""

    __slots__ = (
        "abandoned",
        "completed",
        "failed",
        "lanes",
        "most",
        "name",
        "objective",
        "offered",
        "patience",
        "queued",
        "queued_bytes",
        "quota",
        "refused",
        "running",
        "tenant",
        "tier",
        "total",
    )

    def __init__(self, tenant: Tenant, tier: Tier, spec: FlowSpec) -> None:
        self.tenant = tenant
        self.name = tenant.name
        self.tier = tier
        self.most: float = inf if tenant.max_running is None else tenant.max_running
        self.objective = _own(tier.ttft_objective, spec.ttft_objective)
        self.patience = _own(tier.queue_timeout, spec.queue_timeout)
        self.total = _own(tier.request_timeout, spec.request_timeout)
        limited = tenant.requests_per_minute is not None or tenant.tokens_per_minute is not None
        self.quota = Quota(tenant) if limited else None
        self.lanes: dict[str, Lane[Job]] = {}
        self.running = 0
        self.queued = 0
        self.queued_bytes = 0
        self.offered = 0
        self.completed = 0
        self.refused = 0
        self.abandoned = 0
        self.failed = 0

    @property
    def full(self) -> bool:
        """It runs as many requests as it may."""
        return self.running >= self.most

    def count(self, kind: Kind) -> None:
        """One of its requests ended."""
        if kind is Kind.COMPLETED:
            self.completed += 1
        elif kind is Kind.REFUSED:
            self.refused += 1
        elif kind is Kind.ABANDONED:
            self.abandoned += 1
        else:
            self.failed += 1


def _own(tier: float | None, flow: float) -> float:
    """A tier's own time, or the flow's."""
    return flow if tier is None else tier


class Job:
    """One request from its arrival to its end. Times are monotonic seconds, costs as the flow's."""

    __slots__ = (
        "account",
        "arrived",
        "attempt",
        "busy",
        "cost",
        "deadline",
        "demand",
        "dispatched",
        "ends_at",
        "estimate",
        "failed",
        "failed_on",
        "lane",
        "legs",
        "model",
        "objective",
        "patience",
        "position",
        "predicted",
        "prompt",
        "queued_at",
        "request",
        "started",
        "waited",
        "waiting",
    )

    def __init__(
        self, request: Request, account: Account, model: Model, demand: Demand, now: float
    ) -> None:
        self.request = request
        self.account = account
        self.model = model
        self.demand = demand
        self.arrived = now
        self.lane: Lane[Job]
        self.cost = 0.0
        self.prompt = demand.expected  # tokens counted as prefill backlog until the first token
        self.estimate = demand.expected + demand.output * demand.choices  # reserved of the quota
        self.objective = account.objective
        self.patience = account.patience  # seconds it may still wait in the queue
        self.ends_at = now + account.total
        self.deadline = inf  # the one entry in the flow's deadlines that counts
        self.position = 0
        self.predicted: float | None = None
        self.waiting: Waiting[Job] | None = None
        self.queued_at = now
        self.waited = 0.0
        self.legs: tuple[Placed, ...] = ()  # not empty: it runs
        self.dispatched = 0.0
        self.started = False  # its first token was seen
        self.attempt = 0
        self.busy = 0
        self.failed = 0
        self.failed_on: tuple[str, ...] = ()
