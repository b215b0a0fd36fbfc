"""HTTP/1.1 framing without sockets: bytes in, heads and body bytes out (RFC 9112).

Rule: strict on what comes in. What two readers could frame in two ways is a ProtocolError, and no
body byte is ever held back.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final, NoReturn

from surgetank.wire.chunked import ChunkedDecoder
from surgetank.wire.head import (
    BAD_REQUEST,
    BAD_UPSTREAM,
    DEFAULT_LIMITS,
    HeadBuffer,
    Limits,
    ProtocolError,
    RepeatedHead,
    RequestHead,
    ResponseHead,
    check_request_line,
    parse_request_head,
    parse_response_head,
)

__all__ = [
    "LAST_CHUNK",
    "REASONS",
    "Limits",
    "ProtocolError",
    "RequestHead",
    "RequestParser",
    "ResponseHead",
    "ResponseParser",
    "chunk",
    "request_head",
    "response_head",
    "status_line",
]

LAST_CHUNK: Final = b"0\r\n\r\n"
_MOST_STRANGERS: Final = 4  # heads that differ each time are not worth remembering
_MOST_INTERIM_RESPONSES: Final = 16  # an upstream that sends 1xx for ever is broken


class _Plain:
    """A body that is not chunked: of a known length, or up to the end of the connection.

    It and ChunkedDecoder are fed alike, without a layer between: a call less for every chunk.
    """

    __slots__ = ("done", "excess", "left")

    def __init__(self, length: int | None) -> None:
        self.left = length
        self.done = length == 0
        self.excess = b""

    def feed(self, data: bytes) -> bytes:
        left = self.left
        if left is None:
            return data
        size = len(data)
        if size < left:
            self.left = left - size
            return data
        self.left = 0
        self.done = True
        if size == left:
            return data
        self.excess = data[left:]
        return data[:left]


class RequestParser:
    """Reads the requests of one connection, one after the other.

    After a ProtocolError the connection is of no more use: every later call raises it again. While
    a finished message waits for `reset`, further bytes gather in `excess`: stop reading meanwhile.
    `done`: the message is complete, its body included. `repeats`: its head is, but for the length
    of its body, that of the message before it.
    """

    __slots__ = (
        "_begun", "_body", "_buffer", "_error", "_last", "_limits", "_line_checked", "_size",
        "_strangers", "done", "excess", "head", "repeats",
    )  # fmt: skip

    head: RequestHead | None
    excess: bytes
    done: bool

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._error: ProtocolError | None = None
        self._buffer = HeadBuffer(limits.head_bytes, BAD_REQUEST, skip_blank=True)
        self._last: RepeatedHead | None = None
        self._strangers = 0  # heads in a row that were not the one before
        self.excess = b""
        self.reset()

    @property
    def started(self) -> bool:
        """A byte of the current message was seen (the empty line allowed before it is none)."""
        return self.head is not None or bool(self._buffer)

    def reset(self) -> None:
        """Forget the finished message. `excess` stays for the caller to feed again."""
        self._begun = False  # a part of a head is held
        self._line_checked = False
        self._body: _Plain | ChunkedDecoder | None = None
        self._size = 0
        self.head = None
        self.done = False
        self.repeats = False

    def forget(self) -> None:
        """Keep nothing of the last head: who streams for long asks seldom."""
        self._last = None
        self._strangers = 0

    def receive(self, data: bytes) -> bytes:
        """Return the decoded body bytes of this read; empty while in the head.

        Raises ProtocolError: 400, 413, 415, 417, 431 or 505. On 413 and 417 for an announced body
        `head` may already be set.
        """
        if self._error is not None:
            raise self._error
        try:
            body = self._body
            if self.done or body is not None:
                return self._receive_body(data, body)
            self.excess = b""
            limits, last = self._limits, self._last
            if last is not None and not self._begun:
                again = last.read(data)
                if again is not None and again[1] <= limits.body_bytes:
                    self.head, length, at = again
                    self.done = self.repeats = True
                    self._strangers = 0
                    self.excess = data[at + length :]
                    return data[at : at + length]
            taken = self._buffer.take(data)
            if taken is None:
                self._begun = True
                self._check_first_line()
                return b""
            block, data = taken
            self._begun = False
            head = self.head = parse_request_head(block, limits)
            if self._strangers < _MOST_STRANGERS:
                self._strangers += 1
                self._last = RepeatedHead.of(block, head, limits)
            length = head.content_length or 0
            if length > limits.body_bytes:
                self._refuse_size()
            if length <= len(data) and not head.chunked:  # most requests: all of it is here
                self.done = True
                self.excess = data[length:]
                return data[:length]
            body = ChunkedDecoder(limits, BAD_REQUEST) if head.chunked else _Plain(length)
            self._body = body
            return self._receive_body(data, body)
        except ProtocolError as error:
            self._error = error
            raise

    def _receive_body(self, data: bytes, body: _Plain | ChunkedDecoder | None) -> bytes:
        if body is None or self.done:
            self.excess += data
            return b""
        if not data:
            return b""
        out = body.feed(data)
        self._size += len(out)
        if self._size > self._limits.body_bytes:
            self._refuse_size()
        self.done = body.done
        self.excess = body.excess
        return out

    def _refuse_size(self) -> NoReturn:
        raise ProtocolError(413, f"the body is over {self._limits.body_bytes} bytes")

    def _check_first_line(self) -> None:
        if not self._line_checked:
            line = self._buffer.first_line()
            if line is not None:
                self._line_checked = True
                check_request_line(line)


class ResponseParser:
    """Reads the responses of one connection to an upstream. Errors carry status 502.

    Interim responses (1xx) are swallowed; 101 is an error, since nothing here asks to upgrade.
    `done`: the message is complete, its body included.
    """

    __slots__ = (
        "_begun", "_body", "_buffer", "_error", "_interim", "_limits", "_longest", "_method",
        "done", "excess", "head",
    )  # fmt: skip

    head: ResponseHead | None
    excess: bytes
    done: bool

    def __init__(self, method: str = "POST", limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._error: ProtocolError | None = None
        self._buffer = HeadBuffer(limits.head_bytes, BAD_UPSTREAM, skip_blank=False)
        self._longest = limits.head_bytes - 4  # of a head, without its blank line
        self.excess = b""
        self.reset(method)

    def reset(self, method: str = "POST") -> None:
        """Forget the finished message; the next answers `method`. `excess` stays as it is."""
        self._method = method
        self._begun = False  # a part of a head is held, or may be
        self._body: _Plain | ChunkedDecoder | None = None
        self._interim = 0
        self.head = None
        self.done = False

    @property
    def started(self) -> bool:
        """A byte of the current message was seen."""
        return self.head is not None or bool(self._buffer) or self._interim > 0

    @property
    def boundary(self) -> bool:
        """A chunked body stands exactly between two chunks."""
        body = self._body
        return isinstance(body, ChunkedDecoder) and body.boundary

    def receive(self, data: bytes) -> bytes:
        """Return the decoded body bytes of this read, empty in the head. Raises ProtocolError."""
        if self._error is not None:
            raise self._error
        try:
            if self.done:
                self.excess += data
                return b""
            body = self._body
            if body is None:
                self.excess = b""
                head: ResponseHead | None
                end = -1 if self._begun else data.find(b"\r\n\r\n")
                if 0 < end <= self._longest:  # most heads come in one piece: three calls less
                    head = parse_response_head(data[: end + 2], self._limits, self._method)
                    data = data[end + 4 :]
                    if head.status >= 200:
                        self.head = head
                    else:
                        head, data = self._after_interim(head, data)
                else:
                    head, data = self._read_head(data)
                if head is None:
                    self._begun = True
                    return b""
                length = head.content_length
                if length is not None and length <= len(data):  # all of it is here
                    self.done = True
                    self.excess = data[length:]
                    return data[:length]
                if head.chunked:
                    body = ChunkedDecoder(self._limits, BAD_UPSTREAM)
                else:
                    body = _Plain(length)
                self._body = body
            if not data:
                return b""
            out = body.feed(data)
            if body.done:
                self.done = True
                self.excess = body.excess
            return out
        except ProtocolError as error:
            self._error = error
            raise

    def _read_head(self, data: bytes) -> tuple[ResponseHead | None, bytes]:
        while True:
            taken = self._buffer.take(data)
            if taken is None:
                return None, b""
            block, data = taken
            head = parse_response_head(block, self._limits, self._method)
            if head.status >= 200:
                break
            self._pass_over(head)
        self.head = head
        return head, data

    def _after_interim(self, head: ResponseHead, data: bytes) -> tuple[ResponseHead | None, bytes]:
        self._pass_over(head)
        return self._read_head(data) if data else (None, b"")

    def _pass_over(self, head: ResponseHead) -> None:
        """Take note of an interim response. Raises ProtocolError when there should be none."""
        self._interim += 1
        if head.status == 101 or self._interim > _MOST_INTERIM_RESPONSES:
            raise ProtocolError(BAD_UPSTREAM, f"unexpected status {head.status}")

    def eof(self) -> None:
        """Take note that the upstream closed: ends a body without a length, else ProtocolError."""
        if self._error is not None:
            raise self._error
        body = self._body
        if isinstance(body, _Plain) and body.left is None:
            self.done = True
        if not self.done:
            what = "inside" if self.started else "before"
            self._error = ProtocolError(BAD_UPSTREAM, f"the connection ended {what} the response")
            raise self._error


def chunk(payload: bytes) -> bytes:
    """`payload` as one chunk. An empty one would end the body, so it gives nothing."""
    return b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write a response head with its blank line. Names and values must be clean: no check."""
    return status_line(status) + b"".join([b"%b: %b\r\n" % field for field in headers]) + b"\r\n"


def status_line(status: int) -> bytes:
    """Write the first line of a response, with its CRLF."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def request_head(method: str, target: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write a request head with its blank line. All parts must be clean: no check."""
    line = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    return line + b"".join([b"%b: %b\r\n" % field for field in headers]) + b"\r\n"


REASONS: Final = MappingProxyType(
    {
        100: "Continue",
        200: "OK",
        201: "Created",
        202: "Accepted",
        204: "No Content",
        206: "Partial Content",
        301: "Moved Permanently",
        302: "Found",
        304: "Not Modified",
        307: "Temporary Redirect",
        308: "Permanent Redirect",
        400: "Bad Request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "Not Found",
        405: "Method Not Allowed",
        406: "Not Acceptable",
        408: "Request Timeout",
        409: "Conflict",
        410: "Gone",
        411: "Length Required",
        413: "Content Too Large",
        414: "URI Too Long",
        415: "Unsupported Media Type",
        417: "Expectation Failed",
        422: "Unprocessable Content",
        424: "Failed Dependency",
        426: "Upgrade Required",
        429: "Too Many Requests",
        431: "Request Header Fields Too Large",
        500: "Internal Server Error",
        501: "Not Implemented",
        502: "Bad Gateway",
        503: "Service Unavailable",
        504: "Gateway Timeout",
        505: "HTTP Version Not Supported",
        507: "Insufficient Storage",
        529: "Overloaded",
    }
)
_STATUS_LINES: Final = {
    code: f"HTTP/1.1 {code} {reason}\r\n".encode("ascii") for code, reason in REASONS.items()
}
