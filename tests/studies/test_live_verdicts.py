"""Live rehearsals: the fault that a replica is asked for is the one that was simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import uvloop

from surgetank.loadtest.phases import ORDER, PULSE, locate, phases_of
from surgetank.loadtest.runfile import Run
from surgetank.loadtest.sameschedule import difference
from surgetank.mockengine.faults import Faults, build
from surgetank.studies.live_verdicts import REFERENCE, Bed, fault_of, run_side_by_side
from surgetank.studies.rehearsal import Planted, Pulses, speed_of

PULSES = Pulses(base=15, peak=80, width=1, period=4, cycles=5)


@pytest.mark.parametrize(
    "planted",
    [
        Planted(fault="slower pulses", size=0.10),
        Planted(fault="slower recovery", size=0.5, capacity=50.0),
        Planted(fault="slower recovery", size=9.0, capacity=50.0),  # longer than to the next pulse
    ],
)
def test_a_replica_is_as_slow_as_the_simulated_one_at_every_moment(planted: Planted) -> None:
    asked = fault_of(PULSES, planted)
    assert asked is not None
    faults = Faults([build(asked)], 0, 0.0)
    at = np.arange(0.0005, PULSES.duration, 0.01)
    simulated = speed_of(at, PULSES, phases_of(PULSES), planted)
    live = np.array([1 / faults.slowness(t)[0] for t in at.tolist()])
    assert (simulated < 1).any()
    assert live == pytest.approx(simulated)


def test_nothing_is_asked_for_where_nothing_is_planted() -> None:
    assert fault_of(PULSES, Planted()) is None
    refusing = build(fault_of(PULSES, Planted(fault="refusals", size=0.02)) or {})
    assert (refusing.status, refusing.share) == (503, 0.02)


@pytest.mark.heavy  # starts three processes; some ten seconds
def test_live_runs_go_side_by_side_on_one_schedule_and_have_their_faults() -> None:
    pulses = replace(Bed().pulses, cycles=2)
    planted = {
        "slower": Planted(fault="slower pulses", size=2.0),
        "refusing": Planted(fault="refusals", size=0.3),
    }
    runs = uvloop.run(run_side_by_side(replace(Bed(max_lag=1.0), pulses=pulses), planted))
    assert list(runs) == [REFERENCE, *planted]
    for run in runs.values():
        assert difference(runs[REFERENCE], run) is None
        assert len(run.samples) == len(runs[REFERENCE].samples) > 100
    assert _in_pulses(runs["slower"]) > 1.5 * _in_pulses(runs[REFERENCE])
    refused = (runs["refusing"].samples.status == 503).mean()
    assert 0.15 < refused < 0.45
    assert (runs[REFERENCE].samples.status == 200).all()


def _in_pulses(run: Run) -> float:
    phase, _ = locate(run.phases, run.samples.scheduled)
    waited = run.samples.first_token - run.samples.scheduled
    return float(waited[phase == ORDER.index(PULSE)].mean())
