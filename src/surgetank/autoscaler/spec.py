"""The autoscaler's settings: which pools there are, how their replicas are started, and limits.

Rule: times in seconds; the comment beside a field is its documentation, and the configuration
reference, the JSON schema and the example file are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from surgetank.adapters.processes import ProcessSpec
from surgetank.errors import ConfigError
from surgetank.policy.budget import Budget
from surgetank.policy.calendar import CalendarEvent
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.pool import PoolSpec
from surgetank.policy.replica import Role

_SCALE: Final = ScaleSpec()
_POOL: Final = PoolSpec()
_PROCESS: Final = ProcessSpec()
# Sizes of the policy, and the pool's own settings that give them.
_SIZES: Final = {"min_replicas": "base", "max_replicas": "max_replicas"}


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """One pool: the replicas of one model in one role."""

    model: str  # the name clients use
    max_replicas: int  # all that may exist here at once: what the machine, or the budget, can hold
    base: int = _POOL.base  # replicas that always serve
    role: Role = Role.BOTH  # what part of a request they serve
    units: int = 1  # of autoscaler.budget, that one replica takes: its GPUs, say
    process: ProcessSpec = _PROCESS  # how one is started on this machine
    start_timeout: float = _POOL.start_timeout  # a start that takes longer has failed
    drain_timeout: float = _POOL.drain_timeout  # longest stream that a stop waits for
    # when to grow and shrink; the sizes are the pool's base and max_replicas
    scale: ScaleSpec = field(default=_SCALE, metadata={"instead": _SIZES})

    def __post_init__(self) -> None:
        """Raise ConfigError for sizes that do not fit, or that are given twice."""
        for name, instead in _SIZES.items():
            if getattr(self.scale, name) != getattr(_SCALE, name):
                raise ConfigError(
                    f"pool {self.name}: scale.{name}: is set by the pool's own {instead}"
                )
        self.pool_spec()
        self.scale_spec()

    @property
    def name(self) -> str:
        return f"{self.model}/{self.role}"

    def scale_spec(self) -> ScaleSpec:
        """The policy's settings, with this pool's sizes."""
        return replace(self.scale, min_replicas=self.base, max_replicas=self.max_replicas)

    def pool_spec(self) -> PoolSpec:
        return PoolSpec(
            base=self.base,
            max_replicas=self.max_replicas,
            start_timeout=self.start_timeout,
            drain_timeout=self.drain_timeout,
            # Asked for again, which kills at once, when the first stop should be long over.
            stop_timeout=self.process.stop_timeout + _POOL.stop_timeout,
        )


@dataclass(frozen=True, slots=True)
class PortfolioSpec:
    """Back-tests of other scaling settings on this fleet's own records, in a process beside it.

    Off unless an engine is named: a profile that is not that of the engines would choose wrongly.
    """

    engine: str | None = None  # profile of the pools' engines, or a .toml file; null: none are made
    interval: float = 3600.0  # between two back-tests
    max_requests: int = 100_000  # of the last records, simulated in all
    cpu_seconds: float = 60.0  # of one core, at the lowest priority


_PORTFOLIO: Final = PortfolioSpec()


@dataclass(frozen=True, slots=True)
class AutoscaleSpec:
    """Replicas that come and go with the traffic. Without pools, nothing is scaled."""

    pools: tuple[PoolConfig, ...] = ()  # one for each model and role that is scaled
    # units that the replicas of all pools may take at once; unset: each pool's own max_replicas
    budget: int | None = (
        None  # alone bounds it. Standbys give way where another pool's burst needs it
    )
    calendar: tuple[CalendarEvent, ...] = ()  # what is expected: the larger of it and the forecast
    portfolio: PortfolioSpec = _PORTFOLIO  # chooses among settings from what the records say
    advisory: bool = False  # decide and log as always, but start and stop nothing
    interval: float = 1.0  # between two decisions; a burst takes seconds to fill a queue
    # directory for what outlives the process: replicas, learnt estimates, replicas' output;
    state_dir: str = "surgetank-state"  # one server's at a time; made with mode 0700 when absent
    keep_replicas: bool = False  # at a stop of the server leave them to the next one, still warm
    learned_interval: float = 60.0  # between two writings of what was learnt
    decisions: str | None = None  # file for one JSON line a decision; none are written unless set
    # admin addresses, http://HOST:PORT, of the gateways `surgetank autoscale` watches, and tells
    gateways: tuple[str, ...] = ()  # where to send requests; none when `surgetank serve` does it
    token_file: str | None = None  # holds the bearer token of their admin.token_file; mode 0600

    def __post_init__(self) -> None:
        """Raise ConfigError for two pools of one name, and for a budget that no base fits in."""
        names = [pool.name for pool in self.pools]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ConfigError(
                    f"autoscaler.pools[{i}]: two are of {name}: one model, one role each"
                )
        self.shared()

    def shared(self) -> Budget | None:
        """Make the budget that the pools share; None without one."""
        if self.budget is None:
            return None
        made = Budget(self.budget)
        for pool in self.pools:
            made.join(pool.name, units=pool.units, base=pool.base)
        return made
