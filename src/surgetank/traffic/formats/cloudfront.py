"""AWS CloudFront standard logs: tab separated, the #Fields line says which columns there are.

date and time are those of the request's END, in UTC and whole seconds; time-taken is its duration.
"""

from __future__ import annotations

from datetime import UTC
from typing import Final
from urllib.parse import unquote

from surgetank.traffic.formats.clock import iso
from surgetank.traffic.formats.reading import Account, Format, ReadOptions
from surgetank.traffic.formats.routes import FIRST_BYTE, ended, not_inference
from surgetank.traffic.formats.rows import (
    GAP,
    BadLineError,
    LineReader,
    NotARequestError,
    Row,
    arrival,
    count,
    seconds,
)
from surgetank.traffic.trace import Ended

# The order when a piece of a log has lost its #Fields line.
_USUAL: Final = [
    "date",
    "time",
    "x-edge-location",
    "sc-bytes",
    "c-ip",
    "cs-method",
    "cs(Host)",
    "cs-uri-stem",
    "sc-status",
    "cs(Referer)",
    "cs(User-Agent)",
    "cs-uri-query",
    "cs(Cookie)",
    "x-edge-result-type",
    "x-edge-request-id",
    "x-host-header",
    "cs-protocol",
    "cs-bytes",
    "time-taken",
    "x-forwarded-for",
    "ssl-protocol",
    "ssl-cipher",
    "x-edge-response-result-type",
    "cs-protocol-version",
    "fle-status",
    "fle-encrypted-fields",
    "c-port",
    "time-to-first-byte",
    "x-edge-detailed-result-type",
    "sc-content-type",
    "sc-content-len",
    "sc-range-start",
    "sc-range-end",
]
_REFUSED: Final = frozenset(("LimitExceeded", "CapacityExceeded"))
_LEFT: Final = frozenset(("ClientCommError", "ClientHungUpRequest"))
_GUESSED: Final = "no #Fields line before the first row: the usual order of columns was taken"
_SECONDS: Final = "stamps are whole seconds: an arrival is known to a second"

_NO_DURATION: Final = "requests without a time-taken arrive, as far as known, when they end"


def detect(head: bytes, _filename: str) -> bool:
    """Tell a CloudFront log from its two comment lines."""
    lines = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 2)[:2]
    return any(
        line.startswith(b"#Fields:") and b"date time" in line and b"sc-status" in line
        for line in lines
    )


class _Columns:
    """Where each field stands. State: the last #Fields line."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._names: list[str] = []

    def parse(self, line: str) -> Row:
        if line.startswith("#"):
            if line.startswith("#Fields:"):
                self._names = line[8:].split()
            raise NotARequestError("comment")
        if not self._names:
            self._account.note(_GUESSED)
            self._names = _USUAL
        cells = line.split("\t")
        if len(cells) != len(self._names):
            raise BadLineError(f"has {len(cells)} columns; #Fields names {len(self._names)}")
        row = dict(zip(self._names, cells, strict=True))
        why = not_inference(row.get("cs-method"), unquote(row.get("cs-uri-stem", "")))
        if why:
            raise NotARequestError(why)
        outcome = self._outcome(row)
        took = seconds(row.get("time-taken", "-"))
        if not took >= 0:
            self._account.note(_NO_DURATION)
        end = arrival(iso(f"{row.get('date', '')}T{row.get('time', '')}", UTC))
        completed = outcome == Ended.COMPLETED
        return Row(
            end - took if took >= 0 else end,
            duration=took,
            ttft=seconds(row.get("time-to-first-byte", "-")) if completed else GAP,
            ended=outcome,
        )

    @staticmethod
    def _outcome(row: dict[str, str]) -> Ended:
        said = {row.get("x-edge-result-type"), row.get("x-edge-detailed-result-type")}
        status = row.get("sc-status", "")
        if said & _LEFT or status == "000":  # 000: the client closed before there was a status
            return Ended.ABANDONED
        return Ended.REFUSED if said & _REFUSED else ended(count(status))


def read(_options: ReadOptions) -> LineReader:
    """Read a CloudFront standard log."""
    account = Account(notes=[_SECONDS, FIRST_BYTE])
    return LineReader(_Columns(account).parse, arrival_from="end - duration", account=account)


FORMATS: Final = (Format("cloudfront", "AWS CloudFront standard log", detect, read),)
