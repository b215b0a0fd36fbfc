"""In an overload of all tiers the ladder keeps the core, comes down again, and replays the same."""

from __future__ import annotations

import pytest

from surgetank.policy.journal import replay
from surgetank.studies.ladder import reversals, run


def test_the_core_is_kept_in_an_overload_and_the_ladder_comes_down_without_turning_back() -> None:
    lines: list[str] = []
    found = run(0, ladder=True, replicas=1, lasts=20.0, most=16, journal=lines.append)
    core, standard, batch = found.served
    assert core.ttft_p95 < 0.8
    assert core.answered == 1.0
    assert found.highest >= 1
    assert found.reversals <= 1
    assert found.last == 0
    assert found.told > 0
    assert all(abs(step.level - step.was) == 1 for step in found.steps)
    assert replay(lines) is None
    without = run(0, ladder=False, replicas=1, lasts=20.0, most=16)
    assert without.served[0].in_time < core.in_time - 0.1
    assert core.in_time > 0.95
    assert not without.steps
    assert not without.told
    assert {standard.tier, batch.tier} == {"standard", "batch"}


@pytest.mark.parametrize(
    ("moves", "count"),
    [([], 0), ([1, 1, -1, -1], 0), ([1, -1, 1, -1], 1), ([1, -1, 1, 1, -1, -1, 1], 2)],
    ids=["none", "up and down", "one", "two"],
)
def test_a_reversal_is_a_step_up_after_one_down(moves: list[int], count: int) -> None:
    assert reversals(moves) == count


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(5))
def test_over_five_seeds_the_core_keeps_its_objective(seed: int) -> None:
    found = run(seed, ladder=True)
    assert found.served[0].ttft_p95 < 0.8
    assert found.reversals <= 1
    assert found.last == 0
