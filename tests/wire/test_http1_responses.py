"""Responses of an upstream: strict too, with the few freedoms real engines take."""

from __future__ import annotations

import pytest

from surgetank.wire.http1 import (
    LAST_CHUNK,
    Limits,
    ProtocolError,
    RequestParser,
    ResponseParser,
    chunk,
    request_head,
    response_head,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED: list[tuple[str, bytes]] = [
    ("length and chunked", OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("two equal lengths", OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n"),
    ("signed length", OK + b"Content-Length: +3\r\n\r\n"),
    ("gzip coding", OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    ("coding in 1.0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("bare LF", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    ("obs-fold", OK + b"X: a\r\n b\r\n\r\n"),
    ("space before the colon", OK + b"Content-Length : 3\r\n\r\n"),
    ("HTTP/2", b"HTTP/2.0 200 OK\r\n\r\n"),
    ("four digits", b"HTTP/1.1 2000 OK\r\n\r\n"),
    ("status 600", b"HTTP/1.1 600 No\r\n\r\n"),
    ("switching protocols", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"),
    ("interim for ever", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 17),
    ("size with 0x", CHUNKED + b"0x3\r\nabc\r\n"),
    ("size with space", CHUNKED + b"3 \r\nabc\r\n"),
    ("chunk line too long", CHUNKED + b"3;" + b"x" * 300 + b"\r\nabc\r\n"),
    ("control byte in an extension", CHUNKED + b"3;\x01\r\nabc\r\n"),
    ("bare LF in an extension", CHUNKED + b"3;a\nb\r\nabc\r\n"),
    ("no CRLF after the data", CHUNKED + b"3\r\nabcd\r\n"),
    ("length in a trailer", CHUNKED + b"0\r\nContent-Length: 1\r\n\r\n"),
    ("too many fields", OK + b"X: y\r\n" * 101 + b"\r\n"),
    ("too large", OK + b"X: " + b"y" * 40_000),
]


@pytest.mark.parametrize("data", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_broken_response_is_a_502_whole_and_byte_by_byte(data: bytes) -> None:
    for step in (len(data), 1):
        parser = ResponseParser()
        with pytest.raises(ProtocolError) as caught:  # noqa: PT012 - the loop feeds it
            for at in range(0, len(data), step):
                parser.receive(data[at : at + step])
        assert caught.value.status == 502


def test_a_response_by_length() -> None:
    parser = ResponseParser()
    assert (
        parser.receive(b"HTTP/1.1 429 \r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nab") == b"ab"
    )
    assert parser.head is not None
    assert (parser.head.status, parser.head.reason) == (429, b"")
    assert parser.head.get(b"retry-after") == b"3"
    assert (parser.done, parser.boundary) == (False, False)
    assert parser.receive(b"cdHTTP/1.1") == b"cd"
    assert parser.done
    assert parser.excess == b"HTTP/1.1"
    assert parser.head.keep_alive


def test_one_whole_chunk_in_a_read_is_its_payload_and_ends_at_a_boundary() -> None:
    parser = ResponseParser()
    parser.receive(CHUNKED)
    steps = [
        (parser.receive(read), parser.boundary, parser.done)
        for read in (
            b"5\r\nhello\r\n",
            b"5\r\nhel",
            b"lo",
            b"\r\nA\r\n0123456789\r\n",
            LAST_CHUNK,
        )
    ]
    assert steps == [
        (b"hello", True, False),
        (b"hel", False, False),
        (b"lo", False, False),
        (b"0123456789", True, False),
        (b"", False, True),
    ]


def test_half_a_chunk_size_is_no_boundary_and_is_not_read_as_a_whole_one() -> None:
    parser = ResponseParser()
    parser.receive(CHUNKED + b"1")
    assert not parser.boundary
    assert parser.receive(b"2\r\nab\r\n") == b"ab\r\n"  # the first 4 of 0x12 bytes


def test_extensions_and_trailers_of_an_upstream_are_dropped() -> None:
    parser = ResponseParser()
    data = CHUNKED + b'3;a="b c"\r\nabc\r\n2 ;x\r\nde\r\n0;last\r\nServer-Timing: x\r\n\r\n'
    assert parser.receive(data) == b"abcde"
    assert parser.done
    assert parser.excess == b""


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b"CHUNKED"])
def test_an_upstream_may_spell_chunked_as_it_likes(coding: bytes) -> None:
    parser = ResponseParser()
    assert parser.receive(OK + b"Transfer-Encoding: " + coding + b"\r\n\r\n1\r\na\r\n") == b"a"


def test_interim_responses_are_swallowed() -> None:
    parser = ResponseParser()
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK
    assert parser.receive(data + b"Content-Length: 1\r\n\r\nx") == b"x"
    assert parser.head is not None
    assert parser.head.status == 200
    assert parser.done


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", OK + b"Content-Length: 100\r\n\r\n"),
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n"),
    ],
)
def test_some_responses_have_no_body_whatever_they_say(method: str, head: bytes) -> None:
    parser = ResponseParser(method)
    assert parser.receive(head) == b""
    assert parser.done


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = ResponseParser()
    assert parser.receive(OK + b"\r\nabc") == b"abc"
    assert parser.receive(b"def") == b"def"
    assert parser.head is not None
    assert (parser.done, parser.head.keep_alive) == (False, False)
    parser.eof()
    assert parser.done


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        OK + b"Content-Length: 4\r\n\r\nabc",
        CHUNKED,
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"0\r\n",
    ],
)
def test_a_connection_that_ends_early_truncates_the_response(data: bytes) -> None:
    parser = ResponseParser()
    parser.receive(data)
    with pytest.raises(ProtocolError, match="the connection ended"):
        parser.eof()


def test_the_end_of_the_connection_after_a_whole_response_is_fine() -> None:
    parser = ResponseParser()
    parser.receive(OK + b"Content-Length: 0\r\n\r\n")
    parser.eof()
    assert parser.done


def test_one_connection_carries_many_responses() -> None:
    parser = ResponseParser("HEAD")
    parser.receive(OK + b"Content-Length: 5\r\n\r\n")
    assert parser.done
    parser.reset("POST")
    assert not parser.started
    assert parser.receive(CHUNKED + b"1\r\na\r\n0\r\n\r\n") == b"a"
    assert parser.done


def test_response_bodies_have_no_bound_of_their_own() -> None:
    parser = ResponseParser("POST", Limits(body_bytes=2))
    assert parser.receive(CHUNKED + b"5\r\nhello\r\n") == b"hello"


def test_an_empty_payload_is_no_chunk_since_that_would_end_the_body() -> None:
    assert chunk(b"") == b""
    assert chunk(b"x" * 300) == b"12c\r\n" + b"x" * 300 + b"\r\n"


def test_written_heads_are_read_back() -> None:
    responses = ResponseParser()
    fields = [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]
    responses.receive(response_head(200, fields))
    assert responses.head is not None
    assert responses.head.headers == fields
    assert responses.head.reason == b"OK"
    responses = ResponseParser()
    responses.receive(response_head(599, [(b"content-length", b"0")]))
    assert responses.head is not None
    assert responses.head.status == 599
    requests = RequestParser()
    requests.receive(request_head("GET", "/metrics?x=1", [(b"host", b"h")]))
    assert requests.head is not None
    assert (requests.head.method, requests.head.target) == ("GET", "/metrics?x=1")


@pytest.mark.parametrize("over", [0, 1])
def test_a_head_in_one_piece_is_bounded_to_the_byte(over: int) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx: %b\r\n\r\n"
    head %= b"a" * (256 + over - len(head) + 2)
    parser = ResponseParser("POST", Limits(head_bytes=256))
    if over:
        with pytest.raises(ProtocolError) as raised:
            parser.receive(head)
        assert raised.value.status == 502
    else:
        parser.receive(head)
        assert parser.done
