"""A request, what it may cost, and every way it can end.

Rule: a refusal is a value, and its HTTP form stands in one table, `ENDINGS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class Kind(StrEnum):
    """How an ended request counts: offered = completed + refused + abandoned + failed + alive."""

    COMPLETED = "completed"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    FAILED = "failed"


class Outcome(StrEnum):
    """How a request left the system. Few values: safe as a metric label."""

    COMPLETED = "completed"  # answered in full
    QUOTA_REQUESTS = "quota_requests"  # requests per minute of its tenant, key or model are used up
    QUOTA_TOKENS = "quota_tokens"  # tokens per minute of its tenant, key or model are used up
    TENANT_BUSY = "tenant_busy"  # a concurrency cap of its tenant, key or model; it may not wait
    TENANT_QUEUE_FULL = "tenant_queue_full"  # the tenant's share of the queue, requests or bytes
    QUEUE_FULL = "queue_full"  # the queue's bound in requests
    QUEUE_BYTES = "queue_bytes"  # the queue's bound in bytes
    NO_SLOT = "no_slot"  # every replica is full, and `when_full` says refuse
    PREDICTED_WAIT = "predicted_wait"  # it would not be served in time
    QUOTA_SESSIONS = "quota_sessions"  # as many of the tenant's sessions are under way as may be
    QUOTA_SESSION_TOKENS = "quota_session_tokens"  # its session burns more tokens than it may
    QUEUE_TIMEOUT = "queue_timeout"  # it waited as long as it may
    DEGRADED = "degraded"  # its tier gives way to a higher one: see the degradation ladder
    ENGINE_BUSY = "engine_busy"  # the engines themselves shed it
    TOO_LARGE = "too_large"  # no replica could ever hold it
    OUTPUT_TOO_LONG = "output_too_long"  # it asks for more output than its tier gives
    UNSUPPORTED = "unsupported"  # no engine here can serve it as it is asked; 404: by its route
    ENGINE_REJECTED = "engine_rejected"  # the engine answered that the request itself is wrong
    UNKNOWN_MODEL = "unknown_model"  # no replica has, or had, a model of this name
    NO_REPLICA = "no_replica"  # no replica of the model is ready
    UNAUTHORIZED = "unauthorized"  # no valid API key; who it was is not known
    INVALID = "invalid"  # method, framing or body are wrong, or the body is too long
    SHUTDOWN = "shutdown"  # the gateway is draining
    REQUEST_TIMEOUT = "request_timeout"  # its total time ran out
    UPSTREAM_FAILED = "upstream_failed"  # the replica died or broke the protocol, replay included
    UPSTREAM_ERROR = "upstream_error"  # the engine answered with an error of its own
    ABANDONED = "abandoned"  # the client left


@dataclass(frozen=True, slots=True)
class Ending:
    """What an outcome means on the wire: status, OpenAI error type and code."""

    kind: Kind
    status: int
    type: str
    code: str


_LIMIT = "rate_limit_error"
_SERVER = "server_error"
_INVALID = "invalid_request_error"

ENDINGS: Final = MappingProxyType(
    {
        Outcome.COMPLETED: Ending(Kind.COMPLETED, 200, "", ""),
        Outcome.QUOTA_REQUESTS: Ending(Kind.REFUSED, 429, _LIMIT, "requests_quota_exceeded"),
        Outcome.QUOTA_TOKENS: Ending(Kind.REFUSED, 429, _LIMIT, "tokens_quota_exceeded"),
        Outcome.TENANT_BUSY: Ending(Kind.REFUSED, 429, _LIMIT, "concurrency_exceeded"),
        Outcome.TENANT_QUEUE_FULL: Ending(Kind.REFUSED, 429, _LIMIT, "tenant_queue_full"),
        Outcome.QUEUE_FULL: Ending(Kind.REFUSED, 429, _LIMIT, "queue_full"),
        Outcome.QUEUE_BYTES: Ending(Kind.REFUSED, 429, _LIMIT, "queue_full"),
        Outcome.NO_SLOT: Ending(Kind.REFUSED, 429, _LIMIT, "no_free_slot"),
        Outcome.PREDICTED_WAIT: Ending(Kind.REFUSED, 429, _LIMIT, "predicted_wait_exceeded"),
        Outcome.QUOTA_SESSIONS: Ending(Kind.REFUSED, 429, _LIMIT, "sessions_quota_exceeded"),
        Outcome.QUOTA_SESSION_TOKENS: Ending(
            Kind.REFUSED, 429, _LIMIT, "session_tokens_quota_exceeded"
        ),
        Outcome.QUEUE_TIMEOUT: Ending(Kind.REFUSED, 429, _LIMIT, "queue_timeout"),
        Outcome.DEGRADED: Ending(Kind.REFUSED, 429, _LIMIT, "degraded"),
        Outcome.ENGINE_BUSY: Ending(Kind.REFUSED, 429, _LIMIT, "engine_busy"),
        Outcome.TOO_LARGE: Ending(Kind.REFUSED, 400, _INVALID, "context_length_exceeded"),
        Outcome.OUTPUT_TOO_LONG: Ending(Kind.REFUSED, 400, _INVALID, "max_tokens_exceeded"),
        Outcome.UNSUPPORTED: Ending(Kind.REFUSED, 400, _INVALID, "unsupported_here"),
        Outcome.ENGINE_REJECTED: Ending(Kind.REFUSED, 400, _INVALID, "engine_rejected"),
        Outcome.UNKNOWN_MODEL: Ending(Kind.REFUSED, 404, _INVALID, "model_not_found"),
        Outcome.NO_REPLICA: Ending(Kind.REFUSED, 503, _SERVER, "no_replica_ready"),
        Outcome.UNAUTHORIZED: Ending(Kind.REFUSED, 401, _INVALID, "invalid_api_key"),
        Outcome.INVALID: Ending(Kind.REFUSED, 400, _INVALID, "invalid_request"),
        Outcome.SHUTDOWN: Ending(Kind.REFUSED, 503, _SERVER, "shutting_down"),
        Outcome.REQUEST_TIMEOUT: Ending(Kind.FAILED, 504, _SERVER, "request_timeout"),
        Outcome.UPSTREAM_FAILED: Ending(Kind.FAILED, 502, _SERVER, "upstream_failed"),
        Outcome.UPSTREAM_ERROR: Ending(Kind.FAILED, 502, _SERVER, "upstream_error"),
        Outcome.ABANDONED: Ending(Kind.ABANDONED, 499, "", ""),
    }
)
"""The one table from outcome to HTTP. 499 is seen in logs and records only."""

HTTP_STATUS: Final = MappingProxyType({o: e.status for o, e in ENDINGS.items()})


class Request(NamedTuple):
    """What admission knows of a request. Times in seconds, sizes in tokens or bytes.

    A tuple: one is made for every request, and a frozen dataclass takes three times as long.

    `prompt_bytes` counts the UTF-8 bytes of the prompt's text; `prompt_chars` its characters
    (their ratio tells scripts apart); `prompt_tokens` is given only when it is exact (token ids).
    `max_tokens` is what the client asked for, None when it did not say. The three times are None
    when the client gave no hint; its hints are clamped by its tier. `key` is the name of its API
    key, never the key. `prefix`: hashes of how the prompt begins, each of a longer beginning (see
    `prefix`); empty for what is not worth it, and where `prompt_chars` is not known.
    """

    id: str
    tenant: str
    model: str
    prompt_bytes: int
    prompt_chars: int = 0
    prompt_tokens: int | None = None
    messages: int = 1
    max_tokens: int | None = None
    choices: int = 1
    body_bytes: int = 0
    route: str = "/v1/chat/completions"
    stream: bool = False
    session: str = ""
    client_retry: int = 0
    ttft_objective: float | None = None
    queue_timeout: float | None = None
    request_timeout: float | None = None
    key: str = ""
    prefix: Sequence[int] = ()


class Usage(NamedTuple):
    """Tokens as the engine reported them, or as counted when a stream ended early.

    `prompt_tokens` is None when the engine never said it.
    """

    prompt_tokens: int | None
    output_tokens: int
    cached_tokens: int = 0
