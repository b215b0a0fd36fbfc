"""The fluid fleet: worked numbers, and the policy against the best fixed number on pulses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from surgetank.engine.coldstart import whole
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.scaling import ScalePolicy
from surgetank.simulation.fluid import FluidFleet, FluidScore, Inflow
from surgetank.simulation.policies import Fixed

HALF = 2700  # s: a record's early misses fade by half in 1,800
SPEC = ScaleSpec(
    ttft_objective=1.0,
    prompt_tokens_per_replica=1000.0,
    output_tokens_per_replica=1000.0,
    utilisation=1.0,
    max_replicas=12,
    standbys=0,
    max_standbys=0,
    burst_factor=8.0,
    learning_period=600.0,
)


def pulses(base: float, peak: float, *, period: int = 100, width: int = 30) -> Inflow:
    """Replica-seconds a second; a request is a quarter of one."""
    work = np.array([peak if s % period < width else base for s in range(2 * HALF)], dtype=float)
    nothing = np.zeros(len(work))
    return Inflow(4 * work, 1000 * work, nothing, work, nothing, stay=1.0)


def fleet(inflow: Inflow, replicas: int) -> FluidFleet:
    start = replace(whole(60.0), wake_s=3.0)
    return FluidFleet(inflow, start, replicas=replicas, standbys=0, most=12, objective=1.0)


def fixed(inflow: Inflow, replicas: int) -> FluidScore:
    return fleet(inflow, replicas).run(Fixed(replicas), [(HALF, 2 * HALF)])[0]


def ours(inflow: Inflow, standby_cost: float) -> FluidScore:
    policy = ScalePolicy(replace(SPEC, standby_cost=standby_cost), explains=False)
    return fleet(inflow, 1).run(policy, [(HALF, 2 * HALF)])[0]


def test_a_fixed_fleet_costs_its_number_and_keeps_what_it_can_do() -> None:
    steady = pulses(1.5, 1.5)
    assert fixed(steady, 2).replica_hours == pytest.approx(2 * HALF / 3600)
    assert fixed(steady, 2).attainment == 1.0
    assert fixed(steady, 1).attainment == 0.0


def test_on_pulses_shorter_than_a_start_the_policy_is_the_best_fixed_number() -> None:
    inflow = pulses(0.8, 3.6)
    assert fixed(inflow, 3).attainment < 0.95 <= fixed(inflow, 4).attainment
    seen = ours(inflow, 1.0)
    assert seen.attainment >= 0.95
    assert seen.cost(1.0) <= 1.02 * fixed(inflow, 4).cost(1.0)


def test_where_standbys_are_cheap_it_comes_a_tenth_below_the_best_fixed_number() -> None:
    inflow = pulses(0.8, 3.6)
    seen = ours(inflow, 0.25)
    assert seen.attainment >= 0.95
    assert seen.cost(0.25) <= 0.9 * fixed(inflow, 4).cost(0.25)
