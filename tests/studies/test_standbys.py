"""A fivefold pulse meets what is warm: in virtual time, and over real processes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.studies.live_standbys import live
from surgetank.studies.standbys import (
    BATCH,
    CORE,
    OBJECTIVE,
    SETUP,
    Pulse,
    judged,
    simulated,
    without,
)

ROOT = Path(__file__).parents[2]
SHORT = Pulse(base=1.0, burst=3.0, recovery=2.0)
SMALL = replace(SETUP, cold_start=0.5, base=1, standbys=1, max_replicas=3, scale_down_delay=1.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_standbys_serve_a_pulse_and_are_refilled_and_the_core_keeps_its_objective(
    seed: int,
) -> None:
    found = simulated(Pulse(), seed)
    assert min(found.served) <= 7.0
    assert len(found.times("promoted")) >= SETUP.standbys
    assert all(v < OBJECTIVE for (tier, _), v in found.p95.items() if tier == CORE)
    # Whatever was promoted is started anew at once, and is there one start later.
    assert found.times("launched")[: SETUP.standbys] == found.times("promoted")[: SETUP.standbys]
    assert found.refilled is not None
    assert found.refilled >= 20.0
    assert found.cut == 0


def test_a_pulse_after_ten_minutes_without_any_is_served_by_the_standbys_as_well() -> None:
    """By then the records decide what is loaded, and they hold no burst."""
    found = simulated(Pulse(base=600.0), 0)
    assert min(found.served) <= 7.0
    assert len(found.times("promoted")) >= SETUP.standbys
    assert all(v < OBJECTIVE for (tier, _), v in found.p95.items() if tier == CORE)
    assert found.refilled is not None
    assert found.cut == 0


def test_without_standbys_the_same_pulse_breaks_the_cores_objective() -> None:
    found = simulated(Pulse(), 0, setup=without(SETUP))
    assert found.p95[CORE, "burst"] > OBJECTIVE
    assert min(found.served) >= 20.0


def test_a_run_is_judged_from_what_was_written() -> None:
    def row(name: str, at: float, tenant: str = "chat", **more: object) -> RequestRecord:
        made = RequestRecord(name, tenant=tenant, arrived=at, replica="a")
        return replace(made, **more)  # type: ignore[arg-type]  # by name

    ended = {"outcome": "completed"}
    records = [
        row("calm", 101.0, first_token=101.1, ended=102.0, **ended),
        row("stands by", 103.0, first_token=103.5, ended=104.0, replica="b", **ended),
        row("cut", 104.0, "nightly", first_token=104.1, outcome="upstream_failed"),
        row("refused", 104.5, outcome="queue_timeout"),
    ]
    samples = [
        FleetSample(101.0, "fleet", serving=1, standby=3),
        FleetSample(103.0, "fleet", serving=2, standby=2, started=1),
        FleetSample(105.0, "fleet", serving=2, standby=3, start_times=(2.0,)),
        FleetSample(106.0, "fleet", serving=1, standby=3),
    ]
    pulse = Pulse(base=2.0, burst=3.0, recovery=3.0)
    found = judged(pulse, 0, 100.0, clients=records, gateway=records, samples=samples)
    assert found.served == (1.5,)
    assert [(m.at, m.what) for m in found.moves] == [
        (1.0, "promoted"),
        (1.0, "launched"),
        (3.0, "ready"),
        (4.0, "released"),
    ]
    assert found.order == ("promoted", "launched", "ready", "released")
    assert found.refilled == 3.0
    assert (found.unanswered, found.cut) == (1, 1)
    assert found.p95[CORE, "base"] == pytest.approx(0.1)
    assert found.p95[CORE, "burst"] == math.inf  # a refused one never had its first token
    assert found.p95[BATCH, "burst"] == pytest.approx(0.1)


def test_over_real_processes_a_standby_is_promoted_and_refilled_and_no_stream_is_cut() -> None:
    found = uvloop.run(live(1, SHORT, setup=SMALL))
    trial = found.trial
    assert trial.requests == len(SHORT.requests(1))
    assert trial.order[:2] == ("promoted", "launched") == found.foretold.order[:2]
    assert trial.served
    assert trial.refilled is not None
    assert trial.cut == found.cut_by_scale_down == 0
    assert found.sent.lost == 0


def test_the_bench_tells_the_same_as_json_with_and_without_standbys() -> None:
    command = [sys.executable, "bench/standbys.py", "--seeds", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (run,) = told["runs"]
    assert told["problems"] == []
    assert run["simulated"]["ttft_p95"]["core/burst"] < OBJECTIVE
    assert run["simulated"]["refilled"] >= 20.0
    assert run["without_standbys"]["ttft_p95"]["core/burst"] is None  # too many were refused
    assert run["without_standbys"]["core_unanswered"] > 50


@pytest.mark.heavy  # three minutes of a quiet machine
def test_a_pulse_over_real_processes_keeps_every_bound_and_the_simulator_agrees() -> None:
    command = [sys.executable, "bench/standbys.py", "--live", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["streams_drained"] > 0  # there were some to cut
