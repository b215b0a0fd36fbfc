"""The live figures are those of analyze, and every second counts once."""

from __future__ import annotations

import json

import pytest

from surgetank.dashboard.burstiness import EVERY, Live
from surgetank.dashboard.observation import Observation, read_observation

from .pulse import Pulse

T = 1_800_000_000.0


def observed(pulse: Pulse) -> Observation:
    return read_observation(json.dumps(pulse.observation()).encode())


def test_the_figures_of_a_pulse_say_that_it_is_one_and_count_each_second_once() -> None:
    pulse, live = Pulse(begin=300, end=420), Live()
    total = 0
    for second in range(700):
        pulse.second()
        total += pulse.arrivals[-1][1]
        if second % 7 == 0 or second == 699:  # readings overlap: 30 seconds are told each time
            live.take(observed(pulse))
    found = live.figures()
    assert found.requests == total
    assert (found.shape, found.confident) == ("pulses", True)
    idc = dict(found.idc)
    assert idc[1] is not None
    assert idc[10] is not None
    assert idc[10] > 5 * idc[1] > 5
    assert found.seconds == pytest.approx(700, abs=1)


def test_a_gateway_that_begins_anew_goes_on_in_the_same_window() -> None:
    live = Live()
    for name in ("gw-1", "gw-2"):
        pulse = Pulse(gateway=name)
        for _ in range(20):
            pulse.second()
        live.take(observed(pulse))
    assert live.figures().requests > 1.5 * sum(row[1] for row in pulse.arrivals)


def test_figures_are_due_every_ten_seconds_once_there_are_arrivals() -> None:
    pulse, live = Pulse(), Live()
    assert not live.due(T)
    pulse.second()
    live.take(observed(pulse))
    assert [live.due(T + s) for s in (0, 1, EVERY - 0.1, EVERY, EVERY + 1)] == [
        True, False, False, True, False,
    ]  # fmt: skip
    assert not live.figures().confident
