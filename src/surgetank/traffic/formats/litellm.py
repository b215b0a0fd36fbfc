"""LiteLLM's spend logs, exported from its database as CSV or as JSON lines.

startTime is the arrival. Which columns there are, the header says. Of the key's hash only a shorter
hash becomes a label, and only where neither a team nor an alias is named. Messages and responses,
where they were stored, are skipped.
"""

from __future__ import annotations

import csv
import hashlib
import re
from datetime import tzinfo
from typing import Any, Final

import msgspec

from surgetank.traffic.formats.clock import iso
from surgetank.traffic.formats.reading import (
    LONGEST_LINE,
    Account,
    Format,
    ReadOptions,
    UnreadableError,
)
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
from surgetank.traffic.trace import UNKNOWN, Ended

_CELL: Final = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^,"][^,]*|))(,|\Z)')
_MOST_CELLS: Final = 1000
_PROBE: Final = "litellm-internal-health-check"
_CALLS: Final = re.compile(
    r"(?:a?(?:text_)?completion|a?embeddings?|a?responses|a?chat_completion|anthropic_messages"
    r"|a?generate_content(?:_stream)?|pass_through_endpoint)?\Z"
)
_CACHED: Final = "some answers came from LiteLLM's own cache: no engine was asked for them"
_CUT: Final = "the last record is cut off: its quoted cell does not end"


class _Error(msgspec.Struct, gc=False):
    error_code: str | int | None = None
    error_class: str | None = None


class _Metadata(msgspec.Struct, gc=False):
    status: str | None = None
    user_api_key_alias: str | None = None
    user_api_key_team_id: str | None = None
    error_information: _Error | None = None


class _Line(msgspec.Struct, gc=False):
    """The columns that count. JSON exports write numbers as numbers or as strings."""

    startTime: str  # noqa: N815 -- LiteLLM's own names
    endTime: str | None = None  # noqa: N815 -- same
    completionStartTime: str | None = None  # noqa: N815 -- same
    request_duration_ms: float | str | None = None
    call_type: str | None = None
    api_key: str | None = None
    prompt_tokens: int | str | None = None
    completion_tokens: int | str | None = None
    model: str | None = None
    model_group: str | None = None
    user: str | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"null")
    cache_hit: str | bool | None = None
    team_id: str | None = None
    session_id: str | None = None
    status: str | None = None


_WANTED: Final = frozenset(_Line.__struct_fields__)


def detect_csv(head: bytes, _filename: str) -> bool:
    """Tell a CSV export from its header."""
    names = set(_names(_first(head).decode("utf-8", "replace")))
    return {"startTime", "completion_tokens"} <= names and bool(names & {"api_key", "call_type"})


def detect_json(head: bytes, _filename: str) -> bool:
    """Tell a JSON export from the names in its first line."""
    first = _first(head)
    return (
        first.startswith(b"{")
        and b'"startTime"' in first
        and b'"completion_tokens"' in first
        and (b'"call_type"' in first or b'"api_key"' in first)
    )


def _first(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0].rstrip(b"\r")


def read_csv(options: ReadOptions) -> LineReader:
    """Read a CSV export."""
    account = Account()
    table = _Table(account, options.timezone)
    return LineReader(table.parse, account=account, last=table.last)


def read_json(options: ReadOptions) -> LineReader:
    """Read an export of JSON lines."""
    account = Account()
    decoder = msgspec.json.Decoder(_Line)

    def parse(line: str) -> Row:
        try:
            found = decoder.decode(line)
        except NOT_JSON:
            raise BadLineError("not a JSON object of LiteLLM's spend log") from None
        return _row(account, found, _metadata(bytes(found.metadata)), options.timezone)

    return LineReader(parse, account=account)


class _Table:
    """CSV records, which may go over several lines. State: the header and an open record."""

    def __init__(self, account: Account, zone: tzinfo) -> None:
        self._account = account
        self._zone = zone
        self._at: dict[str, int] = {}
        self._width = 0
        self._open: list[str] = []
        self._size = 0

    def parse(self, line: str) -> Row | list[Row]:
        self._size += len(line)
        odd = line.count('"') % 2 == 1
        if self._open or odd:
            self._open.append(line)
            if self._size > LONGEST_LINE:
                self._open, self._size = [], 0
                raise BadLineError("a quoted cell that does not end")
            if not odd or len(self._open) == 1:
                return []
            line = "\n".join(self._open)
        self._open, self._size = [], 0
        if not self._at:
            names = _names(line)
            if "startTime" not in names:
                raise UnreadableError("a LiteLLM spend log begins with a header that has startTime")
            self._at = {name: i for i, name in enumerate(names) if name in _WANTED}
            self._width = len(names)
            raise NotARequestError("header")
        cells = _cells(line)
        if len(cells) != self._width:
            raise BadLineError(f"has {len(cells)} columns; the header names {self._width}")
        found: dict[str, Any] = {name: cells[i] for name, i in self._at.items()}
        about = _metadata(found.pop("metadata", "").encode())
        return _row(self._account, _Line(**found), about, self._zone)

    def last(self) -> list[Row]:
        if self._open:
            self._account.skipped += 1
            self._account.note(_CUT)
        return []


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader((line,), strict=True))
    except (csv.Error, StopIteration):
        return _long_cells(line)


def _long_cells(line: str) -> list[str]:
    """Do what csv does, for a record with a cell beyond its 128 KiB, or say what is wrong."""
    cells: list[str] = []
    at = 0
    while len(cells) < _MOST_CELLS:
        match = _CELL.match(line, at)
        if match is None:
            raise BadLineError("a quote inside a cell that is not quoted")
        quoted, bare, end = match.groups()
        cells.append(bare if quoted is None else quoted.replace('""', '"'))
        if not end:
            return cells
        at = match.end()
    raise BadLineError(f"more than {_MOST_CELLS} columns")


def _names(line: str) -> list[str]:
    try:
        return [name.strip() for name in _cells(line)]
    except BadLineError:
        return []


def _metadata(text: bytes) -> _Metadata:
    """Read the metadata: a JSON object, or a JSON string that holds one."""
    try:
        if text.startswith(b'"'):
            text = msgspec.json.decode(text, type=str).encode()
        return msgspec.json.decode(text, type=_Metadata)
    except NOT_JSON:
        return _Metadata()


def _row(account: Account, found: _Line, about: _Metadata, zone: tzinfo) -> Row:
    if _PROBE in {found.api_key, found.user, about.user_api_key_alias, found.team_id}:
        raise NotARequestError("probe")
    if not _CALLS.match(found.call_type or ""):
        raise NotARequestError("no text request")
    arrived = arrival(iso(found.startTime, zone))
    end, first = _maybe(found.endTime, zone), _maybe(found.completionStartTime, zone)
    took = end - arrived if end >= arrived else seconds(found.request_duration_ms, 1e-3)
    outcome = _outcome(found, about)
    prompt = count(found.prompt_tokens)
    if found.cache_hit is True or str(found.cache_hit).lower() == "true":
        account.note(_CACHED)
    return Row(
        arrived,
        duration=took,
        # Without streaming LiteLLM repeats endTime: then the first token's time is not known.
        ttft=first - arrived if arrived <= first < end else GAP,
        prompt_tokens=UNKNOWN if prompt == 0 and outcome != Ended.COMPLETED else prompt,
        output_tokens=count(found.completion_tokens),
        ended=outcome,
        tenant=_tenant(found, about),
        model=found.model_group or found.model,
        session=found.session_id,
    )


def _maybe(text: str | None, zone: tzinfo) -> float:
    try:
        return iso(text, zone) if text else GAP
    except BadLineError:
        return GAP


def _tenant(found: _Line, about: _Metadata) -> str | None:
    named = found.team_id or about.user_api_key_team_id or about.user_api_key_alias
    if named or not found.api_key:
        return named
    return "key-" + hashlib.blake2b(found.api_key.encode(), digest_size=4).hexdigest()


def _outcome(found: _Line, about: _Metadata) -> Ended:
    status = (found.status or about.status or "").lower()
    if status == "success":
        return Ended.COMPLETED
    if status not in {"failure", "failed", "error"}:
        return Ended.UNKNOWN
    error = about.error_information or _Error()
    if error.error_class == "RateLimitError":
        return Ended.REFUSED
    told = ended(count(error.error_code))
    return told if told in {Ended.REFUSED, Ended.ABANDONED} else Ended.FAILED


FORMATS: Final = (
    Format("litellm-json", "LiteLLM spend log, JSON lines", detect_json, read_json),
    Format("litellm", "LiteLLM spend log, CSV", detect_csv, read_csv),
)
