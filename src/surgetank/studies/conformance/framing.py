"""Checks on HTTP itself: what two readers could frame in two ways goes nowhere."""

from __future__ import annotations

import asyncio
from typing import Final

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.client import Call
from surgetank.studies.conformance.settings import Settings
from surgetank.studies.conformance.verdict import check
from surgetank.studies.conformance.world import World

_PATH: Final = "POST /v1/chat/completions HTTP/1.1"


def _raw(world: World, fields: str, body: bytes) -> bytes:
    key = world.key()
    more = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"{_PATH}\r\nhost: {world.host}\r\ncontent-type: application/json\r\n{more}{fields}\r\n"
    return head.encode("latin-1") + body


async def _refused(world: World, message: bytes, *, what: str) -> None:
    """Require a 4xx or a closed connection, and that the engine saw nothing."""
    before = world.total
    line = await world.connect()
    call = await line.ask(message, limit=5.0).ending()
    await asyncio.sleep(0.05)
    world.note(f"{what}: {call.shape}")
    world.require(400 <= call.status < 500 or (not call.status and call.end == "cut"), call.shape)
    reached = world.total - before + sum(len(replica.malformed) for replica in world.replicas)
    world.require(not reached, f"{what}: it reached the engine")


@check(
    51,
    "Two lengths are refused",
    source="request smuggling (RFC 9112, 6.3)",
    right=(
        "different Content-Lengths, signs and spaces get a 4xx or a closed connection, and the "
        "engine sees nothing; one length beside chunks gets that too, or is read by its chunks "
        "alone and the connection closed"
    ),
)
async def two_lengths(world: World) -> None:
    import json  # noqa: PLC0415 - used here alone

    body = json.dumps(world.chat()).encode()
    size = len(body)
    two = f"content-length: {size}\r\ncontent-length: {size - 5}\r\n"
    await _refused(world, _raw(world, two, body), what="two lengths")
    signed = f"content-length: +{size}\r\n"
    await _refused(world, _raw(world, signed, body), what="a length with a sign")
    spaced = f"content-length : {size}\r\n"
    await _refused(world, _raw(world, spaced, body), what="a space before the colon")
    both = f"content-length: {size - 5}\r\ntransfer-encoding: chunked\r\n"
    message = _raw(world, both, b"%x\r\n%b\r\n0\r\n\r\n" % (size, body))
    line = await world.connect()
    call = await line.ask(message, limit=5.0).ending()
    world.note(f"a length beside chunks: {call.shape}")
    if call.status == 200:  # RFC 9112, 6.3 allows it: by its chunks alone, and closed after it
        received = world.replica.received[-1]
        told = received.header("content-length")
        both_told = told is not None and received.header("transfer-encoding") is not None
        world.require(received.body == body and not both_told, "the engine was told two lengths")
        world.require(await line.gone(2.0), "a length beside chunks: its connection lives on")
    else:
        world.require(400 <= call.status < 500 or call.end == "cut", call.shape)


@check(
    52,
    "Pipelined requests are answered in their order",
    source="of the kind of check 18",
    right="5 requests written in one go on one connection: 5 whole answers, in order",
)
async def pipelined(world: World) -> None:
    world.replica.script = lambda r: Behaviour(piece=f"{r.text} ", tokens=1, service=0.02)
    line = await world.connect()
    messages = [world.message(text=f"number{i}") for i in range(5)]
    calls = [line.expect(limit=10.0) for _ in messages]
    line.write(b"".join(messages))
    await world.ended(calls, 10.0)
    texts = [_content(call) for call in calls]
    world.note(f"answers in this order: {texts}")
    world.require(texts == [f"number{i}" for i in range(5)], world.evidence[-1])


def _content(call: Call) -> str:
    said = call.json
    if not call.ok or not isinstance(said, dict):
        return call.shape
    return str(said["choices"][0]["message"]["content"]).strip()


@check(
    53,
    "A connection lives on after an error, or says that it closes",
    source="of the kind of check 18",
    right=(
        "after a 404 for an unknown model, a 400 for a body that is no JSON and a 4xx to HEAD "
        "the next request on the same connection is a 200, unless the answer said Connection: "
        "close"
    ),
)
async def keep_alive(world: World) -> None:
    line = await world.connect()
    wrong = (
        ("an unknown model", world.message({**world.chat(), "model": "no-such-model"}), "POST"),
        ("no JSON", world.message(b"{no json"), "POST"),
        ("HEAD", world.getting("/v1/chat/completions", method="HEAD"), "HEAD"),
    )
    for what, message, method in wrong:
        call = await line.ask(message, method, limit=5.0).ending()
        world.note(f"{what}: {call.shape}")
        world.require(call.end == "whole" and 400 <= call.status < 500, world.evidence[-1])
        if "close" in call.headers.get("connection", "").lower():
            await line.gone(2.0)
            line = await world.connect()
            continue
        after = await line.ask(world.message(), limit=5.0).ending()
        world.require(after.ok, f"after {what} on the same connection: {after.shape}")


@check(
    54,
    "A head without an end holds nobody up",
    source="of the kind of check 14",
    right="100 clients send half a head: 20 requests beside them take less than 1 s each",
)
async def slow_heads(world: World) -> None:
    world.replica.behaviour = Behaviour(service=0.02)
    for line in await world.lines(100):
        line.write(f"{_PATH}\r\nhost: {world.host}\r\nx-slow: ".encode())
    calls = await world.ended(await world.burst([world.message()] * 20), 10.0)
    late = [call for call in calls if not call.ok or call.took >= 1.0]
    world.note(f"{len(late)} of 20 beside 100 half heads took 1 s or failed")
    world.require(not late, world.evidence[-1])


@check(
    55,
    "A head that is too large is refused, others are unharmed",
    source="of the kind of check 33",
    right=(
        "a header of 1 MB gets a 4xx or a closed connection, the engine sees nothing, and the "
        "next request is a 200"
    ),
)
async def large_head(world: World) -> None:
    message = _raw(world, f"x-large: {'x' * (1 << 20)}\r\ncontent-length: 2\r\n", b"{}")
    await _refused(world, message, what="a header of 1 MB")
    call = await (await world.ask(limit=5.0)).ending()
    world.require(call.ok, f"the next request: {call.shape}")


@check(
    56,
    "Half a body gives nothing away",
    source="of the kind of check 1",
    right=(
        "cap 1: 20 clients leave in the middle of their body: the engine sees none of them, and"
        " the next request is a 200 within 1 s"
    ),
    given=Settings(cap=1),
    without=("cap",),
)
async def half_bodies(world: World) -> None:
    message = world.message(text="word " * 2000)
    for line in await world.lines(20):
        line.write(message[: len(message) // 2])
        await asyncio.sleep(0.01)
        line.close()
    await asyncio.sleep(0.2)
    seen = [r for r in world.replica.received if r.ended is None]
    world.require(not seen, f"the engine still has {len(seen)} requests of half a body")
    call = await (await world.ask(limit=5.0)).ending()
    world.note(f"the next request: {call.shape}; the engine had {world.total} in all")
    world.require(call.ok and call.took <= 1.0 and world.total == 1, world.evidence[-1])
