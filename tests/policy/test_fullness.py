"""A refusal for want of room says what stood in the way on each replica."""

from __future__ import annotations

from surgetank.policy.effect import Refuse
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request


def request(number: int, tokens: int = 100) -> Request:
    return Request(f"r{number}", "a", "m", 400, prompt_tokens=tokens, max_tokens=100)


def refused(flow: FlowControl, asked: Request) -> Refuse:
    (effect,) = flow.offer(asked, 0.0)
    assert isinstance(effect, Refuse)
    return effect


def test_slots_and_kv_are_told_apart() -> None:
    flow = FlowControl(FlowSpec(when_full="refuse"))
    flow.join(Replica("slots", "m", slots=1), 0.0)
    flow.join(Replica("tokens", "m", slots=8, kv_tokens=256, block_size=16), 0.0)
    for number in range(2):
        flow.offer(request(number), 0.0)
    told = refused(flow, request(2))
    assert told.outcome is Outcome.NO_SLOT
    assert told.full == ("slots limit 1/1", "tokens kv 208+208/256")
    assert told.tokens == 200


def test_of_many_replicas_only_some_are_named() -> None:
    flow = FlowControl(FlowSpec(when_full="refuse"))
    for number in range(9):
        flow.join(Replica(f"e{number}", "m", slots=1), 0.0)
        flow.offer(request(number), 0.0)
    told = refused(flow, request(10))
    assert told.full == (*(f"e{n} limit 1/1" for n in range(4)), "+5 more")


def test_a_replica_that_failed_it_and_one_that_pauses_are_named_so() -> None:
    flow = FlowControl(FlowSpec(max_queued=0, replays=0, max_in_flight=1))
    flow.join(Replica("one", "m", slots=1), 0.0)
    flow.offer(request(0), 0.0)
    flow.retry("r0", "busy", None, 0.0)
    told = refused(flow, request(1))
    assert (told.outcome, told.full) == (Outcome.QUEUE_FULL, ("one paused",))
