"""Policies by name: a gateway and a scaler for each pool.

Rule: the registry holds factories; a name may carry an argument, NAME:ARGUMENT. What decides is the
live code itself: FlowControl, ScalePolicy, Pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import inf
from typing import Final, Literal, Protocol, cast, get_args

from surgetank.errors import InputError
from surgetank.policy.flow import FlowControl
from surgetank.policy.journal import Journal
from surgetank.policy.plan import Observation, ScalePlan, ScaleSpec
from surgetank.policy.replica import Role
from surgetank.policy.scaling import ScalePolicy
from surgetank.policy.shadow import Shadow
from surgetank.policy.tenant import Tier
from surgetank.simulation.baselines.named import BASELINES, Named
from surgetank.simulation.baselines.rule import Ruled
from surgetank.simulation.plain import Choice, Gateway, PlainGateway, Questions
from surgetank.simulation.scenario import PoolPlan, Scenario

_USUAL_CAP: Final = 32  # requests on a replica at once, as such caps are set
Spreading = Literal["round_robin", "least_outstanding"]
"""Choices that `engine.bulk` knows."""


class Scaler(Protocol):
    """How many replicas one pool should have. ScalePolicy is one."""

    def tick(self, seen: Observation, now: float) -> ScalePlan: ...


class Fixed:
    """The same number always, and as many standbys as there were."""

    def __init__(self, replicas: int, standbys: int = 0) -> None:
        self._plan = ScalePlan(
            replicas=replicas,
            launch=replicas,
            standbys=standbys,
            surge=False,
            demand=None,
            reasons=(),
        )

    def tick(self, seen: Observation, now: float) -> ScalePlan:  # noqa: ARG002 - the protocol's form
        """Give the same plan."""
        return self._plan


@dataclass(frozen=True, slots=True)
class Setup:
    """What a gateway is made from: the scenario, numbers in [0, 1), and where a journal goes."""

    scenario: Scenario
    draw: Callable[[], float]
    journal: Callable[[str], object] | None = None


Built = tuple[Gateway, Questions]


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to run a fleet. `tick_interval` and `metric_lag` are the scaler's own, seconds.

    `journals`: its gateway is FlowControl, which can write down what it decides.
    `splits`: it sends a request to prefill and decode where those are apart.
    `routing`: how `engine.bulk` names it, for one that only spreads requests; None: it decides.
    """

    name: str
    about: str
    gateway: Callable[[Setup], Built]
    scaler: Callable[[PoolPlan, ScaleSpec], Scaler]
    pools: Callable[[tuple[PoolPlan, ...]], tuple[PoolPlan, ...]] = field(
        default=lambda pools: pools
    )
    scales: bool = False
    tick_interval: float | None = None
    metric_lag: float = 0.0
    routing: Spreading | None = None
    journals: bool = True
    splits: bool = True

    def check(self, pools: Iterable[tuple[str, Role]]) -> None:
        """Raise InputError for pools, each a model and a role, that it cannot send to."""
        for model, role in pools:
            if not self.splits and role is not Role.BOTH:
                raise InputError(
                    f"--policy {self.name}: the pool {model}/{role} serves one half of a request,"
                    " and it sends a whole one to each replica: take surgetank or static"
                )


def _fixed(pool: PoolPlan, _spec: ScaleSpec) -> Scaler:
    return Fixed(pool.replicas)


def _without_standbys(pools: tuple[PoolPlan, ...]) -> tuple[PoolPlan, ...]:
    """A fixed fleet has nothing to promote: what would stand by is not there."""
    return tuple(replace(pool, standbys=0, max_replicas=max(1, pool.replicas)) for pool in pools)


def _surgetank(setup: Setup) -> Built:
    scenario = setup.scenario
    tenants = {tenant.name: tenant for tenant in scenario.tenants}
    models = tuple(dict.fromkeys(pool.model for pool in scenario.pools))
    if setup.journal is None:
        flow = FlowControl(
            scenario.flow,
            tenants=tenants.values(),
            tiers=scenario.tiers,
            models=models,
            draw=setup.draw,
            ladder=scenario.ladder,
        )
        return flow, flow
    journal = Journal(
        setup.journal,
        scenario.flow,
        tenants=tenants.values(),
        tiers=scenario.tiers,
        models=models,
        draw=setup.draw,
        wall_offset=scenario.workload.origin,
        ladder=scenario.ladder,
    )
    return journal, journal.flow


def _shadow(setup: Setup) -> Built:
    """Let everything through, with a twin beside that decides."""
    scenario = setup.scenario
    opened = replace(scenario, flow=replace(scenario.flow, admission="shadow"))
    carried, questions = _surgetank(replace(setup, scenario=opened))
    assert isinstance(carried, FlowControl | Journal)  # noqa: S101 - what `_surgetank` makes
    return Shadow(carried, -inf, kept=len(scenario.workload) * _TRIES), questions


def _scaling(_pool: PoolPlan, spec: ScaleSpec) -> Scaler:
    return ScalePolicy(spec, role=_pool.role, explains=False)


def _number(argument: str, name: str) -> int:
    try:
        value = int(argument)
    except ValueError:
        value = 0
    if value < 1:
        raise InputError(f"--policy {name}:{argument}: must be a whole number >= 1")
    return value


def _make_surgetank(argument: str) -> Policy:
    _none(argument, "surgetank")
    about = "admission, fair queues, placement and scaling as they run live"
    return Policy("surgetank", about, _surgetank, _scaling, scales=True)


def _make_static(argument: str) -> Policy:
    n = _number(argument, "static") if argument else None

    def pools(plans: tuple[PoolPlan, ...]) -> tuple[PoolPlan, ...]:
        plans = tuple(p if n is None else replace(p, replicas=n, max_replicas=n) for p in plans)
        return _without_standbys(plans)

    name = f"static:{n}" if n else "static"
    return Policy(name, "the live gateway, a fixed number of replicas", _surgetank, _fixed, pools)


def _make_shadow(argument: str) -> Policy:
    _none(argument, "shadow")
    about = "everything is let through; what admission would have refused is in the records"
    return Policy("shadow", about, _shadow, _fixed, _without_standbys)


def _make_passthrough(argument: str) -> Policy:
    choice = argument or "least_outstanding"
    if choice not in get_args(Choice):
        raise InputError(
            f"--policy passthrough:{argument}: must be one of {', '.join(get_args(Choice))}"
        )

    def gateway(setup: Setup) -> Built:
        flow = PlainGateway(
            cap=None,
            choice=cast("Choice", choice),
            objective=setup.scenario.flow.ttft_objective,
        )
        return flow, flow

    name = f"passthrough:{argument}" if argument else "passthrough"
    return Policy(
        name,
        "no admission: the engines' own queues",
        gateway,
        _fixed,
        _without_standbys,
        routing=cast("Spreading", choice) if choice in get_args(Spreading) else None,
        journals=False,
        splits=False,
    )


def _make_fifo(argument: str) -> Policy:
    cap = _number(argument, "fifo-cap") if argument else None

    def gateway(setup: Setup) -> Built:
        most = cap or setup.scenario.flow.max_in_flight or _USUAL_CAP
        flow = PlainGateway(cap=most, objective=setup.scenario.flow.ttft_objective)
        return flow, flow

    name = f"fifo-cap:{cap}" if cap else "fifo-cap"
    return _plain(name, "one queue in order of arrival, a cap per replica", gateway)


def _make_bucket(argument: str) -> Policy:
    try:
        rate = float(argument or "60")
    except ValueError:
        rate = 0.0
    if not 0 < rate < _MOST_KNOB:
        raise InputError(f"--policy request-bucket:{argument}: must be requests a minute, > 0")

    def gateway(setup: Setup) -> Built:
        flow = PlainGateway(cap=None, bucket=rate, objective=setup.scenario.flow.ttft_objective)
        return flow, flow

    return _plain(f"request-bucket:{rate:g}", "so many requests a minute of each tenant", gateway)


def _make_turns(argument: str) -> Policy:
    _none(argument, "round-robin")

    def gateway(setup: Setup) -> Built:
        flow = PlainGateway(cap=None, turns=True, objective=setup.scenario.flow.ttft_objective)
        return flow, flow

    return _plain("round-robin", "tenants in turn, while KV has room", gateway)


def _plain(name: str, about: str, gateway: Callable[[Setup], Built]) -> Policy:
    """Make a policy that scales nothing and has no journal."""
    return Policy(name, about, gateway, _fixed, _without_standbys, journals=False, splits=False)


def _make_counters(argument: str) -> Policy:
    _none(argument, "counters")

    def gateway(setup: Setup) -> Built:
        scenario = setup.scenario
        tiers = scenario.tiers or (Tier(),)
        tiers = tuple(replace(tier, predicted_wait=False) for tier in tiers)
        return _surgetank(replace(setup, scenario=replace(scenario, tiers=tiers)))

    about = "the live gateway, and nobody is refused for a foretold wait"
    return Policy("counters", about, gateway, _fixed, _without_standbys)


def _none(argument: str, name: str) -> None:
    if argument:
        raise InputError(f"--policy {name}:{argument}: {name} takes no argument")


def _make_baseline(name: str, baseline: Named) -> Callable[[str], Policy]:
    """Make a policy of somebody else's rule behind the live gateway, with the same warm pool."""

    def make(argument: str) -> Policy:
        knob = baseline.default
        if argument:
            try:
                knob = float(argument)
            except ValueError:
                knob = 0.0
            if not 0 < knob < _MOST_KNOB:
                raise InputError(
                    f"--policy {name}:{argument}: must be a number > 0 ({baseline.knob})"
                )

        def scaler(pool: PoolPlan, spec: ScaleSpec) -> Scaler:
            return Ruled(
                baseline.make(knob, spec),
                least=pool.replicas,
                most=spec.max_replicas,
                standbys=pool.standbys,
            )

        text = f"{name}:{argument}" if argument else name
        return Policy(text, baseline.about, _surgetank, scaler, scales=True)

    return make


_MOST_KNOB: Final = 1e9
_TRIES: Final = 16  # of one client's request: verdicts kept of each

POLICIES: Final[Mapping[str, Callable[[str], Policy]]] = {
    "surgetank": _make_surgetank,
    "static": _make_static,
    "shadow": _make_shadow,
    "fifo-cap": _make_fifo,
    "passthrough": _make_passthrough,
    "request-bucket": _make_bucket,
    "round-robin": _make_turns,
    "counters": _make_counters,
    **{name: _make_baseline(name, baseline) for name, baseline in BASELINES.items()},
}
"""Name -> what makes it of the argument after the colon ("" without one)."""


def policy(text: str) -> Policy:
    """Find a policy as a user writes it. Raises InputError."""
    name, _, argument = text.strip().partition(":")
    make = POLICIES.get(name)
    if make is None:
        near = get_close_matches(name, POLICIES, n=1)
        meant = f": did you mean {near[0]}?" if near else f": must be one of {', '.join(POLICIES)}"
        raise InputError(f"--policy {text}{meant}")
    return make(argument)
