"""Two models' pools under one budget, in virtual time: who gets what in a burst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.autoscaler.spec import AutoscaleSpec, PoolConfig
from surgetank.errors import ConfigError
from surgetank.policy.plan import ScaleSpec
from tests.autoscaler.world import CONFIG, SCALE, World

SIGNALS = replace(SCALE, hindsight=False)  # what is wanted follows from the load of now alone
WARM = replace(SIGNALS, standbys=2, max_standbys=2)


def pools(
    budget: int, *, units: Sequence[int] = (1, 1), scale: ScaleSpec = SIGNALS, base: int = 1
) -> list[World]:
    """Worlds of as many models, whose controllers share a budget."""
    configs = tuple(
        replace(CONFIG, model=f"m{number}", units=each, scale=scale, base=base, max_replicas=8)
        for number, each in enumerate(units)
    )
    shared = AutoscaleSpec(pools=configs, budget=budget).shared()
    return [World(config, budget=shared) for config in configs]


def run(worlds: Sequence[World], seconds: int) -> list[int]:
    """Let all of them tick together; gives the units that exist after each second."""
    held = []
    for _ in range(seconds):
        for world in worlds:
            world.controller.decide(world.now)
        for world in worlds:
            world.controller.act(world.now)
        for world in worlds:
            world.until(world.now + 1.0)
        held.append(sum(len(w.alive) * w.controller.config.units for w in worlds))
    return held


def serving(worlds: Sequence[World]) -> list[int]:
    return [len(world.serving) for world in worlds]


def test_two_models_that_burst_together_get_what_there_is_in_equal_parts() -> None:
    worlds = pools(6)
    run(worlds, 10)
    for world in worlds:
        world.tokens_per_second = 5000.0  # five replicas each
    held = run(worlds, 20)
    assert serving(worlds) == [3, 3]
    assert max(held) == 6
    reasons = [r["text"] for w in worlds for r in w.ticks[-1]["reasons"]]
    assert "autoscaler.budget = 6 allows 3 of 5 replicas" in " ".join(reasons)


def test_a_later_burst_takes_nothing_that_an_earlier_one_still_needs() -> None:
    first, second = worlds = pools(6)
    run(worlds, 10)
    first.tokens_per_second = 4000.0
    run(worlds, 10)
    assert serving(worlds) == [4, 1]
    second.tokens_per_second = 4000.0
    held = run(worlds, 20)
    assert serving(worlds) == [4, 2]
    assert not [call for call in first.calls if call.startswith(("drain", "stop"))]
    first.tokens_per_second = 500.0
    held += run(worlds, 120)  # its demand is looked back on for half a minute, and as long kept
    assert serving(worlds) == [1, 4]  # what the first one let go, the second one has
    assert max(held) == 6


def test_standbys_give_way_to_another_pools_burst_and_come_back_after_it() -> None:
    first, second = worlds = pools(6, scale=WARM)
    run(worlds, 12)
    assert [sorted(w.alive) for w in worlds] == [
        ["m0-both-1", "m0-both-2", "m0-both-3"],
        ["m1-both-1", "m1-both-2", "m1-both-3"],
    ]
    second.tokens_per_second = 5000.0
    held = run(worlds, 20)
    assert serving(worlds) == [1, 5]
    assert len(first.alive) == 1  # its standbys were stopped for it
    second.tokens_per_second = 500.0
    held += run(worlds, 90)
    assert [len(w.alive) for w in worlds] == [3, 3]
    assert max(held) <= 6


def test_what_drains_counts_until_its_last_stream_has_ended() -> None:
    first, second = worlds = pools(6)
    run(worlds, 10)
    first.tokens_per_second = 4000.0
    run(worlds, 10)
    first.streams = dict.fromkeys(sorted(first.serving), 1)
    first.tokens_per_second = 500.0
    run(worlds, 55)
    second.tokens_per_second = 5000.0
    held = run(worlds, 20)
    draining = [call.split()[1] for call in first.calls if call.startswith("drain")]
    assert len(draining) == 3
    assert set(draining) < first.alive
    assert serving(worlds) == [1, 2]  # six exist, though five may serve there
    for replica in draining:
        first.end_stream(replica)
    held += run(worlds, 10)
    assert serving(worlds) == [1, 5]
    assert max(held) <= 6


def test_a_replica_of_several_gpus_takes_as_many_units() -> None:
    large, small = worlds = pools(10, units=(4, 1))
    run(worlds, 10)
    large.tokens_per_second = small.tokens_per_second = 5000.0
    held = run(worlds, 20)
    assert serving(worlds) == [2, 2]
    assert max(held) <= 10


def test_one_that_dies_is_replaced_within_the_budget() -> None:
    worlds = pools(4)
    run(worlds, 70)
    for world in worlds:
        world.tokens_per_second = 3000.0
    run(worlds, 70)
    assert serving(worlds) == [2, 2]
    worlds[0].crash(min(worlds[0].serving))
    assert max(run(worlds, 20)) <= 4
    assert serving(worlds) == [2, 2]


def test_a_budget_that_the_bases_do_not_fit_in_is_refused() -> None:
    config = PoolConfig("a", max_replicas=4, base=2, units=2)
    other = replace(config, model="b")
    with pytest.raises(ConfigError, match=r"autoscaler.budget = 7: must be >= 8"):
        AutoscaleSpec(pools=(config, other), budget=7)
    AutoscaleSpec(pools=(config, other), budget=8)


@settings(max_examples=25, deadline=None)
@given(
    budget=st.integers(6, 14),
    units=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    bursts=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.0, 800.0, 3000.0, 9000.0])), max_size=8
    ),
    crashes=st.lists(st.integers(0, 7), max_size=2),
)
def test_whatever_comes_the_budget_holds_and_every_base_serves(
    budget: int, units: list[int], bursts: list[tuple[int, float]], crashes: list[int]
) -> None:
    if sum(units) > budget:
        return
    worlds = pools(budget, units=units, scale=WARM)
    run(worlds, 10)
    for number, (place, tokens) in enumerate(bursts):
        world = worlds[place % len(worlds)]
        world.tokens_per_second = tokens
        if number in crashes and world.serving:
            world.crash(min(world.serving))
        assert max(run(worlds, 7)) <= budget
    assert max(run(worlds, 40)) <= budget
    assert min(serving(worlds)) >= 1
