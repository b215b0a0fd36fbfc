"""What every log reader is: whole lines in, columns out, and an account of what it could not read.

Rule: a reader raises only `UnreadableError`, for a log that it cannot read at all; a bad row is
counted. It never keeps the text of a prompt.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Final, Literal, Protocol

from surgetank.errors import InputError
from surgetank.traffic.trace import BadRow, Batch

SHOWN: Final = 5  # bad rows that are told one by one
LONGEST_LINE: Final = 1 << 20  # bytes; a longer line is a bad row, whatever it holds


TimeUnit = Literal["s", "ms", "us", "ns"]
UNITS: Final[tuple[TimeUnit, ...]] = ("s", "ms", "us", "ns")


class UnreadableError(InputError):
    """The whole log cannot be read in this format; one line that says why and what would do."""


@dataclass(slots=True)
class Account:
    """What happened to the rows so far."""

    rows: int = 0  # requests
    skipped: int = 0  # could not be read
    bad: list[BadRow] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)  # "probe", "not a request", ...
    notes: list[str] = field(default_factory=list)  # said once each

    def skip(self, line: int, reason: str) -> None:
        """Count a row that cannot be read; the first few of the log are kept with their reason."""
        self.skipped += 1
        if len(self.bad) < SHOWN or line < self.bad[-1].line:  # readers tell some at their end
            insort(self.bad, BadRow(line, reason), key=lambda row: row.line)
            del self.bad[SHOWN:]

    def note(self, text: str) -> None:
        """Remember what a reader of the figures must know."""
        if text not in self.notes:
            self.notes.append(text)


class Reader(Protocol):
    """Reads one log. `feed` gets whole lines (each ends in a newline, the last one may not)."""

    account: Account

    @property
    def arrival_from(self) -> str:
        """Of the rows so far: start, end - duration, end, window or relative start."""

    def feed(self, lines: bytes) -> Batch:
        """Parse some lines; their line numbers follow those fed before."""

    def finish(self) -> Batch:
        """Give what was held back (a request whose lines were not complete)."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a log does not say of itself."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Our column to the log's, a name, a dotted path or a 1-based position, with an optional unit:
    `{"arrived": "when", "duration": "took:ms"}`. What is not named here is guessed."""
    time_unit: TimeUnit | None = None  # of numeric stamps; None tells it from their magnitude
    timezone: tzinfo = UTC  # of stamps without a zone
    year: int | None = None  # of stamps without one
    day_first: bool | None = None  # 03/04/2026 is 3 April; None refuses what can be read both ways
    estimate_tokens: bool = False  # prompt tokens = characters / 4 where only those are logged
    start: float | None = None  # Unix seconds of a relative log's zero; None leaves it relative
    seed: int = 0  # of arrivals drawn where a log holds rates only


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of log: how it is told from the others, and how it is read."""

    name: str  # as `--format` takes it
    title: str  # for people
    detect: Callable[[bytes, str], bool]  # (head of the content, file name) -> is it this one
    open: Callable[[ReadOptions], Reader]
