"""What is remembered of heads: it changes no answer, is bounded, and holds no secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.wire import head as heads
from surgetank.wire.head import (
    DEFAULT_LIMITS,
    ProtocolError,
    RequestHead,
    parse_request_head,
    parse_response_head,
)

FIRST = b"POST /v1/chat/completions HTTP/1.1\r\n"
LINES = [
    b"Host: a", b"host: b", b"Accept: */*", b"accept:  */* ", b"Content-Length: 3",
    b"Authorization: Bearer k", b"Connection: close", b"connection: keep-alive", b"accept : x",
    b"Content-Type: application/json", b"X: \x00", b"Transfer-Encoding: chunked", b"User-Agent:",
]  # fmt: skip


def _read(block: bytes) -> RequestHead | tuple[int, str]:
    try:
        return parse_request_head(block, DEFAULT_LIMITS)
    except ProtocolError as error:
        return error.status, error.message


@given(st.lists(st.sampled_from(LINES), max_size=6))
def test_a_head_reads_alike_whether_its_lines_are_known_or_not(lines: list[bytes]) -> None:
    block = FIRST + b"".join(line + b"\r\n" for line in lines)
    heads._known.clear()
    heads._request_line.cache_clear()
    fresh = _read(block)
    assert _read(block) == fresh
    for line in LINES:
        _read(FIRST + b"host: z\r\n" + line + b"\r\n")
    assert _read(block) == fresh


def test_no_line_that_may_hold_a_secret_is_remembered() -> None:
    heads._known.clear()
    heads._request_line.cache_clear()
    named = (b"Authorization", b"Cookie", b"X-Api-Key", b"Proxy-Authorization", b"X-Request-Id")
    block = b"".join(b"%b: secret\r\n" % name for name in named)
    parse_request_head(b"GET /v1/models?key=secret HTTP/1.1\r\nhost: a\r\n" + block, DEFAULT_LIMITS)
    parse_response_head(b"HTTP/1.1 200 OK\r\nset-cookie: secret\r\n", DEFAULT_LIMITS, "POST")
    assert list(heads._known) == [b"host: a"]
    assert heads._request_line.cache_info().currsize == 0


def test_what_is_remembered_is_bounded_in_number_and_size() -> None:
    heads._known.clear()
    for number in range(3 * heads._MOST_KNOWN):
        block = FIRST + b"host: h%d\r\nuser-agent: %b\r\n" % (number, b"x" * 300)
        parse_request_head(block, DEFAULT_LIMITS)
        assert len(heads._known) <= heads._MOST_KNOWN
    assert max(map(len, heads._known)) <= heads._LONGEST_KNOWN


@pytest.mark.parametrize("line", [b"host: a\r\x00", b"accept: x\ny: z", b"host : a"])
def test_a_malformed_line_is_refused_also_the_second_time(line: bytes) -> None:
    for _ in range(2):
        with pytest.raises(ProtocolError):
            parse_request_head(FIRST + line + b"\r\n", DEFAULT_LIMITS)
    assert line not in heads._known
