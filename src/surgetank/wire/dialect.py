"""Errors in the dialect of the route they answer: OpenAI's, its responses', or Anthropic's.

Rule: every error is made in OpenAI's form first; here it is turned into the form that the clients
of its route read. What an engine wrote in that form already stays as it is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from surgetank.wire.native_body import ANTHROPIC_ROUTES
from surgetank.wire.openai import error_body, error_of
from surgetank.wire.request_body import RESPONSES
from surgetank.wire.verdict import UNREADABLE

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_for(route: str, status: int, body: bytes) -> bytes:
    """Return an error body as clients of `route` read it; `body` is in OpenAI's form."""
    if route not in ANTHROPIC_ROUTES or _is_anthropic(body):
        return body
    told = error_of(body)
    return _anthropic(status, told.message if told is not None else "")


def event_for(route: str, status: int, message: str, *, type: str, code: str) -> bytes:  # noqa: A002 - the wire's own word
    """Write an error as an event of a stream of `route`; `status` is what it would have been."""
    if route in ANTHROPIC_ROUTES:
        return b"event: error\ndata: %b\n\n" % _anthropic(status, message)
    body = error_body(message, type=type, code=code)
    if route != RESPONSES:
        return b"data: %b\n\n" % body
    # With `error` in it SDKs raise: by its type alone they would hand it on like any other event.
    told = msgspec.json.encode({"type": "error", "code": code, "message": message, "param": None})
    return b"event: error\ndata: %b,%b\n\n" % (told[:-1], body[1:])


def _anthropic(status: int, message: str) -> bytes:
    kind = _ANTHROPIC_TYPES.get(status)
    if kind is None:
        kind = "invalid_request_error" if status < 500 else "api_error"
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


class _Typed(msgspec.Struct):
    type: str


def _is_anthropic(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Typed).type == "error"
    except UNREADABLE:
        return False
