"""One request of a schedule, and what a run of them came to."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from surgetank.loadtest.client import CHAT
from surgetank.loadtest.summary import nearest_rank
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import ENDINGS, Kind, Outcome

MAX_LAG: Final = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class Shot:
    """One request of a schedule. `at`: seconds after its start; other times in seconds.

    Key and body are kept out of its repr. `body` is sent as it is; `stream`, `max_tokens` and
    `model` say what is in it, for the record. `timeout` bounds each attempt, as in SDKs;
    `abandon_after` is the patience of who asked, over all attempts and the waits between them.
    """

    at: float
    body: bytes = field(default=b"", repr=False)
    tenant: str = ""
    key: str = field(default="", repr=False)
    id: str = ""
    model: str = ""
    route: str = CHAT
    session: str = ""
    stream: bool = True
    max_tokens: int | None = None
    timeout: float = 120.0
    abandon_after: float | None = None
    ttft_objective: float | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """The sender's own lateness, in seconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, lags: Sequence[float]) -> Lag:
        """Nearest ranks; all zero without a value."""
        ordered = sorted(lags)
        if not ordered:
            return cls(0.0, 0.0, 0.0)
        return cls(nearest_rank(ordered, 0.50), nearest_rank(ordered, 0.99), ordered[-1])


@dataclass(slots=True)
class Tally:
    """How far a run is: requests sent, and how those that ended did. It adds up."""

    sent: int = 0
    completed: int = 0
    refused: int = 0
    abandoned: int = 0
    failed: int = 0
    retries: int = 0

    @property
    def ended(self) -> int:
        return self.completed + self.refused + self.abandoned + self.failed

    def end(self, outcome: Outcome | None, retries: int) -> None:
        """Count one request that ended."""
        self.retries += retries
        kind = Kind.FAILED if outcome is None else ENDINGS[outcome].kind
        if kind is Kind.COMPLETED:
            self.completed += 1
        elif kind is Kind.REFUSED:
            self.refused += 1
        elif kind is Kind.ABANDONED:
            self.abandoned += 1
        else:
            self.failed += 1

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Add those of several processes."""
        rows = [astuple(tally) for tally in tallies]
        return cls(*(sum(column) for column in zip(*rows, strict=True)))


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What was sent, in the order of the schedule, and how well the sender kept to it.

    `elapsed`: seconds from the start to the last end; `planned`: shots of the schedule; `cpu`:
    processor seconds of all its processes; `lags`: of each shot sent, in seconds; `stopped`: it
    was ended early, and what was in flight was hung up on; `lost`: shots that a process of the
    sender took down with it.
    """

    records: list[RequestRecord]
    lag: Lag
    elapsed: float
    planned: int = 0
    cpu: float = 0.0
    processes: int = 1
    stopped: bool = False
    lost: int = 0
    max_lag: float = MAX_LAG
    lags: array[float] = field(default_factory=lambda: array("d"), repr=False)

    @property
    def invalid(self) -> str:
        """Why the figures are the sender's rather than the server's, in one line; else empty."""
        if self.lost:
            return f"INVALID: a process of the sender died with {self.lost} requests"
        if self.lag.p99 > self.max_lag:
            return (
                f"INVALID: the sender was late, lag P99 {self.lag.p99 * 1e3:.1f} ms is over "
                f"--max-lag {self.max_lag * 1e3:g} ms; use a lower rate, more --processes, or a "
                f"machine with idle cores"
            )
        return ""

    @property
    def valid(self) -> bool:
        """The send lag's P99 is within `max_lag`, and nothing was lost."""
        return not self.invalid

    def sender_json(self) -> dict[str, Any]:
        """Give the sender's own figures stable names."""
        sent = len(self.lags)
        return {
            "lag": {"p50": self.lag.p50, "p99": self.lag.p99, "max": self.lag.max},
            "max_lag": self.max_lag,
            "cpu_s": self.cpu,
            "cpu_us_per_request": self.cpu / sent * 1e6 if sent else None,
            "processes": self.processes,
            "planned": self.planned,
            "sent": sent,
            "stopped": self.stopped,
            "valid": self.valid,
            "invalid": self.invalid,
        }
