"""What a gateway says of itself at its admin listener, checked when it is read.

Rule: fields that are not named here are dropped; a missing signal is None, never 0.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

VERSION: Final = 1


class SourceError(Exception):
    """The source answered, but not with something usable; the message is one line."""


class Tenant(msgspec.Struct, frozen=True):
    """One tenant's requests offered since the gateway started, and those in it now."""

    offered: float = 0
    queued: float = 0
    running: float = 0


class Signals(msgspec.Struct, frozen=True):
    """What an engine says of itself; None is unknown."""

    waiting: float | None = None
    running: float | None = None
    kv_used: float | None = None


class Replica(msgspec.Struct, frozen=True):
    """One replica, by its state in the lifecycle. `signals` None: this gateway does not tell."""

    state: str
    signals: Signals | None = None

    @property
    def silent(self) -> bool:
        """Its engine says nothing of its load."""
        return self.signals == Signals()


class Pool(msgspec.Struct, frozen=True):
    """The requests and replicas of one (model, role). Ages in seconds, KV in tokens."""

    queued: float = 0
    queue_age: float = 0
    running: float = 0
    kv_held: float | None = None
    kv_waiting: float | None = None
    kv_capacity: float | None = None
    replicas: list[Replica] = []


class Observation(msgspec.Struct, frozen=True):
    """One answer of GET /observation. `ttft`: (Unix seconds of the first token, TTFT, tenant).

    `arrivals`: (Unix second, requests that came in it, their prompt tokens), of complete seconds.
    `learned`: one line a model.
    """

    v: int
    gateway: str
    now: float
    ready: bool = False
    draining: bool = False
    tenants: dict[str, Tenant] = {}
    outcomes: dict[str, float] = {}
    ttft: list[tuple[float, float, str]] = []
    arrivals: list[tuple[int, int, int]] = []
    pools: list[Pool] = []
    learned: list[str] = []


class Reason(msgspec.Struct, frozen=True):
    """A signal that spoke for a plan."""

    signal: str = ""
    value: float | None = None
    threshold: float | None = None
    text: str = ""


class Plan(msgspec.Struct, frozen=True):
    """How many replicas should serve, and how many stand by."""

    replicas: int
    standbys: int = 0


class Decision(msgspec.Struct, frozen=True):
    """One line of the autoscaler: a plan for a pool at a time, why, and what was done about it."""

    t: float
    plan: Plan
    model: str = ""
    role: str = ""
    reasons: list[Reason] = []
    effects: list[dict[str, Any]] = []


class Page(msgspec.Struct, frozen=True):
    """One answer of GET /decisions: lines after the number asked for, and the next number."""

    v: int
    next: int
    lines: list[Decision] = []


_OBSERVATION: Final = msgspec.json.Decoder(Observation)
_PAGE: Final = msgspec.json.Decoder(Page)


def read_observation(body: bytes) -> Observation:
    """Read GET /observation's body. Raises SourceError."""
    try:
        seen = _OBSERVATION.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"/observation is not what a gateway answers: {error}") from error
    _check("/observation", seen.v)
    return seen


def read_decisions(body: bytes) -> Page:
    """Read GET /decisions' body. Raises SourceError."""
    try:
        page = _PAGE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"/decisions is not what an autoscaler answers: {error}") from error
    _check("/decisions", page.v)
    return page


def _check(path: str, version: int) -> None:
    if version != VERSION:
        raise SourceError(f"{path} has version {version}: this page reads version {VERSION}")
