"""Affinity in whole runs: hits beside the best possible, and nobody overloaded for them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import routing
from surgetank.engine.prefixcache import PrefixCache


def test_twenty_shared_prompts_are_found_in_caches_nine_times_of_ten_that_they_could_be() -> None:
    load = routing.workload(300, 20, 8.0, 1)
    ours = routing.simulated("surgetank", load, lives_on=1)
    least = routing.simulated("least loaded", load, lives_on=1)
    hashed = routing.simulated("consistent hash", load, lives_on=1)
    assert ours.hits >= 0.9 > least.hits
    assert ours.load <= 1.1 < hashed.load
    assert (ours.ttft_ms or 0) < (least.ttft_ms or 0) < (hashed.ttft_ms or 0)


def test_a_burst_of_one_prefix_is_spread_where_a_consistent_hash_piles_it_up() -> None:
    burst = routing.workload(100, 1, 200.0, 2)
    ours = routing.simulated("surgetank", burst, lives_on=routing.REPLICAS)
    hashed = routing.simulated("consistent hash", burst, lives_on=routing.REPLICAS)
    assert ours.hits >= 0.9
    assert ours.load <= 1.3
    assert hashed.load == routing.REPLICAS


def test_live_the_same_holds_of_a_gateway_before_servers_with_a_prefix_cache() -> None:
    figures = asyncio.run(routing.live("surgetank", 100, 10, workers=2, speed=50.0))
    assert figures.hits >= 0.9


def test_live_a_burst_of_one_prefix_is_spread() -> None:
    assert asyncio.run(routing.live_burst(60)) <= 1.3


@pytest.mark.parametrize("room", [640, 1000])
def test_a_cache_finds_leading_blocks_and_lets_go_of_what_was_used_longest_ago(room: int) -> None:
    cache = PrefixCache(room)
    one = [(("one", i), 64) for i in range(5)]
    other = [*one[:2], *((("other", i), 64) for i in range(3))]
    cache.hold(one)
    assert cache.found(one) == 320
    assert cache.found(other) == 128
    cache.hold(other)
    assert cache.found(other) == 320
    cache.hold([(("third", i), 64) for i in range(5)])
    assert cache.found(other) == 320
    assert cache.found(one) == (320 if room == 1000 else 128)  # three had to go, the last first
