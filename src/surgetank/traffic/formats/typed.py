"""Columns that something faster than a row-by-row reader has split and converted.

Rule: all or nothing. A block is taken typed only when every row of it is plain: the values are then
those that the reader itself would find. For anything else `split` gives None, and the reader reads
the block cell by cell, so that bad rows, their lines and their reasons are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats import cells
from surgetank.traffic.formats.columns import Column
from surgetank.traffic.trace import UNKNOWN, Labels, Seconds

Kind = Literal["number", "name", "text"]
AlikeKind = Literal["number", "name", "text", "first number", "lists"]
"""Of JSON values: "first number" is a number, or a gap where there is a list of them ("0.2, 0.3");
"lists" are 1 where there is such a list, else 0."""
Typed = Seconds | Labels | NDArray[np.bytes_]
"""Numbers (NaN is a gap), names, or text of one width: bytes with zeros after the shorter ones."""

_NAMES: Final = frozenset({"tenant", "model", "session", "status"})


@dataclass(frozen=True, slots=True)
class Layout:
    """How the lines of separated values are laid out."""

    width: int  # cells of a row
    separator: str
    wanted: Sequence[tuple[int, Kind]]  # cell of a row, and what it holds


class Splitter(Protocol):
    """Splits blocks of one layout."""

    def split(self, block: bytes, rows: int) -> list[Typed] | None:
        """Give the wanted columns of `rows` whole lines; None unless all rows are plain."""


class Splitters(Protocol):
    """Makes a Splitter; an adapter's."""

    def __call__(self, layout: Layout) -> Splitter: ...


def is_utf8(block: bytes) -> bool:
    """Whether the text is one that a decoder takes as it is."""
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def named(written: Labels) -> Labels:
    """Names as `cells.labels` keeps them, of those that are written."""
    names = cells.labels(written.names)
    return Labels(np.append(names.codes, np.int32(UNKNOWN))[written.codes], names.names)


def kind_of(column: Column, first: Sequence[Any]) -> Kind:
    """What a column holds, from its first cells."""
    if column.ours in _NAMES:
        return "name"
    if column.ours not in {"arrived", "ended_at"}:
        return "number"
    try:
        float(first[0])
    except (TypeError, ValueError, OverflowError, IndexError):
        return "text"
    return "number"
