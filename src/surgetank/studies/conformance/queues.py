"""Checks on queues and overload: what waits, what is refused, and how soon all is well again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from surgetank.studies.conformance.behaviour import BUSY, Behaviour
from surgetank.studies.conformance.client import Call
from surgetank.studies.conformance.settings import Settings
from surgetank.studies.conformance.verdict import NotTestable, check
from surgetank.studies.conformance.world import World

_LONG: Final = Behaviour(tokens=1000, pace=0.2)
_MB: Final = 1 << 20
_MOST_RETRY_AFTER: Final = 120.0  # SDKs do not obey more


def require_refusal(world: World, call: Call, *, what: str) -> None:
    """Require a refusal as clients understand it: 429, Retry-After, the OpenAI error shape."""
    world.require(call.status == 429, f"{what}: {call.shape}, not a 429")
    told = call.headers.get("retry-after", "")
    good = told.isdigit() and 0 < int(told) <= _MOST_RETRY_AFTER
    world.require(good, f"{what}: a 429 with Retry-After {told!r}, not seconds from 1 to 120")
    require_shape(world, call, what=what)


def require_shape(world: World, call: Call, *, what: str) -> None:
    """Require the OpenAI error shape."""
    error = call.error or {}
    message, kind = error.get("message"), error.get("type")
    good = isinstance(message, str) and message and isinstance(kind, str) and kind
    world.require(good, f"{what}: {call.status} without the OpenAI error shape")


async def first_success(world: World, seconds: float) -> tuple[float, int]:
    """Ask again and again until served; return seconds and attempts. Raises Failed when late."""
    began, attempts = world.now, 0
    while True:
        call = await (await world.ask(limit=seconds + 1)).ending()
        attempts += 1
        if call.ok or world.now - began > seconds:
            break
        await asyncio.sleep(0.05)
    took = world.now - began
    world.require(call.ok and took <= seconds, f"no success in {took:.2f} s; last: {call.shape}")
    return took, attempts


@check(
    10,
    "A queue serves exactly what can be served in time",
    source="vllm-project/router#247, sgl-project/sglang#33535",
    right=(
        "cap 8, queue 16, timeout 4 s, service 1.4 s, 60 at once: exactly 24 are served, the "
        "others get a 429 with Retry-After in the OpenAI error shape, and none waits longer "
        "than the timeout"
    ),
    given=Settings(cap=8, queue=16, queue_timeout=4.0, request_timeout=30.0),
    without=("request_timeout",),
)
async def feasible_work(world: World) -> None:
    world.replica.slots = 8
    world.replica.behaviour = Behaviour(service=1.4)
    calls = await world.ended(await world.burst([world.message()] * 60), 20.0)
    fine = sum(call.ok for call in calls)
    statuses = sorted({call.status for call in calls})
    at_once = world.replica.max_in_flight
    world.note(f"served {fine} of 60, {at_once} at once; statuses {statuses}")
    world.require(fine == 24 and at_once <= 8, world.evidence[-1])
    for call in calls:
        if not call.ok:
            require_refusal(world, call, what="beyond the queue")
            world.require(call.took <= 4.5, f"one waited longer than the timeout: {call.shape}")


@check(
    11,
    "An engine that sheds is not shunned when it is idle",
    source="sgl-project/sglang#39464, #25811, #25822",
    right=(
        "after a burst that the engine answered with 503s the first success comes within 1 s of"
        " its being idle; 50 client errors (400) keep nobody out"
    ),
    given=Settings(cap=64, queue=200),
    without=("cap", "queue"),
)
async def no_breaker(world: World) -> None:
    replica = world.replica
    replica.slots, replica.max_waiting = 4, 4
    replica.behaviour = Behaviour(service=0.2)
    calls = await world.ended(await world.burst([world.message()] * 100), 20.0)
    await world.until(lambda: replica.in_flight == 0, 10.0)
    fine = sum(call.ok for call in calls)
    world.note(f"burst of 100: {fine} served, the engine answered 503 {replica.ends['shed']} times")
    took, attempts = await first_success(world, 1.0)
    world.note(f"idle again: a success after {took:.2f} s, attempt {attempts}")
    replica.script = lambda _: Behaviour(status=400)
    wrong = await world.ended(await world.burst([world.message()] * 50), 10.0)
    kept = sum(400 <= call.status < 500 for call in wrong)
    replica.script = lambda _: None
    took, attempts = await first_success(world, 1.0)
    world.note(f"{kept} client errors passed on, then a success after {took:.2f} s")
    world.require(kept == 50, f"of 50 client errors (400) {kept} were told as 4xx")


@check(
    12,
    "A worker that was overloaded is used again",
    source="ai-dynamo/dynamo#12138",
    right="an engine that shed for 3 s gets requests again within 10 s, without a restart",
    replicas=2,
    given=Settings(cap=4),
    without=("cap",),
)
async def recovers(world: World) -> None:
    busy, other = world.replicas
    for replica in world.replicas:
        replica.behaviour = Behaviour(service=0.02)
    busy.script = lambda _: BUSY
    busy.told_waiting = 500
    until = world.now + 3.0
    lines = await world.lines(4)
    sent: list[Call] = []
    while world.now < until:
        calls = [line.ask(world.message()) for line in lines if line.open]
        sent += await world.ended(calls, 5.0)
    shed, fine = busy.total, sum(call.ok for call in sent)
    world.note(f"overloaded for 3 s: {shed} requests tried there, {fine} of {len(sent)} served")
    busy.script = lambda _: None
    busy.told_waiting = None
    busy.forget()
    began = world.now
    while not busy.ends["answered"] and world.now - began < 10.0:
        await world.ended(await world.burst([world.message()] * 8), 5.0)
    took = world.now - began
    world.require(busy.ends["answered"], f"nothing was sent to it in {took:.1f} s")
    world.note(f"it served again after {took:.2f} s; the other had {other.total} requests")


@check(
    13,
    "The free worker gets the request, not a busy one",
    source="ai-dynamo/dynamo#9688",
    right="three workers, two busy with a stream: each of 10 requests goes to the free one at once",
    replicas=3,
    given=Settings(cap=1),
    without=("cap",),
)
async def free_worker(world: World) -> None:
    for replica in world.replicas:
        replica.slots = 1
        replica.behaviour = _LONG
    streams = [await world.ask(stream=True) for _ in range(2)]
    for stream in streams:
        world.require(await stream.event(1, 2.0), f"two streams on three workers: {stream.shape}")
    free = [replica for replica in world.replicas if replica.running == 0]
    world.require(len(free) == 1, "two streams do not run on two workers")
    free[0].behaviour = Behaviour(service=0.02)
    for i in range(10):
        call = await (await world.ask(limit=5.0)).ending()
        seen = f"request {i + 1} of 10 with one worker free: {call.shape}"
        world.require(call.ok and call.took < 1.0, seen)
    world.note(f"the free worker had {free[0].total} of 10")


@check(
    14,
    "A hung worker delays no request to the others",
    source="ai-dynamo/dynamo#8350",
    right=(
        "one of three workers takes requests and never answers: 30 requests, once its slots are"
        " stuck, take less than 1 s each"
    ),
    replicas=3,
    given=Settings(cap=4, request_timeout=60.0),
    without=("cap", "request_timeout"),
)
async def hung_worker(world: World) -> None:
    hung = world.replicas[0]
    for replica in world.replicas:
        replica.behaviour = Behaviour(service=0.05)
    hung.behaviour = Behaviour(hang_after=0)
    stuck: list[Call] = []
    for _ in range(6):  # until it takes no more
        before = hung.in_flight
        calls = await world.burst([world.message()] * 6)
        await world.until(lambda calls=calls: sum(bool(c.end) for c in calls) >= 2, 2.0)  # type: ignore[misc] # a default binds this round's
        await asyncio.sleep(0.2)
        stuck += [call for call in calls if not call.end]
        if hung.in_flight == before:
            break
    world.note(f"the hung worker holds {hung.in_flight} requests")
    late: list[Call] = []
    for _ in range(10):
        calls = await world.burst([world.message()] * 3)
        await world.ended(calls, 2.0)
        late += [call for call in calls if not call.ok or call.took >= 1.0]
    world.note(f"of 30 more requests {len(late)} were late; it holds {hung.in_flight} now")
    world.require(not late, f"{len(late)} of 30 were not served within 1 s: {shapes(late)}")


def shapes(calls: Sequence[Call]) -> str:
    """How some answers were, up to three of a kind."""
    return "; ".join(sorted({call.shape for call in calls})[:3])


@check(
    15,
    "A burst between two scrapes does not sink into the engine",
    source="llm-d/llm-d-router#2066",
    right=(
        "500 requests in 10 ms on an engine of 8 slots: never more than 8 are in it, and all "
        "are served"
    ),
    given=Settings(cap=8, queue=600),
)
async def between_scrapes(world: World) -> None:
    replica = world.replica
    replica.slots = 8
    replica.behaviour = Behaviour(service=0.02)
    calls = await world.burst([world.message()] * 500)
    await world.ended(calls, 20.0)
    fine = sum(call.ok for call in calls)
    world.note(f"at most {replica.max_in_flight} in the engine, {replica.max_waiting_seen} waiting")
    world.require(replica.max_waiting_seen == 0, world.evidence[-1])
    world.require(replica.max_in_flight <= 8, world.evidence[-1])
    world.require(fine == 500, f"{fine} of 500 were served")


@check(
    16,
    "Traffic flows when the engine's metrics are down",
    source="llm-d/llm-d-router#2100, #2408, #2547",
    right=(
        "with /metrics missing, and hanging, requests are served within the same limits, and an"
        " alarm metric rises within 5 s"
    ),
    given=Settings(cap=4),
    without=("cap",),
)
async def metrics_down(world: World) -> None:
    replica = world.replica
    replica.behaviour = Behaviour(service=0.05)
    alarm = world.tells("alarm")
    for page in ("missing", "hang"):
        replica.metrics = page
        before = await world.gauge("alarm") if alarm else 0.0
        deadline = world.now + 5.0
        rounds = fine = 0
        risen = False
        while world.now < deadline and (rounds < 10 or (alarm and not risen)):
            calls = await world.ended(await world.burst([world.message()] * 4), 5.0)
            fine += sum(call.ok for call in calls)
            rounds += 1
            risen = alarm and await world.gauge("alarm") > before
            await asyncio.sleep(0.1)
        world.note(f"/metrics {page}: {fine} of {4 * rounds} served")
        world.require(fine == 4 * rounds, world.evidence[-1])
        if alarm:
            world.require(risen, f"/metrics {page}: no alarm metric rose within 5 s")
            world.note(f"/metrics {page}: the alarm metric rose")
    if not alarm:
        raise NotTestable("traffic flows, but it is not known which metric is its alarm")


@check(
    17,
    "2,000 streams at once",
    source="vllm-project/production-stack#448, vllm-project/aibrix#1838",
    right=(
        "2,000 concurrent streams: none fails, and the gateway takes less than 200 MB more memory"
    ),
    replicas=4,
    given=Settings(cap=500, queue=2000, request_timeout=120.0),
    without=("cap", "queue", "request_timeout"),
    seconds=120.0,
)
async def many_streams(world: World) -> None:
    number = 500 if world.quick else 2000
    for replica in world.replicas:
        replica.behaviour = Behaviour(tokens=5, pace=1.2)
    before = world.resident()
    messages = [world.message(stream=True)] * number
    calls = await world.burst(messages, limit=100.0)
    await world.until(lambda: sum(call.pieces > 0 for call in calls) >= number, 60.0)
    open_now = sum(bool(call.pieces) and not call.end for call in calls)
    during = world.resident()
    await world.ended(calls, 100.0)
    fine = sum(call.ok for call in calls)
    world.note(f"{fine} of {number} streams ended well; {open_now} were open at one moment")
    world.require(fine == number, f"{world.evidence[-1]}: {shapes([c for c in calls if not c.ok])}")
    if before is not None and during is not None:
        more = (during - before) / _MB
        world.note(f"memory: {before / _MB:.0f} MB before, {more:+.0f} MB with all open")
        world.require(more < 200, world.evidence[-1])


@check(
    18,
    "Every request gets exactly one answer",
    source="stacklok/toolhive#5952",
    right=(
        "400 at once, streamed and whole, over engines that fail in every way: each gets one "
        "complete answer, or an error event in its stream, and none is dropped"
    ),
    replicas=2,
    given=Settings(cap=16, queue=300, request_timeout=5.0),
    without=("cap", "queue", "request_timeout"),
)
async def one_answer(world: World) -> None:
    ways = (
        Behaviour(service=0.05),
        Behaviour(tokens=5, pace=0.02),
        Behaviour(status=500),
        Behaviour(status=503),
        Behaviour(cut_after=0),
        Behaviour(cut_after=2, pace=0.01),
        Behaviour(error_after=1),
        Behaviour(status=400),
        Behaviour(tokens=2, done=False),
        Behaviour(cut_after=2, pace=0.01, reset=True),
    )
    for replica in world.replicas:
        replica.script = lambda received: ways[received.number % len(ways)]
    messages = [world.message(stream=bool(i % 2)) for i in range(400)]
    calls = await world.ended(await world.burst(messages), 20.0)
    dropped = [call for call in calls if not _is_terminal(call)]
    counts = {
        status: sum(c.status == status for c in calls) for status in {c.status for c in calls}
    }
    world.note(f"answers by status: {dict(sorted(counts.items()))}")
    seen = f"{len(dropped)} of 400 got no proper end: {shapes(dropped)}"
    if any(call.end == "whole" for call in dropped):
        seen += "; streams that end with neither [DONE] nor an error among them"
    world.require(not dropped, seen)


def _is_terminal(call: Call) -> bool:
    """A whole answer; of a stream one that says [DONE] or tells its error."""
    if call.end != "whole" or call.status < 200:
        return False
    return not call.streams or call.done or call.error is not None
