"""Request logs as JSON lines whose keys are guessed or given; dotted names reach into objects.

Rule: which keys count is decided row by row, so that a log cut in other places reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats import columns
from surgetank.traffic.formats.assembly import NO_TIME, Assembly
from surgetank.traffic.formats.columns import Column
from surgetank.traffic.formats.jsonlines import JsonLines, first_object
from surgetank.traffic.formats.lines import Lines
from surgetank.traffic.formats.reading import Account, Format, ReadOptions, UnreadableError
from surgetank.traffic.formats.typed import AlikeKind, kind_of, named
from surgetank.traffic.trace import BadRow, Batch, Labels

if TYPE_CHECKING:
    from surgetank.traffic.formats.alike import AlikeBlocks, Shape

_MOST_KEYS: Final = 10_000  # different keys looked at; a log of more has ids for keys
_INSIDE: Final = frozenset({"usage"})  # objects looked into for the usual names


class JsonReader:
    """Reads objects by the names of their keys."""

    def __init__(self, options: ReadOptions) -> None:
        columns.check_given(options.columns)
        self.account = Account()
        self._options = options
        self._assembly = Assembly(options, self.account)
        self._lines = Lines()
        self._json: JsonLines[dict[str, Any]] = JsonLines(dict[str, Any])
        self._inside = _INSIDE | {
            name.split(".")[0] for name in options.columns.values() if "." in name
        }
        self._seen: dict[str, None] = {}  # keys of the first rows, for an error
        self._timed = False  # a key of times was seen
        self._alike: AlikeBlocks | None = None
        self._alike_columns: list[Column] = []

    @property
    def arrival_from(self) -> str:
        """What the arrivals are made of, as far as the rows so far tell."""
        return self._assembly.arrival_from

    def feed(self, lines: bytes) -> Batch:
        """Parse whole lines."""
        block, numbers, bad = self._lines.take(lines)
        if self._alike is not None and self._timed and not bad:
            batch = self._plain(self._alike, block, numbers)
            if batch is not None:
                return batch
        rows, at, worse = self._json.split(block, numbers)
        bad += worse
        found = self._columns(rows)
        if not any(c.ours in {"arrived", "ended_at"} for c in found):
            self._without_times(at.tolist(), bad)
            return Batch(np.empty(0))
        self._timed = True
        cells = {column: _values(rows, column.theirs) for column in found}
        return self._assembly.batch(cells, at, bad)

    def finish(self) -> Batch:
        """Note what the log looks like. Raises UnreadableError when no row had a key of times."""
        if not self._timed and self._seen:
            names = [n for n in self._seen if len(n) <= 40 and n.isprintable()][:12]
            raise UnreadableError(
                f"no key of arrival times among {', '.join(names) or 'the rows'}: name it with"
                " --column arrived=NAME"
            )
        self._assembly.finish()
        return Batch(np.empty(0))

    def hasten(self) -> None:
        """Read blocks of lines that are alike sooner, to the same rows; for a large log."""
        from surgetank.traffic.formats.alike import AlikeBlocks  # noqa: PLC0415 - numba is heavy

        self._alike = AlikeBlocks(self._choose)

    def _choose(self, shape: Shape) -> Sequence[tuple[str, AlikeKind]] | None:
        found = columns.guess(sorted(shape.keys), self._options.columns)
        found = [c for c in dict.fromkeys(found) if c.theirs in shape.keys]
        ours = [c.ours for c in found]
        once = ours.count("arrived") <= 1 and ours.count("ended_at") <= 1
        if not once or len({c.theirs for c in found}) < len(found):
            return None
        if "arrived" not in ours and "ended_at" not in ours:
            return None
        self._alike_columns = found
        value_of = dict(zip(shape.keys, shape.values, strict=True))
        return [(c.theirs, _kind(c, value_of[c.theirs])) for c in found]

    def _plain(self, alike: AlikeBlocks, block: bytes, numbers: NDArray[np.int64]) -> Batch | None:
        """Read a block of lines that are alike; None when it must be decoded row by row."""
        typed = alike.split(block, len(numbers))
        if typed is None:
            return None
        columns_of = zip(self._alike_columns, typed, strict=True)
        found = {c: named(v) if isinstance(v, Labels) else v for c, v in columns_of}
        return self._assembly.typed(found, numbers)

    def _columns(self, rows: Sequence[Mapping[str, Any]]) -> list[Column]:
        names = sorted(keys_of(rows, self._inside))
        if not self._timed and len(self._seen) < 100:
            self._seen.update(dict.fromkeys(names[:100]))
        present = set(names)
        found = columns.guess(names, self._options.columns)
        return [c for c in dict.fromkeys(found) if c.theirs in present]

    def _without_times(self, at: Sequence[int], bad: Sequence[BadRow]) -> None:
        for row in sorted([*bad, *(BadRow(line, NO_TIME) for line in at)], key=lambda r: r.line):
            self.account.skip(row.line, row.reason)


def _kind(column: Column, value: str | float) -> AlikeKind:
    """What a column holds, by its first value; a status can be a number or a word."""
    if column.ours == "status" and isinstance(value, float):
        return "number"
    return kind_of(column, [value])


def keys_of(rows: Iterable[Mapping[str, Any]], inside: Iterable[str]) -> set[str]:
    """All keys of the rows, and those of the objects under the keys `inside`, dotted."""
    names: set[str] = set().union(*rows)
    for outer in names & set(inside):
        inner = (row.get(outer) for row in rows)
        below: set[str] = set().union(*(v for v in inner if isinstance(v, dict)))
        names |= {f"{outer}.{name}" for name in below}
    return names if len(names) <= _MOST_KEYS else set(sorted(names)[:_MOST_KEYS])


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    if any(name in row for row in rows):
        return [row.get(name) for row in rows]
    outer, _, inner = name.partition(".")
    return [v.get(inner) if isinstance(v := row.get(outer), dict) else None for row in rows]


def _detect(head: bytes, filename: str) -> bool:  # noqa: ARG001 - the content tells
    first = first_object(head)
    if not first:
        return False
    return all(isinstance(key, str) for key in first)


FORMATS: Final = (Format("jsonl", "JSON lines, columns by name", _detect, JsonReader),)
