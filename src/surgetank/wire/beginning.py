"""How a prompt begins, as numbers: what routing tells shared prefixes by.

Rule: the numbers mean nothing outside this process. They start from a key drawn at its start, and
go over the interpreter's own keyed hash, so nobody can make two texts collide, nor tell a text from
a number that was written down.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from surgetank.policy.prefix import BLOCK, MARKS

_KEY: Final = secrets.randbits(62)
_PIECES: Final = tuple(zip((0, *MARKS), MARKS, strict=False))


def beginnings(text: str) -> Sequence[int]:
    """Hash the text up to each of MARKS that it reaches; nothing for less than a block."""
    size = len(text)
    if size < BLOCK:
        return ()
    running = _KEY
    found = []
    for start, end in _PIECES:
        if end > size:
            break
        running = hash((running, text[start:end]))
        found.append(running)
    return tuple(found)
