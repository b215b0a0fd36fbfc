"""nginx access logs: the combined format (Apache's too), and JSON lines of nginx variables.

nginx writes a line when a request ENDS. JSON: arrival = msec - request_time. Combined has no
duration, so its arrivals are ends. A request that went to several upstreams ("60.000, 0.002") is
one line, and counts once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import tzinfo
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats.clock import common_log, iso
from surgetank.traffic.formats.reading import (
    LONGEST_LINE,
    Account,
    Format,
    ReadOptions,
    UnreadableError,
)
from surgetank.traffic.formats.routes import FIRST_BYTE, ended, not_inference, split_request
from surgetank.traffic.formats.rows import (
    GAP,
    LAST_TIME,
    NOT_JSON,
    TOO_LONG,
    UNITS,
    BadLineError,
    LineReader,
    NotARequestError,
    Row,
    columns,
    count,
    durations,
    labels,
    lines_of,
    number,
    outcomes,
    pieces_of,
    seconds,
)
from surgetank.traffic.formats.typed import AlikeKind, Typed
from surgetank.traffic.trace import UNKNOWN, Batch, Ended, Labels, Seconds, concatenate

if TYPE_CHECKING:
    from surgetank.traffic.formats.alike import AlikeBlocks, Shape

_COMBINED: Final = re.compile(
    r'(\S{1,256}) \S{1,256} ([^\[\]"]{1,256}) \[([^\]"]{1,40})\] '
    r'"([^"\\]*(?:\\.[^"\\]*)*)" (\d{3}) (?:\d+|-)(?= |\Z)'
)
_WHOLE_SECOND: Final = "stamps are whole seconds, of the request's end"


def detect_combined(head: bytes, _filename: str) -> bool:
    """Tell the combined (or common) log format from its first line."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return _COMBINED.match(first.decode("utf-8", "replace")) is not None


def read_combined(_options: ReadOptions) -> LineReader:
    """Read the combined or common log format; the tenant is the authenticated user."""
    account = Account(notes=[_WHOLE_SECOND])
    return LineReader(_combined, arrival_from="end", account=account)


def _combined(line: str) -> Row:
    match = _COMBINED.match(line)
    if match is None:
        raise BadLineError("not a line of the combined log format")
    _, user, stamp, request, status, *_ = match.groups()
    why = not_inference(*split_request(request))
    if why:
        raise NotARequestError(why)
    return Row(
        common_log(stamp),
        ended=ended(int(status)),
        tenant=user if user not in {"-", '""'} else None,
    )


# our column -> what logs call it; the first one that the log's first line has
_NAMES: Final = {
    "msec": ("msec", "time_msec"),
    "iso": ("time_iso8601", "time_local", "@timestamp", "time", "timestamp"),
    "took": ("request_time",),
    "status": ("status",),
    "method": ("request_method", "method"),
    "uri": ("request_uri", "uri"),
    "request": ("request",),
    "first_byte": ("upstream_header_time",),
    "tried": ("upstream_response_time",),
    "tenant": ("http_x_tenant_id", "http_x_tenant", "tenant", "http_x_team_id", "remote_user"),
    "model": ("http_x_model", "model"),
    "session": ("http_x_session_id", "session_id"),
}
_OURS: Final = {"arrived": "msec", "duration": "took", "ttft": "first_byte", "ended": "status"}
_KINDS: Final[dict[str, AlikeKind]] = {  # of our columns in lines that are alike
    "msec": "number",
    "took": "number",
    "status": "number",
    "method": "name",
    "uri": "name",
    "request": "name",
    "first_byte": "first number",
    "tried": "lists",
    "tenant": "name",
    "model": "name",
    "session": "name",
}
_PLAIN: Final = re.compile(r"[0-9.]*")
_NO_NAME: Final = "(no) "  # begins no name of a variable
_Status = Annotated[int, msgspec.Meta(ge=0, le=999)]
_FIELDS: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("msec", float, GAP),
    ("iso", str | None, None),
    ("took", float, GAP),
    ("status", _Status, 0),
    ("method", str | None, None),
    ("uri", str | None, None),
    ("request", str | None, None),
    ("first_byte", str | float | None, None),
    ("tried", str | float | None, None),
    ("tenant", str | None, None),
    ("model", str | None, None),
    ("session", str | None, None),
)
_NEWLINE, _OPENS, _CLOSES = b"\n{}"
_TEXTS: Final = ("iso", "method", "uri", "request", "tenant", "model", "session")
_ENDED: Final = np.array([ended(status) for status in range(1000)], np.int8)
_NO_PATH: Final = "no request path in this log: every line counts as a request"
_NO_DURATION: Final = "requests without a request_time arrive, as far as known, when they end"


def detect_json(head: bytes, _filename: str) -> bool:
    """Tell JSON lines of nginx variables from the names in the first one."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    return (
        first.startswith(b"{")
        and b'"status"' in first
        and any(name in first for name in (b'"request_uri"', b'"request"', b'"uri"'))
        and any(name in first for name in (b'"msec"', b'"request_time"', b'"time_iso8601"'))
    )


class JsonLog:
    """Reads JSON lines of nginx variables, a run of lines at a time.

    The fast way decodes a run into typed records in one call; a run that holds a line that does not
    fit goes line by line. Both give the same records to the same assembly.
    """

    def __init__(self, options: ReadOptions) -> None:
        """`options.columns` renames: {"tenant": "http_x_org", "duration": "took"}."""
        self.account = Account()
        self.arrival_from = "end - duration"
        self._zone: tzinfo = options.timezone
        self._given: dict[str, str] = {}
        self._took_unit = 1.0  # seconds
        for ours, theirs in options.columns.items():
            self._give(_OURS.get(ours, ours), theirs)
        self._line = 0  # lines before the run at hand
        self._retried = 0
        self._names: dict[str, str] = {}
        self._record: Any = None
        self._typed: Any = None
        self._alike: AlikeBlocks | None = None
        self._plain_names: list[str] = []  # of our columns, in the order of the alike ones

    def _give(self, ours: str, theirs: str) -> None:
        name, _, unit = theirs.rpartition(":")
        if ours == "took" and name and unit in UNITS:
            theirs, self._took_unit = name, UNITS[unit]
        if ours in _NAMES:
            self._given[ours] = theirs
        else:
            self.account.note(f"column {ours} cannot be chosen in an nginx log; --format jsonl can")

    def feed(self, lines: bytes) -> Batch:
        """Parse some lines."""
        if self._line == 0:
            lines = lines.removeprefix(b"\xef\xbb\xbf")
        parts = [self._run(piece) for piece in pieces_of(lines)]
        batch = concatenate([p for p in parts if len(p)])
        self.account.rows += len(batch)
        return batch

    def finish(self) -> Batch:
        """Say how many requests were tried again."""
        if self._retried:
            self.account.note(
                f"{self._retried} requests went to more than one upstream; each counts once"
            )
        return columns(())

    def _run(self, piece: bytes) -> Batch:
        if self._typed is None:
            piece = self._meet(piece)
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n")
        if self._alike is not None:
            lines = piece.count(b"\n")
            typed = self._alike.split(piece, lines) if piece.endswith(b"\n") else None
            batch = self._assemble_plain(typed) if typed is not None else None
            if batch is not None:
                self._line += lines
                return batch
        records = self._at_once(piece)
        numbers: Sequence[int]
        if records is None:
            records, numbers = self._one_by_one(piece)
            self._line += piece.count(b"\n") + (piece[-1:] not in {b"\n", b""})
        else:
            numbers = range(self._line + 1, self._line + 1 + len(records))
            self._line += len(records)
        return self._assemble(records, numbers)

    def _meet(self, piece: bytes) -> bytes:
        """Choose the names by the first line that is an object; give the piece from it on."""
        start = 0
        for raw in lines_of(piece):
            found = _object(raw) if len(raw) <= LONGEST_LINE else None
            if found:
                self._choose(found)
                return piece[start:]
            self._line += 1
            start = piece.find(b"\n", start) + 1
            if raw and not raw.isspace():
                self.account.skip(self._line, "not a JSON object")
        return b""

    def _choose(self, first: dict[str, msgspec.Raw]) -> None:
        given = dict(self._given)
        if "msec" in given and not isinstance(_plain(first.get(given["msec"])), int | float):
            given["iso"] = given.pop("msec")
        taken: set[str] = set(given.values())
        for ours, names in _NAMES.items():
            here = next((n for n in names if n in first and n not in taken), _NO_NAME + ours)
            self._names[ours] = given.get(ours, here)
            taken.add(self._names[ours])
        try:
            self._record = msgspec.defstruct("Record", _FIELDS, rename=self._names, gc=False)
        except ValueError:  # a quote in a name, or one name twice
            raise UnreadableError(
                "the columns that were chosen must be names of the log, each a different one"
            ) from None
        self._typed = msgspec.json.Decoder(self._record, strict=False)
        if self._lacks("uri") and self._lacks("request"):
            self.account.note(_NO_PATH)
        if not self._lacks("first_byte"):
            self.account.note(FIRST_BYTE)

    def _lacks(self, ours: str) -> bool:
        return self._names[ours].startswith(_NO_NAME)

    def _at_once(self, piece: bytes) -> list[Any] | None:
        """Decode a run of lines in one call; None unless each line is exactly one good record."""
        if not piece.startswith(b"{"):
            return None
        if not piece.endswith(b"\n"):
            piece += b"\n"
        text = np.frombuffer(piece, np.uint8)
        ends = np.flatnonzero(text == _NEWLINE)
        # "}" LF "{" stands only between two lines of one object each: a string holds no newline.
        if len(ends) == 1 and len(piece) > LONGEST_LINE:
            return None
        if np.any(text[ends - 1] != _CLOSES) or np.any(text[ends[:-1] + 1] != _OPENS):
            return None
        try:
            records: list[Any] = self._typed.decode_lines(piece)
        except NOT_JSON:
            return None
        return records if len(records) == len(ends) else None

    def _one_by_one(self, piece: bytes) -> tuple[list[Any], list[int]]:
        records, numbers = [], []
        for at, raw in enumerate(lines_of(piece), self._line + 1):
            if not raw or raw.isspace():
                continue
            try:
                records.append(self._one(raw))
                numbers.append(at)
            except BadLineError as e:
                self.account.skip(at, str(e))
        return records, numbers

    def _one(self, raw: bytes) -> Any:
        if len(raw) > LONGEST_LINE:
            raise BadLineError(TOO_LONG)
        try:
            return self._typed.decode(raw)
        except NOT_JSON:
            pass  # "-" where a number belongs, or no JSON at all
        found = _object(raw)
        if found is None:
            raise BadLineError("not a JSON object")
        values = {ours: _plain(found.get(name)) for ours, name in self._names.items()}
        record = self._record(
            msec=number(values["msec"]), took=seconds(values["took"]), status=_status(values)
        )
        for ours in _TEXTS:
            value = values[ours]
            setattr(record, ours, None if value is None else str(value))
        for ours in ("first_byte", "tried"):
            value = values[ours]
            setattr(record, ours, value if isinstance(value, str | int | float) else None)
        return record

    def _assemble(self, records: list[Any], numbers: Sequence[int]) -> Batch:
        """Make columns of the records that are requests."""
        if not records:
            return columns(())
        whys = self._whys(records)
        if whys.count(None) < len(whys):
            self.account.ignored.update(why for why in whys if why)
            kept = [why is None for why in whys]
            records, numbers = list(compress(records, kept)), list(compress(numbers, kept))
        end = np.array([r.msec for r in records], np.float64)
        if not self._lacks("iso"):
            for i in np.flatnonzero(np.isnan(end)):
                end[i] = self._read_iso(records[i].iso)
        good = np.abs(end) < LAST_TIME  # not NaN either
        if not good.all():
            for i in np.flatnonzero(~good):
                self.account.skip(numbers[int(i)], "no time stamp (msec or time_iso8601)")
            end, records = end[good], [records[i] for i in np.flatnonzero(good)]
        took = np.array([r.took for r in records], np.float64)
        outcome = _ENDED[np.array([r.status for r in records], np.int64)]
        names = {
            ours: None if self._lacks(ours) else labels(list(map(attrgetter(ours), records)))
            for ours in ("tenant", "model", "session")
        }
        return self._made(end, took, outcome, self._first_bytes(records, outcome), names)

    def hasten(self) -> None:
        """Read runs of lines that are alike sooner, to the same rows; for a large log."""
        from surgetank.traffic.formats.alike import AlikeBlocks  # noqa: PLC0415 - numba is heavy

        self._alike = AlikeBlocks(self._choose_plain)

    def _choose_plain(self, shape: Shape) -> list[tuple[str, AlikeKind]] | None:
        """Name the keys to be read; None when one is missing, or the stamps are no numbers."""
        there = {ours: name for ours, name in self._names.items() if not self._lacks(ours)}
        if "msec" not in there or not set(there.values()) <= set(shape.keys):
            return None
        if "uri" in there:
            there.pop("request", None)
        self._plain_names = [ours for ours in _KINDS if ours in there]
        return [(there[ours], _KINDS[ours]) for ours in self._plain_names]

    def _assemble_plain(self, typed: Sequence[Typed]) -> Batch | None:
        """Make columns as `_assemble` does; None when a row is not plain."""
        found: dict[str, Any] = dict(zip(self._plain_names, typed, strict=True))
        end = found["msec"]
        status = found.get("status", np.zeros(len(end)))
        plain = (np.abs(end) < LAST_TIME) & (status >= 0) & (status < 1000)
        if not (plain & (status == np.trunc(status))).all():
            return None
        why, at = self._plain_whys(found, len(end))
        if any(why):
            kept = np.array([w is None for w in why])[at]
            times = np.bincount(at, minlength=len(why)).tolist()
            for reason, n in zip(why, times, strict=True):
                if reason is not None:
                    self.account.ignored[reason] += n
            end, status = end[kept], status[kept]
            found = {ours: _taken(column, kept) for ours, column in found.items()}
        if not len(end):
            return columns(())
        outcome = _ENDED[status.astype(np.int64)]
        if "tried" in found:
            self._retried += int(found["tried"].sum())
        ttft = found.get("first_byte")
        return self._made(
            end,
            found.get("took", np.full(len(end), GAP)).copy(),
            outcome,
            None if ttft is None else _of_completed(ttft.copy(), outcome),
            {ours: _names_kept(found.get(ours)) for ours in ("tenant", "model", "session")},
        )

    def _plain_whys(
        self, found: dict[str, Any], rows: int
    ) -> tuple[list[str | None], NDArray[np.intp]]:
        """Give why lines are no requests, for each kind of line once, and each line's kind."""
        if "uri" in found:
            uri, method = found["uri"], found.get("method")
            others = 0 if method is None else len(method.names) + 1
            kind = uri.codes.astype(np.int64) * max(1, others)
            kind += 0 if method is None else method.codes
        elif "request" in found:
            uri, method, kind, others = found["request"], None, found["request"].codes, 0
        else:
            return [None], np.zeros(rows, np.intp)
        _, first, at = np.unique(kind, return_index=True, return_inverse=True)
        order = np.argsort(first)  # reasons are told in the order of the lines
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        whys = []
        for row in first[order].tolist():
            text = _name_at(uri, row)
            if "uri" in found:
                whys.append(not_inference(_name_at(method, row), text))
            else:
                whys.append(not_inference(*split_request(text or "")))
        return whys, rank[at]

    def _made(
        self,
        end: Seconds,
        took: Seconds,
        outcome: NDArray[np.int8],
        ttft: Seconds | None,
        names: dict[str, Labels | None],
    ) -> Batch:
        if self._took_unit != 1.0:
            took *= self._took_unit
        took[~((took >= 0) & (took < LAST_TIME))] = GAP
        known = ~np.isnan(took)
        if not known.all():
            self.arrival_from = "end"
            self.account.note(_NO_DURATION)
        return Batch(
            end - np.where(known, took, 0.0),
            duration=durations(took),
            ttft=ttft,
            ended=outcomes(outcome),
            tenant=names["tenant"],
            model=names["model"],
            session=names["session"],
        )

    def _whys(self, records: list[Any]) -> list[str | None]:
        if not self._lacks("uri"):
            return list(map(not_inference, [r.method for r in records], [r.uri for r in records]))
        if not self._lacks("request"):
            return [not_inference(*split_request(r.request or "")) for r in records]
        return [None] * len(records)

    def _read_iso(self, text: str | None) -> float:
        try:
            return common_log(text or "") if text and "/" in text else iso(text or "", self._zone)
        except BadLineError:
            return GAP

    def _first_bytes(self, records: list[Any], outcome: NDArray[np.int8]) -> Seconds | None:
        if not self._lacks("tried"):
            self._retried += _lists([r.tried for r in records])
        if self._lacks("first_byte"):
            return None
        found = [r.first_byte for r in records]
        try:
            plain = _PLAIN.fullmatch("".join(found)) is not None  # float takes more than we do
            ttft = np.array(list(map(float if plain else seconds, found)), np.float64)
        except (TypeError, ValueError):
            ttft = np.array([seconds(value) for value in found], np.float64)
        return _of_completed(ttft, outcome)


def _of_completed(ttft: Seconds, outcome: NDArray[np.int8]) -> Seconds | None:
    ttft[(outcome != Ended.COMPLETED) | ~((ttft >= 0) & (ttft < LAST_TIME))] = GAP
    return durations(ttft)


def _taken(column: Any, kept: NDArray[np.bool_]) -> Any:
    return column.take(kept) if isinstance(column, Labels) else column[kept]


def _name_at(column: Labels | None, row: int) -> str | None:
    code = UNKNOWN if column is None else int(column.codes[row])
    return None if column is None or code == UNKNOWN else column.names[code]


def _names_kept(written: Labels | None) -> Labels | None:
    """Names as `labels` makes them of the same rows."""
    if written is None:
        return None
    codes, first, at = np.unique(written.codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    kept = labels([_name_at(written, row) for row in first[order].tolist()])
    if kept is None:
        return None
    to = np.empty(len(codes), np.int32)
    to[order] = kept.codes
    return Labels(to[at], kept.names)


def _object(raw: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except NOT_JSON:
        return None


def _plain(raw: msgspec.Raw | None) -> str | int | float | None:
    """Give a JSON text or number; None for anything else."""
    try:
        value = None if raw is None else msgspec.json.decode(raw)
    except NOT_JSON:
        return None
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _lists(values: list[str | float | None]) -> int:
    """Count the values that are lists, like "60.000, 0.002"."""
    try:
        if "," not in "".join(values):  # type: ignore[arg-type] # checked by join itself
            return 0
    except TypeError:
        pass
    return sum("," in v for v in values if isinstance(v, str))


def _status(values: dict[str, Any]) -> int:
    status = count(values["status"])
    return status if status in range(1000) else 0


FORMATS: Final = (
    Format("nginx-json", "nginx access log, JSON lines", detect_json, JsonLog),
    Format("nginx", "nginx or Apache access log, combined", detect_combined, read_combined),
)
