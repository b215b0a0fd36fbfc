"""Headers that tell what is left of limits (docs/reference/limits.md).

Rule: numbers are whole and rounded down, times are rounded up, and the three of one family are of
one level. Headers are blocks of whole lines, as in `replies`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

from surgetank.policy.flow import NO_BUDGET, Budget
from surgetank.wire.openai import format_reset

_LEFT: Final = (
    b"x-ratelimit-limit-requests: %d\r\n"
    b"x-ratelimit-remaining-requests: %d\r\n"
    b"x-ratelimit-reset-requests: %b\r\n"
)
_ANTHROPIC: Final = (
    b"anthropic-ratelimit-requests-limit: %d\r\n"
    b"anthropic-ratelimit-requests-remaining: %d\r\n"
    b"anthropic-ratelimit-requests-reset: %b\r\n"
)
_KINDS: Final = (b"requests", b"tokens", b"input-tokens", b"output-tokens")
_BLOCKS: Final = tuple(_LEFT.replace(b"requests", kind) for kind in _KINDS)
_TOKENS_LEFT: Final = _BLOCKS[1]
_NOTHING_ELSE: Final = NO_BUDGET[6:]
_ANTHROPIC_BLOCKS: Final = tuple(_ANTHROPIC.replace(b"requests", kind) for kind in _KINDS)
_CONCURRENT: Final = (
    b"x-ratelimit-limit-concurrent-requests: %d\r\n"
    b"x-ratelimit-remaining-concurrent-requests: %d\r\n"
)
_LONGEST_RESET: Final = 10 * 365 * 86_400.0


def limit_headers(budget: Budget) -> bytes:
    """The x-ratelimit-* headers; empty without limits."""
    if budget is NO_BUDGET:
        return b""
    headers = b""
    requests, requests_left, full, tokens, tokens_left, tokens_full = budget[:6]
    if requests is not None and full is not None:
        headers = _LEFT % (requests, requests_left, _reset(full))
    if tokens is not None and tokens_full is not None:
        headers += _TOKENS_LEFT % (tokens, tokens_left, _reset(tokens_full))
    if budget[6:] == _NOTHING_ELSE:  # as most have it
        return headers
    for block, at in zip(_BLOCKS[2:], (6, 9), strict=True):
        limit, left, reset = budget[at : at + 3]
        if limit is not None and reset is not None:
            headers += block % (limit, left, _reset(reset))
    if budget.limit_concurrent is not None:
        headers += _CONCURRENT % (budget.limit_concurrent, budget.remaining_concurrent)
    return headers


def _reset(seconds: float) -> bytes:
    """Write a duration as `format_reset` does; most are shorter than all it can tell."""
    if seconds >= 0.001:
        return format_reset(seconds).encode()
    return b"1ms" if seconds > 0 else b"0s"


def anthropic_headers(budget: Budget, wall: float) -> bytes:
    """The same in the names of Anthropic's clients; `wall`: Unix seconds now."""
    headers = b""
    for block, at in zip(_ANTHROPIC_BLOCKS, (0, 3, 6, 9), strict=True):
        limit, left, reset = budget[at : at + 3]
        if limit is not None and reset is not None:
            headers += block % (limit, left, _moment(wall + min(reset, _LONGEST_RESET)))
    return headers


def _moment(unix: float) -> bytes:
    """RFC 3339, in whole seconds, never too early."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=ceil(unix - 1e-6))
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
