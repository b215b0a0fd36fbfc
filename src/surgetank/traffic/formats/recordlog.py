"""Our own request records as JSON lines: what gateway, load test and simulation write alike.

Rule: the samples of the fleet among them are ignored, and fields of later versions too.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from surgetank.policy.request import ENDINGS, Kind
from surgetank.traffic.formats import cells, columns
from surgetank.traffic.formats.assembly import Assembly
from surgetank.traffic.formats.columns import Column
from surgetank.traffic.formats.jsonlines import JsonLines, first_object
from surgetank.traffic.formats.lines import Lines
from surgetank.traffic.formats.reading import Account, Format, ReadOptions
from surgetank.traffic.trace import Batch, Ended

_BY_KIND: Final = {
    Kind.COMPLETED: Ended.COMPLETED,
    Kind.REFUSED: Ended.REFUSED,
    Kind.ABANDONED: Ended.ABANDONED,
    Kind.FAILED: Ended.FAILED,
}
_BY_OUTCOME: Final[dict[str, Ended]] = {
    str(outcome): _BY_KIND[ending.kind] for outcome, ending in ENDINGS.items()
}


class _Record(msgspec.Struct, gc=False):
    kind: str = ""
    id: str | None = None
    tenant: str = ""
    model: str = ""
    session: str = ""
    arrived: float | None = None
    first_token: float | None = None
    ended: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None
    outcome: str = ""
    status: int = 0


_SAME: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "max_tokens", "tenant", "model")


class RecordReader:
    """Reads RequestRecord lines (see policy/record.py)."""

    def __init__(self, options: ReadOptions) -> None:
        columns.refuse_given(options.columns, "records", "jsonl")
        self.account = Account()
        self._assembly = Assembly(options, self.account, unit="s")
        self._lines = Lines()
        self._json = JsonLines(_Record)

    @property
    def arrival_from(self) -> str:
        """What the arrivals are made of: a simulation's count from its own start."""
        return self._assembly.arrival_from

    def feed(self, lines: bytes) -> Batch:
        """Parse whole lines."""
        block, numbers, bad = self._lines.take(lines)
        rows, at, worse = self._json.split(block, numbers)
        kept = [i for i, row in enumerate(rows) if row.kind != "fleet"]
        if len(kept) < len(rows):
            self.account.ignored["fleet sample"] += len(rows) - len(kept)
            rows = [rows[i] for i in kept]
            at = at[kept]
        found: dict[Column, list[Any]] = {
            Column("arrived", "arrived"): [r.arrived for r in rows],
            Column("duration", "ended"): [_since(r.arrived, r.ended) for r in rows],
            Column("ttft", "first_token"): [_since(r.arrived, r.first_token) for r in rows],
            Column("session", "session"): [r.session for r in rows],
        }
        found |= {Column(name, name): [getattr(r, name) for r in rows] for name in _SAME}
        ended = np.array([_ended(r) for r in rows], np.int8)
        return self._assembly.batch(found, at, bad + worse, ended=ended)

    def finish(self) -> Batch:
        """Note what the log looks like."""
        self._assembly.finish()
        return Batch(np.empty(0))


def _since(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _ended(record: _Record) -> Ended:
    found = _BY_OUTCOME.get(record.outcome)
    return cells.http_ending(record.status) if found is None else found


def _detect(head: bytes, filename: str) -> bool:  # noqa: ARG001 - the content tells
    first = first_object(head)
    if "v" not in first:
        return False
    return {"id", "arrived"} <= first.keys() or first.get("kind") == "fleet"


FORMATS: Final = (Format("records", "Surgetank's own records (JSON lines)", _detect, RecordReader),)
