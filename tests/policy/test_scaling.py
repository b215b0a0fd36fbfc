"""ScalePolicy: what each signal asks for, what holds it back, and that it always says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surgetank.errors import ConfigError
from surgetank.policy.replica import Role
from surgetank.policy.scaling import Observation, ScalePlan, ScalePolicy, ScaleSpec, Signal

CALM = Observation(
    serving=4,
    starting=0,
    standby=2,
    arrivals=4,
    prompt_tokens=2000.0,
    expected_output=800.0,
    output_tokens=800.0,
    queue_length=0,
    queue_age=0.0,
    running=10,
    outstanding_output=4000.0,
    kv_held=1000.0,
    kv_to_be_held=200.0,
    kv_capacity=100_000.0,
)


class Ticks:
    """One second a tick; the observation is CALM with what a test changes."""

    def __init__(
        self, spec: ScaleSpec | None = None, role: Role = Role.BOTH, start: Observation = CALM
    ) -> None:
        spec = replace(spec or ScaleSpec(), hindsight=False)  # what the signals alone say
        self.policy = ScalePolicy(spec, role=role)
        self.now = 0.0
        self.base = start

    def tick(self, **changes: object) -> ScalePlan:
        self.now += 1.0
        seen = replace(self.base, as_of=self.now, since=self.now - 1.0)
        return self.policy.tick(replace(seen, **changes), self.now)  # type: ignore[arg-type]  # by name

    def calm(self, seconds: int, **changes: object) -> ScalePlan:
        for _ in range(seconds - 1):
            self.tick(**changes)
        return self.tick(**changes)


def rising(ticks: Ticks, *, queue_age: float = 1.0, slope: float = 0.4) -> ScalePlan:
    """Six seconds in which the TTFT rises by `slope` a second."""
    plan = ticks.tick()
    for step in range(1, 7):
        at = ticks.now + 0.9
        plan = ticks.tick(ttft_points=((at, 0.3 + slope * step),), queue_age=queue_age)
    return plan


def signals(plan: ScalePlan) -> set[Signal]:
    return {reason.signal for reason in plan.reasons}


def test_the_first_tick_keeps_what_is_there() -> None:
    plan = Ticks().tick()
    assert plan.replicas == 4
    assert plan.standbys == 2
    assert Signal.OUTSIDE in signals(plan)


def test_an_empty_fleet_gets_its_minimum() -> None:
    policy = ScalePolicy(ScaleSpec(min_replicas=3))
    plan = policy.tick(Observation(serving=0, starting=0, standby=0), 0.0)
    assert plan.replicas == 3
    assert Signal.LIMIT in signals(plan)


def test_demand_is_met_at_once_and_says_its_formula() -> None:
    ticks = Ticks()
    ticks.calm(5)
    plan = ticks.tick(prompt_tokens=60_000.0)
    # one second: 60,000 / 4,000 + 800 / 2,500 = 15.32 replica-seconds, within 1.5 s, at 80 %
    assert plan.demand == pytest.approx(15.32 / 1.5 / 0.8)
    assert plan.replicas == 13
    assert signals(plan) == {Signal.DEMAND}


def test_output_that_is_expected_is_work_too() -> None:
    ticks = Ticks()
    ticks.calm(5)
    plan = ticks.tick(expected_output=30_000.0)
    assert plan.demand == pytest.approx((0.5 + 12.0) / 1.5 / 0.8)


def test_influx_sees_the_kv_blocks_that_no_engine_has_allocated_yet() -> None:
    ticks = Ticks(start=replace(CALM, kv_capacity=4000.0, arrivals=20, expected_output=8000.0))
    plan = ticks.calm(10, prompt_tokens=4000.0)
    # 10 s: 120,000 tokens / 16 + 100 = 7,600 blocks over 900 usable ones a replica
    influx = next(r for r in (*plan.reasons, *plan.rejected) if r.signal is Signal.INFLUX)
    assert influx.value == pytest.approx(7600.0, rel=0.12)  # the first second had no interval
    assert influx.wants == 9
    assert plan.replicas >= 9


def test_tokens_that_are_needed_and_not_generated_ask_for_replicas() -> None:
    ticks = Ticks()
    plan = ticks.calm(6, running=500, outstanding_output=200_000.0, output_tokens=3000.0)
    gap = next(r for r in plan.reasons if r.signal is Signal.TOKEN_GAP)
    assert gap.value == pytest.approx(500 / 0.05 - 3000.0)
    assert gap.wants == 4 + 3  # 7,000 tokens/s missing at 2,500 each
    assert plan.replicas == 7


def test_a_gap_of_a_few_streams_asks_for_nothing_where_one_replica_could_do_ten_times_as_much() -> (
    None
):
    few = {"running": 10, "outstanding_output": 4000.0}
    plan = Ticks(start=replace(CALM, serving=1)).calm(6, **few, output_tokens=100.0)
    # 200 tokens/s needed and 100 generated: half is missing, and 4 % of a replica
    assert plan.replicas == 1
    assert Signal.TOKEN_GAP in {r.signal for r in plan.rejected}


def test_tokens_generated_as_needed_ask_for_nothing() -> None:
    plan = Ticks().calm(6, running=500, outstanding_output=200_000.0, output_tokens=10_000.0)
    assert Signal.TOKEN_GAP not in signals(plan)
    assert Signal.TOKEN_GAP in {r.signal for r in plan.rejected}


def test_a_kv_shortfall_in_the_next_thirty_seconds_asks_before_it_is_there() -> None:
    ticks = Ticks()
    plan = ticks.calm(6, kv_held=80_000.0, kv_to_be_held=90_000.0, expected_output=8000.0)
    short = next(r for r in plan.reasons if r.signal is Signal.KV_SHORTFALL)
    assert short.value > 0
    assert plan.replicas == short.wants > 4


def test_the_ttft_ratio_counts_while_requests_wait() -> None:
    ticks = Ticks()
    plan = ticks.calm(6, ttft_points=(), queue_age=0.0)
    assert plan.replicas == 4
    for _ in range(6):
        plan = ticks.tick(ttft_points=((ticks.now + 0.9, 1.2),), queue_age=1.0)
    ratio = next(r for r in plan.reasons if r.signal is Signal.TTFT_RATIO)
    assert ratio.wants == 6  # ceil(4 x 1.2 / 0.8)
    assert plan.replicas == 6


def test_the_ttft_ratio_never_asks_for_more_than_its_limit() -> None:
    ticks = Ticks()
    for _ in range(6):
        plan = ticks.tick(ttft_points=((ticks.now + 0.9, 40.0),), queue_age=30.0)
    assert plan.replicas == 8


def test_a_falling_ttft_is_left_to_what_was_added_already() -> None:
    ticks = Ticks()
    for step in range(6):
        plan = ticks.tick(ttft_points=((ticks.now + 0.9, 6.0 - step * 0.5),), queue_age=3.0)
    after = ticks.tick(ttft_points=((ticks.now + 0.9, 2.9),), queue_age=3.0, serving=plan.replicas)
    assert after.replicas == plan.replicas
    aside = next(r for r in after.rejected if r.signal is Signal.TTFT_RATIO)
    assert "already works" in aside.text


def test_a_steep_ttft_slope_asks_for_half_as_many_again_at_once() -> None:
    plan = rising(Ticks(ScaleSpec(ttft_ratio_limit=1.2)))
    assert plan.surge
    assert plan.replicas == 6
    assert signals(plan) == {Signal.TTFT_SLOPE}
    assert plan.reasons[0].value == pytest.approx(0.4)
    assert plan.reasons[0].threshold == 0.3


@pytest.mark.parametrize(
    ("serving", "standby", "wanted"), [(2, 2, 4), (2, 0, 3), (1, 0, 2), (10, 2, 15)]
)
def test_a_surge_takes_every_standby_there_is_and_half_as_many_again_at_least(
    serving: int, standby: int, wanted: int
) -> None:
    start = replace(CALM, serving=serving, standby=standby)
    plan = rising(Ticks(ScaleSpec(ttft_ratio_limit=1.01), start=start))
    slope = next(r for r in plan.reasons if r.signal is Signal.TTFT_SLOPE)
    assert slope.wants == plan.replicas == wanted


def test_a_slope_below_the_limit_is_no_surge() -> None:
    assert not rising(Ticks(), slope=0.25).surge


def test_a_slope_while_nobody_waits_is_no_surge_and_says_so() -> None:
    plan = rising(Ticks(), queue_age=0.1)
    assert not plan.surge
    assert plan.replicas == 4
    aside = next(r for r in plan.rejected if r.signal is Signal.TTFT_SLOPE)
    assert "one slow request" in aside.text


def test_a_stall_without_first_tokens_is_seen_by_the_age_of_the_queue() -> None:
    ticks = Ticks()
    for age in (0.5, 1.5, 2.5, 3.5, 4.5):
        plan = ticks.tick(queue_age=age)
    assert Signal.TTFT_SLOPE in {r.signal for r in (*plan.reasons, *plan.rejected)}
    assert plan.replicas > 4


def test_one_rise_is_not_counted_twice_within_its_window() -> None:
    ticks = Ticks()
    plan = rising(ticks)
    again = ticks.tick(
        ttft_points=((ticks.now + 0.9, 3.1),), queue_age=1.0, serving=plan.replicas, standby=0
    )
    slope = next(r for r in (*again.reasons, *again.rejected) if r.signal is Signal.TTFT_SLOPE)
    assert slope.wants == 6


def test_nothing_is_scaled_down_before_every_tick_of_the_delay_wanted_less() -> None:
    ticks = Ticks()
    ticks.calm(299)
    assert ticks.tick().replicas == 4
    down = ticks.calm(10)
    assert down.replicas == 1
    ticks = Ticks()
    ticks.calm(200)
    ticks.tick(prompt_tokens=20_000.0)  # one tick wants more than one
    assert ticks.calm(270).replicas > 1
    assert ticks.calm(70).replicas == 1


def test_a_gap_between_ticks_is_no_time_in_which_nothing_was_wanted() -> None:
    ticks = Ticks()
    ticks.calm(10, prompt_tokens=10_000.0)
    ticks.now += 1000.0
    assert ticks.tick().replicas == 4
    assert ticks.calm(100).replicas == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": None},
        {"queue_age": None},
        {"kv_held": None},
        {"output_tokens": None},
        {"as_of": None},
        {"kv_as_of": 1.0},
    ],
)
def test_missing_or_stale_data_never_scales_down(changes: dict[str, object]) -> None:
    ticks = Ticks()
    ticks.calm(20)
    plan = ticks.calm(700, **changes)
    assert plan.replicas == 4
    assert Signal.STALE in signals(plan)
    assert ticks.calm(299).replicas == 4  # the delay runs from the last tick that did not know
    assert ticks.calm(10).replicas == 1


def test_an_old_reading_is_not_a_new_one() -> None:
    ticks = Ticks()
    ticks.calm(5)
    seen = replace(CALM, as_of=5.0, since=4.0, prompt_tokens=60_000.0)
    plans = [ticks.policy.tick(seen, 5.0 + k) for k in (0.5, 1.0, 2.0, 3.5)]
    assert {plan.replicas for plan in plans} == {4}
    assert Signal.STALE in signals(plans[-1])


def test_a_signal_the_engine_never_gave_does_not_hold_the_fleet_up() -> None:
    bare = replace(CALM, kv_held=None, kv_to_be_held=None, kv_capacity=None, output_tokens=None)
    assert Ticks(start=bare).calm(310).replicas == 1


def test_metrics_that_are_a_second_old_are_no_lull() -> None:
    policy = ScalePolicy(ScaleSpec())
    for second in range(1, 8):
        seen = replace(CALM, as_of=second - 1.0, since=second - 2.0, prompt_tokens=12_000.0)
        plan = policy.tick(seen, float(second))
    demand = next(r for r in (*plan.reasons, *plan.rejected) if r.signal is Signal.DEMAND)
    # 3.32 replica-seconds a second: over 4 s of data, not over 3 s of it and one of silence
    assert demand.value == pytest.approx(3.32 * 4 / 4.5)


def surged(ticks: Ticks) -> int:
    """Three replicas in a steady state, then a rise; the count after it."""
    ticks.base = replace(CALM, serving=3, prompt_tokens=8000.0)
    ticks.calm(310)
    plan = rising(ticks)
    ticks.base = replace(ticks.base, serving=plan.replicas)
    return plan.replicas


def test_a_surge_that_no_work_confirms_is_taken_back_soon() -> None:
    ticks = Ticks()
    assert surged(ticks) == 6
    assert ticks.calm(29).replicas == 6
    plans = [ticks.tick() for _ in range(8)]
    assert plans[-1].replicas == 3
    assert any(Signal.SURGE_PASSED in signals(plan) for plan in plans)


def test_a_surge_that_came_stays_for_the_whole_delay() -> None:
    ticks = Ticks()
    assert surged(ticks) == 6
    ticks.calm(5, prompt_tokens=20_000.0)
    assert ticks.calm(280).replicas == 6
    assert ticks.calm(70).replicas == 3


def test_a_surge_is_not_taken_back_while_requests_wait() -> None:
    ticks = Ticks()
    assert surged(ticks) == 6
    assert ticks.calm(100, queue_age=0.5).replicas == 6


def test_a_second_unconfirmed_surge_is_taken_seriously() -> None:
    """Capacity configured too large looks like this: no work seems to be there, yet it is slow."""
    ticks = Ticks()
    surged(ticks)
    assert ticks.calm(100).replicas == 3
    ticks.base = replace(ticks.base, serving=3)
    assert rising(ticks).replicas == 6
    ticks.base = replace(ticks.base, serving=6)
    assert ticks.calm(150).replicas == 6


def test_limits_hold_and_say_so() -> None:
    ticks = Ticks(ScaleSpec(max_replicas=6))
    ticks.calm(3)
    plan = ticks.tick(prompt_tokens=400_000.0)
    assert plan.replicas == 6
    assert Signal.LIMIT in signals(plan)
    assert plan.standbys == 0  # a standby that may not be promoted is an idle replica


def test_cold_starts_are_limited_by_the_step_and_promotions_are_not() -> None:
    ticks = Ticks(ScaleSpec(max_step=5))
    ticks.calm(3)
    plan = ticks.tick(prompt_tokens=200_000.0)
    assert plan.replicas > 9
    assert plan.launch == 9
    ticks.base = replace(CALM, starting=5)
    assert ticks.tick(prompt_tokens=200_000.0).launch == 9
    assert ticks.calm(16, prompt_tokens=200_000.0).launch == 14


def test_replicas_that_start_are_capacity_and_not_asked_for_again() -> None:
    ticks = Ticks()
    ticks.calm(5)
    first = ticks.calm(3, running=500, outstanding_output=2e5, output_tokens=3000.0)
    ticks.base = replace(CALM, starting=first.replicas - 4)
    later = ticks.calm(20, running=500, outstanding_output=2e5, output_tokens=3000.0)
    assert later.replicas == 7


def test_what_an_operator_added_is_kept_for_the_delay() -> None:
    ticks = Ticks()
    ticks.calm(310)
    plan = ticks.calm(5, serving=9)
    assert plan.replicas == 9
    assert ticks.calm(290, serving=9).replicas == 9
    assert ticks.calm(20, serving=9).replicas == 1


def test_a_second_turn_within_one_start_time_waits_unless_demand_moved() -> None:
    ticks = Ticks(ScaleSpec(scale_down_delay=20.0, start_time=120.0))
    assert ticks.calm(40, prompt_tokens=44_000.0).replicas == 14
    assert ticks.calm(60, prompt_tokens=36_000.0).replicas == 12
    again = ticks.calm(40, prompt_tokens=40_000.0)
    assert again.replicas == 12
    assert Signal.DIRECTION in signals(again)
    moved = ticks.calm(3, prompt_tokens=60_000.0)
    assert moved.replicas > 15


def test_a_second_turn_is_free_after_one_start_time() -> None:
    ticks = Ticks(ScaleSpec(scale_down_delay=20.0, start_time=60.0))
    ticks.calm(40, prompt_tokens=44_000.0)
    ticks.calm(60, prompt_tokens=36_000.0)
    assert ticks.calm(80, prompt_tokens=40_000.0).replicas == 13


def test_standbys_follow_the_last_surge_between_two_and_four() -> None:
    ticks = Ticks(start=replace(CALM, serving=8))
    assert ticks.tick().standbys == 2
    assert rising(ticks).standbys == 4
    assert ticks.calm(1790).standbys == 4
    assert ticks.calm(20).standbys == 2


def test_a_prefill_pool_ignores_what_decode_holds_and_the_other_way_round() -> None:
    burst = {"kv_held": 200_000.0, "kv_to_be_held": 90_000.0, "running": 900}
    prefill = Ticks(role=Role.PREFILL).calm(6, **burst, outstanding_output=1e6)
    assert prefill.replicas == 4
    decode = Ticks(role=Role.DECODE).calm(6, **burst, outstanding_output=1e6)
    assert decode.replicas > 4
    assert not rising(Ticks(role=Role.DECODE)).surge


def test_every_plan_has_a_reason_with_words() -> None:
    ticks = Ticks()
    for second in range(320):
        plan = ticks.tick(prompt_tokens=2000.0 + 30_000.0 * (second % 90 == 7))
        assert plan.reasons
        assert all(r.text for r in (*plan.reasons, *plan.rejected))


def test_plans_are_the_same_whether_or_not_somebody_reads_what_was_set_aside() -> None:
    told, silent = Ticks(), Ticks()
    silent.policy = ScalePolicy(ScaleSpec(hindsight=False), explains=False)
    wants = set()
    for second in range(400):
        wait = 1.5 if second % 97 in range(20, 45) else 0.0
        ttft = 0.3 + wait * (second % 97 - 19) / 4
        plans = [
            ticks.tick(
                queue_age=wait,
                ttft_points=tuple((second + part / 4, ttft + part / 9) for part in range(4)),
                prompt_tokens=2000.0 + 20_000.0 * (second % 61 == 7),
            )
            for ticks in (told, silent)
        ]
        assert replace(plans[0], rejected=()) == replace(plans[1], rejected=())
        wants.add(plans[0].replicas)
    assert len(wants) >= 3


def test_a_clock_that_steps_back_changes_nothing() -> None:
    ticks = Ticks()
    ticks.calm(290)
    ticks.now -= 100.0
    assert ticks.tick().replicas == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_replicas": 9, "max_replicas": 3}, "scale.min_replicas = 9: must be between 0 and"),
        ({"utilisation": 1.2}, r"scale.utilisation = 1.2: must be in \(0, 1\]"),
        ({"ttft_objective": 0.0}, "scale.ttft_objective = 0.0: must be > 0"),
        ({"standbys": 5}, "scale.standbys = 5"),
    ],
)
def test_a_setting_that_cannot_work_is_named(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScaleSpec(**changes)  # type: ignore[arg-type]  # by name


def test_a_large_base_with_little_traffic_is_kept_by_hindsight() -> None:
    ticks = Ticks(ScaleSpec(min_replicas=12, max_replicas=20))
    plan = ticks.calm(40, serving=12, prompt_tokens=10.0, expected_output=5.0)
    assert plan.replicas == 12
