"""Put a streamed answer together again into what the engine would have answered without stream.

Rule: faithful or not at all. `can_assemble` says beforehand whether a request's answer can be
rebuilt; an incomplete stream, or one with an error in it, gives no answer.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from surgetank.wire.native_body import STREAMED_ROUTES
from surgetank.wire.request_body import CHAT, ROUTES, Body
from surgetank.wire.sse import EventReader, SseOverflow
from surgetank.wire.verdict import UNREADABLE, StreamError, read_error

NOT_IN_STREAMS: Final = frozenset(
    {
        "audio",  # audio comes in pieces of a coding of its own
        "prompt_logprobs",  # vLLM answers them only without stream
        "return_token_ids",  # vLLM: prompt ids in the first chunk, choice ids in pieces
        "return_hidden_states",  # SGLang: differs by stream
        "use_beam_search",  # vLLM cannot stream it
        "return_progress",  # llama.cpp adds chunks that have no place in an answer
        "timings_per_token",  # same
        "verbose",  # llama.cpp echoes the request, "stream": true included
        "return_tokens",  # llama.cpp: token ids of the whole text only without stream
        "response_fields",  # llama.cpp picks members of the answer
    }
)
"""Members that, when given, ask for what a stream does not carry, or carries otherwise."""

_APPENDED: Final = frozenset({"content", "reasoning_content", "reasoning", "refusal", "text"})
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_VALUES: Final = frozenset({b"null", b"false"})


class AssembleError(Exception):
    """The stream gives no whole answer; `error` is what the engine told, if it told anything."""

    def __init__(self, message: str, error: StreamError | None = None) -> None:
        super().__init__(message)
        self.error = error


def can_assemble(body: Body) -> bool:
    """Tell whether the answer to `body` can be rebuilt faithfully from a stream.

    It cannot with any of NOT_IN_STREAMS, with audio among the modalities, with best_of over 1 (the
    best are known only at the end), with several prompts (a stream tells one prompt's usage), and
    with echo together with logprobs (the prompt's logprobs).
    """
    members = body.members
    if body.route not in ROUTES:
        return body.route in STREAMED_ROUTES

    def given(name: str) -> bool:
        return members.get(name, b"null") not in _NO_VALUES

    if any(given(name) for name in NOT_IN_STREAMS):
        return False
    if body.route == CHAT:
        return b'"audio"' not in members.get("modalities", b"")
    if body.messages > 1 or members.get("best_of", b"null") not in (b"null", b"1"):
        return False
    # logprobs 0 is a request for the chosen token's own
    return not (given("echo") and members.get("logprobs", b"null") != b"null")


class Assembler:
    """Collects one stream. `max_bytes` bounds what is kept of it."""

    def __init__(self, body: Body, *, max_bytes: int = 64 << 20) -> None:
        self._chat = body.route == CHAT
        self._events = EventReader(max_event=max_bytes)
        self._room = max_bytes
        self._members: dict[str, bytes] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._done = False
        self._fault: str | None = None
        self._error: StreamError | None = None

    def feed(self, payload: bytes) -> None:
        """Take in decoded body bytes. Never raises: what is wrong comes out of `result`."""
        self._room -= len(payload)
        if self._room < 0:
            self._fault = "the stream is too long"
        if self._fault is not None:
            return
        try:
            for data in self._events.feed(payload):
                self._take(data)
        except SseOverflow as error:
            self._fault = str(error)
        except (*UNREADABLE, TypeError, AttributeError) as error:
            self._fault = f"an event is not a completion chunk: {type(error).__name__}"

    def result(self) -> bytes:
        """Write the non-streamed answer as JSON. Raises AssembleError."""
        if self._error is not None:
            raise AssembleError("the stream holds an error", self._error)
        if self._fault is not None:
            raise AssembleError(self._fault)
        if not self._done:
            raise AssembleError("the stream ended without [DONE]")
        if not self._choices:
            raise AssembleError("the stream holds no choice")
        if any(choice.get("finish_reason") is None for choice in self._choices.values()):
            raise AssembleError("a choice has no finish_reason")
        choices = [self._finished(self._choices[index]) for index in sorted(self._choices)]
        answer = dict(self._members)
        answer["object"] = b'"chat.completion"' if self._chat else b'"text_completion"'
        try:
            answer["choices"] = msgspec.json.encode(choices)
        except (*UNREADABLE, OverflowError, TypeError) as error:
            raise AssembleError("a choice cannot be written as JSON") from error
        return b"{%b}" % b",".join(
            [msgspec.json.encode(name) + b":" + raw for name, raw in answer.items()]
        )

    def _take(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        if self._done or data == b"null":  # llama.cpp begins some streams with null
            return
        members = _OBJECT.decode(data)
        error = members.get("error")
        if error is not None and self._error is None:
            self._error = read_error(msgspec.json.decode(error))
        for name, raw in members.items():
            value = bytes(raw)
            if name not in {"choices", "error"} and (value != b"null" or name not in self._members):
                self._members[name] = value
        for chunk in msgspec.json.decode(members.get("choices", b"[]")) or ():
            self._take_choice(chunk)

    def _take_choice(self, chunk: dict[str, Any]) -> None:
        index = chunk.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < 1 << 16:
            raise ValueError("index")
        choice = self._choices.setdefault(index, {"index": index})
        for name, value in chunk.items():
            if name == "delta":
                if value is not None:
                    _merge_delta(choice.setdefault("message", {}), value)
            elif name == "logprobs":
                _merge_logprobs(choice, value)
            elif name != "index":
                _merge(choice, name, value)

    def _finished(self, choice: dict[str, Any]) -> dict[str, Any]:
        if not self._chat:
            return {"text": "", "logprobs": None, **choice}
        message: dict[str, Any] = {"role": "assistant", **choice.get("message", {})}
        calls = message.pop("tool_calls", None)
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        if not message.get("content"):
            # Without stream an empty answer is "", and null beside a call.
            called = calls or message.get("function_call") or message.get("refusal")
            message["content"] = None if called else ""
        return {**choice, "message": message}


def _merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", {})
            for at, call in enumerate(value or ()):
                index = call.get("index", at)
                if not isinstance(index, int):
                    raise TypeError("index")
                _merge_call(calls.setdefault(index, {}), call)
        elif name == "function_call":
            if value is not None:
                _merge_function(message.setdefault("function_call", {}), value)
            else:
                message.setdefault(name, None)
        else:
            _merge(message, name, value)


def _merge_call(call: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "function" and value is not None:
            _merge_function(call.setdefault("function", {}), value)
        elif name != "index" and (value or name not in call):  # some repeat an empty id
            call[name] = value


def _merge_function(function: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "arguments":
            function[name] = function.get(name, "") + (value or "")
        elif value or name not in function:
            function[name] = value


def _merge_logprobs(choice: dict[str, Any], value: dict[str, Any] | None) -> None:
    """Append list by list: content and refusal, or a text completion's parallel lists."""
    known = choice.get("logprobs")
    if value is None or known is None:
        choice["logprobs"] = value if known is None else known
        return
    for name, item in value.items():
        _merge(known, name, item)


def _merge(into: dict[str, Any], name: str, value: Any) -> None:
    """Append text and lists, replace the rest; null only stands where nothing else came."""
    known = into.get(name)
    if value is None:
        into.setdefault(name, None)
    elif isinstance(value, list) and isinstance(known, list):
        known.extend(value)
    elif name in _APPENDED and isinstance(known, str):
        into[name] = known + value
    else:
        into[name] = value
