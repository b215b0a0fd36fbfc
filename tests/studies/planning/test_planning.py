"""A plan is what was simulated, minimal where it was made, and frank about what it cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from surgetank.config import parse
from surgetank.config.text import is_name
from surgetank.engine import coldstart
from surgetank.engine.profile import find
from surgetank.errors import InputError
from surgetank.policy.calendar import CalendarEvent
from surgetank.studies.planning.configuration import configuration
from surgetank.studies.planning.plan import Plan, check, held_out, make_plan
from surgetank.studies.planning.thresholds import replica_of, thresholds
from surgetank.studies.planning.traffic import one_pool, traffic_of, work_of
from surgetank.studies.planning.windows import busier, part, windows
from surgetank.studies.planning.wish import Size, Wish
from surgetank.traffic import arrivals
from surgetank.traffic.agents import AgentSpec, agent_sessions
from surgetank.traffic.lengths import LengthSpec
from surgetank.traffic.tokencounts import parse_lengths
from surgetank.traffic.trace import Batch, Labels, Trace

PROMPT = parse_lengths("200", "--prompt")
OUTPUT = parse_lengths("100", "--output")
WISH = Wish(
    profile=find("demo-fleet"),
    ttft=1.5,
    tpot=0.3,
    attainment=0.9,
    start=replace(coldstart.whole(20.0), wake_s=1.0),
    standby_cost=0.25,
    max_replicas=16,
    price=2.0,
    trials=24,
)


def pulses(seconds: float = 180.0, *, tenants: bool = False, origin: float = 0.0) -> Trace:
    rng = np.random.default_rng(3)
    times = arrivals.pulse(rng, 0.5, 8.0, 10.0, 60.0, seconds)
    rows = len(times)
    codes = (np.arange(rows) % 3 == 0).astype(np.int32)
    return Trace.of(
        [
            Batch(
                times + origin,
                prompt_tokens=np.full(rows, 200),
                output_tokens=np.full(rows, 100),
                tenant=Labels(codes, ("web", "batch")) if tenants else None,
            )
        ]
    )


def planned(trace: Trace, wish: Wish = WISH) -> Plan:
    return make_plan(trace, wish, prompt=PROMPT, output=OUTPUT)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(pulses(tenants=True))


def test_the_attainment_is_that_of_simulating_the_plan(plan: Plan) -> None:
    load, _ = one_pool(pulses(tenants=True), "m")
    assert plan.attainment >= WISH.attainment
    assert check(plan, load, WISH).attainment == plan.attainment


def test_with_one_replica_less_in_any_pool_the_attainment_is_missed(plan: Plan) -> None:
    load, _ = one_pool(pulses(tenants=True), "m")
    smaller = plan.size.smaller()
    assert set(plan.one_less) == set(smaller)
    for size in smaller:
        seen = check(plan, load, WISH, size).attainment
        assert seen == plan.one_less[size] < WISH.attainment


def test_bursts_shorter_than_a_start_are_told_with_what_helps(plan: Plan) -> None:
    assert plan.bursts_beat_starts
    told = " ".join(plan.reasons)
    for word in ("autoscaling alone cannot help", "static floor", "standbys", "admission"):
        assert word in told
    for word in ("degrading", "calendar"):
        assert word in told


def test_every_number_has_a_reason(plan: Plan) -> None:
    told = " ".join(plan.reasons)
    for name in ("base =", "elastic =", "standby =", "lead =", "max_in_flight =", "max_queued ="):
        assert name in told
    for tenant in ("web", "batch"):
        assert f"quota of {tenant}" in told


def test_the_plan_costs_no_more_than_the_least_fixed_fleet(plan: Plan) -> None:
    cost = plan.cost
    assert cost["plan"].replicas <= cost["static_least"].replicas
    assert cost["static_average"].attainment < cost["static_least"].attainment
    assert cost["plan"].price_per_day == pytest.approx(2.0 * 24 * cost["plan"].replicas)


def test_the_json_has_the_promised_keys(plan: Plan) -> None:
    found = plan.to_json()
    promised = {"base", "elastic", "standby", "lead_s", "attainment", "thresholds", "reasons"}
    assert promised | {"cost"} <= set(found)
    assert found["base"] == plan.size.base
    assert set(found["thresholds"]["tenants"]) == {"web", "batch"}


def test_the_configuration_is_valid_and_says_the_plan(plan: Plan) -> None:
    wish = replace(
        WISH, calendar=(CalendarEvent("on the hour", ":00", 60.0, "hourly", replicas=2),)
    )
    text = configuration(
        plan, wish, command="serve-it --port {port}", made_by="by a test", is_name=is_name
    )
    config = parse(text.encode())
    pool = config.autoscaler.pools[0]
    assert (pool.base, pool.max_replicas) == (plan.size.base, plan.size.total)
    assert pool.scale.standbys == plan.size.standby
    assert pool.scale_spec().max_replicas == plan.size.total
    assert config.flow.max_in_flight == plan.thresholds.max_in_flight
    assert {tenant.name for tenant in config.tenants} == {"web", "batch"}
    assert config.autoscaler.calendar == wish.calendar


def test_names_that_the_gateway_does_not_take_are_comments(plan: Plan) -> None:
    first, *others = plan.thresholds.tenants
    strange = replace(first, name="\u56e2\u961f\U0001f680\n- x" + " long" * 40)
    limits = replace(plan.thresholds, tenants=(strange, *others))
    named = replace(plan, thresholds=limits, model="\U0001f680")
    text = configuration(named, WISH, command="serve-it --port {port}", made_by="", is_name=is_name)
    config = parse(text.encode())
    assert {tenant.name for tenant in config.tenants} == {other.name for other in others}
    assert config.autoscaler.pools[0].model == "\U0001f680"
    assert f"#     requests_per_minute: {first.requests_per_minute}" in text


def test_quotas_leave_room_for_the_growth_that_is_planned_for() -> None:
    load, _ = one_pool(pulses(tenants=True), "m")
    one = replica_of(load, WISH)
    plain = thresholds(load, WISH, one, 4, 0.8)
    grown = thresholds(load, WISH, one, 4, 0.8, growth=2.0)
    for before, after in zip(plain.tenants, grown.tenants, strict=True):
        assert after.requests_per_minute >= 1.9 * before.requests_per_minute
        assert after.tokens_per_minute >= 1.9 * before.tokens_per_minute


def test_the_course_of_work_is_that_of_the_log() -> None:
    load, _ = one_pool(pulses(6000.0), "m")
    one = replica_of(load, WISH)
    work = work_of(load, one)
    course = traffic_of(load, pulses(6000.0).burstiness(), one, 20.0).course
    assert len(course.replicas) == load.span // 60
    assert course.window_s * sum(course.replicas) == pytest.approx(work.sum(), rel=0.05)


def test_what_no_fleet_can_attain_is_said_with_the_bound() -> None:
    found = planned(pulses(120.0), replace(WISH, ttft=0.001, trials=8))
    assert found.cannot is not None
    assert "any number of replicas" in found.cannot.text
    assert found.cannot.most_attainment == 0.0


def test_too_few_replicas_allowed_are_said() -> None:
    found = planned(pulses(120.0), replace(WISH, max_replicas=1))
    assert found.cannot is not None
    assert found.size == Size(1)
    assert found.attainment < WISH.attainment


def test_the_second_half_is_not_seen_by_the_plan() -> None:
    trace = pulses()
    found, second = held_out(trace, WISH, prompt=PROMPT, output=OUTPUT)
    half = Trace(trace.batch.take(trace.batch.arrived < 90.0))
    assert found.attainment >= WISH.attainment
    assert found.traffic.requests < len(trace)
    assert found.traffic.requests + second.requests <= len(trace)
    assert abs(found.traffic.requests - len(half)) <= 2


def test_tokens_that_a_log_does_not_state_are_assumed_and_told() -> None:
    bare = Trace.of([Batch(pulses(120.0).batch.arrived)])
    found = planned(bare, replace(WISH, trials=6))
    assert any("assumed" in note and "--prompt" in note for note in found.notes)


def test_a_log_of_nothing_that_fits_is_refused() -> None:
    batch = Batch(np.arange(50.0), prompt_tokens=np.full(50, 10**6), output_tokens=np.full(50, 100))
    with pytest.raises(InputError, match="another --engine"):
        planned(Trace.of([batch]))


def test_what_fits_no_replica_counts_as_missed() -> None:
    """A twentieth of the prompts are too long: 90 % can be attained, 96 % by no fleet."""
    trace = pulses(120.0)
    prompt = np.where(np.arange(len(trace)) % 20 == 7, 10**6, 200)
    long = replace(trace, batch=replace(trace.batch, prompt_tokens=prompt))
    fit = float((prompt == 200).mean())
    found = planned(long)
    assert found.cannot is None
    assert 0.9 <= found.attainment <= fit
    assert any("count as misses" in note for note in found.notes)
    refused = planned(long, replace(WISH, attainment=0.97, trials=6))
    assert refused.cannot is not None
    assert refused.cannot.most_attainment == fit
    assert "longer context" in refused.cannot.text


def test_a_calendar_beats_bursts_that_come_on_the_hour() -> None:
    """A burst of 60 s an hour, starts of 20 s: foretold, its first seconds are served too."""
    base = 1_796_169_600.0
    rng = np.random.default_rng(5)
    calm = arrivals.poisson(rng, 0.3, 600.0)
    burst = 300.0 + arrivals.poisson(rng, 6.0, 60.0)
    times = np.sort(np.concatenate([calm, burst]))
    rows = len(times)
    trace = Trace.of(
        [
            Batch(
                times + base,
                prompt_tokens=np.full(rows, 200),
                output_tokens=np.full(rows, 100),
            )
        ]
    )
    load, _ = one_pool(trace, "m")
    event = CalendarEvent("batch", ":05", 60.0, "hourly", replicas=8)
    known = planned(trace, replace(WISH, trials=4))
    size = Size(1, 7)
    without = check(known, load, WISH, size).attainment
    foretold = check(known, load, replace(WISH, calendar=(event,)), size)
    assert foretold.attainment > without + 0.1
    assert foretold.cost < 8


def test_a_long_log_is_planned_from_its_busiest_and_sampled_parts() -> None:
    rng = np.random.default_rng(7)
    times = arrivals.diurnal(rng, 0.2, 0.9, 86_400.0)
    rows = len(times)
    load, _ = one_pool(
        Trace.of([Batch(times, prompt_tokens=np.full(rows, 9), output_tokens=np.full(rows, 9))]),
        "m",
    )
    found = windows(load, 4000)
    assert [w.kind for w in found].count("busiest") == 2
    assert [w.kind for w in found].count("sampled") == 3
    assert sum(w.weight for w in found) * 1800 == pytest.approx(86_400, rel=0.05)
    assert sum(len(w.load) for w in found) < 6000
    for window in found:
        assert window.load.arrived[0] >= 0
        assert window.load.arrived[-1] <= window.until
        assert abs(window.load.origin + window.since - 50_400) < 10_000 or window.kind == "sampled"


def test_more_traffic_is_the_same_requests_again() -> None:
    load, _ = one_pool(pulses(), "m")
    more = busier(windows(load, 10_000), 0.1, np.random.default_rng(0))
    assert len(more[0].load) == pytest.approx(1.1 * len(load), rel=0.05)
    assert np.all(np.diff(more[0].load.arrived) >= 0)


def test_a_part_begins_its_own_clock() -> None:
    load, _ = one_pool(pulses(origin=1_796_169_600.0), "m")
    cut = part(load, 50.0, 150.0)
    assert cut.origin == load.origin + 50.0
    assert 0 <= cut.arrived[0] < cut.arrived[-1] < 100.0


def test_a_log_that_grows_is_planned_for_as_much_more_again() -> None:
    rng = np.random.default_rng(9)
    times = np.sort(np.concatenate([arrivals.poisson(rng, 1.0, 600.0),
                                    300.0 + arrivals.poisson(rng, 1.0, 300.0)]))  # fmt: skip
    rows = len(times)
    trace = Trace.of(
        [Batch(times, prompt_tokens=np.full(rows, 200), output_tokens=np.full(rows, 100))]
    )
    found = planned(trace, replace(WISH, trials=5))
    assert 1.4 < found.traffic.growth.factor <= 2.0
    assert any("above the first" in reason for reason in found.reasons)
    load, _ = one_pool(trace, "m")
    assert found.cost["plan"].replicas == min(trial.cost for trial in found.alternatives)
    again = check(found, load, WISH, growth=found.traffic.growth.factor)
    assert again.attainment == found.attainment


def test_agents_are_planned_by_the_tokens_they_burn() -> None:
    rng = np.random.default_rng(11)
    small = LengthSpec(median=200.0, sigma=0.3, longest=400)
    spec = AgentSpec(turns=4.0, think=3.0, first_prompt=small, new_prompt=small, output=small)
    found = planned(agent_sessions(rng, spec, 0.2, 120.0), replace(WISH, trials=4))
    assert found.traffic.agents is not None
    assert found.traffic.agents.burn_p99 is not None
    assert any("by tokens, not by requests" in reason for reason in found.reasons)
