"""Message heads of HTTP/1.1: two regular expressions say whether a head is well formed.

Rule: what two readers could take for two different messages is refused, never repaired (RFC 9112
section 11.2). Requests raise with the status to answer, responses with 502.

Peers repeat themselves: the lines of a few fields, and first lines, are read once and known from
then on (`_known`, `_request_line`), in bounded memory. No line of a request that may hold a secret
is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple


class ProtocolError(Exception):
    """The peer broke HTTP: `status` is what to answer (502 when the peer is an upstream)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a peer may make us hold or read.

    `head_bytes` bounds a head, and a trailer section, with its blank line (431).
    `header_count` bounds the fields of either (431).
    `body_bytes` bounds a decoded request body (413); responses are bounded by who keeps them.
    `chunk_line_bytes` bounds a chunk-size line with its extensions (400).
    """

    head_bytes: int = 32_768
    header_count: int = 100
    body_bytes: int = 16 << 20
    chunk_line_bytes: int = 256


DEFAULT_LIMITS: Final = Limits()

Headers = list[tuple[bytes, bytes]]


class RequestHead(NamedTuple):
    """A request's head. Header names are lower-cased and values stripped; the target is as sent.

    `headers` are all fields in their order, `fields` the first of each name (Connection: all).
    `lines` are the fields as sent: `headers` is made of them only for who asks.

    A tuple: a frozen dataclass of nine fields takes 1 us more to make, an eighth of the parsing.
    """

    method: str
    target: str
    path: str
    version_minor: int
    lines: list[bytes]
    keep_alive: bool
    content_length: int | None
    chunked: bool
    expect_continue: bool
    fields: dict[bytes, bytes]

    @property
    def headers(self) -> Headers:
        return _pairs(self.lines)

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of the field `name` (lower case)."""
        return self.fields.get(name)


class ResponseHead(NamedTuple):
    """A response's head. `keep_alive` is False too when only the connection's end ends the body."""

    status: int
    reason: bytes
    version_minor: int
    lines: list[bytes]
    keep_alive: bool
    content_length: int | None
    chunked: bool
    fields: dict[bytes, bytes]

    @property
    def headers(self) -> Headers:
        return _pairs(self.lines)

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of the field `name` (lower case)."""
        return self.fields.get(name)


_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_FIELD: Final = re.compile(_TOKEN + rb"++:[\t -~\x80-\xff]*+")
_REQUEST: Final = re.compile(rb"(" + _TOKEN + rb'++) (/[!"$-~]*+) HTTP/1\.([01])')
_RESPONSE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\t -~\x80-\xff]*+))?")
_REQUEST_LINE: Final = re.compile(
    _TOKEN + rb"+ (?P<target>[^ ]+) HTTP/(?P<major>[0-9])\.(?P<minor>[0-9])"
)
_HOST: Final = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]+")
_NEVER_IN_A_HEAD: Final = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[^\r]\n|^\n|\r[^\n]"  # controls, bare LF, bare CR
)
# Authorization too: a proxy may have judged the one, and we would believe the other.
_REQUEST_CONTROLS: Final = frozenset(
    b"content-length transfer-encoding connection host expect authorization x-api-key".split()
)
_RESPONSE_CONTROLS: Final = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_FORBIDDEN_TRAILERS: Final = frozenset(
    b"authorization cache-control connection content-encoding content-length content-range "
    b"content-type cookie expect host keep-alive location max-forwards pragma proxy-authorization "
    b"range set-cookie te trailer transfer-encoding upgrade www-authenticate x-api-key".split()
)
_REPEATED: Final = frozenset(
    b"accept accept-encoding accept-language cache-control connection content-length content-type "
    b"date host server transfer-encoding user-agent vary x-accel-buffering x-stainless-arch "
    b"x-stainless-async x-stainless-lang x-stainless-os x-stainless-package-version "
    b"x-stainless-read-timeout x-stainless-retry-count x-stainless-runtime "
    b"x-stainless-runtime-version".split()
)
_MOST_KNOWN: Final = 1024  # lines; with the longest ones half a megabyte
_LONGEST_KNOWN: Final = 200  # bytes
_SHORT_HEAD: Final = 600  # bytes
_LONGEST_REPEATED: Final = 2048  # bytes of a head that a connection remembers
_known: Final[dict[bytes, tuple[bytes, bytes]]] = {}  # well-formed lines of _REPEATED fields
# __new__ of a named tuple is a Python function: on the hot path they are made by their base's.
_new: Final = tuple.__new__
BAD_REQUEST: Final = 400
BAD_UPSTREAM: Final = 502
_LENGTH_DIGITS: Final = 19  # what fits a signed 64-bit integer


class HeadBuffer:
    """Collects a head (or a trailer section) up to its blank line, in any pieces.

    `status` is what a malformed one raises with: 400, or 502 for an upstream's. `skip_blank`
    skips one empty line before a request (RFC 9112 section 2.2).
    """

    __slots__ = ("_blank_allowed", "_held", "_limit", "_skip_blank", "_status")

    def __init__(self, limit: int, status: int, *, skip_blank: bool) -> None:
        self._held = bytearray()
        self._limit = limit
        self._status = status
        self._skip_blank = self._blank_allowed = skip_blank

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the head with its last line's CRLF, and the bytes after it; None: not all there.

        What can be no part of a head is refused at once, so that a peer that speaks TLS, or ends
        its lines with a bare LF, is not waited for.
        """
        held = self._held
        if not held and data[:1] != b"\r":
            end = data.find(b"\r\n\r\n")  # most heads come in one piece: no copy into the buffer
            if 0 <= end <= self._limit - 4:
                return data[: end + 2], data[end + 4 :]
        seen = len(held)
        held += data
        if self._skip_blank and len(held) > 1:
            self._skip_blank = False
            if held.startswith(b"\r\n"):
                del held[:2]
                seen = 0
        end = held.find(b"\r\n\r\n", max(0, seen - 3))
        if end + 4 > self._limit or (end < 0 and len(held) > self._limit):
            raise ProtocolError(_too_large(self._status), "the head is too large")
        if end < 0:
            if _NEVER_IN_A_HEAD.search(held, max(0, seen - 1)):
                raise ProtocolError(self._status, "a control byte, bare CR or bare LF in the head")
            return None
        block, rest = bytes(held[: end + 2]), bytes(held[end + 4 :])
        held.clear()
        self._skip_blank = self._blank_allowed
        return block, rest

    def first_line(self) -> bytes | None:
        """Return the first line of what is held, without its CRLF, once it is whole."""
        end = self._held.find(b"\r\n")
        return None if end < 0 else bytes(self._held[:end])


def parse_request_head(block: bytes, limits: Limits) -> RequestHead:
    """Read a head that ends with the CRLF of its last field."""
    lines = block.split(b"\r\n")
    lines.pop()
    line = lines.pop(0)
    first = _request_line(line) if b"?" not in line else _read_request_line(line)
    if first is None:
        raise _fault_of_request(block)
    named = _by_name(lines, limits.header_count, _REQUEST_CONTROLS, BAD_REQUEST)
    if named is None:
        raise _fault_of_request(block)
    method, target, path, version_minor = first
    host = named.get(b"host")
    if host is None:
        if version_minor:
            raise ProtocolError(400, "HTTP/1.1 needs a Host header")
    elif not _is_host(host):
        raise ProtocolError(400, "malformed Host header")
    content_length, chunked = _framing(named, version_minor, BAD_REQUEST)
    expect = named.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise ProtocolError(417, "Expect can only be 100-continue")
    encoding = named.get(b"content-encoding")
    if encoding and encoding.lower() != b"identity":
        raise ProtocolError(415, "Content-Encoding is not taken: send the body as it is")
    connection = named.get(b"connection")
    fields = (
        method,
        target,
        path,
        version_minor,
        lines,
        version_minor == 1 if connection is None else _keep_alive(connection, version_minor),
        content_length,
        chunked,
        expect is not None and version_minor == 1 and (chunked or bool(content_length)),
        named,
    )
    return _new(RequestHead, fields)


class RepeatedHead:
    """The last head of a connection: clients send one like it again, but for the body's length.

    What is compared is every byte but the digits of Content-Length, so what was strict about the
    head before holds for this one. It may hold a secret, as its connection does.
    """

    __slots__ = ("_after", "_before", "_digits", "_head", "_line")

    def __init__(self, before: bytes, after: bytes, head: RequestHead, line: int) -> None:
        self._before = before
        self._after = after
        self._head = head
        self._line = line  # which of the lines has the length
        self._digits = head.fields[b"content-length"]

    @classmethod
    def of(cls, block: bytes, head: RequestHead, limits: Limits) -> RepeatedHead | None:
        """Remember a head that was read from `block`; None when it is of another kind."""
        digits = head.fields.get(b"content-length")
        if digits is None or b"expect" in head.fields or len(block) > _LONGEST_REPEATED:
            return None
        if len(block) + _LENGTH_DIGITS > limits.head_bytes:
            return None
        for number, line in enumerate(head.lines):
            if line[:15].lower() == b"content-length:" and line.endswith(digits):
                end = block.index(b"\r\n%b\r\n" % line) + 2 + len(line)
                return cls(block[: end - len(digits)], block[end:] + b"\r\n", head, number)
        return None

    def read(self, data: bytes) -> tuple[RequestHead, int, int] | None:
        """Return head, length of the body and where it begins, when all of it is in `data`."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        begin = len(before)
        end = data.find(b"\r", begin, begin + _LENGTH_DIGITS + 1)
        digits = data[begin:end]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end):
            return None
        length, at = int(digits), end + len(after)
        if at + length > len(data):
            return None
        head = self._head
        if digits != self._digits:
            lines, fields = head.lines.copy(), head.fields.copy()
            line = lines[self._line]
            lines[self._line] = line[: -len(self._digits)] + digits
            fields[b"content-length"] = digits
            head = head._replace(content_length=length, lines=lines, fields=fields)
        return head, length, at


def parse_response_head(block: bytes, limits: Limits, method: str) -> ResponseHead:
    """Read a head that ends with the CRLF of its last field; `method` is what was asked.

    A short head that came before is known as a whole: engines answer alike within a second.
    """
    read = _short_response_head if len(block) <= _SHORT_HEAD else _read_response_head
    return read(block, limits.header_count, method)


def _read_response_head(block: bytes, most: int, method: str) -> ResponseHead:
    lines = block.split(b"\r\n")
    lines.pop()
    first = _status_line(lines.pop(0))
    if first is None:
        raise _fault_of_response(block)
    named = _by_name(lines, most, _RESPONSE_CONTROLS, BAD_UPSTREAM)
    if named is None:
        raise _fault_of_response(block)
    version_minor, status, reason = first
    content_length, chunked = _framing(named, version_minor, BAD_UPSTREAM)
    if status in (204, 304) or status < 200 or method == "HEAD":
        content_length, chunked = 0, False
    connection = named.get(b"connection")
    keep_alive = (
        version_minor == 1 if connection is None else _keep_alive(connection, version_minor)
    )
    framed = chunked or content_length is not None
    fields = (
        status,
        reason,
        version_minor,
        lines,
        keep_alive and framed,
        content_length,
        chunked,
        named,
    )
    return _new(ResponseHead, fields)


def check_request_line(line: bytes) -> None:
    """Refuse a first line that can begin no request, before the rest of the head is there."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise ProtocolError(400, "malformed request line")
    if match["major"] != b"1" or match["minor"] not in (b"0", b"1"):
        raise ProtocolError(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    if not match["target"].startswith(b"/"):
        raise ProtocolError(400, "the request target must be a path")


def check_trailers(block: bytes, limits: Limits, status: int) -> None:
    """Refuse trailers that are malformed or would change how the message is read."""
    lines = block.split(b"\r\n")
    lines.pop()
    if not all(map(_FIELD.fullmatch, lines)):
        raise ProtocolError(status, _fault_of_fields(b"\r\n" + block) or "malformed trailer")
    if len(lines) > limits.header_count:
        raise _too_many(limits.header_count, status)
    for name, _ in _pairs(lines):
        if name in _FORBIDDEN_TRAILERS:
            raise ProtocolError(status, f"{name.decode('ascii')} is not allowed in a trailer")


def _read_request_line(line: bytes) -> tuple[str, str, str, int] | None:
    """Read method, target, path and minor version; None when it is malformed."""
    match = _REQUEST.fullmatch(line)
    if match is None:
        return None
    method, target, minor = match.groups()
    text = target.decode("ascii")
    return method.decode("ascii"), text, text.partition("?")[0], int(minor)


# What comes from outside and is remembered is bounded: the least used goes first.
_short_response_head = lru_cache(maxsize=256)(_read_response_head)
_request_line = lru_cache(maxsize=64)(_read_request_line)  # not for queries: they may hold a key


@lru_cache(maxsize=64)
def _status_line(line: bytes) -> tuple[int, int, bytes] | None:
    """Read minor version, status and reason; None when it is malformed."""
    match = _RESPONSE.fullmatch(line)
    if match is None:
        return None
    minor, code, reason = match.groups()
    return int(minor), int(code), reason or b""


@lru_cache(maxsize=64)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _field(line: bytes) -> tuple[bytes, bytes] | None:
    """Read one field's name and value, and remember what may be; None when it is malformed."""
    if not _FIELD.fullmatch(line):
        return None
    # strip() of all white space: a value was seen to hold none but blanks and tabs.
    name, value = line.split(b":", 1)
    field = name.lower(), value.strip()
    if field[0] in _REPEATED and len(line) <= _LONGEST_KNOWN:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[line] = field
    return field


def _pairs(lines: list[bytes]) -> Headers:
    return [
        (name.lower(), value.strip()) for line in lines for name, value in (line.split(b":", 1),)
    ]


def _by_name(
    lines: list[bytes], most: int, controls: frozenset[bytes], status: int
) -> dict[bytes, bytes] | None:
    """Index fields by name, the first of each; None when a line is malformed.

    Of `controls`, which decide where a message ends or whose it is, only Connection may come more
    than once: it is joined.
    """
    fields: list[Any] = list(map(_known.get, lines))
    at = -1
    for _ in range(fields.count(None)):
        at = fields.index(None, at + 1)
        field = fields[at] = _field(lines[at])
        if field is None:
            return None
    found: dict[bytes, bytes] = {name: value for name, value in fields}  # noqa: C416 - twice as fast
    if len(lines) > most:
        raise _too_many(most, status)
    if len(found) == len(lines):
        return found
    found.clear()
    for name, value in _pairs(lines):
        if name not in found:
            found[name] = value
        elif name == b"connection":
            found[name] += b"," + value
        elif name in controls:
            raise ProtocolError(status, f"more than one {name.decode('ascii')} header")
    return found


def _framing(named: dict[bytes, bytes], minor: int, status: int) -> tuple[int | None, bool]:
    length = named.get(b"content-length")
    coding = named.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise ProtocolError(status, "both Content-Length and Transfer-Encoding")
        if not minor:
            raise ProtocolError(status, "Transfer-Encoding in HTTP/1.0")
        if (coding if status == BAD_REQUEST else coding.lower()) != b"chunked":
            raise ProtocolError(status, "Transfer-Encoding can only be chunked")
        return None, True
    if length is None:
        return None, False
    if not length.isdigit() or len(length) > _LENGTH_DIGITS:
        raise ProtocolError(status, "Content-Length must be a plain decimal number")
    return int(length), False


def _keep_alive(connection: bytes, minor: int) -> bool:
    if connection in {b"keep-alive", b"close"}:
        return connection == b"keep-alive"
    options = {option.strip(b" \t") for option in connection.lower().split(b",")}
    if b"close" in options:
        return False
    return minor == 1 or b"keep-alive" in options


def _too_large(status: int) -> int:
    return 431 if status == BAD_REQUEST else status


def _too_many(most: int, status: int) -> ProtocolError:
    return ProtocolError(_too_large(status), f"more than {most} header fields")


def _fault_of_request(block: bytes) -> ProtocolError:
    line = block.partition(b"\r\n")[0]
    try:
        check_request_line(line)
    except ProtocolError as error:
        return error
    return ProtocolError(400, _fault_of_fields(block) or "malformed request target")


def _fault_of_response(block: bytes) -> ProtocolError:
    return ProtocolError(BAD_UPSTREAM, _fault_of_fields(block) or "malformed status line")


def _fault_of_fields(block: bytes) -> str | None:
    """Tell what is wrong with the first malformed field, by position: it may hold a secret."""
    for number, line in enumerate(block[:-2].split(b"\r\n")[1:], start=1):
        if not _FIELD.fullmatch(line):
            if line[:1] in (b" ", b"\t"):
                return f"header field {number} is folded over lines"
            if line.partition(b":")[0].endswith((b" ", b"\t")):
                return f"header field {number} has a space before its colon"
            return f"header field {number} is malformed"
    return None
