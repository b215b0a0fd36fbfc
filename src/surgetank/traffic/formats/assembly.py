"""Rows of cells to a batch: the last step of every reader whose columns are found by name.

Rule: a row without a readable arrival is a bad row, and so is one with a number that is none; a gap
in any other column stays a gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats import cells
from surgetank.traffic.formats.columns import Column
from surgetank.traffic.formats.reading import Account, ReadOptions, TimeUnit
from surgetank.traffic.formats.scrutiny import Scrutiny
from surgetank.traffic.formats.stamps import Stamps
from surgetank.traffic.formats.typed import Typed
from surgetank.traffic.trace import UNKNOWN, BadRow, Batch, Labels, Seconds

CHARACTERS_PER_TOKEN: Final = 4  # English prose with the usual tokenizers
NO_TIME: Final = "no time of arrival"
_COUNTS: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "max_tokens")
_OPTIONAL: Final = "max_tokens"  # -1 and words say "none" here
_LONG: Final = 600.0  # seconds: few requests last as long
_FARTHEST: Final = 1e10  # seconds from 1970
_SHOWABLE: Final = re.compile(
    r"[0-9TZ:./+,e -]{1,40}|NaN|nan"
)  # never words: they may be a prompt's
_CLOCK: Final = re.compile(r"\s*\d{1,2}:\d\d")


_By = Mapping[str, list[Column]]
_Found = Mapping[Column, Any]  # sequences of cells, or what `typed` gives


class Assembly:
    """Makes batches of columns of cells, and keeps what must agree over the whole log."""

    def __init__(
        self, options: ReadOptions, account: Account, *, unit: TimeUnit | None = None
    ) -> None:
        """`unit` is the one of the format's stamps, when it has one."""
        self.scrutiny = Scrutiny(account)
        self._options = options
        self._account = account
        self._unit = unit
        self._stamps: dict[str, Stamps] = {}
        self._taken_for_start: set[str] = set()  # names of times beside a duration
        self._unitless: dict[Column, list[int]] = {}  # times: values, implausible ones
        self._from = {"start": 0, "end - duration": 0, "end": 0}  # rows by what made their arrival

    @property
    def arrival_from(self) -> str:
        """What most arrivals so far are made of."""
        most = max(self._from, key=lambda k: self._from[k])  # the first of equals
        return "relative start" if most == "start" and self._relative else most

    @property
    def _relative(self) -> bool:
        return any(s.relative for s in self._stamps.values())

    def batch(
        self,
        found: _Found,
        lines: NDArray[np.int64],
        rejected: Iterable[BadRow] = (),
        **ready: NDArray[np.int64] | NDArray[np.int8],
    ) -> Batch:
        """Assemble the columns, all as long as `lines`; the best spelling of each of ours first.

        `rejected` are lines that did not become cells; they are counted with the others. `ready`
        are columns that need no reading. Raises UnreadableError for dates that are ambiguous.
        """
        by_name: dict[str, list[Column]] = {}
        for column in found:
            by_name.setdefault(column.ours, []).append(column)
        made: dict[str, Any] = dict(ready)
        why: dict[int, str] = {}
        self._numbers(by_name, found, made, why)
        self._names(by_name, found, made)
        self._characters(by_name, found, made)
        arrived = self._arrivals(by_name, found, made, len(lines))
        for i in np.flatnonzero(np.isnan(arrived)).tolist():
            why[i] = _no_arrival(by_name, found, i)
        refused = [*rejected, *(BadRow(int(lines[i]), reason) for i, reason in why.items())]
        for row in sorted(refused, key=lambda r: r.line):
            self._account.skip(row.line, row.reason)
        batch = Batch(arrived, **made)
        if why:
            kept = np.ones(len(arrived), bool)
            kept[list(why)] = False
            batch = batch.take(kept)
        self._account.rows += len(batch)
        self.scrutiny.look(batch)
        return batch

    def typed(self, found: Mapping[Column, Typed], lines: NDArray[np.int64]) -> Batch | None:
        """Assemble columns that are converted already, as `batch` does with their cells.

        None, and nothing remembered, when a row is not plain: it may be a bad one.
        """
        ready: dict[Column, Any] = dict(found)
        for column, values in found.items():
            if isinstance(values, Labels):
                continue
            if column.ours in {"arrived", "ended_at"}:
                stamps = self._stamps.get(column.theirs)
                times = stamps.sure(values) if stamps else None
                if times is None or float(np.abs(times).max()) > _FARTHEST:
                    return None
                ready[column] = times
            elif column.ours in _COUNTS:
                count: Any = values  # a column of numbers
                outside = (count < 0) & (count != UNKNOWN) | (count > cells.MOST_TOKENS)
                if outside.any():
                    return None
        return self.batch(ready, lines)

    def finish(self) -> None:
        """Say what the whole of the log looks like."""
        zeros = sum(s.zeros for s in self._stamps.values() if s.relative is False)
        if zeros:
            self._account.note(f"{zeros} rows before the first real stamp have a stamp of 0")
        for name in sorted(self._taken_for_start):
            self._account.note(
                f"{name!r} is taken for the start of each request; if it is the end, say so:"
                f" ended_at={name}"
            )
        for column, (values, long) in self._unitless.items():
            if values:
                doubt = (
                    f" ({long} of {values} exceed {_LONG:.0f} s: are they milliseconds?)"
                    if long > values / 4
                    else ""
                )
                self._account.note(
                    f"{column.theirs!r} states no unit and is taken for seconds{doubt}; if it"
                    f" is not, say so: {column.ours}={column.theirs}:ms"
                )
        if self._from["end"]:
            self._account.note("only the end of each request is logged: arrivals are ends")
        self.scrutiny.conclude()

    def _numbers(
        self, by_name: _By, found: _Found, made: dict[str, Any], why: dict[int, str]
    ) -> None:
        def flag(flags: NDArray[np.bool_], column: Column, what: str) -> None:
            for i in np.flatnonzero(flags).tolist():
                why.setdefault(i, f"column {column.theirs!r} is not {what}")

        for name in _COUNTS:
            for column in by_name.get(name, ()):
                count, wrong = cells.counts(found[column])
                if name != _OPTIONAL:
                    flag(wrong, column, "a whole number")
                made[name] = count if name not in made else _first_known(made[name], count)
        for column in by_name.get("priority", ())[:1]:
            made["priority"] = cells.priorities(found[column])
        for name in ("duration", "ttft"):
            for column in by_name.get(name, ()):
                time, wrong = cells.seconds(found[column], column.unit)
                flag(wrong, column, "a number of seconds")
                if column.unit is None and self._unit is None:
                    seen = self._unitless.setdefault(column, [0, 0])
                    seen[0] += int((time >= 0).sum())
                    seen[1] += int((time > _LONG).sum())
                made[name] = time if name not in made else _first_number(made[name], time)

    def _names(self, by_name: _By, found: _Found, made: dict[str, Any]) -> None:
        for name in ("tenant", "model", "session"):
            for column in by_name.get(name, ()):
                label = cells.labels(found[column])
                made[name] = label if name not in made else _first_named(made[name], label)
        for column in by_name.get("status", ()):
            end, running = cells.endings(found[column])
            self.scrutiny.running += running
            made["ended"] = end if "ended" not in made else _first_known(made["ended"], end)

    def _characters(self, by_name: _By, found: _Found, made: dict[str, Any]) -> None:
        columns = by_name.get("prompt_chars", ())
        if not columns:
            return
        name = columns[0].theirs
        if not self._options.estimate_tokens:
            if "prompt_tokens" not in made:
                self._account.note(
                    f"{name!r} is a length in characters: prompt tokens are unknown"
                    " (they can be estimated at 4 characters a token when asked)"
                )
            return
        self._account.note(f"prompt tokens are estimated: {name!r} / {CHARACTERS_PER_TOKEN}")
        length, _ = cells.counts(found[columns[0]])
        tokens = np.where(length == UNKNOWN, UNKNOWN, -(-length // CHARACTERS_PER_TOKEN))
        before = made.get("prompt_tokens")
        made["prompt_tokens"] = tokens if before is None else _first_known(before, tokens)

    def _arrivals(self, by_name: _By, found: _Found, made: dict[str, Any], rows: int) -> Seconds:
        """The start where a row states it, else its end less its duration, else its end."""
        arrived, absent = self._times("arrived", by_name, found, rows, made.get("duration"))
        self._from["start"] += rows - int(absent.sum())
        if "ended_at" in by_name:
            ended, _ = self._times("ended_at", by_name, found, rows)
            duration = made.get("duration", np.full(rows, np.nan))
            unlasting = absent & np.isnan(duration) & ~np.isnan(ended)
            lasting = absent & ~np.isnan(duration) & ~np.isnan(ended)
            self._from["end"] += int(unlasting.sum())
            self._from["end - duration"] += int(lasting.sum())
            arrived[unlasting] = ended[unlasting]
            arrived[lasting] = ended[lasting] - duration[lasting]
            lasted = np.where(absent | (ended < arrived), np.nan, ended - arrived)
            made["duration"] = _first_number(duration, lasted)
        arrived[np.abs(arrived) > _FARTHEST] = np.nan
        if self._options.start is not None and self._relative:
            arrived += self._options.start
        return arrived

    def _times(
        self, name: str, by_name: _By, found: _Found, rows: int, duration: Seconds | None = None
    ) -> tuple[Seconds, NDArray[np.bool_]]:
        """Times, and where there is none; the best spelling first, others where it is empty."""
        times = np.full(rows, np.nan)
        absent = np.ones(rows, bool)
        for column, values in _with_days(by_name.get(name, ()), found):
            stamps = self._stamps.get(column.theirs)
            if stamps is None:
                stamps = Stamps(self._options, unit=column.unit or self._unit)
                self._stamps[column.theirs] = stamps
            here = absent
            if isinstance(values, np.ndarray):  # read already, without a gap
                times = values
            else:
                if None in values or "" in values:
                    stated = (v is not None and v != "" for v in values)
                    here = absent & np.fromiter(stated, bool, rows)
                if here.all():
                    times = stamps.read(values)
                elif here.any():
                    where = np.flatnonzero(here)
                    times[where] = stamps.read([values[i] for i in where.tolist()])
            lasted = duration is not None and not np.isnan(duration[here]).all()
            if lasted and self._unit is None and not column.states_start:
                self._taken_for_start.add(column.theirs)
            absent = absent & ~here
            if not absent.any():
                break
        return times, absent


def _with_days(columns: Sequence[Column], found: _Found) -> Iterable[tuple[Column, Any]]:
    """The columns with their cells; a time of day is completed by the column of dates beside it."""
    by_theirs = {c.theirs.lower(): c for c in columns}
    day, time = by_theirs.get("date"), by_theirs.get("time")
    for column in columns:
        if day is None or time is None or column not in {day, time}:
            yield column, found[column]
        elif column is time:
            yield (
                time,
                [
                    f"{d} {t}" if isinstance(t, str) and _CLOCK.match(t) else t
                    for d, t in zip(found[day], found[time], strict=True)
                ],
            )


def _no_arrival(by_name: _By, found: _Found, row: int) -> str:
    for column in (*by_name.get("arrived", ()), *by_name.get("ended_at", ())):
        cell = found[column][row]
        if cell is None or cell == "":
            continue
        text = str(cell) if isinstance(cell, (int, float)) else cell
        shown = text if isinstance(text, str) and _SHOWABLE.fullmatch(text) else "its value"
        if cells.is_number(cell):
            return f"column {column.theirs!r}: {shown} is no time in the unit of the rows before"
        return f"column {column.theirs!r}: {shown} is no time that can be read"
    return NO_TIME


_Whole = TypeVar("_Whole", np.int64, np.int8)


def _first_known(one: NDArray[_Whole], two: NDArray[_Whole]) -> NDArray[_Whole]:
    return np.where(one == UNKNOWN, two, one)


def _first_number(one: Seconds, two: Seconds) -> Seconds:
    return np.where(np.isnan(one), two, one)


def _first_named(one: Labels, two: Labels) -> Labels:
    names = list(one.names)
    at = {name: i for i, name in enumerate(names)}
    to = []
    for name in two.names:
        if name not in at:
            at[name] = len(names)
            names.append(name)
        to.append(at[name])
    other = np.array([*to, UNKNOWN], np.int32)[two.codes]
    return Labels(np.where(one.codes == UNKNOWN, other, one.codes), tuple(names))
