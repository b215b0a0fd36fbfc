"""From cumulative counters to rates: what is known, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surgetank.dashboard.history import MOST_TENANTS, Flows, History, Sample, State
from surgetank.dashboard.observation import Observation, SourceError, read_observation

T = 1_800_000_000.0


def seen(at: float, **fields: Any) -> Observation:
    """An observation `at` seconds after T; tenants as {name: offered}."""
    offered = fields.pop("offered", {})
    tenants = {name: {"tier": "core", "offered": count} for name, count in offered.items()}
    body = {"v": 1, "gateway": "g", "now": T + at, "tenants": tenants, **fields}
    return read_observation(json.dumps(body).encode())


def flows(sample: Sample) -> Flows:
    assert sample.flows is not None
    return sample.flows


def state(sample: Sample) -> State:
    assert sample.state is not None
    return sample.state


def test_the_first_observation_has_no_rates() -> None:
    assert History().observe(seen(0, offered={"a": 1000}), T).flows is None


def test_rates_divide_by_the_sources_own_seconds_and_rank_tenants() -> None:
    history = History()
    history.observe(seen(0, offered={"a": 100, "b": 5}), T)
    sample = flows(history.observe(seen(2, offered={"a": 103, "b": 15, "new": 1}), T + 2.4))
    assert sample.tenants == [("b", 5.0), ("a", 1.5), ("new", 0.5)]
    assert sample.arrivals == 7.0


@pytest.mark.parametrize(
    "after",
    [
        seen(1, gateway="other", offered={"a": 200}, outcomes={"completed": 90}),
        seen(1, offered={"a": 3}),
        seen(1, offered={"a": 200}, outcomes={"completed": 2}),
        seen(-50, offered={"a": 200}, outcomes={"completed": 90}),
        seen(0, offered={"a": 200}, outcomes={"completed": 90}),
    ],
    ids=["another gateway", "arrivals fell", "an outcome fell", "clock back", "clock stands"],
)
def test_after_a_restart_rates_are_unknown_for_one_second(after: Observation) -> None:
    history = History()
    history.observe(seen(0, offered={"a": 100}, outcomes={"completed": 80}), T)
    assert history.observe(after, T + 1).flows is None
    body = {name: tenant.offered + 4 for name, tenant in after.tenants.items()}
    following = seen(
        after.now - T + 1, gateway=after.gateway, offered=body, outcomes=dict(after.outcomes)
    )
    assert flows(history.observe(following, T + 2)).arrivals == 4.0


def test_refusals_and_failures_are_told_apart_and_completions_are_neither() -> None:
    history = History()
    history.observe(seen(0), T)
    ended = {"completed": 50, "abandoned": 4, "queue_full": 3, "upstream_failed": 2, "new_one": 1}
    sample = flows(history.observe(seen(1, outcomes=ended), T + 1))
    assert sample.reasons == [("queue_full", 3.0), ("upstream_failed", 2.0), ("new_one", 1.0)]
    assert (sample.refused, sample.failed) == (3.0, 3.0)


def test_many_tenants_are_bounded_and_the_rest_is_summed() -> None:
    history = History()
    history.observe(seen(0), T)
    crowd = {f"t{i:03}": 1000 - i for i in range(300)}
    sample = flows(history.observe(seen(1, offered=crowd), T + 1))
    assert [name for name, _ in sample.tenants] == [f"t{i:03}" for i in range(MOST_TENANTS)]
    assert sample.others == sum(1000 - i for i in range(MOST_TENANTS, 300))
    assert sample.arrivals == sum(crowd.values())


def test_pools_are_added_up_and_the_oldest_request_counts() -> None:
    pool = {"model": "m", "role": "both", "queued": 3, "queue_age": 0.5, "running": 2}
    replicas = [{"id": "x", "state": "serving"}, {"id": "y", "state": "standby"}]
    pools = [
        {**pool, "kv_held": 10, "kv_waiting": 5, "kv_capacity": 100, "replicas": replicas},
        {**pool, "queue_age": 2.5, "kv_held": 1, "kv_capacity": 50, "replicas": replicas[:1]},
    ]
    now = state(History().observe(seen(0, pools=pools), T))
    assert (now.queue, now.queue_age, now.running) == (6, 2.5, 4)
    assert now.replicas == {"serving": 2, "standby": 1}
    assert now.silent == 0  # a gateway that does not tell is not an engine that does not
    assert (now.kv.held, now.kv.waiting, now.kv.capacity) == (11, 5, 150)


def test_engines_that_say_nothing_of_their_load_are_counted_as_unknown() -> None:
    nothing = {"waiting": None, "running": None, "kv_used": None, "age": None}
    idle = {"waiting": 0, "running": None, "kv_used": None, "age": 0.2}
    replicas = [{"state": "serving", "signals": signals} for signals in (nothing, idle)]
    replicas.append({"state": "standby", "signals": nothing})
    assert state(History().observe(seen(0, pools=[{"replicas": replicas}]), T)).silent == 1


def test_kv_that_nobody_tells_is_unknown_and_half_a_capacity_is_none() -> None:
    unknown = [{"kv_capacity": None}, {"kv_capacity": 7, "kv_held": None}]
    kv = state(History().observe(seen(0, pools=unknown), T)).kv
    assert (kv.held, kv.waiting, kv.capacity) == (None, None, None)


def test_first_tokens_are_moved_to_this_machines_clock() -> None:
    sample = History().observe(seen(0, ttft=[[T - 1, 0.25, "a"]]), T + 100)
    assert sample.points == [(T + 99, 0.25, "a")]


def test_text_in_an_answer_goes_nowhere() -> None:
    leak = "the prompt of a user"
    pools = [{"queued": 1, "prompt": leak, "replicas": [{"state": "serving", "last": leak}]}]
    sample = History().observe(seen(0, pools=pools, prompts=[leak]), T)
    assert leak not in repr(sample)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "/observation is not what a gateway answers: JSON is malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"v":2,"gateway":"g","now":1}', "has version 2: this page reads version 1"),
        (b'{"v":1,"gateway":"g"}', "missing required field `now`"),
        (
            b'{"v":1,"gateway":"g","now":1,"ttft":[["x",1,"a"]]}',
            r"Expected `float`, got `str` - at `\$.ttft\[0\]\[0\]`",
        ),
        (b'{"v":1,"gateway":"\xff","now":1}', "/observation is not what a gateway answers"),
    ],
)
def test_an_answer_of_another_kind_is_one_clear_line(body: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        read_observation(body)
    assert "\n" not in str(raised.value)
