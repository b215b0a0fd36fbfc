"""One budget for several pools: how many replicas each may have while together they want more.

What each pool serves with, or starts, and still wants stays: a replica taken from one in a burst
for another would end neither's queue sooner than a start takes. Of the rest, replicas that are to
serve go before standbys, and the next one to the pool whose want is filled to the least part;
standbys that another pool's burst needs are given up, and started anew when it is over.

Rule: the units of all replicas that exist, leaving ones too, never exceed the budget by a start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from surgetank.errors import ConfigError
from surgetank.policy.plan import Reason, ScalePlan, Signal
from surgetank.policy.pool import PoolCounts

_NOBODY: Final = PoolCounts()


@dataclass(slots=True)
class _Share:
    """One pool. `serving` and `standbys`: as its latest plan wants them."""

    units: int
    base: int
    counts: Callable[[], PoolCounts]
    serving: int
    standbys: int = 0


class Budget:
    """Shares `units` among the pools that join. Each pool's `units` are what one replica takes."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._shares: dict[str, _Share] = {}

    def join(self, pool: str, *, units: int, base: int) -> None:
        """Take in a pool. Raises ConfigError when the bases of all do not fit."""
        self._shares[pool] = _Share(units, base, lambda: _NOBODY, base)
        bases = sum(share.base * share.units for share in self._shares.values())
        if bases > self._units:
            raise ConfigError(
                f"autoscaler.budget = {self._units}: must be >= {bases}, what the pools' base takes"
            )

    def counted(self, pool: str, counts: Callable[[], PoolCounts]) -> None:
        """Ask this from now on for the replicas that a pool has."""
        self._shares[pool].counts = counts

    def room(self, pool: str) -> int:
        """Replicas that a pool may start now beside all that exist."""
        held = sum(_existing(share) * share.units for share in self._shares.values())
        return max(0, self._units - held) // self._shares[pool].units

    def want(self, pool: str, plan: ScalePlan) -> None:
        """Take note of what a pool wants now. All are to say it before any is cut."""
        own = self._shares[pool]
        own.serving, own.standbys = max(plan.replicas, own.base), plan.standbys

    def within(self, pool: str, plan: ScalePlan) -> ScalePlan:
        """Cut a pool's plan to its share, by what all wanted last; and say so."""
        serving, standbys = self._shared()
        allowed, warm = serving[pool], min(plan.standbys, standbys[pool])
        if allowed >= plan.replicas and warm == plan.standbys:
            return plan
        text = (
            f"autoscaler.budget = {self._units} allows {allowed} of {plan.replicas} replicas and "
            f"{warm} of {plan.standbys} standbys beside the other pools"
        )
        reason = Reason(Signal.LIMIT, plan.replicas + plan.standbys, self._units, allowed, text)
        return replace(
            plan,
            replicas=min(plan.replicas, allowed),
            launch=min(plan.launch, allowed),
            standbys=warm,
            reasons=(*plan.reasons, reason),
        )

    def _shared(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many may serve, and stand by, in each pool."""
        shares = self._shares
        serving = {name: _kept(share) for name, share in shares.items()}
        left = self._units - sum(n * shares[name].units for name, n in serving.items())
        left = self._fill(serving, {name: share.serving for name, share in shares.items()}, left)
        standbys = dict.fromkeys(shares, 0)
        self._fill(standbys, {name: share.standbys for name, share in shares.items()}, left)
        return serving, standbys

    def _fill(self, given: dict[str, int], wanted: Mapping[str, int], left: int) -> int:
        """Give one at a time to whose want is filled to the least part; returns what is left."""
        while True:
            short = [
                name
                for name, share in self._shares.items()
                if given[name] < wanted[name] and share.units <= left
            ]
            if not short:
                return left
            name = min(short, key=lambda name: given[name] / wanted[name])
            given[name] += 1
            left -= self._shares[name].units


def _kept(share: _Share) -> int:
    """What serves, or starts in order to, and is wanted; the base in any case."""
    counts = share.counts()
    return max(share.base, min(share.serving, counts.serving + counts.starting))


def _existing(share: _Share) -> int:
    counts = share.counts()
    return counts.known - counts.gone
