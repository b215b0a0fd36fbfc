"""Faults on demand: what an engine can do to a gateway, one entry each.

Rule: a fault is data, given by flag (`--fault cut:after=5,times=1`) or POSTed to /mock/faults as
JSON (`{"kind":"cut","after":5,"times":1}`); both are read by the same code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from surgetank.errors import InputError


class FaultKind(StrEnum):
    """What goes wrong; `MEANINGS` says it in words."""

    HANG = "hang"
    DIE = "die"
    CUT = "cut"
    RESET = "reset"
    ERROR_EVENT = "error-event"
    TRICKLE = "trickle"
    GARBAGE = "garbage"
    SLOW_HEADERS = "slow-headers"
    STATUS = "status"
    METRICS_LIE = "metrics-lie"
    METRICS_DROP = "metrics-drop"
    METRICS_ERROR = "metrics-error"
    HEALTH_ERROR = "health-error"
    HEALTH_HANG = "health-hang"


MEANINGS: Final = {
    FaultKind.HANG: ("after", "after that many tokens nothing more comes, and nothing is closed"),
    FaultKind.DIE: ("after", "after that many tokens the process exits, as if killed"),
    FaultKind.CUT: ("after", "after that many tokens the connection is closed"),
    FaultKind.RESET: ("after", "after that many tokens the connection is reset (RST)"),
    FaultKind.ERROR_EVENT: ("after", "after that many tokens a stream gets an error event, [DONE]"),
    FaultKind.TRICKLE: ("seconds", "the answer goes out byte by byte, so far apart (0)"),
    FaultKind.GARBAGE: ("", "the answer is no HTTP"),
    FaultKind.SLOW_HEADERS: ("seconds", "the answer is held back for so long (5)"),
    FaultKind.STATUS: ("status retry_after", "the answer is that status, with that Retry-After"),
    FaultKind.METRICS_LIE: ("running waiting kv", "/metrics and the load header tell these"),
    FaultKind.METRICS_DROP: ("", "/metrics is empty"),
    FaultKind.METRICS_ERROR: ("status", "/metrics answers that status"),
    FaultKind.HEALTH_ERROR: ("status", "/health answers that status"),
    FaultKind.HEALTH_HANG: ("", "/health is never answered"),
}
"""Each kind's settings, and what it does. `after=0`, the default: before any byte of the answer."""


def settings() -> dict[FaultKind, list[str]]:
    """List each kind's settings. `times`: how often it strikes, for ever without it."""
    return {kind: [*names.split(), "times"] for kind, (names, _) in MEANINGS.items()}


_OF_METRICS: Final = frozenset(
    {FaultKind.METRICS_LIE, FaultKind.METRICS_DROP, FaultKind.METRICS_ERROR}
)
_OF_HEALTH: Final = frozenset({FaultKind.HEALTH_ERROR, FaultKind.HEALTH_HANG})
_OF_TEXT: Final = frozenset(FaultKind) - _OF_METRICS - _OF_HEALTH


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `settings` tells which ones mean something."""

    kind: FaultKind
    times: int | None = None
    after: int = 0
    seconds: float = 0.0
    status: int = 500
    retry_after: str = ""
    running: int = 0
    waiting: int = 0
    kv: float = 0.0


_CONVERT: Final = {
    "times": int,
    "after": int,
    "seconds": float,
    "status": int,
    "retry_after": str,
    "running": int,
    "waiting": int,
    "kv": float,
}
_LEAST: Final = {"times": 1, "status": 400}


def build(given: Mapping[str, Any]) -> Fault:
    """Build a fault from `kind` and its settings. Raises InputError with what would be right."""
    kinds = ", ".join(FaultKind)
    try:
        kind = FaultKind(given.get("kind", ""))
    except ValueError:
        raise InputError(f"fault kind {given.get('kind')!r}: must be one of {kinds}") from None
    allowed = settings()[kind]
    values: dict[str, Any] = {"seconds": 5.0} if kind is FaultKind.SLOW_HEADERS else {}
    for key, value in given.items():
        if key == "kind":
            continue
        if key not in allowed:
            raise InputError(
                f"fault {kind}: unknown setting `{key}`: known are {', '.join(allowed)}"
            )
        try:
            values[key] = number = _CONVERT[key](value)
        except (TypeError, ValueError):
            raise InputError(f"fault {kind}: {key} = {value!r}: must be a number") from None
        if not isinstance(number, str) and not _LEAST.get(key, 0) <= number < math.inf:
            raise InputError(f"fault {kind}: {key} = {value!r}: must be >= {_LEAST.get(key, 0)}")
        if key == "status" and number > 599:
            raise InputError(f"fault {kind}: status = {value!r}: must be 400-599")
        if key == "retry_after" and not (number.isascii() and number.isprintable()):
            raise InputError(f"fault {kind}: retry_after = {value!r}: must be a header's value")
    return Fault(kind, **values)


def parse(text: str) -> Fault:
    """Read `kind` or `kind:key=value,key=value`. Raises InputError."""
    kind, _, rest = text.partition(":")
    given: dict[str, Any] = {"kind": kind}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"fault {text!r}: `{item}` must be key=value")
        given[key] = value
    return build(given)


class Faults:
    """The faults that are switched on. The first of its sort applies; used up, it is gone."""

    def __init__(self, faults: list[Fault]) -> None:
        self._on = list(faults)

    def add(self, fault: Fault) -> None:
        """Switch one more on; it applies after those before it."""
        self._on.append(fault)

    def clear(self) -> None:
        """Switch all off."""
        self._on.clear()

    def listed(self) -> list[dict[str, Any]]:
        """List those that are on, with the settings that mean something."""
        known = settings()
        return [
            {k: v for k, v in asdict(f).items() if k == "kind" or k in known[f.kind]}
            for f in self._on
        ]

    def for_request(self) -> Fault | None:
        """Take the fault of a request for text, if there is one."""
        return self._take(_OF_TEXT)

    def for_scrape(self) -> Fault | None:
        """Take the fault of a look at /metrics, if there is one."""
        return self._take(_OF_METRICS)

    def for_health(self) -> Fault | None:
        """Take the fault of a look at /health, if there is one."""
        return self._take(_OF_HEALTH)

    def lie(self) -> Fault | None:
        """Look at the lie that is on, without using it up."""
        return next((f for f in self._on if f.kind is FaultKind.METRICS_LIE), None)

    def _take(self, kinds: frozenset[FaultKind]) -> Fault | None:
        for i, fault in enumerate(self._on):
            if fault.kind in kinds:
                if fault.times is not None:
                    if fault.times == 1:
                        del self._on[i]
                    else:
                        self._on[i] = replace(fault, times=fault.times - 1)
                return fault
        return None
