"""Langfuse's export of observations as JSON lines; those of type GENERATION are requests.

start_time is the arrival, in UTC where no zone is written. The export spells names with
underscores, the API in camel case: both are read. Inputs and outputs are skipped.
"""

from __future__ import annotations

from datetime import tzinfo
from typing import Any, Final

import msgspec

from surgetank.traffic.formats.clock import iso
from surgetank.traffic.formats.reading import Account, Format, ReadOptions
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

_Number = int | float | str | None
_IN_CHARACTERS: Final = "usage is in characters, not tokens, in some rows: their tokens are unknown"
_REFUSED: Final = ("429", "503", "rate limit", "ratelimit", "rate_limit", "overloaded")


class _Snake(msgspec.Struct, gc=False):
    """An observation as the export spells it."""

    type: str | None = None
    level: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    completion_start_time: str | None = None
    latency: _Number = None
    time_to_first_token: _Number = None
    provided_model_name: str | None = None
    model: str | None = None
    usage_details: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    prompt_tokens: _Number = None
    completion_tokens: _Number = None
    status_message: str | None = None
    model_parameters: dict[str, Any] | str | None = None
    user_id: str | None = None
    session_id: str | None = None


# The same as the API spells it. (A subclass would keep the names of the fields it inherits.)
_CAMEL: Final[Any] = msgspec.defstruct(
    "Camel",
    [(f.name, f.type, None) for f in msgspec.structs.fields(_Snake)],
    rename="camel",
    gc=False,
)


def detect(head: bytes, _filename: str) -> bool:
    """Tell observations from the names in the first line."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return (
        first.startswith(b"{")
        and b'"type"' in first
        and any(name in first for name in (b'"trace_id"', b'"traceId"'))
        and any(name in first for name in (b'"completion_start_time"', b'"completionStartTime"'))
    )


def read(options: ReadOptions) -> LineReader:
    """Read Langfuse observations; the tenant is the user."""
    account = Account()
    snake, camel = msgspec.json.Decoder(_Snake), msgspec.json.Decoder(_CAMEL)

    def parse(line: str) -> Row:
        try:
            found = snake.decode(line)
            if found.start_time is None:
                found = camel.decode(line)
        except NOT_JSON:
            raise BadLineError("not a JSON object of a Langfuse observation") from None
        if found.type is None:
            raise BadLineError("an observation without a type")
        if found.type.upper() != "GENERATION":
            raise NotARequestError("observation that is no generation")
        return _row(account, found, options.timezone)

    return LineReader(parse, account=account)


def _row(account: Account, found: _Snake, zone: tzinfo) -> Row:
    arrived = arrival(iso(found.start_time or "", zone))
    took = _after(arrived, found.end_time, zone)
    ttft = _after(arrived, found.completion_start_time, zone)
    usage = found.usage_details or found.usage or {}
    if str(usage.get("unit", "TOKENS")).upper() not in {"TOKENS", "NONE"}:
        account.note(_IN_CHARACTERS)
        usage = {}
    prompt, output = count(usage.get("input")), count(usage.get("output"))
    bound = found.model_parameters if isinstance(found.model_parameters, dict) else {}
    return Row(
        arrived,
        duration=took if took >= 0 else seconds(found.latency),
        ttft=ttft if ttft >= 0 else seconds(found.time_to_first_token),
        prompt_tokens=prompt if prompt >= 0 else count(found.prompt_tokens),
        output_tokens=output if output >= 0 else count(found.completion_tokens),
        cached_tokens=max(
            count(usage.get(name))
            for name in ("input_cached_tokens", "cache_read_input_tokens", "input_cache_read")
        ),
        max_tokens=count(bound.get("max_tokens")),
        ended=_outcome(found),
        tenant=found.user_id,
        model=found.provided_model_name or found.model,
        session=found.session_id,
    )


def _after(arrived: float, text: str | None, zone: tzinfo) -> float:
    try:
        after = iso(text, zone) - arrived if text else GAP
    except BadLineError:
        return GAP
    return after if after >= 0 else GAP


def _outcome(found: _Snake) -> Ended:
    if (found.level or "").upper() != "ERROR":
        return Ended.COMPLETED if found.end_time else Ended.UNKNOWN
    said = (found.status_message or "").lower()
    return Ended.REFUSED if any(word in said for word in _REFUSED) else Ended.FAILED


FORMATS: Final = (Format("langfuse", "Langfuse observations, JSON lines", detect, read),)
