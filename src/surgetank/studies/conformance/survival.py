"""Checks on what errors and deaths leave behind: nothing leaks, nothing is shunned for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Call
from surgetank.studies.conformance.settings import Settings, TenantLimits
from surgetank.studies.conformance.subject import NotStarted
from surgetank.studies.conformance.verdict import NotTestable, check
from surgetank.studies.conformance.world import World

_LONG: Final = Behaviour(tokens=1000, pace=0.1)
_MB: Final = 1 << 20


@check(
    37,
    "A limit that cannot be ends the start",
    source="of the kind of check 9",
    right="with -7 for its cap, or for its queue, the gateway does not start",
    given=None,
)
async def impossible_limits(world: World) -> None:
    tested = 0
    # Not -1: for some that is the documented word for no limit.
    for name, settings in (("cap", Settings(cap=-7)), ("queue", Settings(queue=-7))):
        try:
            await world.start(settings)
        except NotTestable:
            continue
        except NotStarted as why:
            world.note(f"{name} -7: {why}")
            tested += 1
            continue
        world.require(False, f"it started with {name} -7")
    if not tested:
        raise NotTestable("it has no setting for a cap or a queue that is known here")


@check(
    38,
    "A client error gives its slot back",
    source="of the kind of check 2",
    right=(
        "cap 1: 20 answers each of 400, 404, 413 and 422 from the engine are passed on as 4xx, "
        "and the next request is a 200 within 1 s"
    ),
    given=Settings(cap=1),
    without=("cap",),
)
async def slots_after_4xx(world: World) -> None:
    await _slots_after(world, (400, 404, 413, 422), 400, 499)


@check(
    39,
    "An engine's error gives its slot back",
    source="of the kind of check 2",
    right=(
        "cap 1: 20 answers each of 500 and 501 from the engine, each followed by one that is well, "
        "are told as 5xx, and the next request is a 200 within 1 s"
    ),
    given=Settings(cap=1),
    without=("cap",),
)
async def slots_after_5xx(world: World) -> None:
    await _slots_after(world, (500, 501), 500, 599)


async def _slots_after(world: World, statuses: Sequence[int], least: int, most: int) -> None:
    """Have the engine answer so, and a success after each of its own errors: no breaker opens."""
    line = await world.connect()
    for status in statuses:
        world.replica.script = lambda r, status=status: (  # type: ignore[misc] # a default binds it
            Behaviour(status=status) if r.text == "wrong" else None
        )
        for i in range(20):
            for text in ("wrong", "right") if status >= 500 else ("wrong",):
                if not line.open:
                    line = await world.connect()
                message = world.message(stream=bool(i % 2), text=text)
                call = await line.ask(message, limit=10.0).ending()
                good = call.end == "whole" and least <= call.status <= most
                seen = f"the engine answered {status}, the client got: {call.shape}"
                world.require(good or text == "right", seen)
    call = await (await world.ask(limit=5.0)).ending()
    world.note(f"after {20 * len(statuses)} errors the next request: {call.shape}")
    world.require(call.ok and call.took <= 1.0, world.evidence[-1])


@check(
    40,
    "A reader that stops holds nobody else up",
    source="of the kind of check 14",
    right=(
        "5 clients do not read streams of 20 MB: 20 other requests take less than 1 s each, and"
        " the gateway takes less than 60 MB more memory"
    ),
    given=Settings(cap=50),
    without=("cap",),
)
async def slow_readers(world: World) -> None:
    world.replica.script = lambda received: (
        Behaviour(tokens=20, pace=0.01, piece="x" * _MB) if b'"stuck"' in received.body else None
    )
    before = world.resident()
    lines = await world.lines(5)
    for line in lines:
        call = line.ask(world.message(stream=True, text="stuck"), limit=60.0)
        await call.head(5.0)
        line.pause()
    world.replica.behaviour = Behaviour(service=0.02)
    others: list[Call] = []
    for _ in range(10):
        others += await world.ended(await world.burst([world.message()] * 2), 5.0)
        await asyncio.sleep(0.05)
    late = [call for call in others if not call.ok or call.took >= 1.0]
    world.note(f"{len(late)} of 20 other requests took 1 s or failed")
    world.require(not late, world.evidence[-1])
    during = world.resident()
    if before is not None and during is not None:
        more = (during - before) / _MB
        world.note(f"memory with 100 MB unread: {more:+.0f} MB")
        world.require(more < 60, world.evidence[-1])


@check(
    41,
    "A client that has said all and only listens is answered",
    source="of the kind of check 24",
    right=(
        "cap 1: 5 clients shut their sending side after the request: each is answered or closed"
        " within 3 s, and the next request is a 200 within 1 s"
    ),
    given=Settings(cap=1),
    without=("cap",),
)
async def half_close(world: World) -> None:
    world.replica.behaviour = Behaviour(service=0.2)
    answered = 0
    for _ in range(5):
        line = await world.connect()
        call = line.ask(world.message(), limit=10.0)
        line.half_close()
        await call.ending(3.0)
        world.require(call.end in {"whole", "cut"}, f"a half-closed client: {call.shape}")
        answered += call.ok
    world.note(f"{answered} of 5 half-closed clients got their answer, the others were closed")
    call = await (await world.ask(limit=5.0)).ending()
    world.note(f"the next request: {call.shape}")
    world.require(call.ok and call.took <= 1.2, world.evidence[-1])


@check(
    47,
    "A worker that dies takes only its streams with it",
    source="of the kind of check 26",
    right=(
        "one of two workers is killed under 8 streams: those broken off are told of it, the "
        "others go on, the in-flight gauge follows, and the next 10 requests are served within "
        "1 s each"
    ),
    replicas=2,
    given=Settings(cap=8),
    without=("cap",),
)
async def death_midway(world: World) -> None:
    for replica in world.replicas:
        replica.behaviour = Behaviour(tokens=30, pace=0.1)
    streams = await world.burst([world.message(stream=True)] * 8)
    begun = await world.until(lambda: all(call.pieces for call in streams), 5.0)
    world.require(begun, "8 streams on two workers did not begin within 5 s")
    dying, living = world.replicas
    lost = dying.in_flight
    await dying.die()
    living.script = lambda received: Behaviour(service=0.02) if b'"next"' in received.body else None
    after = [await (await world.ask(text="next", limit=5.0)).ending() for _ in range(10)]
    late = [call for call in after if not call.ok or call.took >= 1.0]
    world.require(not late, f"after the death: {'; '.join(c.shape for c in late[:3])}")
    await world.ended(streams, 10.0)
    told = sum(call.end == "whole" and call.error is not None for call in streams)
    fine = sum(call.ok for call in streams)
    world.note(f"{lost} streams ran there: {told} were told of an error, {fine} of 8 ended well")
    world.require(told == lost and fine == 8 - lost, world.evidence[-1])
    if world.tells("in_flight"):
        left = await world.settles("in_flight", 0, 1.0)
        world.require(left == 0, f"the in-flight gauge stays at {left:g}")


@check(
    48,
    "A worker that comes back is used again",
    source="of the kind of check 12",
    right=(
        "one of two workers is killed and comes back: it serves within 10 s, and no request "
        "fails meanwhile"
    ),
    replicas=2,
    given=Settings(cap=4),
    without=("cap",),
)
async def coming_back(world: World) -> None:
    gone, other = world.replicas
    for replica in world.replicas:
        replica.behaviour = Behaviour(service=0.02)
    await world.ended(await world.burst([world.message()] * 8), 5.0)
    await gone.die()
    meanwhile: list[Call] = []
    for _ in range(10):
        meanwhile += await world.ended(await world.burst([world.message()] * 2), 5.0)
        await asyncio.sleep(0.1)
    failed = [call for call in meanwhile if not call.ok]
    world.require(
        not failed, f"with one of two dead {len(failed)} of 20 failed, one so: {_first(failed)}"
    )
    gone.forget()
    await gone.start()
    began = world.now
    while not gone.ends["answered"] and world.now - began < 10.0:
        await world.ended(await world.burst([world.message()] * 8), 5.0)
        await asyncio.sleep(0.05)
    world.note(f"back in use after {world.now - began:.2f} s; the other had {other.total} requests")
    world.require(gone.ends["answered"], "nothing was sent to it within 10 s of its return")


def _first(calls: Sequence[Call]) -> str:
    return calls[0].shape if calls else ""


@check(
    49,
    "An answer that came too late for its quota is charged once",
    source="of the kind of check 3",
    right=(
        "of 10 requests a minute 5 fail at the engine and are tried again by the gateway: no "
        "request is charged for more than once, so 5 more are served"
    ),
    given=Settings(tenants=(TenantLimits("acme", requests_per_minute=10, burst=60),)),
)
async def charged_once(world: World) -> None:
    world.replica.script = lambda received: (
        Behaviour(status=503) if received.number % 2 else Behaviour()
    )
    first = [await (await world.ask(limit=10.0)).ending() for _ in range(5)]
    world.replica.script = lambda _: None
    then = [await (await world.ask(limit=10.0)).ending() for _ in range(5)]
    fine = sum(call.ok for call in then)
    world.note(f"{world.total} sent upstream for 10 requests; of the last 5 {fine} were served")
    world.require(fine == 5, f"{world.evidence[-1]}; the first 5: {[c.status for c in first]}")


@check(
    50,
    "With every worker dead the answer comes at once, and the return is noticed",
    source="of the kind of check 11",
    right=(
        "the only worker dies: a request gets a 5xx in the OpenAI error shape within 5 s; once "
        "it is back, one is served within 10 s"
    ),
)
async def all_dead(world: World) -> None:
    await world.replica.die()
    await asyncio.sleep(0.5)
    call = await (await world.ask(limit=15.0)).ending()
    world.note(f"with no worker left: {call.shape}")
    world.require(call.status >= 500 and call.took <= 5.0, world.evidence[-1])
    error = call.error or {}
    world.require(error.get("message"), f"{call.status} without the OpenAI error shape")
    await world.replica.start()
    began = world.now
    while not (await (await world.ask(limit=5.0)).ending()).ok:
        world.require(world.now - began < 10.0, "not served within 10 s of its return")
        await asyncio.sleep(0.1)
    world.note(f"served again {world.now - began:.2f} s after its return")
