"""The simulation in machine code gives the figures of the one that goes event by event."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.simulation.bulk import hindrance, simulate_bulk, simulate_fast
from surgetank.simulation.clients import KINDS
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.summary import summarise
from surgetank.simulation.workload import of_batch
from surgetank.traffic.trace import Batch, Labels
from tests.simulation.build import bursts, engine, load, scenario

OWN = {"events", "wall_s"}  # of the way that a run was made


def figures(result: Any) -> dict[str, Any]:
    return {k: v for k, v in asdict(summarise(result)).items() if k not in OWN}


def same(found: Any, expected: Any) -> None:
    """Numbers but for rounding, all else exactly."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    else:
        assert found == expected


def mixed(seed: int, rows: int = 300, rate: float = 60.0) -> Scenario:
    """Two models, three tenants, priorities, bounds, cached prompts, and requests too long."""
    rng = np.random.default_rng(seed)
    batch = Batch(
        arrived=np.sort(np.round(bursts(rows, rate, seed), 2)),  # many at once
        prompt_tokens=rng.integers(1, 1100, rows),
        output_tokens=rng.integers(1, 200, rows),
        cached_tokens=rng.integers(-1, 500, rows),
        max_tokens=rng.integers(-1, 150, rows),
        priority=rng.integers(-1, 3, rows),
        tenant=Labels(rng.integers(-1, 3, rows).astype(np.int32), ("a", "b", "c")),
        model=Labels(rng.integers(0, 2, rows).astype(np.int32), ("big", "small")),
    )
    profile = engine(
        b_us=50.0,
        d_us=30.0,
        e_ns=30.0,
        kv_blocks=70,
        max_model_len=1024,
        max_num_seqs=8,
        max_queued=12,
        scheduling="priority",
    )
    pools = tuple(
        PoolPlan(model=name, profile=profile, replicas=n) for name, n in (("big", 3), ("small", 2))
    )
    return Scenario(workload=of_batch(batch), pools=pools, policy="passthrough")


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(("passthrough", "passthrough:round_robin")),
    rate=st.sampled_from((10.0, 60.0, 200.0)),
)
def test_every_figure_and_time_is_the_same(*, seed: int, policy: str, rate: float) -> None:
    made = replace(mixed(seed, rate=rate), policy=policy)
    assert hindrance(made) is None
    one, other = simulate_bulk(made), simulate(made)
    assert one is not None
    for name in ("ttft", "tpot", "ended"):  # where a stretch of steps is cut, it is rounded
        np.testing.assert_allclose(
            getattr(one.requests, name), getattr(other.requests, name), rtol=1e-9, atol=1e-9
        )
    for name in ("outcome", "attained", "tries"):
        np.testing.assert_array_equal(getattr(one.requests, name), getattr(other.requests, name))
    same(figures(one), figures(other))
    for record, like in zip(one.records(), other.records(), strict=True):
        same(asdict(record), asdict(like))
    assert summarise(one).preemptions > 0 or rate < 60


def test_requests_shed_and_rejected_are_refused() -> None:
    total = summarise(simulate_fast(mixed(1, rate=200.0)))
    assert total.refused > 0
    assert total.requests == total.completed + total.refused + total.failed


def test_a_fleet_too_far_behind_gives_up_as_event_by_event() -> None:
    made = scenario(
        load(np.zeros(50), output=100),
        policy="passthrough",
        profile=engine(max_num_seqs=1),
        patience_after=10.0,
    )
    assert hindrance(made) is None
    assert simulate_bulk(made) is None
    total = summarise(simulate_fast(made))
    assert (total.completed, total.unfinished) == (9, 41)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "surgetank"}, "decides on every request"),
        ({"policy": "fifo-cap:4"}, "decides on every request"),
        ({"clients": KINDS["sdk"]}, "clients"),
        ({"engine": "literal"}, "step-by-step"),
        ({"replicas": 0, "max_replicas": 1}, "no replica"),
    ],
)
def test_what_cannot_be_in_bulk_says_why(changes: dict[str, Any], words: str) -> None:
    made = scenario(load([0.0, 1.0]), **({"policy": "passthrough"} | changes))
    assert words in (hindrance(made) or "")


def test_an_empty_workload_is_no_trouble() -> None:
    made = scenario(load([0.0]).first(0), policy="passthrough")
    assert figures(simulate_fast(made)) == figures(simulate(made))
