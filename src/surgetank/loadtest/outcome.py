"""From what a client saw of one answer to the closed set of outcomes.

Rule: an error is a failure even under status 200 and with [DONE]; a stream without [DONE] is one
too. Only a status above 399 can be a refusal. The reason holds a status and an error's type or
code, never its message: engines quote the prompt in it.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any, Final

from surgetank.policy.request import ENDINGS, Kind, Outcome
from surgetank.wire.openai import error_of
from surgetank.wire.sse import StreamError

_BY_CODE: Final = MappingProxyType(
    {ending.code: outcome for outcome, ending in reversed(tuple(ENDINGS.items())) if ending.code}
)
"""Surgetank's own error codes; where two outcomes share one, the first of the table."""

_ENGINE_TYPES: Final = MappingProxyType({"exceed_context_size_error": Outcome.TOO_LARGE})
_BY_STATUS: Final = MappingProxyType(
    {
        404: Outcome.UNKNOWN_MODEL,
        413: Outcome.TOO_LARGE,
        429: Outcome.ENGINE_BUSY,
        503: Outcome.ENGINE_BUSY,
        504: Outcome.REQUEST_TIMEOUT,
    }
)
_REASON_LENGTH: Final = 64


def outcome_of_status(status: int, body: bytes) -> tuple[Outcome, str]:
    """Outcome and reason of a whole answer with a status other than 200."""
    code, kind = _error_names(body)
    outcome = _BY_CODE.get(code) or _ENGINE_TYPES.get(kind) or _BY_STATUS.get(status)
    return outcome or Outcome.UPSTREAM_ERROR, reason(status, code or kind)


def outcome_of_stream(*, done: bool, error: StreamError | None) -> tuple[Outcome, str]:
    """Outcome and reason of a stream that began with status 200 and ended as HTTP asks."""
    if error is not None:
        return Outcome.UPSTREAM_ERROR, reason(error.status, error.type)
    if not done:
        return Outcome.UPSTREAM_FAILED, "stream ended without [DONE]"
    return Outcome.COMPLETED, ""


def outcome_of_answer(body: bytes) -> tuple[Outcome, str]:
    """Outcome and reason of a whole answer with status 200."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = None
    error = error_of(body)
    if error is not None:
        return Outcome.UPSTREAM_ERROR, reason(error.status, error.type)
    if not isinstance(answer, dict) or not answer.get("choices"):
        return Outcome.UPSTREAM_FAILED, "not a completion"
    return Outcome.COMPLETED, ""


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


def _error_names(body: bytes) -> tuple[str, str]:
    """`code` (when it is a string) and `type` of an error body; empty where absent."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return "", ""
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return "", ""
    code, kind = error.get("code"), error.get("type")
    return code if isinstance(code, str) else "", kind if isinstance(kind, str) else ""
