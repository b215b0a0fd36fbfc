"""One socket of the load client and the call it carries: what came, when, and how it ended.

Rule: it stamps when bytes came, not when somebody got round to reading them, and ends every call
with exactly one outcome.

First token: the first read with content of a stream; of a whole answer, its end, since that is
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
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from surgetank.loadtest import outcome as words
from surgetank.loadtest.outcome import outcome_of_answer, outcome_of_status, outcome_of_stream
from surgetank.policy.gaps import count_gaps
from surgetank.policy.request import Outcome, Usage
from surgetank.policy.retry import Refusal
from surgetank.wire.http1 import Limits, ProtocolError, ResponseHead, ResponseParser
from surgetank.wire.openai import usage_of
from surgetank.wire.retry_after import refusal
from surgetank.wire.sse import SseOverflow, SseScanner

CLOCK: Final = time.monotonic  # one clock for sender, client and timerfd, and all processes
_EVENTS: Final = b"text/event-stream"
_MOST_BODY: Final = 16 << 20  # bytes of a whole answer; more is no completion


@dataclass(slots=True)
class Exchange:
    """What became of one call. Times in monotonic seconds, None: did not happen.

    `begun`: handed to a connection; `sent`: written to it (later than `begun` by the time of a
    connect); `tokens`: output tokens the client saw, or the engine's count when it gave one;
    `gaps`: between tokens, by bin (policy.gaps); `refusal`: what a retry rule needs to know, when
    no answer came or one above 399; `attempts`: 2 when a dead connection had to be replaced.
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
    gaps: dict[int, int] = field(default_factory=dict)
    refusal: Refusal | None = None


class Flight:
    """A call under way: its exchange, who is told of its end, and the timer that may end it."""

    __slots__ = ("_on_end", "_timer", "connection", "exchange", "message")

    def __init__(self, message: bytes, on_end: Callable[[Exchange], None]) -> None:
        self.message = message
        self.exchange = Exchange(CLOCK())
        self.connection: Connection | None = None
        self._on_end: Callable[[Exchange], None] | None = on_end
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        return self._on_end is None

    def limit(self, timeout: float, abandon_after: float | None) -> None:
        """End it after `timeout` seconds as failed, or after `abandon_after` as abandoned."""
        loop = asyncio.get_running_loop()
        if abandon_after is not None and abandon_after < timeout:
            self._timer = loop.call_later(abandon_after, self.cut, Outcome.ABANDONED, words.LEFT)
        else:
            self._timer = loop.call_later(timeout, self._time_out)

    def _time_out(self) -> None:
        exchange = self.exchange
        if exchange.sent is None:
            why = words.NOT_CONNECTED
        else:
            why = words.NO_ANSWER if exchange.first_byte is None else words.MID_ANSWER
        self.cut(Outcome.REQUEST_TIMEOUT, why)

    def cut(self, outcome: Outcome, why: str) -> None:
        """Hang up."""
        if self.connection is not None:
            self.connection.hang_up(outcome, why)
        else:
            self.end(outcome, why)

    def end(self, outcome: Outcome, why: str) -> None:
        """Give the call its one outcome; a second end changes nothing."""
        told, self._on_end = self._on_end, None
        if told is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        exchange = self.exchange
        exchange.outcome = outcome
        exchange.reason = why
        exchange.ended = CLOCK()
        if exchange.refusal is None and exchange.first_byte is None:
            exchange.refusal = Refusal(0)
        told(exchange)


class Owner(Protocol):
    """Who keeps connections, as they see it."""

    def opened(self, connection: Connection) -> None: ...

    def connect(self, flight: Flight) -> None: ...

    def release(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """One socket, one call at a time."""

    def __init__(self, owner: Owner, limits: Limits) -> None:
        self._owner = owner
        self._parser = ResponseParser("POST", limits)
        self._transport: asyncio.Transport | None = None
        self._flight: Flight | None = None
        self._scanner: SseScanner | None = None
        self._moments = array("d")  # reads that brought tokens
        self._before = self._after = b""  # around the content of a chunk like the last one
        self._body = bytearray()
        self._used = 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def peer(self) -> str | None:
        """The address it is connected to, without the port."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return name[0] if isinstance(name, tuple) else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TCP stream's transport always is one, though uvloop's does not inherit from it.
        self._transport = cast("asyncio.Transport", transport)
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner.opened(self)

    def carry(self, flight: Flight) -> None:
        """Write the call's bytes; the answer comes through `data_received`."""
        assert self._transport is not None  # noqa: S101  (a connection is placed once it is made)
        self._flight = flight
        flight.connection = self
        flight.exchange.sent = CLOCK()
        self._transport.write(flight.message)

    def hang_up(self, outcome: Outcome, why: str) -> None:
        """Close at once, and end the call this carries with `outcome`."""
        if self._transport is not None:
            self._transport.abort()
        self._end(outcome, why)

    def data_received(self, data: bytes) -> None:
        now = CLOCK()
        scanner = self._scanner
        if scanner is not None and self._after:
            taken = self._take_alike(data, scanner)
            if taken:
                self._moments.append(now)
                if taken == len(data):
                    return
                data = data[taken:]
        flight = self._flight
        if flight is None:  # nothing was asked: a server that speaks first cannot be trusted
            self.hang_up(Outcome.UPSTREAM_FAILED, "")
            return
        exchange = flight.exchange
        if exchange.first_byte is None:
            exchange.first_byte = now
        parser = self._parser
        try:
            payload = parser.receive(data)
            if scanner is not None:
                if payload:
                    before = scanner.tokens
                    scanner.feed(payload)
                    if scanner.tokens != before:
                        self._moments.append(now)
                self._remember(scanner)
            elif payload:
                self._begin(payload, now)
        except ProtocolError:
            what = words.NOT_HTTP if parser.head is None else words.BROKEN_FRAMING
            self.hang_up(Outcome.UPSTREAM_FAILED, what)
            return
        except SseOverflow:
            self.hang_up(Outcome.UPSTREAM_FAILED, "an event is too long")
            return
        if parser.done:
            self._complete(flight)

    def _remember(self, scanner: SseScanner) -> None:
        """Between two whole chunks and two whole events, the next read may be like the last."""
        before, after = scanner.around
        if before and self._parser.boundary and not scanner.partial:
            self._before, self._after = before, after + b"\r\n"
        else:
            self._after = b""

    def _take_alike(self, data: bytes, scanner: SseScanner) -> int:
        """Take the chunks at the beginning of a read that differ from the last in content alone.

        Each is a token. Most are so, and need neither the decoder of chunks nor the scanner: half
        of a chunk's cost, and a tenth where many come in one read. Returns the bytes taken.
        """
        before, after, find = self._before, self._after, data.find
        at = tokens = 0
        while True:
            size = find(b"\r\n", at, at + 10)
            begin = size + 2 + len(before)
            end = find(b'"', begin)
            stop = end + len(after)
            if not (
                size > at
                and begin < end
                and data.startswith(after, end)
                and data.startswith(before, size + 2)
                and data[at:size] == b"%x" % (stop - size - 4)
                and find(b"\\", begin, end) < 0
                and find(b"\n", begin, end) < 0
            ):
                scanner.tokens += tokens
                return at
            tokens += 1
            at = stop

    def _begin(self, payload: bytes, now: float) -> None:
        """Take the first bytes of a body, or more of one that is no stream."""
        if not self._streams():
            self._body += payload
            if len(self._body) > _MOST_BODY:
                self.hang_up(Outcome.UPSTREAM_FAILED, "the answer is too long")
            return
        scanner = self._scanner = SseScanner()
        scanner.feed(payload)
        if scanner.tokens:
            self._moments.append(now)

    def _streams(self) -> bool:
        """Whether the answer is a stream of events (only a 200 can be)."""
        head = self._parser.head
        return (
            head is not None
            and head.status == 200
            and _EVENTS in (head.get(b"content-type") or b"")
        )

    def _complete(self, flight: Flight) -> None:
        """Judge an answer that ended as its framing says, and use the connection again."""
        head = self._parser.head
        if head is None or self._flight is not flight:  # hung up within this very read
            return
        keep = head.keep_alive and not self._parser.excess and self.usable
        outcome, why = self._judge(head, flight.exchange)
        # Whoever is told of the end may send the next call: this one has to be out of the way.
        done = self._part(flight)
        if keep:
            self._parser.reset("POST")
            self._used += 1
            self._owner.release(self)
        elif self._transport is not None:
            self._transport.close()
        done.end(outcome, why)

    def _judge(self, head: ResponseHead, exchange: Exchange) -> tuple[Outcome, str]:
        scanner = self._scanner
        if scanner is not None:
            return outcome_of_stream(done=scanner.done, error=scanner.error)
        if self._streams():  # it was empty
            return outcome_of_stream(done=False, error=None)
        body = bytes(self._body)
        if head.status != 200:
            exchange.refusal = refusal(head.status, _header_of(head), time.time())
            return outcome_of_status(head.status, body, location=head.get(b"location"))
        exchange.usage = usage_of(body)
        if exchange.usage is not None and exchange.usage.output_tokens > 0:
            exchange.first_token = CLOCK()
        return outcome_of_answer(body)

    def _end(self, outcome: Outcome, why: str) -> None:
        flight = self._flight
        if flight is not None:
            self._part(flight).end(outcome, why)

    def _part(self, flight: Flight) -> Flight:
        """Note what was seen of the answer, and let go of the call."""
        self._flight = None
        flight.connection = None
        exchange = flight.exchange
        head = self._parser.head
        exchange.status = 0 if head is None else head.status
        scanner = self._scanner
        if scanner is not None:
            self._scanner = None
            self._after = b""
            moments = self._moments
            exchange.usage = scanner.usage
            exchange.tokens = scanner.tokens
            if moments:
                exchange.first_token = moments[0]
                exchange.gaps = count_gaps(moments, scanner.tokens)
                self._moments = array("d")
        if exchange.usage is not None:
            exchange.tokens = exchange.usage.output_tokens
        if self._body:
            self._body.clear()
        return flight

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._owner.lost(self)
        if not self.lost.done():
            self.lost.set_result(None)
        flight = self._flight
        if flight is None:
            return
        if self._used and flight.exchange.first_byte is None and flight.exchange.attempts == 1:
            self._flight = None
            flight.connection = None
            flight.exchange.attempts = 2
            self._owner.connect(flight)
            return
        try:
            self._parser.eof()
        except ProtocolError:
            within = words.LOST if self._scanner is None else words.LOST_IN_STREAM
            self._end(Outcome.UPSTREAM_FAILED, within)
        else:
            self._complete(flight)


def _header_of(head: ResponseHead) -> Callable[[str], str | None]:
    def header(name: str) -> str | None:
        value = head.get(name.encode())
        return None if value is None else value.decode("latin-1")

    return header
