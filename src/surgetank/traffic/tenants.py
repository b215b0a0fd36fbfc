"""Requests and tokens per tenant, and each tenant's counts over time, in bounded memory.

Rule: exact up to `MAX_TENANTS` names and `MAX_PAGES` pages of bins. With more names the smallest
half becomes "others" (their totals stay in the sum); with more pages all bins become coarser.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.traffic.kernels import EMPTY, add_to_tenants, place_all, tenant_key
from surgetank.traffic.seconds import NO_TOKENS, WIDTHS
from surgetank.traffic.trace import Labels

MAX_TENANTS: Final = 10_000
MAX_PAGES: Final = 1 << 17  # 34 MB of counts
SHIFT: Final = 6  # 64 bins a page
FINEST: Final = 10  # seconds a bin: tenants are told apart at the scale of 10 s and above
UNNAMED: Final = ""  # rows of a log with tenants that name none
_CHUNK: Final = 1 << 15  # rows; so many new names always find a page, however wide the bins
_BLOCK: Final = 4096  # pages that are moved at once
_FEW: Final = 4096  # names that are mapped whether they occur or not

Columns = NDArray[np.int64]


class Tenants:
    """Totals (requests, prompt tokens, output tokens) and counts per bin of each tenant."""

    def __init__(self, width: int = FINEST) -> None:
        self.width = width
        self.slot_of: dict[str, int] = {}
        self.others = np.zeros(3, np.int64)  # requests, prompt tokens, output tokens
        self.given_up = 0  # names that became others (one that comes back counts again)
        self._tokens = np.zeros((16, 2), np.int64)  # prompt, output
        self._recent = np.full((16, 2), EMPTY, np.int64)
        self._open(64)
        self._mapped: tuple[str, ...] | None = None
        self._slots = np.empty(0, np.int64)

    def _open(self, pages: int) -> None:
        self._used = np.zeros(1, np.int64)
        self._page_keys = np.zeros(pages, np.int64)  # slot and page of each row of counts
        self._counts = np.zeros((pages, 1 << SHIFT), np.int32)
        self._keys = np.full(4 * pages, EMPTY, np.int64)
        self._rows = np.zeros(4 * pages, np.int64)

    def add(
        self,
        stamps: NDArray[np.float64],
        tenant: Labels,
        prompt: Columns | None = None,
        output: Columns | None = None,
    ) -> None:
        """Add rows; tokens below 0 are unknown."""
        if len(tenant.names) > MAX_TENANTS and len(stamps) > _CHUNK:
            for cut in range(0, len(stamps), _CHUNK):
                part = slice(cut, cut + _CHUNK)
                tokens = [None if c is None else c[part] for c in (prompt, output)]
                self.add(stamps[part], tenant.take(part), *tokens)
            return
        self._map(tenant)
        start = 0
        while start < len(stamps):
            start = add_to_tenants(
                stamps,
                tenant.codes,
                self._slots,
                NO_TOKENS if prompt is None else prompt,
                NO_TOKENS if output is None else output,
                start,
                self.width,
                SHIFT,
                self._keys,
                self._rows,
                self._page_keys,
                self._used,
                self._counts,
                self._tokens,
                self._recent,
            )
            if start < len(stamps):
                self._make_room()
        if len(self.slot_of) > MAX_TENANTS:
            self._give_up_smallest()

    def merge(self, other: Tenants) -> None:
        """Add the tenants of another part."""
        while self.width < other.width:
            self._coarsen()
        for name, slot in other.slot_of.items():
            mine = self._slot(name)  # first: it may put a longer table in place of _tokens
            self._tokens[mine] += other._tokens[slot]
        for name in other.slot_of:
            self._add_bins(name, *other.series(name))
        self.others += other.others
        self.given_up += other.given_up
        if len(self.slot_of) > MAX_TENANTS:
            self._give_up_smallest()

    @property
    def named(self) -> bool:
        """Whether any row names a tenant."""
        return bool(self.slot_of) and self.slot_of.keys() != {UNNAMED}

    def totals(self) -> Columns:
        """Give requests, prompt tokens and output tokens of every slot."""
        requests = np.zeros(len(self.slot_of), np.int64)
        used = int(self._used[0])
        np.add.at(requests, self._page_keys[:used] & 0xFFFFFF, self._counts[:used].sum(axis=1))
        return np.column_stack([requests, self._tokens[: len(self.slot_of)]])

    def series(self, name: str) -> tuple[Columns, Columns]:
        """Give the starts (seconds) and counts of the tenant's used bins, in order."""
        keys = self._page_keys[: int(self._used[0])]
        rows = np.flatnonzero((keys & 0xFFFFFF) == self.slot_of[name])
        rows = rows[np.argsort(keys[rows])]
        counts = self._counts[rows].astype(np.int64).ravel()
        bins = ((keys[rows] >> 24)[:, None] << SHIFT) + np.arange(1 << SHIFT)
        used = np.flatnonzero(counts)
        return bins.ravel()[used] * self.width, counts[used]

    def largest(self, most: int) -> list[str]:
        """Name up to `most` tenants, by requests, equal ones by name; none where no row does."""
        if not self.named:
            return []
        requests = self.totals()[:, 0].tolist()
        named = [(-requests[slot], name) for name, slot in self.slot_of.items() if requests[slot]]
        return [name for _, name in sorted(named)[:most]]

    def _map(self, tenant: Labels) -> None:
        """Give every code of the batch its slot; the last place is that of UNKNOWN (-1)."""
        same = tenant.names is self._mapped
        if same and len(tenant.names) <= _FEW:
            return
        names = len(tenant.names)
        mapped = self._slots if same else np.full(names + 1, -1, np.int64)
        present = np.arange(-1, names)
        if names > _FEW:
            seen = np.bincount(tenant.codes.astype(np.int64) + 1, minlength=names + 1)
            present = np.flatnonzero(seen) - 1
        for code in present.tolist():
            if mapped[code] < 0:
                mapped[code] = self._slot(tenant.names[code] if code >= 0 else UNNAMED)
        self._mapped, self._slots = tenant.names, mapped

    def _slot(self, name: str) -> int:
        slot = self.slot_of.get(name)
        if slot is None:
            slot = self.slot_of[name] = len(self.slot_of)
            if slot == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
                self._recent = np.concatenate([self._recent, np.full_like(self._recent, EMPTY)])
        return slot

    def _make_room(self) -> None:
        """Double the room for pages; at the bound make all bins coarser instead."""
        pages = len(self._page_keys)
        if pages >= MAX_PAGES:
            self._coarsen()
            return
        used, page_keys, counts = self._used, self._page_keys, self._counts
        self._open(2 * pages)
        self._used[0] = used[0]
        self._page_keys[:pages] = page_keys
        self._counts[:pages] = counts
        place_all(page_keys[: int(used[0])], self._keys, self._rows)

    def _add_bins(self, name: str, starts: Columns, counts: Columns) -> None:
        """Add counted bins of a tenant that has a slot; each start lies in one bin."""
        bins, where = np.unique(starts // self.width, return_inverse=True)
        sums = np.bincount(where, weights=counts, minlength=len(bins)).astype(np.int64)
        slot = self.slot_of[name]
        pages = np.unique(bins >> SHIFT)
        known = self._page_keys[: int(self._used[0])]
        missing = np.setdiff1d(tenant_key(slot, pages), known)
        while int(self._used[0]) + len(missing) > len(self._page_keys):
            width = self.width
            self._make_room()
            if self.width != width:
                self._add_bins(name, starts, counts)
                return
        used = int(self._used[0])
        self._page_keys[used : used + len(missing)] = missing
        self._used[0] += len(missing)
        self._keys.fill(EMPTY)
        place_all(self._page_keys[: int(self._used[0])], self._keys, self._rows)
        known = self._page_keys[: int(self._used[0])]
        order = np.argsort(known)
        row = order[np.searchsorted(known, tenant_key(slot, bins >> SHIFT), sorter=order)]
        self._counts[row, bins & ((1 << SHIFT) - 1)] += sums.astype(np.int32)

    def _coarsen(self) -> None:
        wider = [w for w in WIDTHS if w > self.width]
        self._rebuild(list(self.slot_of), wider[0] if wider else self.width * 10)

    def _give_up_smallest(self) -> None:
        kept = set(self.largest(MAX_TENANTS // 2))
        gone = [slot for name, slot in self.slot_of.items() if name not in kept]
        self.others += self.totals()[gone].sum(axis=0)
        self.given_up += len(gone)
        self._rebuild([name for name in self.slot_of if name in kept], self.width)
        self._mapped = None

    def _rebuild(self, names: list[str], width: int) -> None:
        """Keep some tenants, in bins of `width`; with all of them, slots stay as they are."""
        old = [self.slot_of[name] for name in names]
        number = np.full(len(self.slot_of) or 1, -1, np.int64)
        number[old] = np.arange(len(old))
        used = int(self._used[0])
        keys, counts = self._page_keys[:used].copy(), self._counts

        def moved(rows: slice) -> tuple[Columns, Columns, Columns]:
            """Page keys, places and counts that the rows' counts have from now on."""
            row, at = np.nonzero(counts[rows])
            slot = number[keys[rows][row] & 0xFFFFFF]
            bins = (((keys[rows][row] >> 24) << SHIFT) + at) * self.width // width
            kept = slot >= 0
            page_keys = tenant_key(slot, bins >> SHIFT)[kept]
            return page_keys, (bins & ((1 << SHIFT) - 1))[kept], counts[rows][row, at][kept]

        # In blocks, twice: all at once would take eight times the table.
        blocks = [slice(r, min(r + _BLOCK, used)) for r in range(0, used, _BLOCK)]
        found = [np.unique(moved(block)[0]) for block in blocks]
        fresh = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        self._open(max(len(self._page_keys), 1 << len(fresh).bit_length()))
        self._page_keys[: len(fresh)] = fresh
        self._used[0] = len(fresh)
        place_all(fresh, self._keys, self._rows)
        for block in blocks:
            page_keys, at, amount = moved(block)
            np.add.at(self._counts, (np.searchsorted(fresh, page_keys), at), amount)
        self.width = width
        self.slot_of = {name: i for i, name in enumerate(names)}
        tokens = self._tokens[old]
        self._tokens = np.zeros_like(self._tokens)
        self._tokens[: len(old)] = tokens
        self._recent = np.full_like(self._recent, EMPTY)
