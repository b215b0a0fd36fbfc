"""What an engine says about an answer: its usage, or the error that took the answer's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from surgetank.policy.request import Usage

UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError)
"""All that reading foreign JSON can raise."""

_OF_TYPES: Final = {"overloaded_error": 503, "rate_limit_error": 429}  # Anthropic gives no code
_STATUSES: Final = {str(status): status for status in range(400, 600)}


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error the engine told in the body, with 200 or not. `status` is what it would have been.

    500 when the engine named none.
    """

    status: int
    message: str
    type: str


def read_usage(value: Any) -> Usage | None:
    """Read the `usage` member of an answer; None when it is not one."""
    if not isinstance(value, dict):
        return None
    prompt = _count(value.get("prompt_tokens"))
    if prompt is None:
        return _other_usage(value)
    output = _count(value.get("completion_tokens")) or 0  # embeddings and scores have none
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(prompt, output, min(cached, prompt) if cached else 0)


def _other_usage(value: dict[str, Any]) -> Usage | None:
    """Read the usage of a response or a message.

    A message's input_tokens leave out what its cache gave, which is told beside them.
    """
    prompt = _count(value.get("input_tokens"))
    if prompt is None:
        return None
    details = value.get("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    read = _count(value.get("cache_read_input_tokens")) or 0
    prompt += read + (_count(value.get("cache_creation_input_tokens")) or 0)
    cached = min(cached or read, prompt)
    return Usage(prompt, _count(value.get("output_tokens")) or 0, cached)


def read_error(value: Any) -> StreamError | None:
    """Read the `error` member of an answer or event; None when there is no error in it.

    Engines differ: an object with message, type and code (vLLM, llama.cpp), or a bare string.
    """
    if value is None or value is False:
        return None
    if not isinstance(value, dict):
        return StreamError(500, value if isinstance(value, str) else str(value)[:1000], "")
    message, kind = value.get("message"), value.get("type")
    status = _STATUSES.get(str(value.get("code"))[:4]) or _OF_TYPES.get(str(kind), 500)
    return StreamError(
        status,
        message if isinstance(message, str) else "",
        kind if isinstance(kind, str) else "",
    )


def _count(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
