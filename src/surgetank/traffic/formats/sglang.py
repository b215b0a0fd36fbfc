"""SGLang's request log (--log-requests): as text, and as JSON lines (--log-requests-format json).

Both stamp the END of a request; arrival = end - e2e_latency. A request that is received and never
finishes is not counted. The text form holds Python literals: they are never evaluated; every string
but the few keys looked for is blanked first, so that no prompt can pass for a field.
"""

from __future__ import annotations

import re
from datetime import tzinfo
from typing import Any, Final

import msgspec

from surgetank.traffic.formats.clock import collected, iso, without_prefix
from surgetank.traffic.formats.reading import Account, Format, ReadOptions, UnreadableError
from surgetank.traffic.formats.rows import (
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

_LOGGED: Final = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?: [\w ]{1,64})?\] ", re.ASCII
)
# A literal that does not end goes to the end of the line: trying again at each quote in it would
# take a time that grows with the square of the line.
_LITERAL: Final = re.compile(
    r"""'[^'\\]*+(?:\\.[^'\\]*+)*+(?:'|\\?\Z)|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)""", re.DOTALL
)
_KEYS: Final = frozenset(
    (
        "'meta_info'",
        "'prompt_tokens'",
        "'completion_tokens'",
        "'cached_tokens'",
        "'e2e_latency'",
        "'finish_reason'",
        "'type'",
        "'abort'",
        "'stop'",
        "'length'",
        "'status_code'",
        "'max_new_tokens'",
    )
)
_NUMBER: Final = r"': (\d{1,12}(?:\.\d{1,20})?(?:e-?\d{1,3})?)"
_FIELDS: Final = {
    key: re.compile(rf"'{key}{_NUMBER}", re.ASCII)
    for key in ("prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency")
}
_REASON: Final = re.compile(r"'finish_reason': \{'type': '(\w{0,20})'", re.ASCII)
_STATUS: Final = re.compile(r"'status_code': (?:<HTTPStatus\.\w{1,40}: )?(\d{3})", re.ASCII)
_BOUND: Final = re.compile(r"'max_new_tokens': (\d{1,12})\b", re.ASCII)
_NO_LATENCY: Final = "requests without e2e_latency arrive, as far as known, when they end"
_SECONDS: Final = "stamps are whole seconds, of the request's end"
_ONLY_ENDS: Final = "requests that were received and not finished are not counted"


def detect_text(head: bytes, _filename: str) -> bool:
    """Tell SGLang's text log from a line in its own format."""
    for line in head.decode("utf-8", "replace").split("\n")[:200]:
        text = without_prefix(line)
        logged = _LOGGED.match(text)
        if logged and text.startswith(
            ("Finish: obj=", "Receive: obj=", "Decode batch", "Prefill batch", "server_args="),
            logged.end(),
        ):
            return True
    return False


def detect_json(head: bytes, _filename: str) -> bool:
    """Tell SGLang's JSON request log from its event names."""
    return b'"event": "request.' in head and b'"rid"' in head


def read_text(options: ReadOptions) -> LineReader:
    """Read SGLang's text log; its stamps are in `options.timezone`."""
    account = Account()

    def parse(line: str) -> list[Row]:
        stamp, text = collected(line)
        logged = _LOGGED.match(text)
        if logged is None:
            raise NotARequestError("other log line")
        if text.startswith("Finish: ", logged.end()):
            if stamp is None:
                account.note(_SECONDS)
                stamp = iso(logged[1].replace(",", "."), options.timezone)
            return _finished(account, text[logged.end() :], arrival(stamp))
        if text.startswith("Receive: ", logged.end()):
            account.note(_ONLY_ENDS)
            raise NotARequestError("start of a request (its end counts)")
        statistics = text.startswith(("Decode batch", "Prefill batch"), logged.end())
        raise NotARequestError("engine statistics" if statistics else "other log line")

    return LineReader(
        parse, arrival_from="end - duration", account=account, last=lambda: _any_requests(account)
    )


def _any_requests(account: Account) -> list[Row]:
    if not account.rows and not account.skipped and account.ignored:
        raise UnreadableError(
            "no finished requests in this log: SGLang writes them with --log-requests"
        )
    return []


def _blank(literal: re.Match[str]) -> str:
    return literal[0] if literal[0] in _KEYS else "''"


def _finished(account: Account, text: str, end: float) -> list[Row]:
    text = _LITERAL.sub(_blank, text)
    asked, out, answers = text.rpartition(", out=")
    parts = answers.split("'meta_info': {")[1:]
    if not out or not parts or not text.rstrip().endswith(("}", "]")):
        raise BadLineError("a finished request without meta_info: cut off?")
    bound = _BOUND.search(asked)
    return [_from_text(account, part, end, count(bound[1]) if bound else -1) for part in parts]


def _from_text(account: Account, meta: str, end: float, bound: int) -> Row:
    found = {key: m[1] if (m := pattern.search(meta)) else None for key, pattern in _FIELDS.items()}
    reason, status = _REASON.search(meta), _STATUS.search(meta)
    outcome = _ended(reason[1] if reason else None, int(status[1]) if status else None)
    return _row(account, found, end, bound, outcome)


def _row(account: Account, meta: dict[str, Any], end: float, bound: int, outcome: Ended) -> Row:
    took = seconds(meta.get("e2e_latency"))
    if not took >= 0:
        account.note(_NO_LATENCY)
    return Row(
        end - took if took >= 0 else end,
        duration=took,
        prompt_tokens=count(meta.get("prompt_tokens")),
        output_tokens=count(meta.get("completion_tokens")),
        cached_tokens=count(meta.get("cached_tokens")),
        max_tokens=bound,
        ended=outcome,
    )


def _ended(reason: str | None, status: int | None) -> Ended:
    """Map a finish reason. An abort without a status is the client's leaving."""
    if reason in {"stop", "length"}:
        return Ended.COMPLETED
    if reason != "abort":
        return Ended.UNKNOWN
    if status is None:
        return Ended.ABANDONED
    return Ended.REFUSED if status in {429, 503} else Ended.FAILED


class _Answer(msgspec.Struct, gc=False):
    meta_info: dict[str, Any] | None = None


class _Asked(msgspec.Struct, gc=False):
    sampling_params: Any = None


class _Line(msgspec.Struct, gc=False):
    timestamp: str
    event: str
    obj: _Asked | None = None
    out: _Answer | list[_Answer] | None = None


def read_json(options: ReadOptions) -> LineReader:
    """Read SGLang's JSON request log; its stamps are in `options.timezone`."""
    account = Account()
    decoder = msgspec.json.Decoder(_Line)

    def parse(line: str) -> list[Row]:
        _, line = collected(line)
        if not line.startswith("{"):
            raise NotARequestError("other log line")
        try:
            found = decoder.decode(line)
        except NOT_JSON:
            raise BadLineError("not a JSON line of SGLang's request log") from None
        if found.event != "request.finished":
            account.note(_ONLY_ENDS)
            raise NotARequestError("start of a request (its end counts)")
        return _from_json(account, found, options.timezone)

    return LineReader(parse, arrival_from="end - duration", account=account)


def _from_json(account: Account, found: _Line, zone: tzinfo) -> list[Row]:
    end = arrival(iso(found.timestamp, zone))
    params = found.obj.sampling_params if found.obj else None
    params = params[0] if isinstance(params, list) and params else params
    bound = count(params.get("max_new_tokens")) if isinstance(params, dict) else -1
    answers = found.out if isinstance(found.out, list) else [found.out]
    metas = [answer.meta_info for answer in answers if answer and answer.meta_info is not None]
    if not metas:
        raise BadLineError("a finished request without meta_info")
    rows = []
    for meta in metas:
        why = meta.get("finish_reason")
        why = why if isinstance(why, dict) else {"type": why}
        reason, status = why.get("type"), count(why.get("status_code"))
        outcome = _ended(
            reason if isinstance(reason, str) else None, status if status >= 0 else None
        )
        rows.append(_row(account, meta, end, bound, outcome))
    return rows


FORMATS: Final = (
    Format("sglang-json", "SGLang request log, JSON lines", detect_json, read_json),
    Format("sglang", "SGLang server log with --log-requests", detect_text, read_text),
)
