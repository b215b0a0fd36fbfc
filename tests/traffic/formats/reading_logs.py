"""Reads log bytes with a format of the registry, for the tests of this folder."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import Account, Reader, ReadOptions
from surgetank.traffic.trace import Batch, Labels, concatenate

SAMPLES = Path(__file__).parents[2] / "data" / "log_samples"
YEAR = ReadOptions(year=2026)


def read(name: str, *pieces: bytes, options: ReadOptions = YEAR) -> tuple[Batch, Account, Reader]:
    """Read the pieces of one log. Raises UnreadableError."""
    reader = registry.by_name(name).open(options)
    batches = [reader.feed(piece) for piece in pieces]
    batches.append(reader.finish())
    return concatenate(batches), reader.account, reader


def names(labels: Labels | None) -> list[str | None]:
    """Give the name of each row, None where it has none."""
    assert labels is not None
    return [labels.names[c] if c >= 0 else None for c in labels.codes]


def told(batch: Batch) -> dict[str, list[object]]:
    """Give each column that there is, with names for codes and None for gaps."""
    found: dict[str, list[object]] = {}
    for f in fields(batch):
        column = getattr(batch, f.name)
        if isinstance(column, Labels):
            found[f.name] = list(names(column))
        elif column is not None:
            values = column.tolist()
            if f.name == "ended":
                found[f.name] = values
            else:
                found[f.name] = [None if v in {-1, None} or v != v else v for v in values]  # noqa: PLR0124 -- NaN
    return found
