"""The arena: how a knob is chosen, what is scored, and that its own checks can fail."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from surgetank.errors import InputError
from surgetank.simulation.arena import table
from surgetank.simulation.arena.cell import BOUND, FEASIBLE, Cell, Choice, choose, compete, court
from surgetank.simulation.arena.contenders import CONTENDERS
from surgetank.simulation.arena.grid import Grid, run
from surgetank.simulation.arena.score import Score
from surgetank.simulation.arena.workloads import SCENARIOS, draw


def seen(attainment: float, hours: float, standby: float = 0.0) -> Score:
    return Score(100, attainment, hours, standby, 0.1, 0.2, 0.3, None, 0, 1.0)


def test_the_cheapest_knob_that_kept_the_target_is_chosen() -> None:
    tried = [(0.2, seen(0.99, 5.0)), (0.4, seen(0.96, 3.0)), (0.6, seen(0.90, 2.0))]
    assert choose(tried, 1.0, 0.95) == (0.4, True)
    assert choose(tried, 1.0, 0.98) == (0.2, True)
    assert choose(tried, 1.0, 0.999) == (0.2, False)  # none: the one that kept the most


def test_a_cheaper_standby_can_change_the_choice() -> None:
    tried = [(0.2, seen(0.99, 5.0, standby=3.0)), (0.4, seen(0.99, 4.0))]
    assert choose(tried, 1.0, 0.95) == (0.4, True)
    assert choose(tried, 0.25, 0.95) == (0.2, True)


def row(name: str, cost: float, attainment: float | None, **more: Any) -> dict[str, Any]:
    return {
        "policy": name, "workload": "pulses", "start": 60.0, "seed": 0, "standby_cost": 1.0,
        "target": 0.95, "cost": cost, "attainment": attainment, **more,
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
    found = here.run(contender, knob, whole=False)
    assert found.requests == len(here.first_half)
    assert 0 < found.replica_hours < 24 * here.half / 3600
    assert isinstance(Choice("w", 1.0, 0, 1.0, 0.9, name, knob, True, 1.0, found).row(), dict)
