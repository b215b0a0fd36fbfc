"""Server-sent events of a completion, watched while they pass.

Rule: bytes go on as they came. Only the usage chunk that the gateway itself asked for may be taken
out, and only the bytes of an incomplete event that can still be that chunk are ever held back.
JSON is parsed only in events that hold a usage, an error or a finish reason.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from surgetank.policy.request import Usage
from surgetank.wire.verdict import UNREADABLE, StreamError, read_error, read_usage

__all__ = ["EventReader", "SseOverflow", "SseScanner", "StreamError"]

_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
# In JSON text a quote inside a string is written \", so these match members, never content.
_CONTENT: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|refusal|arguments)"\s*:\s*"(?!")'
    rb'|"tool_calls"\s*:\s*\[\s*\{|"function_call"\s*:\s*\{'
)
_USAGE: Final = re.compile(rb'"usage":\s*\{')
_HAS_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*[^\]\s]')
odd: Final = re.compile(rb'["\\\n]').search  # three find() within bounds take five times as long
_DATA: Final = b"data:"
_USAGE_BYTES: Final = 16_384  # far above any usage chunk; what is longer is not held back
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHUNK_END: Final = b"\n\n\r\n"  # of an event, and of the chunk around it
_MOST_SHAPES: Final = 16  # a token's length varies by as much, mostly; each takes 300 bytes
_LONGEST_FRAMED: Final = 2048  # bytes of a chunk with its frame that is looked at as a whole
_SIZE_LINES: Final = [bytes(_LONGEST_FRAMED + 1)] * (_LONGEST_FRAMED + 1)
"""By the length of a whole chunk, its first line; where none has that length, what begins none."""
for _size in range(1, _LONGEST_FRAMED):
    _line = b"%x\r\n" % _size
    if len(_line) + _size + 2 <= _LONGEST_FRAMED:
        _SIZE_LINES[len(_line) + _size + 2] = _line


Shape = tuple[bytes, bytes, int, int]
"""What a chunk begins and ends with, and where the content between begins and ends."""


class SseOverflow(Exception):  # noqa: N818 - it names what happened
    """An event is longer than the bound; the stream cannot be followed any further."""


class SseScanner:
    """Follows one stream: first event, tokens, usage, error and end. Feed it decoded body bytes.

    - first_event: data of the first complete event (the value of a bare `error:` line too)
    - tokens: events with content, reasoning, text, a refusal or a tool call; content_seen: any yet
    - usage, finish_reason: the last seen; error: the first seen; done: `[DONE]` was seen
    - partial: the bytes forwarded so far end inside an event
    - shapes: of whole chunks with a plain token, by their length (see `takes_chunk`)

    `max_line` bounds one event, in bytes. Comments and CRLF line ends are accepted.
    """

    __slots__ = (
        "_after",
        "_before",
        "_event",
        "_max",
        "_sent",
        "_strip",
        "_tail",
        "content_seen",
        "done",
        "error",
        "finish_reason",
        "first_event",
        "shapes",
        "tokens",
        "usage",
    )

    def __init__(self, *, strip_usage: bool = False, max_line: int = 1 << 20) -> None:
        self._strip = strip_usage
        self._max = max_line
        self._event = bytearray()  # the incomplete event, whether forwarded or not
        self._sent = 0  # how many of its bytes were forwarded: none or all
        self._before = self._after = b""  # what stands around the content of a plain event
        self._tail = b""  # and what ends it as a chunk
        self.shapes: dict[int, Shape] = {}
        self.first_event: bytes | None = None
        self.tokens = 0
        self.content_seen = False
        self.usage: Usage | None = None
        self.error: StreamError | None = None
        self.finish_reason: str | None = None
        self.done = False

    @property
    def partial(self) -> bool:
        """The bytes forwarded so far end inside an event."""
        return self._sent > 0

    @property
    def around(self) -> tuple[bytes, bytes]:
        """What stood around the content of an event that had nothing else to know; else empty.

        With content between them that has no quote, backslash or line end, it is one more token.
        """
        return self._before, self._after

    def feed(self, payload: bytes) -> bytes:
        """Return what to forward: `payload` itself, unless a usage chunk is held or taken out.

        Raises SseOverflow.
        """
        if self.content_seen and not self._event:
            if self._before and self._is_like_the_last(payload):
                self.tokens += 1
                return payload
            find, size = payload.find, len(payload)
            if (
                find(b"\n") == size - 2
                and payload.endswith(b"\n")
                and payload.startswith(b"data: {")
                and _has_content(payload)
                and not _worth_parsing(payload)
                and size <= self._max
            ):
                self.tokens += 1  # one whole event with content and nothing else to know
                self._remember(payload)
                return payload
        return self._feed(payload)

    def _remember(self, event: bytes) -> None:
        """Keep what stands around the content of an event that has nothing else to know."""
        begin = event.find(b'"content":"') + 11
        end = event.find(b'"', begin)
        if 11 <= begin < end and event.find(b"\\", begin, end) < 0:
            self._before, self._after = event[:begin], event[end:]
            self._tail = self._after + b"\r\n"
            self.shapes.clear()

    def takes_chunk(self, data: bytes) -> bool:
        """Whether it is one whole chunk, written as `http1.chunk` does, with one more plain token.

        It is counted then, and goes on as it came, frame and all: a stream is mostly such reads,
        and none of them needs to be taken apart. To be asked only between two chunks, and while
        `between_events`.
        """
        size = len(data)
        shape = self.shapes.get(size) or self._shape(size)
        if shape is None:
            return False
        prefix, tail, begin, end = shape
        if data.startswith(prefix) and data.endswith(tail) and odd(data, begin, end) is None:
            self.tokens += 1
            return True
        return False

    def takes_chunks(self, data: bytes) -> int:
        """Take whole chunks from the beginning of a read that holds several; how many bytes."""
        at = 0
        while True:
            found = data.find(_CHUNK_END, at)
            end = found + len(_CHUNK_END)
            if found < 0 or not self.takes_chunk(data[at:end]):
                return at
            at = end

    @property
    def between_events(self) -> bool:
        """A plain token was seen, and what was fed ends with an event."""
        return bool(self._before) and not self._event

    def _shape(self, size: int) -> Shape | None:
        """What a chunk of that length begins with, and where its content begins and ends."""
        if not self._before or not size <= min(_LONGEST_FRAMED, self._max):
            return None
        prefix = _SIZE_LINES[size] + self._before
        begin, end = len(prefix), size - len(self._tail)
        if begin >= end:
            return None
        shape = prefix, self._tail, begin, end
        if len(self.shapes) < _MOST_SHAPES:
            self.shapes[size] = shape
        return shape

    def _is_like_the_last(self, payload: bytes) -> bool:
        """Whether it is a remembered event but for its content: most are, and need no other look.

        Content without a quote, a backslash or a line end cannot change what stands around it.
        """
        before, after = self._before, self._after
        begin, end = len(before), len(payload) - len(after)
        return (
            begin < end <= self._max - len(after)
            and payload.startswith(before)
            and payload.endswith(after)
            and odd(payload, begin, end) is None
        )

    def _feed(self, payload: bytes) -> bytes:
        buffer = self._event
        known = len(buffer)
        withheld = known > self._sent
        buffer += payload
        out: list[bytes] = []
        begin, changed = 0, withheld
        search = max(0, known - 3)
        while separator := _BLANK_LINE.search(buffer, search):
            event = bytes(buffer[begin : separator.end()])
            if self._read(event) and not self._sent:
                changed = True
            else:
                out.append(event[self._sent :])
            self._sent = 0
            begin = search = separator.end()
        del buffer[:begin]
        if len(buffer) > self._max:
            raise SseOverflow(f"an event is longer than {self._max} bytes")
        if buffer and not self._sent and self._strip and _may_be_usage(buffer):
            return b"".join(out)
        if changed:
            out.append(bytes(buffer[self._sent :]))
            payload = b"".join(out)
        self._sent = len(buffer)
        return payload

    def _read(self, event: bytes) -> bool:
        """Learn from a complete event; True: it is the usage chunk to take out."""
        if len(event) > self._max:
            raise SseOverflow(f"an event is longer than {self._max} bytes")
        lines = _Lines(event)
        if lines.error is not None:
            self._read_error_line(lines.error)
        text = lines.data
        if text is None:
            return False
        if self.first_event is None:
            self.first_event = text
        if _has_content(event):
            self.tokens += 1
            self.content_seen = True
        if text == b"[DONE]":
            self.done = True
            return False
        if not _worth_parsing(event):
            return False
        injected = self._read_members(text) and lines.plain and not _HAS_CHOICES.search(event)
        return injected and self._strip and len(event) <= _USAGE_BYTES

    def _read_members(self, text: bytes) -> bool:
        """Learn usage, error and finish reason; True: no choice but a usage, the injected form."""
        try:
            members = _OBJECT.decode(text)
        except UNREADABLE:
            return False
        error = read_error(_value(members.get("error")))
        if error is not None and self.error is None:
            self.error = error
        usage = read_usage(_value(members.get("usage")))
        if usage is not None:
            self.usage = usage
        choices = _value(members.get("choices"))
        if isinstance(choices, list):
            for choice in choices:
                reason = choice.get("finish_reason") if isinstance(choice, dict) else None
                if isinstance(reason, str):
                    self.finish_reason = reason
        return choices == [] and usage is not None and error is None

    def _read_error_line(self, text: bytes) -> None:
        if self.first_event is None:
            self.first_event = text
        if self.error is None:
            value = _value(text)
            if isinstance(value, dict) and "error" in value:
                value = value["error"]
            self.error = read_error(value) or StreamError(500, text.decode(errors="replace"), "")


class EventReader:
    """Splits a stream into the data of its events, for who needs every one of them.

    A bare `error:` line comes out as the data `{"error": ...}` that other engines write.
    """

    __slots__ = ("_held", "_max")

    def __init__(self, *, max_event: int = 1 << 20) -> None:
        self._held = bytearray()
        self._max = max_event

    @property
    def partial(self) -> bool:
        """What was fed so far ends inside an event."""
        return bool(self._held)

    def feed(self, payload: bytes) -> list[bytes]:
        """Return the data of the events that `payload` completes. Raises SseOverflow."""
        held = self._held
        search = max(0, len(held) - 3)
        held += payload
        begin = 0
        found: list[bytes] = []
        while separator := _BLANK_LINE.search(held, search):
            lines = _Lines(bytes(held[begin : separator.end()]))
            if lines.error is not None:
                found.append(b'{"error":%b}' % lines.error)
            if lines.data is not None:
                found.append(lines.data)
            begin = search = separator.end()
        del held[:begin]
        if len(held) > self._max:
            raise SseOverflow(f"an event is longer than {self._max} bytes")
        return found


class _Lines:
    """What the lines of one event say. `plain`: it is nothing but data."""

    __slots__ = ("data", "error", "plain")

    def __init__(self, event: bytes) -> None:
        self.error: bytes | None = None
        self.plain = True
        data: list[bytes] = []
        for line in event.replace(b"\r\n", b"\n").split(b"\n"):
            if line.startswith(_DATA):
                data.append(line[5:].removeprefix(b" "))
            elif line:
                self.plain = False
                if line.startswith(b"error:"):  # llama.cpp, before it wrote errors as data
                    self.error = line[6:].strip()
        self.data = b"\n".join(data) if data else None


def _has_content(event: bytes) -> bool:
    at = event.find(b'"content":"') + 11
    if at > 10 and event[at : at + 1] != b'"':
        return True
    return _CONTENT.search(event) is not None


def _worth_parsing(event: bytes) -> bool:
    # find() and not `in`, which costs twice as much: it first tries to read a number from bytes.
    find = event.find
    return (
        find(b'"finish_reason":"') >= 0
        or find(b'"finish_reason": "') >= 0
        or find(b'"error"') >= 0
        or (find(b'"usage":') >= 0 and _USAGE.search(event) is not None)
    )


def _may_be_usage(begun: bytearray) -> bool:
    """Tell whether an event that begins so can still turn out to be the usage chunk."""
    start = begun.lstrip(b"\r\n")
    return (
        len(begun) <= _USAGE_BYTES
        and _DATA.startswith(start[:5])
        and not _HAS_CHOICES.search(start)
    )


def _value(raw: bytes | msgspec.Raw | None) -> Any:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return None
