"""Requests and tokens per second of any span, in bounded memory: pages of bins, only where used.

Rule: every bin is exact, in whatever order rows and merges come. When more than `MAX_PAGES` pages
are needed (48 days without a pause), all bins are made coarser: 10 s, 60 s, 600 s, an hour, a day.
How coarse depends on the stamps alone, not on their order.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.kernels import EMPTY, add_to_seconds, place_all

MAX_PAGES: Final = 1024
SHIFT: Final = 12  # 4,096 bins a page: 68 minutes
WIDTHS: Final = (1, 10, 60, 600, 3600, 86400, 30 * 86400)  # seconds a bin, each divides the next
NO_TOKENS: Final = np.empty(0, np.int64)

Columns = NDArray[np.int64]


class Seconds:
    """Counts, prompt tokens and output tokens per bin."""

    __slots__ = ("_counts", "_keys", "_output", "_pages", "_placed", "_prompt", "_rows", "width")

    def __init__(self) -> None:
        self.width = 1
        self._pages: list[int] = []  # page number of each row
        self._counts = np.zeros((1, 1 << SHIFT), np.int64)
        self._prompt: Columns | None = None
        self._output: Columns | None = None
        self._keys = np.full(16, EMPTY, np.int64)
        self._rows = np.zeros(16, np.int64)
        self._placed = True  # the pages are all in the table of keys

    def add(
        self,
        stamps: NDArray[np.float64],
        prompt: Columns | None = None,
        output: Columns | None = None,
    ) -> None:
        """Add rows; stamps must be finite and within 1e15 s, tokens below 0 are unknown."""
        self._open_columns(prompt is not None, output is not None)
        start = 0
        while start < len(stamps):
            self._place()
            start = add_to_seconds(
                stamps,
                NO_TOKENS if prompt is None else prompt,
                NO_TOKENS if output is None else output,
                start,
                self.width,
                SHIFT,
                self._keys,
                self._rows,
                self._counts,
                self._counts if self._prompt is None else self._prompt,
                self._counts if self._output is None else self._output,
            )
            if start < len(stamps):
                self._open_page(int(np.floor(stamps[start])) // self.width >> SHIFT)

    def add_bins(
        self,
        seconds: Columns,
        counts: Columns,
        prompt: Columns | None = None,
        output: Columns | None = None,
    ) -> None:
        """Add what is already counted: `counts[i]` rows fall in the second `seconds[i]`."""
        self._open_columns(prompt is not None, output is not None)
        used = np.flatnonzero(counts)
        seconds = seconds[used]
        self._open_pages_of(seconds)
        flat = self._places(seconds // self.width)
        _add_at(self._counts, flat, counts[used])
        if prompt is not None and self._prompt is not None:
            _add_at(self._prompt, flat, prompt[used])
        if output is not None and self._output is not None:
            _add_at(self._output, flat, output[used])

    def merge(self, other: Seconds) -> None:
        """Add the bins of another."""
        if other.width > self.width:
            self._coarsen(other.width)
        bins, counts, prompt, output = other.bins()
        self.add_bins(bins * other.width, counts, prompt, output)

    def bins(self) -> tuple[Columns, Columns, Columns | None, Columns | None]:
        """Give the used bins in order: numbers (start = number * width), counts and tokens."""
        used = self._counts[: len(self._pages)] != 0
        row, at = np.nonzero(used)
        numbers = (np.array(self._pages, np.int64)[row] << SHIFT) + at
        order = np.argsort(numbers, kind="stable")
        row, at = row[order], at[order]
        prompt = None if self._prompt is None else self._prompt[row, at]
        output = None if self._output is None else self._output[row, at]
        return numbers[order], self._counts[row, at], prompt, output

    def _open_columns(self, prompt: bool, output: bool) -> None:  # noqa: FBT001 - local
        if prompt and self._prompt is None:
            self._prompt = np.zeros_like(self._counts)
        if output and self._output is None:
            self._output = np.zeros_like(self._counts)

    def _places(self, bins: Columns) -> Columns:
        """Find the places, in the flat tables, of bins whose pages are all open."""
        known = np.array(self._pages, np.int64)
        order = np.argsort(known)
        row = order[np.searchsorted(known, bins >> SHIFT, sorter=order)]
        return (row << SHIFT) + (bins & ((1 << SHIFT) - 1))

    def _open_pages_of(self, seconds: Columns) -> None:
        while True:
            missing = np.setdiff1d((seconds // self.width) >> SHIFT, self._pages)
            if not len(missing):
                return
            room = MAX_PAGES - len(self._pages)
            for page in missing[:room].tolist():
                self._open_page(page)
            if len(missing) > room:
                self._coarsen(self._next_width())

    def _open_page(self, page: int) -> None:
        """Give a page a row of zeros; when there are too many, make all bins coarser instead."""
        if len(self._pages) == MAX_PAGES:
            self._coarsen(self._next_width())
            return
        if len(self._pages) == len(self._counts):
            self._counts = _doubled(self._counts)
            self._prompt = None if self._prompt is None else _doubled(self._prompt)
            self._output = None if self._output is None else _doubled(self._output)
        self._pages.append(page)
        self._placed = False

    def _place(self) -> None:
        """Enter new pages in the table of keys: of counted bins alone nothing asks for it."""
        if self._placed:
            return
        size = len(self._keys)
        while 2 * len(self._pages) > size:
            size *= 2
        self._keys = np.full(size, EMPTY, np.int64)
        self._rows = np.zeros(size, np.int64)
        place_all(np.array(self._pages, np.int64), self._keys, self._rows)
        self._placed = True

    def _next_width(self) -> int:
        wider = [w for w in WIDTHS if w > self.width]
        return wider[0] if wider else self.width * 10

    def _coarsen(self, width: int) -> None:
        bins, counts, prompt, output = self.bins()
        starts = bins * self.width
        fresh = Seconds()
        fresh.width = width
        fresh.add_bins(starts, counts, prompt, output)
        fresh._open_columns(self._prompt is not None, self._output is not None)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))


def _doubled(table: Columns) -> Columns:
    return np.concatenate([table, np.zeros_like(table)])


def _add_at(table: Columns, flat: Columns, amounts: Columns) -> None:
    # Flat and of one type: numpy's fast path, a tenth of the time.
    np.add.at(table.reshape(-1), flat, amounts.astype(np.int64, copy=False))
