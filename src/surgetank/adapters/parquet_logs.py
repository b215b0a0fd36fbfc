"""Parquet logs: any file with a column of times; the others are guessed by name, or given.

Rule: rows come in the file's order, a row group's pages at a time, so memory does not grow with
the file. Arrow reads the rows (names arrive as dictionaries, which DuckDB would spell out: half
the CPU time); DuckDB adds up seconds when nothing but counts is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from surgetank.adapters.logbytes import STDIN, LogBytes
from surgetank.adapters.logs import PARQUET_FORMAT, source_of
from surgetank.errors import InputError
from surgetank.traffic.formats import cells
from surgetank.traffic.formats.columns import Column, guess
from surgetank.traffic.formats.reading import Account, ReadOptions
from surgetank.traffic.formats.stamps import PER_SECOND, Stamps, naive_offset
from surgetank.traffic.trace import UNKNOWN, Batch, Counts, Labels, Source
from surgetank.traffic.trace import Seconds as Times

if TYPE_CHECKING:
    from surgetank.adapters.parquet_seconds import Seconds

ROWS: Final = 1 << 18  # a batch: large enough that its own cost vanishes, 10 MB of columns
_BUFFER: Final = 1 << 20  # bytes of each column that are read ahead
_TELLING: Final = 1 << 16  # first rows that tell how many names a column has
_FEW: Final = 4096
_COUNTS: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "max_tokens")
# Names that could be of text elsewhere: here the column's type says that it holds counts.
_BARE: Final = dict.fromkeys(("prompt", "input", "context"), "prompt_tokens") | dict.fromkeys(
    ("output", "completion", "response", "generated"), "output_tokens"
)
_SECONDS: Final = ("duration", "ttft")
_NAMES: Final = ("tenant", "model", "session")


class ParquetLog:
    """An open Parquet file."""

    def __init__(self, data: LogBytes, options: ReadOptions, name: str | None) -> None:
        """Read its schema and choose the columns. Raises InputError."""
        self.path = data.name
        self.format = PARQUET_FORMAT
        self.account = Account()
        self._refuse(data, name)
        data.close()
        self._options = options
        schema = _schema(self.path)
        self.fields = schema.names
        self.columns = _choose(self.path, schema, options)
        self.arrival_from = "start"
        if "arrived" not in self.columns:
            self.arrival_from = "end - duration" if "duration" in self.columns else "end"
        stamp = self.columns.get("arrived") or self.columns["ended_at"]
        self._stamps = Stamps(options, unit=stamp.unit)
        names = [c.theirs for ours, c in self.columns.items() if ours in _NAMES]
        self._file = _open(self.path, _few_values(self.path, names))
        self.rows: int = self._file.metadata.num_rows
        self._read = 0
        self.read_rows = False  # it was read row by row, not added up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Batch]:
        self.read_rows = True
        theirs = [column.theirs for column in self.columns.values()]
        batches = self._file.iter_batches(ROWS, columns=theirs, use_threads=False)
        try:
            for table in batches:
                batch = self._batch(table)
                self._read += len(table)
                if len(batch):
                    yield batch
        except (pa.ArrowException, OSError) as error:  # OSError: what a codec says of damage
            raise InputError(
                f"{self.path}: is damaged after row {self._read:,}: {_one_line(error)}"
            ) from error

    def seconds(self) -> Seconds | None:
        """Describe the file as sums per second; None where its rows have to be read."""
        from surgetank.adapters.parquet_seconds import seconds_of  # noqa: PLC0415 - DuckDB is heavy

        if self._read or "arrived" not in self.columns:
            return None
        named = {ours: column.theirs for ours, column in self.columns.items()}
        found = seconds_of(
            self.path,
            self._file,
            self._options,
            arrived=named["arrived"],
            prompt=named.get("prompt_tokens"),
            output=named.get("output_tokens"),
        )
        if found is not None:
            self._read = self.account.rows = self.rows
        return found

    @property
    def source(self) -> Source:
        arrival_from = self.arrival_from
        if arrival_from == "start" and self._stamps.relative:
            arrival_from = "relative start"
        return source_of(self.account, self.path, self.format, arrival_from)

    @property
    def progress(self) -> float | None:
        return self._read / self.rows if self.rows else 1.0

    def _refuse(self, data: LogBytes, name: str | None) -> None:
        if name not in {None, PARQUET_FORMAT}:
            raise InputError(f"{self.path}: is Parquet: leave out the format {name!r}")
        if not data.parquet:
            raise InputError(f"{self.path}: is not Parquet: it does not begin with PAR1")
        if self.path == STDIN:
            raise InputError("-: Parquet has its index at its end: name the file, not a pipe")

    def _batch(self, table: pa.RecordBatch) -> Batch:
        found: dict[str, Any] = {}
        bad = np.zeros(len(table), bool)
        for ours, column in self.columns.items():
            values = table.column(column.theirs)
            if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
                values = values.cast(pa.large_string())  # how some writers store text
            if ours in _COUNTS:
                found[ours], wrong = _counts(values)
            elif ours == "priority":
                found[ours], wrong = cells.priorities(values.to_pylist()), None
            elif ours in _SECONDS:
                found[ours], wrong = _seconds(values, column)
            elif ours in _NAMES:
                found[ours], wrong = _labels(values), None
            elif ours == "status":
                found["ended"], wrong = cells.endings(values.to_pylist())[0], None
            else:
                found[ours], wrong = self._times(values), None
            if wrong is not None:
                bad |= wrong
        arrived = found.get("arrived")
        if arrived is None:
            arrived = found.pop("ended_at")
            if "duration" in found:
                arrived = arrived - found["duration"]
        found["arrived"] = arrived
        return self._good(Batch(**found), bad)

    def _good(self, batch: Batch, bad: NDArray[np.bool_]) -> Batch:
        timeless = ~np.isfinite(batch.arrived)
        bad = bad | timeless
        if not bad.any():
            self.account.rows += len(batch)
            return batch
        for row in np.flatnonzero(bad)[:5].tolist():  # as many as an account shows
            why = "has no time" if timeless[row] else "has a count or a time that is none"
            self.account.skip(self._read + row + 1, why)
        self.account.skipped += int(bad.sum()) - min(5, int(bad.sum()))
        self.account.rows += int((~bad).sum())
        return batch.take(~bad)

    def _times(self, values: pa.Array) -> Times:
        if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
            return _timestamps(values, self._options)
        if _is_number(values.type):
            found = self._stamps.read(_floats(values))  # type: ignore[arg-type] # an array is a sequence
        else:
            found = self._stamps.read(values.to_pylist())
        if self._stamps.relative and self._options.start is not None:
            found = found + self._options.start
        return found


def _schema(path: str) -> pa.Schema:
    with _open(path, []) as file:
        return file.schema_arrow


def _open(path: str, names: list[str]) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, read_dictionary=names, buffer_size=_BUFFER, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: is not whole as Parquet: {_one_line(error)}") from error


def _few_values(path: str, names: list[str]) -> list[str]:
    """Tell which columns repeat few names: others would make dictionaries as long as the log."""
    if not names:
        return []
    with _open(path, []) as file:
        try:
            first = next(file.iter_batches(_TELLING, columns=names, use_threads=False), None)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: is damaged: {_one_line(error)}") from error
    if first is None:
        return []
    return [name for name in names if _has_few_values(first.column(name))]


def _has_few_values(values: pa.Array) -> bool:
    if pa.types.is_dictionary(values.type):
        values = values.indices
    return len(values.unique()) <= _FEW


def _choose(path: str, schema: pa.Schema, options: ReadOptions) -> dict[str, Column]:
    """Give each of our columns the best of theirs. Raises InputError without one of times."""
    chosen: dict[str, Column] = {}
    names = [field.name for field in schema if not pa.types.is_nested(field.type)]
    for column in guess(names, options.columns):
        if column.ours in options.columns and column.theirs not in names:
            known = ", ".join(names)
            raise InputError(f"{path}: has no column {column.theirs!r}: it has {known}")
        chosen.setdefault(column.ours, column)
    for name in names:
        ours = _BARE.get(name.lower())
        if ours and ours not in chosen and pa.types.is_integer(schema.field(name).type):
            chosen[ours] = Column(ours, name)
    if "arrived" not in chosen and "ended_at" not in chosen:
        nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        without = f" (nested columns are not read: {', '.join(nested)})" if nested else ""
        raise InputError(
            f"{path}: no column of times among {', '.join(names) or 'its columns'}{without}: "
            "name it with --column arrived=NAME"
        )
    chosen.pop("prompt_chars", None)
    if "arrived" in chosen:
        chosen.pop("ended_at", None)
    for column in chosen.values():
        if schema.names.count(column.theirs) > 1:
            raise InputError(
                f"{path}: has {schema.names.count(column.theirs)} columns named "
                f"{column.theirs!r}: rename all but the one that is meant"
            )
    return chosen


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _floats(values: pa.Array) -> Times:
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    found: Times = values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return found  # nulls are NaN


def _timestamps(values: pa.Array, options: ReadOptions) -> Times:
    kind = values.type
    if pa.types.is_date(kind):
        values, kind = values.cast(pa.timestamp("ms")), pa.timestamp("ms")
    missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    ticks = values.view(pa.int64())
    if missing is not None:
        ticks = ticks.fill_null(0)
    found = _in_seconds(ticks.to_numpy(zero_copy_only=False), kind.unit)
    if kind.tz is None and options.timezone is not UTC:
        hours, at = np.unique(
            np.floor(found / 900), return_inverse=True
        )  # zones change by quarters
        offsets = [naive_offset(int(hour * 900), options.timezone) for hour in hours.tolist()]
        found = found - np.array(offsets, np.float64)[at]
    if missing is not None:
        found[missing] = np.nan
    return found


def _in_seconds(ticks: Counts, unit: str) -> Times:
    if unit != "ns":
        per_second: float = PER_SECOND[unit]  # type: ignore[index] # Arrow's units are ours
        return ticks / per_second
    whole = ticks // 1_000_000_000  # a double does not hold today's nanoseconds
    return whole + (ticks - whole * 1_000_000_000) / 1e9


def _counts(values: pa.Array) -> tuple[Counts, NDArray[np.bool_] | None]:
    if not pa.types.is_integer(values.type):
        if _is_number(values.type):
            return cells.counts(_floats(values))
        return cells.counts(values.to_pylist())
    if values.null_count:
        values = (
            values.fill_null(UNKNOWN)
            if not str(values.type).startswith("u")
            else values.cast(pa.int64()).fill_null(UNKNOWN)
        )
    found: Counts = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    if not len(found) or (found.min() >= UNKNOWN and found.max() <= cells.MOST_TOKENS):
        return found, None
    bad = (found < UNKNOWN) | (found > cells.MOST_TOKENS)
    return np.where(bad, UNKNOWN, found), bad


def _seconds(values: pa.Array, column: Column) -> tuple[Times, NDArray[np.bool_] | None]:
    if pa.types.is_duration(values.type):
        missing = values.is_null().to_numpy(zero_copy_only=False)
        ticks = values.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(missing | (ticks < 0), np.nan, ticks / PER_SECOND[values.type.unit]), None
    if not _is_number(values.type):
        return cells.seconds(values.to_pylist(), column.unit)
    found = _floats(values) / PER_SECOND[column.unit or "s"]
    return np.where(np.isfinite(found) & (found >= 0), found, np.nan), None


def _labels(values: pa.Array) -> Labels:
    """Names by their dictionary: what a name is, is decided once for each and not for each row."""
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    elif len(values.dictionary) > max(_FEW, len(values)):  # that of the whole log, by its schema
        values = values.dictionary_decode().dictionary_encode()
    names = cells.labels(values.dictionary.to_pylist())
    to = np.append(names.codes, np.int32(UNKNOWN))
    indices = values.indices
    if indices.null_count:
        indices = indices.fill_null(len(names.codes))
    return Labels(to[indices.to_numpy(zero_copy_only=False)], names.names)


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]
