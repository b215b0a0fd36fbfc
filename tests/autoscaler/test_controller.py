"""One pool's controller in virtual time: what it does, in which order, and what it writes."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from surgetank.adapters.fleet import Found
from surgetank.autoscaler.spec import AutoscaleSpec, PoolConfig
from surgetank.errors import ConfigError
from surgetank.policy.plan import ScaleSpec

from .world import CONFIG, SCALE, World


def test_the_base_is_started_at_the_first_tick_and_serves_once_it_is_ready() -> None:
    world = World()
    world.run(1)
    assert world.calls == ["start m-both-1"]
    assert world.serving == set()
    world.run(5)
    assert world.serving == {"m-both-1"}
    assert world.known == {"m-both-1": "http://m-both-1"}


def test_more_traffic_starts_more_and_less_drains_them_before_they_stop() -> None:
    world = World()
    world.run(10)
    world.tokens_per_second = 2500.0
    world.run(10)
    assert world.serving == {"m-both-1", "m-both-2", "m-both-3"}
    world.streams = {"m-both-3": 1, "m-both-2": 0}
    world.tokens_per_second = 500.0
    world.run(80)
    assert "drain m-both-3" in world.calls
    assert "stop m-both-2" in world.calls
    assert world.serving == {"m-both-1"}
    assert "m-both-3" in world.alive  # its stream goes on
    world.end_stream("m-both-3")
    assert world.calls[-1] == "stop m-both-3"
    world.run(1)
    assert world.alive == {"m-both-1"}


def test_gateways_are_told_when_what_starts_will_serve_and_when_nothing_does() -> None:
    world = World()
    world.run(2)
    (first,) = world.expected
    assert 0 < first < SCALE.start_time  # as its settings say, before any start was seen
    world.run(10)
    assert world.serving == {"m-both-1"}
    assert world.expected == []


def test_when_a_replica_dies_gateways_are_told_at_once_when_the_next_will_serve() -> None:
    world = World(start_time=7.0)
    world.run(100)
    world.until(world.now + 0.25)
    world.crash("m-both-1")
    assert world.expected == [7.0]  # the start it has measured, not at the next tick
    world.run(2)
    assert world.expected == [6.0]  # as of the last tick, a second later
    world.run(7)
    assert world.expected == []


def test_gateways_are_told_of_a_start_that_waits_for_its_backoff_too() -> None:
    world = World()
    world.run(10)
    world.crash("m-both-1")  # young: it counts as a failed start
    assert world.calls == ["start m-both-1"]
    assert world.expected == [5.75]  # 0.75 s of backoff, and a start as it was measured
    world.run(2)
    assert world.calls == ["start m-both-1", "start m-both-2"]
    assert world.expected == [4.75]  # as of the last tick, a second later: the same moment


def test_a_stream_that_does_not_end_is_cut_at_the_drain_timeout() -> None:
    world = World()
    world.run(10)
    world.tokens_per_second = 1900.0
    world.run(10)
    world.streams = {"m-both-2": 1}
    world.tokens_per_second = 0.0
    world.run(70)
    drained = world.now
    assert "drain m-both-2" in world.calls
    assert "stop m-both-2" not in world.calls
    world.run(61)
    assert "stop m-both-2" in world.calls
    assert world.alive == {"m-both-1"}
    assert world.now - drained <= 61


def test_one_that_is_draining_is_attached_again_when_traffic_comes_back() -> None:
    world = World()
    world.run(10)
    world.tokens_per_second = 1900.0
    world.run(10)
    world.streams = {"m-both-2": 1}
    world.tokens_per_second = 0.0
    world.run(70)
    assert world.serving == {"m-both-1"}
    world.tokens_per_second = 1900.0
    world.run(3)
    assert world.serving == {"m-both-1", "m-both-2"}
    world.end_stream("m-both-2")  # no drain is under way any more
    world.run(3)
    assert world.calls.count("start m-both-2") == 1
    assert "stop m-both-2" not in world.calls


def test_a_crash_is_acted_upon_at_once_not_at_the_next_tick() -> None:
    world = World()
    world.run(100)
    world.until(world.now + 0.25)
    world.crash("m-both-1")
    assert world.calls[-1] == "start m-both-2"
    assert world.serving == set()
    assert world.known == {}
    line = world.events("crashed")[0]
    assert line["why"] == "ended with signal SIGKILL"
    assert line["effects"] == [
        {"do": "start", "replica": "m-both-2", "as_standby": False, "base": True}
    ]
    world.run(6)
    assert world.serving == {"m-both-2"}


def test_one_that_does_not_answer_any_more_is_ended_and_replaced() -> None:
    world = World()
    world.run(100)
    world.controller.unresponsive("m-both-1", "no answer to /health for 30 s")
    assert world.calls[-2:] == ["stop m-both-1", "start m-both-2"]
    world.run(6)
    assert world.serving == {"m-both-2"}
    assert world.alive == {"m-both-2"}
    world.controller.unresponsive("m-both-1", "again")  # gone: nothing to do
    assert len(world.events("unresponsive")) == 1


def test_failed_starts_are_backed_off_and_tried_again() -> None:
    world = World()
    world.fails = 3
    world.run(30)
    at = [line["now"] for line in world.events("failed")]
    pauses = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert pauses == [1.25, 2.0]  # 0.75 s, then 1.5 s, and the half second they take to fail
    assert world.serving == {"m-both-4"}
    assert sum(sample.failed for sample in world.samples) == 3


def test_a_start_that_takes_too_long_is_stopped_and_replaced() -> None:
    world = World(start_time=1e9)
    world.run(19)
    world.start_time = 1.0
    world.run(10)
    assert world.calls == ["start m-both-1", "stop m-both-1", "start m-both-2"]
    assert world.serving == {"m-both-2"}


def test_a_silent_gateway_never_shrinks_the_fleet() -> None:
    world = World()
    world.run(10)
    world.tokens_per_second = 2500.0
    world.run(10)
    world.silent = True
    world.run(300)
    assert len(world.serving) == 3
    assert not [call for call in world.calls if call.startswith(("stop", "drain"))]


def test_replicas_found_running_are_kept_and_serve_as_before() -> None:
    world = World()
    world.alive = {"m-both-1", "m-both-7"}
    found = [
        Found("m-both-1", "http://a", serving=True),
        Found("m-both-7", "http://b", serving=False),
    ]
    world.controller.adopt(found)
    world.controller.advance(world.now)  # before the first plan nobody is known to be unwanted
    assert world.serving == {"m-both-1"}
    assert world.known == {"m-both-1": "http://a", "m-both-7": "http://b"}
    world.run(3)
    assert world.serving >= {"m-both-1"}
    assert [call for call in world.calls if not call.endswith("m-both-7")] == []
    assert [line["replica"] for line in world.events("adopted")] == ["m-both-1", "m-both-7"]


def test_advisory_mode_decides_and_writes_the_same_and_does_nothing() -> None:
    world = World(advisory=True)
    world.outside = 1
    world.tokens_per_second = 2500.0
    world.run(10)
    assert world.calls == []
    last = world.ticks[-1]
    assert last["advisory"] is True
    assert last["observation"]["serving"] == 1
    assert last["plan"]["replicas"] == 3
    assert last["effects"] == []
    assert world.samples[-1].serving == 1
    assert world.samples[-1].wanted == 3


def test_a_tick_is_one_line_with_all_that_decided() -> None:
    world = World()
    world.tokens_per_second = 2500.0
    world.run(20)
    assert len(world.ticks) == 20
    line = world.ticks[2]
    assert line["v"] == 1
    assert (line["t"], line["now"]) == (1_000_102.0, 102.0)
    assert (line["model"], line["role"], line["advisory"]) == ("m", "both", False)
    assert line["observation"]["prompt_tokens"] == 2500.0
    assert line["observation"]["starting"] >= 1
    assert "kv_held" not in line["observation"]  # unknown, not 0
    assert line["plan"]["replicas"] == 3
    reasons = [*line["reasons"], *line["rejected"]]
    assert {"demand", "forecast"} <= {reason["signal"] for reason in reasons}
    assert all({"value", "threshold", "wants", "text"} < set(reason) for reason in reasons)
    started = [e["replica"] for tick in world.ticks for e in tick["effects"] if e["do"] == "start"]
    assert sorted(started) == ["m-both-1", "m-both-2", "m-both-3"]


def test_a_sample_a_second_counts_replicas_and_starts() -> None:
    world = World()
    world.run(8)
    world.crash("m-both-1")
    world.run(8)
    assert [s.t for s in world.samples[:2]] == [1_000_100.0, 1_000_101.0]
    assert [s.starting for s in world.samples[:5]] == [1] * 5
    assert sum(s.started for s in world.samples) == 2
    assert sum(s.crashed for s in world.samples) == 1
    assert [time for s in world.samples for time in s.start_times] == [5.0, 5.0]
    assert world.samples[-1].serving == 1
    assert world.samples[-1].running == 0


def test_start_times_learnt_in_an_earlier_life_are_used_from_the_first_tick() -> None:
    first = World(start_time=7.0)
    first.run(10)
    kept = json.loads(json.dumps(first.controller.learned()))
    second = World(learned=kept)
    second.run(1)
    assert second.ticks[0]["observation"]["start_time"] == 7.0
    fresh = World()
    fresh.run(1)
    assert "start_time" not in fresh.ticks[0]["observation"]


def test_learnt_things_of_the_wrong_form_are_refused() -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        World(learned={"starts": ["soon"]})


# Settings.


def test_sizes_are_set_in_one_place() -> None:
    assert CONFIG.scale_spec().max_replicas == 6
    assert CONFIG.pool_spec().max_replicas == 6
    with pytest.raises(ConfigError, match=r"pool m/both: scale.max_replicas: is set by the pool's"):
        PoolConfig("m", max_replicas=6, scale=replace(SCALE, max_replicas=8))
    with pytest.raises(ConfigError, match=r"pool.base = 7"):
        PoolConfig("m", max_replicas=6, base=7)


def test_two_pools_of_one_model_and_role_are_refused() -> None:
    with pytest.raises(ConfigError, match="two are of m/both"):
        AutoscaleSpec(pools=(CONFIG, CONFIG))


def test_the_defaults_fit_together() -> None:
    config = PoolConfig("m", max_replicas=1)
    assert config.scale_spec() == replace(ScaleSpec(), min_replicas=1, max_replicas=1)


def test_while_it_is_held_the_size_stays_and_a_dead_replica_is_replaced() -> None:
    world = World()
    world.run(10)
    world.tokens_per_second = 1900.0
    world.run(10)
    assert len(world.serving) == 2
    world.controller.hold(on=True)
    world.tokens_per_second = 5000.0
    world.run(20)
    assert len(world.serving) == 2
    held = [line for line in world.lines if "held" in line]
    assert held[-1]["held"] == 2
    assert held[-1]["plan"]["replicas"] > 2  # what would have been done is written all the same
    world.crash("m-both-2")
    world.run(20)
    assert len(world.serving) == 2
    world.controller.hold(on=False)
    world.run(20)
    assert len(world.serving) > 2


def test_other_settings_are_used_within_the_pools_own_sizes_and_written_down() -> None:
    world = World()
    world.run(10)
    floor = replace(SCALE, min_replicas=3, max_replicas=9)
    assert world.controller.use(floor, "static floor of 3: 97.0% at 3.00 replicas")
    assert world.controller.scale.max_replicas == CONFIG.max_replicas
    assert world.lines[-1]["event"] == "portfolio"
    assert "static floor of 3" in world.lines[-1]["why"]
    world.run(10)
    assert len(world.serving) == 3
    assert not world.controller.use(floor, "the same again")


def test_other_settings_stop_nothing_at_once() -> None:
    world = World()
    world.tokens_per_second = 2500.0
    world.run(20)
    before = set(world.serving)
    world.tokens_per_second = 100.0
    world.controller.use(replace(SCALE, standbys=0, utilisation=0.9), "another load")
    world.run(25)
    assert world.serving == before  # kept for the scale-down delay
    world.run(40)
    assert len(world.serving) == 1
