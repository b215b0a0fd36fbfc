"""The loops over the bytes of alike lines, as machine code (see `alike`).

Rule: a kernel stops at the first byte that it does not expect, and tells how many lines it read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.kernels import compiled

_QUOTE, _MINUS, _POINT, _COMMA, _ZERO = b'"-.,0'
_N, _U, _L = b"nul"
_MOST_EXACT: Final = 1 << 53  # below it a whole number is exact as a double
_POWERS: Final = np.array([10.0**i for i in range(23)])  # all exact
_PRIME: Final = np.uint64(0x100000001B3)  # FNV-1a
_BASIS: Final = np.uint64(0xCBF29CE484222325)
_STOPS: Final = np.array([c < 32 or c in b'"\\' for c in range(256)], np.uint8)
"""Bytes at which the scan of a text stops: its end, and what no plain text holds. They are indexed
by unsigned numbers, which spares the look for one counted from the end."""
_SKIP, _NUMBER, _NAME, _TEXT, _FIRST_NUMBER, _LISTS = range(6)


@compiled
def _number(text: NDArray[np.uint8], start: int, end: int, bare: bool) -> tuple[bool, float]:  # noqa: FBT001 - machine code takes no keywords
    """Read digits with at most one point within; both parts are exact, so the quotient is right."""
    whole: Any = np.int64(0)
    decimals = np.int64(0)
    point: Any = np.int64(-1)
    if end - start > 18 or start == end:  # 18 digits fit
        return False, 0.0
    for i in range(start, end):
        digit: Any = np.int64(text[np.uint64(i)]) - _ZERO
        if 0 <= digit <= 9:
            whole = whole * 10 + digit
            if point >= 0:
                decimals += 1
        elif text[i] == _POINT and point < 0 and i > start:
            point = i
        else:
            return False, 0.0
    if point == end - 1 or whole >= _MOST_EXACT:
        return False, 0.0
    if bare and text[start] == _ZERO and end - start > 1 and point != start + 1:
        return False, 0.0  # 01 is no JSON
    return True, whole / _POWERS[decimals]


@compiled
def _same(text: NDArray[np.uint8], one: int, other: int, length: int) -> bool:
    for i in range(length):  # noqa: SIM110 - numba has no generators
        if text[np.uint64(one + i)] != text[np.uint64(other + i)]:
            return False
    return True


@compiled
def _code_of(  # noqa: PLR0917 - as above
    text: NDArray[np.uint8],
    start: int,
    end: int,
    firsts: NDArray[np.int64],
    known: int,
    table: NDArray[np.int32],
) -> Any:
    """Find a name's code; `known` for a new one, which is entered."""
    mask = table.size - 1
    key = _BASIS
    for i in range(start, end):
        key = (key ^ np.uint64(text[np.uint64(i)])) * _PRIME
    place = np.int64((key ^ (key >> np.uint64(29))) & np.uint64(mask))
    while table[place] >= 0:
        code = table[place]
        length = firsts[code, 1] - firsts[code, 0]
        if length == end - start and _same(text, start, firsts[code, 0], length):
            return np.int64(code)
        place = (place + 1) & mask
    table[place] = known
    firsts[known, 0] = start
    firsts[known, 1] = end
    return np.int64(known)


@compiled
def scan(  # noqa: PLR0917 - as above
    text: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    mark_ends: NDArray[np.int64],
    kinds: NDArray[np.int64],
    places: NDArray[np.int64],
    numbers: NDArray[np.float64],
    codes: NDArray[np.int32],
    firsts: NDArray[np.int64],
    known: NDArray[np.int64],
    spans: NDArray[np.int64],
    tables: NDArray[np.int32],
) -> int:
    """Read lines into `numbers`, `codes` (with the spans of new names in `firsts`) and `spans`.

    `text` ends in a newline. Give the number of lines read: below the number of rows when one is
    unlike, and never above it.
    """
    rows = numbers.shape[1]
    at = 0
    size = text.size
    for row in range(rows):
        for slot in range(kinds.size + 1):
            first, last = mark_ends[slot], mark_ends[slot + 1]
            if size - at < last - first:
                return row
            for i in range(last - first):
                if text[np.uint64(at + i)] != marks[np.uint64(first + i)]:
                    return row
            at += last - first
            if slot == kinds.size:
                break
            kind, place = kinds[slot], places[slot]
            if at >= size:
                return row
            if text[at] == _QUOTE:
                at += 1
                start = at
                while _STOPS[text[np.uint64(at)]] == 0:  # the newline at the block's end is one
                    at += 1
                if text[np.uint64(at)] != _QUOTE:
                    return row
                end = at
                at += 1
                if kind == _SKIP:
                    continue
                if kind == _NAME:
                    count = known[place]
                    if row and codes[place, row - 1] >= 0:  # often that of the line before
                        code = np.int64(codes[place, row - 1])
                        length = firsts[place, code, 1] - firsts[place, code, 0]
                        if length == end - start and _same(
                            text, start, firsts[place, code, 0], length
                        ):
                            codes[place, row] = code
                            continue
                    code = _code_of(text, start, end, firsts[place], count, tables[place])
                    if code == count:
                        known[place] += 1
                    codes[place, row] = code
                elif kind == _TEXT:
                    spans[place, row, 0] = start
                    spans[place, row, 1] = end
                elif kind == _LISTS:
                    numbers[place, row] = 0.0
                    for i in range(start, end):
                        if text[i] == _COMMA:
                            numbers[place, row] = 1.0
                            break
                elif end == start or (end == start + 1 and text[start] == _MINUS):
                    numbers[place, row] = np.nan
                else:
                    good, value = _number(text, start, end, False)
                    if not good:
                        value = np.nan
                        if kind == _FIRST_NUMBER:
                            for i in range(start, end):
                                good = good or text[i] == _COMMA
                        if not good:
                            return row
                    numbers[place, row] = value
                continue
            start = at
            if size - at > 4 and text[at] == _N:
                if text[at + 1] != _U or text[at + 2] != _L or text[at + 3] != _L:
                    return row
                at += 4
                if kind == _NAME:
                    codes[place, row] = -1
                elif kind == _TEXT:
                    return row
                elif kind == _LISTS:
                    numbers[place, row] = 0.0
                elif kind != _SKIP:
                    numbers[place, row] = np.nan
                continue
            while at < size and (_ZERO <= text[at] <= _ZERO + 9 or text[at] == _POINT):
                at += 1
            good, value = _number(text, start, at, True)
            if not good or kind in (_NAME, _TEXT):
                return row
            if kind == _LISTS:
                value = 0.0
            if kind != _SKIP:
                numbers[place, row] = value
    return int(rows) if at == size else rows - 1


@compiled
def copy_spans(
    text: NDArray[np.uint8], spans: NDArray[np.int64], packed: NDArray[np.uint8]
) -> None:
    """Copy each span to the beginning of a row of `packed`."""
    for row in range(spans.shape[0]):
        start = spans[row, 0]
        for i in range(spans[row, 1] - start):
            packed[row, i] = text[start + i]
