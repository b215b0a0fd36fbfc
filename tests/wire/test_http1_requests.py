"""Requests are read strictly: what two readers could frame in two ways is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surgetank.wire.http1 import Limits, ProtocolError, RequestParser

H = b"Host: h\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + H
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def status_of(data: bytes, limits: Limits | None = None) -> int | None:
    """Tell the status of the refusal, the same whole and byte by byte; None: accepted so far."""
    statuses = set()
    for step in (len(data) or 1, 1):
        parser = RequestParser(limits or Limits())
        status = None
        try:
            for at in range(0, len(data), step):
                parser.receive(data[at : at + step])
        except ProtocolError as error:
            status = error.status
        statuses.add(status)
    assert len(statuses) == 1, statuses
    return statuses.pop()


CORPUS = Path(__file__).parents[1] / "data" / "smuggling" / "requests.json"
REFUSED = [
    pytest.param(case["bytes"].encode("latin-1"), case["status"], id=case["name"])
    for case in json.loads(CORPUS.read_text())
]


@pytest.mark.parametrize(("data", "status"), REFUSED)
def test_what_could_be_read_in_two_ways_is_refused_whole_and_byte_by_byte(
    data: bytes, status: int
) -> None:
    assert status_of(data) == status


def test_limits_are_kept_to_the_byte() -> None:
    head = b"GET / HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n"
    assert status_of(head, Limits(head_bytes=len(head))) is None
    assert status_of(head, Limits(head_bytes=len(head) - 1)) == 431
    assert status_of(head, Limits(header_count=2)) is None
    assert status_of(head, Limits(header_count=1)) == 431
    assert status_of(b"GET /" + b"a" * 100, Limits(head_bytes=100)) == 431
    sized = POST + b"Content-Length: 4\r\n\r\n"
    assert status_of(sized, Limits(body_bytes=4)) is None
    assert status_of(sized, Limits(body_bytes=3)) == 413
    assert status_of(CHUNKED + b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", Limits(body_bytes=4)) is None
    assert status_of(CHUNKED + b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n", Limits(body_bytes=3)) == 413
    trailer = b"0\r\nX: " + b"y" * 300 + b"\r\n\r\n"
    assert status_of(CHUNKED + trailer, Limits(head_bytes=320)) is None
    assert status_of(CHUNKED + trailer, Limits(head_bytes=200)) == 431
    assert status_of(CHUNKED + b"0\r\nA: b\r\nC: d\r\n\r\n", Limits(header_count=3)) is None
    assert status_of(CHUNKED + b"0\r\n" + b"A: b\r\n" * 4 + b"\r\n", Limits(header_count=3)) == 431


def test_an_announced_body_over_the_limit_is_refused_before_any_byte_of_it() -> None:
    parser = RequestParser(Limits(body_bytes=10))
    with pytest.raises(ProtocolError) as caught:
        parser.receive(POST + b"Content-Length: 11\r\nExpect: 100-continue\r\n\r\n")
    assert caught.value.status == 413
    assert parser.head is not None


def test_a_head_says_all_that_matters() -> None:
    parser = RequestParser()
    body = parser.receive(
        b"PoST /v1/../x%2F?q=1?2 HTTP/1.1\r\nHOST:  h:80 \r\nX-A:\t b c \t\r\nX-A: d\r\nEmpty:\r\n"
        b"Content-Length: 2\r\nExpect: 100-Continue\r\nConnection: x, CLOSE\r\n\r\n"
    )
    head = parser.head
    assert body == b""
    assert head is not None
    assert (head.method, head.target, head.path) == ("PoST", "/v1/../x%2F?q=1?2", "/v1/../x%2F")
    assert (head.version_minor, head.content_length, head.chunked) == (1, 2, False)
    assert head.expect_continue
    assert not head.keep_alive
    assert head.get(b"host") == b"h:80"
    assert head.get(b"x-a") == b"b c"
    assert head.get(b"empty") == b""
    assert head.get(b"none") is None
    assert [parser.done, parser.receive(b"ok"), parser.done] == [False, b"ok", True]


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: keep-alive\r\n", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: keep-alive\r\nConnection: x ,Close\r\n", False),
        (b"1.1", b"Connection: closed\r\n", True),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
        (b"1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_whether_the_connection_is_kept(version: bytes, connection: bytes, *, kept: bool) -> None:
    parser = RequestParser()
    parser.receive(b"GET / HTTP/" + version + b"\r\n" + H + connection + b"\r\n")
    assert parser.head is not None
    assert parser.head.keep_alive is kept
    assert parser.done


def test_100_continue_is_asked_for_only_with_a_body_and_in_1_1() -> None:
    for head, asked in [
        (POST + b"Content-Length: 0\r\nExpect: 100-continue\r\n\r\n", False),
        (POST + b"Expect: 100-continue\r\n\r\n", False),
        (POST + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", True),
        (b"POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n", False),
    ]:
        parser = RequestParser()
        parser.receive(head)
        assert parser.head is not None
        assert parser.head.expect_continue is asked


def test_a_packed_body_is_refused_in_words_before_it_is_taken_for_broken_json() -> None:
    for said, status in ((b"gzip", 415), (b"br, gzip", 415), (b"Identity", None), (b"", None)):
        head = POST + b"Content-Length: 1\r\nContent-Encoding: " + said + b"\r\n\r\nx"
        assert status_of(head) == status


def test_one_empty_line_before_a_request_is_skipped_and_does_not_start_it() -> None:
    parser = RequestParser()
    seen = []
    for data in (b"\r\n", b"GET / HT", b"TP/1.1\r\nHost: h\r\n\r\n"):
        parser.receive(data)
        seen.append((parser.started, parser.done))
    assert seen == [(False, False), (True, False), (True, True)]


def test_an_empty_line_may_come_in_one_read_with_the_request() -> None:
    assert status_of(b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n") is None
    parser = RequestParser()
    parser.receive(b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert parser.done


@pytest.mark.parametrize("start", [b"\n", b"\x16", b"GET / HTTP/1.1\n", b"GET\r ", b"GET /\r\n"])
def test_what_can_begin_no_request_is_not_waited_for(start: bytes) -> None:
    with pytest.raises(ProtocolError):
        RequestParser().receive(start)


def test_pipelined_messages_come_out_one_by_one() -> None:
    first = POST + b"Content-Length: 2\r\n\r\nab"
    second = CHUNKED + b"1\r\nc\r\n0\r\nX: y\r\n\r\n"
    third = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
    parser = RequestParser()
    bodies = []
    data = first + second + third + b"GET"
    while True:
        body = parser.receive(data)
        if not parser.done:
            break
        bodies.append(body)
        parser.reset()
        data = parser.excess
    assert bodies == [b"ab", b"c", b""]
    assert parser.started
    assert parser.excess == b""


def test_bytes_after_a_finished_message_gather_until_it_is_forgotten() -> None:
    parser = RequestParser()
    parser.receive(POST + b"\r\n")
    assert parser.done
    assert parser.receive(b"GE") == b""
    assert parser.receive(b"T") == b""
    assert parser.excess == b"GET"
    assert parser.head is not None
    assert parser.head.method == "POST"


def test_an_error_is_final() -> None:
    parser = RequestParser()
    for data in (b"nonsense\r\n", POST + b"\r\n"):
        with pytest.raises(ProtocolError) as caught:
            parser.receive(data)
        assert caught.value.status == 400


def test_an_error_names_the_field_by_position_and_not_by_its_bytes() -> None:
    parser = RequestParser()
    with pytest.raises(
        ProtocolError, match="header field 2 has a space before its colon"
    ) as caught:
        parser.receive(POST + b"Authorization : Bearer secret\r\n\r\n")
    assert "secret" not in str(caught.value)
