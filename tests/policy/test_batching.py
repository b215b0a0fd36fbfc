"""The batching window: who waits for company, how long, and when nobody does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from surgetank.policy.effect import Dispatch, Effect
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.ladder import LadderSpec
from surgetank.policy.replica import Replica, Signals
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier

WINDOW = 0.25
SIZE = 4


class Flow:
    """A flow before engines of whole batches, and who was sent where."""

    def __init__(self, *replicas: str, **spec: Any) -> None:
        self.flow = FlowControl(FlowSpec(batching_window=WINDOW, **spec), models=["m"])
        self.sent: dict[str, str] = {}
        for name in replicas or ("a",):
            static = Replica(name, "m", slots=SIZE, batching="static")
            self.take(self.flow.join(static, 0.0))

    def take(self, effects: Sequence[Effect]) -> list[str]:
        """Note what is sent; returns who is, in order."""
        found = [e for e in effects if isinstance(e, Dispatch)]
        self.sent |= {e.request.id: e.legs[0].replica for e in found}
        return [e.request.id for e in found]

    def offer(self, name: str, now: float) -> list[str]:
        return self.take(self.flow.offer(Request(name, "t", "m", 400), now))

    def finish(self, name: str, now: float) -> list[str]:
        return self.take(self.flow.finish(name, Outcome.COMPLETED, Usage(100, 10), now))

    def advance(self, now: float) -> list[str]:
        return self.take(self.flow.advance(now))


def test_an_idle_engine_gets_whoever_came_within_the_window_together() -> None:
    flow = Flow()
    assert flow.offer("1", 10.0) == flow.offer("2", 10.1) == []
    assert flow.flow.next_deadline() == 10.0 + WINDOW
    assert flow.advance(10.2) == []
    assert flow.advance(10.0 + WINDOW) == ["1", "2"]


def test_a_full_batch_leaves_at_once() -> None:
    flow = Flow()
    sent = [flow.offer(f"{i}", 10.0 + 0.01 * i) for i in range(SIZE)]
    assert sent == [[], [], [], ["0", "1", "2", "3"]]


def test_nobody_is_sent_into_a_batch_that_runs() -> None:
    flow = Flow()
    flow.offer("1", 10.0)
    assert flow.advance(10.25) == ["1"]
    assert flow.offer("2", 10.3) == []
    assert flow.advance(11.0) == []  # its window is over, the batch is not
    assert flow.finish("1", 12.0) == ["2"]  # it has waited for long enough


def test_what_has_come_together_while_a_batch_ran_leaves_with_its_end() -> None:
    flow = Flow()
    for i in range(SIZE):
        flow.offer(f"a{i}", 10.0)
    for i in range(SIZE + 1):
        assert flow.offer(f"b{i}", 10.9) == []
    for i in range(SIZE - 1):
        assert flow.finish(f"a{i}", 11.0) == []
    assert flow.finish("a3", 11.0) == ["b0", "b1", "b2", "b3"]


def test_the_window_is_shorter_the_more_a_batch_fills_by_itself() -> None:
    flow = Flow()
    for i in range(SIZE):
        flow.offer(f"a{i}", 10.0)
    for i in range(SIZE):
        flow.finish(f"a{i}", 11.0)  # a run takes a second
    # One came in the second since that batch left, in which a quarter of a batch would come.
    flow.offer("b0", 11.0)
    assert flow.flow.next_deadline() == pytest.approx(11.0 + WINDOW * (1 - 1 / 4))
    assert flow.advance(11.5) == ["b0"]
    flow.finish("b0", 12.0)
    flow.offer("c", 100.0)  # long after: alone
    assert flow.flow.next_deadline() == pytest.approx(100.0 + WINDOW, abs=0.01)


def test_at_the_peak_nobody_waits_for_company() -> None:
    flow = Flow()
    for i in range(SIZE):
        flow.offer(f"a{i}", 10.0)
    for i, at in enumerate((10.1, 10.5, 10.95)):
        assert flow.offer(f"b{i}", at) == []
    sent = [flow.finish(f"a{i}", 11.0) for i in range(SIZE)]
    assert sent == [[], [], [], ["b0", "b1", "b2"]]  # at the moment the engine is free


def test_one_batch_is_filled_before_the_next_is_begun() -> None:
    flow = Flow("a", "b")
    for i in range(SIZE + 1):
        flow.offer(f"{i}", 10.0)
    assert [flow.sent.get(f"{i}") for i in range(SIZE + 1)] == ["a"] * SIZE + [None]
    assert flow.advance(10.0 + WINDOW) == ["4"]
    assert flow.sent["4"] == "b"


def test_on_a_step_of_the_ladder_there_is_no_window() -> None:
    tiers = (Tier("core", priority=0), Tier())
    flow = FlowControl(
        FlowSpec(batching_window=WINDOW, max_queued=100),
        tenants=[Tenant("vip", tier="core")],
        tiers=tiers,
        models=["m"],
        ladder=LadderSpec(enabled=True),
    )
    flow.join(Replica("a", "m", slots=1, batching="static"), 0.0)
    for i in range(6):
        flow.offer(Request(f"{i}", "vip", "m", 400), 10.0 + 0.25 * i)
    assert flow.degradation() == {"m": 1}
    for i in range(5):
        flow.finish(f"{i}", Outcome.COMPLETED, Usage(100, 10), 11.5)
    flow.join(Replica("b", "m", slots=8, batching="static"), 11.5)
    (sent,) = flow.offer(Request("at once", "vip", "m", 400), 11.6)
    assert isinstance(sent, Dispatch)


def test_a_fleet_that_batches_continuously_has_no_window() -> None:
    flow = FlowControl(FlowSpec(batching_window=WINDOW), models=["m"])
    flow.join(Replica("a", "m", slots=4), 0.0)
    assert flow.offer(Request("1", "t", "m", 400), 10.0)
    assert flow.offer(Request("2", "t", "m", 400), 10.1)


def test_of_two_kinds_of_engines_the_continuous_one_is_sent_to_at_once() -> None:
    flow = Flow("a")
    flow.take(flow.flow.join(Replica("z", "m", slots=1), 1.0))
    assert flow.offer("1", 10.0) == ["1"]
    assert flow.sent == {"1": "z"}
    assert flow.offer("2", 10.1) == []
    assert flow.advance(10.1 + WINDOW) == ["2"]


def test_what_waits_inside_such_an_engine_says_nothing_of_its_limit() -> None:
    flow = Flow()
    flow.take(flow.flow.observe("a", Signals(as_of=9.9, waiting=3, running=0), 9.9))
    sent = [flow.offer(f"{i}", 10.0) for i in range(SIZE)]
    assert len(sent[-1]) == SIZE


def test_what_was_learnt_of_such_an_engine_can_be_told() -> None:
    (lesson,) = Flow().flow.lessons()
    (limit,) = lesson.limits
    assert (limit.limit, limit.prompts) == (SIZE, None)
    assert lesson.text()


def test_long_prompts_fill_a_batch_as_short_ones_do() -> None:
    """Elsewhere prompts that are not computed yet bound how many more are sent."""
    flow = Flow()
    sent: list[str] = []
    for i in range(SIZE):
        request = Request(f"{i}", "t", "m", 12_000, stream=True)
        sent += flow.take(flow.flow.offer(request, 10.0 + 0.01 * i))
    assert sent == ["0", "1", "2", "3"]
