"""Request logs as separated values: a header whose names are guessed or given, or none at all.

Rule: without a header the columns are arrival, prompt tokens and output tokens, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from surgetank.traffic.formats import columns, dateforms
from surgetank.traffic.formats.assembly import Assembly
from surgetank.traffic.formats.columns import Column
from surgetank.traffic.formats.lines import Lines
from surgetank.traffic.formats.reading import (
    Account,
    Format,
    ReadOptions,
    TimeUnit,
    UnreadableError,
)
from surgetank.traffic.formats.stamps import Stamps
from surgetank.traffic.formats.table import SEPARATORS, Cells, Table, split_one
from surgetank.traffic.formats.typed import Layout, Splitter, Splitters, kind_of
from surgetank.traffic.trace import Batch

_POSITIONS: Final = ("arrived", "prompt_tokens", "output_tokens")  # without a header
_NAME: Final = 64  # characters of a column's name; a longer one is text
_NO_SEPARATOR: Final = "\x1f"  # one column alone: a date's comma separates nothing
_FILENAME: Final = re.compile(r"\.[ct]sv(\.\w+)?$", re.IGNORECASE)  # .csv, .tsv.gz
_DIGIT: Final = re.compile(r"\d")
_MOST_REFUSED: Final = 16  # blocks that were not plain; then none is expected to be
_HEADER: Final = 1 << 16  # characters of the line that names the columns


class CsvReader:
    """Reads separated values; the first line that is not blank tells separator and columns."""

    def __init__(self, options: ReadOptions, *, unit: TimeUnit | None = None) -> None:
        """`unit` is the one of the format's numeric stamps, when the format has one."""
        columns.check_given(options.columns)
        self.account = Account()
        self._options = options
        self._assembly = Assembly(options, self.account, unit=unit)
        self._lines = Lines()
        self._table: Table | None = None
        self._columns: list[Column] = []
        self._splitters: Splitters | None = None
        self._splitter: Splitter | None = None
        self._refused = 0  # blocks one after the other

    @property
    def arrival_from(self) -> str:
        """What the arrivals are made of, as far as the rows so far tell."""
        return self._assembly.arrival_from

    def feed(self, lines: bytes) -> Batch:
        """Parse whole lines. Raises UnreadableError when no column holds a time."""
        block, numbers, bad = self._lines.take(lines)
        while self._table is None and block:
            first, block = _cut(block)
            text = first.decode("utf-8", "replace").replace("\r", " ")
            if not text.strip() or (text.startswith("#") and not _names_time(text[1:])):
                self.account.ignored["comment"] += bool(text.strip())
                numbers = numbers[1:]
                continue
            if self._begin(text.removeprefix("#")):
                numbers = numbers[1:]
            else:
                block = first + b"\n" + block
        if self._table is None:
            return self._batch(Cells([[] for _ in self._columns], numbers[:0], bad))
        if self._splitter is not None and not bad and not self._table.holds_rows:
            typed = self._splitter.split(block, len(numbers))
            found = dict(zip(self._columns, typed, strict=True)) if typed else {}
            batch = self._assembly.typed(found, numbers) if found else None
            if batch is not None:
                self._refused = 0
                return batch
            self._refused += 1
            if self._refused == _MOST_REFUSED:
                self._splitter = self._splitters = None
        cells = self._table.split(block, numbers)
        cells.bad.extend(bad)
        if self._splitters is not None and self._splitter is None and len(cells.lines):
            self._splitter = self._open_splitter(self._splitters, self._table, cells)
        return self._batch(cells)

    def hasten(self, splitters: Splitters) -> None:
        """Read plain blocks sooner, to the same rows; for a large log."""
        self._splitters = splitters

    def _open_splitter(self, splitters: Splitters, table: Table, cells: Cells) -> Splitter | None:
        """Make one from the first rows; None when a time is in several columns."""
        ours = [column.ours for column in self._columns]
        twice = len(set(table.wanted)) < len(table.wanted)
        if twice or ours.count("arrived") > 1 or ours.count("ended_at") > 1:
            self._splitters = None
            return None
        kinds = map(kind_of, self._columns, cells.columns)
        wanted = tuple(zip(table.wanted, kinds, strict=True))
        return splitters(Layout(table.width, table.separator, wanted))

    def finish(self) -> Batch:
        """Give the row whose quote was never closed, if it is one; note what the log looks like."""
        batch = Batch(np.empty(0))
        if self._table is not None:
            batch = self._batch(self._table.finish())
        self._assembly.finish()
        return batch

    def _batch(self, cells: Cells) -> Batch:
        if not self._columns:
            for row in cells.bad:
                self.account.skip(row.line, row.reason)
            return Batch(np.empty(0))
        found = dict(zip(self._columns, cells.columns, strict=True))
        return self._assembly.batch(found, cells.lines, cells.bad)

    def _begin(self, line: str) -> bool:
        """Learn the columns from the first line; True when it is a header."""
        separator = separator_of(line)
        row = split_one(line, separator) if len(line) <= _HEADER else None
        if row is None:
            raise UnreadableError("the first line is no header of columns, nor a row of cells")
        header = not is_data(row)
        names = [n.strip() for n in row] if header else [str(i + 1) for i in range(len(row))]
        if header:
            found = columns.guess(names, self._options.columns)
        else:
            found = columns.guess(names, self._without_header(row))
        where: dict[str, int] = {}
        for i, name in enumerate(names):
            where.setdefault(name, i)
            where.setdefault(str(i + 1), i)
        for column in found:
            if column.theirs not in where:
                raise UnreadableError(
                    f"no column {column.theirs!r} for {column.ours}: there are {_shown(names)}"
                )
        if not any(c.ours in {"arrived", "ended_at"} for c in found):
            raise UnreadableError(
                f"no column of arrival times among {_shown(names)}: "
                "name it with --column arrived=NAME"
            )
        self._columns = list(dict.fromkeys(found))
        if header and len(names) == 1:
            separator = _NO_SEPARATOR
        self._table = Table(len(names), separator, [where[c.theirs] for c in self._columns])
        return header

    def _without_header(self, row: Sequence[str]) -> dict[str, str]:
        if self._options.columns:
            return dict(self._options.columns)
        first = next((i for i, c in enumerate(row) if _is_date(c)), None)
        if first is None:
            first = next(i for i, c in enumerate(row) if _is_time(c))
        given = dict(zip(_POSITIONS, map(str, range(first + 1, len(row) + 1)), strict=False))
        self.account.note(
            "no header: columns are read as "
            + ", ".join(f"{theirs} = {ours}" for ours, theirs in given.items())
        )
        return given


def separator_of(line: str) -> str:
    """The separator that occurs most in a line; a comma when none does."""
    return max(SEPARATORS, key=line.count)


def is_data(row: Sequence[str]) -> bool:
    """Tell a row of values from a header: one of its cells is a time or a number."""
    return any(_is_time(cell) for cell in row)


def _is_time(cell: str) -> bool:
    return _is_date(cell) is not None


def _is_date(cell: str) -> bool | None:
    """Tell whether a cell is a time of its own or a mere number; None when it is neither."""
    if len(cell) > dateforms.LONGEST or not _DIGIT.search(cell):
        return None
    stamps = Stamps(ReadOptions(year=2000))
    try:
        if np.isnan(stamps.read([cell])[0]):
            return None
    except UnreadableError:
        return True  # a date that can be read both ways
    return stamps.relative is False


def _names_time(line: str) -> bool:
    names = split_one(line, separator_of(line)) if len(line) <= _HEADER else None
    return any(c.ours in {"arrived", "ended_at"} for c in columns.guess(names or [], {}))


def _cut(block: bytes) -> tuple[bytes, bytes]:
    first, _, rest = block.partition(b"\n")
    return first, rest


def _shown(names: Sequence[str]) -> str:
    """Names of columns for an error: a dozen of them, and no text that is no name."""
    short = [n for n in names if 0 < len(n) <= 40 and n.isprintable()]
    more = len(names) - len(short[:12])
    return ", ".join(short[:12]) + (f" and {more} more" if more else "") if short else "its cells"


def first_rows(head: bytes, most: int = 20) -> tuple[list[list[str]], str]:
    """Rows at the head of a log and their separator, without comments and the last, cut, line."""
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > 1:
        lines.pop()
    lines = [line for line in lines[: 2 * most] if line.strip()]
    while lines and lines[0].startswith("#"):
        if _names_time(lines[0][1:]):
            lines[0] = lines[0][1:]
        else:
            lines.pop(0)
    lines = lines[:most]
    if not lines or len(lines[0]) > _HEADER:
        return [], ","
    separator = separator_of(lines[0])
    return [split_one(line, separator) or [] for line in lines], separator


def header_of(head: bytes) -> list[str]:
    """Names in the first line; [] when it is no header."""
    if head[:1] in {b"{", b"["}:
        return []
    rows, _ = first_rows(head, 1)
    return [name.strip() for name in rows[0]] if rows and not is_data(rows[0]) else []


def _detect(head: bytes, filename: str) -> bool:
    rows, _ = first_rows(head)
    if not rows or (rows[0][:1] and rows[0][0].lstrip()[:1] in {"{", "["}):
        return False
    if is_data(rows[0]):
        return len({len(r) for r in rows}) == 1 and all(any(map(_is_time, r)) for r in rows)
    if all(len(name) <= _NAME for name in rows[0]):
        ours = {c.ours for c in columns.guess([n.strip() for n in rows[0]], {})}
        if ours & {"arrived", "ended_at"}:
            return True
    return _FILENAME.search(filename) is not None


FORMATS: Final = (Format("csv", "separated values, columns by name", _detect, CsvReader),)
