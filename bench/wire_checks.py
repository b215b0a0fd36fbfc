"""What must hold for any bytes on the wire: the checks of `fuzz_wire.py` and of the suite.

Each takes one input and asserts. Rule: only the error a function names may come out of it, and what
comes out does not depend on how the bytes were cut.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import msgspec

from surgetank.wire import long_text
from surgetank.wire.http1 import Limits, ProtocolError, RequestParser, ResponseParser
from surgetank.wire.native_body import NATIVE_ROUTES, parse_native
from surgetank.wire.native_stream import NativeAssembler, NativeScanner
from surgetank.wire.openai import ROUTES, AssembleError, BadRequest, parse_request
from surgetank.wire.request_body import Body
from surgetank.wire.sse import EventReader, SseOverflow, SseScanner

_LIMITS: Final = Limits(head_bytes=2048, header_count=20, body_bytes=4096, chunk_line_bytes=64)
_GATEWAYS_OWN: Final = frozenset({"priority", "kv_transfer_params"})


def cut(data: bytes) -> list[list[bytes]]:
    """Give the data in one piece, at places drawn from it, and byte by byte (in 64 at most)."""
    dice = random.Random(data)
    places = sorted(dice.randrange(len(data) + 1) for _ in range(4))
    step = 1 + len(data) // 64
    edges = [0, *places, len(data)]
    parts = [data[a:b] for a, b in pairwise(edges)]
    return [[data], parts, [data[i : i + step] for i in range(0, len(data), step)]]


def http_path(data: bytes) -> None:
    """Requests and responses are read alike however they come, and never hold bytes back."""
    for make in (lambda: RequestParser(_LIMITS), lambda: ResponseParser("POST", _LIMITS)):
        verdicts = [_read_message(make(), parts) for parts in cut(data)]
        assert verdicts[0] == verdicts[1] == verdicts[2], verdicts


def _read_message(parser: RequestParser | ResponseParser, parts: list[bytes]) -> Any:
    body = b""
    try:
        for part in parts:
            body += parser.receive(part)
    except ProtocolError as error:
        return "refused", _is_told(error.status, error.message)
    head = parser.head
    return body, parser.done, parser.excess, None if head is None else (head.headers, head.fields)


def _is_told(status: int, message: str) -> bool:
    assert 400 <= status <= 505
    assert message
    return True


def event_stream(data: bytes) -> None:
    """Streams are passed on byte for byte, and learnt from alike however they come."""
    makers: list[Callable[[], SseScanner | NativeScanner]] = [
        lambda: SseScanner(max_line=2048),
        lambda: SseScanner(strip_usage=True, max_line=2048),
        lambda: NativeScanner(max_line=2048),
    ]
    for make in makers:
        seen = [_scan(make(), parts) for parts in cut(data)]
        told = [one for one in seen if one is not None]
        if len(told) == len(seen):
            assert told[0] == told[1] == told[2], told
    plain = SseScanner(max_line=1 << 20)
    assert plain.feed(data) == data
    assert NativeScanner().feed(data) == data
    assembler = NativeAssembler()
    for part in cut(data)[1]:
        assembler.feed(part)
    with suppress(AssembleError):
        json.loads(assembler.result())


def _scan(scanner: SseScanner | NativeScanner, parts: list[bytes]) -> Any:
    """Read a stream; None when an event was too long, which may show in one piece only later."""
    out = b""
    try:
        for part in parts:
            out += scanner.feed(part)
    except SseOverflow:
        return None
    return out, scanner.error, scanner.finish_reason, scanner.done, scanner.first_event


def request_body(data: bytes) -> None:
    """A body is refused in words, or goes up as it came without what is the gateway's to say."""
    for route in sorted(ROUTES | NATIVE_ROUTES):
        try:
            body = parse_request(route, data) if route in ROUTES else parse_native(route, data)
        except BadRequest as error:
            _is_told(error.status, error.message)
            continue
        _check_sent(body, data)


def _check_sent(body: Body, data: bytes) -> None:
    sent = json.loads(body.encode(stream=body.stream, max_tokens=body.max_tokens))
    assert not {name for name in sent if name.lower() in _GATEWAYS_OWN}
    assert sent["model"] == body.model
    assert body.prompt_bytes >= body.prompt_chars >= 0
    asked = json.loads(data)
    for name in ("messages", "prompt", "input", "temperature", "metadata", "tools"):
        assert (name in sent) == (name in asked), name
        if name in sent:
            assert repr(sent[name]) == repr(asked[name]), name  # repr: NaN is not itself


def event_reader(data: bytes) -> None:
    """Events are split alike however they come."""
    seen = []
    for parts in cut(data):
        reader = EventReader()
        seen.append([event for part in parts for event in reader.feed(part)])
    assert seen[0] == seen[1] == seen[2]


def long_texts(data: bytes) -> None:
    """What strings are cut out of a JSON text is what a reader would have found in their places."""
    for start in (0, len(data) // 2):
        text = data[start:]
        if not _is_utf8(text) or (taken := long_text.cut(data, start, len(data), 3)) is None:
            continue
        rest = taken.rest.decode()
        for name, one in taken.texts.items():
            value: str = msgspec.json.decode(b'"%b"' % bytes(one.raw))
            assert one.size == len(value.encode()), "its bytes are others"
            assert one.chars == len(value), "its characters are others"
            for most in (1, 5):
                begin = one.beginning(most)
                assert value.startswith(begin), "it begins otherwise"
                assert len(begin) >= min(most, len(value)), "its beginning is short"
            rest = rest.replace(name, bytes(one.raw).decode())
        assert rest == text.decode(), "what is cut out is not what was there"
        assert _valid(taken.rest) == _valid(text), "it is valid only with, or without, its texts"


def _is_utf8(text: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        text.decode()
        return True
    return False


def _valid(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
        return False
    return True


def bodies(data: bytes) -> None:
    """Both of what reads bodies."""
    request_body(data)
    long_texts(data)


CHECKS: Final[dict[str, Callable[[bytes], None]]] = {
    "http": http_path,
    "sse": event_stream,
    "body": bodies,
}
