"""Checks on those who wait: in whose order, for how long, and beside whom."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Line
from surgetank.studies.conformance.queues import require_refusal, shapes
from surgetank.studies.conformance.replica import Received, Replica
from surgetank.studies.conformance.settings import Settings, TenantLimits
from surgetank.studies.conformance.verdict import check
from surgetank.studies.conformance.world import World


@check(
    42,
    "Who leaves the queue frees its place, and never reaches the engine",
    source="of the kind of check 1",
    right=(
        "cap 1, queue 20: 20 waiting clients leave; 20 others may wait at once, and the engine "
        "sees none of those that left"
    ),
    given=Settings(cap=1, queue=20, queue_timeout=20.0),
    without=("queue_timeout",),
)
async def leaving_the_queue(world: World) -> None:
    world.replica.behaviour = Behaviour(service=2.0)
    running = await world.ask()
    await world.until(lambda: world.replica.running == 1, 2.0)
    world.replica.behaviour = Behaviour()
    waiting = await world.burst([world.message(text="left")] * 20)
    await asyncio.sleep(0.3)
    gone = [call for call in waiting if call.end]
    world.require(
        not gone, f"the slot is taken, and of 20 that may wait some do not: {shapes(gone)}"
    )
    for call in waiting:
        call.leave()
    await asyncio.sleep(0.2)
    others = await world.burst([world.message(text="stayed")] * 20)
    await asyncio.sleep(0.3)
    refused = [call for call in others if call.end]
    world.require(not refused, f"20 left, and of 20 others some may not wait: {shapes(refused)}")
    await world.ended([running, *others], 10.0)
    fine = sum(call.ok for call in others)
    ghosts = sum(r.text == "left" for r in world.replica.received)
    world.note(f"{fine} of 20 others were served; the engine saw {ghosts} of those that left")
    world.require(running.ok and fine == 20 and ghosts == 0, world.evidence[-1])


@check(
    43,
    "A tenant that floods the queue does not keep another waiting",
    source="of the kind of check 20",
    right=(
        "100 requests of one tenant wait: another's first request is served before 10 more of them"
    ),
    given=Settings(cap=2, queue=200, tenants=(TenantLimits("noisy"), TenantLimits("quiet"))),
)
async def fair_queue(world: World) -> None:
    world.replica.behaviour = Behaviour(service=0.1)
    noisy = await world.burst([world.message(tenant="noisy")] * 100)
    await world.until(lambda: world.total >= 6, 5.0)
    before = world.total
    quiet = await (await world.ask(tenant="quiet", text="quiet")).ending(20.0)
    order = [r.number for r in world.replica.received if r.text == "quiet"]
    world.require(quiet.ok and order, f"the quiet tenant's request: {quiet.shape}")
    ahead = order[0] - before - 1
    world.note(f"100 were waiting; {ahead} of them went before the quiet tenant's request")
    for call in noisy:
        call.leave()
    world.require(ahead < 10, world.evidence[-1])


@check(
    44,
    "A slow worker does not keep a fast one idle",
    source="of the kind of check 14",
    right=(
        "of two workers one takes 2 s for each request, the other 20 ms: 40 requests, 4 at a "
        "time, are over within 6 s"
    ),
    replicas=2,
    given=Settings(cap=4),
    without=("cap",),
)
async def slow_worker(world: World) -> None:
    slow, fast = world.replicas
    slow.behaviour, fast.behaviour = Behaviour(service=2.0), Behaviour(service=0.02)
    began = world.now
    lines = await world.lines(4)

    left = [world.message()] * 40

    async def one_after_the_other(line: Line) -> int:
        fine = 0
        while left:
            fine += (await line.ask(left.pop()).ending(10.0)).ok
        return fine

    fine = sum(await asyncio.gather(*map(one_after_the_other, lines)))
    took = world.now - began
    world.note(f"{fine} of 40 served in {took:.1f} s; slow {slow.total}, fast {fast.total}")
    world.require(fine == 40 and took <= 6.0, world.evidence[-1])


@check(
    45,
    "Waiting requests are served in their order",
    source="of the kind of check 10",
    right="cap 1: 20 alike requests, 30 ms apart, reach the engine in the order of their arrival",
    given=Settings(cap=1, queue=50),
)
async def first_come(world: World) -> None:
    world.replica.behaviour = Behaviour(service=0.06)
    lines = await world.lines(20)
    calls = []
    for i, line in enumerate(lines):
        calls.append(line.ask(world.message(text=str(i))))
        await asyncio.sleep(0.03)
    await world.ended(calls, 10.0)
    order = [int(r.text or -1) for r in world.replica.received]
    world.note(f"order at the engine: {order}")
    world.require(order == sorted(order), world.evidence[-1])
    world.require(all(call.ok for call in calls), f"not all were served: {shapes(calls)}")


def _of(replicas: Sequence[Replica], text: str) -> list[Received]:
    """Find what reached any replica with this prompt."""
    return [r for replica in replicas for r in replica.received if r.text == text]


@check(
    46,
    "A queue timeout of one is not that of all",
    source="of the kind of check 10",
    right=(
        "cap 1, timeout 2 s, an answer that takes 3 s: what came first is refused after its 2 s, "
        "what came 1.5 s later is served"
    ),
    given=Settings(cap=1, queue=10, queue_timeout=2.0),
)
async def own_timeouts(world: World) -> None:
    world.replica.behaviour = Behaviour(service=3.0)
    running = await world.ask()
    await world.until(lambda: world.replica.running == 1, 2.0)
    early = await world.ask(text="early")
    await asyncio.sleep(1.5)
    world.replica.behaviour = Behaviour()
    late = await world.ask(text="late")
    await world.ended([early, late, running], 10.0)
    world.note(f"early: {early.shape}; late: {late.shape}")
    require_refusal(world, early, what="the early one, after its 2 s")
    world.require(1.8 <= early.took <= 2.6, f"its timeout is 2 s: {early.shape}")
    world.require(late.ok, f"the late one had 2 s of its own: {late.shape}")
    world.require(not _of(world.replicas, "early"), "a refused request reached the engine")


@check(
    81,
    "Requests that the engine breaks off slow nobody else down",
    source="of the kind of check 11",
    right=(
        "10 requests a second of one client are cut off by the engine, which is well otherwise: "
        "30 requests of another take less than 1 s each, half of them less than 0.2 s"
    ),
    replicas=2,
    given=Settings(cap=8),
    without=("cap",),
)
async def poisonous_requests(world: World) -> None:
    for replica in world.replicas:
        replica.behaviour = Behaviour(service=0.02)
        replica.script = lambda received: (
            Behaviour(cut_after=0) if received.text == "poison" else None
        )
    lines = await world.lines(30)
    poison, calls = [], []
    for line in lines:
        poison.append(await world.ask(text="poison"))
        calls.append(line.ask(world.message(text="fine"), limit=10.0))
        await asyncio.sleep(0.1)
    await world.ended(calls, 10.0)
    times = sorted(call.took for call in calls)
    fine = sum(call.ok for call in calls)
    cut = sum(call.status >= 500 for call in poison)
    world.note(f"{cut} of 30 cut off and told so; beside them {fine} of 30 served")
    world.note(f"their times: median {times[15]:.2f} s, longest {times[-1]:.2f} s")
    world.require(fine == 30, f"{fine} of 30 were served: {shapes([c for c in calls if not c.ok])}")
    world.require(times[-1] < 1.0 and times[15] < 0.2, world.evidence[-1])
