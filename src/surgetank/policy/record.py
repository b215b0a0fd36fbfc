"""The one record of a request, and the sample of a fleet, written by every shell alike.

Rule: one JSON object a line, no prompt text, absent values left out; times are Unix seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

SCHEMA: Final = 1
ALWAYS_WRITTEN: Final = frozenset({"id", "arrived"})  # whatever their value


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request.

    Times are Unix seconds, sizes tokens; None means "did not happen".
    """

    id: str  # the gateway's own id of the request
    tenant: str = ""  # whose API key it carried
    tier: str = ""  # its class of service
    model: str = ""  # as the client named it
    route: str = ""  # path of the request
    session: str = ""  # the client's own session id
    stream: bool = False  # the client asked for server-sent events
    arrived: float = 0.0  # its head and body were read
    queued: float | None = None  # it began to wait
    dispatched: float | None = None  # it was sent to a replica (the last time, when replayed)
    first_token: float | None = None  # first non-empty content
    ended: float | None = None  # last byte, refusal, or the client left
    prompt_tokens: int | None = None  # as the engine reported, else estimated
    cached_tokens: int | None = None  # of these, found in the engine's prefix cache
    output_tokens: int | None = None  # as the engine reported, else counted
    max_tokens: int | None = None  # bound on its output
    ttft_objective: float | None = None  # promised time to the first token
    outcome: str = ""  # how it ended: see the table of outcomes
    reason: str = ""  # which limit or error, in words
    status: int = 0  # HTTP status the client saw; 499: it had left
    replica: str = ""  # who served it last
    attempts: int = 0  # upstream calls made for it
    client_retry: int = 0  # x-stainless-retry-count: the client's own retries so far
    predicted_wait: float | None = None  # wait foretold on arrival
    position: int | None = None  # requests ahead of it on arrival
    degraded: str = ""  # step of the degradation ladder
    retry_after: float | None = None  # seconds a refused client was told to wait; None: no time
    level: str = ""  # which limit refused it: whose, and what it counts
    expected_tokens: int | None = None  # of a refused one: prompt and output it was taken to need
    full: tuple[str, ...] = ()  # of a refused one: what stood in the way on each replica
    shadow: str = ""  # shadow admission: how it would have ended, "admitted" when it would run
    shadow_wait: float | None = None  # shadow admission: seconds it would have waited
    shadow_ttft: float | None = None  # shadow admission: estimate of its time to the first token
    scheduled: float | None = None  # load test: when it was due
    sent: float | None = None  # load test: when it was sent
    first_byte: float | None = None  # load test: first byte of the answer
    token_gaps: tuple[int, ...] = ()  # load test: gaps between tokens; bin, count ... (policy.gaps)

    @property
    def ttft(self) -> float | None:
        """Seconds from when it was due (or arrived) to the first token; None without one."""
        if self.first_token is None:
            return None
        return self.first_token - (self.scheduled if self.scheduled is not None else self.arrived)

    def to_line(self) -> str:
        """One JSON object without a newline; values equal to their default are left out."""
        return _line({"v": SCHEMA}, self, _DEFAULTS)

    @classmethod
    def from_line(cls, line: str | bytes) -> RequestRecord:
        """Read one line; unknown fields of later versions are ignored.

        Raises ValueError with what is wrong (not JSON, not an object, a field of the wrong type).
        """
        known = _known(_row(line), _TYPES, ("id",))
        gaps = known.get("token_gaps", [])
        if not all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in gaps):
            raise ValueError(f"token_gaps = {gaps!r}: expected counts")
        full = known.get("full", [])
        if not all(isinstance(x, str) for x in full):
            raise ValueError(f"full = {full!r}: expected texts")
        return cls(**known | {"token_gaps": tuple(gaps), "full": tuple(full)})


@dataclass(slots=True)
class FleetSample:
    """One pool at one moment, once a second; written among the request records.

    None is unknown. The last group is what happened since the sample before.
    """

    t: float  # Unix seconds
    model: str
    role: str = "both"
    starting: int = 0  # replicas started in order to serve
    refilling: int = 0  # started in order to be standbys
    standby: int = 0  # warm, not serving
    serving: int = 0
    draining: int = 0  # finishing their streams, to be stopped
    wanted: int | None = None  # to serve, by the plan
    queued: int | None = None  # requests that wait
    queue_age: float | None = None  # seconds the oldest has waited
    running: int | None = None  # requests
    kv: float | None = None  # part of the KV cache that is held, 0..1
    preemptions: int | None = None  # by the engines, in all
    started: int = 0  # starts asked for
    failed: int = 0  # starts that failed
    crashed: int = 0  # replicas that died by themselves
    start_times: tuple[float, ...] = ()  # seconds, of the starts that became ready

    def to_line(self) -> str:
        """One JSON object without a newline, with "kind":"fleet"; defaults are left out."""
        return _line({"v": SCHEMA, "kind": _FLEET}, self, _SAMPLE_DEFAULTS)

    @classmethod
    def from_line(cls, line: str | bytes) -> FleetSample:
        """Read one line. Raises ValueError as RequestRecord does."""
        known = _known(_row(line), _SAMPLE_TYPES, ("t", "model"))
        times = known.get("start_times", [])
        if not all(isinstance(x, (float, int)) and not isinstance(x, bool) for x in times):
            raise ValueError(f"start_times = {times!r}: expected numbers")
        return cls(**known | {"start_times": tuple(times)})


def parse(line: str | bytes) -> RequestRecord | FleetSample:
    """Read one line of either kind. Raises ValueError with what is wrong."""
    sample = _row(line).get("kind") == _FLEET
    return FleetSample.from_line(line) if sample else RequestRecord.from_line(line)


def _line(row: dict[str, Any], value: object, defaults: Iterable[tuple[str, object]]) -> str:
    for name, default in defaults:
        found = getattr(value, name)
        if found != default:
            row[name] = found
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def _row(line: str | bytes) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, found {type(row).__name__}")
    return row


def _known(
    row: dict[str, Any], types: Mapping[str, tuple[type, ...]], needed: Iterable[str]
) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name, value in row.items():
        accepts = types.get(name)
        if accepts is None:
            continue
        if not isinstance(value, accepts) or (isinstance(value, bool) and bool not in accepts):
            raise ValueError(f"{name} = {value!r}: expected {accepts[0].__name__}")
        known[name] = value
    for name in needed:
        if name not in known:
            raise ValueError(f"{name} is missing")
    return known


_FLEET: Final = "fleet"
_NO_DEFAULT: Final = object()
_DEFAULTS: Final = tuple(
    (f.name, _NO_DEFAULT if f.name in ALWAYS_WRITTEN else f.default) for f in fields(RequestRecord)
)
_BY_ANNOTATION: Final[dict[str, tuple[type, ...]]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (float, int),
    "float | None": (float, int, type(None)),
    "tuple[float, ...]": (list,),
    "tuple[int, ...]": (list,),
    "tuple[str, ...]": (list,),
}
_TYPES: Final = {f.name: _BY_ANNOTATION[str(f.type)] for f in fields(RequestRecord)}

_SAMPLE_DEFAULTS: Final = tuple(
    (f.name, _NO_DEFAULT if f.name in {"t", "model"} else f.default) for f in fields(FleetSample)
)
_SAMPLE_TYPES: Final = {f.name: _BY_ANNOTATION[str(f.type)] for f in fields(FleetSample)}
