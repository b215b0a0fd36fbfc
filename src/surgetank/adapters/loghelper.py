"""A second process that parses every other piece of a large log, in the log's order.

Rule: the outcome is that of one process. So it serves only formats whose readers take each line by
itself once they have seen the first ones, and what it cannot know (the number of a line in the
whole log) the first process adds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Final

import numpy as np

from surgetank.errors import InputError
from surgetank.traffic.formats.reading import (
    SHOWN,
    Account,
    Reader,
    ReadOptions,
    UnreadableError,
)
from surgetank.traffic.formats.registry import by_name
from surgetank.traffic.trace import BadRow, Batch

FORMATS: Final = frozenset({"nginx-json"})
"""Formats that two processes read as one does (tested); a reader that carries more is not here."""

_SIZE: Final = struct.Struct("<Q")
_COUNTED: Final = re.compile(r"(\d+) (.+)", re.DOTALL)


@dataclass(slots=True)
class Parsed:
    """What came of one piece; the lines of its bad rows count from 1 at its beginning."""

    batch: Batch
    lines: int = 0
    rows: int = 0
    skipped: int = 0
    bad: list[BadRow] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    arrival_from: str = ""
    error: str = ""  # the log cannot be read on


class PieceReader:
    """A reader that gives the account of each piece by itself."""

    def __init__(self, open_reader: Callable[[], Reader], beginning: bytes = b"") -> None:
        """Show it the first lines of the log, which it does not count."""
        self._reader = open_reader()
        self._lines = beginning.count(b"\n")  # before the piece at hand, as the reader counts
        self._shown: list[str] = []  # what the notes would be of the beginning alone
        if beginning:
            self._reader.feed(beginning)
            other = open_reader()
            other.feed(beginning)
            other.finish()
            self._shown = other.account.notes

    def parse(self, piece: bytes) -> Parsed:
        """Read a piece; an empty one is the end, which brings the notes."""
        account = self._reader.account
        account.rows = account.skipped = 0
        account.bad.clear()
        account.ignored.clear()
        try:
            batch = self._reader.feed(piece) if piece else self._reader.finish()
        except UnreadableError as error:
            return Parsed(Batch(np.empty(0)), error=str(error))
        before = self._lines
        lines = piece.count(b"\n")
        self._lines += lines
        return Parsed(
            batch,
            lines,
            account.rows,
            account.skipped,
            [BadRow(bad.line - before, bad.reason) for bad in account.bad],
            Counter(account.ignored),
            [] if piece else _without(account.notes, self._shown),
            self._reader.arrival_from,
        )


class Helper:
    """The second process. One piece is under way at a time: `send`, then `receive`."""

    def __init__(self, name: str, options: ReadOptions, beginning: bytes) -> None:
        """Start it, and show it the first lines of the log, which it does not count."""
        # The child finds what this process finds, whatever was added to its path.
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            # Imported and not run as a module: both sides must know `Parsed` by the same name.
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._send(pickle.dumps((name, options, beginning)))

    def send(self, lines: bytes) -> None:
        """Hand over a piece."""
        self._send(lines)

    def receive(self) -> Parsed:
        """Wait for what came of the piece; of the end, after `send(b"")`."""
        parsed: Parsed = pickle.loads(self._receive())  # noqa: S301 - from our own child
        return parsed

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what it was still to be told
                    pipe.close()

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            _write(self._process.stdin, message)
        except BrokenPipeError as error:
            raise InputError("the process that helps to read has died") from error

    def _receive(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        message = _read(self._process.stdout)
        if message is None:
            raise InputError("the process that helps to read has died")
        return message


def add(account: Account, parsed: Parsed, first_line: int) -> None:
    """Add a piece's account; `first_line` is its first line's number. Raises UnreadableError."""
    if parsed.error:
        raise UnreadableError(parsed.error)
    account.rows += parsed.rows
    account.skipped += parsed.skipped
    moved = [BadRow(bad.line + first_line - 1, bad.reason) for bad in parsed.bad]
    account.bad = sorted(account.bad + moved, key=lambda bad: bad.line)[:SHOWN]
    account.ignored.update(parsed.ignored)
    for note in parsed.notes:
        _add_note(account, note)


def _add_note(account: Account, note: str) -> None:
    """Say a note once; two that count the same thing become one with their sum."""
    counted = _COUNTED.fullmatch(note)
    for at, known in enumerate(account.notes):
        other = _COUNTED.fullmatch(known)
        if counted and other and counted[2] == other[2]:
            account.notes[at] = f"{int(counted[1]) + int(other[1])} {counted[2]}"
            return
    account.note(note)


def _without(notes: list[str], shown: list[str]) -> list[str]:
    """Take from notes that count something what was counted in the lines that were only shown."""
    counted = {found[2]: int(found[1]) for note in shown if (found := _COUNTED.fullmatch(note))}
    left = []
    for note in notes:
        found = _COUNTED.fullmatch(note)
        number = int(found[1]) - counted.get(found[2], 0) if found else None
        if found is None or number:
            left.append(note if found is None else f"{number} {found[2]}")
    return left


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_SIZE.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    size: int = _SIZE.unpack(head)[0]
    message = pipe.read(size)
    return message if len(message) == size else None


def serve() -> None:
    """Be the second process: parse pieces from stdin until it closes."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    first = _read(requests)
    if first is None:
        return
    name, options, beginning = pickle.loads(first)  # noqa: S301 - from our own parent
    pieces = PieceReader(lambda: by_name(name).open(options), beginning)
    while (piece := _read(requests)) is not None:
        _write(answers, pickle.dumps(pieces.parse(piece), protocol=pickle.HIGHEST_PROTOCOL))
