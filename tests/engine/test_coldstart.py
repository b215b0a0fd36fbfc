"""Starts as drawn: their stages, caches and failures."""

from __future__ import annotations

import numpy as np
import pytest

from surgetank.engine import profile as profiles
from surgetank.engine.coldstart import ColdStart, of_profile, whole
from surgetank.engine.profile import Stage
from surgetank.simulation.fleet import Nodes, draw_start

STAGES = (
    Stage("weights", 20.0, 0.4, 3.0),
    Stage("compile", 50.0, 0.1, 7.0),
    Stage("kv", 12.0, 0.5),
)


def seconds(start: ColdStart, *, warm: bool = False, draws: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.array([start.draw(rng, warm_node=warm).seconds for _ in range(draws)])


def test_a_start_takes_the_sum_of_its_stages() -> None:
    drawn = ColdStart(STAGES).draw(np.random.default_rng(2), warm_node=False)
    assert [name for name, _ in drawn.stages] == ["weights", "compile", "kv"]
    assert drawn.seconds == pytest.approx(sum(s for _, s in drawn.stages))
    assert drawn.ending == "ready"


def test_each_stage_has_its_median_and_spread() -> None:
    rng = np.random.default_rng(3)
    taken = [dict(ColdStart(STAGES).draw(rng, warm_node=False).stages) for _ in range(4000)]
    logs = np.log([stages["weights"] for stages in taken])
    assert np.exp(np.median(logs)) == pytest.approx(20.0, rel=0.03)
    assert logs.std() == pytest.approx(0.4, rel=0.04)


def test_a_second_start_on_a_node_is_faster_where_caches_help() -> None:
    cold, warm = seconds(ColdStart(STAGES)), seconds(ColdStart(STAGES), warm=True)
    assert np.median(cold) == pytest.approx(85, rel=0.05)
    assert np.median(warm) == pytest.approx(23, rel=0.08)


def test_a_snapshot_replaces_all_stages() -> None:
    assert np.median(seconds(ColdStart(STAGES, snapshot_s=8.0))) == pytest.approx(8.0, rel=0.03)


def test_starts_fail_and_are_denied_as_often_as_told() -> None:
    rng = np.random.default_rng(4)
    start = ColdStart(STAGES, failure=0.25, denied=0.2, denied_s=3.0)
    drawn = [start.draw(rng, warm_node=False) for _ in range(4000)]
    share = {
        ending: sum(d.ending == ending for d in drawn) / 4000 for ending in ("failed", "denied")
    }
    assert share["denied"] == pytest.approx(0.2, abs=0.025)
    assert share["failed"] == pytest.approx(0.25 * 0.8, abs=0.025)
    assert {d.seconds for d in drawn if d.ending == "denied"} == {3.0}
    assert all(d.seconds < sum(s for _, s in d.stages) for d in drawn if d.ending == "failed")


def test_the_p95_guessed_is_near_the_one_drawn() -> None:
    start = ColdStart(STAGES)
    assert start.p95() == pytest.approx(float(np.percentile(seconds(start), 95)), rel=0.05)
    assert ColdStart(()).p95() == 0.0


def test_a_whole_start_has_the_mean_asked_for() -> None:
    assert seconds(whole(60.0)).mean() == pytest.approx(60.0, rel=0.02)


def test_a_standby_wakes_as_the_profile_says() -> None:
    found = profiles.find("h100-llama-3.1-8b-bf16-tp1")
    start = of_profile(found)
    assert start.stages == found.cold_start
    assert start.wake(np.random.default_rng(1)) == found.wake_s > 0


def test_a_used_node_is_taken_first_and_a_missing_one_denies() -> None:
    nodes = Nodes(2)
    first, second = nodes.take(), nodes.take()
    assert (first, second, nodes.take()) == (0, 1, None)
    nodes.loaded(0)
    nodes.give_back(0)
    assert nodes.take() == 0
    assert (nodes.warm(0), nodes.warm(1)) == (True, False)
    drawn = draw_start(ColdStart(STAGES), nodes, None, np.random.default_rng(1))
    assert drawn.ending == "denied"


@pytest.mark.parametrize("wrong", [{"failure": 1.5}, {"denied": -0.1}])
def test_impossible_shares_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        ColdStart(STAGES, **wrong)
