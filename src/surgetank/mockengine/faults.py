"""Faults on demand: what an engine can do to a gateway, one entry each.

Rule: a fault is data, given by flag (`--fault cut:after=5,times=1`) or POSTed to /mock/faults as
JSON (`{"kind":"cut","after":5,"times":1}`); both are read by the same code. What strikes by the
clock is asked for with `now`, seconds of the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from random import Random
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
    SLOW = "slow"
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
    FaultKind.STATUS: (
        "status retry_after share",
        "the answer is that status, with that Retry-After; to that share of the requests (1: all)",
    ),
    FaultKind.SLOW: (
        "factor start width period",
        (
            "each step takes factor (2) times as long, from start (0) seconds after it was switched"
            " on, for width seconds (for good without it), again every period seconds"
        ),
    ),
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
_OF_CLOCK: Final = frozenset({FaultKind.SLOW})
_OF_TEXT: Final = frozenset(FaultKind) - _OF_METRICS - _OF_HEALTH - _OF_CLOCK


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `settings` tells which ones mean something."""

    kind: FaultKind
    times: int | None = None
    after: int = 0
    seconds: float = 0.0
    status: int = 500
    retry_after: str = ""
    share: float = 1.0
    factor: float = 2.0
    start: float = 0.0
    width: float | None = None
    period: float | None = None
    running: int = 0
    waiting: int = 0
    kv: float = 0.0

    def slowness(self, since: float) -> tuple[float, float]:
        """Tell how many times as long a step takes so many seconds after it was switched on.

        And when that changes next, in the same seconds: infinite where it never does.
        """
        ahead = since - self.start
        if ahead < 0:
            return 1.0, self.start
        if self.width is None:
            return self.factor, math.inf
        number = 0 if self.period is None else int(ahead // self.period)
        last = (1 if self.period is None else self.times or math.inf) - 1
        begin = self.start + min(number, last) * (self.period or 0.0)
        if number <= last and since < begin + self.width:
            return self.factor, begin + self.width
        return 1.0, begin + self.period if self.period and number < last else math.inf


_CONVERT: Final = {
    "times": int,
    "after": int,
    "seconds": float,
    "status": int,
    "retry_after": str,
    "share": float,
    "factor": float,
    "start": float,
    "width": float,
    "period": float,
    "running": int,
    "waiting": int,
    "kv": float,
}
_LEAST: Final = {"times": 1, "status": 400, "factor": 0.001, "width": 0.001, "period": 0.001}


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
        if key == "share" and number > 1:
            raise InputError(f"fault {kind}: share = {value!r}: must be in [0, 1]")
    return _whole(Fault(kind, **values))


def _whole(fault: Fault) -> Fault:
    """Raise InputError for settings that make no sense together."""
    width, period = fault.width, fault.period
    if period is not None and (width is None or width >= period):
        told = "missing" if width is None else f"{width:g}"
        raise InputError(f"fault {fault.kind}: width = {told}: must be below period = {period:g}")
    return fault


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
    """The faults that are switched on. The first of its sort applies; used up, it is gone.

    `seed`: of those that strike a share of the requests.
    """

    def __init__(self, faults: Iterable[Fault], seed: int, now: float) -> None:
        self._on: list[Fault] = []
        self._since: list[float] = []  # when each was switched on
        self._random = Random(f"faults/{seed}")
        for fault in faults:
            self.add(fault, now)

    def add(self, fault: Fault, now: float = 0.0) -> None:
        """Switch one more on; it applies after those before it. `now` is for SLOW alone."""
        self._on.append(fault)
        self._since.append(now)

    def clear(self) -> None:
        """Switch all off."""
        self._on.clear()
        self._since.clear()

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

    def slowness(self, now: float) -> tuple[float, float]:
        """Tell how many times as long each step takes now, and until when; several multiply."""
        factor, until = 1.0, math.inf
        for fault, since in zip(self._on, self._since, strict=True):
            if fault.kind is FaultKind.SLOW:
                one, change = fault.slowness(now - since)
                factor, until = factor * one, min(until, since + change)
        return factor, until

    def _take(self, kinds: frozenset[FaultKind]) -> Fault | None:
        for i, fault in enumerate(self._on):
            if fault.kind in kinds and self._strikes(fault):
                if fault.times is not None:
                    if fault.times == 1:
                        del self._on[i], self._since[i]
                    else:
                        self._on[i] = replace(fault, times=fault.times - 1)
                return fault
        return None

    def _strikes(self, fault: Fault) -> bool:
        return fault.share >= 1 or self._random.random() < fault.share
