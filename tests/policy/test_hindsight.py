"""Virtual fleets, rhythm and portfolio: what the last records would have cost under each rule."""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest

from surgetank.policy.hindsight import Believed, Fluid, Rule, Terms, VirtualFleet
from surgetank.policy.plan import Observation, ScalePlan, ScaleSpec, Signal
from surgetank.policy.portfolio import Portfolio
from surgetank.policy.rhythm import Rhythm
from surgetank.policy.scaling import ScalePolicy

TERMS = Terms(start=5.0, wake=2.0, standby_cost=0.25, slack=0.75, rho=1.0, least=1, most=10)
SPEC = ScaleSpec(
    ttft_objective=1.0,
    prompt_tokens_per_replica=1000.0,
    output_tokens_per_replica=1000.0,
    utilisation=1.0,
    max_replicas=24,
    standbys=0,
    max_standbys=0,
)


def follow(rule: Rule, needs: list[float], terms: Terms = TERMS) -> list[tuple[float, float]]:
    """One request and as much work as is needed, each second."""
    fleet = VirtualFleet(rule)
    return [
        fleet.step(Fluid(1.0, 1.0, need, 0.0, need), terms, float(second))
        for second, need in enumerate(needs)
    ]


def test_a_fixed_number_pays_for_itself_and_keeps_what_it_can_do() -> None:
    assert follow(Rule(fixed=2), [1.4] * 5) == [(2.0, 0.0)] * 5


def test_the_queue_that_is_left_makes_later_requests_late_too() -> None:
    # 4 come at a rate of 2: within the second the wait grows from 0 to 2, and 1.25 of 2 are late;
    # 2 remain, which is a wait of 1 for those that come next, and then nothing is left.
    late = [missed for _, missed in follow(Rule(fixed=2), [4.0, 0.2, 0.2])]
    assert late == pytest.approx([1.25 / 2, 1.0, 0.0])


def test_what_starts_when_the_burst_is_there_serves_a_start_later() -> None:
    steps = follow(Rule(keep=1.0), [0.5, *[3.0] * 8])
    assert [cost for cost, _ in steps] == [1.0, *[3.0] * 8]  # paid from being asked for
    assert [missed > 0 for _, missed in steps][:3] == [False, True, True]


def test_a_standby_costs_its_part_and_takes_its_time_to_wake() -> None:
    steps = follow(Rule(beyond=0, rest=3.0), [0.5, 0.5, 0.5, 3.0, 3.0, 3.0], replace(TERMS, best=3))
    assert steps[2] == pytest.approx((1.0 + 2 * 0.25, 0.0))  # the others stand by since the start
    assert steps[3][1] > 0
    assert steps[4][0] == 3.0


def test_a_pulse_every_97_seconds_is_foretold_before_it_comes() -> None:
    rhythm = Rhythm()
    for second in range(1, 1200):
        rhythm.add(5.0 if second % 97 < 20 else 1.0, float(second))
    assert rhythm.period == pytest.approx(97, abs=0.5)
    told = []
    for second in range(1200, 1300):
        told.append((second % 97, rhythm.foretold(5.0)))
        rhythm.add(5.0 if second % 97 < 20 else 1.0, float(second))
    assert all(most == 5.0 for phase, most in told if phase in range(90, 97))
    assert all(most == 1.0 for phase, most in told if phase in range(30, 80))


def test_noise_has_no_rhythm() -> None:
    rhythm, draw = Rhythm(), random.Random(1)
    for second in range(1, 2400):
        rhythm.add(draw.expovariate(1.0), float(second))
        assert rhythm.period is None
    assert rhythm.foretold(60.0) == 0.0


def fed(spec: ScaleSpec, tokens: list[float], *, start: float = 60.0) -> Portfolio:
    portfolio = Portfolio(spec)
    for second, amount in enumerate(tokens):
        portfolio.add(
            requests=amount / 500.0,
            prompt_tokens=amount,
            output_tokens=0.0,
            seconds=1.0,
            start=start,
            now=second + 1.0,
        )
    return portfolio


def believed(real: float, *, other: float = 0.0) -> Believed:
    """Follow five replicas that do `real` of what is said, and lose `other` of the requests."""
    found, fleet = Believed(), VirtualFleet(Rule())
    for second in range(1, 1500):
        need = 4.5 if second % 100 < 30 else 1.0
        came = Fluid(1.0, 10.0, need, 0.0, need)
        late = fleet.serve(came, TERMS, 5 * real) + 10 * other
        found.step(came, TERMS, 5, late, float(second))
    return found


@pytest.mark.parametrize("real", [1.0, 0.85, 0.7, 0.55])
def test_the_part_that_explains_who_was_late_is_believed(real: float) -> None:
    assert believed(real).part == pytest.approx(real)
    assert believed(real).other == pytest.approx(0.0, abs=0.002)


@pytest.mark.parametrize("real", [1.0, 0.7])
def test_who_is_late_at_all_times_alike_wants_no_replica(real: float) -> None:
    found = believed(real, other=0.02)
    assert found.part == pytest.approx(real)
    assert found.other == pytest.approx(0.02, abs=0.004)


def pulses(seconds: int, *, base: float = 800.0, peak: float = 3600.0) -> list[float]:
    return [peak if second % 100 < 30 else base for second in range(seconds)]


def test_where_bursts_are_shorter_than_a_start_it_becomes_the_best_fixed_number() -> None:
    choice = fed(SPEC, pulses(900)).choice()
    assert choice is not None
    assert choice.standing.rule == Rule(fixed=4)
    assert (choice.loaded, choice.serving) == (4, 4)
    assert choice.standing.missed <= 0.05


def test_where_standbys_are_cheap_they_wake_ahead_of_the_rhythm() -> None:
    portfolio = fed(replace(SPEC, standby_cost=0.25), pulses(880))  # 20 s before a pulse
    choice = portfolio.choice()
    assert choice is not None
    assert choice.standing.rule.rest is not None
    assert choice.standing.rule.foretold
    assert choice.serving < choice.loaded
    portfolio.add(
        requests=19 * 1.6, prompt_tokens=19 * 800, output_tokens=0, seconds=19, start=60, now=899
    )
    later = portfolio.choice()
    assert later is not None
    assert later.serving > choice.serving  # a second before it


def test_a_rhythm_that_is_lost_is_no_longer_believed() -> None:
    portfolio = fed(replace(SPEC, standby_cost=0.25), pulses(880))
    choice = portfolio.choice()
    assert choice is not None
    assert choice.standing.rule.foretold
    portfolio._rhythm = Rhythm()
    portfolio.add(requests=30, prompt_tokens=15e3, output_tokens=0, seconds=15, start=60, now=895.0)
    choice = portfolio.choice()
    assert choice is not None
    assert choice.period is None
    assert not choice.standing.rule.foretold
    assert not any(other.rule.foretold for other in choice.others)


def portfolio_of(fleet: Fleet) -> Portfolio:
    found = fleet.policy._evidence.portfolio
    assert found is not None
    return found


def test_slow_and_broken_streams_are_late_too() -> None:
    def parts(paces: tuple[float, ...]) -> float:
        fleet = Fleet()
        for tokens in [500.0] * 400:
            fleet.tick(tokens, {"ttft_points": ((fleet.now, 0.1),), "paces": paces})
        choice = portfolio_of(fleet).choice()
        assert choice is not None
        return choice.allowed

    assert parts((0.04, 0.2)) < parts((0.04, 0.04))


def test_misses_beyond_the_budget_tighten_it() -> None:
    def after(serving: int) -> tuple[float, float]:
        portfolio, really = Portfolio(SPEC), VirtualFleet(Rule())
        terms = replace(TERMS, start=60.0, slack=1.0)
        for second, tokens in enumerate(pulses(900)):
            need = tokens / 1000.0
            late = really.serve(Fluid(1.0, 7.0, need, 0.0, need), terms, serving)
            portfolio.add(
                requests=7.0,
                prompt_tokens=tokens,
                output_tokens=0.0,
                seconds=1.0,
                start=60.0,
                now=second + 1.0,
                serving=serving,
                late=late,
            )
        choice = portfolio.choice()
        assert choice is not None
        return choice.allowed, portfolio._believed.other

    assert after(4)[0] == pytest.approx(0.7 * 0.05)
    allowed, other = after(3)
    assert other == pytest.approx(0.0, abs=0.002)
    assert allowed == pytest.approx(0.5 * 0.7 * 0.05, abs=0.002)


def test_a_fixed_number_is_followed_as_if_it_were_alone() -> None:
    draw = random.Random(5)
    tokens = [draw.choice((300.0, 300.0, 2500.0, 9000.0)) for _ in range(600)]
    portfolio = fed(SPEC, tokens)
    for number in range(1, 9):
        alone, late = VirtualFleet(Rule(fixed=number)), 0.0
        terms = replace(TERMS, slack=SPEC.ttft_objective)
        for amount in tokens:
            came = Fluid(1.0, amount / 500.0, amount / 1000.0, 0.0, 0.0)
            late += alone.step(came, terms, 0.0)[1]
        assert portfolio._fixed[number].fleet.queue == pytest.approx(alone.queue)
        assert (portfolio._fixed[number].missed > 0) is (late > 0)


def test_what_a_rule_lost_before_its_first_starts_were_there_is_no_record() -> None:
    portfolio = fed(SPEC, [800.0] * 5 + [1200.0] * 300)
    mover = next(m for m in portfolio._movers if m.rule == Rule(keep=3.0))
    assert mover.missed == 0.0
    assert mover.requests > 0


def test_what_costs_as_much_as_a_replica_serves_while_a_turn_is_held() -> None:
    fleet = taught()
    guard = fleet.policy._guard
    guard.moved(-1, 0.8, fleet.now)
    guard.moved(1, 0.8, fleet.now)
    fleet.serving = 5  # an operator added one: the rule would let it go
    plan = fleet.tick()
    assert any(reason.signal is Signal.DIRECTION for reason in plan.reasons)
    assert (plan.replicas, plan.standbys) == (5, 0)


def test_a_load_that_stays_away_is_forgotten() -> None:
    spec = replace(SPEC, record_memory=200.0)
    grown = fed(spec, [3000.0] * 300).choice()
    shrunk = fed(spec, [3000.0] * 300 + [500.0] * 2800).choice()
    assert grown is not None
    assert shrunk is not None
    assert grown.loaded == 3
    assert shrunk.loaded == 1


def test_a_young_fleet_keeps_more_than_it_has_seen() -> None:
    careful = replace(SPEC, burst_factor=8.0, learning_period=1200.0)
    young, old = fed(careful, [1000.0] * 400).choice(), fed(careful, [1000.0] * 1300).choice()
    assert young is not None
    assert old is not None
    assert young.prior >= 8
    assert old.prior == 0


WAITING = {"queue_age": 2.0, "queue_length": 9}


class Fleet:
    """What it asks for is there at once; only what the policy sees and says is of interest."""

    def __init__(self, spec: ScaleSpec = SPEC) -> None:
        self.policy = ScalePolicy(spec)
        self.now = 0.0
        self.serving, self.standby = 1, 0

    def tick(
        self, tokens: float = 800.0, changes: Mapping[str, object] = MappingProxyType({})
    ) -> ScalePlan:
        self.now += 1.0
        seen = Observation(
            serving=self.serving,
            starting=0,
            standby=self.standby,
            as_of=self.now,
            since=self.now - 1.0,
            arrivals=round(tokens / 500),
            prompt_tokens=tokens,
            expected_output=0.0,
            queue_length=0,
            queue_age=0.0,
            running=1,
            start_time=60.0,
        )
        plan = self.policy.tick(replace(seen, **changes), self.now)  # type: ignore[arg-type]  # by name
        self.serving, self.standby = plan.replicas, plan.standbys
        return plan


@cache
def school(spec: ScaleSpec) -> Fleet:
    fleet = Fleet(spec)
    for tokens in pulses(890):
        fleet.tick(tokens)
    return fleet


def taught(spec: ScaleSpec = SPEC) -> Fleet:
    return deepcopy(school(spec))


def test_the_plan_names_the_rule_and_what_the_others_would_have_cost() -> None:
    plan = taught().tick()
    assert plan.replicas == 4
    assert plan.standbys == 0
    assert plan.reasons[0].signal is Signal.HINDSIGHT
    assert plan.reasons[0].text.startswith("4 always: on the last records the cheapest")
    passed_over = [r.text for r in plan.rejected if r.signal is Signal.HINDSIGHT]
    assert any(text.startswith("3 always: 0.75 x the cost,") for text in passed_over)
    assert any(text.startswith("5 always: 1.25 x the cost, 0.0% late") for text in passed_over)


def test_a_burst_beyond_all_records_is_not_launched_for_until_it_has_lasted() -> None:
    fleet = taught()
    short = [fleet.tick(9000.0, WAITING).replicas for _ in range(8)]
    assert max(short) == 4
    long = [fleet.tick(9000.0, WAITING).replicas for _ in range(150)]
    assert max(long) >= 9


@pytest.mark.parametrize("missing", [{"prompt_tokens": None}, {"queue_age": None}, {"as_of": 1.0}])
def test_missing_or_stale_data_never_scales_a_taught_fleet_down(missing: dict[str, Any]) -> None:
    fleet = taught()
    plans = [fleet.tick(changes=missing) for _ in range(400)]
    assert min(plan.replicas + plan.standbys for plan in plans) == 4
    assert any(r.signal is Signal.STALE for r in plans[-1].reasons)


def test_loaded_standbys_are_promoted_at_once_when_requests_wait() -> None:
    fleet = taught(replace(SPEC, standby_cost=0.25))
    calm = fleet.tick()
    assert calm.standbys > 0
    pressed = fleet.tick(3600.0, WAITING)
    assert pressed.replicas == calm.replicas + calm.standbys
    assert pressed.standbys == 0
