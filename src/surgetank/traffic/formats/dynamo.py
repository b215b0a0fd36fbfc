"""NVIDIA Dynamo's request trace: events as JSON lines, of which `request_end` are requests.

Rule: the arrival is `request_received_ms`, else the event's time less the request's duration.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from surgetank.traffic.formats import columns
from surgetank.traffic.formats.assembly import Assembly
from surgetank.traffic.formats.columns import Column
from surgetank.traffic.formats.jsonlines import JsonLines, first_object
from surgetank.traffic.formats.lines import Lines
from surgetank.traffic.formats.reading import Account, Format, ReadOptions
from surgetank.traffic.trace import Batch, Ended

_SCHEMA: Final = "dynamo.request.trace"
_ENDED: Final = {"request_end": Ended.COMPLETED, "request_error": Ended.FAILED}


class _Context(msgspec.Struct, gc=False):
    session_id: str | None = None


class _Request(msgspec.Struct, gc=False):
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    request_received_ms: float | None = None
    ttft_ms: float | None = None
    total_time_ms: float | None = None


class _Event(msgspec.Struct, gc=False):
    schema: str = ""
    event_type: str = ""
    event_time_unix_ms: float | None = None
    agent_context: _Context | None = None
    request: _Request | None = None


class _Line(msgspec.Struct, gc=False):
    event: _Event


_COLUMNS: Final = {
    "arrived": Column("arrived", "request_received_ms", "ms"),
    "prompt_tokens": Column("prompt_tokens", "input_tokens"),
    "output_tokens": Column("output_tokens", "output_tokens"),
    "cached_tokens": Column("cached_tokens", "cached_tokens"),
    "duration": Column("duration", "total_time_ms", "ms"),
    "ttft": Column("ttft", "ttft_ms", "ms"),
    "model": Column("model", "model"),
    "session": Column("session", "session_id"),
}


class DynamoReader:
    """Reads the events of requests; those of tools and agents are ignored by name."""

    def __init__(self, options: ReadOptions) -> None:
        columns.refuse_given(options.columns, "dynamo", "jsonl")
        self.account = Account()
        self.arrival_from = "start"
        self._assembly = Assembly(options, self.account, unit="ms")
        self._lines = Lines()
        self._json = JsonLines(_Line)

    def feed(self, lines: bytes) -> Batch:
        """Parse whole lines."""
        block, numbers, bad = self._lines.take(lines)
        rows, at, worse = self._json.split(block, numbers)
        kept = []
        for i, row in enumerate(rows):
            if row.event.request is not None and row.event.event_type in _ENDED:
                kept.append(i)
            else:
                self.account.ignored[_kind(row.event.event_type)] += 1
        events = [rows[i].event for i in kept]
        requests = [e.request for e in events if e.request is not None]
        cells: dict[Column, list[Any]] = {
            _COLUMNS["arrived"]: [_received(e) for e in events],
            _COLUMNS["prompt_tokens"]: [r.input_tokens for r in requests],
            _COLUMNS["output_tokens"]: [r.output_tokens for r in requests],
            _COLUMNS["cached_tokens"]: [r.cached_tokens for r in requests],
            _COLUMNS["duration"]: [r.total_time_ms for r in requests],
            _COLUMNS["ttft"]: [r.ttft_ms for r in requests],
            _COLUMNS["model"]: [r.model for r in requests],
            _COLUMNS["session"]: [e.agent_context and e.agent_context.session_id for e in events],
        }
        ended = np.array([_ENDED[e.event_type] for e in events], np.int8)
        return self._assembly.batch(cells, at[kept], bad + worse, ended=ended)

    def finish(self) -> Batch:
        """Note what the log looks like."""
        self._assembly.finish()
        return Batch(np.empty(0))


def _received(event: _Event) -> float | None:
    request = event.request
    if request is None:
        return None
    if request.request_received_ms is not None:
        return request.request_received_ms
    if event.event_time_unix_ms is None or request.total_time_ms is None:
        return None
    return event.event_time_unix_ms - request.total_time_ms


def _kind(event_type: str) -> str:
    word = event_type.split("_", maxsplit=1)[0]
    return f"{word} event" if word in {"tool", "agent", "request"} else "other event"


def _detect(head: bytes, filename: str) -> bool:  # noqa: ARG001 - the content tells
    event = first_object(head).get("event")
    return isinstance(event, dict) and str(event.get("schema", "")).startswith(_SCHEMA)


FORMATS: Final = (Format("dynamo", "Dynamo request trace (JSON lines)", _detect, DynamoReader),)
