"""One client's connection: requests in, one after the other, and answers out.

Rule: reading never stops while an answer is under way, for only a reader learns at once that its
client has gone.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterable
from email.utils import formatdate
from typing import Final, Protocol, cast

from surgetank.wire.http1 import (
    LAST_CHUNK,
    ProtocolError,
    RequestHead,
    RequestParser,
    chunk,
    response_head,
)

Headers = Iterable[tuple[bytes, bytes]]
_MOST_PIPELINED: Final = 1 << 16  # bytes that may come ahead of the answer under way


class Application(Protocol):
    """What answers the requests."""

    closing: bool
    connections: set[Connection]
    keep_alive: float

    def handle(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        """Answer a request, now or later, through the connection's methods."""


class Connection(asyncio.Protocol):
    """Frames HTTP/1.1 on one socket, and misbehaves where a fault wants it to."""

    def __init__(
        self, application: Application, malformed: Callable[[str], None] = lambda _why: None
    ) -> None:
        """`malformed` is told why, when what came is not HTTP or could be framed in two ways."""
        self._application = application
        self._malformed = malformed
        self._transport: asyncio.Transport | None = None
        self._parser = RequestParser()
        self._body = bytearray()
        self._ahead = b""
        self._busy = False
        self._continued = False
        self._chunked = True
        self._keep_alive = True
        self._held: list[bytes] | None = None
        self._trickle: bytearray | None = None
        self._pause = 0.0
        self._then: Callable[[], None] | None = None
        self._patience: asyncio.TimerHandle | None = None  # how long it may stay idle
        self.on_gone: Callable[[], None] | None = None
        self.gone = asyncio.Event()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._application.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's call
        self._transport = None
        self._stop_waiting()
        self.gone.set()
        self._application.connections.discard(self)
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()

    def data_received(self, data: bytes) -> None:
        self._stop_waiting()
        if self._busy:
            self._ahead += data
            if len(self._ahead) > _MOST_PIPELINED:
                self.vanish()
            return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            self._body += self._parser.receive(data)
        except ProtocolError as error:
            self._busy = True
            self._keep_alive = False
            self._malformed(error.message)
            self.answer(error.status, b"Invalid HTTP request received.", b"text/plain")
            return
        head = self._parser.head
        if head is None:
            return
        if not self._parser.done:
            if head.expect_continue and not self._continued:
                self._continued = True
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body, self._body = bytes(self._body), bytearray()
        self._busy = True
        self._continued = False
        self._chunked = head.version_minor >= 1
        self._keep_alive = head.keep_alive
        self._application.handle(self, head, body)

    # --- answers

    @property
    def idle(self) -> bool:
        """No request is under way."""
        return not self._busy

    def answer(
        self,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Send a whole answer."""
        fields = [
            *self._general(),
            (b"content-length", b"%d" % len(body)),
            (b"content-type", content_type),
            *headers,
            *self._closing(),
        ]
        self._write(response_head(status, fields) + body)
        self._finish()

    def open_stream(self, headers: Headers = ()) -> None:
        """Send the head of a stream of events."""
        self._keep_alive = self._keep_alive and self._chunked
        framing = [(b"transfer-encoding", b"chunked")] if self._chunked else []
        fields = [
            *self._general(),
            (b"content-type", b"text/event-stream; charset=utf-8"),
            *headers,
            *self._closing(),
            *framing,
        ]
        self._write(response_head(200, fields))

    def send(self, event: bytes) -> None:
        """Send a piece of the stream, as a chunk of its own."""
        if event:
            self._write(chunk(event) if self._chunked else event)

    def end_stream(self) -> None:
        """End the stream; the connection is ready for the next request."""
        if self._chunked:
            self._write(LAST_CHUNK)
        self._finish()

    def send_garbage(self, data: bytes) -> None:
        """Send bytes that are no answer, and close."""
        self._keep_alive = False
        self._write(data)
        self._finish()

    def vanish(self, *, reset: bool = False) -> None:
        """Close in the middle, after what was written; `reset` lets the client see an RST."""
        transport = self._transport
        if transport is None:
            return
        if not reset:
            transport.close()
            return
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def hold(self, seconds: float) -> None:
        """Keep back whatever is written for so long."""
        self._held = []
        asyncio.get_running_loop().call_later(seconds, self._let_go)

    def trickle(self, pause: float) -> None:
        """Write byte by byte from now on, `pause` seconds apart, until the answer is out."""
        self._trickle = bytearray()
        self._pause = pause

    # --- its parts

    @staticmethod
    def _general() -> list[tuple[bytes, bytes]]:
        return [(b"date", _date(int(time.time()))), (b"server", b"surgetank-engine")]

    def _closing(self) -> list[tuple[bytes, bytes]]:
        self._keep_alive = self._keep_alive and not self._application.closing
        return [] if self._keep_alive else [(b"connection", b"close")]

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._held is not None:
            self._held.append(data)
        elif self._trickle is not None:
            if not self._trickle:
                asyncio.get_running_loop().call_soon(self._pump)
            self._trickle += data
        else:
            self._transport.write(data)

    def _let_go(self) -> None:
        held, self._held = self._held or [], None
        for data in held:
            self._write(data)
        self._settle()

    def _pump(self) -> None:
        """Write one byte a round of the loop: each is a packet of its own."""
        if self._transport is not None and self._trickle:
            self._transport.write(bytes(self._trickle[:1]))
            del self._trickle[:1]
            if self._trickle:
                asyncio.get_running_loop().call_later(self._pause, self._pump)
        self._settle()

    def _finish(self) -> None:
        self.on_gone = None
        self._then = self._next
        self._settle()

    def _settle(self) -> None:
        """Go on to the next request once every byte was handed to the socket."""
        if self._then is not None and self._held is None and not self._trickle:
            then, self._then = self._then, None
            then()

    def _next(self) -> None:
        self._trickle = None
        if not self._keep_alive or self._application.closing:
            if self._transport is not None:
                self._transport.close()
            return
        self._busy = False
        data, self._ahead = self._parser.excess + self._ahead, b""
        self._parser.reset()
        loop = asyncio.get_running_loop()
        if data:
            loop.call_soon(self.data_received, data)
        else:
            self._patience = loop.call_later(self._application.keep_alive, self.vanish)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


_dates: dict[int, bytes] = {}


def _date(second: int) -> bytes:
    """Format the Date header, once a second."""
    if second not in _dates:
        _dates.clear()
        _dates[second] = formatdate(second, usegmt=True).encode()
    return _dates[second]
