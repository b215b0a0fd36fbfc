"""Answers the gateway writes itself: errors in the OpenAI shape, and the headers on every response.

Rule: outcomes become HTTP only here, through the one table `ENDINGS`. Headers are blocks of whole
lines, each with its CRLF: one formatting a block costs a third of joining name and value pairs.
"""

from __future__ import annotations

import math
from typing import Final

from surgetank.gateway import decision
from surgetank.policy.effect import Refuse
from surgetank.policy.request import ENDINGS, Outcome
from surgetank.wire.http1 import status_line
from surgetank.wire.openai import error_body

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


def refusal(
    outcome: Outcome,
    message: str,
    *,
    retry_after: float | None = None,
    should_retry: bool = True,
    param: str | None = None,
    status: int | None = None,
    effect: Refuse | None = None,
) -> tuple[int, bytes, bytes]:
    """Return status, headers and body of an outcome's error answer; `effect`: who decided it."""
    ending = ENDINGS[outcome]
    status = ending.status if status is None else status
    if effect is None:
        told = decision.refused(outcome, retry_after=retry_after)
    else:
        told = decision.refused(
            outcome,
            retry_after=retry_after,
            predicted_wait=effect.predicted_wait,
            position=effect.position,
            level=effect.level,
        )
    body = error_body(message, type=ending.type, code=ending.code, param=param, decision=told)
    headers = JSON_TYPE + decision.header(told)
    if retry_after is not None:
        wait = decision.milliseconds(retry_after)
        headers += b"retry-after: %d\r\n" % math.ceil(wait / 1000)
        headers += b"retry-after-ms: %d\r\n" % wait
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
    told = decision.refused(Outcome.INVALID)
    body = error_body(message, type=_INVALID, code=code, param=param, decision=told)
    return status, JSON_TYPE + decision.header(told), body


def whole(
    status: int, headers: bytes, body: bytes, *, keep_alive: bool, to_head: bool = False
) -> bytes:
    """Bytes of a complete response with a Content-Length; without the body in answer to a HEAD."""
    last = b"" if keep_alive else CLOSE
    parts = (status_line(status), headers, len(body), last, b"" if to_head else body)
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % parts


PLAIN: Final = status_line(200) + b"%bcontent-length: %d\r\n\r\n%b"
"""What `whole` writes of a 200 on a connection that is kept."""


def degraded_header(told: str) -> bytes:
    """What the degradation ladder took from a request: the step, then what was changed."""
    return b"x-surgetank-degraded: %b\r\n" % told.encode("ascii", "replace")


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
