"""Planted faults are found, and equal services are not called different."""

from __future__ import annotations

import numpy as np
import pytest

from surgetank.loadtest.phases import ORDER, locate
from surgetank.loadtest.runfile import Run, Seconds, encode
from surgetank.studies.rehearsal import Planted, Pulses, Service, rehearse
from surgetank.studies.verdict_power import Case, Score, doubling, ratio, score

_CAPACITY = 67.0
_SHORT = Pulses(cycles=8)
_SLOWER = Planted(fault="slower pulses", size=0.10)
_REFUSALS = Planted(fault="refusals", size=0.02)


def _score(planted: Planted, pairs: int, pulses: Pulses = _SHORT) -> Score:
    return score(Case(name="", pulses=pulses, service=Service(), planted=planted), pairs)


def test_the_same_seeds_give_the_same_run_and_others_another() -> None:
    pulses = Pulses(cycles=2)
    assert encode(rehearse(pulses, Service(seed=3))) == encode(rehearse(pulses, Service(seed=3)))
    a, b = rehearse(pulses, Service(seed=3)), rehearse(pulses, Service(seed=4))
    assert (a.samples.scheduled == b.samples.scheduled).all()
    assert not (a.samples.ended == b.samples.ended).all()


def test_a_fault_is_where_it_was_planted_and_nowhere_else() -> None:
    alone = Pulses(base=0.02, peak=0.05, cycles=60)  # each request has the engine to itself
    usual, slower = (rehearse(alone, Service(), planted) for planted in (None, _SLOWER))
    phase = locate(usual.phases, usual.samples.scheduled)[0]
    longer = _served(slower) / _served(usual)
    assert np.median(longer[phase == ORDER.index("pulse")]) == pytest.approx(1.10, abs=1e-3)
    assert np.median(longer[phase == ORDER.index("base")]) == pytest.approx(1.0, abs=1e-9)


def _served(run: Run) -> Seconds:
    served: Seconds = run.samples.ended - run.samples.scheduled
    return served


def test_as_many_are_refused_as_planted() -> None:
    run = rehearse(_SHORT, Service(), _REFUSALS)
    refused = run.samples.status == 429
    assert refused.mean() == pytest.approx(0.02, abs=0.003)
    assert np.isnan(run.samples.first_token[refused]).all()


def test_planted_faults_are_found_in_a_few_short_runs() -> None:
    for planted in (_SLOWER, _REFUSALS):
        assert _score(planted, 3).verdicts == {"worse": 3}
    assert _score(Planted(), 5).different <= 1


@pytest.mark.heavy  # a quarter of a minute of CPU each
@pytest.mark.parametrize("fault", ["slower", "doubled", "refused"])
def test_of_100_runs_with_a_planted_fault_95_are_called_worse(fault: str) -> None:
    pulses = Pulses()
    planted = {
        "slower": lambda: _SLOWER,
        "doubled": lambda: doubling(pulses, Service(), _CAPACITY),
        "refused": lambda: _REFUSALS,
    }[fault]()
    found = _score(planted, 100, pulses)
    assert found.verdicts["worse"] >= 95
    if fault == "doubled":
        assert ratio(found) == pytest.approx(2.0, abs=0.15)


@pytest.mark.heavy
def test_of_100_pairs_of_equal_services_10_at_most_are_called_different() -> None:
    assert _score(Planted(), 100, Pulses()).different <= 10
