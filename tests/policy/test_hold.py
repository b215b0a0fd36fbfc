"""The scale-down delay and the guard against turning around, by themselves."""

from __future__ import annotations

import pytest

from surgetank.policy.hold import DirectionGuard, WantedLately


def test_the_most_of_the_window_is_held_until_it_leaves() -> None:
    wanted = WantedLately(300.0, 3, 0.0)
    wanted.add(8, 0, 10.0)
    wanted.add(2, 0, 20.0)
    assert wanted.most() == 8
    wanted.add(2, 0, 319.0)  # 8 held until 20
    assert wanted.most() == 8
    wanted.add(2, 0, 320.0)
    assert wanted.most() == 2


def test_what_a_tick_wanted_is_in_force_between_ticks() -> None:
    wanted = WantedLately(300.0, 3, 0.0)
    wanted.add(5, 0, 100.0)
    wanted.add(1, 0, 200.0)
    assert wanted.work(150.0) == 5
    assert wanted.work(200.0) == 1


def test_only_the_last_surge_is_taken_back_and_work_stays() -> None:
    wanted = WantedLately(300.0, 3, 0.0)
    wanted.add(3, 8, 10.0)
    wanted.add(3, 0, 20.0)
    wanted.add(4, 9, 100.0)
    wanted.add(3, 0, 110.0)
    wanted.take_back(100.0)
    assert wanted.most() == 8
    assert wanted.work() == 4


@pytest.mark.parametrize(
    ("step", "demand", "now", "allowed"),
    [
        (-1, 10.0, 70.0, True),  # the same direction is no turn
        (1, 10.0, 70.0, False),  # back again within 60 s of the last turn
        (1, 12.0, 70.0, False),  # 20 % is not more than 20 %
        (1, 12.1, 70.0, True),
        (1, 7.9, 70.0, True),
        (1, 10.0, 109.9, False),
        (1, 10.0, 110.0, True),
    ],
)
def test_a_second_turn_needs_a_start_time_or_a_move_of_demand(
    step: int, demand: float, now: float, *, allowed: bool
) -> None:
    guard = DirectionGuard(0.2)
    assert guard.allows(1, 5.0, 60.0, 0.0)
    guard.moved(1, 5.0, 0.0)
    assert guard.allows(-1, 10.0, 60.0, 50.0)  # the first turn is free
    guard.moved(-1, 10.0, 50.0)
    assert guard.allows(step, demand, 60.0, now) is allowed
