"""A streaming HTTP/1.1 client for an OpenAI-compatible endpoint, on raw asyncio protocols.

Rule: it stamps when bytes came, not when somebody got round to reading them, and ends every call
with exactly one outcome. No redirects, no retries, no TLS: what is measured is one attempt.

First token: the first non-empty content of a stream; of a whole answer, its end, since that is
when the client has it. Output tokens are the engine's usage, else the events counted so far (a
stream that broke has no usage). A connection that was kept alive and is closed before the answer's
first byte had gone already when the request was written: such a call is sent once more, on a new
connection (llama.cpp closes after each stream, some 1 ms after its end, though it said keep-alive;
streams that end together leave several connections in that state).
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

from surgetank.errors import InputError
from surgetank.loadtest.outcome import (
    outcome_of_answer,
    outcome_of_status,
    outcome_of_stream,
)
from surgetank.policy.request import Outcome, Usage
from surgetank.wire.http1 import Limits, ProtocolError, ResponseParser, request_head
from surgetank.wire.openai import usage_of
from surgetank.wire.sse import SseOverflow, SseScanner

_CLOCK: Final = time.monotonic  # one clock for sender, client and timerfd
CHAT: Final = "/v1/chat/completions"
_EVENTS: Final = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it goes out. Key and body are kept out of its repr.

    `timeout`: seconds from sending to the end, then it failed; `abandon_after`: seconds until the
    client hangs up on purpose.
    """

    body: bytes = field(repr=False)
    key: str = field(default="", repr=False)
    route: str = CHAT
    timeout: float = 120.0
    abandon_after: float | None = None


@dataclass(slots=True)
class Exchange:
    """What became of one call. Times in monotonic seconds, None: did not happen.

    `begun`: handed to a connection; `sent`: written to it (later than `begun` by the time of a
    connect); `tokens`: output tokens the client saw, or the engine's count when it gave one.
    """

    begun: float
    sent: float | None = None
    first_byte: float | None = None
    first_token: float | None = None
    ended: float | None = None
    status: int = 0
    outcome: Outcome | None = None
    reason: str = ""
    tokens: int = 0
    usage: Usage | None = None
    attempts: int = 1


class Client:
    """Sends calls to one address, with connections of its own that it uses again."""

    def __init__(self, url: str, *, limits: Limits | None = None) -> None:
        """`url`: http://HOST:PORT, with a path prefix if need be. Raises InputError."""
        parts = urlsplit(url)
        try:
            port = parts.port or 80
        except ValueError as error:
            raise InputError(f"{url}: {error}") from error
        if parts.scheme != "http" or not parts.hostname:
            raise InputError(f"{url}: expected http://HOST:PORT")
        self._prefix = parts.path.rstrip("/")
        self._host = parts.netloc.rpartition("@")[2].encode()
        self._pool = _Pool(parts.hostname, port, limits or Limits())

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._pool.open)

    def begin(self, call: Call) -> asyncio.Future[Exchange]:
        """Write the request now if a connection is idle, else connect first; never raises later.

        Cancelling the future hangs up, and so does `close`.
        """
        loop = asyncio.get_running_loop()
        flight = _Flight(call, self._head(call) + call.body, loop)
        self._pool.place(flight)
        return flight.future

    async def send(self, call: Call) -> Exchange:
        """Send one call and wait for its end."""
        return await self.begin(call)

    async def close(self) -> None:
        """Hang up on everything; calls in flight end as abandoned."""
        await self._pool.close()

    def _head(self, call: Call) -> bytes:
        headers = [
            (b"host", self._host),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(call.body)),
        ]
        if call.key:
            headers.append((b"authorization", b"Bearer " + call.key.encode()))
        return request_head("POST", self._prefix + call.route, headers)


class _Pool:
    """The connections to one address: idle ones, and those being made."""

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        self._address = host, port
        self._limits = limits
        self._idle: list[_Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self.open: set[_Connection] = set()

    def place(self, flight: _Flight) -> None:
        """Put a flight on an idle connection at once, or on a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                connection.carry(flight)
                return
        self.connect(flight)

    def connect(self, flight: _Flight) -> None:
        """Put a flight on a new connection."""
        task = asyncio.get_running_loop().create_task(self._connect(flight))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def release(self, connection: _Connection) -> None:
        """Its call is over, and the next may use it."""
        self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """Its socket is gone."""
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        connecting = list(self._connecting)
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        open_now = list(self.open)
        for connection in open_now:
            connection.hang_up(Outcome.ABANDONED, "client closed")
        await asyncio.gather(*(connection.lost for connection in open_now))

    async def _connect(self, flight: _Flight) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self, self._limits), *self._address
            )
        except OSError as error:
            flight.end(Outcome.UPSTREAM_FAILED, f"connect: {type(error).__name__}")
            return
        except asyncio.CancelledError:
            flight.end(Outcome.ABANDONED, "client closed")
            raise
        if flight.future.done():  # timed out, left or cancelled while it was connecting
            self.release(connection)
        else:
            connection.carry(flight)


class _Flight:
    """A call under way: its exchange, its future, and the two timers that may end it."""

    __slots__ = ("_timers", "connection", "exchange", "future", "message")

    def __init__(self, call: Call, message: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self.message = message
        self.exchange = Exchange(_CLOCK())
        self.future: asyncio.Future[Exchange] = loop.create_future()
        self.future.add_done_callback(self._cancelled)
        self.connection: _Connection | None = None
        late = Outcome.REQUEST_TIMEOUT, "client timeout"
        self._timers = [loop.call_later(call.timeout, self._cut, *late)]
        if call.abandon_after is not None:
            left = Outcome.ABANDONED, "client left"
            self._timers.append(loop.call_later(call.abandon_after, self._cut, *left))

    def _cut(self, outcome: Outcome, why: str) -> None:
        if self.connection is not None:
            self.connection.hang_up(outcome, why)
        else:
            self.end(outcome, why)

    def _cancelled(self, future: asyncio.Future[Exchange]) -> None:
        if future.cancelled():
            self._cut(Outcome.ABANDONED, "cancelled")

    def end(self, outcome: Outcome, why: str) -> None:
        """Give the call its one outcome; a second end changes nothing."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        exchange = self.exchange
        if exchange.outcome is not None:
            return
        exchange.outcome = outcome
        exchange.reason = why
        exchange.ended = _CLOCK()
        if not self.future.done():
            self.future.set_result(exchange)


class _Connection(asyncio.Protocol):
    """One socket, one call at a time."""

    def __init__(self, pool: _Pool, limits: Limits) -> None:
        self._pool = pool
        self._parser = ResponseParser("POST", limits)
        self._transport: asyncio.Transport | None = None
        self._flight: _Flight | None = None
        self._scanner: SseScanner | None = None
        self._body = bytearray()
        self._used = 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TCP stream's transport always is one, though uvloop's does not inherit from it.
        self._transport = cast("asyncio.Transport", transport)
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pool.open.add(self)

    def carry(self, flight: _Flight) -> None:
        """Write the call's bytes; the answer comes through `data_received`."""
        assert self._transport is not None  # noqa: S101  (a connection is placed once it is made)
        self._flight = flight
        flight.connection = self
        flight.exchange.sent = _CLOCK()
        self._transport.write(flight.message)

    def hang_up(self, outcome: Outcome, why: str) -> None:
        """Close at once, and end the call this carries with `outcome`."""
        self._end(outcome, why)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        flight = self._flight
        if flight is None:  # nothing was asked: a server that speaks first cannot be trusted
            self.hang_up(Outcome.UPSTREAM_FAILED, "")
            return
        now = _CLOCK()
        exchange = flight.exchange
        try:
            payload = self._parser.receive(data)
            if exchange.first_byte is None:
                exchange.first_byte = now
            if payload:
                self._take(payload, exchange, now)
        except (ProtocolError, SseOverflow) as error:
            self.hang_up(Outcome.UPSTREAM_FAILED, f"protocol: {type(error).__name__}")
            return
        if self._parser.done:
            self._complete(flight)

    def _take(self, payload: bytes, exchange: Exchange, now: float) -> None:
        scanner = self._scanner
        if scanner is None:
            if not self._streams():
                self._body += payload
                return
            scanner = self._scanner = SseScanner()
        scanner.feed(payload)
        if exchange.first_token is None and scanner.content_seen:
            exchange.first_token = now

    def _streams(self) -> bool:
        """Whether the answer is a stream of events (only a 200 can be)."""
        head = self._parser.head
        return (
            head is not None
            and head.status == 200
            and _EVENTS in (head.get(b"content-type") or b"")
        )

    def _complete(self, flight: _Flight) -> None:
        """Judge an answer that ended as its framing says, and use the connection again."""
        head = self._parser.head
        assert head is not None  # noqa: S101  (a complete answer has one)
        keep = head.keep_alive and not self._parser.excess
        self._end(*self._judge(head.status, flight.exchange))
        if keep and self.usable:
            self._parser.reset("POST")
            self._used += 1
            self._pool.release(self)
        elif self._transport is not None:
            self._transport.close()

    def _judge(self, status: int, exchange: Exchange) -> tuple[Outcome, str]:
        if self._streams():
            scanner = self._scanner or SseScanner()
            return outcome_of_stream(done=scanner.done, error=scanner.error)
        body = bytes(self._body)
        if status != 200:
            return outcome_of_status(status, body)
        exchange.usage = usage_of(body)
        if exchange.usage is not None and exchange.usage.output_tokens > 0:
            exchange.first_token = _CLOCK()
        return outcome_of_answer(body)

    def _end(self, outcome: Outcome, why: str) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return
        flight.connection = None
        exchange = flight.exchange
        head = self._parser.head
        exchange.status = 0 if head is None else head.status
        if self._scanner is not None:
            exchange.usage = self._scanner.usage
            exchange.tokens = self._scanner.tokens
        if exchange.usage is not None:
            exchange.tokens = exchange.usage.output_tokens
        self._scanner = None
        self._body.clear()
        flight.end(outcome, why)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._pool.lost(self)
        if not self.lost.done():
            self.lost.set_result(None)
        flight = self._flight
        if flight is None:
            return
        if self._used and flight.exchange.first_byte is None and flight.exchange.attempts == 1:
            self._flight = None
            flight.connection = None
            flight.exchange.attempts = 2
            self._pool.connect(flight)
            return
        try:
            self._parser.eof()
        except ProtocolError:
            self._end(Outcome.UPSTREAM_FAILED, "connection lost")
        else:
            self._complete(flight)
