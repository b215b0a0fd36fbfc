"""Checks on clients that leave: what nobody waits for is stopped, and nothing of it is left."""

from __future__ import annotations

import asyncio
from typing import Final

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.memory import is_flat, moved
from surgetank.studies.conformance.settings import Settings
from surgetank.studies.conformance.verdict import NotTestable, check
from surgetank.studies.conformance.world import World

_SLOW: Final = Behaviour(service=20.0)  # an answer that nobody in a check waits for
_LONG: Final = Behaviour(tokens=1000, pace=0.1)
_ABORTED: Final = 1.0  # seconds after which a call upstream has to be gone


async def _all_aborted(world: World, left: float, what: str) -> None:
    """Require that no call is upstream any more, in time."""
    calls = world.in_flight
    await world.until(lambda: world.in_flight == 0, 5.0)
    took = world.now - left
    still = world.in_flight
    world.require(not still, f"{what}: {still} of {calls} calls upstream ran on for 5 s")
    world.require(took <= _ABORTED, f"{what}: the calls upstream ended only after {took:.2f} s")
    world.note(f"{what}: {calls} calls upstream ended within {took:.2f} s")


@check(
    23,
    "A non-streaming client that leaves ends its call upstream",
    source="BerriAI/litellm#13774, #30223",
    right=(
        "20 clients leave while the engine works, 10 with a reset and 10 by closing: each "
        "call upstream is aborted within 1 s"
    ),
    given=Settings(cap=32),
    without=("cap",),
)
async def whole_calls(world: World) -> None:
    world.replica.behaviour = _SLOW
    calls = await world.burst([world.message()] * 20)
    reached = await world.until(lambda: world.in_flight == 20, 5.0)
    world.require(reached, f"only {world.in_flight} of 20 requests reached the engine in 5 s")
    left = world.now
    for i, call in enumerate(calls):
        (call.line.abort if i % 2 else call.line.close)()
    await _all_aborted(world, left, "whole answers")


@check(
    24,
    "A generation nobody waits for is aborted, wherever it stands",
    source="sgl-project/sglang#37833, #34894, #39461",
    right=(
        "aborted before its head and mid-stream within 1 s; one that waits leaves the queue "
        "within 0.1 s and never reaches the engine"
    ),
    given=Settings(cap=1, queue=1, queue_timeout=20),
    without=("cap", "queue", "queue_timeout"),
)
async def ghosts(world: World) -> None:
    world.replica.behaviour = _LONG
    call = await world.ask(stream=True)
    world.require(await call.event(2, 5.0), f"a stream: {call.shape}")
    call.leave()
    await _all_aborted(world, world.now, "mid-stream")

    world.replica.behaviour = _SLOW
    call = await world.ask(stream=True)
    reached = await world.until(lambda: world.in_flight == 1, 5.0)
    world.require(reached, f"after a stream that was left, the next request: {call.shape}")
    call.leave()
    await _all_aborted(world, world.now, "before the head")

    if world.settings.cap is None or world.settings.queue is None:
        world.note("its queue was not looked at: it has no cap and queue that are known here")
        return
    await _leaves_the_queue(world)


async def _leaves_the_queue(world: World) -> None:
    """One runs, one waits and leaves: its place in the queue of one is free for a third."""
    running = await world.ask(text="the first", stream=True)
    await world.until(lambda: world.in_flight == 1, 5.0)
    waiting = await world.ask(text="the second", stream=True)
    await asyncio.sleep(0.3)
    seen = f"one runs of one, and the queue of one is empty; the next request: {waiting.shape}"
    world.require(not waiting.end, seen)
    waiting.leave()
    await asyncio.sleep(0.1)
    third = await world.ask(text="the third", stream=True)
    await asyncio.sleep(0.3)
    seen = f"0.1 s after the only waiting client had left, the next one: {third.shape}"
    world.require(not third.end, seen)
    world.replica.behaviour = Behaviour()
    running.leave()
    await third.ending(5.0)
    world.require(third.ok, f"the one that waited behind it: {third.shape}")
    ghosts = sum(b"the second" in received.body for received in world.replica.received)
    world.require(not ghosts, "the request whose client had left the queue reached the engine")
    world.note("queued: it left the queue within 0.1 s and never reached the engine")


@check(
    25,
    "A client that leaves between prefill and decode strands no blocks",
    source="vllm-project/vllm#19223, #29906, #41269",
    right="the prefiller's blocks are released",
    given=None,
)
async def stranded_blocks(world: World) -> None:
    no_split(world)


def no_split(world: World) -> None:
    """Raise NotTestable: these replicas do not play prefiller and decoder."""
    if not world.subject.splits_prefill:
        raise NotTestable("no prefill/decode split")
    raise NotTestable("it splits prefill and decode, but the replicas here serve both alike")


@check(
    26,
    "Abandoned streams leave no counter and no memory behind",
    source="vllm-project/production-stack#1072, #1001; maximhq/bifrost#6802, #829",
    right=(
        "10,000 streams are abandoned after their first token: the gauges return to 0 and "
        "memory stays flat"
    ),
    given=Settings(cap=64),
    without=("cap",),
    seconds=300.0,
)
async def abandoned_streams(world: World) -> None:
    number, bound = (1000, 30.0) if world.quick else (10_000, 120.0)
    world.memory()  # not testable where it cannot be read
    world.replica.behaviour = _LONG
    done, before, until = 0, 0, world.now + bound
    while done < number and world.now < until:
        calls = await world.burst([world.message(stream=True)] * 50, limit=60.0)
        for call in calls:
            begun = await call.event(1, 30.0)
            world.require(begun, f"stream {done + 1} did not begin: {call.shape}")
            call.leave()
        done += len(calls)
        if not before and done >= number // 10:
            before = world.memory()
    world.require(before, f"only {done} streams of {number} in {bound:.0f} s")
    told = f"{done} of {number} streams were abandoned" if done < number else f"{done} streams"
    await world.until(lambda: world.in_flight == 0, 5.0)
    world.require(world.in_flight == 0, f"{told}; {world.in_flight} calls upstream ran on for 5 s")
    for gauge in ("in_flight", "queue"):
        if world.tells(gauge):
            left = await world.settles(gauge, 0, 5.0)
            world.require(left == 0, f"{told}; the {gauge} gauge stays at {left:g}")
            world.note(f"the {gauge} gauge is back at 0")
    after = world.memory()
    world.note(f"{told} since the first tenth: {moved(before, after)}")
    world.require(is_flat(before, after), world.evidence[-1])
