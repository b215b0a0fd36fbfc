"""What a scenario could cost at the least: the bound, a schedule that knew, and the best number.

Rule: these know the future; they are beside the policies to be measured by, not to be chosen.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from surgetank.errors import InputError
from surgetank.policy.replica import Role
from surgetank.simulation.arena.score import Score, score
from surgetank.simulation.bound import (
    Fleet,
    least_work,
    shortest_start,
    solve,
    unavoidable,
    usual_work,
)
from surgetank.simulation.policies import Fixed, Policy, policy
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario, capacity
from surgetank.simulation.schedule import Scheduled

_SCHEDULED: Final = 0.98  # of the requests: what a schedule is made for
_MARGINS: Final = (1.6, 1.3, 1.05, 0.85, 0.65)  # of the usual work, costly to cheap
_MOST: Final = 64  # replicas, when the scenario allows no more than it starts with


@dataclass(frozen=True, slots=True)
class Known:
    """A run of somebody who knew. `replicas`: of a static fleet; None for a schedule."""

    replica_hours: float
    attainment: float
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """Replica-hours for a target attainment (0..1); None where nothing tried kept it.

    `bound`: below it nobody can be. `feasible`: a schedule from all arrivals, run in this
    simulator. `static`: the least fixed number. `unavoidable`: share of the requests that bursts
    bring before a start they cause could be ready.
    """

    target: float
    bound: float | None
    feasible: Known | None
    static: Known | None
    unavoidable: float

    def to_json(self) -> dict[str, Any]:
        """JSON-able: names as here."""
        return asdict(self)


def reference(scenario: Scenario, target: float) -> Reference:
    """Work them out. Raises InputError for more than one pool, or split ones."""
    if len(scenario.pools) != 1 or scenario.pools[0].role is not Role.BOTH:
        raise InputError("--bound: is of one pool that does prefill and decode; there are others")
    if not 0 < target < 1:
        raise InputError(f"--target {target:g}: must be between 0 and 1")
    pool = scenario.pools[0]
    most = pool.most if pool.most > pool.replicas + pool.standbys else _MOST
    pool = replace(pool, replicas=max(1, pool.replicas), standbys=0, max_replicas=most)
    scenario = replace(scenario, pools=(pool,))
    ttft = scenario.objective.ttft or scenario.flow.ttft_objective
    tpot = scenario.objective.tpot or 1e3
    end = float(scenario.workload.arrived[-1]) if len(scenario.workload) else 0.0
    start = pool.cold_start().p95()
    return Reference(
        target=target,
        bound=_bound(scenario, pool, target, ttft, tpot, end),
        feasible=_feasible(scenario, pool, target, ttft, tpot, end, start),
        static=_static(scenario, target, end),
        unavoidable=unavoidable(scenario.workload, start=start),
    )


def _bound(  # noqa: PLR0917 - private, called once
    scenario: Scenario, pool: PoolPlan, target: float, ttft: float, tpot: float, end: float
) -> float | None:
    work = least_work(scenario.workload, pool.profile, ttft, tpot)
    mean = sum(stage.median_s for stage in pool.cold_start().course())
    fleet = Fleet(shortest_start(mean), 1.0, pool.replicas, pool.most)
    try:
        return solve(work, fleet, target, end=end).replica_hours
    except InputError:
        return None


def _feasible(  # noqa: PLR0917 - private, called once
    scenario: Scenario,
    pool: PoolPlan,
    target: float,
    ttft: float,
    tpot: float,
    end: float,
    start: float,
) -> Known | None:
    load = scenario.workload
    context = float(load.prompt.mean() + load.output.mean() / 2)
    prompt, output = capacity(
        pool.profile, tpot=tpot, context=context, most=scenario.flow.max_in_flight
    )
    usual = usual_work(load, prompt, output, slack=0.4 * ttft, tpot=min(tpot, 0.1))
    best: Known | None = None
    for margin in _MARGINS:
        work = replace(usual, prefill=margin * usual.prefill, decode=margin * usual.decode)
        try:
            found = solve(work, Fleet(start, 1.0, pool.replicas, pool.most), _SCHEDULED, end=end)
        except InputError:
            continue  # so much is more than the fleet may grow to
        scaler = Scheduled(
            found, lead=start + 1, wake=pool.cold_start().wake_s + 1, least=1, most=pool.most
        )
        seen = _run(scenario, _policy("feasible", scaler), end)
        known = Known(seen.replica_hours, seen.attainment)
        if seen.attainment >= target and (best is None or known.replica_hours < best.replica_hours):
            best = known
    return best


def _static(scenario: Scenario, target: float, end: float) -> Known | None:
    pool = scenario.pools[0]
    low, high = 1, pool.most
    tried: dict[int, Score] = {}

    def run(n: int) -> Score:
        if n not in tried:
            fixed = replace(pool, replicas=n, max_replicas=max(n, pool.most))
            tried[n] = _run(replace(scenario, pools=(fixed,)), _policy("static", Fixed(n)), end)
        return tried[n]

    while low < high:  # the least that keeps it, by halving
        middle = (low + high) // 2
        low, high = (low, middle) if run(middle).attainment >= target else (middle + 1, high)
    seen = run(low)
    return Known(seen.replica_hours, seen.attainment, low) if seen.attainment >= target else None


def _policy(name: str, scaler: Scheduled | Fixed) -> Policy:
    return replace(policy("surgetank"), name=name, scaler=lambda _pool, _spec: scaler)


def _run(scenario: Scenario, chosen: Policy, end: float) -> Score:
    return score(simulate(scenario, chosen=chosen), 0.0, max(end, 1e-9) + 1e-6)
