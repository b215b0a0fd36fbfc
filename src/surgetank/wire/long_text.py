"""The long strings of a JSON text, cut out and measured without being read.

Rule: what is measured is what reading it would give, and what is cut is a valid string. Anything
that is not plainly one is left where it is, for the JSON reader to take or to refuse.

A reader that builds a string of 400 KB looks at each byte by itself, for 0.3 ms. Here all bytes are
looked at in columns: where the quotes, the backslashes and the odd ones are tells all that is
needed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

_LONG: Final = 2048  # bytes: shorter strings are read as they are
_MARK: Final = secrets.token_hex(16)  # nobody outside can write a string like a stand-in
_STRING: Final = msgspec.json.Decoder(str)
_FEW: Final = 64  # quotes; more are found faster in a column
_QUOTE, _BACKSLASH, _CONTROLS = 0x22, 0x5C, 0x20
_BEYOND_ASCII: Final = 0x80
_PAIRS: Final = np.zeros(256, dtype=bool)  # what may follow a backslash and is one character
_PAIRS[list(b'"\\/bfnrt')] = True

_Places = npt.NDArray[np.intp]


class LongText(NamedTuple):
    """One string: the bytes of its UTF-8, its characters, and itself as sent, without quotes."""

    size: int
    chars: int
    raw: memoryview

    def beginning(self, chars: int) -> str:
        """Read so many of its characters, or some more, or all."""
        raw = self.raw
        plain, ascii_only = self.size == len(raw), self.size == self.chars
        most = chars * (4 if not ascii_only else 1 if plain else 2)  # bytes of a character
        if len(raw) > most:
            while raw[most] & 0xC0 == _BEYOND_ASCII:
                most -= 1
            raw = raw[:most]
        sent = bytes(raw)
        if plain:
            return sent.decode()
        if (len(sent) - len(sent.rstrip(b"\\"))) % 2 and len(sent) < len(self.raw):
            sent = sent[:-1]  # its other half is beyond
        text: str = _STRING.decode(b'"%b"' % sent)
        return text


class Cut(NamedTuple):
    """A JSON text with stand-ins for its long strings, and these by their stand-ins."""

    rest: bytes
    texts: dict[str, LongText]


def has_stand_in(text: str) -> bool:
    """Whether a stand-in is within the text."""
    return _MARK in text


def cut(body: bytes, start: int, stop: int, long: int = _LONG) -> Cut | None:
    """Cut the long strings out of the JSON text that stands there; None where there are none.

    The text is valid UTF-8. Where it is no valid JSON, the rest is none either. What has up to
    `long` bytes stays.
    """
    quotes = _few(body, start, stop)
    if quotes is None or body.find(b"\\", start, stop) >= 0 or not body.isascii():
        return _cut_by_columns(body, start, stop, long)
    if len(quotes) % 2:
        return None
    found = [
        (begin + 1, end, end - begin - 1, end - begin - 1)
        for begin, end in zip(quotes[::2], quotes[1::2], strict=True)
        if end - begin > long + 1
    ]
    if not found:
        return None
    raw = memoryview(body)[start:stop]
    if np.minimum.reduce(np.frombuffer(raw, dtype=np.uint8)) < _CONTROLS:
        return _cut_by_columns(body, start, stop, long)
    return _without(raw, found)


def _cut_by_columns(body: bytes, start: int, stop: int, long: int) -> Cut | None:
    raw = memoryview(body)[start:stop]
    data = np.frombuffer(raw, dtype=np.uint8)
    escapes = _every_other(np.flatnonzero(data == _BACKSLASH))
    quoted = data == _QUOTE
    quoted[escapes[escapes + 1 < data.size] + 1] = False
    quotes = np.flatnonzero(quoted)
    if quotes.size % 2:
        return None
    begins, ends = quotes[::2] + 1, quotes[1::2]
    whole = ends - begins > long
    if data.min() < _CONTROLS:
        whole &= _counts(np.flatnonzero(data < _CONTROLS), begins, ends) == 0
    if escapes.size:
        kinds = data[np.minimum(escapes + 1, data.size - 1)]
        whole &= _counts(escapes[~_PAIRS[kinds]], begins, ends) == 0
    begins, ends = begins[whole], ends[whole]
    sizes = ends - begins - _counts(escapes, begins, ends)
    chars = sizes
    if data.max() >= _BEYOND_ASCII:
        chars = sizes - _counts(np.flatnonzero(data & 0xC0 == _BEYOND_ASCII), begins, ends)
    columns = (begins.tolist(), ends.tolist(), sizes.tolist(), chars.tolist())
    return _without(raw, zip(*columns, strict=True))


def _without(raw: memoryview, found: Iterable[tuple[int, int, int, int]]) -> Cut | None:
    """Put stand-ins where strings are: where each begins and ends, its size and characters."""
    pieces: list[bytes | memoryview] = []
    texts: dict[str, LongText] = {}
    done = 0
    for number, (begin, end, size, chars) in enumerate(found):
        name = f"{_MARK}{number}."
        texts[name] = LongText(size, chars, raw[begin:end])
        pieces += (raw[done:begin], name.encode())
        done = end
    return Cut(b"".join([*pieces, raw[done:]]), texts) if texts else None


def _few(body: bytes, start: int, stop: int) -> list[int] | None:
    """Places of the quotes, counted from `start`; None when they are many."""
    found: list[int] = []
    at = body.find(b'"', start, stop)
    while at >= 0:
        if len(found) == _FEW:
            return None
        found.append(at - start)
        at = body.find(b'"', at + 1, stop)
    return found


def _every_other(backslashes: _Places) -> _Places:
    """Those that begin an escape: the first of a row of them, the third, and so on."""
    follows = np.diff(backslashes, prepend=-2) == 1
    if not follows.any():
        return backslashes
    numbers = np.arange(backslashes.size)
    first = np.maximum.accumulate(np.where(follows, 0, numbers))
    begin: _Places = backslashes[(numbers - first) % 2 == 0]
    return begin


def _counts(places: _Places, begins: _Places, ends: _Places) -> _Places:
    """How many of the places are in each range."""
    counts: _Places = np.searchsorted(places, ends) - np.searchsorted(places, begins)
    return counts
