"""The OpenAI dialect: requests read, answers and errors written and read.

One place to import from; bodies are read in `request_body`, streams put together in `assemble`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec

from surgetank.policy.request import Usage
from surgetank.wire.assemble import AssembleError, Assembler, can_assemble
from surgetank.wire.request_body import ROUTES, BadRequest, Body, parse_request
from surgetank.wire.verdict import UNREADABLE, StreamError, read_error, read_usage

__all__ = [
    "ROUTES",
    "AssembleError",
    "Assembler",
    "BadRequest",
    "Body",
    "StreamError",
    "can_assemble",
    "error_body",
    "error_event",
    "error_of",
    "format_reset",
    "is_whole",
    "model_body",
    "models_body",
    "parse_request",
    "usage_of",
]

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY: Final = msgspec.json.Decoder()
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more
_LONGEST_RESET: Final = 10 * 365 * 86_400.0


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Answer(msgspec.Struct):
    """Of a whole answer, the members that are read."""

    usage: msgspec.Raw = msgspec.Raw(b"null")
    input_tokens: _Count | None = None


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _Told(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count = 0  # embeddings and scores have none
    prompt_tokens_details: _Details | None = None


class _UsualAnswer(msgspec.Struct):
    """The same as nearly all engines write it: read in one go."""

    usage: _Told


_USUAL: Final = msgspec.json.Decoder(_UsualAnswer)
_USAGE: Final = msgspec.json.Decoder(_Answer)


def error_body(
    message: str,
    *,
    type: str,  # noqa: A002 - the wire's own word
    code: str | None = None,
    param: str | None = None,
    decision: Mapping[str, Any] | None = None,
) -> bytes:
    """Write an error as OpenAI does: `{"error":{"message","type","param","code"}}`.

    `decision`: one more member of it, of the gateway's own.
    """
    error: dict[str, Any] = {"message": message, "type": type, "param": param, "code": code}
    if decision is not None:
        error["decision"] = decision
    return msgspec.json.encode({"error": error})


def error_event(message: str, *, type: str, code: str | None = None) -> bytes:  # noqa: A002 - same
    """Write an error as an event of a stream; clients take a cut stream for a finished one."""
    return b"data: %b\n\n" % error_body(message, type=type, code=code)


def usage_of(response_body: bytes) -> Usage | None:
    """Read the usage of a non-streamed answer; None when it tells none."""
    try:
        usual = _USUAL.decode(response_body).usage
    except UNREADABLE:
        return _odd_usage(response_body)
    prompt, details = usual.prompt_tokens, usual.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    counts = prompt, usual.completion_tokens, min(prompt, cached) if cached else 0
    return _new(Usage, counts)


def _odd_usage(response_body: bytes) -> Usage | None:
    """Read what an engine tells in a form of its own, as far as it can be made use of."""
    try:
        told = _USAGE.decode(response_body)
    except UNREADABLE:
        return None
    if told.input_tokens is not None:  # the whole answer is a count of tokens
        return _new(Usage, (told.input_tokens, 0, 0))
    return read_usage(_value(told.usage))


def is_whole(response_body: bytes) -> bool:
    """Whether it is JSON from its beginning to its end; NaN, which some engines write, passes."""
    try:
        _ANY.decode(response_body)
    except UNREADABLE:
        try:
            json.loads(response_body)
        except (ValueError, RecursionError):
            return False
    return True


def error_of(response_body: bytes) -> StreamError | None:
    """Read the error of an engine's answer; None when it is no error body.

    vLLM before 0.9 wrote the error's members at the top, with object "error".
    """
    members = _members(response_body)
    error = read_error(_value(members.get("error")))
    if error is None and _value(members.get("object")) == "error":
        error = read_error({name: _value(members.get(name)) for name in members})
    return error


def models_body(names: Iterable[str], created: int) -> bytes:
    """Write the answer of /v1/models; `created` in Unix seconds."""
    data = [_model(name, created) for name in names]
    return msgspec.json.encode({"object": "list", "data": data})


def model_body(name: str, created: int) -> bytes:
    """Write the answer of /v1/models/NAME; `created` in Unix seconds."""
    return msgspec.json.encode(_model(name, created))


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "surgetank"}


def format_reset(seconds: float) -> str:
    """Write a duration as x-ratelimit-reset does: 0s, 250ms, 1s, 6m0s, 1h2m3s. Never too early."""
    if not seconds > 0:
        return "0s"
    if seconds < 0.001:
        return "1ms"
    milliseconds = math.ceil(min(seconds, _LONGEST_RESET) * 1000 - 1e-6)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(-(-milliseconds // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _members(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _OBJECT.decode(body)
    except UNREADABLE:
        return {}


def _value(raw: msgspec.Raw | None) -> Any:
    if raw is None:
        return None
    try:
        return _ANY.decode(raw)
    except UNREADABLE:
        return None
