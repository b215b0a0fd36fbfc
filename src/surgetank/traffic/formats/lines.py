"""Bytes to numbered lines, for every reader of this folder.

Rule: a line longer than `LONGEST_LINE` is a bad row and is never decoded, so that it costs its own
bytes once and no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.formats.reading import LONGEST_LINE
from surgetank.traffic.trace import BadRow

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Lines:
    """Counts the lines of a log as its blocks go by."""

    next: int = 1  # number of the next line

    def take(self, block: bytes) -> tuple[bytes, NDArray[np.int64], list[BadRow]]:
        """Give a block without its over-long lines, the numbers of its lines, and the long ones.

        CRLF is made LF. A last line without a newline counts, and gets one.
        """
        bad: list[BadRow] = []
        if self.next == 1 and block.startswith(_BOM):
            block = block[len(_BOM) :]
        if not block:
            return block, np.empty(0, np.int64), bad
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 10)
        if not block.endswith(b"\n"):
            ends = np.append(ends, len(block))
        numbers = np.arange(self.next, self.next + len(ends))
        self.next += len(ends)
        starts = np.concatenate(([0], ends[:-1] + 1))
        long = np.flatnonzero(ends - starts > LONGEST_LINE)
        if len(long):
            bad = [BadRow(int(numbers[i]), f"longer than {LONGEST_LINE} bytes") for i in long]
            block = _without(block, starts, ends, long)
            numbers = np.delete(numbers, long)
        if b"\r" in block and b"\r\n" in block:  # one byte is found far sooner
            block = block.replace(b"\r\n", b"\n")
        if block and not block.endswith(b"\n"):
            block = block.removesuffix(b"\r") + b"\n"
        return block, numbers, bad


def _without(
    block: bytes, starts: NDArray[np.intp], ends: NDArray[np.intp], dropped: NDArray[np.intp]
) -> bytes:
    kept = []
    at = 0
    for i in dropped:
        kept.append(block[at : starts[i]])
        at = int(ends[i]) + 1
    kept.append(block[at:])
    return b"".join(kept)
