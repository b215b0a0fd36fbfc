"""The arena: how a knob is chosen, what is scored, and that its own checks can fail."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.engine.coldstart import ColdStart
from surgetank.engine.profile import Stage
from surgetank.errors import InputError
from surgetank.simulation.arena import table
from surgetank.simulation.arena.cell import BOUND, FEASIBLE, Cell, Choice, Court, compete, court
from surgetank.simulation.arena.contenders import CONTENDERS
from surgetank.simulation.arena.grid import Grid, run
from surgetank.simulation.arena.score import Score, missed, score
from surgetank.simulation.arena.trial import FIRST, SECOND, WARM_UP, Price, Trial, choose, least
from surgetank.simulation.arena.workloads import SCENARIOS, draw
from surgetank.simulation.policies import policy
from surgetank.simulation.run import Course, simulate
from surgetank.simulation.scenario import Objective, Scenario
from tests.simulation.build import load, scenario


def seen(attainment: float, hours: float, standby: float = 0.0) -> Score:
    return Score(100, attainment, hours, standby, 0.1, 0.2, 0.3, None, 0, 1.0)


class Known:
    """A trial whose figures are known."""

    def __init__(
        self, attainment: float, hours: float, standby: float = 0.0, at: float = 0.0
    ) -> None:
        self.seen, self.at, self.asked = seen(attainment, hours, standby), at, 0

    def keeps(self, target: float, half: int, most: Price | None = None) -> bool:
        self.asked += 1
        cheap = most is None or self.seen.cost(most.standby_cost) < most.hours
        return cheap and self.seen.attainment >= target

    def lasted(self, target: float, half: int) -> float:
        return self.at

    def score(self, half: int) -> Score:
        return self.seen


def test_the_cheapest_knob_that_kept_the_target_is_chosen() -> None:
    tried = [(0.2, Known(0.99, 5.0)), (0.4, Known(0.96, 3.0)), (0.6, Known(0.90, 2.0))]
    assert choose(tried, 1.0, 0.95) == (0.4, True)
    assert choose(tried, 1.0, 0.98) == (0.2, True)


def test_where_no_knob_keeps_the_target_the_one_that_lasted_is_taken() -> None:
    tried = [(0.2, Known(0.9, 5.0, at=400)), (0.4, Known(0.9, 4.0, at=700)), (0.6, Known(0.8, 3.0))]
    assert choose(tried, 1.0, 0.95) == (0.4, False)
    assert choose([(k, Known(0.9, 5.0, at=400)) for k in (0.2, 0.4)], 1.0, 0.95) == (0.2, False)
    late = [(0.2, Known(0.1, 5.0, at=700)), (0.4, Known(0.9, 4.0, at=400))]
    assert choose(late, 1.0, 0.95, FIRST) == (0.2, False)
    assert choose(late, 1.0, 0.95, SECOND) == (0.4, False)


def test_a_costlier_knob_is_taken_where_it_costs_less_after_all() -> None:
    tried = [(0.2, Known(0.99, 2.4)), (0.4, Known(0.99, 3.0, standby=3.0)), (0.6, Known(0.99, 2.5))]
    assert choose(tried, 1.0, 0.95) == (0.2, True)
    assert choose(tried, 0.25, 0.95) == (0.4, True)


@given(
    st.lists(st.tuples(st.floats(0.9, 1.0), st.floats(1.0, 9.0)), min_size=5, max_size=5),
    st.floats(0.9, 1.0),
)
def test_no_knob_that_kept_the_target_costs_less_than_the_one_that_is_chosen(
    drawn: list[tuple[float, float]], target: float
) -> None:
    tried = [(float(i), Known(kept, cost)) for i, (kept, cost) in enumerate(drawn)]
    knob, reached = choose(tried, 1.0, target)
    costs = [cost for kept, cost in drawn if kept >= target]
    assert reached == bool(costs)
    assert not costs or drawn[int(knob)][1] == min(costs)


@given(st.lists(st.floats(0.0, 1.0), min_size=24, max_size=24), st.floats(0.0, 1.0))
def test_halving_finds_the_least_number_that_keeps_the_target(
    drawn: list[float], target: float
) -> None:
    rising = sorted(drawn)
    found = least(lambda n: Known(rising[n - 1], float(n)), 1, 24, target, FIRST)
    fitting = [n for n in range(1, 25) if rising[n - 1] >= target]
    assert found == ((fitting[0], True) if fitting else (24, False))


def row(name: str, cost: float, attainment: float | None, **more: Any) -> dict[str, Any]:
    return {
        "policy": name, "workload": "pulses", "start": 60.0, "seed": 0, "standbys": 2,
        "standby_cost": 1.0, "target": 0.95, "cost": cost, "attainment": attainment, **more,
    }  # fmt: skip


def test_whoever_is_below_the_bound_is_told() -> None:
    good = [row(BOUND, 2.0, None), row(FEASIBLE, 3.0, 0.96), row("hpa", 4.0, 0.97)]
    assert table.problems(good) == []
    bad = [*good, row("wizard", 1.9, 0.95)]
    assert any(p.startswith("BELOW the bound: wizard") for p in table.problems(bad))
    missed = [*good, row("wizard", 1.9, 0.94)]  # who missed the target may be cheaper
    assert table.problems(missed) == []
    lucky = [*good, row("lucky", 2.5, 0.95)]
    told = "lucky beats the feasible schedule: 2.50 < 3.00 (pulses, start 60 s, seed 0, standby 1"
    assert [p.startswith(told) for p in table.problems(lucky)] == [True]


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_scenario_is_drawn_by_its_seed_within_its_time(name: str) -> None:
    one, same, other = draw(name, 5), draw(name, 5), draw(name, 6)
    assert one.workload.arrived.tolist() == same.workload.arrived.tolist()
    assert one.workload.arrived.tolist() != other.workload.arrived.tolist()
    assert one.workload.arrived[0] >= 0
    assert one.workload.arrived[-1] < 2 * one.half
    assert 0.25 < (one.workload.arrived < one.half).mean() < 0.75
    assert one.workload.prompt.max() <= 16_000


def test_names_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match="scenario tides: must be one of azure-code"):
        draw("tides", 0)
    with pytest.raises(InputError, match="policy oracle: must be one of static"):
        compete(Cell("pulses", 60.0, 0), "oracle")


class _Here:
    """An Executor that runs at once."""

    def submit(self, call: Any, /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args))
        return future


@pytest.mark.heavy
def test_one_cell_is_run_kept_and_gone_on_with(tmp_path: Path) -> None:
    cell, out = Cell("pulses", 20.0, 0), tmp_path / "arena.parquet"
    policies = (BOUND, FEASIBLE, "static", "hpa", "surgetank")
    rows = run(Grid((cell,), policies), _Here(), out, workers=1)  # type: ignore[arg-type]
    assert len(rows) == len(policies) * 4
    assert not [p for p in table.problems(rows) if p.startswith("BELOW")]
    again: list[tuple[int, int]] = []
    told = run(
        Grid((cell,), policies),
        _Here(),  # type: ignore[arg-type]
        out,
        workers=1,
        progress=lambda done, of: again.append((done, of)),
    )
    assert again == [(len(policies), len(policies))]
    assert told == rows
    assert "| hpa |" in table.text(rows)
    assert "pulses" in table.page(rows)


@pytest.mark.heavy
@pytest.mark.parametrize("name", list(CONTENDERS))
def test_every_contender_runs_in_a_cell(name: str) -> None:
    here, contender = court(Cell("pulses", 20.0, 0)), CONTENDERS[name]
    knob = contender.values[0] if contender.values else 4.0
    found = here.trial(contender, knob).score(FIRST)
    arrived = here.load.workload.arrived
    assert found.requests == np.sum((arrived >= WARM_UP) & (arrived < here.half - 1.0))
    assert 0 < found.replica_hours < 24 * here.half / 3600
    assert isinstance(Choice("w", 1.0, 0, 1.0, 0.9, name, knob, True, 1.0, found).row(), dict)


@pytest.mark.heavy
def test_a_fixed_number_scores_the_same_whatever_a_start_takes() -> None:
    one, other = (
        Court(Cell("pulses", start, 0)).trial(CONTENDERS["static"], 4.0).score(SECOND)
        for start in (20.0, 155.0)
    )
    assert one == other


def crowded(seed: int) -> Scenario:
    """Two halves of 400 s that one replica serves but for a crowd in either."""
    rng = np.random.default_rng(seed)
    calm = rng.uniform(0, 800, 400)
    crowds = [rng.uniform(at, at + 20, 200) for at in (345, 690)]
    start = ColdStart((Stage("start", 9.0, 0.3),))
    return scenario(
        load(np.sort(np.concatenate([calm, *crowds])), output=60),
        replicas=1, max_replicas=3, slots=4, start=start, seed=seed,
        objective=Objective(ttft=1.0, tpot=0.1), metric_lag=1.0, patience_after=120.0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["surgetank", "kpa", "static:2"])
def test_a_run_that_is_looked_at_comes_to_what_one_at_a_stretch_does(name: str) -> None:
    made = crowded(1)
    whole = simulate(made, chosen=policy(name))
    course = Course(made, policy(name))
    for at in (100.0, 350.5, 400.0, 777.0, 5000.0, 6000.0):
        course.until(at)
    looked = course.rest()
    assert [r.to_line() for r in looked.records()] == [r.to_line() for r in whole.records()]
    assert looked.samples == whole.samples
    assert (looked.end, looked.replica_hours) == (whole.end, whole.replica_hours)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["kpa", "static:1"])
def test_a_trial_that_stops_early_answers_as_one_that_does_not(name: str, seed: int) -> None:
    made = crowded(seed)
    whole = score(simulate(made, chosen=policy(name)), 400.0, 800.0)
    for target in (0.6, 0.95, whole.attainment):
        assert fresh(made, name).keeps(target, SECOND) == (whole.attainment >= target)
        cost = whole.cost(0.25)
        dear, cheap = Price(0.25, cost * 0.9), Price(0.25, cost * 1.1)
        trial = fresh(made, name)
        assert not trial.keeps(target, SECOND, dear)
        assert trial.keeps(target, SECOND, cheap) == (whole.attainment >= target)
        assert trial.score(SECOND) == whole
        first = trial.score(FIRST)
        assert fresh(made, name).keeps(target, FIRST) == (first.attainment >= target)


def fresh(made: Scenario, name: str) -> Trial:
    return Trial(lambda: Course(made, policy(name)), 400.0, 1.0)


def test_who_waits_within_the_objective_is_not_yet_missed() -> None:
    at_a_look = [759.9] * 10  # four are answered at once, the others within half a second
    made = scenario(
        load([*np.arange(0.5, 759.0, 4.0), *at_a_look, 790.0]),
        slots=4, objective=Objective(ttft=1.0), patience_after=60.0,
    )  # fmt: skip
    assert missed(Course(made, policy("static:1")).until(760.0), 400.0, 760.0) > 0
    assert fresh(made, "static:1").keeps(1.0, SECOND)
