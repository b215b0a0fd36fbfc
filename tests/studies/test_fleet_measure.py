"""What a run of the second act comes to, from rows written by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from surgetank.policy.request import Outcome
from surgetank.studies.fleet_demo.measure import (
    Promotion,
    at_rest,
    attainment,
    cut_by_scale_down,
    promotions,
    read_decisions,
    refilled,
    replica_seconds,
    share,
)
from surgetank.studies.fleet_demo.tail import SampleTail
from tests.studies.fleet import AT, OURS, happened, record, sample, served, tick


def test_replica_seconds_count_all_that_hold_a_machine_and_hold_a_sample_until_the_next() -> None:
    samples = [
        sample(-2, 1, 2),
        sample(1, 3, 0, starting=2, refilling=1),
        sample(4, 1, 1, draining=1),
    ]
    # 3 for 1 s, 6 for 3 s, 3 for 6 s; what lies outside the window is not counted
    assert replica_seconds(samples, AT, AT + 10) == pytest.approx(3 + 18 + 18)
    assert replica_seconds(samples, AT - 100, AT - 1) == pytest.approx(3)
    assert replica_seconds([], AT, AT + 10) == 0.0


def test_a_fleet_is_at_rest_when_it_has_its_size_and_nothing_moves() -> None:
    assert at_rest(sample(0, 1, 2), serving=1, standby=2)
    assert not at_rest(sample(0, 2, 2), serving=1, standby=2)
    for moving in ("starting", "refilling", "draining"):
        assert not at_rest(sample(0, 1, 2, **{moving: 1}), serving=1, standby=2)


def test_what_was_refused_or_failed_is_not_in_time_and_what_left_after_its_token_is() -> None:
    rows = [
        record("q", 0, 2.0),
        record("q", 1, 2.01),
        record("q", 2, 0.1, Outcome.UPSTREAM_FAILED),
        record("q", 3, None, Outcome.QUEUE_FULL),
        record("q", 4, 0.1, Outcome.ABANDONED),
        record("q", 5, None, Outcome.ABANDONED),
    ]
    assert attainment(rows, 2.0) == pytest.approx(2 / 6)
    assert math.isnan(attainment([], 2.0))


def test_a_tenants_share_is_its_part_of_the_tokens() -> None:
    assert share(OURS, "noisy") == pytest.approx(30 / 50)
    assert math.isnan(share([], "noisy"))


def test_a_promoted_standby_is_one_that_a_plan_attached_and_serves_from_then_on() -> None:
    decisions = [
        happened(0, ("attach", "base")),
        tick(1, ("attach", "early")),
        tick(5, ("attach", "a"), ("start", "c")),
        tick(6, ("attach", "b")),
        happened(9, ("attach", "c")),
    ]
    records = [
        served("a", 2.0, 2.1, 3.0),  # in an earlier life as a serving one
        served("a", 5.0, 5.2, 7.0),
        served("a", 5.0, 5.1, 7.0),
        served("c", 9.1, 9.2, 9.9),
    ]
    assert promotions(decisions, records, AT + 4) == [
        Promotion("a", AT + 5, AT + 5.1),
        Promotion("b", AT + 6, None),
    ]


def test_a_stream_is_cut_by_scaling_down_when_it_fails_on_a_replica_that_was_told_to_go() -> None:
    decisions = [
        tick(5, ("drain", "a"), ("detach", "b")),
        happened(6, ("stop", "a")),
        tick(7, ("attach", "b")),
    ]
    failed = "upstream_failed"
    cut = served("a", 1, 2, 6.1, failed)
    records = [
        cut,
        served("a", 1, 2, 4.9, failed),  # before
        served("a", 1, 2, 5.5),  # completed while it drained
        served("b", 7.5, 7.6, 8.0, failed),  # it serves again
        served("c", 1, 2, 9.0, failed),
        served("a", 1, 2, 6.0, "abandoned"),  # its client left
    ]
    assert cut_by_scale_down(decisions, records) == [cut]


def test_standbys_are_refilled_when_as_many_are_there_again() -> None:
    samples = [sample(0, 1, 2), sample(3, 3, 0), sample(5, 3, 1), sample(9, 1, 2)]
    assert refilled(samples, 2, AT + 1) == AT + 9
    assert refilled(samples[:3], 2, AT + 1) is None
    assert refilled(samples[:1], 2, AT - 1) is None  # none was ever missing


def test_a_torn_line_of_the_decision_log_is_left_out() -> None:
    assert read_decisions('{"t":1,"effects":[]}\n{"t":2,"eff') == [{"t": 1, "effects": []}]


def test_samples_are_read_as_they_come_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    tail = SampleTail(path)
    assert tail.read() is None
    line = sample(1, 3, 1).to_line()
    path.write_text(f"{OURS[0].to_line()}\n{line[:20]}")
    assert tail.read() is None
    with path.open("a") as file:
        file.write(f"{line[20:]}\n")
    assert tail.read() == sample(1, 3, 1)
    assert tail.read() == sample(1, 3, 1)
