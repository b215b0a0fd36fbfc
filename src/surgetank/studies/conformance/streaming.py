"""Checks on what a stream looks like, whatever the engine sends and however the client reads."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, Final

from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.studies.conformance.cancellation import no_split
from surgetank.studies.conformance.client import Call
from surgetank.studies.conformance.verdict import check
from surgetank.studies.conformance.world import World

_FLOOD: Final = 24 << 20  # bytes of a line without an end
_MIB: Final = 1 << 20


@check(
    27,
    "Each stream says that it must not be buffered",
    source="BerriAI/litellm#28384, #29557",
    right=(
        "text/event-stream with Cache-Control: no-cache and X-Accel-Buffering: no, and no "
        "compression although the client would take it"
    ),
)
async def stream_headers(world: World) -> None:
    wrong: list[str] = []
    prompt = {"model": world.gateway.model, "prompt": "hello", "stream": True}
    for path, body in (("/v1/chat/completions", None), ("/v1/completions", prompt)):
        headers = {"accept-encoding": "gzip, br"}
        call = await world.ask(body, path=path, headers=headers, stream=True)
        await call.ending(5.0)
        world.require(call.ok, f"{path}: {call.shape}")
        told = {name.lower(): value.lower() for name, value in call.headers.items()}
        caching = told.get("cache-control", "")
        if "no-cache" not in caching and "no-store" not in caching:
            wrong.append(f"{path}: cache-control is {caching or 'not there'}")
        if told.get("x-accel-buffering") != "no":
            wrong.append(
                f"{path}: x-accel-buffering is {told.get('x-accel-buffering', 'not there')}"
            )
        if "content-encoding" in told:
            wrong.append(f"{path}: compressed with {told['content-encoding']}")
    world.require(not wrong, "; ".join(wrong))


@check(
    28,
    "A line without an end is capped",
    source="NousResearch/hermes-agent#58471",
    right=(
        "a streamed line that does not end is cut off with a clear error, the engine's call "
        "is ended, and another stream is unharmed"
    ),
    seconds=90.0,
)
async def endless_line(world: World) -> None:
    replica = world.replica
    flood = Behaviour(endless_line=_FLOOD)
    beside = Behaviour(tokens=150, pace=0.02)
    replica.script = lambda received: flood if b"flood" in received.body else beside
    other = await world.ask(stream=True)
    world.require(await other.event(1, 5.0), f"the stream beside it: {other.shape}")
    flooded = await world.ask(stream=True, text="flood", limit=20.0)
    await flooded.ending(21.0)
    await other.ending(15.0)
    world.note(
        f"of a line of {_FLOOD / _MIB:.0f} MiB the client got {flooded.size / _MIB:.1f} MiB:"
        f" {flooded.shape}; the stream beside it: {other.shape}"
    )
    world.require(other.ok, world.evidence[-1])
    world.require(flooded.size < _FLOOD / 2, world.evidence[-1])
    world.require(flooded.error is not None, world.evidence[-1])
    over = await world.until(lambda: world.in_flight == 0, 1.0)
    world.require(over, "the call upstream went on after its line had been cut off")


@check(
    29,
    "No client gets a usage chunk it has not asked for",
    source="headroom-ai/headroom#2026; nguyenphutrong/quotio#460; BerriAI/litellm#35290",
    right="a usage chunk with include_usage: true, none without it or with false",
)
async def injected_usage(world: World) -> None:
    for told, asked, right in (
        ("without stream_options", None, 0),
        ("with include_usage: false", {"include_usage": False}, 0),
        ("with include_usage: true", {"include_usage": True}, 1),
    ):
        more: dict[str, Any] = {} if asked is None else {"stream_options": asked}
        call = await (await world.ask(stream=True, **more)).ending(5.0)
        world.require(call.ok, f"{told}: {call.shape}")
        found = sum(_is_usage(text) for text in call.events)
        world.note(f"{told}: {found} usage chunks")
        world.require(found == right, world.evidence[-1])


def _is_usage(text: str) -> bool:
    """Tell a chunk of usage alone, or one that tells it beside content."""
    event = _object(text)
    return isinstance(event.get("usage"), dict)


@check(
    30,
    "An error inside a 200 becomes an error",
    source="vllm-project/production-stack (prefill/decode): error JSON inside a 200 stream",
    right=(
        "a real status when nothing was sent yet, an SSE error event otherwise; also when the"
        " engine writes bare JSON"
    ),
    seconds=90.0,
)
async def error_inside(world: World) -> None:
    wrong: list[str] = []
    for told, behaviour, stream in (
        ("as the first event", Behaviour(error_after=0), True),
        ("as bare JSON instead of events", Behaviour(error_after=0, bare_error=True), True),
        ("as a whole answer", Behaviour(error_after=0), False),
    ):
        world.replica.behaviour = behaviour
        call = await (await world.ask(stream=stream)).ending(10.0)
        world.note(f"{told}: {call.shape}")
        if call.status < 400 or call.error is None:
            wrong.append(world.evidence[-1])
    for told, behaviour in (
        ("an event after two tokens", Behaviour(error_after=2, pace=0.05)),
        ("bare JSON after two tokens", Behaviour(error_after=2, pace=0.05, bare_error=True)),
    ):
        world.replica.behaviour = behaviour
        call = await (await world.ask(stream=True)).ending(10.0)
        world.note(f"{told}: {call.shape}")
        if call.error is None:
            wrong.append(f"{world.evidence[-1]}, no error event")
    world.require(not wrong, "; ".join(wrong))


@check(
    31,
    "Cached tokens are told as the prefiller counted them",
    source="vllm-project/router#193",
    right="cached_tokens of the prefiller under a prefill/decode split",
    given=None,
)
async def cached_tokens(world: World) -> None:
    no_split(world)


@check(
    61,
    "A stream that breaks off does not look finished",
    source="as 30: SDKs take an end without an error for success",
    right=(
        "when the engine dies mid-stream, by closing, by a reset or by ending without [DONE],"
        " an error event comes before the end"
    ),
)
async def broken_off(world: World) -> None:
    wrong: list[str] = []
    for told, behaviour in (
        ("closed after 3 tokens", Behaviour(tokens=9, pace=0.02, cut_after=3)),
        ("reset after 3 tokens", Behaviour(tokens=9, pace=0.02, cut_after=3, reset=True)),
        ("ended without [DONE]", Behaviour(tokens=3, pace=0.02, done=False)),
    ):
        world.replica.behaviour = behaviour
        call = await (await world.ask(stream=True)).ending(10.0)
        world.note(f"{told}: {call.shape}")
        if call.error is None:
            wrong.append(f"{world.evidence[-1]}, no error event")
        elif call.end != "whole":
            wrong.append(f"{world.evidence[-1]}, and the framing is broken off too")
        await world.until(lambda: world.in_flight == 0, 2.0)
    world.require(not wrong, "; ".join(wrong))


@check(
    62,
    "Streams follow one another on one connection",
    source="more of its kind: keep-alive",
    right="three streams and a whole answer on one connection, each whole, and it stays open",
)
async def keep_alive(world: World) -> None:
    line = await world.connect()
    for i in range(4):
        call = line.ask(world.message(stream=i != 3))
        await call.ending(5.0)
        world.require(call.ok, f"number {i + 1} on one connection: {call.shape}")
        world.require(not call.streams or call.events.count("[DONE]") == 1, "[DONE] came twice")
        world.require(line.open or i == 3, f"it closed the connection after number {i + 1}")


@check(
    63,
    "Nothing holds a token back",
    source="more of its kind: Nagle's algorithm adds 40 ms, and joined chunks stutter",
    right=(
        "each of 30 tokens, 50 ms apart, is with the client within 25 ms at the median and "
        "100 ms at most"
    ),
)
async def held_back(world: World) -> None:
    world.replica.behaviour = Behaviour(tokens=30, pace=0.05)
    call = await world.ask(stream=True)
    late: list[float] = []
    for i in range(30):
        came = await call.until(partial(_has_words, call, i + 1), 5.0)
        world.require(came, f"token {i + 1}: {call.shape}")
        late.append(world.now - world.replica.received[-1].wrote[i])
    await call.ending(5.0)
    late.sort()
    world.note(
        f"tokens came {1e3 * late[15]:.1f} ms after they were written, {1e3 * late[-1]:.0f} ms"
        " at most"
    )
    world.require(late[15] <= 0.025, world.evidence[-1])
    world.require(late[-1] <= 0.1, world.evidence[-1])


def _has_words(call: Call, number: int) -> bool:
    return sum('"word' in text for text in call.events) >= number


@check(
    64,
    "What a gateway does not know passes through it",
    source="more of its kind: fields of engines and of newer dialects",
    right=(
        "unknown members of a request reach the engine, those of chunks and answers reach the"
        " client"
    ),
)
async def unknown_members(world: World) -> None:
    said, more = {"reasoning_content": "because"}, {"x_engine": {"kept": [1, 2.5, None]}}
    world.replica.behaviour = Behaviour(said=said, more=more)
    told: dict[str, object] = {**said, **more}
    missing: list[str] = []
    for stream in (True, False):
        asked: dict[str, Any] = {"top_k": 7, "chat_template_kwargs": {"thinking": False}}
        call = await (await world.ask(stream=stream, **asked)).ending(5.0)
        world.require(call.ok, f"with members of its engine's own: {call.shape}")
        body = world.replica.received[-1].json
        missing += [
            f"{name} of a request" for name, value in asked.items() if body.get(name) != value
        ]
        shown = [_object(text) for text in call.events] if stream else [call.json or {}]
        where = "a chunk" if stream else "an answer"
        missing += [
            f"{n} of {where}" for n, v in told.items() if not any(_holds(s, n, v) for s in shown)
        ]
    world.require(not missing, f"lost on the way: {', '.join(missing)}")


def _holds(event: dict[str, Any], name: str, value: object) -> bool:
    """It is at the top, in a choice or in what a choice says."""
    choices = event.get("choices") or [{}]
    places = [event, *choices, *(c.get("delta") or c.get("message") or {} for c in choices)]
    return any(place.get(name) == value for place in places)


@check(
    65,
    "A stream that comes byte by byte arrives whole",
    source="more of its kind: reads end anywhere, inside characters too",
    right="every event is whole, umlauts and emoji too, with one [DONE]",
)
async def byte_by_byte(world: World) -> None:
    piece = "äö€ 😀 "
    world.replica.behaviour = Behaviour(tokens=4, piece=piece, trickle=True)
    call = await (await world.ask(stream=True)).ending(20.0)
    world.require(call.ok, f"byte by byte: {call.shape}")
    text = "".join(_content(_object(event)) for event in call.events)
    world.require(text == piece * 4, f"the text arrived as {text!r}")
    world.require(call.events.count("[DONE]") == 1, "there is not exactly one [DONE]")


@check(
    66,
    "A client that stops reading fills no memory",
    source="more of its kind: back-pressure",
    right=(
        "a client reads a little of 64 MiB and stops: the gateway takes less than 32 MiB "
        "more, and another stream is unharmed"
    ),
    seconds=90.0,
)
async def half_read(world: World) -> None:
    world.memory()  # not testable where it cannot be read
    whole = Behaviour(tokens=1024, pace=0.002, piece="x" * 65_536)
    beside = Behaviour(tokens=100, pace=0.02)
    world.replica.script = lambda received: whole if b"everything" in received.body else beside
    await (await world.ask()).ending(5.0)
    before = world.memory()
    call = await world.ask(stream=True, text="everything", limit=60.0)
    world.require(await call.event(1, 5.0), f"the large stream: {call.shape}")
    call.line.pause()
    other = await world.ask(stream=True)
    most = before
    for _ in range(40):
        await asyncio.sleep(0.1)
        most = max(most, world.memory())
    await other.ending(10.0)
    world.note(f"it took {(most - before) / _MIB:.1f} MiB more for a client that does not read")
    world.require(other.ok, f"the stream beside it: {other.shape}")
    world.require(most - before < 32 * _MIB, world.evidence[-1])
    await _goes_on(world, call)


async def _goes_on(world: World, call: Call) -> None:
    """Require that it is not forgotten: it goes on when the client reads again, or was ended."""
    seen = call.size
    call.line.resume()
    moved = await call.until(lambda: call.size > seen + _MIB or bool(call.end), 10.0)
    world.require(moved, "when the client read again, nothing more came for 10 s")
    call.leave()


def _content(event: dict[str, Any]) -> str:
    return "".join((c.get("delta") or {}).get("content") or "" for c in event.get("choices") or [])


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
