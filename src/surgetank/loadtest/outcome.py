"""From what a client saw of one answer to the closed set of outcomes.

Rule: an error is a failure even under status 200 and with [DONE]; a stream without [DONE] is one
too. Only a status above 399 can be a refusal. The reason holds a status and an error's type or
code, never its message: engines quote the prompt in it. `trouble` says it in a user's words.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from surgetank.policy.request import ENDINGS, Kind, Outcome
from surgetank.wire.openai import error_of
from surgetank.wire.sse import StreamError
from surgetank.wire.verdict import UNREADABLE

_BY_CODE: Final = MappingProxyType(
    {ending.code: outcome for outcome, ending in reversed(tuple(ENDINGS.items())) if ending.code}
)
"""Surgetank's own error codes; where two outcomes share one, the first of the table."""

_ENGINE_TYPES: Final = MappingProxyType({"exceed_context_size_error": Outcome.TOO_LARGE})
_BY_STATUS: Final = MappingProxyType(
    {
        413: Outcome.TOO_LARGE,
        429: Outcome.ENGINE_BUSY,
        503: Outcome.ENGINE_BUSY,
        504: Outcome.REQUEST_TIMEOUT,
    }
)
_REASON_LENGTH: Final = 64


class _Answer(msgspec.Struct):
    choices: list[msgspec.Raw] = []


_ANSWER: Final = msgspec.json.Decoder(_Answer)
HTML: Final = "HTML page"
_CONNECT_PREFIX: Final = "connect: "
_CONNECT: Final = MappingProxyType(
    {
        errno.ECONNREFUSED: "refused",
        errno.ECONNRESET: "reset",
        errno.EHOSTUNREACH: "no route to the host",
        errno.ENETUNREACH: "no route to the host",
        errno.ETIMEDOUT: "timed out",
        errno.EMFILE: "out of file descriptors",
        errno.ENFILE: "out of file descriptors",
        errno.EADDRNOTAVAIL: "out of local ports",
    }
)
NOT_CONNECTED: Final = "client timeout: not connected"
NO_ANSWER: Final = "client timeout: no answer"
MID_ANSWER: Final = "client timeout: answer not whole"
NOT_HTTP: Final = "protocol: not HTTP/1.1"
BROKEN_FRAMING: Final = "protocol: broken framing"
LOST: Final = "connection lost"
LOST_IN_STREAM: Final = "connection lost in the stream"
NO_DONE: Final = "stream ended without [DONE]"
STOPPED: Final = "run stopped"
LEFT: Final = "client left"


def outcome_of_status(
    status: int, body: bytes, *, location: bytes | None = None
) -> tuple[Outcome, str]:
    """Outcome and reason of a whole answer with a status other than 200.

    `location`: where a redirect leads. Redirects are not followed: what is measured is one address.
    """
    if 300 <= status < 400:
        return Outcome.UPSTREAM_ERROR, reason(status, f"redirect{_origin(location)}")
    code, kind, message = _error_texts(body)
    outcome = _BY_CODE.get(code) or _ENGINE_TYPES.get(kind) or _BY_STATUS.get(status)
    if outcome is None and status == 404 and "model" in message.lower():
        outcome = Outcome.UNKNOWN_MODEL
    name = code or kind or (HTML if is_html(body) else "")
    return outcome or Outcome.UPSTREAM_ERROR, reason(status, name)


def outcome_of_stream(*, done: bool, error: StreamError | None) -> tuple[Outcome, str]:
    """Outcome and reason of a stream that began with status 200 and ended as HTTP asks."""
    if error is not None:
        return Outcome.UPSTREAM_ERROR, reason(error.status, error.type)
    if not done:
        return Outcome.UPSTREAM_FAILED, NO_DONE
    return Outcome.COMPLETED, ""


def outcome_of_answer(body: bytes) -> tuple[Outcome, str]:
    """Outcome and reason of a whole answer with status 200."""
    if b'"error"' in body:  # rarely: the word in a text is written \"error\"
        error = error_of(body)
        if error is not None:
            return Outcome.UPSTREAM_ERROR, reason(error.status, error.type)
    try:
        whole = bool(_ANSWER.decode(body).choices)
    except UNREADABLE:
        whole = False
    if not whole:
        return Outcome.UPSTREAM_FAILED, f"200 {HTML}" if is_html(body) else "not a completion"
    return Outcome.COMPLETED, ""


def is_html(body: bytes) -> bool:
    """Whether a body is a page, and so from something that is no engine."""
    return body[:256].lstrip()[:1] == b"<"


def reason_of_connect(error: OSError) -> str:
    """Say why a connection could not be made, in few words without the address."""
    if isinstance(error, socket.gaierror):
        why = "host name not found"
    elif isinstance(error, ssl.SSLCertVerificationError):
        why = "certificate not trusted"
    elif isinstance(error, ssl.SSLError):
        why = "no TLS there" if error.reason == "WRONG_VERSION_NUMBER" else "TLS failed"
    else:
        # asyncio joins the errors of several addresses into one without a number.
        number = error.errno if error.errno is not None else _number_in(str(error))
        why = _CONNECT.get(number or 0, type(error).__name__)
    return f"{_CONNECT_PREFIX}{why}"


def kind_of(outcome: str) -> Kind:
    """How an ended request counts. Raises ValueError for anything outside the closed set."""
    try:
        return ENDINGS[Outcome(outcome)].kind
    except ValueError:
        raise ValueError(
            f"outcome = {outcome!r}: expected one of {', '.join(o.value for o in Outcome)}"
        ) from None


def reason(status: int, name: str) -> str:
    """Make a short label of the status and the error's type or code, if it has one."""
    return f"{status} {name}".rstrip()[:_REASON_LENGTH]


def _error_texts(body: bytes) -> tuple[str, str, str]:
    """`code` (when it is a string), `type` and `message` of an error body; empty where absent."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return "", "", ""
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return "", "", ""
    code, kind, message = (
        value if isinstance(value := error.get(name), str) else ""
        for name in ("code", "type", "message")
    )
    return code, kind, message


def _origin(location: bytes | None) -> str:
    """` to https://host` of a Location; its path and query may hold anything."""
    try:
        parts = urlsplit((location or b"").decode("latin-1"))
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return f" to {parts.scheme}://{host}" if parts.scheme and host else ""


def _number_in(text: str) -> int | None:
    for name in ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "ETIMEDOUT"):
        number: int = getattr(errno, name)
        if f"[Errno {number}]" in text:
            return number
    return None
