"""What a user wants of a plan, and the sizes and outcomes that the search speaks of."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from surgetank.engine.coldstart import ColdStart
from surgetank.engine.profile import EngineProfile
from surgetank.errors import InputError
from surgetank.policy.calendar import CalendarEvent

_MOST: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The objective and the means. Seconds; `attainment` 0..1.

    `standby_cost`: of a serving replica; `price`: of one replica for an hour, in any currency.
    `requests`: most that are simulated in one trial; a longer log is planned from windows of it.
    """

    profile: EngineProfile
    ttft: float
    tpot: float
    attainment: float
    start: ColdStart
    standby_cost: float = 1.0
    price: float | None = None
    max_replicas: int = _MOST
    calendar: tuple[CalendarEvent, ...] = ()
    requests: int = 20_000
    trials: int = 60  # most sizes that are simulated
    seed: int = 0
    tenants_limited: int = 20  # tenants that get a quota of their own

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be."""
        if not 0 < self.attainment < 1:
            raise InputError(
                f"--attainment {self.attainment:g}: must be above 0 and below 1, as 0.95"
            )
        for name in ("ttft", "tpot"):
            if not 0 < getattr(self, name) < inf:
                raise InputError(f"--{name} {getattr(self, name):g}: must be seconds, above 0")
        if not 0 <= self.standby_cost <= 1:
            raise InputError(
                f"--standby-cost {self.standby_cost:g}: must be between 0 and 1 of a serving one"
            )
        if self.price is not None and not 0 <= self.price < inf:
            raise InputError(f"--price {self.price:g}: must be of an hour, 0 or more")
        if self.max_replicas < 1:
            raise InputError(f"--max-replicas {self.max_replicas}: must be >= 1")

    @property
    def lead(self) -> float:
        """Seconds from wanting a replica to its serving: P95 of a start."""
        return self.start.p95()


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A fleet: replicas that always serve, that may be started beside, and that are kept warm."""

    base: int
    elastic: int = 0
    standby: int = 0

    @property
    def total(self) -> int:
        return self.base + self.elastic + self.standby

    @property
    def fixed(self) -> bool:
        """Nothing of it comes or goes."""
        return not self.elastic and not self.standby

    def smaller(self) -> tuple[Size, ...]:
        """The sizes with one replica less in one pool; the base keeps one."""
        found = []
        if self.standby:
            found.append(Size(self.base, self.elastic, self.standby - 1))
        if self.base > 1:
            found.append(Size(self.base - 1, self.elastic, self.standby))
        if self.elastic:
            found.append(Size(self.base, self.elastic - 1, self.standby))
        return tuple(found)

    def __str__(self) -> str:
        return f"{self.base} + {self.elastic} elastic + {self.standby} standby"


@dataclass(frozen=True, slots=True)
class Trial:
    """What one size did in the simulator.

    `busiest`: attainment within the busiest parts of a long log, of a short one that of all of it.
    `cost`: replicas paid for in the mean, standbys at their part; `hours`: replica-hours of the
    scored time; TTFTs in seconds.
    """

    size: Size
    requests: int
    attainment: float
    cost: float
    hours: float
    launches: int
    p95: float | None
    p99: float | None
    busiest: float

    @property
    def kept(self) -> float:
        """The part within the objectives, of all and in the busiest parts alone: the less."""
        return min(self.attainment, self.busiest)
