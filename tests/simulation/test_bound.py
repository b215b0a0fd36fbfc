"""The clairvoyant bound: against brute force, and against what can be said by hand."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.errors import InputError
from surgetank.simulation.bound import (
    Bound,
    Fleet,
    Work,
    least_work,
    shortest_start,
    solve,
    unavoidable,
)
from surgetank.simulation.schedule import Scheduled
from tests.simulation.build import engine, load
from tests.simulation.test_baselines import seen

_GRID = 0.5  # replicas: what brute force tries


def work(rows: list[tuple[float, float, float]]) -> Work:
    """Of (arrived, seconds of an engine, due)."""
    table = np.array(rows, float).reshape(-1, 3)
    nothing = np.zeros(len(table))
    return Work(table[:, 0], table[:, 1], table[:, 2], nothing, table[:, 2])


def test_one_second_of_work_in_each_second_takes_one_replica() -> None:
    rows = [(float(t), 1.0, float(t)) for t in range(10)]
    found = solve(work(rows), Fleet(60.0, least=0, most=9), 1.0, end=10.0)
    assert found.replica_hours * 3600 == pytest.approx(10.0)
    assert found.serving == pytest.approx(np.ones(10))


def test_what_may_wait_is_spread_over_its_slack() -> None:
    found = solve(work([(0.0, 4.0, 3.5)]), Fleet(0.0, least=0, most=1), 1.0, end=4.0)
    assert found.replica_hours * 3600 == pytest.approx(4.0)
    with pytest.raises(InputError):
        solve(work([(0.0, 4.0, 2.5)]), Fleet(0.0, least=0, most=1), 1.0, end=4.0)


def test_a_start_is_paid_for_but_not_at_the_beginning() -> None:
    late = solve(work([(5.0, 1.0, 5.0)]), Fleet(2.0, least=0, most=9), 1.0, end=6.0)
    assert late.replica_hours * 3600 == pytest.approx(3.0)  # 1 of work, 2 of its start
    early = solve(work([(0.0, 1.0, 0.0)]), Fleet(2.0, least=0, most=9), 1.0, end=6.0)
    assert early.replica_hours * 3600 == pytest.approx(1.0)


def test_a_cheap_standby_bridges_what_a_start_would_cost_more_for() -> None:
    twice = work([(0.0, 1.0, 0.0), (5.0, 1.0, 5.0)])
    dear = solve(twice, Fleet(8.0, least=0, most=9), 1.0, end=6.0)
    assert dear.replica_hours * 3600 == pytest.approx(6.0)  # kept serving: 4 s idle < 8 s
    cheap = solve(twice, Fleet(8.0, 0.25, least=0, most=9), 1.0, end=6.0)
    assert cheap.replica_hours * 3600 == pytest.approx(2.0 + 4 * 0.25)


def test_the_largest_requests_may_be_dropped_up_to_the_allowed_misses() -> None:
    rows = [(0.0, 1.0, 0.0)] * 9 + [(3.0, 5.0, 3.0)]
    fleet = Fleet(0.0, least=0, most=20)
    assert solve(work(rows), fleet, 1.0, end=4.0).replica_hours * 3600 == pytest.approx(14.0)
    nine = solve(work(rows), fleet, 0.9, end=4.0)
    assert nine.replica_hours * 3600 == pytest.approx(9.0)
    assert nine.dropped == pytest.approx(5 / 14)


def test_no_fleet_is_enough_says_so() -> None:
    with pytest.raises(InputError, match=r"no fleet of 2 replicas attains 100\.0%"):
        solve(work([(0.0, 5.0, 0.0)]), Fleet(0.0, least=0, most=2), 1.0, end=1.0)


def brute(
    amounts: list[float], slack: int, fleet: Fleet, steps: int
) -> tuple[float, tuple[float, ...]]:
    """The least cost over every fleet on the grid: serving and loaded are alike (standby 1)."""
    levels = np.arange(fleet.least, fleet.most + _GRID / 2, _GRID).tolist()
    best = (np.inf, ())
    for plan in product(levels, repeat=steps):
        backlog: list[list[float]] = []  # [work left, last step that is in time]
        kept = True
        for step, room in enumerate(plan):
            if amounts[step]:
                backlog.append([amounts[step], step + slack])
            left = room
            for entry in backlog:  # earliest deadline first: they are in that order
                used = min(left, entry[0])
                entry[0] -= used
                left -= used
            kept = all(entry[0] <= 1e-9 or entry[1] > step for entry in backlog)
            if not kept:
                break
        if kept:
            ups = sum(max(0.0, b - a) for a, b in pairwise(plan))
            best = min(best, (sum(plan) + fleet.start * ups, plan))
    return best


@given(
    amounts=st.lists(st.integers(0, 4), min_size=2, max_size=4),
    slack=st.integers(0, 2),
    start=st.sampled_from([0.0, 0.5, 2.0]),
)
@settings(max_examples=40, deadline=None)
def test_it_agrees_with_brute_force_on_small_cases(
    amounts: list[int], slack: int, start: float
) -> None:
    halves = [amount * _GRID for amount in amounts]
    steps = len(halves)
    rows = [(float(t), a, float(t + slack)) for t, a in enumerate(halves) if a]
    fleet = Fleet(start, least=0, most=2)
    cost, _ = brute(halves, slack, fleet, steps)
    found = solve(work(rows), fleet, 1.0, end=float(steps))
    assert found.replica_hours * 3600 <= cost + 1e-6
    # its own fleet, rounded up to the grid, is one that brute force has tried
    up = np.ceil(found.serving / _GRID - 1e-9) * _GRID
    rounded = float(up.sum() + start * np.maximum(0.0, np.diff(up)).sum())
    assert cost <= rounded + 1e-6


def test_the_least_work_of_a_request_is_its_own_terms_and_its_share_of_steps() -> None:
    profile = engine(a_ms=10.0, b_us=100.0, c_ns=1000.0, d_us=50.0, e_ns=100.0, max_num_seqs=10)
    found = least_work(load([0.0], prompt=1000, output=101), profile, 1.0, 0.1)
    # 1000 x 100 us + 1000^2 / 2 x 1 us = 0.1 + 0.5 s
    assert found.prefill == pytest.approx([0.1 + 0.5e-3 * 1000])
    # 100 steps x (50 us + 100 ns x 1,050.5) + a tenth of 10 ms for each
    assert found.decode == pytest.approx([100 * (50e-6 + 1e-7 * 1050.5) + 100 * 1e-3])
    assert found.prefill_due == pytest.approx([1.0])
    assert found.decode_due == pytest.approx([11.0])


def test_a_burst_is_unavoidable_until_a_start_could_be_ready() -> None:
    base = np.arange(0.0, 600.0, 0.5)  # 2/s
    burst = np.arange(300.0, 360.0, 0.1)  # and 10/s more for 60 s
    both = load(np.sort(np.concatenate([base, burst])))
    found = unavoidable(both, start=20.0)
    assert found == pytest.approx(20 * (12 - 4) / len(both), rel=0.05)
    assert unavoidable(load(base), start=20.0) == 0.0


def test_a_schedule_is_ready_when_it_is_needed() -> None:
    serving = np.array([1.0, 1.0, 1.0, 2.4, 1.0])
    loaded = np.array([1.0, 1.0, 1.0, 2.4, 2.0])
    found = Bound(0.0, 10.0, 1.0, serving, loaded, 0.0)
    scaler = Scheduled(found, lead=2.0, wake=1.0, least=1, most=9)
    plans = [scaler.tick(seen(1), 10.0 + t) for t in range(6)]
    assert [p.replicas for p in plans] == [1, 1, 3, 3, 1, 1]
    assert [p.replicas + p.standbys for p in plans] == [1, 3, 3, 3, 2, 2]


def test_the_shortest_start_is_below_the_mean() -> None:
    assert shortest_start(60.0) == pytest.approx(60 * np.exp(-0.02 - 0.466), rel=1e-6)
