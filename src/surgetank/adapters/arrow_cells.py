"""Blocks of separated values to typed columns by Arrow: a large log's rows at a sixth of the cost.

Rule: exact or not at all (see `traffic.formats.typed`). Arrow refuses rows of another width and
numbers that are none; quotes, lone carriage returns, zero bytes and bad UTF-8 are refused here.
Arrow and not DuckDB: it takes a block that lies in memory, so the reader can go on with just the
block that is refused, and of packed logs and pipes too; and it costs a third less CPU time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, csv

from surgetank.traffic.formats import dateforms
from surgetank.traffic.formats.typed import Kind, Layout, Typed, is_utf8, named
from surgetank.traffic.trace import Labels

_TYPES: Final[dict[Kind, Any]] = {
    "number": pa.float64(),
    "name": pa.dictionary(pa.int32(), pa.string()),
    "text": pa.string(),
}
_REFUSED: Final = (b'"', b"\r", b"\0")


class ArrowSplitter:
    """Splits blocks of one layout."""

    def __init__(self, layout: Layout) -> None:
        names = [str(i) for i in range(layout.width)]
        wanted = {names[i]: kind for i, kind in layout.wanted}
        self._wanted = [(names[i], kind) for i, kind in layout.wanted]
        self._parse = csv.ParseOptions(delimiter=layout.separator, quote_char=False)
        self._convert = csv.ConvertOptions(
            column_types={name: _TYPES[kind] for name, kind in wanted.items()},
            include_columns=list(wanted),
            null_values=[""],
            strings_can_be_null=False,
        )
        self._names = names

    def split(self, block: bytes, rows: int) -> list[Typed] | None:
        """Give the wanted columns; None unless every line is one plain row."""
        if any(mark in block for mark in _REFUSED) or not is_utf8(block):
            return None
        read = csv.ReadOptions(
            use_threads=False, block_size=len(block) + 1, column_names=self._names
        )
        try:
            table = csv.read_csv(
                pa.BufferReader(block),
                read_options=read,
                parse_options=self._parse,
                convert_options=self._convert,
            )
        except (pa.ArrowException, UnicodeError):
            return None
        if len(table) != rows:
            return None
        found: list[Typed] = []
        for name, kind in self._wanted:
            values = table.column(name).combine_chunks()
            column = _column(values, kind)
            if column is None:
                return None
            found.append(column)
        return found


def _column(values: Any, kind: Kind) -> Typed | None:
    if kind == "number":
        numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
        return numbers
    if kind == "name":
        return _labels(values)
    return _packed(values)


def _labels(values: Any) -> Labels:
    codes = values.indices.to_numpy(zero_copy_only=False)
    return named(Labels(codes, tuple(values.dictionary.to_pylist())))


def _packed(values: Any) -> NDArray[np.bytes_] | None:
    """Text as rows of bytes; None when it is too long for a date."""
    width = compute.max(compute.binary_length(values)).as_py() or 0
    if not 0 < width <= dateforms.LONGEST:
        return None
    padded = compute.ascii_rpad(values, width, "\0")
    return np.frombuffer(padded.buffers()[2], f"S{width}", len(padded))
