"""Clients that do exactly what they are told, and note every byte of what came back.

A `Line` is one connection, a `Call` one answer expected on it. Rule: a call ends in exactly one
way, however it ends; each wait has a bound and returns whether it came true. Times are the event
loop's seconds.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

from surgetank.wire.http1 import Limits, ProtocolError, ResponseParser

End = Literal["", "whole", "cut", "left", "late", "garbled"]
"""`whole`: as its framing says; `cut`: the server closed before; `left`: we hung up; `late`: it
took longer than the call may take; `garbled`: not HTTP."""

LIMIT: Final = 30.0  # seconds a call may take unless told otherwise
_LIMITS: Final = Limits(body_bytes=1 << 30)
_KEPT: Final = 1 << 20  # bytes of a body that are remembered


class Call:
    """One answer: expected, coming or ended."""

    def __init__(self, line: Line, method: str, limit: float) -> None:
        loop = asyncio.get_running_loop()
        self.line = line
        self.method = method
        self.began = loop.time()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.size = 0  # bytes of the body, also those that were not kept
        self.events: list[str] = []  # of a stream: what stands after `data: `
        self.comments = 0
        self.head_at: float | None = None
        self.event_at: float | None = None  # the first one
        self.ended_at: float | None = None
        self.end: End = ""
        self._part = b""
        self._changed = asyncio.Event()
        self._timer = loop.call_later(limit, self._late)

    # What it was.

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def done(self) -> bool:
        """A stream said [DONE]."""
        return "[DONE]" in self.events

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The error it told of: in its body, or as an event of its stream."""
        texts = self.events if self.streams else [self.body.decode("utf-8", "replace")]
        for text in texts:
            if '"error"' in text:
                said = _json(text)
                error = said.get("error") if isinstance(said, dict) else None
                if isinstance(error, dict):
                    return cast("Mapping[str, Any]", error)
        return None

    @property
    def ok(self) -> bool:
        """It answered the question in full: 200, whole, no error, and [DONE] if it is a stream."""
        if self.status != 200 or self.end != "whole" or self.error is not None:
            return False
        return self.done or not self.streams

    @property
    def json(self) -> Any:
        """The body; None when it is no JSON."""
        return _json(self.body.decode("utf-8", "replace"))

    @property
    def pieces(self) -> int:
        """Events with content."""
        return sum('"content":"' in text.replace(" ", "") for text in self.events)

    @property
    def took(self) -> float:
        """Seconds to its end, or until now."""
        ended = self.ended_at
        return (asyncio.get_running_loop().time() if ended is None else ended) - self.began

    @property
    def shape(self) -> str:
        """In a few words, for evidence: `429 in 0.01 s`."""
        if self.status == 0:
            return f"no answer ({self.end or 'still open'}) in {self.took:.2f} s"
        more = "" if self.end in {"whole", "left"} else f", {self.end or 'still open'}"
        error = ", an error event" if self.streams and self.error is not None else ""
        return f"{self.status}{error}{more} in {self.took:.2f} s"

    # Waiting for it.

    async def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition of this call holds; False when it does not in time."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    if self.end:
                        return condition()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return condition()
        return True

    async def head(self, seconds: float = LIMIT) -> bool:
        """Wait for its head."""
        return await self.until(lambda: self.status != 0, seconds)

    async def event(self, number: int = 1, seconds: float = LIMIT) -> bool:
        """Wait for so many pieces of content."""
        return await self.until(lambda: self.pieces >= number, seconds)

    async def ending(self, seconds: float = LIMIT + 1) -> Call:
        """Wait for its end, whatever it is."""
        await self.until(lambda: bool(self.end), seconds)
        return self

    def leave(self) -> None:
        """Hang up: the connection is reset."""
        self.line.abort()

    # What comes (told by its line).

    def feed(self, parser: ResponseParser, payload: bytes) -> None:
        loop = asyncio.get_running_loop()
        head = parser.head
        if head is not None and self.head_at is None:
            self.head_at = loop.time()
            self.status = head.status
            for name, value in head.headers:
                self.headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        if payload:
            self.size += len(payload)
            if self.streams:
                self._scan(payload)
            elif len(self.body) < _KEPT:
                self.body += payload
        self._changed.set()

    def _scan(self, payload: bytes) -> None:
        whole, _, part = (self._part + payload).rpartition(b"\n\n")
        self._part = part[:_KEPT]
        for block in whole.replace(b"\r\n", b"\n").split(b"\n\n"):
            for line in block.split(b"\n"):
                if line.startswith(b"data:"):
                    self.events.append(line[5:].strip().decode("utf-8", "replace"))
                elif line.startswith(b":"):
                    self.comments += 1
        if self.events and self.event_at is None:
            self.event_at = asyncio.get_running_loop().time()

    def finish(self, end: End) -> None:
        """It has ended; a second end changes nothing."""
        if self.end:
            return
        self._timer.cancel()
        self.end = end
        self.ended_at = asyncio.get_running_loop().time()
        self._changed.set()

    def _late(self) -> None:
        self.finish("late")
        self.line.abort()


class Line(asyncio.Protocol):
    """One connection to the gateway. Answers belong to calls in the order of `expect`."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.raw = bytearray()  # the first bytes that came, as they came
        self._calls: deque[Call] = deque()
        self._parser = ResponseParser("POST", _LIMITS)
        self._transport: asyncio.Transport | None = None

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if len(self.raw) < 4096:
            self.raw += data
        while data and self._calls:
            call, parser = self._calls[0], self._parser
            try:
                payload = parser.receive(data)
            except ProtocolError:
                call.finish("garbled")
                self.abort()
                return
            call.feed(parser, payload)
            if not parser.done:
                return
            data = parser.excess
            self._calls.popleft()
            self._next()
            call.finish("whole")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's call
        self._transport = None
        if self._calls:
            call = self._calls[0]
            try:
                self._parser.eof()
            except ProtocolError:
                call.finish("cut")
            else:
                call.feed(self._parser, b"")
                call.finish("whole")
        for call in self._calls:
            call.finish("cut")
        self._calls.clear()
        self.closed.set()

    # A check's side.

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self._transport is not None:
            self._transport.write(data)

    def expect(self, method: str = "POST", *, limit: float = LIMIT) -> Call:
        """Expect one more answer, from now on. `limit`: seconds it may take."""
        call = Call(self, method, limit)
        self._calls.append(call)
        if len(self._calls) == 1:
            self._next()
        if self._transport is None:
            call.finish("cut")
        return call

    def ask(self, message: bytes, method: str = "POST", *, limit: float = LIMIT) -> Call:
        """Send a whole request, and expect its answer."""
        call = self.expect(method, limit=limit)
        self.write(message)
        return call

    def half_close(self) -> None:
        """Send nothing more, and go on reading."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def pause(self) -> None:
        """Read no more: the kernel's buffers fill, then the gateway's."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Hang up with a reset; what was expected has `left`."""
        for call in self._calls:
            call.finish("left")
        transport = self._transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def close(self) -> None:
        """Close as a browser does: no reset."""
        for call in self._calls:
            call.finish("left")
        if self._transport is not None:
            self._transport.close()

    async def gone(self, seconds: float) -> bool:
        """Wait until the other side has closed."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            return False
        return True

    def _next(self) -> None:
        self._parser.reset(self._calls[0].method if self._calls else "POST")


def post(
    body: object,
    *,
    path: str = "/v1/chat/completions",
    key: str = "",
    headers: Mapping[str, str] | None = None,
    host: str = "gateway",
) -> bytes:
    """Write a request. `body`: bytes as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": host, "content-type": "application/json"}
    if key:
        fields["authorization"] = f"Bearer {key}"
    fields |= headers or {}
    fields["content-length"] = str(len(data))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + data


def get(path: str, *, method: str = "GET", key: str = "", host: str = "gateway") -> bytes:
    """Write a request without a body."""
    more = f"authorization: Bearer {key}\r\n" if key else ""
    return f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n".encode("latin-1")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
