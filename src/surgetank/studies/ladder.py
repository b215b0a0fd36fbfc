"""An overload of all tiers, with the degradation ladder and without it, and what the core got.

A minute at several times what the replicas can do, between calm stretches at half of it. Core 20 %
of the requests, standard 50 %, batch 30 %, so that at four times the capacity the core alone is
within it: whatever of the core is not served in time is lost to lower tiers.

Rule: a request that was refused, or never got a first token, counts as infinitely late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isnan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.engine import profile as engines
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.ladder import LadderSpec, Step
from surgetank.policy.tenant import Tenant, Tier
from surgetank.simulation.clients import KINDS
from surgetank.simulation.policies import Built, Setup, policy
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario, capacity
from surgetank.simulation.workload import Workload, of_batch
from surgetank.traffic.trace import Batch, Labels

SHARES: Final = {"core": 0.2, "standard": 0.5, "batch": 0.3}
TIERS: Final = (
    Tier("core", priority=0, ttft_objective=0.8),
    Tier("standard", priority=1, min_share=0.1, ttft_objective=5.0),
    Tier("batch", priority=2, min_share=0.05, ttft_objective=30.0),
)
TENANTS: Final = tuple(Tenant(tier.name, tier=tier.name) for tier in TIERS)
_CALM: Final = 0.5  # of the capacity, before and after
_PROMPT, _PROMPT_SIGMA, _LONGEST_PROMPT = 600.0, 0.8, 6000
_OUTPUT, _OUTPUT_SIGMA, _LONGEST_OUTPUT = 180.0, 0.7, 1500


@dataclass(frozen=True, slots=True)
class Overload:
    """What comes. Times in seconds; `factor`: of the capacity, which is in requests per second."""

    capacity: float
    factor: float = 4.0
    before: float = 30.0
    lasts: float = 60.0
    after: float = 120.0

    @property
    def ends(self) -> float:
        return self.before + self.lasts

    def arrivals(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Poisson arrivals of its three stretches."""
        edges = (0.0, self.before, self.ends, self.ends + self.after)
        rates = np.array((_CALM, self.factor, _CALM)) * self.capacity
        parts = [
            rng.uniform(begin, end, rng.poisson(rate * (end - begin)))
            for begin, end, rate in zip(edges[:-1], edges[1:], rates.tolist(), strict=True)
        ]
        return np.sort(np.concatenate(parts))


@dataclass(frozen=True, slots=True)
class Served:
    """One tier in the overload. `ttft_p95`: of all that came, so infinite when 5 % got nothing."""

    tier: str
    came: int
    in_time: float  # part that had its first token within the core's objective
    answered: float  # part that was answered in full
    ttft_p95: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `begins`: when the overload does.

    `ttft`: arrival of each of the core's requests, and its time to the first token. `told`:
    attempts that were told what was taken from them.
    """

    seed: int
    ladder: bool
    begins: float
    served: tuple[Served, ...]
    steps: tuple[Step, ...]
    ttft: tuple[tuple[float, float], ...]
    told: int

    @property
    def highest(self) -> int:
        return max((step.level for step in self.steps), default=0)

    @property
    def reversals(self) -> int:
        """Steps up that follow a step down, of those from the overload on."""
        return reversals([s.level - s.was for s in self.steps if s.at >= self.begins])

    @property
    def last(self) -> int:
        """Where the ladder stood at the end."""
        return self.steps[-1].level if self.steps else 0


def reversals(directions: list[int]) -> int:
    """Count steps up that follow a step down."""
    return sum(1 for a, b in pairwise(directions) if a < 0 < b)


def capacity_of(pool: PoolPlan, most: int) -> float:
    """Requests per second that a pool can do of this mix, at `most` on each replica."""
    prompt = _PROMPT * np.exp(_PROMPT_SIGMA**2 / 2)
    output = _OUTPUT * np.exp(_OUTPUT_SIGMA**2 / 2)
    prefill, decode = capacity(pool.profile, tpot=1.0, context=prompt + output / 2, most=most)
    return float(pool.replicas / (prompt / prefill + output / decode))


def workload(overload: Overload, seed: int) -> Workload:
    """Draw all that comes; a seed gives the same with the ladder and without it."""
    rng = np.random.default_rng([seed, 7])
    at = overload.arrivals(rng)
    who = rng.choice(len(SHARES), len(at), p=list(SHARES.values())).astype(np.int32)
    prompt = np.clip(rng.lognormal(np.log(_PROMPT), _PROMPT_SIGMA, len(at)), 20, _LONGEST_PROMPT)
    output = np.clip(rng.lognormal(np.log(_OUTPUT), _OUTPUT_SIGMA, len(at)), 5, _LONGEST_OUTPUT)
    return of_batch(
        Batch(
            at,
            prompt.astype(np.int64),
            output.astype(np.int64),
            tenant=Labels(who, tuple(SHARES)),
        )
    )


def run(
    seed: int,
    *,
    ladder: bool,
    profile: str = "h100-llama-3.1-8b-bf16-tp1",
    replicas: int = 2,
    factor: float = 4.0,
    lasts: float = 60.0,
    most: int = 64,
    clients: str = "sdk",
    journal: Callable[[str], object] | None = None,
) -> Outcome:
    """Simulate one overload. `most`: requests on a replica; `clients`: see `simulation.clients`."""
    pool = PoolPlan(model="model", profile=engines.find(profile), replicas=replicas)
    overload = Overload(capacity_of(pool, most), factor, lasts=lasts)
    scenario = Scenario(
        workload=workload(overload, seed),
        pools=(pool,),
        flow=FlowSpec(max_in_flight=most),
        tiers=TIERS,
        tenants=TENANTS,
        ladder=LadderSpec(enabled=ladder),
        clients=KINDS[clients],
        seed=seed,
    )
    built: list[FlowControl] = []
    static = policy("static")

    def gateway(setup: Setup) -> Built:
        flow, questions = static.gateway(setup)
        if isinstance(questions, FlowControl):
            built.append(questions)
        return flow, questions

    result = simulate(scenario, chosen=replace(static, gateway=gateway), journal=journal)
    load, seen = scenario.workload, result.requests
    came = (load.arrived >= overload.before) & (load.arrived < overload.ends)
    ttft = np.where(np.isnan(seen.ttft), inf, seen.ttft)
    codes = {name: load.tenants.index(name) for name in SHARES}
    rows = {name: came & (load.tenant == code) for name, code in codes.items()}
    core = load.tenant == codes["core"]
    return Outcome(
        seed=seed,
        ladder=ladder,
        begins=overload.before,
        served=tuple(
            served(name, ttft[mask], ~np.isnan(seen.tpot[mask])) for name, mask in rows.items()
        ),
        steps=tuple(built[0].steps),
        ttft=tuple(zip(load.arrived[core].tolist(), ttft[core].tolist(), strict=True)),
        told=sum(1 for record in result.records() if record.degraded),
    )


def served(
    tier: str, ttft: NDArray[np.float64], answered: NDArray[np.bool_], objective: float = 0.8
) -> Served:
    """Sum up one tier's requests. `ttft`: infinite where there was no first token."""
    ordered = np.sort(ttft)
    p95 = float(ordered[max(0, int(np.ceil(0.95 * len(ordered))) - 1)]) if len(ordered) else inf
    in_time = float(np.mean(ttft < objective)) if len(ttft) else 0.0
    whole = float(np.mean(answered)) if len(ttft) else 0.0
    return Served(tier, len(ttft), in_time, whole, inf if isnan(p95) else p95)
