"""AWS Application Load Balancer access logs.

`time` is when the answer was sent; request_creation_time is the arrival. -1 is a time that never
was (the target was not reached, or closed the connection).
"""

from __future__ import annotations

import math
import re
from datetime import UTC
from typing import Final

from surgetank.traffic.formats.clock import iso
from surgetank.traffic.formats.reading import Account, Format, ReadOptions
from surgetank.traffic.formats.routes import FIRST_BYTE, ended, not_inference, split_request
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

_QUOTED: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ANY: Final = rf"(?:{_QUOTED}|\S++)"
# type time elb client target request_wait target_wait response_wait elb_status target_status
# received sent "request" "agent" cipher protocol group "trace" "domain" "cert" priority created ...
_LINE: Final = re.compile(
    r"\S++ (\S++) \S++ \S++ \S++ (\S++) (\S++) \S++ (\S++) \S++ \S++ \S++ "
    rf"({_QUOTED}) {_ANY} \S++ \S++ \S++ {_ANY} {_ANY} {_ANY} \S++ (\S++)(?= |\Z)"
)
_FIRST: Final = re.compile(
    rb"(?:https?|h2|grpcs?|wss?) \d{4}-\d\d-\d\dT\S+Z? (?:app/)?\S+ \S+:\d+ "
)


def detect(head: bytes, _filename: str) -> bool:
    """Tell a load balancer's log from its first line."""
    return _FIRST.match(head.removeprefix(b"\xef\xbb\xbf").lstrip()) is not None


def read(_options: ReadOptions) -> LineReader:
    """Read an ALB access log."""
    return LineReader(_parse, account=Account(notes=[FIRST_BYTE]))


def _parse(line: str) -> Row:
    match = _LINE.match(line)
    if match is None:
        raise BadLineError("not a line of a load balancer's log")
    ended_at, request_wait, target_wait, status, request, created = match.groups()
    why = not_inference(*split_request(request[1:-1]))
    if why:
        raise NotARequestError(why)
    outcome = ended(count(status))
    arrived = arrival(iso(created, UTC))
    waits = seconds(request_wait) + seconds(target_wait)
    took = iso(ended_at, UTC) - arrived
    return Row(
        arrived,
        duration=took if 0 <= took < math.inf else GAP,
        ttft=waits if outcome == Ended.COMPLETED else GAP,
        ended=outcome,
    )


FORMATS: Final = (Format("alb", "AWS Application Load Balancer access log", detect, read),)
