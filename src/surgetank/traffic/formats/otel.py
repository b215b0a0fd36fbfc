"""OpenTelemetry GenAI spans as OTLP JSON lines: a collector's file export, or one export a line.

A span is a request; startTimeUnixNano is its arrival. Current attribute names, older ones and
vLLM's own are understood. Values of other attributes (prompts and answers, where they are recorded)
are skipped undecoded.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from surgetank.traffic.formats.reading import Account, Format, ReadOptions
from surgetank.traffic.formats.routes import ended
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

# our column -> attribute names, the current one first
_NAMES: Final = {
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "cached_tokens": (
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
    ),
    "max_tokens": ("gen_ai.request.max_tokens",),
    "ttft": (
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.latency.time_to_first_token",
        "gen_ai.server.time_to_first_token",
    ),
    "operation": ("gen_ai.operation.name", "llm.request.type"),
    "model": ("gen_ai.request.model", "gen_ai.response.model", "llm.request.model"),
    "session": ("gen_ai.conversation.id", "session.id"),
    "tenant": ("tenant.id", "tenant", "enduser.id", "user.id"),
    "error": ("error.type", "http.response.status_code"),
    "provider": ("gen_ai.provider.name", "gen_ai.system", "gen_ai.request.id"),
}
_COLUMN: Final = {name: ours for ours, names in _NAMES.items() for name in names}
_RANK: Final = {name: rank for names in _NAMES.values() for rank, name in enumerate(names)}
_REQUESTS: Final = frozenset(
    ("chat", "text_completion", "completion", "generate_content", "embeddings", "embedding")
)
_LEFT: Final = frozenset(("canceled", "cancelled", "CancelledError", "CANCELLED", "499"))
_REFUSED: Final = frozenset(("RateLimitError", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"))
_ERROR_CODE: Final = 2  # of a span's status
_TWICE: Final = (
    "both clients' and servers' spans are in this log: a request traced on both sides counts twice"
)
_CLIENT, _SERVER = 3, 2


class _Attribute(msgspec.Struct, gc=False):
    key: str
    value: msgspec.Raw = msgspec.Raw(b"null")


class _Value(msgspec.Struct, gc=False):
    stringValue: str | None = None  # noqa: N815 -- OTLP's own names
    intValue: int | str | None = None  # noqa: N815 -- same
    doubleValue: float | str | None = None  # noqa: N815 -- same


class _Status(msgspec.Struct, gc=False):
    code: int | str | None = None


class _Span(msgspec.Struct, gc=False):
    name: str = ""
    kind: int | str | None = None
    startTimeUnixNano: int | str | None = None  # noqa: N815 -- same
    endTimeUnixNano: int | str | None = None  # noqa: N815 -- same
    attributes: list[_Attribute] | None = None
    status: _Status | None = None


class _Scope(msgspec.Struct, gc=False):
    spans: list[_Span] | None = None


class _Resource(msgspec.Struct, gc=False):
    attributes: list[_Attribute] | None = None


class _ResourceSpans(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    scopeSpans: list[_Scope] | None = None  # noqa: N815 -- same
    instrumentationLibrarySpans: list[_Scope] | None = None  # noqa: N815 -- before OTLP 0.15


class _Line(msgspec.Struct, gc=False):
    resourceSpans: list[_ResourceSpans] | None = None  # noqa: N815 -- same


def detect(head: bytes, _filename: str) -> bool:
    """Tell OTLP spans from their outermost name."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:4096]
    return first.startswith(b"{") and b'"resourceSpans"' in first


def read(_options: ReadOptions) -> LineReader:
    """Read OTLP JSON lines; the tenant is tenant.id or the user, else service.name."""
    account = Account()
    log = _Log(account)
    return LineReader(log.parse, account=account)


class _Log:
    """State: which sides of a call have been seen."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._decoder = msgspec.json.Decoder(_Line)
        self._kinds: set[int] = set()

    def parse(self, line: str) -> list[Row]:
        try:
            found = self._decoder.decode(line)
        except NOT_JSON:
            raise BadLineError("not a JSON line of OTLP spans") from None
        if found.resourceSpans is None:
            raise NotARequestError("no spans (metrics or logs)")
        rows: list[Row] = []
        wrong: BadLineError | None = None
        for group in found.resourceSpans:
            service = _service(group)
            for scope in group.scopeSpans or group.instrumentationLibrarySpans or ():
                for span in scope.spans or ():
                    try:
                        rows.append(self._row(span, service))
                    except NotARequestError as e:
                        self._account.ignored[str(e)] += 1
                    except BadLineError as e:
                        wrong = e
        if wrong is not None and not rows:
            raise wrong
        if wrong is not None:
            self._account.skipped += 1
        return rows

    def _row(self, span: _Span, service: str | None) -> Row:
        said = _said(span.attributes)
        operation = said.get("operation")
        if operation is None and "provider" not in said and "prompt_tokens" not in said:
            raise NotARequestError("span of something else")
        if operation is not None and str(operation).lower() not in _REQUESTS:
            raise NotARequestError("span of no model call (tool, agent, ...)")
        arrived = arrival(_nanos(span.startTimeUnixNano))
        took = _nanos(span.endTimeUnixNano) - arrived
        self._side(span.kind)
        texts = {
            k: v if isinstance(v := said.get(k), str) else None
            for k in ("model", "session", "tenant")
        }
        return Row(
            arrived,
            duration=took if took >= 0 else GAP,
            ttft=seconds(said.get("ttft")),
            prompt_tokens=count(said.get("prompt_tokens")),
            output_tokens=count(said.get("output_tokens")),
            cached_tokens=count(said.get("cached_tokens")),
            max_tokens=count(said.get("max_tokens")),
            ended=_outcome(span, said.get("error")),
            tenant=texts["tenant"] or service,
            model=texts["model"],
            session=texts["session"],
        )

    def _side(self, kind: int | str | None) -> None:
        named = {"SPAN_KIND_CLIENT": _CLIENT, "SPAN_KIND_SERVER": _SERVER}
        side = named.get(kind) if isinstance(kind, str) else kind
        if side in {_CLIENT, _SERVER} and side not in self._kinds:
            self._kinds.add(side)
            if len(self._kinds) == 2:
                self._account.note(_TWICE)


def _said(attributes: list[_Attribute] | None) -> dict[str, Any]:
    """Give the attributes that count, by our names; the most current spelling wins."""
    found: dict[str, tuple[int, Any]] = {}
    for attribute in attributes or ():
        ours = _COLUMN.get(attribute.key)
        if ours is None:
            continue
        rank = _RANK[attribute.key]
        value = _value(attribute.value)
        if value is not None and (ours not in found or rank < found[ours][0]):
            found[ours] = (rank, value)
    return {ours: value for ours, (_, value) in found.items()}


def _value(raw: msgspec.Raw) -> str | int | float | None:
    try:
        value = msgspec.json.decode(raw, type=_Value)
    except NOT_JSON:
        return None
    for candidate in (value.stringValue, value.intValue, value.doubleValue):
        if candidate is not None:
            return candidate
    return None


def _service(group: _ResourceSpans) -> str | None:
    attributes = group.resource.attributes if group.resource else None
    for attribute in attributes or ():
        if attribute.key == "service.name":
            value = _value(attribute.value)
            return value if isinstance(value, str) else None
    return None


def _nanos(value: int | str | None) -> float:
    """Nanoseconds as a number or as digits, to seconds."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if not isinstance(value, int) or value <= 0:
        raise BadLineError("a span without its times")
    return value // 10**9 + value % 10**9 / 1e9 if value < 10**20 else GAP


def _outcome(span: _Span, error: object) -> Ended:
    code = span.status.code if span.status else None
    failed = code in {_ERROR_CODE, "STATUS_CODE_ERROR"}
    if error is None or count(error) in range(200, 400):
        return Ended.FAILED if failed else Ended.COMPLETED
    if str(error) in _LEFT:
        return Ended.ABANDONED
    if str(error).rsplit(".", 1)[-1] in _REFUSED:
        return Ended.REFUSED
    told = ended(count(error))
    return Ended.FAILED if told == Ended.UNKNOWN else told


FORMATS: Final = (Format("otel", "OpenTelemetry GenAI spans, OTLP JSON lines", detect, read),)
