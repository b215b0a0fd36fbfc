"""Streams of /v1/responses and /v1/messages, watched while they pass, or put together.

Rule: bytes go on as they came. A stream has ended well only when its own last event was there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from surgetank.policy.request import Usage
from surgetank.wire.assemble import AssembleError
from surgetank.wire.sse import EventReader, SseOverflow
from surgetank.wire.verdict import UNREADABLE, StreamError, read_error, read_usage

_NULL: Final = msgspec.Raw(b"null")


class _Event(msgspec.Struct):
    """The members of both dialects' events that say something of the stream as a whole."""

    type: str = ""
    response: msgspec.Raw = _NULL
    message: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    delta: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    code: msgspec.Raw = _NULL


class _Told(msgspec.Struct):
    """Of a response, a message or a delta."""

    usage: Any = None
    error: Any = None
    status: Any = None
    stop_reason: Any = None


_EVENT: Final = msgspec.json.Decoder(_Event)
_TOLD: Final = msgspec.json.Decoder(_Told)
_LAST: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class NativeScanner:
    """Follows one stream of either dialect, as SseScanner follows a completion's.

    `tokens`: events that carry a delta. `usage`: as reported at the end; before it, what was
    reported of the prompt with the tokens counted so far.
    """

    __slots__ = (
        "_events", "_prompt", "_usage", "content_seen", "done", "error", "finish_reason",
        "first_event", "tokens",
    )  # fmt: skip

    def __init__(self, *, max_line: int = 1 << 20) -> None:
        self._events = EventReader(max_event=max_line)
        self._prompt: Usage | None = None
        self._usage: Usage | None = None
        self.first_event: bytes | None = None
        self.tokens = 0
        self.content_seen = False
        self.error: StreamError | None = None
        self.finish_reason: str | None = None
        self.done = False

    @property
    def partial(self) -> bool:
        """The bytes forwarded so far end inside an event."""
        return self._events.partial

    @property
    def usage(self) -> Usage | None:
        if self._usage is not None or self._prompt is None:
            return self._usage
        return self._prompt._replace(output_tokens=self.tokens)

    def feed(self, payload: bytes) -> bytes:
        """Return what to forward: `payload` itself. Raises SseOverflow."""
        for data in self._events.feed(payload):
            if self.first_event is None:
                self.first_event = data
            try:
                self._read(_EVENT.decode(data))
            except UNREADABLE:
                continue  # vLLM ends some with [DONE]
        return payload

    def _read(self, event: _Event) -> None:
        kind = event.type
        if kind.endswith("delta") and kind != "message_delta":
            self.tokens += 1
            self.content_seen = True
        elif kind in _LAST:
            self._read_last(_TOLD.decode(event.response), kind)
        elif kind == "message_start":
            self._prompt = read_usage(_TOLD.decode(event.message).usage)
        elif kind == "message_delta":
            self._read_message_end(event)
        elif kind == "message_stop":
            self.done = True
        elif self.error is None:
            self.error = _error_in(event)

    def _read_last(self, told: _Told, kind: str) -> None:
        self.done = True
        self._usage = read_usage(told.usage)
        if kind == "response.failed" and self.error is None:
            self.error = read_error(told.error) or StreamError(500, "the response failed", "")

    def _read_message_end(self, event: _Event) -> None:
        reason = _TOLD.decode(event.delta).stop_reason
        if isinstance(reason, str):
            self.finish_reason = reason
        told = msgspec.json.decode(event.usage)
        if not isinstance(told, dict):
            return
        if self._prompt is not None and not told.get("input_tokens"):
            begun = self._prompt
            output = told.get("output_tokens")
            if isinstance(output, int) and output >= 0:
                self._usage = begun._replace(output_tokens=output)
        else:
            self._usage = read_usage(told)


def _error_in(event: _Event) -> StreamError | None:
    """Read an error event of either dialect, or a bare error; None when it is another event."""
    told = msgspec.json.decode(event.error)
    if told is None and event.type == "error":  # OpenAI's stands in the event itself
        message, code = msgspec.json.decode(event.message), msgspec.json.decode(event.code)
        return read_error({"message": message, "code": code, "type": "error"})
    return read_error(told)


class NativeAssembler:
    """Puts a stream together to the answer there would have been without it.

    A response comes whole in its last event; a message is gathered from its blocks.
    """

    __slots__ = ("_blocks", "_done", "_events", "_fault", "_json", "_message", "_response")

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        self._events = EventReader(max_event=max_bytes)
        self._response: bytes | None = None
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}
        self._done = False
        self._fault: str | None = None

    def feed(self, payload: bytes) -> None:
        """Take in decoded body bytes. Never raises: what is wrong comes out of `result`."""
        if self._fault is not None:
            return
        try:
            for data in self._events.feed(payload):
                if data != b"[DONE]":
                    self._take(msgspec.json.decode(data))
        except SseOverflow as error:
            self._fault = str(error)
        except (*UNREADABLE, TypeError, AttributeError, LookupError) as error:
            self._fault = f"an event is not of this stream: {type(error).__name__}"

    def result(self) -> bytes:
        """Write the whole answer as JSON. Raises AssembleError."""
        if self._fault is not None:
            raise AssembleError(self._fault)
        if self._response is not None:
            return self._response
        if self._message is None or not self._done:
            raise AssembleError("the stream ended before its last event")
        for index, text in self._json.items():
            try:
                self._blocks[index]["input"] = msgspec.json.decode(text or "{}")
            except UNREADABLE as error:
                raise AssembleError("the input of a tool is not JSON") from error
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return msgspec.json.encode({**self._message, "content": content})

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind in _LAST:
            self._response = msgspec.json.encode(event["response"])
        elif kind == "message_start":
            self._message = dict(event["message"])
        elif kind == "content_block_start":
            self._blocks[int(event["index"])] = dict(event["content_block"])
        elif kind == "content_block_delta":
            self._take_delta(int(event["index"]), event["delta"])
        elif kind == "message_delta" and self._message is not None:
            self._message.update(event.get("delta") or {})
            usage = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}
            self._message["usage"] = usage
        elif kind == "message_stop":
            self._done = True

    def _take_delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        for name, value in delta.items():
            if name == "partial_json":
                self._json[index] = self._json.get(index, "") + value
            elif name != "type":
                known = block.get(name)
                appended = name != "signature" and isinstance(known, str)
                block[name] = known + value if appended else value
