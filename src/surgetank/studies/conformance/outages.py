"""Checks on engines that are gone or hang, and on stopping while requests wait."""

from __future__ import annotations

import asyncio
import signal

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.process import Process
from surgetank.studies.conformance.settings import Settings
from surgetank.studies.conformance.verdict import check
from surgetank.studies.conformance.world import World


@check(
    73,
    "Readiness is true",
    source="more of its kind: a load balancer believes it",
    right=(
        "with its only engine gone readiness is no 200 within 10 s, and is again within 15 s "
        "of its return"
    ),
    seconds=60.0,
)
async def readiness(world: World) -> None:
    process = world.gateway.started("its readiness")
    await world.replica.die()
    gone = world.now
    told = await _readiness(process, seconds=10, ready=False)
    world.note(f"{world.now - gone:.1f} s after its only engine died readiness is {told}")
    world.require(told != 200, world.evidence[-1])
    await world.replica.start()
    back = world.now
    told = await _readiness(process, seconds=15, ready=True)
    world.note(f"{world.now - back:.1f} s after its return readiness is {told}")
    world.require(told == 200, world.evidence[-1])


async def _readiness(process: Process, *, seconds: int, ready: bool) -> int | None:
    """Ask until it is as wanted, or the time is over; return what it says then."""
    told: int | None = None
    for _ in range(10 * seconds):
        told = await process.readiness()
        if (told == 200) is ready:
            break
        await asyncio.sleep(0.1)
    return told


@check(
    74,
    "An engine that dies takes nobody's request with it",
    source="more of its kind: what has got no byte yet can be asked elsewhere",
    right=(
        "after 200 requests, one of two engines is killed with about 10 requests on it, and 20 "
        "follow: all 40 are served"
    ),
    given=Settings(cap=16),
    without=("cap",),
    replicas=2,
)
async def killed_engine(world: World) -> None:
    dying, other = world.replicas
    for _ in range(20):  # a bound on retries, a part of the requests, has room for ten
        await world.ended(await world.burst([world.message()] * 10), 10.0)
    dying.behaviour = other.behaviour = Behaviour(service=1.0)
    calls = await world.burst([world.message()] * 20)
    reached = await world.until(lambda: world.in_flight == 20, 5.0)
    world.require(reached, f"only {world.in_flight} of 20 requests reached the engines")
    hit = dying.in_flight
    other.behaviour = Behaviour()
    await dying.die()
    calls += await world.burst([world.message()] * 10)
    await asyncio.sleep(0.2)
    calls += await world.burst([world.message()] * 10)
    await world.ended(calls, 20.0)
    fine = sum(call.ok for call in calls)
    bad = next((call.shape for call in calls if not call.ok), "")
    world.note(
        f"{hit} were on the engine that died; {fine} of 40 were served{'; one: ' * bool(bad)}{bad}"
    )
    world.require(fine == 40, world.evidence[-1])


@check(
    75,
    "A wait for an engine ends in time, and says so",
    source="more of its kind: a hanging engine",
    right=(
        "at a request timeout of 2 s: 504 in the error shape before the first byte, an error "
        "event after it, both within 4 s, and the engine's call is ended"
    ),
    given=Settings(request_timeout=2.0),
)
async def in_time(world: World) -> None:
    wrong: list[str] = []
    for told, behaviour, stream in (
        ("before the head", Behaviour(hang_after=0), False),
        ("before a stream's head", Behaviour(hang_after=0), True),
        ("after two tokens", Behaviour(tokens=9, pace=0.05, hang_after=2), True),
    ):
        world.replica.behaviour = behaviour
        call = await (await world.ask(stream=stream, limit=10.0)).ending(11.0)
        world.note(f"{told}: {call.shape}")
        right = call.status == (200 if "tokens" in told else 504) and call.error is not None
        if not right or call.took > 4.0:
            wrong.append(world.evidence[-1])
        if not await world.until(lambda: world.in_flight == 0, 1.0):
            wrong.append(f"{told}: the call upstream went on")
    world.require(not wrong, "; ".join(wrong))


@check(
    76,
    "A stop answers those who wait",
    source="as 34, with a queue",
    right="after SIGTERM each of 10 that wait is served or told with an error, none is cut off",
    given=Settings(cap=2, queue=20, queue_timeout=20, drain_timeout=2),
    without=("queue_timeout", "drain_timeout"),
)
async def waiting_at_the_stop(world: World) -> None:
    process = world.gateway.started("sending SIGTERM")
    world.replica.behaviour = Behaviour(service=1.0)
    calls = await world.burst([world.message()] * 12)
    await world.until(lambda: world.in_flight >= 2, 5.0)
    await asyncio.sleep(0.2)
    process.signal(signal.SIGTERM)
    await world.ended(calls, 20.0)
    fine = sum(call.ok for call in calls)
    cut = sum(call.status == 0 for call in calls)
    world.note(f"{fine} of 12 were served, {12 - fine - cut} told, {cut} cut off without a word")
    world.require(cut == 0, world.evidence[-1])
    bad = next((c for c in calls if not c.ok and c.error is None), None)
    world.require(bad is None, f"one was told without an error: {bad.shape if bad else ''}")
