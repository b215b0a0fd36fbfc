"""Reads bytes with a format, as one piece or cut at line ends: what the tests of readers share."""

from __future__ import annotations

from collections.abc import Iterable

from surgetank.traffic.formats.reading import Format, Reader, ReadOptions
from surgetank.traffic.formats.registry import by_name, detect
from surgetank.traffic.trace import Batch, Labels, concatenate


def read(
    data: bytes, options: ReadOptions | None = None, *, format_name: str = ""
) -> tuple[Batch, Reader]:
    """Read all of `data` in one piece, with the format it is detected as or the named one."""
    found = by_name(format_name) if format_name else detect(data)
    return read_in_pieces([data], found, options)


def read_in_pieces(
    pieces: Iterable[bytes], found: Format, options: ReadOptions | None = None
) -> tuple[Batch, Reader]:
    reader = found.open(options or ReadOptions())
    batches = [reader.feed(piece) for piece in pieces]
    batches.append(reader.finish())
    return concatenate([b for b in batches if len(b)]), reader


def names(labels: Labels | None) -> list[str]:
    """The column as names, "" where unknown."""
    assert labels is not None
    return [labels.names[c] if c >= 0 else "" for c in labels.codes]


def listed(column: object) -> list[float]:
    """A column of numbers as a list; it must be there."""
    assert column is not None
    return column.tolist()  # type: ignore[no-any-return, attr-defined] # a numpy column
