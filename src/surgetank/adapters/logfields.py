"""The fields of a log's lines by name, whatever they hold; and a search of them for personal data.

Rule: values are looked at and forgotten. What is told is where something was found and of what
kind, never the thing itself.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from surgetank.adapters.logbytes import STDIN, LogBytes
from surgetank.adapters.loglines import Lines
from surgetank.errors import InputError
from surgetank.traffic.formats.reading import LONGEST_LINE
from surgetank.traffic.personal import kinds

LINE: Final = "(line)"  # the name of the whole of a line that has no fields we know
TOO_LONG: Final = f"longer than {LONGEST_LINE >> 20} MB: not looked at"
_DEEPEST: Final = 8  # levels of JSON below which a value is one piece
_HEADER: Final = re.compile(rb"[^\n]*[A-Za-z_][^\n]*,[^\n]*")
_NUMBER: Final = re.compile(r"[\d.:\-+TZ ]+")
_ROWS: Final = 1 << 14
_SHORT: Final = 64  # characters

Progress = Callable[[float | None], None]


@dataclass(slots=True)
class Finding:
    """Lines whose field `field` seems to hold `kind`."""

    kind: str
    field: str
    lines: int
    first: int  # number of the first of them, from 1 (of a row in Parquet)


class Fields:
    """Splits lines into named fields: JSON objects, CSV with a header, else the line as a whole."""

    def __init__(self, first: bytes) -> None:
        """Take the log's first line."""
        self._columns: list[str] = []
        text = first.decode("utf-8-sig", "replace").rstrip("\r\n")
        if not text.lstrip().startswith("{") and _HEADER.fullmatch(first.rstrip(b"\r\n")):
            cells = _cells(text)
            if not any(_NUMBER.fullmatch(cell) for cell in cells):  # a header states no number
                self._columns = cells

    def split(self, line: bytes) -> Iterator[tuple[str, str]]:
        """Give each field that holds text, with its name."""
        if line.lstrip()[:1] == b"{":
            try:
                row = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError):
                pass
            else:
                yield from _leaves("", row, 0)
                return
        text = line.decode("utf-8", "replace").strip("\r\n")
        cells = _cells(text) if self._columns else []
        if self._columns and len(cells) == len(self._columns):
            yield from zip(self._columns, cells, strict=True)
        else:
            yield LINE, text

    def names(self, lines: bytes) -> list[str]:
        """List the names in some lines; empty when the lines have no fields that are known."""
        if self._columns:
            return list(self._columns)
        found: dict[str, None] = {}
        for line in lines.splitlines():
            if line.lstrip()[:1] == b"{":
                found.update(dict.fromkeys(name for name, _ in self.split(line)))
        found.pop(LINE, None)
        return list(found)


def check(path: str | Path, progress: Progress | None = None) -> list[Finding]:
    """Search a file, line by line, for what looks like personal data; the most frequent first.

    Raises InputError when it cannot be read.
    """
    found: dict[tuple[str, str], Finding] = {}
    data = LogBytes(path)
    try:
        for number, fields in _parquet(data) if data.parquet else _lines(data, progress):
            for name, text in fields:
                for kind in [text] if text is TOO_LONG else _kinds(text):
                    seen = found.setdefault((kind, name), Finding(kind, name, 0, number))
                    seen.lines += 1
    finally:
        data.close()
    return sorted(found.values(), key=lambda f: (-f.lines, f.first, f.kind))


def _kinds(text: str) -> tuple[str, ...]:
    return (
        _kinds_of_short(text)
        if len(text) <= _SHORT
        else tuple(kinds(text.encode("utf-8", "replace")))
    )


@lru_cache(maxsize=4096)
def _kinds_of_short(text: str) -> tuple[str, ...]:
    """Look at a name or a status once, not in every line."""
    return tuple(kinds(text.encode("utf-8", "replace")))


def _lines(
    data: LogBytes, progress: Progress | None
) -> Iterator[tuple[int, Iterator[tuple[str, str]]]]:
    lines = Lines(data)
    fields: Fields | None = None
    number = 0
    for piece in _with_rest(lines):
        for line in piece.removesuffix(b"\n").split(b"\n"):
            number += 1
            fields = fields or Fields(line)
            yield number, fields.split(line)
        for left_out in lines.too_long:
            yield left_out, iter([(LINE, TOO_LONG)])
        lines.too_long.clear()
        if progress is not None:
            progress(data.consumed / data.size if data.size else None)
    if data.torn:
        raise InputError(f"{data.name}: {data.torn}: what comes after was not checked")


def _with_rest(lines: Lines) -> Iterator[bytes]:
    yield from lines
    if lines.rest:
        yield lines.rest


def _parquet(data: LogBytes) -> Iterator[tuple[int, Iterator[tuple[str, str]]]]:
    import pyarrow as pa  # noqa: PLC0415 - only Parquet needs it
    import pyarrow.parquet as pq  # noqa: PLC0415 - same

    if data.name == STDIN:
        raise InputError("-: Parquet has its index at its end: name the file, not a pipe")
    try:
        with pq.ParquetFile(data.name, buffer_size=1 << 20, pre_buffer=False) as file:
            number = 0
            text = [field.name for field in file.schema_arrow if _may_hold_text(field.type)]
            for batch in file.iter_batches(_ROWS, columns=text) if text else ():
                for row in batch.to_pylist():
                    number += 1
                    yield number, _leaves("", row, 0)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{data.name}: is not whole as Parquet") from error


def _may_hold_text(kind: Any) -> bool:
    from pyarrow import types  # noqa: PLC0415 - only Parquet needs it

    return not (types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind))


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Give the leaves of a JSON value; those of a list share their name."""
    if isinstance(value, dict) and depth < _DEEPEST:
        for key, below in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), below, depth + 1)
    elif isinstance(value, list) and depth < _DEEPEST:
        for below in value:
            yield from _leaves(name, below, depth + 1)
    else:
        yield name or LINE, value if isinstance(value, str) else str(value)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []
