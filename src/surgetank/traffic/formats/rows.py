"""Rows of a log put together as columns, and the loop that every line-by-line reader shares.

Rule: what a row does not state stays a gap, and a column that no row states is None. A reason for
a bad or an ignored row is one of our own sentences, never a piece of the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats.reading import LONGEST_LINE, Account
from surgetank.traffic.trace import UNKNOWN, Batch, Counts, Ended, Labels, Seconds

_LARGEST_COUNT: Final = 2**53  # beyond it a JSON number is no exact integer
LAST_TIME: Final = 253_402_300_800.0  # year 10000, the end of ISO dates
_DIGITS: Final = re.compile(r"\d{1,16}\Z", re.ASCII)
_NUMBER: Final = re.compile(
    r"(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][+-]?\d{1,3})?\Z", re.ASCII
)
UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}  # seconds
_LONGEST_NAME: Final = 256
TOO_LONG: Final = f"longer than {LONGEST_LINE} bytes"
GAP: Final = math.nan
NOT_JSON: Final = (msgspec.MsgspecError, ValueError, RecursionError)  # what a decoder may raise


class BadLineError(Exception):
    """A line that should be a request and cannot be read; says why."""


class NotARequestError(Exception):
    """A line that is no inference request; says what it is."""


@dataclass(slots=True)
class Row:
    """One request."""

    arrived: float
    duration: float = GAP
    ttft: float = GAP
    prompt_tokens: int = UNKNOWN
    output_tokens: int = UNKNOWN
    cached_tokens: int = UNKNOWN
    max_tokens: int = UNKNOWN
    ended: Ended = Ended.UNKNOWN
    tenant: str | None = None
    model: str | None = None
    session: str | None = None


def columns(rows: Iterable[Row]) -> Batch:
    """Turn rows into columns."""
    rows = list(rows)
    if not rows:
        return Batch(np.empty(0))
    return Batch(
        np.array([r.arrived for r in rows], np.float64),
        prompt_tokens=counts([r.prompt_tokens for r in rows]),
        output_tokens=counts([r.output_tokens for r in rows]),
        cached_tokens=counts([r.cached_tokens for r in rows]),
        max_tokens=counts([r.max_tokens for r in rows]),
        duration=durations(np.array([r.duration for r in rows], np.float64)),
        ttft=durations(np.array([r.ttft for r in rows], np.float64)),
        ended=outcomes(np.array([r.ended for r in rows], np.int8)),
        tenant=labels([r.tenant for r in rows]),
        model=labels([r.model for r in rows]),
        session=labels([r.session for r in rows]),
    )


def counts(values: list[int]) -> Counts | None:
    """Make a column of counts; None when no row states one."""
    column = np.array(values, np.int64)
    return column if np.any(column != UNKNOWN) else None


def durations(column: Seconds) -> Seconds | None:
    """Keep a column of seconds; None when no row states one."""
    return column if np.any(column == column) else None  # noqa: PLR0124 -- NaN is the gap


def outcomes(column: NDArray[np.int8]) -> NDArray[np.int8] | None:
    """Keep a column of outcomes; None when no row states one."""
    return column if np.any(column != Ended.UNKNOWN) else None


def labels(values: list[str | None]) -> Labels | None:
    """Make a column of names; None when no row states one.

    "-" is none, and so is what is too long for a name: it may be anything.
    """
    distinct = dict.fromkeys(values)  # in order of first appearance, like Labels.of, but faster
    names = [v for v in distinct if v and v != "-" and len(v) <= _LONGEST_NAME]
    if not names:
        return None
    number = dict.fromkeys(distinct, UNKNOWN) | {name: i for i, name in enumerate(names)}
    return Labels(np.array(list(map(number.__getitem__, values)), np.int32), tuple(names))


def arrival(seconds: float) -> float:
    """Check a time; BadLineError when it cannot be one."""
    if not -LAST_TIME < seconds < LAST_TIME:  # NaN too
        raise BadLineError("time out of range")
    return seconds


def count(value: object) -> int:
    """Read a count of tokens from a number or its digits; UNKNOWN when it states none."""
    if isinstance(value, str):
        value = int(value) if _DIGITS.match(value) else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_COUNT:
        return value
    return UNKNOWN


def number(value: object) -> float:
    """Read a number or its digits; NaN when it is none."""
    if isinstance(value, str):
        value = float(value) if _NUMBER.match(value) else None
    return float(value) if isinstance(value, int | float) and abs(value) < LAST_TIME else GAP


def seconds(value: object, unit: float = 1.0) -> float:
    """Read a duration from a number or its digits, times `unit` seconds; NaN when it states none.

    "-", "", -1 and anything negative or endless are gaps.
    """
    if isinstance(value, str):
        value = float(value) if _NUMBER.match(value) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LAST_TIME:
        return value * unit
    return GAP


def lines_of(block: bytes) -> Iterator[bytes]:
    """Yield the lines of a block without their ends (LF or CR LF)."""
    start, end = 0, len(block)
    while start < end:
        stop = block.find(b"\n", start)
        stop = end if stop < 0 else stop
        yield block[start : stop - 1 if block[stop - 1 : stop] == b"\r" else stop]
        start = stop + 1


def pieces_of(block: bytes, size: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield runs of whole lines of at most `size` bytes each, or one single longer line."""
    start, end = 0, len(block)
    while start < end:
        if end - start <= size:
            stop = end
        else:
            stop = block.rfind(b"\n", start, start + size) + 1
            if not stop:
                stop = block.find(b"\n", start) + 1 or end
        yield block[start:stop]
        start = stop


Parse = Callable[[str], Row | list[Row]]
Last = Callable[[], list[Row]]


def _nothing() -> list[Row]:
    return []


class LineReader:
    """Reads a log line by line."""

    def __init__(
        self,
        parse: Parse,
        *,
        arrival_from: str = "start",
        account: Account | None = None,
        last: Last = _nothing,
    ) -> None:
        """`parse` gives the request(s) of a line, or raises BadLineError or NotARequestError.

        `last` gives those that were held back, at the end; it may raise UnreadableError.
        """
        self.account = Account() if account is None else account
        self.arrival_from = arrival_from
        self._parse = parse
        self._last = last
        self._line = 0

    def feed(self, lines: bytes) -> Batch:
        """Parse some lines."""
        rows: list[Row] = []
        for raw in lines_of(lines):
            self._line += 1
            text = raw if self._line > 1 else raw.removeprefix(b"\xef\xbb\xbf")
            if not text or text.isspace():
                continue
            if len(text) > LONGEST_LINE:
                self.account.skip(self._line, TOO_LONG)
                continue
            try:
                found = self._parse(text.decode("utf-8", "replace"))
            except BadLineError as e:
                self.account.skip(self._line, str(e))
            except NotARequestError as e:
                self.account.ignored[str(e)] += 1
            else:
                rows += found if isinstance(found, list) else (found,)
        self.account.rows += len(rows)
        return columns(rows)

    def finish(self) -> Batch:
        """Give the requests that were held back."""
        rows = self._last()
        self.account.rows += len(rows)
        return columns(rows)
