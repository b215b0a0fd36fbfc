"""A request whose head repeats the one before is read exactly as if it were the first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.wire.http1 import Limits, ProtocolError, RequestHead, RequestParser


def request(body: bytes = b"{}", length: bytes | None = None, more: bytes = b"") -> bytes:
    """One request; its Content-Length stands between other fields."""
    told = b"%d" % len(body) if length is None else length
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: %b\r\n"
        b"authorization: Bearer k\r\n%b\r\n%b" % (told, more, body)
    )


Read = tuple[RequestHead | None, bytes, bytes, bool] | tuple[int, str]


def read(parser: RequestParser, data: bytes) -> Read:
    """What one read gives: head, body, what came after it and whether it is all, or the error."""
    try:
        body = parser.receive(data)
    except ProtocolError as error:
        return error.status, error.message
    return parser.head, body, parser.excess, parser.done


def after_one(limits: Limits | None = None) -> RequestParser:
    """Make a parser that has read one request."""
    parser = RequestParser(limits or Limits())
    parser.receive(request())
    parser.reset()
    return parser


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_lengths_may_differ_and_every_field_is_as_sent(bodies: list[bytes]) -> None:
    parser = after_one()
    for body in bodies:
        data = request(body)
        assert read(parser, data) == read(RequestParser(), data)
        assert parser.repeats
        head = parser.head
        assert head is not None
        assert dict(head.headers)[b"content-length"] == b"%d" % len(body)
        parser.reset()


@given(
    st.integers(0, len(request()) - 1), st.binary(min_size=1, max_size=1), st.sampled_from([0, 1])
)
def test_a_byte_that_differs_is_judged_as_in_a_first_request(
    at: int, value: bytes, left_out: int
) -> None:
    data = request()
    changed = data[:at] + value + data[at + left_out :]
    assert read(after_one(), changed) == read(RequestParser(), changed)


@given(st.integers(0, len(request(b"abc" * 9))))
def test_a_request_in_two_reads_is_whole_after_the_second(cut: int) -> None:
    data = request(b"abc" * 9)
    again, first = after_one(), RequestParser()
    for part in (data[:cut], data[cut:]):
        assert read(again, part) == read(first, part)
    assert again.done


@pytest.mark.parametrize(
    "length", [b"", b" ", b"+2", b"-2", b"2 ", b"0x2", b"2,2", b"2_0", b"9" * 19, b"9" * 20, b"02"]
)
def test_a_length_is_as_strict_as_in_a_first_request(length: bytes) -> None:
    data = request(b"{}", length)
    assert read(after_one(), data) == read(RequestParser(), data)


def test_a_second_length_is_refused_as_ever() -> None:
    data = request(more=b"content-length: 2\r\n")
    assert read(after_one(), data) == (400, "more than one content-length header")


def test_a_body_over_the_limit_is_refused_as_ever() -> None:
    limits = Limits(body_bytes=10)
    data = request(b"x" * 11)
    assert read(after_one(limits), data) == (413, "the body is over 10 bytes")


def test_bytes_that_follow_a_part_of_a_head_are_no_new_request() -> None:
    data = request()
    again, first = after_one(), RequestParser()
    for part in (b"POST /v1/models HTTP/1.1\r\nx: ", data):
        assert read(again, part) == read(first, part)


def test_a_pipelined_request_is_left_to_be_fed_again() -> None:
    parser = after_one()
    assert parser.receive(request(b"1") + request(b"22")) == b"1"
    data, parser.excess = parser.excess, b""
    parser.reset()
    assert parser.receive(data) == b"22"
    assert parser.repeats


def test_a_head_that_was_forgotten_is_read_anew() -> None:
    parser = after_one()
    parser.forget()
    assert parser.receive(request()) == b"{}"
    assert not parser.repeats


def test_heads_that_differ_each_time_are_not_remembered_for_ever() -> None:
    parser = RequestParser()
    for number in range(5):
        parser.receive(request(more=b"x-request-id: %d\r\n" % number))
        parser.reset()
    parser.receive(request(more=b"x-request-id: 4\r\n"))
    assert not parser.repeats
