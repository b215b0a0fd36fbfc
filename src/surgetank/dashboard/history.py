"""One second of the page: rates from a source's cumulative counters, and its present state.

Rule: what cannot be known is None. After a restart of the source the rates of that second are
unknown, since nobody saw what the old counters would have become.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from surgetank.dashboard.observation import Observation
from surgetank.dashboard.ttft import FirstToken, FirstTokens, Spread, thin
from surgetank.policy.request import ENDINGS, Kind, Outcome

MOST_TENANTS: Final = 24  # named in one second; the page shows six, which it chooses over minutes
_QUIET: Final = {Outcome.COMPLETED.value, Outcome.ABANDONED.value}
_REFUSED: Final = {outcome.value for outcome, end in ENDINGS.items() if end.kind is Kind.REFUSED}

Rates = list[tuple[str, float]]


class Kv(msgspec.Struct, frozen=True):
    """KV tokens of all pools: held by running requests, wanted by waiting ones, and there at all.

    None: no pool says it, or (capacity) some pool does not.
    """

    held: float | None
    waiting: float | None
    capacity: float | None


class State(msgspec.Struct, frozen=True):
    """What is so now, over all pools. `queue_age`: seconds of the oldest waiting request."""

    ready: bool
    draining: bool
    queue: float
    queue_age: float
    running: float
    replicas: dict[str, int]
    silent: int  # of those serving, whose load is unknown
    kv: Kv
    ttft: Spread
    tenants_ttft: list[tuple[str, Spread]]


class Flows(msgspec.Struct, frozen=True):
    """What happened per second since the sample before. `others`: tenants beyond MOST_TENANTS.

    `reasons`: refusals and failures by outcome; `refused` and `failed` their sums.
    """

    arrivals: float
    tenants: Rates
    others: float
    refused: float
    failed: float
    reasons: Rates


class Sample(msgspec.Struct, frozen=True):
    """One second. `t`: Unix seconds by this process; `state` None: the source was not reached.

    `flows` None: there is nothing to compare with. `points`: some of the new first tokens.
    """

    t: float
    state: State | None = None
    flows: Flows | None = None
    points: list[FirstToken] = []


class History:
    """Turns observations, one after the other, into samples."""

    def __init__(self) -> None:
        self._before: Observation | None = None
        self._tokens = FirstTokens()

    def observe(self, seen: Observation, now: float) -> Sample:
        """The sample at `now`. Seconds between observations are taken from the source's clock."""
        before = self._before
        if before is not None and _restarted(before, seen):
            before = None
            self._tokens.clear()
        shift = now - seen.now  # the two clocks may differ; the page has one
        fresh = self._tokens.take(seen.ttft, seen.now)
        self._before = seen
        return Sample(
            t=round(now, 3),
            state=self._state(seen),
            flows=None if before is None else _flows(before, seen),
            points=[(round(t + shift, 2), round(s, 4), tenant) for t, s, tenant in thin(fresh)],
        )

    def _state(self, seen: Observation) -> State:
        pools = seen.pools
        return State(
            ready=seen.ready,
            draining=seen.draining,
            queue=sum(pool.queued for pool in pools),
            queue_age=round(max((pool.queue_age for pool in pools), default=0.0), 3),
            running=sum(pool.running for pool in pools),
            replicas=Counter(replica.state for pool in pools for replica in pool.replicas),
            silent=sum(r.silent and r.state == "serving" for p in pools for r in p.replicas),
            kv=Kv(
                _known([pool.kv_held for pool in pools]),
                _known([pool.kv_waiting for pool in pools]),
                _all_known([pool.kv_capacity for pool in pools]),
            ),
            ttft=self._tokens.spread(seen.now),
            tenants_ttft=self._tokens.per_tenant(MOST_TENANTS, seen.now),
        )


def _restarted(before: Observation, seen: Observation) -> bool:
    """Another process answers, or its clock or a total went back."""
    return (
        before.gateway != seen.gateway
        or seen.now <= before.now
        or _offered(seen) < _offered(before)
        or any(seen.outcomes.get(name, 0) < count for name, count in before.outcomes.items())
    )


def _offered(seen: Observation) -> float:
    return sum(tenant.offered for tenant in seen.tenants.values())


def _flows(before: Observation, seen: Observation) -> Flows:
    seconds = seen.now - before.now
    tenants = _rates(
        {name: tenant.offered for name, tenant in before.tenants.items()},
        {name: tenant.offered for name, tenant in seen.tenants.items()},
        seconds,
    )
    ended = _rates(before.outcomes, seen.outcomes, seconds)
    reasons = [(name, rate) for name, rate in ended if name not in _QUIET]
    refused = sum(rate for name, rate in reasons if name in _REFUSED)
    return Flows(
        arrivals=_short(sum(rate for _, rate in tenants)),
        tenants=tenants[:MOST_TENANTS],
        others=_short(sum(rate for _, rate in tenants[MOST_TENANTS:])),
        refused=_short(refused),
        failed=_short(sum(rate for _, rate in reasons) - refused),
        reasons=reasons,
    )


def _rates(before: Mapping[str, float], seen: Mapping[str, float], seconds: float) -> Rates:
    """Rises per second, the highest first, without those that did not rise."""
    rises = ((name, count - before.get(name, 0)) for name, count in seen.items())
    rates = [(name, _short(rise / seconds)) for name, rise in rises if rise > 0]
    return sorted(rates, key=lambda item: (-item[1], item[0]))


def _short(rate: float) -> float:
    return round(rate, 3)


def _known(values: list[float | None]) -> float | None:
    """The sum of those that are known; None when none is."""
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _all_known(values: list[float | None]) -> float | None:
    """The sum, None when one is missing: half a capacity would show a fleet too full."""
    told = [value for value in values if value is not None]
    return sum(told) if told and len(told) == len(values) else None
