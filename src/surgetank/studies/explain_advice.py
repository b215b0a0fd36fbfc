"""What each ending of a request means: in words, for the client, and which setting decided it.

Rule: one entry for every outcome; figures come from the record, never from a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome


@dataclass(frozen=True, slots=True)
class Meaning:
    """`what` happened; what a `client` should do; `setting`: what decides it ("" for none)."""

    what: str
    client: str
    setting: str = ""


_LATER: Final = "try again after the time it was told, not sooner"
_NEVER: Final = "not send it again as it is"
MEANINGS: Final = {
    Outcome.COMPLETED: Meaning("It was answered in full.", ""),
    Outcome.QUOTA_REQUESTS: Meaning(
        "The tenant's requests per minute were used up.",
        _LATER,
        "a larger tenants.requests_per_minute, or longer burst_seconds",
    ),
    Outcome.QUOTA_TOKENS: Meaning(
        "The tenant's tokens per minute were used up.",
        f"{_LATER}; a smaller max_tokens reserves less",
        "larger tenants.tokens_per_minute (or input_, output_tokens_per_minute), or longer"
        " burst_seconds",
    ),
    Outcome.QUOTA_SESSIONS: Meaning(
        "As many sessions of the tenant were under way as may be.",
        "finish a session before it begins another",
        "larger tenants.max_sessions",
    ),
    Outcome.QUOTA_SESSION_TOKENS: Meaning(
        "Its session had used more tokens per minute than it may.",
        "let the session rest for the time it was told",
        "larger tenants.session_tokens_per_minute",
    ),
    Outcome.TENANT_BUSY: Meaning(
        "The tenant ran as many requests as it may, and nothing may wait.",
        "have fewer requests under way, and try again after the time it was told",
        "a larger tenants.max_running, or flow.when_full: wait",
    ),
    Outcome.TENANT_QUEUE_FULL: Meaning(
        "The tenant had as much waiting as it may.",
        "have fewer requests under way, and try again after the time it was told",
        "larger tenants.max_queued or max_queued_bytes, or flow.max_queued_bytes_per_tenant",
    ),
    Outcome.QUEUE_FULL: Meaning(
        "As many requests waited, of all tenants, as may.", _LATER, "a larger flow.max_queued"
    ),
    Outcome.QUEUE_BYTES: Meaning(
        "The bodies that waited took all the memory they may.",
        _LATER,
        "a larger flow.max_queued_bytes",
    ),
    Outcome.NO_SLOT: Meaning(
        "Every replica was full, and nothing may wait.",
        _LATER,
        "flow.when_full: wait, or more replicas",
    ),
    Outcome.PREDICTED_WAIT: Meaning(
        "It would have waited longer than its tier lets it.",
        _LATER,
        "a larger theta or ttft_objective of its tier, predicted_wait: false, or more replicas",
    ),
    Outcome.QUEUE_TIMEOUT: Meaning(
        "It waited as long as it may, and no replica had room for it.",
        _LATER,
        "a longer queue_timeout (of flow or its tier), or more replicas",
    ),
    Outcome.DEGRADED: Meaning(
        "Its tier gave way, so that the core tier keeps its first tokens.",
        _LATER,
        "more replicas, or a later step of the ladder: ladder.kept_sessions, long_prompt_tokens, or"
        " degrades of its tier",
    ),
    Outcome.ENGINE_BUSY: Meaning(
        "The engines themselves refused it, twice.",
        _LATER,
        "a smaller flow.max_in_flight keeps the queue here, in order; or more replicas",
    ),
    Outcome.TOO_LARGE: Meaning(
        "No replica could ever hold it.", "shorten its prompt", "replicas with a larger context"
    ),
    Outcome.OUTPUT_TOO_LONG: Meaning(
        "It asked for more output than its tier gives.",
        "ask for fewer max_tokens",
        "a larger max_output_tokens of its tier, or when_above: cap",
    ),
    Outcome.UNSUPPORTED: Meaning("No engine here serves it as it was asked.", _NEVER),
    Outcome.ENGINE_REJECTED: Meaning("The engine answered that the request is wrong.", _NEVER),
    Outcome.UNKNOWN_MODEL: Meaning(
        "No replica has a model of this name.", "ask GET /v1/models for the names that are served"
    ),
    Outcome.NO_REPLICA: Meaning(
        "No replica of the model was ready.",
        _LATER,
        "a larger base or standbys of its pool in autoscaler.pools",
    ),
    Outcome.UNAUTHORIZED: Meaning("It carried no valid key.", "send a valid API key"),
    Outcome.INVALID: Meaning("Its method, framing or body were wrong.", _NEVER),
    Outcome.SHUTDOWN: Meaning("The gateway was shutting down.", "try again at once"),
    Outcome.REQUEST_TIMEOUT: Meaning(
        "Its total time ran out.",
        "ask for less output, or stream it",
        "a longer request_timeout (of flow or its tier)",
    ),
    Outcome.UPSTREAM_FAILED: Meaning(
        "Its replica died or broke the protocol, also when it was sent again.",
        "try again",
        "flow.replays and retry_ratio bound how often it is sent again",
    ),
    Outcome.UPSTREAM_ERROR: Meaning("The engine answered with an error of its own.", "try again"),
    Outcome.ABANDONED: Meaning("The client left before the end.", ""),
}


@dataclass(frozen=True, slots=True)
class Minute:
    """What the tenant had sent in the 60 s before and was let in: requests and tokens."""

    requests: int
    tokens: int


def meaning_of(outcome: str) -> Meaning:
    """Of an outcome as records name it; one of a later version is told as it is."""
    try:
        return MEANINGS[Outcome(outcome)]
    except (ValueError, KeyError):
        return Meaning(f"It ended as {outcome or 'unknown'}.", "")


def advice(record: RequestRecord, before: Minute) -> list[str]:
    """Which setting would have let it in, with the figure where the record gives one."""
    setting = meaning_of(record.outcome).setting
    if not setting:
        return []
    said = [f"What would have let it in: {setting}."]
    figure = _figure(record, before)
    return [*said, figure] if figure else said


def _figure(record: RequestRecord, before: Minute) -> str:
    match record.outcome:
        case Outcome.PREDICTED_WAIT if record.predicted_wait and record.ttft_objective:
            theta = ceil(10 * record.predicted_wait / record.ttft_objective) / 10
            return (
                f"With its objective of {record.ttft_objective:g} s that is theta >= {theta:g}, and"
                f" a queue_timeout above {record.predicted_wait:.1f} s."
            )
        case Outcome.QUEUE_TIMEOUT if record.ended is not None:
            return f"It had waited {record.ended - record.arrived:.1f} s."
        case Outcome.QUOTA_REQUESTS:
            return (
                f"In the 60 s before it, {before.requests} requests of the tenant were let in:"
                f" {before.requests + 1} a minute would have covered this one."
            )
        case Outcome.QUOTA_TOKENS if record.expected_tokens is not None:
            total = before.tokens + record.expected_tokens
            return (
                f"In the 60 s before it, {before.tokens:,} tokens of the tenant were let in, and"
                f" it was to take {record.expected_tokens:,}: {total:,} a minute would have done."
            )
    return ""
