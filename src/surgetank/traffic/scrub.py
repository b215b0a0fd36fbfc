"""Arrivals without persons: what may leave the building, by whitelist.

Rule: a line is built anew from the columns that a Batch has, so nothing else of a log can be in it:
no text, address, API key, user agent or header. Names become keyed hashes (BLAKE2b, RFC 7693), the
same for the same name under the same key; without the key they cannot be tried out, though how
often a name occurs stays visible. Request ids are numbered anew.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.policy.record import SCHEMA
from surgetank.policy.request import Outcome
from surgetank.traffic.trace import UNKNOWN, Batch, Counts, Ended, Labels, Seconds

NAMES: Final = ("tenant", "session", "model")
KEPT: Final = frozenset({"model"})  # names that stay unless asked: they are products, not people
RARE: Final = 5  # requests; a name with fewer may be told by whoever knows when one was sent
WEEK: Final = 7 * 86400
SHORTEST_KEY: Final = 16  # bytes

_HASH_BYTES: Final = 8  # a collision among a million names: 3e-8
_DISTINCT: Final = 1_000_000  # names held for counting; more are told as "at least"
_ABSOLUTE: Final = 1e8  # smaller arrivals count from an origin of their own, and have no date
_OUTCOMES: Final = {
    Ended.UNKNOWN: "",
    Ended.COMPLETED: str(Outcome.COMPLETED),
    Ended.REFUSED: str(Outcome.QUEUE_FULL),
    Ended.FAILED: str(Outcome.UPSTREAM_ERROR),
    Ended.ABANDONED: str(Outcome.ABANDONED),
}
_COUNTS: Final = ("prompt_tokens", "cached_tokens", "output_tokens", "max_tokens", "priority")

# A request record (policy/record.py) of the columns that a Batch has, and its priority.
_Row: Final = msgspec.defstruct(
    "_Row",
    [
        ("v", int),
        ("id", str),
        ("tenant", str, ""),
        ("model", str, ""),
        ("session", str, ""),
        ("arrived", float, float("nan")),  # never equal to its default: always written
        ("first_token", float | None, None),
        ("ended", float | None, None),
        *((name, int | None, None) for name in _COUNTS),
        ("outcome", str, ""),
    ],
    omit_defaults=True,
)


@dataclass(slots=True)
class Remains:
    """What is left of one column: `fate` is kept | hashed | shifted | numbered anew | dropped."""

    column: str
    fate: str
    rows: int = 0  # that state it
    distinct: int | None = None  # names in it; None for numbers
    rare: int = 0  # names with fewer than RARE requests
    at_least: bool = False  # there were too many names to count


@dataclass(slots=True)
class _Seen:
    rows: int = 0
    names: Counter[str] = field(default_factory=Counter)
    full: bool = False


class Scrubber:
    """Turns batches into lines of request records without persons; one export, one key."""

    def __init__(
        self,
        key: bytes,
        *,
        keep: Iterable[str] = (),
        hashed: Iterable[str] = (),
        shift: float | None = None,
    ) -> None:
        """Take the key, the names to keep or to hash beside the usual, and the shift in seconds.

        Without `shift` the times move back by whole weeks that follow from the key: hour and
        weekday, on which bursts depend, stay; the date goes. Raises InputError.
        """
        if len(key) < SHORTEST_KEY:
            raise InputError(f"the key has {len(key)} bytes: must be at least {SHORTEST_KEY}")
        keep, hashed = set(keep), set(hashed)
        for name in sorted(keep | hashed):
            if name not in NAMES:
                raise InputError(f"{name!r} is no column of names: one of {', '.join(NAMES)}")
        for name in sorted(keep & hashed):
            raise InputError(f"{name} cannot be both kept and hashed")
        self._kept = (KEPT | keep) - hashed
        self._key = hashlib.blake2b(key).digest()  # any length becomes the 64 bytes BLAKE2b takes
        self._shift = shift
        self._written = 0
        self._seen = {name: _Seen() for name in (*NAMES, *_COUNTS, "duration", "ttft", "ended")}
        self._hashes: dict[tuple[str, str], str] = {}

    def lines(self, batch: Batch) -> bytes:
        """Write the rows as lines, each with its newline."""
        arrived = batch.arrived + self._shift_of(batch.arrived)
        columns: list[Iterable[object]] = [self._names(name, batch) for name in NAMES]
        columns.append(arrived.tolist())
        columns.append(self._moment("ttft", arrived, batch.ttft))
        columns.append(self._moment("duration", arrived, batch.duration))
        columns += [self._counts(name, getattr(batch, name), len(batch)) for name in _COUNTS]
        columns.append(self._outcomes(batch))
        first = self._written + 1
        self._written += len(batch)
        rows = [
            _Row(SCHEMA, str(number), tenant, model, session, *rest)
            for number, (tenant, session, model, *rest) in enumerate(
                zip(*columns, strict=True), first
            )
        ]
        return msgspec.json.Encoder().encode_lines(rows)

    def hash(self, column: str, name: str) -> str:
        """Give the name's stand-in: the column's first letter and 16 hexadecimal digits."""
        known = self._hashes.get((column, name))
        if known is None:
            digest = hashlib.blake2b(
                name.encode("utf-8", "surrogatepass"),
                key=self._key,
                digest_size=_HASH_BYTES,
                person=column.encode(),  # the same name as tenant and as session is not the same
            )
            known = f"{column[0]}-{digest.hexdigest()}"
            if len(self._hashes) < _DISTINCT:
                self._hashes[column, name] = known
        return known

    def remains(self) -> list[Remains]:
        """List every column with what became of it, and which names are rare."""
        told = [Remains("id", "numbered anew", self._written)]
        moved = "kept" if self._shift == 0 else "shifted"
        told.append(Remains("arrived", moved, self._written))
        for column, seen in self._seen.items():
            if not seen.rows:
                continue
            fate = "hashed" if column in NAMES and column not in self._kept else "kept"
            row = Remains(column, fate, seen.rows)
            if column in NAMES:
                row.distinct = len(seen.names)
                row.rare = sum(count < RARE for count in seen.names.values())
                row.at_least = seen.full
            told.append(row)
        return told

    def _shift_of(self, arrived: Seconds) -> float:
        if self._shift is None and len(arrived):
            weeks = 1 + int.from_bytes(self._key[:4], "big") % 520
            self._shift = 0.0 if arrived[0] < _ABSOLUTE else -float(weeks * WEEK)
        return self._shift or 0.0

    def _names(self, column: str, batch: Batch) -> list[str]:
        labels: Labels | None = getattr(batch, column)
        if labels is None:
            return [""] * len(batch)
        known = labels.codes >= 0
        counts = np.bincount(labels.codes[known], minlength=len(labels.names)).tolist()
        shown = [""] * (len(labels.names) + 1)  # UNKNOWN is -1: the last
        seen = self._seen[column]
        seen.rows += int(known.sum())
        for code, name in enumerate(labels.names):
            if counts[code]:
                shown[code] = name if column in self._kept else self.hash(column, name)
                if shown[code] in seen.names or len(seen.names) < _DISTINCT:
                    seen.names[shown[code]] += counts[code]
                else:
                    seen.full = True
        return [shown[code] for code in labels.codes.tolist()]

    def _moment(self, column: str, arrived: Seconds, after: Seconds | None) -> list[float | None]:
        if after is None:
            return [None] * len(arrived)
        known = np.isfinite(after)
        self._seen[column].rows += int(known.sum())
        return _or_none(arrived + after, known)

    def _counts(self, column: str, counts: Counts | None, length: int) -> list[int | None]:
        if counts is None:
            return [None] * length
        known = counts != UNKNOWN
        self._seen[column].rows += int(known.sum())
        return _or_none(counts, known)

    def _outcomes(self, batch: Batch) -> list[str]:
        if batch.ended is None:
            return [""] * len(batch)
        self._seen["ended"].rows += int((batch.ended != Ended.UNKNOWN).sum())
        return [_OUTCOMES[Ended(code)] for code in batch.ended.tolist()]


def _or_none(values: NDArray[Any], known: NDArray[np.bool_]) -> list[Any]:
    if not known.all():
        values = values.astype(object)
        values[~known] = None
    found: list[Any] = values.tolist()
    return found
