"""Framing does not depend on how the bytes arrive, and no bytes do harm."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surgetank.wire.http1 import (
    Limits,
    ProtocolError,
    RequestParser,
    ResponseParser,
    chunk,
    request_head,
    response_head,
)

NAMES = st.from_regex(rb"x-[a-z]{1,8}", fullmatch=True)
VALUES = st.from_regex(rb"([!-~]([ -~]{0,12}[!-~])?)?", fullmatch=True)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
TRAILERS = st.lists(st.tuples(NAMES, VALUES), max_size=2)


def framed(payloads: list[bytes], trailers: list[tuple[bytes, bytes]] | None) -> bytes:
    if trailers is None:
        return b"".join(payloads)
    tail = b"".join(b"%b: %b\r\n" % field for field in trailers)
    return b"".join(map(chunk, payloads)) + b"0\r\n" + tail + b"\r\n"


def framing(payloads: list[bytes], trailers: object) -> tuple[bytes, bytes]:
    if trailers is None:
        return b"content-length", b"%d" % sum(map(len, payloads))
    return b"transfer-encoding", b"chunked"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut `data` at the given places; no cuts at all: one byte each."""
    if not cuts:
        return [data[i : i + 1] for i in range(len(data))]
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


def drain(parser: RequestParser | ResponseParser, parts: list[bytes]) -> bytes:
    return b"".join([parser.receive(part) for part in parts])


CUTS = st.lists(st.integers(0, 2000), max_size=6)


@given(FIELDS, PAYLOADS, st.none() | TRAILERS, st.binary(max_size=8), CUTS)
def test_any_split_of_a_request_gives_the_same_head_body_and_excess(
    fields: list[tuple[bytes, bytes]],
    payloads: list[bytes],
    trailers: list[tuple[bytes, bytes]] | None,
    excess: bytes,
    cuts: list[int],
) -> None:
    headers = [(b"host", b"h"), *fields, framing(payloads, trailers)]
    data = request_head("POST", "/v1/completions", headers) + framed(payloads, trailers) + excess
    parser = RequestParser()
    assert drain(parser, pieces(data, cuts)) == b"".join(payloads)
    assert parser.done
    assert parser.excess == excess
    assert parser.head is not None
    assert parser.head.headers == headers


@given(FIELDS, PAYLOADS, st.none() | TRAILERS, st.binary(max_size=8), CUTS)
def test_any_split_of_a_response_gives_the_same_head_body_and_excess(
    fields: list[tuple[bytes, bytes]],
    payloads: list[bytes],
    trailers: list[tuple[bytes, bytes]] | None,
    excess: bytes,
    cuts: list[int],
) -> None:
    headers = [*fields, framing(payloads, trailers)]
    data = response_head(200, headers) + framed(payloads, trailers) + excess
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + data
    parser = ResponseParser()
    assert drain(parser, pieces(data, cuts)) == b"".join(payloads)
    assert parser.done
    assert parser.excess == excess
    assert parser.head is not None
    assert parser.head.headers == headers


@given(
    st.lists(st.tuples(PAYLOADS, st.none() | TRAILERS), min_size=1, max_size=4),
    CUTS,
)
def test_any_split_of_pipelined_requests_gives_the_same_bodies(
    messages: list[tuple[list[bytes], list[tuple[bytes, bytes]] | None]], cuts: list[int]
) -> None:
    data = b"".join(
        request_head("POST", "/", [(b"host", b"h"), framing(payloads, trailers)])
        + framed(payloads, trailers)
        for payloads, trailers in messages
    )
    parser = RequestParser()
    bodies = [b""]
    for part in pieces(data, cuts):
        waiting = part
        while waiting or parser.done:
            bodies[-1] += parser.receive(waiting)
            if not parser.done:
                break
            bodies.append(b"")
            waiting = parser.excess
            parser.reset()
    assert bodies == [*(b"".join(payloads) for payloads, _ in messages), b""]


HTTP_LIKE = st.lists(
    st.sampled_from(
        [
            b"GET / HTTP/1.1\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 100 \r\n",
            b"Host: h\r\n",
            b"Content-Length: 3\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Connection: close\r\n",
            b"X: y\r\n",
            b"\r\n",
            b"\r",
            b"\n",
            b"0",
            b"3\r\n",
            b"abc",
            b";x",
            b":",
            b" ",
            b"\0",
        ]
    )
    | st.binary(max_size=6),
    max_size=14,
).map(b"".join)


@given(HTTP_LIKE, CUTS)
@example(b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [])
def test_bytes_that_look_like_http_give_one_verdict_however_they_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    limits = Limits(head_bytes=120, header_count=4, body_bytes=8, chunk_line_bytes=8)
    for make in (lambda: RequestParser(limits), lambda: ResponseParser("POST", limits)):
        verdicts = []
        for parts in ([data], pieces(data, cuts), pieces(data, [])):
            parser = make()
            try:
                drain(parser, parts)
                verdicts.append(("read", parser.done, parser.excess, repr(parser.head)))
            except ProtocolError:
                verdicts.append(("refused", False, b"", ""))
        assert verdicts[0] == verdicts[1] == verdicts[2]


def test_random_bytes_raise_nothing_but_protocol_errors() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(1, 200))
        for parser in (RequestParser(), ResponseParser()):
            with suppress(ProtocolError):
                parser.receive(b"")
                parser.receive(data)
                parser.receive(data)
            assert len(parser.excess) <= 2 * len(data)


def test_hostile_heads_are_refused_in_linear_time() -> None:
    """A pattern that backtracks would need minutes for one of these."""
    for filler in (b"a: b\r\n" * 5000, b"a" * 32_000, b": " * 16_000, b"a:" + b" " * 32_000):
        parser = RequestParser(Limits(head_bytes=1 << 20, header_count=1 << 20))
        with pytest.raises(ProtocolError) as caught:
            parser.receive(b"GET / HTTP/1.1\r\nHost: h\r\n" + filler + b"\x00\r\n\r\n")
        assert caught.value.status == 400
