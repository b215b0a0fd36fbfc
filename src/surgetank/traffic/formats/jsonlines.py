"""Lines of JSON to objects: one a line, several on one line, arrays, and the NaN of other writers.

Rule: a whole block is decoded at once when it is clean; else each line by itself, so that a bad one
costs itself only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats import literals
from surgetank.traffic.trace import BadRow

T = TypeVar("T")

_BARE: Final = frozenset({b"[", b"]", b",", b"[]", b"],"})  # an array spread over lines
_scan: Final = json.JSONDecoder().raw_decode
_BETWEEN: Final = re.compile(r"[\s,\x1e]*")  # of objects on one line; \x1e begins an RFC 7464 text
_DEEPEST_CUT: Final = 4  # objects within objects at the end of a cut head
_COLON: Final = re.compile(r"\s*:\s*")
_OPENING: Final = re.compile(r"[\s\[\],\x1e]*")


class JsonLines(Generic[T]):
    """Decodes lines into values of one type."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def split(
        self, block: bytes, lines: NDArray[np.int64]
    ) -> tuple[list[T], NDArray[np.int64], list[BadRow]]:
        """Give the values of a block, the line each is on, and the lines that hold none."""
        values = self._at_once(block)
        if len(values) == len(lines):
            return values, lines, []
        block = _unlisted(block)
        text = np.frombuffer(block, np.uint8)
        filled = np.diff(np.flatnonzero(text == 10), prepend=-1) > 1
        if filled.sum() != len(values):
            values = self._at_once(block)
        if filled.sum() == len(values):
            return values, lines[filled], []
        return self._each(block, lines)

    def _at_once(self, block: bytes) -> list[T]:
        try:
            return self._decoder.decode_lines(block)
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
            return []

    def _each(
        self, block: bytes, lines: NDArray[np.int64]
    ) -> tuple[list[T], NDArray[np.int64], list[BadRow]]:
        values: list[T] = []
        at: list[int] = []
        bad: list[BadRow] = []
        for text, line in zip(block.split(b"\n"), lines.tolist(), strict=False):
            row = text.strip()
            if not row or row in _BARE:
                continue
            try:
                values.append(self._decoder.decode(row))
                at.append(line)
                continue
            except (ValueError, RecursionError):
                reason = self._several(row, line, values, at)
            if reason:
                bad.append(BadRow(line, reason))
        return values, np.array(at, np.int64), bad

    def _several(self, row: bytes, line: int, values: list[T], at: list[int]) -> str:
        """Add the values of a line of several; what is wrong with it, or nothing."""
        try:
            found = list(several(row.decode("utf-8", "replace")))
        except (ValueError, RecursionError) as error:
            return _reason(error)
        reason = ""
        for value in found:
            try:
                values.append(msgspec.convert(value, self._kind))
                at.append(line)
            except (ValueError, RecursionError) as error:
                reason = _reason(error)
        return reason


def _unlisted(block: bytes) -> bytes:
    """A block of an array that has one object a line, without the array's own marks.

    A line cannot end inside a string, so no string is touched.
    """
    block = block.replace(b"},\n", b"}\n")
    if block.startswith(b"[\n"):
        block = block[1:]
    return block[:-2] + b"\n" if block.endswith(b"\n]\n") else block


def several(text: str) -> Iterator[object]:
    """Give the objects of a line: `{..} {..}`, `[{..},{..}]`, `{..},`, or a Python dict's text.

    Raises ValueError at what is none of these.
    """
    at = 0
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr] # it matches everywhere
        if text.startswith("[", at) and _BETWEEN.fullmatch(text, at + 1) is None and at == 0:
            at = _BETWEEN.match(text, 1).end()  # type: ignore[union-attr] # it matches everywhere
        if at >= len(text) or (text[at] == "]" and _BETWEEN.fullmatch(text, at + 1)):
            return
        try:
            value, at = _scan(text, at)
        except ValueError:
            value, at = literals.scan(text, at)
        yield value


def first_object(head: bytes) -> dict[str, Any]:
    """The first object of a log, as far as its head holds it; {} when there is none.

    A value that the head cuts, and what follows it, is left out.
    """
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    text = _OPENING.sub("", text, count=1)
    if not text.startswith("{"):
        return {}
    line = text.split("\n", 1)[0]
    for candidate in (line, text):
        try:
            value = next(several(candidate), None)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return value
    return _cut_object(text)


def _cut_object(text: str, at: int = 0, depth: int = 0) -> dict[str, Any]:
    """The object that begins at `at`, as far as it goes."""
    made: dict[str, Any] = {}
    at += 1
    try:
        while True:
            key, at = _scan(text, _BETWEEN.match(text, at).end())  # type: ignore[union-attr] # matches
            colon = _COLON.match(text, at)
            if not isinstance(key, str) or colon is None:
                return made
            at = colon.end()
            if text.startswith("{", at) and depth < _DEEPEST_CUT:
                made[key] = _cut_object(text, at, depth + 1)
            made[key], at = _scan(text, at)
    except (ValueError, RecursionError):
        return made


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return str(error).split(" - at ")[0][:120]
    return "no JSON object"
