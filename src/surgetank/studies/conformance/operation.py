"""Checks on memory, scale and running it."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Call, Line
from surgetank.studies.conformance.memory import is_flat, moved
from surgetank.studies.conformance.settings import Settings, TenantLimits
from surgetank.studies.conformance.verdict import Failed, check
from surgetank.studies.conformance.world import World

_MIB: Final = 1 << 20


@check(
    32,
    "Memory is flat over 100,000 requests",
    source="BerriAI/litellm#12685, #15128, #6404",
    right="memory after 100,000 requests is what it was after the first tenth",
    seconds=300.0,
)
async def flat_memory(world: World) -> None:
    number, bound = (5_000, 30.0) if world.quick else (100_000, 150.0)
    world.memory()  # not testable where it cannot be read
    message = world.message(max_tokens=8)
    lines = await world.lines(32)
    sent = [0]
    until = world.now + bound

    async def ask(line: Line, most: int) -> None:
        while sent[0] < most and world.now < until:
            sent[0] += 1
            call = await line.ask(message, limit=60.0).ending(61.0)
            world.require(call.ok, f"request {sent[0]}: {call.shape}")
            if not line.open:
                line = await world.connect()

    await asyncio.gather(*(ask(line, number // 10) for line in lines))
    before, first = world.memory(), sent[0]
    world.require(first >= number // 10, f"only {first} requests in {bound:.0f} s")
    lines = [line if line.open else await world.connect() for line in lines]
    await asyncio.gather(*(ask(line, number) for line in lines))
    after = world.memory()
    told = (
        f"{sent[0]} requests"
        if sent[0] >= number
        else f"{sent[0]} of {number} requests, in {bound:.0f} s"
    )
    world.note(f"{told}; since the first {first}: {moved(before, after)}")
    world.require(is_flat(before, after), world.evidence[-1])


@check(
    33,
    "Large bodies pass, too large ones get a 413",
    source="kubernetes-sigs/gateway-api-inference-extension#854, #2115; envoyproxy/ai-gateway#1428",
    right=(
        "a body of 10 MB reaches the engine whole; one over the configured cap gets 413, also"
        " when it comes in chunks"
    ),
    given=Settings(max_body=12_000_000),
    without=("max_body",),
)
async def large_bodies(world: World) -> None:
    def body(size: int) -> dict[str, object]:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * size}"}}
        content = [{"type": "text", "text": "what is this?"}, image]
        return world.chat() | {"messages": [{"role": "user", "content": content}]}

    for size in (8_000, 150_000, 10_000_000):
        call = await (await world.ask(body(size))).ending(20.0)
        world.require(call.ok, f"a body of {size:,} bytes: {call.shape}")
        came = len(world.replica.received[-1].body)
        world.require(came >= size, f"of {size:,} bytes the engine got {came:,}")
    world.note("bodies of 8 KB, 150 KB and 10 MB reached the engine whole")
    if world.settings.max_body is None:
        world.note("its cap was not looked at: it has no setting for it that is known here")
        return
    await world.until(lambda: world.in_flight == 0, 2.0)
    total = world.total
    call = await (await world.ask(body(14_000_000))).ending(20.0)
    world.require(call.status == 413, f"14 MB on a cap of 12 MB: {call.shape}")
    line = await world.connect()
    call = line.expect(limit=20.0)
    line.write(_chunked_head(world))
    for _ in range(14):
        line.write(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
    await call.ending(20.0)
    world.require(call.status == 413, f"14 MB in chunks on a cap of 12 MB: {call.shape}")
    world.require(world.total == total, "a body that was too large reached the engine")


def _chunked_head(world: World, more: str = "") -> bytes:
    key = world.key()
    auth = f"authorization: Bearer {key}\r\n" if key else ""
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {world.host}\r\n{auth}{more}"
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    ).encode()


@check(
    34,
    "A rolling restart cuts nothing",
    source="wso2/api-platform#2121; llm-gateway#2326",
    right=(
        "after SIGTERM readiness turns 503, what runs is finished without a reset, and it exits "
        "with 0"
    ),
    given=Settings(cap=32, drain_timeout=10),
    without=("cap", "drain_timeout"),
)
async def rolling_restart(world: World) -> None:
    process = world.gateway.started("sending SIGTERM")
    world.replica.behaviour = Behaviour(tokens=40, pace=0.05, service=0.1)
    streams = await world.burst([world.message(stream=True)] * 10)
    world.replica.script = lambda r: Behaviour(service=2.0) if b"whole" in r.body else None
    wholes = await world.burst([world.message(text="whole")] * 5)
    reached = await world.until(lambda: world.in_flight == 15, 5.0)
    world.require(reached, f"only {world.in_flight} of 15 requests reached the engine")
    await asyncio.gather(*(call.event(1, 5.0) for call in streams))
    process.signal(signal.SIGTERM)
    await asyncio.sleep(0.5)
    readiness = await process.readiness()
    newcomer = await _newcomer(world)
    await world.ended([*streams, *wholes], 15.0)
    code = await process.ended(15.0)
    fine, answered = sum(c.ok for c in streams), sum(c.ok for c in wholes)
    world.note(
        f"{fine} of 10 streams and {answered} of 5 whole answers were finished; readiness was"
        f" {'refused' if readiness is None else readiness};"
        f" who came then: {newcomer}; exit code {'none: it runs on' if code is None else code}"
    )
    world.require(fine == 10 and answered == 5, world.evidence[-1])
    world.require(readiness == 503, world.evidence[-1])
    world.require(code == 0, world.evidence[-1])


async def _newcomer(world: World) -> str:
    try:
        call = await world.ask(limit=5.0)
    except Failed:
        return "refused"
    return (await call.ending(6.0)).shape


@check(
    35,
    "A renamed metric is unknown, not 0",
    source=(
        "kubernetes-sigs/gateway-api-inference-extension#1905; kubernetes-sigs/inference-perf#277"
    ),
    right=(
        "an alarm rises while an engine's metrics have other names, not while they are right,"
        " and requests are served"
    ),
    given=None,
)
async def renamed_metric(world: World) -> None:
    await world.start(Settings())
    await asyncio.sleep(2.5)
    calm = await world.gauge("alarm")
    world.require(calm == 0, f"with the right names the alarm stands at {calm:g}")
    world.replica.metrics = "renamed"
    await world.start(Settings())
    told = 0.0
    for _ in range(50):
        told = await world.gauge("alarm")
        if told > 0:
            break
        await asyncio.sleep(0.2)
    world.note(f"with the right names the alarm stands at 0, with others at {told:g}")
    world.require(told > 0, world.evidence[-1])
    call = await (await world.ask()).ending(5.0)
    world.require(call.ok, f"with renamed metrics a request: {call.shape}")


@check(
    36,
    "A stream without usage is charged all the same",
    source="kserve/kserve#4595; envoyproxy/ai-gateway#1169",
    right=(
        "streams of 1,000 tokens without include_usage, on a limit of 4,000 a minute: after "
        "the fourth or fifth comes a 429"
    ),
    given=Settings(tenants=(TenantLimits("acme", tokens_per_minute=4000, burst=60),)),
)
async def unseen_usage(world: World) -> None:
    world.replica.behaviour = Behaviour(tokens=1000)
    fine = 0
    call: Call | None = None
    for _ in range(16):
        call = await (await world.ask(stream=True)).ending(10.0)
        if not call.ok:
            break
        fine += 1
        await asyncio.sleep(0.1)  # for those that count after the answer
    shape = "all were served" if call is None or call.ok else f"then {call.shape}"
    world.note(f"{fine} streams of 1,000 tokens were served on a limit of 4,000; {shape}")
    world.require(3 <= fine <= 5, world.evidence[-1])
    world.require(call is not None and call.status == 429, world.evidence[-1])
