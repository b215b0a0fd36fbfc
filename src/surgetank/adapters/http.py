"""A small HTTP/1.1 client for probes and scrapes.

Rule: one request, one connection, closed in every ending; never longer than its timeout, never more
body than its bound, and every failure is a FetchError of one line.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from surgetank.wire.http1 import Limits, ProtocolError, ResponseParser, request_head

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_READ: Final = 1 << 16
_CLEAN: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")  # a header value: no CR, LF or NUL
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(r"[\x21-\x7e]+")


class FetchError(Exception):
    """The request got no usable answer; the message is one line that names the URL."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How an https peer proves who it is. `server_name`: None takes the host of its URL."""

    context: ssl.SSLContext
    server_name: str | None = None


def tls(ca_file: str | None = None, server_name: str | None = None, *, verify: bool = True) -> Tls:
    """Trust the authorities of a PEM file, or the system's. Raises OSError (ssl.SSLError too)."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return Tls(context, server_name)


_system_tls: Final = lru_cache(maxsize=1)(tls)


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. Header names are lower-cased, as they came otherwise."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a header (lower-case name), or None."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def text(self) -> str:
        """The body as UTF-8; what is not becomes U+FFFD."""
        return self.body.decode("utf-8", "replace")


async def fetch(
    url: str,
    *,
    timeout: float,  # noqa: ASYNC109 - the bound covers connecting, and belongs to this contract
    headers: Iterable[tuple[bytes, bytes]] = (),
    method: str = "GET",
    body: bytes = b"",
    max_body: int = 8 << 20,
    tls: Tls | None = None,
) -> Response:
    """Send one request and read its whole answer within `timeout` seconds.

    Any status is an answer; redirects are not followed. `max_body` bounds the answer in bytes.
    `tls`: for an https URL, where the system's authorities are not to be trusted.
    Raises FetchError: a URL that is not http(s), refused, reset, timed out, too long or not HTTP.
    """
    scheme, host, port, authority, target = _split(url)
    trust = None if scheme == "http" else tls or _system_tls()
    sent = _headers(url, authority, headers)
    if not _TOKEN.fullmatch(method.encode()):
        raise FetchError(f"{url}: {method!r} is no HTTP method")
    if body or method in {"POST", "PUT", "PATCH"}:
        sent.append((b"content-length", str(len(body)).encode()))
    head = request_head(method, target, sent)
    with _errors_of(url, timeout):
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(
                host,
                port,
                ssl=None if trust is None else trust.context,
                server_hostname=None if trust is None else trust.server_name or host,
            )
            try:
                writer.write(head + body)
                return await _read(reader, method, max_body)
            finally:
                writer.transport.abort()  # no lingering close: the answer is here, or of no use


async def _read(reader: asyncio.StreamReader, method: str, max_body: int) -> Response:
    parser = ResponseParser(method, Limits(body_bytes=max_body))
    received = bytearray()
    while not parser.done:
        data = await reader.read(_READ)
        if not data:
            parser.eof()
            break
        received += parser.receive(data)
        if len(received) > max_body:
            raise ProtocolError(413, f"the body is longer than {max_body} bytes")
    if parser.head is None:
        raise ProtocolError(502, "the connection closed before an answer")
    return Response(parser.head.status, tuple(parser.head.headers), bytes(received))


@contextmanager
def _errors_of(url: str, timeout: float) -> Iterator[None]:
    """Turn whatever ends a request early into a FetchError."""
    try:
        yield
    except TimeoutError as error:
        raise FetchError(f"{url}: no answer within {timeout:g} s") from error
    except ProtocolError as error:
        raise FetchError(f"{url}: not a usable HTTP answer: {error}") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA refuses
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FetchError(f"{url}: {' '.join(reason.split())}") from error


def _split(url: str) -> tuple[str, str, int, str, str]:
    """Scheme, host, port, Host header and request target of a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise FetchError(f"{url!r}: not a URL: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise FetchError(f"{url!r}: must begin with http:// or https://")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise FetchError(f"{url!r}: must be http://HOST[:PORT][/PATH] without a user name")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(target) or not _TARGET.fullmatch(parts.netloc):
        raise FetchError(f"{url!r}: holds characters that must be percent-encoded")
    return parts.scheme, parts.hostname, port, parts.netloc, target


def _headers(
    url: str, authority: str, headers: Iterable[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    sent = [(b"host", authority.encode()), (b"connection", b"close"), (b"accept", b"*/*")]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _CLEAN.fullmatch(value):
            raise FetchError(f"{url}: the header {name!r} holds a character HTTP forbids")
        sent.append((name, value))
    return sent
