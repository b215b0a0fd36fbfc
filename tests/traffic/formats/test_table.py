"""Splitting of separated values: as the csv module does it, and the same wherever it is cut."""

from __future__ import annotations

import csv
import io
import itertools

from hypothesis import given
from hypothesis import strategies as st

from surgetank.traffic.formats.lines import Lines
from surgetank.traffic.formats.table import Table, _split_long, split_one
from surgetank.traffic.trace import BadRow

CELL = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)
ROW = st.tuples(CELL, st.text('a,"\n', max_size=6), CELL)


def split(pieces: list[bytes], width: int = 3) -> tuple[list[list[str]], list[int], set[BadRow]]:
    table, lines = Table(width, ",", range(width)), Lines()
    rows: list[list[str]] = []
    at: list[int] = []
    bad: set[BadRow] = set()
    cells = [table.split(*lines.take(piece)[:2]) for piece in pieces]
    for found in [*cells, table.finish()]:
        rows += [list(row) for row in zip(*found.columns, strict=True)]
        at += found.lines.tolist()
        bad |= set(found.bad)
    return rows, at, bad


@given(st.lists(ROW, min_size=1, max_size=8))
def test_what_the_csv_module_writes_is_read_back(rows: list[tuple[str, str, str]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    found, _, bad = split([out.getvalue().encode()])
    kept = [list(row) for row in rows if any(row)]
    assert [row for row in found if any(row)] == kept
    assert not bad


@given(st.text('ab,"\n\r ', max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_cutting_at_line_ends_changes_no_row(text: str, cuts: list[int]) -> None:
    data = text.encode()
    lines = data.splitlines(keepends=True) if b"\r" not in data else [data]
    where = sorted({min(c, len(lines)) for c in cuts} | {0, len(lines)})
    pieces = [b"".join(lines[a:b]) for a, b in itertools.pairwise(where)]
    assert split([p for p in pieces if p], 2) == split([data] if data else [], 2)


@given(st.lists(st.text('ab,"', max_size=6), min_size=1, max_size=5))
def test_a_long_record_is_split_as_a_short_one(cells: list[str]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
    record = out.getvalue()
    assert _split_long(record, ",") == split_one(record, ",")


def test_each_row_has_the_number_of_its_first_line() -> None:
    rows, at, bad = split([b'a,b\n"c\nd",e\nf\n\n', b"g,h"], 2)
    assert rows == [["a", "b"], ["c\nd", "e"], ["g", "h"]]
    assert at == [1, 2, 6]
    assert bad == {BadRow(4, "1 columns: must be 2")}
