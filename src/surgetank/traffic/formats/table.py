"""Separated values to columns of cells: quotes, breaks inside quotes, rows of the wrong length.

Rule: a row keeps the number of the line it begins on, and a stray quote costs its own line only.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats.reading import LONGEST_LINE
from surgetank.traffic.trace import BadRow

SEPARATORS: Final = ",;\t|"
_TOGETHER: Final = 2000  # records at a time: so few lists that the garbage collector stays idle
_LONG_CELL: Final = 100_000  # characters: near the csv module's own limit, which is global


@dataclass(slots=True)
class Cells:
    """Rows of one block: `columns[i]` are the cells of the wanted column i."""

    columns: list[list[str]]
    lines: NDArray[np.int64]
    bad: list[BadRow]


@dataclass(slots=True)
class Table:
    """Splits blocks of whole lines into rows of `width` cells, of which it gives the `wanted`."""

    width: int
    separator: str
    wanted: Sequence[int]
    _open: list[str] = field(default_factory=list)  # lines of a row whose quote is not closed
    _open_at: list[int] = field(default_factory=list)
    _open_size: int = 0

    @property
    def holds_rows(self) -> bool:
        """Whether a row was begun whose quote is not closed yet."""
        return bool(self._open)

    def split(self, block: bytes, lines: NDArray[np.int64]) -> Cells:
        """Split a block; a row that goes on in the next one is held back."""
        if b"\r" in block:
            block = block.replace(b"\r", b" ")  # alone it ends no line; the csv module refuses it
        if not self._open and b'"' not in block:
            return self._plain(block, lines)
        text = block.decode("utf-8", "replace")
        return self._rows(text.split("\n")[:-1], lines.tolist())

    def finish(self) -> Cells:
        """Give the rows of what is held back."""
        records: list[str] = []
        at: list[int] = []
        bad: list[BadRow] = []
        self._give_up(records, at, bad)
        return self._parsed(records, at, bad)

    def _plain(self, block: bytes, lines: NDArray[np.int64]) -> Cells:
        """Split what has no quotes: all cells at once, when each line has as many as it must."""
        raw = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(raw == 10)
        separators = np.flatnonzero(raw == ord(self.separator))
        width = np.diff(np.searchsorted(separators, ends), prepend=0) + 1
        empty = np.diff(ends, prepend=-1) == 1
        good = (width == self.width) & ~empty
        text = block.decode("utf-8", "replace")
        bad: list[BadRow] = []
        if not good.all():
            rows = text.split("\n")
            bad += [
                BadRow(int(lines[i]), self._wrong_width(int(width[i])))
                for i in np.flatnonzero(~good)
                if rows[i].strip()
            ]
            text = "".join(rows[i] + "\n" for i in np.flatnonzero(good))
            lines = lines[good]
        flat = text.replace("\n", self.separator).split(self.separator)
        flat.pop()  # what follows the last separator: nothing
        return Cells([flat[i :: self.width] for i in self.wanted], lines, bad)

    def _rows(self, rows: Sequence[str], lines: Sequence[int]) -> Cells:
        records: list[str] = []
        at: list[int] = []
        bad: list[BadRow] = []
        for row, line in zip(rows, lines, strict=True):
            if not self._open and row.count('"') % 2 == 0:
                records.append(row)
                at.append(line)
                continue
            closes = bool(self._open) and row.count('"') % 2 == 1
            self._open.append(row)
            self._open_at.append(line)
            self._open_size += len(row)
            if closes:
                records.append("\n".join(self._open))
                at.append(self._open_at[0])
                self._clear()
            elif self._open_size > LONGEST_LINE:
                self._give_up(records, at, bad)
        return self._parsed(records, at, bad)

    def _give_up(self, records: list[str], at: list[int], bad: list[BadRow]) -> None:
        """No end to a quote: the lines since are rows of their own, and odd ones are bad."""
        for row, line in zip(self._open, self._open_at, strict=True):
            if row.count('"') % 2:
                bad.append(BadRow(line, "a quote is not closed"))
            else:
                records.append(row)
                at.append(line)
        self._clear()

    def _clear(self) -> None:
        self._open, self._open_at, self._open_size = [], [], 0

    def _parsed(self, records: list[str], at: list[int], bad: list[BadRow]) -> Cells:
        columns: list[list[str]] = [[] for _ in self.wanted]
        kept: list[int] = []
        for i in range(0, len(records), _TOGETHER):
            part = slice(i, i + _TOGETHER)
            self._some(records[part], at[part], columns, kept, bad)
        return Cells(columns, np.array(kept, np.int64), bad)

    def _some(
        self,
        records: list[str],
        at: list[int],
        columns: list[list[str]],
        kept: list[int],
        bad: list[BadRow],
    ) -> None:
        rows = split_all(records, self.separator)
        good = []
        for row, record, line in zip(rows, records, at, strict=True):
            if row is not None and len(row) == self.width and record.strip():
                good.append(row)
                kept.append(line)
            elif record.strip():
                bad.append(BadRow(line, self._wrong_width(len(row) if row else 0)))
        for column, i in zip(columns, self.wanted, strict=True):
            column += [row[i] for row in good]

    def _wrong_width(self, width: int) -> str:
        return f"{width} columns: must be {self.width}"


def split_all(records: Sequence[str], separator: str) -> list[list[str] | None]:
    """Split records, one row each, whatever their quotes; None is a record that is no row."""
    if all(len(r) < _LONG_CELL for r in records):
        try:
            rows: list[list[str] | None] = list(csv.reader(records, delimiter=separator))
        except csv.Error:
            rows = []
        if len(rows) == len(records):
            return rows
    return [split_one(record, separator) for record in records]


def split_one(record: str, separator: str) -> list[str] | None:
    """Split one record; None when the csv module refuses it."""
    if len(record) >= _LONG_CELL:
        return _split_long(record, separator)
    try:
        return next(csv.reader([record], delimiter=separator), [])
    except csv.Error:
        return None


def _split_long(record: str, separator: str) -> list[str]:
    """Split as the csv module does, without its limit on a cell's length."""
    cells: list[str] = []
    at = 0
    while True:
        cell = ""
        if record.startswith('"', at):
            at += 1
            while True:
                end = record.find('"', at)
                if end < 0:
                    cells.append(cell + record[at:])
                    return cells
                cell += record[at:end]
                at = end + 1
                if not record.startswith('"', at):
                    break
                cell += '"'
                at += 1
        end = record.find(separator, at)
        cells.append(cell + (record[at:] if end < 0 else record[at:end]))
        if end < 0:
            return cells
        at = end + 1
