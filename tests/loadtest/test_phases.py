"""Phases: where a moment of a run belongs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.loadtest.phases import (
    ORDER,
    Cycle,
    Phase,
    cycles,
    locate,
    phases_between,
    phases_of,
)


@dataclass(frozen=True)
class _Pulse:
    width: float = 30.0
    period: float = 90.0
    onset: float = 30.0
    duration: float = 600.0


def test_a_cycle_is_calm_pulse_recovery_and_the_rest_is_the_next_calm() -> None:
    found = phases_of(_Pulse(width=10, period=60, onset=25, duration=120))
    assert found == (
        Phase("base", 0, 0, 25),
        Phase("pulse", 0, 25, 35),
        Phase("recovery", 0, 35, 45),
        Phase("base", 1, 45, 85),
        Phase("pulse", 1, 85, 95),
        Phase("recovery", 1, 95, 105),
        Phase("base", 2, 105, 120),
    )


def test_a_recovery_ends_where_the_next_pulse_begins() -> None:
    found = phases_of(_Pulse(width=60, period=90, onset=15, duration=195))
    assert [(p.name, p.start, p.end) for p in found] == [
        ("base", 0, 15),
        ("pulse", 15, 75),
        ("recovery", 75, 105),
        ("pulse", 105, 165),
        ("recovery", 165, 195),
    ]


def test_a_run_without_a_pulse_is_one_calm() -> None:
    assert phases_between([], 10) == (Phase("base", 0, 0, 10),)
    assert phases_between([(20, 30)], 10) == (Phase("base", 0, 0, 10),)


def test_a_cycle_cut_by_the_end_of_the_run_is_not_whole() -> None:
    found = cycles(phases_of(_Pulse()))  # pulses at 30, 120, ... 570 to 600
    assert [c.whole for c in found] == [True] * 6 + [False]
    assert found[0] == Cycle(0, 0, 30, 60, 90, 120, whole=True)
    assert found[5] == Cycle(5, 450, 480, 510, 540, 570, whole=True)


def test_the_last_recovery_needs_no_more_time_than_the_others() -> None:
    found = cycles(phases_of(_Pulse(width=60, period=90, onset=15, duration=195)))
    assert [c.whole for c in found] == [True, True]


def test_a_run_that_was_cut_off_keeps_the_cycles_that_were_done() -> None:
    found = cycles(phases_of(_Pulse()), done=181.0)
    assert [c.whole for c in found] == [True, True, False, False, False, False, False]
    assert found[1].until == 181.0  # and not 210, where the next pulse would have begun


@pytest.mark.parametrize(
    ("pulses", "told"),
    [
        ([(5, 4)], "from 5 to 4"),
        ([(1, 2), (1.5, 3)], "must come after 2"),
        ([(-1, 2)], "from -1"),
        ([(1, float("inf"))], "from 1"),
    ],
)
def test_pulses_out_of_order_are_refused(pulses: list[tuple[float, float]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        phases_between(pulses, 10)


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"width": 90}, {"onset": -1}, {"duration": 0}, {"period": 0}]
)
def test_a_profile_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must have"):
        phases_of(_Pulse(**wrong))


@given(
    st.floats(0.1, 50),
    st.floats(0.1, 50),
    st.floats(0, 40),
    st.floats(1, 500),
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_every_moment_of_a_run_has_one_phase(
    width: float, calm: float, onset: float, duration: float, places: list[float]
) -> None:
    phases = phases_of(_Pulse(width, width + calm, onset, duration))
    assert phases[0].start == pytest.approx(0, abs=1e-8)
    assert phases[-1].end == pytest.approx(duration, abs=1e-8)
    for before, after in pairwise(phases):
        assert before.end == pytest.approx(after.start, abs=1e-8)
    at = np.array(places) * phases[-1].end
    names, numbers = locate(phases, at)
    for moment, name, number in zip(at, names, numbers, strict=True):
        near = [p for p in phases if p.start - 1e-8 <= moment <= p.end + 1e-8]
        assert (ORDER[name], number) in {(p.name, p.cycle) for p in near}


def test_moments_outside_a_run_have_no_phase() -> None:
    names, numbers = locate(phases_between([(2, 4)], 10), np.array([-0.1, 0.0, 10.0, 10.1]))
    assert names.tolist() == [-1, 0, 0, -1]
    assert numbers.tolist() == [-1, 0, 1, -1]
    assert locate((), np.array([1.0]))[0].tolist() == [-1]
