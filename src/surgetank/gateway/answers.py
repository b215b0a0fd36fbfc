"""What a replica answers, by kind: a stream, a whole body, a stream to be put together, an error.

Rule: an answer passes on or collects bytes and says how it ended; what that ending means is the
exchange's to decide. Nothing goes to the client before the first event of a stream is seen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

from surgetank.gateway import replies
from surgetank.gateway.metrics import SECONDS, Histogram
from surgetank.policy.request import Outcome, Usage
from surgetank.wire.http1 import ResponseHead, status_line
from surgetank.wire.native_stream import NativeAssembler, NativeScanner
from surgetank.wire.openai import AssembleError, Assembler, error_of, is_whole, usage_of
from surgetank.wire.sse import SseOverflow, SseScanner, odd

_HELD_BODY: Final = 1 << 20  # a whole answer up to this size is sent in one piece, replayable
_ERROR_BODY: Final = 64 << 10
_COMPLETED: Final = Outcome.COMPLETED  # a member looked up in its enum takes 0.15 us


class Client(Protocol):
    """The client's side of an exchange."""

    def framing(self) -> bytes: ...
    def start_stream(self, head: bytes, payload: bytes) -> None: ...
    def write_piece(self, payload: bytes) -> None: ...
    def chunk_writer(self) -> Callable[[bytes], object]: ...
    def end_stream(self) -> None: ...
    def answer(self, status: int, headers: bytes, body: bytes) -> None: ...
    def abort(self) -> None: ...


class Host(Protocol):
    """The exchange, as its answer sees it."""

    @property
    def client(self) -> Client | None: ...
    def first_token(self) -> None: ...
    def all_tokens(self) -> None: ...
    def headers(self) -> bytes: ...
    def drop_upstream(self) -> None: ...
    def judge(
        self, status: int, message: str, head: ResponseHead | None = None, body: bytes = b""
    ) -> None: ...
    def fail(self, message: str) -> None: ...
    def finish(self, outcome: Outcome, reason: str, status: int) -> None: ...


class Answer(Protocol):
    """The life of one upstream answer."""

    started: bool  # something has been sent to the client

    def body(self, payload: bytes) -> None: ...
    def end(self) -> None: ...
    def usage(self) -> Usage | None: ...
    def break_off(self, event: bytes, /) -> None: ...


class StreamAnswer:
    """Events passed on as they come. `clock` tells seconds, `gaps` counts those between reads.

    Both are handed in, not asked of the host: two calls less for every chunk.
    """

    __slots__ = (
        "_clock", "_content_seen", "_gaps", "_held", "_host", "_last_read", "_plain", "_scanner",
        "_shapes", "_write", "started",
    )  # fmt: skip

    def __init__(
        self,
        host: Host,
        scanner: SseScanner | NativeScanner,
        clock: Callable[[], float],
        gaps: Histogram,
    ) -> None:
        self._host = host
        self._scanner = scanner
        self._clock = clock
        self._gaps = gaps
        if isinstance(scanner, SseScanner):
            self._plain, self._shapes = scanner, scanner.shapes
        self._write: Callable[[bytes], object] = _drop  # whole chunks with their frames
        self._held: list[bytes] = []
        self._last_read = 0.0
        self._content_seen = False
        self.started = False

    def body(self, payload: bytes) -> None:
        host, scanner = self._host, self._scanner
        try:
            out = scanner.feed(payload)
        except SseOverflow as error:
            host.drop_upstream()
            host.fail(str(error))
            return
        now = self._clock()
        if self.started:
            self._gaps.add(now - self._last_read)
            client = host.client
            if out and client is not None:
                client.write_piece(out)
        else:
            self._held.append(out)
            if scanner.first_event is None:
                return
            if scanner.error is not None and not scanner.tokens:
                host.drop_upstream()
                host.judge(scanner.error.status, scanner.error.message)
                return
            self._start()
        self._last_read = now
        if scanner.content_seen and not self._content_seen:
            self._content_seen = True
            host.first_token()

    def quick(self) -> Callable[[bytes], bytes] | None:
        """Give what may be asked of the next read if that begins with a chunk."""
        scanner = self._scanner
        if self.started and isinstance(scanner, SseScanner) and scanner.between_events:
            return self._pass_on
        return None

    def _pass_on(self, data: bytes) -> bytes:
        """Pass on whole chunks as they came while they are tokens like the last; return the rest.

        Of the rest nothing has been looked at, as far as anyone can tell.
        """
        rest, scanner = b"", self._plain
        shape = self._shapes.get(len(data))
        if shape is not None:
            prefix, tail, begin, end = shape  # as takes_chunk has it: a call less
        if (
            shape is not None
            and data.startswith(prefix)
            and data.endswith(tail)
            and odd(data, begin, end) is None
        ):
            scanner.tokens += 1
        elif not scanner.takes_chunk(data):
            taken = scanner.takes_chunks(data)
            if not taken:
                return data
            data, rest = data[:taken], data[taken:]
        now = self._clock()
        gap, gaps = now - self._last_read, self._gaps
        gaps.counts[bisect_left(SECONDS, gap)] += 1  # as Histogram.add has it: a call less
        gaps.sum += gap
        self._last_read = now
        self._write(data)
        return rest

    def _start(self) -> None:
        self.started = True
        held = b"".join(self._held)
        self._held.clear()
        client = self._host.client
        if client is not None:
            client.start_stream(_stream_head(replies.STREAM_HEADERS, self._host, client), held)
            self._write = client.chunk_writer()

    def end(self) -> None:
        host, scanner = self._host, self._scanner
        if not self.started:
            host.fail("the engine ended the stream before its first event")
        elif scanner.error is None and not scanner.done:
            host.fail("the engine ended the stream early")
        else:
            if host.client is not None:
                host.client.end_stream()
            if scanner.error is not None:
                reason = f"an error event, {scanner.error.status}"
                host.finish(Outcome.UPSTREAM_ERROR, reason, 200)
            elif scanner.finish_reason == "abort":
                host.finish(Outcome.UPSTREAM_ERROR, "the engine aborted the request", 200)
            else:
                host.finish(_COMPLETED, "", 200)

    def usage(self) -> Usage | None:
        return _scanned_usage(self._scanner)

    def break_off(self, event: bytes, /) -> None:
        client = self._host.client
        if client is not None:
            client.write_piece(b"\n\n" + event if self._scanner.partial else event)
            client.end_stream()


class AssembledAnswer:
    """A stream put together to the whole answer the client asked for."""

    __slots__ = ("_assembler", "_content_seen", "_host", "_scanner", "started")

    def __init__(
        self,
        host: Host,
        scanner: SseScanner | NativeScanner,
        assembler: Assembler | NativeAssembler,
    ) -> None:
        self._host = host
        self._scanner = scanner
        self._assembler = assembler
        self._content_seen = False
        self.started = False

    def body(self, payload: bytes) -> None:
        scanner = self._scanner
        try:
            scanner.feed(payload)
        except SseOverflow as error:
            self._host.drop_upstream()
            self._host.fail(str(error))
            return
        self._assembler.feed(payload)
        if scanner.content_seen and not self._content_seen:
            self._content_seen = True
            self._host.first_token()

    def end(self) -> None:
        host, error = self._host, self._scanner.error
        if error is not None:
            host.judge(error.status, error.message)
            return
        try:
            body = self._assembler.result()
        except AssembleError as problem:
            host.fail(str(problem))
            return
        if host.client is not None:
            host.client.answer(200, replies.JSON_TYPE + host.headers(), body)
        host.finish(_COMPLETED, "", 200)

    def usage(self) -> Usage | None:
        return _scanned_usage(self._scanner)

    def break_off(self, _event: bytes, /) -> None:
        """Nothing was sent: there is nothing to break off."""


class WholeAnswer:
    """A non-streamed answer, passed on as it is.

    Up to 1 MiB it is held until it is complete, so that a replica's death in the middle of it can
    still be replayed; a larger one is passed on as it comes.
    """

    __slots__ = ("_head", "_host", "_pieces", "_size", "_usage", "started")

    def __init__(self, host: Host, head: ResponseHead) -> None:
        self._host = host
        self._head = head
        self._pieces: list[bytes] = []
        self._size = 0
        self._usage: Usage | None = None
        self.started = False

    def body(self, payload: bytes) -> None:
        self._pieces.append(payload)
        self._size += len(payload)
        client = self._host.client
        if self.started:
            if client is not None:
                client.write_piece(payload)
        elif self._size > _HELD_BODY:
            self.started = True
            if client is not None:
                head = _stream_head(
                    _type_line(self._head.fields.get(b"content-type")), self._host, client
                )
                client.start_stream(head, b"".join(self._pieces))

    def end(self) -> None:
        self.whole(b"".join(self._pieces))

    def whole(self, body: bytes) -> None:
        """All of it is here, and was not passed on unless it has `started`."""
        host = self._host
        self._usage = usage_of(body)
        if self._usage is None and not self._is_an_answer(body):
            return
        host.all_tokens()
        client = host.client
        if client is not None:
            if self.started:
                client.end_stream()
            else:
                client.answer(
                    200, _type_line(self._head.fields.get(b"content-type")) + host.headers(), body
                )
        host.finish(_COMPLETED, "", 200)

    def _is_an_answer(self, body: bytes) -> bool:
        """Judge what tells no usage: a body cut short, or an error under a 200, is no answer."""
        if b"json" not in self._head.fields.get(b"content-type", b"json"):
            return True
        if not is_whole(body):
            self._host.fail("the engine's answer is not whole")
            return False
        error = error_of(body)
        if error is None or self.started:
            return True
        self._host.judge(error.status, error.message, self._head, body)
        return False

    def usage(self) -> Usage | None:
        return self._usage

    def break_off(self, _event: bytes, /) -> None:  # a JSON body cannot take one
        if self._host.client is not None:
            self._host.client.abort()


class ErrorAnswer:
    """A status other than 200: collected, then judged."""

    __slots__ = ("_head", "_host", "_pieces", "_size", "started")

    def __init__(self, host: Host, head: ResponseHead) -> None:
        self._host = host
        self._head = head
        self._pieces: list[bytes] = []
        self._size = 0
        self.started = False

    def body(self, payload: bytes) -> None:
        if self._size < _ERROR_BODY:
            self._size += len(payload)
            self._pieces.append(payload)

    def end(self) -> None:
        body = b"".join(self._pieces)
        error = error_of(body)
        message = error.message if error is not None else f"the engine answered {self._head.status}"
        self._host.judge(self._head.status, message, self._head, body if error is not None else b"")

    def usage(self) -> Usage | None:
        return None

    def break_off(self, _event: bytes, /) -> None:
        """Nothing was sent: there is nothing to break off."""


@lru_cache(maxsize=64)
def _type_line(told: bytes | None) -> bytes:
    return b"content-type: %b\r\n" % told if told else replies.JSON_TYPE


def has_events(head: ResponseHead) -> bool:
    """Whether the answer is a stream of events."""
    told = head.fields.get(b"content-type")
    return told is not None and told.startswith(b"text/event-stream")


def _stream_head(headers: bytes, host: Host, client: Client) -> bytes:
    """Write the head of an answer that goes to its client in pieces."""
    return b"%b%b%b%b\r\n" % (status_line(200), headers, host.headers(), client.framing())


def _drop(_data: bytes) -> None:
    """The client has left."""


def _scanned_usage(scanner: SseScanner | NativeScanner) -> Usage | None:
    """Tokens as reported, or as counted so far when the stream ended early."""
    if scanner.usage is not None:
        return scanner.usage
    return Usage(None, scanner.tokens) if scanner.tokens else None
