r"""vLLM's server log: each "Received request" line is an arrival.

Stamps have neither year nor zone: the options say them. Token counts of the output are not logged;
those of the prompt only where prompt_token_ids are. Prompts are Python string literals: everything
inside one is skipped, so that a log line quoted in a prompt is not taken for a log line. Where a
prompt holds raw newlines (a shipper undid or cut the literal), all up to its parameters is skipped.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from surgetank.traffic.formats.clock import collected, without_prefix
from surgetank.traffic.formats.reading import Account, Format, ReadOptions, UnreadableError
from surgetank.traffic.formats.rows import (
    BadLineError,
    LineReader,
    NotARequestError,
    Row,
)
from surgetank.traffic.trace import UNKNOWN

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOGGED: Final = re.compile(
    r"(?:\([\w ]{1,64}\bpid=\d{1,10}\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))? \[?[\w./-]{1,200}:\d{1,6}\] ",
    re.ASCII,
)
_UVICORN: Final = re.compile(r"(?:\([\w ]{1,64}\bpid=\d{1,10}\) )?INFO: +\S{1,64} - \"[A-Z]{3,8} /")
_LITERAL: Final = r"""(?:'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+")"""
_RECEIVED: Final = re.compile(r"Received request \S{1,512}: ")
_PROMPT: Final = re.compile(rf"prompt: (?:None|{_LITERAL}), params: ")
_PARAMS: Final = re.compile(r"params: (?:Sampling|Pooling|BeamSearch)Params\(")
# A literal that does not end goes to the end of the line: trying again at each quote in it would
# take a time that grows with the square of the line.
_STRINGS: Final = re.compile(
    r"""'[^'\\]*+(?:\\.[^'\\]*+)*+(?:'|\\?\Z)|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)""", re.DOTALL
)
_BOUND: Final = re.compile(r"\bmax_tokens=(\d{1,12})\b", re.ASCII)
_IDS: Final = re.compile(r"\bprompt_token_ids: \[([\d, ]*)\]", re.ASCII)
_LEAP: Final = 1972  # a year with a 29 February, for logs whose year nobody said
_HALF_YEAR: Final = 183 * 86400.0
_NO_YEAR: Final = "no year in this log, and none given: 1972 was taken, so only differences hold"
_YEAR: Final = "no year or zone in this log: they are those given"
_CUT: Final = "prompt tokens are the prompt_token_ids in the log: --max-log-len cuts them"
_SECONDS: Final = "stamps are whole seconds"


def detect(head: bytes, _filename: str) -> bool:
    """Tell a vLLM log from a line in its own format."""
    lines = head.decode("utf-8", "replace").split("\n")[:200]
    return any(_LOGGED.match(_ANSI.sub("", without_prefix(line))) for line in lines)


def read(options: ReadOptions) -> LineReader:
    """Read a vLLM server log; `options.year` is that of its first line."""
    account = Account()
    log = _Log(account, options)
    return LineReader(log.parse, account=account, last=log.last)


class _Log:
    """State: the calendar, and a request whose prompt has not ended yet."""

    def __init__(self, account: Account, options: ReadOptions) -> None:
        self._account = account
        self._zone = options.timezone
        self._year = options.year or _LEAP
        self._year_note = _YEAR if options.year else _NO_YEAR
        self._before: float | None = None
        self._open: Row | None = None
        self._found = False

    def parse(self, line: str) -> list[Row]:
        if self._open is not None:
            return self._within_prompt(without_prefix(line))
        stamp, line = collected(line)
        line = _ANSI.sub("", line)
        logged = _LOGGED.match(line)
        if logged is None:
            raise NotARequestError(
                "access line without a time" if _UVICORN.match(line) else "other log line"
            )
        received = _RECEIVED.match(line, logged.end())
        if received is None:
            statistics = line.startswith("Engine ", logged.end()) or "Avg prompt throughput" in line
            raise NotARequestError("engine statistics" if statistics else "other log line")
        row = Row(self._time(logged) if stamp is None else stamp)
        if stamp is None:
            self._account.note(_SECONDS)
        self._found = True
        prompt = _PROMPT.match(line, received.end())
        if prompt is not None:
            return [self._with_params(row, line[prompt.end() :])]
        if line.startswith("params: ", received.end()):  # newer: no prompt at this level
            return [self._with_params(row, line[received.end() :])]
        if line.startswith("prompt: ", received.end()):
            self._open = row
            return self._within_prompt(line)
        return [row]

    def last(self) -> list[Row]:
        if self._open is not None:
            self._account.note("the last request's line is cut off")
            return [self._open]
        if not self._found and self._account.ignored:
            raise UnreadableError(
                'no "Received request" lines: vLLM writes them with --enable-log-requests '
                "(older versions: without --disable-log-requests)"
            )
        return []

    def _within_prompt(self, line: str) -> list[Row]:
        found = None
        for found in _PARAMS.finditer(line):  # noqa: B007 -- the last one counts
            pass
        if found is None:
            self._account.ignored["prompt text"] += 1
            return []
        row, self._open = self._open, None
        assert row is not None  # noqa: S101 -- called within a prompt only
        return [self._with_params(row, line[found.start() :])]

    def _with_params(self, row: Row, params: str) -> Row:
        params = _STRINGS.sub("''", params)  # stop strings are the client's words
        bound = _BOUND.search(params)
        ids = _IDS.search(params)
        row.max_tokens = int(bound[1]) if bound else UNKNOWN
        if ids:
            row.prompt_tokens = ids[1].count(",") + 1 if ids[1].strip() else 0
            self._account.note(_CUT)
        return row

    def _time(self, logged: re.Match[str]) -> float:
        month, day, hour, minute, second = (int(part) for part in logged.groups()[:5])
        self._account.note(self._year_note)
        year = self._year
        found = self._moment(year, month, day, hour, minute, second)
        if self._before is not None and found < self._before - _HALF_YEAR:
            year += 1  # the log went past the end of a year
            found = self._moment(year, month, day, hour, minute, second)
        self._year, self._before = year, found
        fraction = logged[6]
        return found + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)

    def _moment(self, *parts: int) -> float:
        year, month, day, hour, minute, second = parts
        try:
            return datetime(year, month, day, hour, minute, second, tzinfo=self._zone).timestamp()
        except (ValueError, OverflowError):
            raise BadLineError(f"no such date in {year}") from None


FORMATS: Final = (Format("vllm", "vLLM server log", detect, read),)
