"""Seconds of a Parquet log added up by DuckDB: for counts alone, far cheaper than reading rows.

Rule: only where the outcome is that of reading the rows, as the file's own statistics show: times
of a time stamp type without gaps, and token counts within bounds; else the rows are read. DuckDB
runs in this process, in bounded memory, with access to this one file and no extensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.traffic.formats import cells
from surgetank.traffic.formats.reading import ReadOptions

THREADS: Final = 2
MEMORY: Final = "512MB"
_PAUSE: Final = 3600  # seconds without a request after which a new piece begins
_TICKS: Final = {"ms": "epoch_ms", "us": "epoch_us", "ns": "epoch_ns"}
_PER_SECOND: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9}

Columns = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Requests and their tokens in `first_second` and the seconds that follow it."""

    first_second: int
    counts: Columns
    prompt: Columns | None
    output: Columns | None


@dataclass(frozen=True, slots=True)
class Seconds:
    """What is to be added up: columns by name. `first` and `last` are the stamps' extremes."""

    path: str
    arrived: str
    unit: str
    prompt: str | None
    output: str | None
    first: float
    last: float

    def pieces(self) -> Iterator[Piece]:
        """Add up, in the order of time. Raises InputError when the file is damaged."""
        stamp = f"{_TICKS[self.unit]}({_quoted(self.arrived)})"
        sums = ", ".join(
            f"sum({_quoted(name)})::BIGINT" if name else "0::BIGINT"
            for name in (self.prompt, self.output)
        )
        query = (
            f"SELECT {stamp} // {_PER_SECOND[self.unit]}, count(*), {sums} "  # noqa: S608 - quoted
            "FROM read_parquet($path, hive_partitioning = false) GROUP BY 1 ORDER BY 1"
        )
        try:
            with _connected(self.path) as connection:
                found = connection.execute(query, {"path": self.path}).fetchnumpy()
        except duckdb.Error as error:
            raise InputError(f"{self.path}: {str(error).splitlines()[0][:200]}") from error
        seconds, counts, prompt, output = (_integers(column) for column in found.values())
        for part in np.split(
            np.arange(len(seconds)), np.flatnonzero(np.diff(seconds) > _PAUSE) + 1
        ):
            at = seconds[part] - seconds[part[0]]
            yield Piece(
                int(seconds[part[0]]),
                _spread(counts[part], at),
                _spread(prompt[part], at) if self.prompt else None,
                _spread(output[part], at) if self.output else None,
            )


def seconds_of(
    path: str,
    file: pq.ParquetFile,
    options: ReadOptions,
    *,
    arrived: str,
    prompt: str | None,
    output: str | None,
) -> Seconds | None:
    """Describe the sums; None where those of the rows could differ."""
    schema, metadata = file.schema_arrow, file.metadata
    kind = schema.field(arrived).type
    zoned = pa.types.is_timestamp(kind) and (kind.tz is not None or options.timezone is UTC)
    if not zoned or kind.unit not in _TICKS or not metadata.num_rows:
        return None
    tokens = [name for name in (prompt, output) if name is not None]
    if not all(pa.types.is_integer(schema.field(name).type) for name in tokens):
        return None
    ranges: dict[str, list[tuple[int, int]]] = {name: [] for name in (arrived, *tokens)}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for at in range(row_group.num_columns):
            column = row_group.column(at)
            if column.path_in_schema in ranges:
                ranges[column.path_in_schema].append(_range(column.statistics))
    if any(low < 0 for found in ranges.values() for low, _ in found):  # no statistics, or a gap
        return None
    if any(high > cells.MOST_TOKENS for name in tokens for _, high in ranges[name]):
        return None
    stamps = np.array(ranges[arrived], np.float64) / _PER_SECOND[kind.unit]
    return Seconds(
        path, arrived, kind.unit, prompt, output, float(stamps.min()), float(stamps.max())
    )


def _range(statistics: Any) -> tuple[int, int]:
    """Give the smallest and the largest value; (-1, -1): unknown, or some are missing."""
    known = (
        statistics is not None
        and statistics.has_min_max
        and statistics.has_null_count
        and not statistics.null_count
        and isinstance(statistics.min_raw, int)
    )
    return (statistics.min_raw, statistics.max_raw) if known else (-1, -1)


@contextmanager
def _connected(path: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open DuckDB for one file: no network, extension or other file, and nothing to be undone."""
    settings: dict[str, Any] = {
        "threads": THREADS,
        "memory_limit": MEMORY,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    allowed = path.replace("'", "''")
    with duckdb.connect(config=settings) as connection:
        for setting in (
            "temp_directory = ''",
            f"allowed_paths = ['{allowed}']",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            connection.execute(f"SET {setting}")
        yield connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _integers(column: Any) -> Columns:
    return np.asarray(column).astype(np.int64)


def _spread(values: Columns, at: Columns) -> Columns:
    spread = np.zeros(int(at[-1]) + 1, np.int64)
    spread[at] = values
    return spread
