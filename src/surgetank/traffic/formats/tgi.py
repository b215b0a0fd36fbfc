"""Text Generation Inference, JSON log: one line when a request ends, its times in a span.

arrival = timestamp - total_time. Token counts are not in these lines.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import Final

import msgspec

from surgetank.traffic.formats.clock import collected, iso
from surgetank.traffic.formats.reading import Account, Format, ReadOptions
from surgetank.traffic.formats.rows import (
    NOT_JSON,
    BadLineError,
    LineReader,
    NotARequestError,
    Row,
    arrival,
)
from surgetank.traffic.trace import UNKNOWN, Ended

_TOOK: Final = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ns|us|µs|μs|ms|s)\Z", re.ASCII)
_UNIT: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_BOUND: Final = re.compile(r"\bmax_new_tokens: Some\((\d{1,9})\)", re.ASCII)
# A string that does not end goes to the end, so that no quote in it is tried again.
_QUOTED: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_ROUTES: Final = frozenset(
    ["chat_completions", "completions", "generate", "generate_stream", "compat_generate", "embed"]
)


class _Span(msgspec.Struct, gc=False):
    name: str | None = None
    total_time: str | None = None
    parameters: str | None = None


class _Line(msgspec.Struct, gc=False):
    timestamp: str
    level: str | None = None
    message: str | None = None
    span: _Span | None = None


def detect(head: bytes, _filename: str) -> bool:
    """Tell a TGI log from the router's name in one of its first lines."""
    return b'"target":"text_generation_router' in head and b'"timestamp"' in head


def read(_options: ReadOptions) -> LineReader:
    """Read a TGI JSON log."""
    decoder = msgspec.json.Decoder(_Line)

    def parse(line: str) -> Row:
        _, line = collected(line)
        if not line.startswith("{"):
            raise NotARequestError("other log line")
        try:
            found = decoder.decode(line)
        except NOT_JSON:
            raise BadLineError("not a JSON line of TGI") from None
        span = found.span
        if span is None or span.name not in _ROUTES:
            raise NotARequestError("other log line")
        took = _duration(span.total_time)
        failed = (found.level or "").upper() == "ERROR"
        if took is None and not failed:
            raise NotARequestError("line within a request")
        end = arrival(iso(found.timestamp, UTC))
        return Row(
            end - (took or 0.0),
            duration=float("nan") if took is None else took,
            max_tokens=_bound(span.parameters),
            ended=_outcome(found, failed=failed),
        )

    account = Account(notes=["token counts are not in TGI's log"])
    return LineReader(parse, arrival_from="end - duration", account=account)


def _duration(text: str | None) -> float | None:
    match = _TOOK.match(text or "")
    return float(match[1]) * _UNIT[match[2]] if match else None


def _bound(parameters: str | None) -> int:
    """Read max_new_tokens; a client's words (stop strings) are in quotes: skipped."""
    match = _BOUND.search(_QUOTED.sub("", parameters or ""))
    return int(match[1]) if match else UNKNOWN


def _outcome(found: _Line, *, failed: bool) -> Ended:
    if not failed:
        return Ended.COMPLETED
    said = (found.message or "").lower()
    return Ended.REFUSED if "overloaded" in said else Ended.FAILED


FORMATS: Final = (Format("tgi", "Text Generation Inference log, JSON", detect, read),)
