"""Records of one or many files: a file with those cut off from it, or a folder of them.

Rule: lines are told apart by their bytes before any is decoded, since one request is looked for
among millions; a line that is no record is passed over.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from surgetank.adapters.rotation import cut_files
from surgetank.errors import InputError
from surgetank.policy.record import RequestRecord, parse

_ID: Final = re.compile(rb'"id": ?"([^"\\]{1,256})"')
_ARRIVED: Final = re.compile(rb'"arrived": ?([0-9.]+)')
_STAMP: Final = re.compile(rb'"t": ?([0-9.]+)')
_ENDED: Final = re.compile(rb'"ended": ?([0-9.]+)')
_RECORD_BYTES: Final = 600  # of one record, about: bounds what is read of a long file
_LINE_BYTES: Final = 1 << 20  # a longer line is no record


@dataclass(frozen=True, slots=True)
class Extent:
    """What the files hold: records, Unix seconds of the first and the last arrival."""

    records: int
    first: float
    last: float


def record_files(path: Path) -> list[Path]:
    """Return the files to read, in the order of their names. Raises InputError."""
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
        if not found:
            raise InputError(f"{path}: has no *.jsonl file with records")
        return found
    found = cut_files(path)
    if path.exists():
        found.append(path)
    if not found:
        raise InputError(f"{path}: cannot be read: No such file or directory")
    return found


def find(files: Iterable[Path], request_id: str) -> list[RequestRecord]:
    """Return the records of an id, in the order in which they were written."""
    needle = json.dumps(request_id, ensure_ascii=False).encode()
    lines = (line for line in _lines(files) if needle in line)
    return [record for record in map(_record, lines) if record and record.id == request_id]


def during(files: Iterable[Path], begin: float, end: float) -> Iterator[RequestRecord]:
    """Give the records of requests that were here at any time from `begin` to `end`."""
    for line in _lines(files):
        if _number(_ARRIVED, line, inf) > end or _number(_ENDED, line, inf) < begin:
            continue
        record = _record(line)
        if record is not None:
            yield record


def everything(files: Iterable[Path]) -> Iterator[RequestRecord]:
    """Give every record."""
    return (record for record in map(_record, _lines(files)) if record is not None)


def recent(files: Iterable[Path], most: int) -> list[RequestRecord]:
    """Give the latest records, about `most` of them, oldest first, without reading what is older.

    Raises InputError for a file that cannot be read.
    """
    left, parts = most * _RECORD_BYTES, []
    for path in reversed(list(files)):
        if left <= 0:
            break
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                begin = max(0, size - left)
                file.seek(begin)
                if begin:
                    file.readline(_LINE_BYTES)  # its beginning was left out
                data = file.read(size - file.tell())
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        left -= len(data)
        parts.append([r for r in map(_record, data.splitlines()) if r is not None])
    found = [record for part in reversed(parts) for record in part]
    return found[-most:]


def extent(files: Iterable[Path]) -> Extent:
    """Count the records, and see from when they are."""
    records, first, last = 0, inf, -inf
    for line in _lines(files):
        at = _number(_ARRIVED, line, inf)
        if at < inf and _ID.search(line):
            records, first, last = records + 1, min(first, at), max(last, at)
    return Extent(records, first, last)


def nearest(files: Iterable[Path], request_id: str, *, most: int = 3) -> list[str]:
    """Return the ids most like one that is not there: same beginning, then same length."""
    wanted = request_id.encode()
    found = (match[1] for match in map(_ID.search, _lines(files)) if match)

    def far(other: bytes) -> tuple[int, int, bytes]:
        return -_common(wanted, other), abs(len(other) - len(wanted)), other

    return [name.decode("utf-8", "replace") for name in heapq.nsmallest(most, found, key=far)]


def _common(one: bytes, other: bytes) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def lines_of(files: Iterable[Path]) -> Iterator[bytes]:
    """Give every line, records or not. Raises InputError for a file that cannot be read."""
    return _lines(files)


def last_stamp(files: Iterable[Path]) -> float | None:
    """Return the `t` of the last line that has one, Unix seconds."""
    found = None
    for line in _lines(files):
        t = _number(_STAMP, line, inf)
        found = t if t < inf else found
    return found


def _lines(files: Iterable[Path]) -> Iterator[bytes]:
    for path in files:
        try:
            with path.open("rb") as file:
                while line := file.readline(_LINE_BYTES):
                    yield line
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _record(line: bytes) -> RequestRecord | None:
    try:
        found = parse(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, RequestRecord) else None


def _number(pattern: re.Pattern[bytes], line: bytes, default: float) -> float:
    match = pattern.search(line)
    try:
        return default if match is None else float(match[1])
    except ValueError:
        return default
