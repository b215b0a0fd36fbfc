"""Arrivals as columns: what a log says of its requests, without one word of their text.

Rule: a column is None when the log does not have it, and holds a gap (NaN, or -1 for counts) where
one row does not. Nothing is invented: 0 output tokens is a real value, unknown is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from surgetank.traffic.analysis import Analysis

Seconds = NDArray[np.float64]
Counts = NDArray[np.int64]
Codes = NDArray[np.int32]

UNKNOWN: Final = -1
"""A count or a code that a row does not state."""


class Ended(IntEnum):
    """How a logged request ended, as far as its log tells."""

    UNKNOWN = -1
    COMPLETED = 0
    REFUSED = 1  # 429, 503 of a limiter: never served
    FAILED = 2
    ABANDONED = 3  # the client left


@dataclass(frozen=True, slots=True)
class Labels:
    """A column of names: `codes[i]` is an index into `names`, or UNKNOWN."""

    codes: Codes
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Iterable[str | None]) -> Labels:
        """Encode names in order of first appearance; None and "" are UNKNOWN."""
        known: dict[str, int] = {}
        codes = [known.setdefault(v, len(known)) if v else UNKNOWN for v in values]
        return cls(np.array(codes, np.int32), tuple(known))

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Labels:
        """Keep the rows that `index` selects; names are kept whole."""
        return Labels(self.codes[index], self.names)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a log, in the log's order. All columns are of one length."""

    arrived: Seconds  # Unix seconds, or seconds from the log's own origin
    prompt_tokens: Counts | None = None
    output_tokens: Counts | None = None
    cached_tokens: Counts | None = None  # of the prompt: seen in an earlier request's prefix
    max_tokens: Counts | None = None  # bound on the output that the client set
    priority: Counts | None = None  # lower goes first
    duration: Seconds | None = None  # arrival to the last byte
    ttft: Seconds | None = None  # arrival to the first token
    ended: NDArray[np.int8] | None = None  # of Ended
    tenant: Labels | None = None
    model: Labels | None = None
    session: Labels | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            column = getattr(self, f.name)
            if column is None:
                continue
            length = len(column.codes if isinstance(column, Labels) else column)
            if length != len(self.arrived):
                raise ValueError(f"{f.name} has {length} rows: must be {len(self.arrived)}")

    def __len__(self) -> int:
        return len(self.arrived)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Batch:
        """Keep the rows that `index` selects, in its order."""
        kept: dict[str, Any] = {}
        for f in fields(self):
            column = getattr(self, f.name)
            if column is not None:
                kept[f.name] = column.take(index) if isinstance(column, Labels) else column[index]
        return Batch(**kept)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read."""

    line: int  # of the file, from 1
    reason: str  # what is wrong with it; never a piece of a prompt


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trace comes from, and what its reader saw."""

    path: str = ""
    format: str = ""
    rows: int = 0  # requests read
    skipped: int = 0  # rows that could not be read
    bad: tuple[BadRow, ...] = ()  # the first five of them
    ignored: dict[str, int] = field(default_factory=dict)  # rows that are no requests, by why
    arrival_from: str = "start"  # start | end - duration | end | window | relative start
    notes: tuple[str, ...] = ()  # what a reader of the figures must know


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole log in memory, sorted by arrival."""

    batch: Batch
    source: Source = field(default_factory=Source)

    @classmethod
    def of(cls, batches: Sequence[Batch], source: Source | None = None) -> Trace:
        """Join batches and sort them by arrival, equal stamps in the log's order."""
        batch = concatenate(batches)
        if len(batch) and np.any(np.diff(batch.arrived) < 0):
            batch = batch.take(np.argsort(batch.arrived, kind="stable"))
        return cls(batch, source or Source(rows=len(batch)))

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.batch.arrived[-1] - self.batch.arrived[0]) if len(self) else 0.0

    def burstiness(self, *, capacity_delay: float = 60.0, force: bool = False) -> Analysis:
        """Make all burst figures: `surgetank.read_log(path).burstiness().to_json()`.

        `capacity_delay` is how long added capacity takes to serve (s); `force` gives the figures
        that the stamps' resolution forbids as well.
        """
        from surgetank.traffic.burstiness import analyse  # noqa: PLC0415 - it takes this class

        return analyse(self, capacity_delay=capacity_delay, force=force)

    def relative(self) -> Trace:
        """Shift the arrivals so that the first is at 0."""
        if not len(self):
            return self
        first = self.batch.arrived[0]
        return Trace(replace(self.batch, arrived=self.batch.arrived - first), self.source)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Join batches; a column that only some have gets gaps in the others."""
    if not batches:
        return Batch(np.empty(0))
    if len(batches) == 1:
        return batches[0]
    joined: dict[str, Any] = {}
    for f in fields(Batch):
        columns = [getattr(b, f.name) for b in batches]
        present = next((c for c in columns if c is not None), None)
        if present is None:
            continue
        if isinstance(present, Labels):
            joined[f.name] = _join_labels(columns, batches)
        else:
            gap = np.nan if present.dtype.kind == "f" else UNKNOWN
            joined[f.name] = np.concatenate(
                [
                    np.full(len(b), gap, present.dtype) if c is None else c
                    for c, b in zip(columns, batches, strict=True)
                ]
            )
    return Batch(**joined)


def _join_labels(columns: Sequence[Labels | None], batches: Sequence[Batch]) -> Labels:
    known: dict[str, int] = {}
    codes = []
    for column, batch in zip(columns, batches, strict=True):
        if column is None:
            codes.append(np.full(len(batch), UNKNOWN, np.int32))
            continue
        to = [known.setdefault(name, len(known)) for name in column.names]
        codes.append(np.array([*to, UNKNOWN], np.int32)[column.codes])  # -1 is the last: UNKNOWN
    return Labels(np.concatenate(codes), tuple(known))
