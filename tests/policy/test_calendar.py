"""What an operator expects: when an event is near, what it asks for, and what it never does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surgetank.adapters.zones import local_seconds
from surgetank.errors import ConfigError
from surgetank.policy.calendar import Calendar, CalendarEvent, Expecting
from surgetank.policy.plan import Signal
from surgetank.policy.scaling import Observation, ScalePolicy, ScaleSpec

WEDNESDAY = 1_796_169_600.0  # 2026-12-02 00:00 UTC


def at(hours: float) -> float:
    return WEDNESDAY + 3600 * hours


LAUNCH = CalendarEvent("launch", "2026-12-02T10:00", 1800.0, factor=5.0, replicas=3, standbys=2)


@pytest.mark.parametrize(
    ("hours", "expected"),
    [(9.98, False), (9.99, True), (10.0, True), (10.49, True), (10.5, False), (34.2, False)],
)
def test_an_event_is_expected_from_one_horizon_before_it_to_its_end(
    *, hours: float, expected: bool
) -> None:
    assert bool(Calendar([LAUNCH]).expects(at(hours), 60.0)) is expected


@pytest.mark.parametrize(
    ("repeat", "start", "hours", "expected"),
    [
        ("hourly", ":30", 0.5, True),
        ("hourly", ":30", 7.6, True),
        ("hourly", ":30", 7.3, False),
        ("daily", "09:00", 24 * 30 + 9.1, True),
        ("daily", "23:50", 24.1, True),  # over midnight
        ("weekdays", "09:00", 9.1, True),  # Wednesday
        ("weekdays", "09:00", 3 * 24 + 9.1, False),  # Saturday
        ("weekdays", "09:00", 5 * 24 + 9.1, True),  # Monday
        ("weekly", "wed 09:00", 7 * 24 + 9.1, True),
        ("weekly", "thu 09:00", 9.1, False),
    ],
)
def test_an_event_recurs(*, repeat: str, start: str, hours: float, expected: bool) -> None:
    event = CalendarEvent("core", start, 1200.0, repeat=repeat, standbys=3)  # type: ignore[arg-type]  # a row's text
    assert bool(Calendar([event]).expects(at(hours), 0.0)) is expected


def test_a_start_is_read_on_the_clocks_of_its_zone_in_summer_and_winter() -> None:
    event = CalendarEvent(
        "open", "09:00", 600.0, repeat="daily", timezone="Europe/Berlin", standbys=1
    )
    calendar = Calendar([event], local=local_seconds)
    assert calendar.expects(at(8.05), 0.0)
    assert not calendar.expects(at(9.05), 0.0)
    july = at(7.05 + 24 * 220)
    assert calendar.expects(july, 0.0)
    assert not calendar.expects(july + 3600, 0.0)


def test_the_larger_of_events_at_once_counts_and_the_reason_names_both() -> None:
    core = CalendarEvent("core", "08:00", 36_000.0, repeat="daily", standbys=4)
    found = Calendar([LAUNCH, core]).expects(at(10.1), 60.0)
    assert (found.factor, found.replicas, found.standbys) == (5.0, 3, 4)
    assert "launch" in found.reason
    assert "core" in found.reason


def test_events_of_other_models_are_not_this_pools() -> None:
    calendar = Calendar([replace(LAUNCH, model="large")])
    assert calendar.of("large").expects(at(10.1), 0.0)
    assert not calendar.of("small")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"start": "2026-02-30T10:00"}, "start"),
        ({"start": "10:00"}, "2026-12-01T10:00"),
        ({"repeat": "daily"}, "09:00"),
        ({"length": 0.0}, "length"),
        ({"repeat": "hourly", "start": ":00", "length": 3601.0}, "never ends"),
        ({"factor": 0.5}, "factor"),
        ({"factor": 1.0, "replicas": 0, "standbys": 0}, "says nothing"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        replace(LAUNCH, **changes)  # type: ignore[arg-type]  # by name


def test_a_factor_is_of_the_usual_demand_and_not_of_the_event_itself() -> None:
    expecting = Expecting(Calendar([LAUNCH]), wall_offset=WEDNESDAY)
    for second in range(0, 35_900, 100):
        assert expecting.asks(2.0, 60.0, float(second)) is None
    for second in range(35_950, 36_500, 50):
        asked = expecting.asks(9.0, 60.0, float(second))
        assert asked is not None
        assert asked[0] == pytest.approx(10.0, rel=0.01)
    assert expecting.standbys == 2


def quiet(now: float, *, serving: int) -> Observation:
    return Observation(
        serving=serving,
        starting=0,
        standby=0,
        as_of=now,
        since=now - 1,
        arrivals=1,
        prompt_tokens=100.0,
        expected_output=100.0,
        output_tokens=100.0,
        queue_length=0,
        queue_age=0.0,
        running=1,
        outstanding_output=100.0,
    )


def planned(hours: float, *, stale: bool = False, most: int = 20) -> tuple[int, int, set[Signal]]:
    expecting = Expecting(
        Calendar([replace(LAUNCH, factor=1.0, replicas=12)]), wall_offset=WEDNESDAY
    )
    policy = ScalePolicy(ScaleSpec(max_replicas=most, standbys=0), expecting=expecting)
    begin = hours * 3600
    plan = policy.tick(quiet(begin, serving=1), begin)
    for second in range(1, 4):
        now = begin + second
        seen = quiet(begin if stale else now, serving=1)
        plan = policy.tick(seen, now + (60 if stale else 0))
    return plan.replicas, plan.standbys, {reason.signal for reason in plan.reasons}


def test_scaling_has_the_replicas_one_start_time_before_the_event() -> None:
    replicas, standbys, signals = planned(9.98)
    assert (replicas, standbys) == (12, 2)
    assert Signal.CALENDAR in signals


def test_scaling_takes_no_notice_of_an_event_that_is_far() -> None:
    replicas, standbys, signals = planned(9.5)
    assert (replicas, standbys) == (1, 0)
    assert Signal.CALENDAR not in signals


def test_an_event_is_met_without_any_data_and_within_the_limit() -> None:
    assert planned(10.1, stale=True)[0] == 12
    assert planned(10.1, most=7)[:2] == (7, 0)
