"""A log into an accumulator by the cheapest way that gives the same figures.

Rule: the figures are those of reading every row in the file's order; only the way differs.
"""

from __future__ import annotations

from collections.abc import Callable

from surgetank.adapters.logs import PARQUET_FORMAT, LogFile
from surgetank.traffic.burstiness import Accumulator
from surgetank.traffic.trace import Source

Progress = Callable[[float | None], None]


def accumulate(
    log: LogFile,
    accumulator: Accumulator,
    progress: Progress | None = None,
) -> Source:
    """Add a whole log, and give the account of it.

    With `counts_only`, DuckDB adds up the seconds of a Parquet file (see `parquet_seconds`).
    `progress` is told the part that was read, from time to time. Raises InputError.
    """
    if accumulator.counts_only and log.format == PARQUET_FORMAT and _add_seconds(log, accumulator):
        return log.source
    for batch in log:
        accumulator.add(batch)
        if progress is not None:
            progress(log.progress)
    return log.source


def _add_seconds(log: LogFile, accumulator: Accumulator) -> bool:
    """Let DuckDB add up; False when that would not be what the rows give."""
    from surgetank.adapters.parquet_logs import ParquetLog  # noqa: PLC0415 - Arrow loads slowly

    seconds = log.seconds() if isinstance(log, ParquetLog) else None
    if seconds is None:
        return False
    for piece in seconds.pieces():
        accumulator.add_seconds(piece.first_second, piece.counts, piece.prompt, piece.output)
    # The pieces are whole seconds: the stamps' own extremes lie within the first and the last.
    accumulator.first, accumulator.last = seconds.first, seconds.last
    return True
