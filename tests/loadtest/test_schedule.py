"""Schedules: who sends what and when, drawn once, the same for the same seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import surgetank
from surgetank.errors import InputError
from surgetank.loadtest.schedule import Schedule
from surgetank.loadtest.sessions import SessionSpec
from surgetank.loadtest.shapes import Pulses, Steady
from surgetank.loadtest.tenants import Prefix, TenantLoad, draw
from surgetank.traffic.tokencounts import Lengths, Observed

FEW = Lengths("fixed", 100)
ANY = Lengths("lognormal", 200, 0.7)
QUIET = TenantLoad("quiet", Steady(2, 300), ANY, FEW)
NOISY = TenantLoad("noisy", Pulses(1, 30, 10, 60, 300), ANY, FEW)


def of(schedule: Schedule, name: str) -> Schedule:
    code = schedule.tenant.names.index(name)
    return schedule.take(schedule.tenant.codes == code)


def test_the_same_seed_gives_the_same_fingerprint_and_another_one_does_not() -> None:
    one = draw([QUIET, NOISY], seed=1)
    assert draw([QUIET, NOISY], seed=1).fingerprint == one.fingerprint
    assert draw([QUIET, NOISY], seed=2).fingerprint != one.fingerprint


@pytest.mark.parametrize("column", ["prompt_tokens", "max_tokens", "at"])
def test_the_fingerprint_changes_with_any_one_request(column: str) -> None:
    one = draw([QUIET], seed=1)
    changed = getattr(one, column).copy()
    changed[7] += 1
    assert replace(one, **{column: changed}).fingerprint != one.fingerprint


def test_the_fingerprint_does_not_see_less_than_half_a_millisecond() -> None:
    one = replace(draw([QUIET], seed=1), at=np.round(draw([QUIET], seed=1).at, 3))
    assert replace(one, at=one.at + 0.0004).fingerprint == one.fingerprint


def test_another_tenant_beside_it_changes_nothing_of_what_a_tenant_sends() -> None:
    alone, beside = draw([QUIET], seed=4), of(draw([QUIET, NOISY], seed=4), "quiet")
    assert np.array_equal(alone.at, beside.at)
    assert np.array_equal(alone.prompt_tokens, beside.prompt_tokens)


def test_requests_of_all_tenants_are_in_the_order_of_time() -> None:
    both = draw([QUIET, NOISY], seed=0)
    assert (np.diff(both.at) >= 0).all()
    assert len(both) == len(of(both, "quiet")) + len(of(both, "noisy"))


def test_phases_are_those_of_the_tenant_whose_pulses_rise_highest() -> None:
    small = TenantLoad("small", Pulses(1, 5, 5, 20, 300), ANY, FEW)
    assert draw([small, QUIET, NOISY], seed=0).phases == NOISY.shape.phases()


def test_sizes_can_be_bounded() -> None:
    bounded = draw([NOISY], seed=0).clipped(prompt=150, output=20)
    assert bounded.prompt_tokens.max() == 150
    assert set(bounded.max_tokens.tolist()) == {20}


def test_counts_of_a_log_are_drawn_as_often_as_they_are_in_it() -> None:
    seen = Observed(np.array([10, 10, 10, 999]))
    drawn = seen.draw(4000, np.random.default_rng(0))
    assert set(drawn.tolist()) == {10, 999}
    assert (drawn == 999).mean() == pytest.approx(0.25, abs=0.03)


def test_too_many_requests_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(InputError, match="more than 1,000; lower the rates or the duration"):
        draw([TenantLoad("x", Steady(1e6, 3600), FEW, FEW)], seed=0, most=1000)


def test_a_schedule_without_a_request_is_refused() -> None:
    with pytest.raises(InputError, match="no request falls into the duration"):
        draw([TenantLoad("x", Steady(0.001, 1), FEW, FEW)], seed=0)


def test_a_shared_prefix_is_one_of_so_many_texts_and_not_longer_than_the_prompt() -> None:
    shared = draw([replace(QUIET, prefix=Prefix(150, 3))], seed=0)
    assert set(shared.root.tolist()) == {0, 1, 2}
    assert (shared.shared == np.minimum(150, shared.prompt_tokens)).all()


def test_tenants_share_no_prefix_with_each_other() -> None:
    both = draw([replace(t, prefix=Prefix(50, 2)) for t in (QUIET, NOISY)], seed=0)
    assert not set(of(both, "quiet").root.tolist()) & set(of(both, "noisy").root.tolist())


def test_a_sessions_prompts_grow_by_the_last_answer_and_what_is_new() -> None:
    agents = replace(QUIET, prompt=FEW, sessions=SessionSpec(turns=5, think=2))
    made = draw([agents], seed=0)
    for session in range(20):
        rows = made.session == session
        grown = np.diff(made.prompt_tokens[rows])
        assert (grown == 200).all(), "100 new tokens and an answer of 100"
        assert (made.shared[rows] == made.prompt_tokens[rows]).all()


def test_a_fan_out_is_due_at_one_moment_and_parts_at_what_is_new() -> None:
    agents = replace(QUIET, prompt=FEW, sessions=SessionSpec(turns=3, think=2, fan_out=4))
    made = draw([agents], seed=0)
    times, counts = np.unique(made.at, return_counts=True)
    assert len(times) * 4 == len(made)
    assert set(counts.tolist()) == {4}
    assert (made.prompt_tokens - made.shared == 100).all()


def test_turns_come_on_the_schedule_a_think_time_apart() -> None:
    agents = TenantLoad("a", Steady(1, 2000), FEW, FEW, sessions=SessionSpec(turns=6, think=3))
    made = draw([agents], seed=0)
    gaps = [np.diff(made.at[made.session == s]) for s in range(1500)]
    assert np.concatenate(gaps).mean() == pytest.approx(3, rel=0.1)
    assert len(made) / 2000 == pytest.approx(6, rel=0.1)


def test_a_session_ends_when_its_prompt_would_be_too_long() -> None:
    agents = replace(QUIET, prompt=FEW, sessions=SessionSpec(turns=50, think=0.1))
    assert draw([agents], seed=0, longest=1000).prompt_tokens.max() <= 1000


def test_shots_carry_tenant_session_and_output_for_a_function_of_the_users_own() -> None:
    made = draw([replace(QUIET, sessions=SessionSpec(turns=2, think=1))], seed=0)
    first = made.shots[0]
    assert (first.at, first.tenant, first.max_tokens) == (made.at[0], "quiet", 100)
    assert first.session == f"s{made.session[0]}"


def test_a_schedule_drives_a_function_of_the_users_own() -> None:
    schedule = draw([TenantLoad("me", Steady(100, 0.3), FEW, FEW)], seed=0)
    seen: list[str] = []

    async def ask(shot: surgetank.Shot) -> int:
        seen.append(shot.id)
        return 3

    result = surgetank.load(schedule, ask, max_lag=5)
    assert seen == [f"{row:06d}" for row in range(len(schedule))]
    assert {record.output_tokens for record in result.records} == {3}
    assert {record.tenant for record in result.records} == {"me"}
