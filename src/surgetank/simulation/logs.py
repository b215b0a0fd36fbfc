"""A log to be simulated, in memory: any log that Surgetank reads.

Rule: read once for all policies; relative times stay as they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from surgetank.adapters.logs import read_log
from surgetank.errors import InputError
from surgetank.traffic.trace import Trace

_MOST_BAD: Final = 0.01  # of the rows: as `surgetank analyze` does


@lru_cache(maxsize=2)
def read_trace(path: str, name: str | None, columns: tuple[tuple[str, str], ...]) -> Trace:
    """Read a log: `name` of its format and `columns` (ours, the log's) as `analyze` takes them.

    Raises InputError for a log that cannot be read, or of which more than 1 % cannot.
    """
    trace = read_log(path, format=name, columns=dict(columns))
    source = trace.source
    if source.skipped > _MOST_BAD * (source.rows + source.skipped):
        first = source.bad[0] if source.bad else None
        told = f"; the first is line {first.line}: {first.reason}" if first else ""
        raise InputError(f"{path}: {source.skipped:,} rows cannot be read as {source.format}{told}")
    return trace
