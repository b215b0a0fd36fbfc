"""Every baseline against a table worked out by hand from its source's rules."""

from __future__ import annotations

from typing import Any

import pytest

from surgetank.errors import InputError
from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.apa import Apa
from surgetank.simulation.baselines.dynamo import DynamoLoad, DynamoThroughput
from surgetank.simulation.baselines.hpa import Hpa, keda
from surgetank.simulation.baselines.kpa import Kpa
from surgetank.simulation.baselines.named import BASELINES
from surgetank.simulation.baselines.ray_serve import RayServe
from surgetank.simulation.baselines.rule import Rule, Ruled
from surgetank.simulation.baselines.ttft_gradient import TtftGradient
from surgetank.simulation.baselines.wva import Wva
from surgetank.simulation.policies import policy


def seen(serving: int, now: float = 0.0, **values: Any) -> Observation:
    known: dict[str, Any] = {"starting": 0, "standby": 0, "as_of": now, "queue_length": 0}
    return Observation(serving=serving, **{**known, **values})


def follow(rule: Rule, steps: list[tuple[float, Observation]]) -> list[int]:
    """Ask once for each (time, observation)."""
    return [rule.replicas(observation, at) for at, observation in steps]


def steady(serving: int, until: int, **values: Any) -> list[tuple[float, Observation]]:
    """The same observation at every second."""
    return [(float(t), seen(serving, float(t), **values)) for t in range(until)]


def test_hpa_follows_the_sum_over_the_target_but_not_within_a_tenth() -> None:
    # 10 per replica: 43 in flight on 4 is 1.075 times the target, 45 is 1.125
    assert Hpa(10).replicas(seen(4, running=43), 0.0) == 4
    assert Hpa(10).replicas(seen(4, running=45), 0.0) == 5
    assert Hpa(10).replicas(seen(4, running=37), 0.0) == 4


def test_hpa_goes_up_at_most_by_four_or_to_double_in_one_sync() -> None:
    assert Hpa(10).replicas(seen(2, running=500), 0.0) == 6  # 2 + 4
    assert Hpa(10).replicas(seen(8, running=500), 0.0) == 16  # 2 x 8


def test_hpa_looks_every_15_seconds_and_goes_down_to_the_most_of_300_seconds() -> None:
    rule = Hpa(10)
    asked = follow(
        rule,
        [
            (0.0, seen(4, running=80)),
            (7.0, seen(4, running=10)),  # not yet looked at
            (15.0, seen(8, running=10)),  # down: 8 were wanted 15 s ago
            (300.0, seen(8, running=10)),  # that is 300 s ago: only the 1 of t = 15 counts
        ],
    )
    assert asked == [8, 8, 8, 1]


def test_hpa_keeps_what_there_is_while_the_metric_is_unknown() -> None:
    assert Hpa(10).replicas(Observation(3, 1, 0), 0.0) == 4


def test_keda_counts_the_waiting_alone_and_polls_every_30_seconds() -> None:
    rule = keda(5)
    asked = follow(
        rule,
        [
            (0.0, seen(2, running=100, queue_length=0)),
            (15.0, seen(2, running=100, queue_length=20)),  # HPA syncs on the reading of t = 0
            (30.0, seen(2, running=100, queue_length=20)),
        ],
    )
    assert asked == [0, 0, 4]  # the pool's limits make the first two its least


def test_kpa_panics_on_its_short_window_and_does_not_go_down_while_it_does() -> None:
    rule = Kpa(10)  # 70 %: 7 per replica
    calm = steady(2, 61, running=7)
    assert follow(rule, calm)[-1] == 2  # in panic from the start: never below what was ready
    burst = [(61.0 + t, seen(2, 61.0 + t, running=70)) for t in range(8)]
    # at t = 68 the 6-s window holds 70 alone: ceil(70 / 7) = 10
    assert follow(rule, burst)[-1] == 10
    after = [(69.0 + t, seen(10, 69.0 + t, running=0)) for t in range(40)]
    assert set(follow(rule, after)) == {10}


def test_kpa_goes_down_by_half_at_most_once_a_stable_window_was_calm() -> None:
    rule = Kpa(10)
    follow(rule, steady(8, 130, running=7))
    assert rule.replicas(seen(8, 130.0, running=7), 130.0) == 4  # floor(8 / 2), wanted 1


def test_apa_takes_a_step_of_twice_at_most_and_ignores_a_tenth() -> None:
    full = seen(3, kv_held=90.0, kv_capacity=100.0)
    assert Apa(0.3).replicas(full, 0.0) == 6  # 0.9 / 0.3 = 3 times, at most 2
    assert Apa(0.85).replicas(full, 0.0) == 3  # 1.06
    assert Apa(0.75).replicas(full, 0.0) == 4  # ceil(3 x 1.2)
    # 0.2 of 0.4 is half; but 4 were kept until 300 s after the reading of t = 0
    rule = Apa(0.4)
    low = {"kv_held": 20.0, "kv_capacity": 100.0}
    assert rule.replicas(seen(4, kv_held=40.0, kv_capacity=100.0), 0.0) == 4
    assert rule.replicas(seen(4, 200.0, **low), 200.0) == 4
    assert rule.replicas(seen(4, 305.0, **low), 305.0) == 2


def test_wva_buys_what_is_missing_below_085_and_gives_what_is_spare_above_070() -> None:
    # 2 replicas of 50 blocks, 80 % of it: 40 each
    short = seen(2, kv_held=80.0, kv_to_be_held=20.0, kv_capacity=100.0)
    # 100 / 0.85 - 2 x 40 = 37.6: one more
    assert Wva().replicas(short, 0.0) == 3
    idle = seen(4, kv_held=20.0, kv_to_be_held=8.0, kv_capacity=200.0)
    # 4 x 40 - 28 / 0.7 = 120: three too many
    assert Wva().replicas(idle, 0.0) == 1


def test_wva_learns_what_a_saturated_replica_holds_and_decides_once_a_minute() -> None:
    rule = Wva()
    full = {"kv_held": 40.0, "kv_to_be_held": 60.0, "kv_capacity": 100.0, "queue_length": 10}
    # saturated at 20 each: 100 / 0.85 - 2 x 20 = 77.6, / 20: four more
    assert rule.replicas(seen(2, **full), 0.0) == 6
    assert rule.replicas(seen(6, 30.0, **full), 30.0) == 6
    # 300 held on 6 is 50 each, the mean of both is 35 (and 40 is its share of the KV)
    more = {"kv_held": 300.0, "kv_to_be_held": 0.0, "kv_capacity": 300.0, "queue_length": 30}
    # 300 / 0.85 - 6 x 35 = 142.9, / 35: five more
    assert rule.replicas(seen(6, 60.0, **more), 60.0) == 11


def test_dynamo_throughput_repeats_the_last_180_seconds() -> None:
    rule = DynamoThroughput(0.5, prompt_rate=1000.0, output_rate=100.0)
    each = {"arrivals": 1, "prompt_tokens": 500.0, "expected_output": 50.0}
    asked = follow(rule, steady(2, 181, **each))
    assert asked[-2] == 2
    # each second asks for half a second of prefill and half of decode: 1 / 0.5, and one reading
    # more than 180 has come
    assert asked[-1] == 3
    assert DynamoThroughput(1.0, prompt_rate=1.0, output_rate=1.0).replicas(seen(2), 0.0) == 2


def test_dynamo_throughput_moves_by_eight_at_most_and_counts_a_reading_once() -> None:
    rule = DynamoThroughput(1.0, prompt_rate=100.0, output_rate=1e9)
    rule.replicas(seen(2, 0.0, arrivals=1, prompt_tokens=180.0 * 100 * 50), 0.0)
    for t in range(1, 180):
        rule.replicas(seen(2, 0.0, arrivals=1, prompt_tokens=1e9), float(t))  # the same reading
    assert rule.replicas(seen(2, 180.0), 180.0) == 10  # 50 wanted


def test_dynamo_load_adds_one_on_a_miss_and_never_while_a_replica_starts() -> None:
    slow = {"ttft_points": ((4.0, 2.0),)}
    assert follow(DynamoLoad(1.0), [(0.0, seen(3)), (5.0, seen(3, 5.0, **slow))]) == [3, 4]
    starting = seen(3, 5.0, starting=1, **slow)
    assert follow(DynamoLoad(1.0), [(0.0, seen(3, starting=1)), (5.0, starting)]) == [4, 4]


def test_dynamo_load_gives_one_back_only_if_the_rest_would_keep_it_with_room() -> None:
    def after(ttft: float, kv: float) -> int:
        points = {"ttft_points": ((4.0, ttft),), "kv_held": kv, "kv_capacity": 100.0}
        return follow(DynamoLoad(1.0), [(0.0, seen(3)), (5.0, seen(3, 5.0, **points))])[-1]

    assert after(0.5, 10.0) == 2  # 0.5 x 3 / 2 = 0.75 < 0.8
    assert after(0.6, 10.0) == 3  # 0.9
    assert after(0.1, 70.0) == 3  # KV 1.05


def test_dynamo_hybrid_never_goes_below_its_floor() -> None:
    floor = DynamoThroughput(1.0, prompt_rate=100.0, output_rate=1e9)
    rule = DynamoLoad(1.0, floor=floor)
    rule.replicas(seen(2, 0.0, arrivals=1, prompt_tokens=180.0 * 100 * 5), 0.0)
    assert rule.replicas(seen(2, 180.0, ttft_points=((179.0, 0.1),)), 180.0) == 5


def test_ray_serve_waits_30_seconds_up_and_600_down() -> None:
    up = follow(RayServe(2), steady(2, 32, running=8))
    assert (up[29], up[30]) == (2, 4)
    down = follow(RayServe(2), steady(4, 602, running=2))
    assert (down[599], down[600]) == (4, 1)


@pytest.mark.parametrize("down", [False, True])
def test_ttft_gradient_is_the_published_table(down: bool) -> None:  # noqa: FBT001 - a parameter
    rule = TtftGradient(1000.0, target=0.8, down=down)
    rows = [
        # TTFT of the last 5 s, prompt tokens in them, replicas: wanted
        (0.5, 1000.0, 2, 2),
        (0.6, 11000.0, 2, 3),  # the floor: 2,200 tokens/s
        (1.7, 1000.0, 3, 5),  # 0.22 s/s: ceil(1.5 x 3)
        (1.8, 1000.0, 5, 12),  # 0.02 s/s, over the target: ceil(5 x 1.8 / 0.8)
        (0.5, 1000.0, 12, 12),  # well again
    ]
    rule.replicas(seen(2), 0.0)
    for number, (ttft, prompt, replicas, wanted) in enumerate(rows, 1):
        at = 5.0 * number
        reading = seen(replicas, at, ttft_points=((at - 1, ttft),), prompt_tokens=prompt)
        assert rule.replicas(reading, at) == wanted, number


def test_ttft_gradient_goes_down_only_in_its_second_form_and_after_300_seconds() -> None:
    def last(*, down: bool) -> int:
        rule = TtftGradient(1000.0, down=down)
        rule.replicas(seen(6), 0.0)
        got = 0
        for step in range(1, 63):
            at = 5.0 * step
            got = rule.replicas(seen(6, at, ttft_points=((at, 0.2),), prompt_tokens=9000.0), at)
        return got

    assert last(down=False) == 6
    assert last(down=True) == 2  # 1,800 tokens/s


def test_a_rule_stays_within_the_pools_limits_and_keeps_the_warm_pool() -> None:
    scaler = Ruled(Hpa(1.0), least=2, most=8, standbys=3)
    plan = scaler.tick(seen(4, running=100), 0.0)
    assert (plan.replicas, plan.launch, plan.standbys) == (8, 8, 0)
    plan = Ruled(Hpa(100.0), least=2, most=8, standbys=3).tick(seen(4, running=100), 0.0)
    assert (plan.replicas, plan.standbys) == (2, 3)


@pytest.mark.parametrize("name", list(BASELINES))
def test_every_baseline_has_a_name_a_default_and_a_knob(name: str) -> None:
    assert policy(name).name == name
    assert policy(f"{name}:0.5").name == f"{name}:0.5"
    with pytest.raises(InputError, match=f"--policy {name}:none: must be a number > 0"):
        policy(f"{name}:none")
