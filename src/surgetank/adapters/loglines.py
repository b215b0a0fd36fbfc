"""Blocks of bytes into whole lines, in bounded memory.

Rule: the outcome does not depend on where the blocks were cut, and a line longer than the bound is
never held: it is skipped to its end and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from surgetank.traffic.formats.reading import LONGEST_LINE

STAND_IN: Final = b"\n"
"""What a reader gets for a line that is left out, so that its line numbers stay right."""


class Lines:
    """Iterate over pieces that end in a newline; only the last may lack one.

    `too_long` are the numbers (from 1) of the lines left out: the caller counts them as bad rows.
    `count` is the number of lines given so far, those left out included; with `number_at` (byte
    offset of a line's start -> its number), which is asked when it matters, nothing is counted.
    """

    def __init__(
        self,
        blocks: Iterable[bytes],
        *,
        longest: int = LONGEST_LINE,
        number_at: Callable[[int], int] | None = None,
    ) -> None:
        """Bound a line to `longest` bytes, its newline not counted."""
        self.count = 0
        self.too_long: list[int] = []
        self.rest = b""  # at the end: a last line without a newline
        self._blocks = blocks
        self._longest = longest
        self._number_at = number_at
        self._seen = 0  # bytes before the block at hand
        self._cut = False  # the block ended inside a line that is left out

    def __iter__(self) -> Iterator[bytes]:
        """Give whole lines; `rest` is left to the caller, who knows whether it is torn."""
        for block in self._blocks:
            if not self._cut:
                self._seen -= len(self.rest)
                whole = self.rest + block
            else:
                end = block.find(b"\n") + 1 or len(block)
                self._seen += end
                self._cut = not block.endswith(b"\n", 0, end)
                whole = block[end:]
            if not self._cut:
                yield from self._whole(whole)
            self._seen += len(whole)

    def _whole(self, block: bytes) -> Iterator[bytes]:
        """Cut a block that begins at a line's start; set `rest`, and `_cut` when in a long line."""
        start = position = 0
        self._cut = False
        self.rest = b""
        while position < len(block):
            end = block.rfind(b"\n", position, position + self._longest + 1)
            if end >= 0:
                position = end + 1
                continue
            if len(block) - position <= self._longest:
                break
            if position > start:
                yield self._counted(block[start:position])
            yield self._left_out(position)
            end = block.find(b"\n", position + self._longest)
            if end < 0:
                self._cut = True
                return
            start = position = end + 1
        if position > start:
            yield self._counted(block[start:position])
        self.rest = block[position:]

    def _counted(self, lines: bytes) -> bytes:
        if self._number_at is None:
            self.count += lines.count(b"\n")
        return lines

    def _left_out(self, position: int) -> bytes:
        if self._number_at is None:
            self.count += 1
        else:
            self.count = self._number_at(self._seen + position)
        self.too_long.append(self.count)
        return STAND_IN
