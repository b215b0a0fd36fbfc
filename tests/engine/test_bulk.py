"""Whole traces in machine code: equal to the batcher fed request by request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.engine.bulk import Results, Routing, run_fleet, run_trace
from surgetank.engine.literal import Batcher, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica
from tests.engine.drawn import profiles
from tests.engine.test_golden import CASES, COEFFICIENTS, rows, trace_of


@pytest.mark.parametrize("case", CASES)
def test_every_ttft_finish_time_and_preemption_equals_vllms(case: str) -> None:
    changes, preemptions = CASES[case]
    arrived, prompt, output, priority = np.array(trace_of(case)).T
    profile = EngineProfile(name=case, **COEFFICIENTS, **changes)
    results = run_trace(profile, arrived, prompt, output, priority=priority)
    ttft_ms, finish_ms, preempted = np.array(rows(case)).T
    np.testing.assert_allclose(results.ttft * 1e3, ttft_ms, rtol=0, atol=1e-6)
    np.testing.assert_allclose(results.finished_at * 1e3, finish_ms, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(results.preempted, preempted)
    assert results.preemptions == preemptions


def drawn(profile: EngineProfile, count: int, seed: int, *, leavers: bool) -> dict[str, Any]:
    """Make a trace that overloads the engine now and then; every fourth request leaves early."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(0.02, count) * (rng.random(count) < 0.8)  # a fifth come together
    arrived = np.cumsum(gaps)
    longest = profile.max_model_len
    prompt = rng.integers(1, longest, count)
    output = np.minimum(rng.integers(1, longest, count), longest - prompt)
    columns: dict[str, Any] = {
        "arrived": arrived,
        "prompt": prompt,
        "output": output,
        "priority": rng.integers(-2, 3, count),
        "cached": rng.integers(0, prompt + 1),
    }
    if leavers:
        stays = rng.random(count) < 0.75
        columns["abort_at"] = np.where(stays, np.nan, arrived + rng.exponential(0.3, count))
    return columns


def step_by_step(engine: Batcher | Replica, columns: dict[str, Any]) -> tuple[Any, ...]:
    """Feed a trace request by request; return first tokens, finishes, preemptions, shed."""
    count = len(columns["arrived"])
    first, finished = np.full(count, np.nan), np.full(count, np.nan)
    preempted, shed = np.zeros(count, int), np.zeros(count, bool)

    def run(until: float) -> None:
        while (due := engine.due) is not None and due < until:
            for event in engine.step(due):
                row = int(event.id)
                if event.kind is EventKind.FIRST_TOKEN:
                    first[row] = event.at
                elif event.kind is EventKind.FINISHED:
                    finished[row] = event.at
                elif event.kind is EventKind.PREEMPTED:
                    preempted[row] += 1

    leaves = columns.get("abort_at", np.full(count, np.nan))
    inputs = [(at, 0, i) for i, at in enumerate(columns["arrived"])]
    inputs += [(at, 1, i) for i, at in enumerate(leaves) if not np.isnan(at)]
    for at, kind, i in sorted(inputs):
        run(at)
        if kind:
            engine.abort(str(i), at)
        else:
            shed[i] = not engine.add(
                str(i),
                int(columns["prompt"][i]),
                int(columns["output"][i]),
                at,
                priority=int(columns["priority"][i]),
                cached_tokens=int(columns["cached"][i]),
            )
    run(np.inf)
    return first, finished, preempted, shed, engine.steps


def assert_equal(results: Results, expected: tuple[Any, ...]) -> None:
    first, finished, preempted, shed, steps = expected
    np.testing.assert_allclose(results.first_token_at, first, rtol=1e-9)
    np.testing.assert_allclose(results.finished_at, finished, rtol=1e-9)
    np.testing.assert_array_equal(results.preempted, preempted)
    np.testing.assert_array_equal(results.shed, shed)
    assert results.steps == steps


@settings(max_examples=30, deadline=None)
@given(profiles(), st.integers(0, 1 << 30), st.booleans())
def test_one_engine_equals_the_specification_and_the_replica(
    profile: EngineProfile,
    seed: int,
    leavers: bool,  # noqa: FBT001 - drawn
) -> None:
    columns = drawn(profile, 60, seed, leavers=leavers)
    results = run_trace(profile, **columns)
    assert_equal(results, step_by_step(Replica(profile), columns))
    assert_equal(results, step_by_step(Batcher(profile), columns))


@settings(max_examples=30, deadline=None)
@given(
    profiles(),
    st.integers(0, 1 << 30),
    st.integers(1, 5),
    st.sampled_from(["round_robin", "random", "least_outstanding"]),
    st.booleans(),
)
def test_each_engine_of_a_fleet_runs_what_was_sent_to_it(
    profile: EngineProfile,
    seed: int,
    replicas: int,
    routing: Routing,
    leavers: bool,  # noqa: FBT001 - drawn
) -> None:
    columns = drawn(profile, 80, seed, leavers=leavers)
    results = run_fleet(profile, **columns, replicas=replicas, routing=routing, seed=seed)
    sent = ~results.shed
    for e in range(replicas):
        mine = results.replica == e
        own = {name: column[mine] for name, column in columns.items()}
        first, finished, preempted, shed, _ = step_by_step(Batcher(profile), own)
        np.testing.assert_allclose(results.first_token_at[mine], first, rtol=1e-9)
        np.testing.assert_allclose(results.finished_at[mine], finished, rtol=1e-9)
        np.testing.assert_array_equal(results.preempted[mine], preempted)
        assert not shed.any()
    if profile.max_queued is None:
        assert sent.all()
    stayed = np.isnan(columns["abort_at"]) if leavers else np.ones(len(sent), bool)
    assert not np.isnan(results.finished_at[sent & stayed]).any()


def small(**changes: Any) -> EngineProfile:
    """Describe an engine that takes 10 ms a step."""
    settings_: dict[str, Any] = {"name": "small", "a_ms": 10.0, "b_us": 0.0, "c_ns": 0.0}
    settings_ |= {"d_us": 0.0, "e_ns": 0.0, "kv_blocks": 64, "max_model_len": 1024}
    return EngineProfile(**(settings_ | changes))


def test_round_robin_takes_turns() -> None:
    results = run_fleet(small(), np.arange(7.0), [8] * 7, [2] * 7, replicas=3)
    assert results.replica.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_random_routing_is_seeded_and_even() -> None:
    n = 3000
    trace = (np.arange(n) * 1.0, [8] * n, [2] * n)
    one, same, other = (
        run_fleet(small(), *trace, replicas=4, routing="random", seed=s).replica for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert np.bincount(one).min() > n / 4 * 0.85


def test_least_outstanding_avoids_the_engine_with_a_long_request_and_breaks_ties_by_turns() -> None:
    # 500 tokens take 5 s on engine 0; the others are idle again each second
    results = run_fleet(
        small(),
        [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0],
        [8] * 7,
        [500, 2, 2, 2, 2, 2, 2],
        replicas=3,
        routing="least_outstanding",
    )
    assert results.replica.tolist() == [0, 1, 2, 1, 2, 0, 1]


def test_a_request_that_leaves_before_its_first_token_has_none() -> None:
    results = run_trace(small(), [0.0, 0.0, 0.0], [8] * 3, [9] * 3, abort_at=[0.005, 0.055, np.nan])
    np.testing.assert_allclose(results.ttft, [np.nan, 0.01, 0.01])
    np.testing.assert_allclose(results.finished_at, [np.nan, np.nan, 0.09])
    assert not results.shed.any()


def test_a_full_engine_sheds() -> None:
    results = run_trace(small(max_queued=2), [0.0, 0.0, 0.0, 5.0], [8] * 4, [9] * 4)
    assert results.shed.tolist() == [False, False, True, False]
    assert np.isnan(results.finished_at).tolist() == [False, False, True, False]


def test_a_queue_longer_than_its_first_room_loses_nobody() -> None:
    n = 200_000  # three times the slots of the start, all at once
    results = run_trace(small(), np.zeros(n), np.ones(n), np.full(n, 2))
    # 64 fit at once (a block each), and two steps of 10 ms serve them
    assert results.finished_at.max() == pytest.approx(n / 64 * 0.02)
    np.testing.assert_allclose(np.diff(results.finished_at) >= 0, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrived": [1.0, 0.0]}, "arrived: .* must be rising"),
        ({"arrived": [0.0, np.inf]}, "must be finite"),
        ({"prompt": [1, 0]}, "prompt: 0 .* must be >= 1"),
        ({"output": [1, 5000]}, "must be <= max_model_len = 1024"),
        ({"prompt": [1]}, r"prompt has shape \(1,\): must be \(2,\)"),
        ({"cached": [0, -1]}, "cached: -1"),
        ({"abort_at": [np.nan, 0.5]}, "at arrival or later"),
        ({"replicas": 0}, "replicas = 0: must be >= 1"),
        ({"routing": "best"}, "routing = 'best'"),
    ],
)
def test_columns_that_are_no_trace_are_refused(changes: dict[str, Any], words: str) -> None:
    columns: dict[str, Any] = {
        "arrived": [0.0, 1.0],
        "prompt": [1, 1],
        "output": [1, 1],
        "replicas": 2,
    }
    with pytest.raises(ValueError, match=words):
        run_fleet(small(), **(columns | changes))
