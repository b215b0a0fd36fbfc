"""Checks on requests and answers as SDKs send and read them."""

from __future__ import annotations

import json

from surgetank.studies.conformance.client import Call
from surgetank.studies.conformance.retries import has_error_shape
from surgetank.studies.conformance.verdict import check
from surgetank.studies.conformance.world import World


async def _refusals(world: World) -> dict[str, Call]:
    """One refusal of each kind that needs no settings, by what was wrong."""
    line = await world.connect()
    plain = line.ask(world.getting("/v1/no-such-route"), "GET", limit=10.0)
    found = {
        "a body that is no JSON": await world.ask(b'{"model": "x", ', limit=10.0),
        "no messages": await world.ask({"model": world.gateway.model}, limit=10.0),
        "an unknown model": await world.ask(world.chat() | {"model": "no-such-model"}, limit=10.0),
        "an unknown route": plain,
    }
    await world.ended(list(found.values()), 11.0)
    return found


@check(
    69,
    "Each answer has an x-request-id",
    source="more of its kind: what a client quotes to its operator",
    right=(
        "on whole answers, streams and refusals; a client's own id comes back and reaches the"
        " engine"
    ),
)
async def request_ids(world: World) -> None:
    answers = {
        "a whole answer": await (await world.ask()).ending(5.0),
        "a stream": await (await world.ask(stream=True)).ending(5.0),
        **await _refusals(world),
    }
    without = [name for name, call in answers.items() if not call.headers.get("x-request-id")]
    world.require(not without, f"none on {', '.join(without)}")
    own = {"x-request-id": "client-4711"}
    call = await (await world.ask(headers=own)).ending(5.0)
    world.require(call.ok, f"with an id of the client's own: {call.shape}")
    told, reached = (
        call.headers.get("x-request-id"),
        world.replica.received[-1].header("x-request-id"),
    )
    world.note(f"client-4711 came back as {told}, and reached the engine as {reached}")
    world.require(told == "client-4711" and reached == "client-4711", world.evidence[-1])


@check(
    70,
    "Each refusal is an error that SDKs can read",
    source="more of its kind: SDKs show error.message",
    right=(
        '{"error": {"message", "type", "param", "code"}} with a status of 4xx for a bad body,'
        " an unknown model and an unknown route"
    ),
)
async def error_shapes(world: World) -> None:
    wrong: list[str] = []
    for name, call in (await _refusals(world)).items():
        world.note(f"{name}: {call.shape}")
        if not 400 <= call.status < 500:
            wrong.append(world.evidence[-1])
        elif not has_error_shape(call):
            wrong.append(f"{name}: {call.status} with the body {bytes(call.body[:120])!r}")
    world.require(not wrong, "; ".join(wrong))


@check(
    71,
    "A body in chunks arrives whole",
    source="more of its kind: clients that stream what they send",
    right="a request whose body comes in chunks of any size reaches the engine as it was",
)
async def chunked_body(world: World) -> None:
    body = json.dumps(world.chat(text="words " * 300)).encode()
    for size in (1, 7, 1000):
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        line = await world.connect()
        call = line.expect(limit=10.0)
        line.write(_head(world, "transfer-encoding: chunked"))
        for piece in pieces:
            line.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        line.write(b"0\r\n\r\n")
        await call.ending(11.0)
        world.require(call.ok, f"a body of {len(body)} bytes in chunks of {size}: {call.shape}")
        came = world.replica.received[-1].json
        world.require(came["messages"] == json.loads(body)["messages"], "its messages were changed")


@check(
    72,
    "A client that asks before it sends is answered",
    source="more of its kind: curl sends Expect: 100-continue with a large body",
    right="100 Continue within 0.5 s, then the answer to what was sent",
)
async def expect_continue(world: World) -> None:
    body = json.dumps(world.chat(text="words " * 300)).encode()
    line = await world.connect()
    call = line.expect(limit=10.0)
    line.write(_head(world, f"content-length: {len(body)}\r\nexpect: 100-continue"))
    asked = await world.until(lambda: bool(line.raw), 0.5)
    world.note(f"within 0.5 s came {bytes(line.raw[:25])!r}")
    world.require(asked and line.raw.startswith(b"HTTP/1.1 100"), world.evidence[-1])
    line.write(body)
    await call.ending(11.0)
    world.require(call.ok, f"then: {call.shape}")


def _head(world: World, more: str) -> bytes:
    key = world.key()
    auth = f"authorization: Bearer {key}\r\n" if key else ""
    lines = f"host: {world.host}\r\n{auth}content-type: application/json\r\n{more}\r\n"
    return f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode()
