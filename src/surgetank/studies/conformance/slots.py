"""Checks on slots and quotas: whatever is taken comes back, and what is limited is limited."""

from __future__ import annotations

import asyncio
from typing import Final

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Call
from surgetank.studies.conformance.queues import first_success
from surgetank.studies.conformance.settings import Settings, TenantLimits
from surgetank.studies.conformance.subject import NotStarted
from surgetank.studies.conformance.verdict import NotTestable, check
from surgetank.studies.conformance.world import World

_LONG: Final = Behaviour(tokens=1000, pace=0.2)  # a stream that goes on as long as a check
_SLACK: Final = 1.05  # a bucket's refill while the requests are counted, and rounding


async def _begun(world: World, seconds: float) -> Call:
    """Ask for a stream until one begins, at most so long: a slot may take a moment to return."""
    until = world.now + seconds
    while True:
        call = await world.ask(stream=True)
        if await call.event(1, seconds) or world.now >= until:
            return call
        await asyncio.sleep(0.02)


async def _served_within(world: World, seconds: float) -> None:
    """Ask until served, and require that in time."""
    took, attempts = await first_success(world, seconds)
    world.note(f"the next success: after {took:.2f} s, attempt {attempts}")


async def _in_flight_returns(world: World) -> None:
    """Require the in-flight gauge at 0 within 1 s, where it is known."""
    if world.tells("in_flight"):
        left = await world.settles("in_flight", 0, 1.0)
        world.require(left == 0, f"the in-flight gauge stays at {left:g}")
        world.note("the in-flight gauge is back at 0")


@check(
    1,
    "A cancelled stream gives its slot back",
    source="BerriAI/litellm#27955",
    right="limit 1: after 50 streams broken off midway the next request is a 200 within 1 s",
    given=Settings(cap=1),
)
async def cancelled_streams(world: World) -> None:
    world.replica.behaviour = Behaviour(tokens=200, pace=0.05)
    for i in range(50):
        call = await _begun(world, 2.0)
        world.require(call.pieces, f"stream {i + 1} of 50 did not begin in 2 s: {call.shape}")
        call.leave()
    world.replica.behaviour = Behaviour()
    await _served_within(world, 1.0)
    await _in_flight_returns(world)


@check(
    2,
    "Upstream timeouts and 502/504 do not use a limit up",
    source="BerriAI/litellm#20256",
    right=(
        "50 upstream timeouts and 60 answers 502 and 504 at cap 10: the in-flight gauge "
        "returns to 0, and 10 requests run at once again"
    ),
    given=Settings(cap=10, queue=100, request_timeout=1.0),
    without=("queue",),
)
async def upstream_timeouts(world: World) -> None:
    replica = world.replica
    replica.behaviour = Behaviour(hang_after=0)
    calls = await world.ended(await world.burst([world.message()] * 50), 12.0)
    for call in calls:
        world.require(call.status >= 429, f"a request to a hanging engine: {call.shape}")
    for status in (502, 504):
        replica.behaviour = Behaviour(status=status)
        for _ in range(3):
            calls = await world.ended(await world.burst([world.message()] * 10), 12.0)
            for call in calls:
                world.require(call.status >= 429, f"the engine answered {status}: {call.shape}")
    await _in_flight_returns(world)
    replica.behaviour = Behaviour(service=0.5)
    replica.forget()
    calls = await world.ended(await world.burst([world.message()] * 10), 12.0)
    fine = sum(call.ok for call in calls)
    world.note(f"then {fine} of 10 were served, {replica.max_in_flight} at once")
    world.require(fine == 10 and replica.max_in_flight == 10, world.evidence[-1])


@check(
    3,
    "A request refused for concurrency costs no quota",
    source="BerriAI/litellm#39309",
    right="of 10 requests a minute, one runs and 30 are refused for concurrency: 9 more are served",
    given=Settings(
        tenants=(
            TenantLimits("acme", requests_per_minute=10, burst=60, max_running=1, max_queued=0),
        )
    ),
)
async def refused_costs_nothing(world: World) -> None:
    world.replica.behaviour = _LONG
    running = await world.ask(stream=True)
    world.require(await running.event(1, 5.0), f"the first request: {running.shape}")
    refused = await world.ended(await world.burst([world.message()] * 30), 10.0)
    for call in refused:
        world.require(call.status == 429, f"beyond 1 at once: {call.shape}")
    running.leave()
    world.replica.behaviour = Behaviour()
    await world.until(lambda: world.in_flight == 0, 2.0)
    for i in range(9):
        call = await (await world.ask()).ending(5.0)
        world.require(call.ok, f"30 were refused, and of the 9 left number {i + 1}: {call.shape}")
    world.note("1 + 9 of 10 were served in spite of 30 refusals between them")


@check(
    4,
    "Concurrent requests do not pass a token limit together",
    source="BerriAI/litellm#18730, #5783",
    right="five at once of 60 tokens each on a limit of 100: what was let in never exceeds it",
    given=Settings(tenants=(TenantLimits("acme", tokens_per_minute=100, burst=60),)),
)
async def reservations(world: World) -> None:
    world.replica.behaviour = Behaviour(service=0.3, prompt_tokens=20, output_tokens=40)
    text = "abcd " * 12  # about 20 tokens with its template
    calls = await world.burst([world.message(text=text, max_tokens=40)] * 5)
    await world.ended(calls, 10.0)
    used = 60 * sum(call.ok for call in calls)
    world.note(f"let in: {used} tokens of 100; {', '.join(call.shape for call in calls)}")
    world.require(used > 0, "none of five was let in, though one fits")
    world.require(used <= 100 * _SLACK, f"{used} tokens were let in on a limit of 100")


@check(
    5,
    "A steady load at 95 % of a limit is never refused",
    source="BerriAI/litellm#18953, #24677",
    right="8 s at 95 % of a request limit, and of a token limit, get no 429",
    given=Settings(
        tenants=(
            TenantLimits("requests", requests_per_minute=600, burst=2),
            TenantLimits("tokens", tokens_per_minute=60_000, burst=2),
        )
    ),
    without=("burst",),
)
async def steady_load(world: World) -> None:
    world.replica.behaviour = Behaviour(service=0.02, prompt_tokens=20, output_tokens=80)
    lines = {tenant: await world.lines(8) for tenant in ("requests", "tokens")}
    calls: dict[str, list[Call]] = {"requests": [], "tokens": []}
    began, number = world.now, 76  # of each, 9.5 a second
    for i in range(number):
        await asyncio.sleep(max(0.0, began + i / 9.5 - world.now))
        for tenant, free in lines.items():
            message = world.message(tenant=tenant, text="abcd " * 12, max_tokens=80)
            calls[tenant].append(free[i % len(free)].ask(message))
    for tenant, sent in calls.items():
        await world.ended(sent, 5.0)
        refused = sum(call.status == 429 for call in sent)
        world.note(f"95 % of a limit of {tenant}: {refused} of {number} refused")
        world.require(not refused, world.evidence[-1])
        fine = sum(call.ok for call in sent)
        world.require(fine == number, f"{number - fine} of {number} were not answered well")


@check(
    6,
    "Real usage is charged, input and output apart",
    source="vllm-project/aibrix#848, #1203",
    right="settled with the usage the engine reports; limits for input and for output of their own",
    given=Settings(
        tenants=(
            TenantLimits("whole", tokens_per_minute=1000, burst=60),
            TenantLimits("parts", input_tokens_per_minute=1000, output_tokens_per_minute=200),
        )
    ),
    without=("input_tokens_per_minute", "output_tokens_per_minute"),
)
async def input_and_output(world: World) -> None:
    world.replica.behaviour = Behaviour(prompt_tokens=5, output_tokens=5)
    for i in range(30):
        call = await (await world.ask(tenant="whole", max_tokens=500)).ending(5.0)
        seen = f"300 of 1000 tokens are used in truth; request {i + 1} of 30: {call.shape}"
        world.require(call.ok, seen)
    world.note("30 answers of 10 tokens fit a limit of 1000, though each might have had 500")
    parts = world.settings.tenants[1]
    if parts.input_tokens_per_minute is None or parts.output_tokens_per_minute is None:
        raise NotTestable("real usage is charged, but input and output have no limits of their own")
    world.replica.behaviour = Behaviour(prompt_tokens=10, output_tokens=100)
    ends = [await (await world.ask(tenant="parts", max_tokens=100)).ending(5.0) for _ in range(3)]
    world.require(
        [call.status for call in ends] == [200, 200, 429],
        f"three answers of 100 on 200 output tokens: {', '.join(c.shape for c in ends)}",
    )


@check(
    7,
    "A token limit counts tokens, not requests",
    source="wso2/api-platform#2932",
    right=(
        "answers of 150 tokens move the counter by 150 each: of a limit of 1000, 6 or 7 are served"
    ),
    given=Settings(tenants=(TenantLimits("acme", tokens_per_minute=1000, burst=60),)),
)
async def tokens_counted(world: World) -> None:
    world.replica.behaviour = Behaviour(prompt_tokens=50, output_tokens=100)
    text = "abcd " * 36  # about 50 tokens with its template
    served: list[Call] = []
    for i in range(20):
        call = await world.ask(text=text, max_tokens=100, stream=bool(i % 2))
        served.append(await call.ending(5.0))
        if not call.ok:
            break
    fine = sum(call.ok for call in served)
    left = [c.headers.get("x-ratelimit-remaining-tokens", "") for c in served]
    told = f"; told as left: {', '.join(left)}" if all(left) else ""
    world.note(f"{fine} answers of 150 tokens were served, then {served[-1].shape}{told}")
    world.require(fine in {6, 7}, world.evidence[-1])
    world.require(served[-1].status == 429, world.evidence[-1])


@check(
    8,
    "A permit is held until the stream ends",
    source="smg-project/smg#1571, #2240; sgl-project/sglang#40168",
    right="a cap of 8 holds for 8 open streams, whose heads were sent long ago",
    given=Settings(cap=8, queue=16),
    without=("queue",),
)
async def permits(world: World) -> None:
    world.replica.behaviour = _LONG
    calls = await world.burst([world.message(stream=True)] * 8)
    begun = await world.until(lambda: all(call.pieces for call in calls), 5.0)
    world.require(begun, "8 streams did not begin within 5 s")
    calls += await world.burst([world.message(stream=True)] * 12)
    await asyncio.sleep(0.5)
    world.note(f"of 8 streams and 12 more the engine had {world.replica.max_in_flight}")
    world.require(world.replica.max_in_flight == 8, world.evidence[-1])
    began = world.total
    next(call for call in calls if call.pieces).leave()
    followed = await world.until(lambda: world.total > began, 1.0)
    waits = any(not call.end and not call.status for call in calls)
    world.require(followed or not waits, "one ended, and none of those that wait followed")
    world.require(world.replica.max_in_flight == 8, world.evidence[-1])


@check(
    9,
    "A limit that is configured is enforced, or the start fails",
    source="langwatch/tasks#772",
    right="each limit it has a setting for is enforced; a value it cannot use ends the start",
    given=None,
)
async def limits_enforced(world: World) -> None:
    tested = 0
    for name, settings, look in (
        ("cap", Settings(cap=2), _cap_of_two),
        ("requests per minute", _one(requests_per_minute=3), _three_served),
        ("tokens per minute", _one(tokens_per_minute=60), _few_tokens),
        ("running at once", _one(max_running=2), _cap_of_two),
    ):
        try:
            await world.start(settings)
        except NotTestable as why:
            world.note(f"{name}: no setting ({why})")
            continue
        except NotStarted as why:
            world.note(f"{name}: its start failed, which is honest: {why}")
            tested += 1
            continue
        tested += 1
        await look(world)
        world.note(f"{name}: enforced")
    if not tested:
        raise NotTestable("it has no limit that is known here")


def _one(**limits: float) -> Settings:
    return Settings(tenants=(TenantLimits("acme", burst=60, **limits),))  # type: ignore[arg-type] # whole numbers where they must be


async def _cap_of_two(world: World) -> None:
    world.replica.behaviour = Behaviour(service=0.3)
    calls = await world.burst([world.message()] * 6)
    await world.ended(calls, 10.0)
    most = world.replica.max_in_flight
    world.require(most <= 2, f"a limit of 2 at once let {most} run at once")
    world.require(any(call.ok for call in calls), "a limit of 2 at once served none")


async def _three_served(world: World) -> None:
    world.replica.behaviour = Behaviour()
    calls = [await (await world.ask()).ending(5.0) for _ in range(6)]
    fine = sum(call.ok for call in calls)
    world.require(fine == 3, f"a limit of 3 requests a minute served {fine} of 6")


async def _few_tokens(world: World) -> None:
    world.replica.behaviour = Behaviour(prompt_tokens=10, output_tokens=20)
    calls = [await (await world.ask(max_tokens=20)).ending(5.0) for _ in range(6)]
    fine = sum(call.ok for call in calls)
    world.require(1 <= fine <= 2, f"60 tokens a minute served {fine} answers of 30")
