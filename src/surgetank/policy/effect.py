"""What FlowControl asks its shell to do: imperatives, carried out in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from surgetank.policy.replica import Role
from surgetank.policy.request import Outcome, Request


@dataclass(frozen=True, slots=True)
class Leg:
    """One upstream call: which replica plays which part."""

    role: Role
    replica: str


class Dispatch(NamedTuple):
    """Send the request now. One leg, or two where prefill and decode are split.

    `max_tokens`: the output bound to write into the body, None to leave it as the client sent it.
    `queued_for`: seconds waited; `attempt`: 1 for the first; `predicted_wait`: seconds foretold at
    arrival, None when unknown; `position`: requests ahead of it on arrival. `degraded`: what the
    degradation ladder took from it, for its answer's header and its record. `model`: the one to
    write into the body, None to leave the client's.
    """

    request: Request
    legs: tuple[Leg, ...]
    max_tokens: int | None
    queued_for: float
    attempt: int = 1
    predicted_wait: float | None = None
    position: int = 0
    degraded: str = ""
    model: str | None = None


class Refuse(NamedTuple):
    """Answer with the outcome's error.

    `retry_after`: seconds until a retry is likely to be served, None when there is no such time;
    `should_retry` False tells SDKs not to try again by themselves. `level`: which limit refused it,
    such as `the tenant: tokens per minute`; `full`: what stood in the way on each replica (see
    `policy.fullness`); `tokens`: prompt and output it was expected to take, None when unknown.
    """

    request: Request
    outcome: Outcome
    reason: str
    retry_after: float | None = None
    should_retry: bool = True
    predicted_wait: float | None = None
    position: int = 0
    level: str = ""
    full: tuple[str, ...] = ()
    tokens: int | None = None
    degraded: str = ""


class Cancel(NamedTuple):
    """Stop a running request: abort its upstream call, and `finish` it with `outcome` and usage."""

    request: Request
    outcome: Outcome
    reason: str


Effect = Dispatch | Refuse | Cancel
