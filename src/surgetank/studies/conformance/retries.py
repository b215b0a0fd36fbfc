"""Checks on refusals and what follows them: waits that are told, priority, fail-over, retries."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from typing import Final

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Call
from surgetank.studies.conformance.settings import Settings, TenantLimits
from surgetank.studies.conformance.verdict import check
from surgetank.studies.conformance.world import World

_OBEYED: Final = 120.0  # seconds; SDKs do not retry after more


def _told(call: Call) -> float | None:
    """Seconds a refusal tells to wait; None without a usable Retry-After."""
    exact = call.headers.get("retry-after-ms", "")
    whole = call.headers.get("retry-after", "")
    try:
        told = float(exact) / 1000 if exact else float(whole)
    except ValueError:
        return None
    return told if math.isfinite(told) and told >= 0 else None


@check(
    19,
    "A Retry-After is true",
    source="ray-project/ray#65879, BerriAI/litellm#4695",
    right=(
        "a retry at the time told succeeds in 95 % of cases, and at the median the time told "
        "is at most 1.5 times the earliest that would have succeeded"
    ),
    given=Settings(cap=4, queue=8, queue_timeout=20),
    without=("queue_timeout",),
    seconds=90.0,
)
async def true_retry_after(world: World) -> None:
    service, cap = 0.5, 4
    world.replica.slots = cap
    world.replica.behaviour = Behaviour(service=service)
    for _ in range(3):  # what a gateway can learn of the engine's speed, it may learn here
        await world.ended(await world.burst([world.message()] * cap), 10.0)
    told: list[float] = []
    again: list[Call] = []
    for _ in range(2):
        calls = await world.burst([world.message()] * 40)
        began = world.now
        await asyncio.sleep(0.2)
        refused = [call for call in calls if call.end and call.status == 429]
        world.require(refused, "40 at once for 4 slots and 8 places, and none is refused at once")
        waits = [_told(call) for call in refused]
        known = [wait for wait in waits if wait is not None]
        seen = f"{len(refused) - len(known)} of {len(refused)} refusals tell no time to come back"
        world.require(len(known) == len(refused), seen)
        told += known
        again += await _come_back(world, [(began + wait) for wait in known])
        await world.ended([*calls, *again], 30.0)
    fine = sum(call.ok for call in again) / len(again)
    # Place by place in the order they come back: a place in the queue is free each time one ends.
    half = len(told) // 2
    earliest = [service * math.ceil((i + 1) / cap) for i in range(half)]
    ratio = statistics.median(told) / statistics.median(earliest)
    world.note(
        f"{fine:.0%} of {len(again)} retries at the time told were served; the time told is at the"
        f" median {statistics.median(told):.1f} s, {ratio:.1f} times the earliest possible"
    )
    world.require(fine >= 0.95 and ratio <= 1.5, world.evidence[-1])


async def _come_back(world: World, moments: Sequence[float]) -> list[Call]:
    """Ask once more at each of these moments."""

    async def at(moment: float) -> Call:
        await asyncio.sleep(max(0.0, moment - world.now))
        return await world.ask()

    return list(await asyncio.gather(*(at(moment) for moment in moments)))


@check(
    20,
    "Priority overtakes",
    source="BerriAI/litellm#31830",
    right="a request of a high tier is served before 100 of a low tier that wait",
    given=Settings(
        cap=2,
        queue=200,
        queue_timeout=60,
        tenants=(TenantLimits("batch", tier="low"), TenantLimits("people", tier="high")),
    ),
    without=("queue", "queue_timeout"),
    seconds=90.0,
)
async def priority(world: World) -> None:
    world.replica.slots = 2
    world.replica.behaviour = Behaviour(service=0.1)
    low = await world.burst([world.message(tenant="batch")] * 100, limit=60.0)
    await world.until(lambda: world.in_flight >= 2, 5.0)
    high = await (await world.ask(tenant="people", text="urgent")).ending(30.0)
    before = sum(bool(call.end) for call in low)
    ahead = sum(call.ok for call in low)
    world.note(f"the urgent request: {high.shape}; {ahead} of 100 were served before it")
    world.require(high.ok, world.evidence[-1])
    world.require(before <= 10, f"{world.evidence[-1]}, {before} had ended")


@check(
    21,
    "Retries of the gateway's own are bounded",
    source="tombii/better-ccflare#349",
    right="against engines that fail, at most 10 % more calls go upstream than clients asked for",
    replicas=2,
)
async def retry_budget(world: World) -> None:
    number = 200
    for replica in world.replicas:
        replica.behaviour = Behaviour(cut_after=0)
    asked, until = 0, world.now + 25.0
    while asked < number and world.now < until:
        calls = [await world.ask(limit=10.0) for _ in range(10)]
        await world.ended(calls, 11.0)
        asked += len(calls)
    world.note(f"{asked} requests became {world.total} calls upstream")
    world.require(world.total <= 1.1 * asked, world.evidence[-1])


@check(
    22,
    "An engine's 429 or 529 is tried once elsewhere, then told",
    source="haukened/voidllm#184; vava-nessa/free-coding-models#148",
    right=(
        "another engine serves it; if that one sheds too, two calls were made and the client "
        "gets 429 with the larger Retry-After"
    ),
    given=None,
    replicas=2,
    seconds=180.0,
)
async def elsewhere(world: World) -> None:
    first, second = world.replicas
    for status in (429, 529):
        await world.start(Settings())  # it may still obey what the engines asked for before
        first.behaviour = Behaviour(status=status, retry_after="1")
        second.behaviour = Behaviour()
        for _ in range(4):
            call = await (await world.ask()).ending(10.0)
            seen = f"one engine answers {status}, the other is free: {call.shape}"
            world.require(call.ok, seen)
        await asyncio.sleep(1.5)
        first.behaviour = Behaviour(status=status, retry_after="3")
        second.behaviour = Behaviour(status=status, retry_after="9")
        calls = world.total
        call = await (await world.ask()).ending(10.0)
        told = _told(call)
        world.note(
            f"both answer {status}, to wait 3 s and 9 s: {call.shape}, {world.total - calls} calls,"
            f" Retry-After {'none' if told is None else f'{told:g} s'}"
        )
        world.require(call.status == 429, world.evidence[-1])
        world.require(world.total - calls == 2, world.evidence[-1])
        world.require(told is not None and 9 <= told <= _OBEYED, world.evidence[-1])


@check(
    67,
    "A refusal can be obeyed",
    source="more of its kind: SDKs ignore waits beyond 120 s and repeat a 408 at once",
    right=(
        "a full queue and a wait in it that was too long are a 429 with a Retry-After of at "
        "most 120 s, never 408, in the OpenAI error shape"
    ),
    given=Settings(cap=1, queue=4, queue_timeout=1.0),
)
async def obeyable(world: World) -> None:
    world.replica.behaviour = Behaviour(service=3.0)
    calls = await world.ended(await world.burst([world.message()] * 12), 15.0)
    refused = [call for call in calls if not call.ok]
    world.require(refused, "12 at once for one slot and 4 places were all served")
    at_once = sum(call.took < 0.5 for call in refused)
    world.note(f"{at_once} refused at once, {len(refused) - at_once} later")
    for call in refused:
        told = _told(call)
        world.require(call.status == 429, f"a refusal by the queue: {call.shape}")
        world.require(told is not None and 0 < told <= _OBEYED, f"Retry-After is {told}")
        world.require(has_error_shape(call), f"its body: {bytes(call.body[:200])!r}")


@check(
    68,
    "A quota's Retry-After can be obeyed",
    source="more of its kind: a limit of one a minute, a limit of one in ten",
    right=(
        "a 429 with a Retry-After of at most 120 s, or with x-should-retry: false where more "
        "must pass"
    ),
    given=Settings(
        tenants=(
            TenantLimits("minute", requests_per_minute=1, burst=60),
            TenantLimits("tokens", tokens_per_minute=100, burst=60),
        )
    ),
)
async def quota_retry_after(world: World) -> None:
    world.replica.behaviour = Behaviour(prompt_tokens=10, output_tokens=90)
    for tenant in ("minute", "tokens"):
        await (await world.ask(tenant=tenant, max_tokens=80)).ending(5.0)
        call = await (await world.ask(tenant=tenant, max_tokens=80)).ending(5.0)
        world.require(call.status == 429, f"beyond the quota of {tenant}: {call.shape}")
        told = _told(call)
        world.note(f"{tenant}: Retry-After {'none' if told is None else f'{told:g} s'}")
        gives_up = call.headers.get("x-should-retry") == "false"
        world.require(told is not None or gives_up, world.evidence[-1])
        world.require(told is None or told <= _OBEYED, world.evidence[-1])
        world.require(has_error_shape(call), f"its body: {bytes(call.body[:200])!r}")


def has_error_shape(call: Call) -> bool:
    """Tell OpenAI's error object: message and type are text, param and code are there."""
    error = call.error
    if error is None:
        return False
    told = isinstance(error.get("message"), str) and isinstance(error.get("type"), str)
    return told and "param" in error and "code" in error
