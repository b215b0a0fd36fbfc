"""Answers the gateway writes itself: errors in the OpenAI shape, and the headers on every response.

Rule: outcomes become HTTP only here, through the one table `ENDINGS`. Headers are blocks of whole
lines, each with its CRLF: one formatting a block costs a third of joining name and value pairs.
"""

from __future__ import annotations

import math
from typing import Final

from surgetank.policy.flow import Budget
from surgetank.policy.request import ENDINGS, Outcome
from surgetank.wire.http1 import status_line
from surgetank.wire.openai import error_body, format_reset

JSON_TYPE: Final = b"content-type: application/json\r\n"
STREAM_HEADERS: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"
)
CHALLENGE: Final = b"www-authenticate: Bearer\r\n"  # a 401 must say how (RFC 9110, 11.6.1)
CLOSE: Final = b"connection: close\r\n"
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_INVALID: Final = "invalid_request_error"
MAX_RETRY_AFTER: Final = 110.0  # SDKs ignore more than 120 s


def refusal(
    outcome: Outcome,
    message: str,
    *,
    retry_after: float | None = None,
    should_retry: bool = True,
    param: str | None = None,
    status: int | None = None,
) -> tuple[int, bytes, bytes]:
    """Return status, headers and body of an outcome's error answer."""
    ending = ENDINGS[outcome]
    status = ending.status if status is None else status
    body = error_body(message, type=ending.type, code=ending.code, param=param)
    headers = JSON_TYPE
    if retry_after is not None:
        wait = min(max(retry_after, 0.001), MAX_RETRY_AFTER)
        headers += b"retry-after: %d\r\n" % math.ceil(wait)
        headers += b"retry-after-ms: %d\r\n" % math.ceil(wait * 1000)
    if not should_retry:
        headers += b"x-should-retry: false\r\n"
    return status, headers, body


def plain_error(
    status: int, message: str, *, code: str, kind: str = _INVALID
) -> tuple[int, bytes, bytes]:
    """An error outside admission: authentication, routes, framing."""
    return status, JSON_TYPE, error_body(message, type=kind, code=code)


def bad_request(
    status: int, message: str, param: str | None, code: str | None
) -> tuple[int, bytes, bytes]:
    """A body that cannot be understood."""
    return status, JSON_TYPE, error_body(message, type=_INVALID, code=code, param=param)


def whole(
    status: int, headers: bytes, body: bytes, *, keep_alive: bool, to_head: bool = False
) -> bytes:
    """Bytes of a complete response with a Content-Length; without the body in answer to a HEAD."""
    last = b"" if keep_alive else CLOSE
    parts = (status_line(status), headers, len(body), last, b"" if to_head else body)
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % parts


def ratelimit_headers(budget: Budget) -> bytes:
    """The x-ratelimit-* headers of a tenant; empty without quotas."""
    limit, left, reset, token_limit, tokens_left, token_reset = budget
    headers = b""
    if limit is not None and left is not None and reset is not None:
        headers = _REQUESTS_LEFT % (limit, left, format_reset(reset).encode())
    if token_limit is not None and tokens_left is not None and token_reset is not None:
        headers += _TOKENS_LEFT % (token_limit, tokens_left, format_reset(token_reset).encode())
    return headers


TOO_MANY_CONNECTIONS: Final = whole(
    503,
    JSON_TYPE + b"retry-after: 1\r\n",
    error_body(
        "this gateway has no room for another connection",
        type="server_error",
        code="too_many_connections",
    ),
    keep_alive=False,
)

_REQUESTS_LEFT: Final = (
    b"x-ratelimit-limit-requests: %d\r\n"
    b"x-ratelimit-remaining-requests: %d\r\n"
    b"x-ratelimit-reset-requests: %b\r\n"
)
_TOKENS_LEFT: Final = _REQUESTS_LEFT.replace(b"requests", b"tokens")
