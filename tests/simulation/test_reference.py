"""`simulate --bound`: what a scenario could cost at the least, and that nobody is below it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from surgetank.cli import app
from surgetank.cli.simulate_output import show_bound
from surgetank.errors import InputError
from surgetank.policy.replica import Role
from surgetank.simulation.reference import Known, Reference, reference
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from tests.simulation.build import bursts, engine, load, scenario


def a_burst() -> Scenario:
    """A replica does some 5 requests/s; 2/s come, and 12/s for a while."""
    rng = np.random.default_rng(1)
    calm = np.sort(rng.uniform(0, 120, 240))
    burst = np.sort(rng.uniform(50, 80, 300))
    work = load(np.sort(np.concatenate([calm, burst])), prompt=2000, output=20)
    profile = engine(b_us=90.0, d_us=20.0, max_model_len=16384)
    return scenario(work, profile=profile, replicas=1, max_replicas=8)


def test_the_bound_is_below_a_schedule_that_knew_and_that_below_any_fixed_number() -> None:
    known = reference(a_burst(), 0.95)
    assert known.bound is not None
    assert known.feasible is not None
    assert known.static is not None
    assert known.bound <= known.feasible.replica_hours <= known.static.replica_hours
    assert known.feasible.attainment >= 0.95
    assert known.static.attainment >= 0.95
    assert known.static.replicas is not None
    assert known.static.replicas >= 2


def test_the_least_fixed_number_is_the_least() -> None:
    scene = a_burst()
    known = reference(scene, 0.95)
    assert known.static is not None
    assert known.static.replicas is not None
    fewer = known.static.replicas - 1
    one = scenario(
        scene.workload,
        profile=scene.pools[0].profile,
        replicas=fewer,
        max_replicas=8,
        policy="static",
    )
    assert simulate(one).summary.attainment < 0.95


def test_pools_apart_have_no_bound_yet() -> None:
    pools = tuple(
        PoolPlan(model="model", profile=engine(), role=role) for role in (Role.PREFILL, Role.DECODE)
    )
    with pytest.raises(InputError, match="--bound: is of one pool that does prefill and decode"):
        reference(Scenario(workload=load(bursts(10, 1.0, 1)), pools=pools), 0.95)


def test_the_command_tells_it_beside_the_policies() -> None:
    arguments = [
        "simulate", "--pulse", "2:8:10:40:40", "--engine", "tiny", "--policy", "static,hpa",
        "--max-replicas", "2", "--cold-start", "10", "--ttft", "1", "--bound", "--target", "0.9",
    ]  # fmt: skip
    told = CliRunner().invoke(app, [*arguments, "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["bound"]["target"] == 0.9
    for run in found["runs"]:
        if run["attainment"] >= 0.9 and found["bound"]["bound"] is not None:
            assert run["replica_hours"] >= found["bound"]["bound"]


def test_what_is_told_says_what_nobody_kept(capsys: pytest.CaptureFixture[str]) -> None:
    show_bound(Reference(0.95, 1.25, None, Known(3.0, 0.97, 4), 0.125))
    told = capsys.readouterr().out
    assert "1.25" in told
    assert "no number or schedule that was tried keeps it" in told
    assert "3 (4 replicas), keeps 97" in told
    assert "12.5 % of the requests" in told
