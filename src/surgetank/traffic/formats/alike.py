"""JSON lines that are alike: the same keys in the same order, written by one format string.

Rule: all or nothing, as `typed` says. A block is taken when each of its lines has exactly the marks
and keys of the line before, texts without escapes, and plain decimal numbers: so every line is
valid JSON, and each value is what a JSON decoder and Python's `float` make of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats import alikekernels, dateforms
from surgetank.traffic.formats.typed import AlikeKind, Typed, is_utf8
from surgetank.traffic.trace import Labels

_KEY: Final = re.compile(rb'[ \t]*"([^"\\\x00-\x1f]{1,256})"[ \t]*:[ \t]*')
_VALUE: Final = re.compile(rb'"([^"\\\x00-\x1f]*)"|([^,{}\[\]"\s]{1,40})')
_AFTER: Final = re.compile(rb"[ \t]*([,}])")
_MOST_KEYS: Final = 256
_MOST_REFUSED: Final = 16  # blocks one after the other; then the log is not of this kind
_CODES: Final[dict[AlikeKind | None, int]] = {
    None: 0, "number": 1, "name": 2, "text": 3, "first number": 4, "lists": 5
}  # fmt: skip


Choose = Callable[["Shape"], Sequence[tuple[str, AlikeKind]] | None]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a line's format string was: the text before each value, and after the last."""

    keys: tuple[str, ...]
    values: tuple[str | float, ...]  # of the line it was learned from; a text or a number
    between: tuple[bytes, ...]

    @classmethod
    def of(cls, line: bytes) -> Shape | None:
        """Learn it from a line; None when it is no flat object, or has a key twice."""
        if not line.startswith(b"{"):
            return None
        keys: list[str] = []
        values: list[str | float] = []
        between: list[bytes] = []
        at, since = 1, 0
        while True:
            key = _KEY.match(line, at)
            value = _VALUE.match(line, key.end()) if key else None
            if key is None or value is None or len(keys) == _MOST_KEYS:
                return None
            keys.append(key[1].decode("utf-8", "replace"))
            values.append(_value(value))
            between.append(line[since : key.end()])
            since = value.end()
            after = _AFTER.match(line, since)
            if after is None:
                return None
            at = after.end()
            if after[1] == b"}":
                break
        if line[at:].strip() or len(set(keys)) < len(keys):
            return None
        return cls(tuple(keys), tuple(values), (*between, line[since:at] + b"\n"))


def _value(found: re.Match[bytes]) -> str | float:
    if found[1] is not None:
        return found[1].decode("utf-8", "replace")
    try:
        return float(found[2])
    except ValueError:
        return np.nan


class AlikeSplitter:
    """Splits blocks whose lines have one shape."""

    def __init__(self, shape: Shape, wanted: Sequence[tuple[str, AlikeKind]]) -> None:
        """`wanted` are keys of the shape, and what they hold."""
        self._kinds = np.zeros(len(shape.keys), np.int64)
        self._places = np.zeros(len(shape.keys), np.int64)
        self._wanted: list[tuple[AlikeKind, int]] = []
        found = {"number": 0, "name": 0, "text": 0}
        for key, kind in wanted:
            stored = kind if kind in found else "number"
            at = shape.keys.index(key)
            self._kinds[at] = _CODES[kind]
            self._places[at] = found[stored]
            self._wanted.append((kind, found[stored]))
            found[stored] += 1
        self._found = found
        self._marks = np.frombuffer(b"".join(shape.between), np.uint8)
        self._ends = np.cumsum([0, *map(len, shape.between)])

    def split(self, block: bytes, rows: int) -> list[Typed] | None:
        """Give the wanted columns; None unless all lines have the shape."""
        if not is_utf8(block):
            return None
        text = np.frombuffer(block, np.uint8)
        numbers = np.empty((self._found["number"], rows))
        codes = np.empty((self._found["name"], rows), np.int32)
        firsts = np.empty((self._found["name"], rows, 2), np.int64)
        tables = np.full((self._found["name"], 2 << rows.bit_length()), -1, np.int32)
        known = np.zeros(self._found["name"], np.int64)
        spans = np.empty((self._found["text"], rows, 2), np.int64)
        taken = alikekernels.scan(
            text, self._marks, self._ends, self._kinds, self._places,
            numbers, codes, firsts, known, spans, tables,
        )  # fmt: skip
        if taken != rows:
            return None
        columns: list[Typed] = []
        for kind, at in self._wanted:
            if kind == "name":
                columns.append(_labels(block, codes[at], firsts[at, : known[at]]))
            elif kind == "text":
                packed = _packed(text, spans[at])
                if packed is None:
                    return None
                columns.append(packed)
            else:
                columns.append(numbers[at])
        return columns


def _labels(block: bytes, codes: NDArray[np.int32], firsts: NDArray[np.int64]) -> Labels:
    """Names as they are written: what is a name at all is for the reader to decide."""
    return Labels(codes, tuple(block[start:end].decode() for start, end in firsts.tolist()))


def _packed(text: NDArray[np.uint8], spans: NDArray[np.int64]) -> NDArray[np.bytes_] | None:
    width = int((spans[:, 1] - spans[:, 0]).max()) if len(spans) else 0
    if not 0 < width <= dateforms.LONGEST:
        return None
    packed = np.zeros((len(spans), width), np.uint8)
    alikekernels.copy_spans(text, spans, packed)
    return packed.view(f"S{width}").ravel()


class AlikeBlocks:
    """Splits the blocks of a log, and learns their shape anew when one is refused."""

    def __init__(self, choose: Choose) -> None:
        """`choose` names the wanted keys of a shape; None when it needs another reader."""
        self.shape: Shape | None = None
        self._choose = choose
        self._splitter: AlikeSplitter | None = None
        self._refused = 0

    def split(self, block: bytes, rows: int) -> list[Typed] | None:
        """Give the columns that were chosen of `shape`; None when the block is not plain."""
        if self._refused == _MOST_REFUSED:
            return None
        if self._splitter is None:
            self.shape = Shape.of(block[: block.find(b"\n") + 1])
            wanted = self._choose(self.shape) if self.shape else None
            if self.shape and wanted is not None:
                self._splitter = AlikeSplitter(self.shape, wanted)
        found = self._splitter.split(block, rows) if self._splitter else None
        self._refused = 0 if found is not None else self._refused + 1
        if found is None:
            self._splitter = None
        return found
