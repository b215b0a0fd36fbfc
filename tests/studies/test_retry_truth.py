"""The measure of Retry-After: what a retry finds, and whether one that came sooner would have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surgetank.policy.effect import Refuse
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request
from surgetank.simulation.clients import KINDS
from surgetank.studies.attainment import TINY, Case, Shape
from surgetank.studies.retry_truth import Told, copy_of, measure, promised


def constant() -> float:
    """A draw that can be copied, as those of gateways can."""
    return 0.5


def test_who_obeys_gets_in_and_would_hardly_have_sooner_in_a_pulse_and_watching_is_free() -> None:
    case = Case(TINY, Shape("a pulse", 0.3, 2.0, 12.0, 36.0, 1), clients=KINDS["sdk"])
    found, unwatched = (measure(case.scenario("static", 0), each=each) for each in (3, 9999))
    assert found.came_back > 100
    pulses = [found, *(measure(case.scenario("static", seed), each=9999) for seed in range(1, 12))]
    assert sum(p.let_in for p in pulses) >= 0.95 * sum(p.came_back for p in pulses)  # one is few
    assert len(found.ratios()) > 30
    assert found.ratio is not None
    assert found.ratio <= 1.5
    assert found.ratios(Outcome.PREDICTED_WAIT) == found.ratios()
    assert replace(found, sample=()) == unwatched


def test_a_copy_decides_as_the_original_and_leaves_it_as_it_was() -> None:
    flow = FlowControl(FlowSpec(max_queued=2), draw=constant)
    flow.join(Replica("one", "m", slots=1), 0.0)
    for number in range(3):
        flow.offer(Request(f"r{number}", "a", "m", 400), 0.0)
    twin = copy_of(flow)
    again = Request("late", "a", "m", 401)
    first, second = twin.offer(again, 1.0), flow.offer(again, 1.0)
    assert isinstance(first[0], Refuse)
    assert first == second
    assert promised(twin) == promised(flow) == 1
    twin.offer(again._replace(id="other", prompt_bytes=402), 1.0)
    assert (promised(twin), promised(flow)) == (2, 1)


def test_times_below_a_tenth_of_a_second_count_as_one() -> None:
    assert Told(Outcome.QUEUE_FULL, 0.05, 0.01).ratio == 1.0
    assert Told(Outcome.QUEUE_FULL, 3.0, 2.0).ratio == pytest.approx(1.5)
    assert Told(Outcome.QUEUE_FULL, 3.0, None).ratio is None
