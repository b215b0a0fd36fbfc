"""Envoy access logs: the default text format (Istio's too), and JSON lines of the same fields.

start_time is the request's arrival, duration its milliseconds. Envoy's response flags tell what a
status alone does not: DC, the client left; UO, RL, OM: a limiter refused; UT, UC, URX...: the
upstream failed.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import Any, Final

import msgspec

from surgetank.traffic.formats.clock import iso
from surgetank.traffic.formats.reading import Account, Format, ReadOptions
from surgetank.traffic.formats.routes import FIRST_BYTE, ended, not_inference, split_request
from surgetank.traffic.formats.rows import (
    GAP,
    NOT_JSON,
    BadLineError,
    LineReader,
    NotARequestError,
    Row,
    arrival,
    count,
    seconds,
)
from surgetank.traffic.trace import Ended

_QUOTED: Final = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
# [start] "POST /path HTTP/1.1" 200 - (Istio: via_upstream - "-") received sent ms upstream_ms ...
_TEXT: Final = re.compile(
    r"\[(\d{4}-[^\]]{1,40})\] "
    + _QUOTED
    + r" (\d{1,3}) ([\w,-]{1,200})(?: \S{1,500} \S{1,500} "
    + _QUOTED
    + r")? (?:\d+|-) (?:\d+|-) (\d+|-) (\d+|-)(?= |\Z)",
    re.ASCII,
)
_LEFT: Final = frozenset(("DC", "DR", "DownstreamConnectionTermination", "DownstreamRemoteReset"))
_REFUSED: Final = frozenset(
    ("UO", "RL", "OM", "UpstreamOverflow", "RateLimited", "OverloadManager")
)
_FAILED: Final = frozenset(
    (
        "UF",
        "UC",
        "UR",
        "LR",
        "UT",
        "URX",
        "UPE",
        "SI",
        "UMSDR",
        "DT",
        "LH",
        "NR",
        "NC",
        "UpstreamConnectionFailure",
        "UpstreamConnectionTermination",
        "UpstreamRemoteReset",
        "UpstreamRequestTimeout",
        "UpstreamRetryLimitExceeded",
        "UpstreamProtocolError",
        "StreamIdleTimeout",
    )
)
_RETRIED: Final = frozenset(("URX", "UpstreamRetryLimitExceeded"))
_RETRIES: Final = "some requests were tried again upstream until the retry limit; each counts once"


def detect_text(head: bytes, _filename: str) -> bool:
    """Tell Envoy's default format from the first line."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return _TEXT.match(first.decode("utf-8", "replace")) is not None


def detect_json(head: bytes, _filename: str) -> bool:
    """Tell Envoy's JSON format from the names in the first line."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return first.startswith(b"{") and b'"start_time"' in first and b'"response_code"' in first


def read_text(_options: ReadOptions) -> LineReader:
    """Read Envoy's default access log."""
    account = Account(notes=[FIRST_BYTE])

    def parse(line: str) -> Row:
        match = _TEXT.match(line)
        if match is None:
            raise BadLineError("not a line of Envoy's default format")
        stamp, request, status, flags, _, took, first_byte = match.groups()
        why = not_inference(*split_request(request))
        if why:
            raise NotARequestError(why)
        return _row(stamp, _outcome(account, status, flags), took, first_byte)

    return LineReader(parse, account=account)


class _Line(msgspec.Struct, gc=False):
    """The fields that count; names as Envoy's documentation and Istio spell them."""

    start_time: str
    response_code: int | str | None = None
    response_flags: str | None = None
    duration: int | float | str | None = None
    service_time: int | float | str | None = msgspec.field(
        default=None, name="x-envoy-upstream-service-time"
    )
    istio_service_time: int | float | str | None = msgspec.field(
        default=None, name="upstream_service_time"
    )
    method: str | None = None
    path: str | None = None
    origin_path: str | None = msgspec.field(default=None, name="x-envoy-origin-path")
    pseudo_path: str | None = msgspec.field(default=None, name=":path")
    pseudo_method: str | None = msgspec.field(default=None, name=":method")
    tenant: str | None = msgspec.field(default=None, name="x-tenant-id")


def read_json(options: ReadOptions) -> LineReader:
    """Read Envoy's JSON access log; `options.columns` may name the tenant's field."""
    account = Account(notes=[FIRST_BYTE])
    decoder = msgspec.json.Decoder(_Line)
    tenant_field = options.columns.get("tenant")
    other = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def parse(line: str) -> Row:
        try:
            found = decoder.decode(line)
            tenant = _text(other.decode(line).get(tenant_field)) if tenant_field else found.tenant
        except NOT_JSON:
            raise BadLineError("not a JSON object of Envoy's fields") from None
        path = found.origin_path or found.path or found.pseudo_path
        why = not_inference(found.method or found.pseudo_method, path)
        if why:
            raise NotARequestError(why)
        waited = found.service_time if found.service_time is not None else found.istio_service_time
        outcome = _outcome(account, found.response_code, found.response_flags or "-")
        row = _row(found.start_time, outcome, found.duration, waited)
        row.tenant = tenant
        return row

    return LineReader(parse, account=account)


def _text(raw: msgspec.Raw | None) -> str | None:
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, str) else None


def _row(stamp: str, outcome: Ended, took_ms: Any, first_byte_ms: Any) -> Row:
    return Row(
        arrival(iso(stamp, UTC)),
        duration=seconds(took_ms, 1e-3),
        ttft=seconds(first_byte_ms, 1e-3) if outcome == Ended.COMPLETED else GAP,
        ended=outcome,
    )


def _outcome(account: Account, status: int | str | None, flags: str) -> Ended:
    seen = frozenset(flags.split(","))
    if seen & _RETRIED:
        account.note(_RETRIES)
    if seen & _LEFT:
        return Ended.ABANDONED
    if seen & _REFUSED:
        return Ended.REFUSED
    return Ended.FAILED if seen & _FAILED else ended(count(status))


FORMATS: Final = (
    Format("envoy-json", "Envoy access log, JSON lines", detect_json, read_json),
    Format("envoy", "Envoy access log, default or Istio text", detect_text, read_text),
)
