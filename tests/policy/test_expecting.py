"""Replicas on their way count from the moment they are expected: for waits, and for Retry-After."""

from __future__ import annotations

import pytest

from surgetank.policy.effect import Refuse
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.model import Model
from surgetank.policy.placement import Load
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tier


def model_of(replicas: int, *expected: float) -> Model:
    model = Model("m", {}, lambda: 0.5)
    for number in range(replicas):
        model.join(Load(Replica(f"r{number}", "m", slots=8), None, 0.5))
    model.expected = expected
    return model


@pytest.mark.parametrize(
    ("replicas", "expected", "seconds"),
    [
        (1, (), 30.0),
        (1, (110.0,), 20.0),  # 10 s alone, and half of the other 20 s
        (2, (110.0,), 10 + 20 / 1.5),
        (1, (110.0, 115.0), 10 + 5 + 10 / 3),
        (1, (99.0,), 30.0),  # late: it counts for nothing
        (1, (140.0,), 30.0),  # too late to help
        (0, (112.0, 130.0), 12.0),
    ],
)
def test_work_is_done_sooner_by_what_is_expected(
    replicas: int, expected: tuple[float, ...], seconds: float
) -> None:
    assert model_of(replicas, *expected).soon(30.0, 100.0) == pytest.approx(seconds)


def overloaded() -> tuple[FlowControl, float]:
    """One replica with a measured rate, a request a second, and 8 s of work waiting."""
    tiers = [Tier(theta=4.0)]
    flow = FlowControl(FlowSpec(max_queued=100), tiers=tiers, models=["m"])
    flow.join(Replica("one", "m", slots=1), 0.0)
    for number in range(20):
        flow.offer(asked(f"s{number}"), float(number) / 2)
    for number in range(11):
        flow.finish(f"s{number}", Outcome.COMPLETED, Usage(100, 100), 10.0 + number)
    return flow, 20.0


def asked(name: str) -> Request:
    return Request(name, "a", "m", 400, prompt_tokens=100, max_tokens=100)


def test_what_would_wait_too_long_is_let_in_when_a_replica_is_about_to_come() -> None:
    flow, now = overloaded()
    assert any(isinstance(e, Refuse) for e in flow.offer(asked("late"), now))
    flow.expect("m", [now + 1.0, now + 1.0], now)
    assert list(flow.offer(asked("early"), now)) == []


def test_nobody_is_told_to_come_back_later_than_the_next_replica_helps() -> None:
    told = []
    for etas in ((), (25.0,), (21.0, 21.0, 21.0)):
        flow, now = overloaded()
        flow.expect("m", etas, now)
        refused = [
            effect
            for number in range(40)
            for effect in flow.offer(asked(f"n{number}"), now)
            if isinstance(effect, Refuse)
        ]
        told.append(refused[-1].retry_after or 0.0)
    assert told[0] > told[1] > told[2]


@pytest.mark.parametrize(("draw", "told"), [(0.0, 40.0), (0.5, 40.5), (0.999, 40.999)])
def test_without_a_replica_a_retry_is_told_when_the_first_one_is_expected(
    draw: float, told: float
) -> None:
    """Never sooner, since nobody would be served, and spread over a second after it."""
    flow = FlowControl(FlowSpec(), models=["m"], draw=lambda: draw)
    flow.expect("m", [42.0], 0.0)
    (refused,) = flow.offer(asked("r"), 2.0)
    assert isinstance(refused, Refuse)
    assert refused.outcome is Outcome.NO_REPLICA
    assert refused.retry_after == pytest.approx(told)


def test_a_measured_rate_is_each_replicas_and_follows_their_number() -> None:
    model = model_of(2)
    model.rate.mark(0.0, waiting=True, running=True)
    for second in range(1, 31):
        model.rate.settle(100.0, float(second))
    before = model.rate.capacity()
    assert before is not None
    model.join(Load(Replica("new", "m", slots=8), None, 0.5))
    assert model.rate.capacity() == pytest.approx(1.5 * before)
