"""Logs as batches of arrivals: files, pipes, compressed files, Parquet; the format told by content.

Rule: one pass in bounded memory. Rows come in the file's order, which need not be the order of the
arrivals: counts are exact whatever the order, gaps are those of neighbouring rows, and
`surgetank.read_log` (which holds the whole log) sorts. What cannot be read is counted; a log that
cannot be read at all is one InputError that says what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self

from surgetank.adapters.logbytes import BLOCK, LogBytes
from surgetank.adapters.logfields import Fields
from surgetank.adapters.loglines import Lines
from surgetank.errors import InputError
from surgetank.traffic.formats import dateforms
from surgetank.traffic.formats.csvlog import CsvReader
from surgetank.traffic.formats.jsonlog import JsonReader
from surgetank.traffic.formats.nginx import JsonLog
from surgetank.traffic.formats.reading import (
    LONGEST_LINE,
    UNITS,
    Account,
    Reader,
    ReadOptions,
    UnreadableError,
)
from surgetank.traffic.formats.registry import HEAD_BYTES, by_name, detect
from surgetank.traffic.trace import Batch, Source, Trace

PARQUET_FORMAT: Final = "parquet"
WORTH_HASTENING: Final = 16 << 20  # bytes: less is read before Arrow or numba is loaded


class LogFile(Protocol):
    """An open log: a context manager, and an iterable of Batch (once)."""

    format: str  # name of the format
    fields: list[str]  # of the log's first lines, by name; empty when it has no named fields

    @property
    def source(self) -> Source:
        """The account of what was read; complete after the last batch."""

    @property
    def progress(self) -> float | None:
        """Part of the file that was read, 0..1; None for a pipe."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...


def open_log(
    path: str | Path,
    options: ReadOptions | None = None,
    *,
    format: str | None = None,  # noqa: A002 - the word users know from `--format`
) -> LogFile:
    """Open a log, "-" for standard input; without `format` it is told from the content.

    Raises InputError: no such file, a directory, no permission, empty, a packing or a format that
    is not known.
    """
    data = LogBytes(path)
    try:
        if data.parquet or format == PARQUET_FORMAT:
            from surgetank.adapters.parquet_logs import ParquetLog  # noqa: PLC0415 - DuckDB is heavy

            return ParquetLog(data, options or ReadOptions(), format)
        return TextLog(data, options or ReadOptions(), format)
    except BaseException:
        data.close()
        raise


def read_log(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - as in open_log
    **options: Any,
) -> Trace:
    """Read a whole log into memory, sorted by arrival.

    `options` are the fields of ReadOptions: `columns={"tenant": "team_id"}`, `time_unit="ms"`,
    `timezone="Europe/Paris"` (a name, an offset, or a tzinfo)... Dates without a year are of this
    year unless `year` says another. Raises InputError as `open_log` does.
    """
    if isinstance(options.get("timezone"), str):
        options["timezone"] = dateforms.zone(options["timezone"])
    unit = options.get("time_unit")
    if unit is not None and unit not in UNITS:
        raise InputError(f"time_unit = {unit!r}: must be one of {', '.join(UNITS)}")
    given = ReadOptions(**{"year": datetime.now(UTC).year, **options})
    with open_log(path, given, format=format) as log:
        batches = list(log)
        return Trace.of(batches, log.source)


class TextLog:
    """A log of lines, plain or compressed."""

    def __init__(self, data: LogBytes, options: ReadOptions, name: str | None) -> None:
        """Read the first lines, and tell the format by them."""
        self._data = data
        plain = data.size > 0 and not data.packed  # of a pipe, lines are counted as they come
        self._lines = Lines(data, number_at=data.number_at if plain else None)
        self._pieces = iter(self._lines)
        self._first = self._beginning()
        sample = self._sample()
        try:
            chosen = by_name(name) if name else detect(sample, _bare_name(data.name))
            self._reader: Reader = chosen.open(options)
        except UnreadableError as error:
            raise InputError(f"{data.name}: {error}") from error
        self._account = self._reader.account
        self._before_hastening = 0 if plain and data.size >= WORTH_HASTENING else WORTH_HASTENING
        self.format = chosen.name
        self.fields = Fields(sample.partition(b"\n")[0]).names(sample)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._data.close()

    def __iter__(self) -> Iterator[Batch]:
        try:
            yield from self._batches()
        except UnreadableError as error:
            raise InputError(f"{self._data.name}: {error}") from error

    def _batches(self) -> Iterator[Batch]:
        lines: bytes = self._first
        read = 0
        while lines:
            self._account_for_long_lines()
            if read <= self._before_hastening < read + len(lines):
                _hasten(self._reader)
            read += len(lines)
            batch = self._reader.feed(lines)
            if len(batch):
                yield batch
            lines = self._whole_lines()
        self._account_for_long_lines()
        if self._data.torn:
            account = self._account
            account.skip(self._lines.count + 1, self._data.torn)
            account.note(f"{self._data.torn}: the figures are of what lies before that")
        batch = self._reader.finish()
        if len(batch):
            yield batch

    @property
    def source(self) -> Source:
        return source_of(self._account, self._data.name, self.format, self._reader.arrival_from)

    @property
    def progress(self) -> float | None:
        size = self._data.size
        return min(1.0, self._data.consumed / size) if size else None

    def _whole_lines(self) -> bytes:
        """Give the next piece; the last line may lack its newline, b"" is the end."""
        piece = next(self._pieces, b"")
        if piece or self._data.torn:  # the last line of a torn stream is torn too
            return piece
        piece, self._lines.rest = self._lines.rest, b""
        return piece

    def _beginning(self) -> bytes:
        """Give enough to tell the format by: the first piece can be one short line."""
        first = b""
        while len(first) < BLOCK and (len(first) < HEAD_BYTES or not first.strip()):
            more = self._whole_lines()
            if not more:
                break
            first += more
        return first

    def _account_for_long_lines(self) -> None:
        for number in self._lines.too_long:
            self._account.skip(number, f"longer than {LONGEST_LINE >> 20} MB")
        self._lines.too_long.clear()

    def _sample(self) -> bytes:
        if not self._first:
            why = self._data.torn or "is empty once unpacked"
            raise InputError(f"{self._data.name}: {why}: there is no request to read")
        if len(self._first) <= HEAD_BYTES:
            return self._first
        end = self._first.rfind(b"\n", 0, HEAD_BYTES)
        return self._first[: end + 1] if end >= 0 else self._first


def _hasten(reader: Reader) -> None:
    """Let a reader that can read plain blocks sooner do so."""
    if isinstance(reader, CsvReader):
        from surgetank.adapters.arrow_cells import ArrowSplitter  # noqa: PLC0415 - Arrow is heavy

        reader.hasten(ArrowSplitter)
    elif isinstance(reader, JsonReader | JsonLog):
        reader.hasten()


def source_of(account: Account, path: str, name: str, arrival_from: str) -> Source:
    """Turn an account into what is said of the trace."""
    return Source(
        path=path,
        format=name,
        rows=account.rows,
        skipped=account.skipped,
        bad=tuple(sorted(account.bad, key=lambda bad: bad.line)),
        ignored=dict(account.ignored),
        arrival_from=arrival_from,
        notes=tuple(account.notes),
    )


def _bare_name(path: str) -> str:
    """Give the file's name without the suffix of its compression."""
    name = Path(path).name
    return name.removesuffix(".gz").removesuffix(".zst")
