"""Limits of the gateway that a plan sets: requests on a replica, in the queue, of a tenant.

    in flight  = 1.5 x stay / work
    stay       = 2 x prefill + output x TPOT / 2,  work = prefill + decode (seconds, means)
    queued     = requests/s of a replica x replicas x queue timeout

Rule: they are part of what is simulated, so that the attainment printed is theirs too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Final

import numpy as np

from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import Tenant
from surgetank.simulation.scenario import capacity
from surgetank.simulation.workload import Workload
from surgetank.studies.planning.wish import Wish

_ROOM: Final = 1.5  # of the requests that keep a replica busy: some prefill while others decode
_LEAST_IN_FLIGHT: Final = 4
_QUEUE_TIMEOUT: Final = 30.0  # s, FlowSpec's: below load balancers' usual idle timeout
_LEAST_QUEUE: Final = 50
_BEYOND_BUSIEST: Final = 1.5  # a quota stops a tenant that runs wild, not one that grows a little
_MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Replica:
    """What one replica does of this traffic. Tokens/s of either kind alone; requests/s of both."""

    prompt_tokens: float
    output_tokens: float
    requests: float


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """A tenant's quotas, and the busiest minute that they come from."""

    name: str
    requests_per_minute: int
    tokens_per_minute: int
    busiest_requests: int
    busiest_tokens: int


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Requests, seconds, tokens/minute."""

    max_in_flight: int
    max_queued: int
    queue_timeout: float
    utilisation: float  # planned load of a replica, at which scaling asks for the next
    tenants: tuple[TenantLimit, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able: tenants by name."""
        plain = asdict(self)
        plain["tenants"] = {row.pop("name"): row for row in plain["tenants"]}
        return plain

    def flow(self, ttft: float) -> FlowSpec:
        """The gateway's settings with these."""
        return FlowSpec(
            max_in_flight=self.max_in_flight,
            max_queued=self.max_queued,
            queue_timeout=self.queue_timeout,
            request_timeout=_request_timeout(self.queue_timeout),
            ttft_objective=ttft,
        )

    def limited(self) -> tuple[Tenant, ...]:
        """The tenants with their quotas."""
        return tuple(
            Tenant(
                limit.name,
                requests_per_minute=float(limit.requests_per_minute),
                tokens_per_minute=float(limit.tokens_per_minute),
            )
            for limit in self.tenants
        )


def _request_timeout(queue_timeout: float) -> float:
    return max(600.0, 2 * queue_timeout)  # long answers are streams: a minute would cut them off


def replica_of(load: Workload, wish: Wish) -> Replica:
    """What one replica does of these requests within the TPOT."""
    profile = wish.profile
    context = float(load.prompt.mean() + load.output.mean() / 2)
    prompt, output = capacity(profile, tpot=wish.tpot, context=context, most=profile.max_num_seqs)
    fresh = load.prompt.astype(float)
    if load.cached is not None:
        fresh = np.maximum(1.0, fresh - np.maximum(0, load.cached))
    each = float(fresh.mean()) / prompt + float(load.output.mean()) / output
    return Replica(prompt, output, 1 / each)


def thresholds(
    load: Workload, wish: Wish, one: Replica, replicas: int, rho: float, *, growth: float = 1.0
) -> Thresholds:
    """Set the limits for a fleet of at most so many replicas, and for traffic that grows."""
    prefill = 1 / one.requests - float(load.output.mean()) / one.output_tokens
    stay = 2 * prefill + float(load.output.mean()) * wish.tpot / 2
    fits = max(
        1, int(wish.profile.kv_tokens // max(1.0, float((load.prompt + load.output).mean())))
    )
    in_flight = max(_LEAST_IN_FLIGHT, ceil(_ROOM * stay * one.requests))
    in_flight = min(in_flight, wish.profile.max_num_seqs, max(_LEAST_IN_FLIGHT, fits))
    queued = max(_LEAST_QUEUE, ceil(one.requests * replicas * _QUEUE_TIMEOUT))
    return Thresholds(in_flight, queued, _QUEUE_TIMEOUT, rho, tenant_limits(load, wish, growth))


def tenant_limits(load: Workload, wish: Wish, growth: float) -> tuple[TenantLimit, ...]:
    """Quotas of the largest tenants; of none where the log names fewer than two."""
    if len(load.tenants) < 2:
        return ()
    tokens = load.prompt + load.output
    totals = np.bincount(load.tenant, weights=tokens, minlength=len(load.tenants))
    largest = np.argsort(-totals, kind="stable")[: wish.tenants_limited]
    return tuple(
        _limit(load, code, growth)
        for code in largest.tolist()
        if totals[code] > 0 and load.tenants[code]
    )


def _limit(load: Workload, code: int, growth: float) -> TenantLimit:
    rows = load.tenant == code
    minute = ((load.arrived[rows] - load.arrived[0]) // _MINUTE).astype(np.int64)
    requests = int(np.bincount(minute).max())
    weights = (load.prompt + load.output)[rows].astype(float)
    tokens = int(np.bincount(minute, weights=weights).max())
    return TenantLimit(
        load.tenants[code],
        _rounded(_BEYOND_BUSIEST * growth * requests),
        _rounded(_BEYOND_BUSIEST * growth * tokens),
        requests,
        tokens,
    )


def _rounded(value: float) -> int:
    """Up to two figures, as people write limits."""
    digits = int(10 ** max(0, len(str(ceil(value))) - 2))
    return max(1, ceil(value / digits) * digits)
