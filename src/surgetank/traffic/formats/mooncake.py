"""Traces of prompts as hashed blocks: Mooncake's, and the Qwen Bailian traces in its shape.

Rule: a prompt's leading blocks that an earlier request had are its cached tokens, as an unbounded
prefix cache would find them; the memory of blocks is bounded.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from surgetank.traffic.formats import columns
from surgetank.traffic.formats.assembly import Assembly
from surgetank.traffic.formats.columns import Column
from surgetank.traffic.formats.jsonlines import JsonLines, first_object
from surgetank.traffic.formats.lines import Lines
from surgetank.traffic.formats.reading import Account, Format, ReadOptions, TimeUnit
from surgetank.traffic.trace import Batch

MOONCAKE_BLOCK: Final = 512  # tokens of a block
BAILIAN_BLOCK: Final = 16
_REMEMBERED: Final = 500_000  # blocks in each of two generations: some 100 MB at most

_ARRIVED: Final = Column("arrived", "timestamp")
_PROMPT: Final = Column("prompt_tokens", "input_length")
_OUTPUT: Final = Column("output_tokens", "output_length")


class _Row(msgspec.Struct, gc=False):
    timestamp: int | float | str | None = None
    input_length: int | float | str | None = None
    output_length: int | float | str | None = None
    hash_ids: list[int | str] | None = None


class Blocks:
    """Blocks seen so far; those not seen for long are forgotten."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self.forgot = False
        self._most = remembered
        self._new: set[int | str] = set()
        self._old: set[int | str] = set()

    def leading(self, blocks: list[int | str]) -> int:
        """How many of the first blocks were seen before; from now on all of them were."""
        new, old = self._new, self._old
        known = 0
        for block in blocks:
            if block not in new and block not in old:
                break
            known += 1
        new.update(blocks)
        if len(new) > self._most:
            self.forgot = self.forgot or bool(old)
            self._new, self._old = set(), new
        return known


class BlockTraceReader:
    """Reads one request a line."""

    def __init__(self, options: ReadOptions, name: str, *, block: int, unit: TimeUnit) -> None:
        columns.refuse_given(options.columns, name, "jsonl")
        self.account = Account()
        self._assembly = Assembly(options, self.account, unit=unit)
        self._lines = Lines()
        self._json = JsonLines(_Row)
        self._block = block
        self._blocks = Blocks()

    @property
    def arrival_from(self) -> str:
        """What the arrivals are made of."""
        return self._assembly.arrival_from

    def feed(self, lines: bytes) -> Batch:
        """Parse whole lines."""
        block, numbers, bad = self._lines.take(lines)
        rows, at, worse = self._json.split(block, numbers)
        cells = {
            _ARRIVED: [row.timestamp for row in rows],
            _PROMPT: [row.input_length for row in rows],
            _OUTPUT: [row.output_length for row in rows],
        }
        cached = np.fromiter((self._cached(row) for row in rows), np.int64, len(rows))
        return self._assembly.batch(cells, at, bad + worse, cached_tokens=cached)

    def finish(self) -> Batch:
        """Note what the log looks like."""
        if self._blocks.forgot:
            self.account.note(
                "cached tokens are a lower bound: blocks not seen for long count as new"
            )
        self._assembly.finish()
        return Batch(np.empty(0))

    def _cached(self, row: _Row) -> int:
        if row.hash_ids is None:
            return -1
        found = self._blocks.leading(row.hash_ids) * self._block
        length = row.input_length
        return min(found, int(length)) if isinstance(length, int) and length >= 0 else found


def _detect_mooncake(head: bytes, filename: str) -> bool:  # noqa: ARG001 - the content tells
    first = first_object(head)
    return {"timestamp", "input_length", "output_length"} <= first.keys() and not _is_bailian(first)


def _detect_bailian(head: bytes, filename: str) -> bool:  # noqa: ARG001 - the content tells
    return _is_bailian(first_object(head))


def _is_bailian(first: dict[str, object]) -> bool:
    return {"timestamp", "input_length", "chat_id", "parent_chat_id"} <= first.keys()


FORMATS: Final = (
    Format(
        "mooncake",
        "Mooncake trace (JSON lines, ms, 512-token blocks)",
        _detect_mooncake,
        lambda options: BlockTraceReader(options, "mooncake", block=MOONCAKE_BLOCK, unit="ms"),
    ),
    Format(
        "bailian",
        "Qwen Bailian trace (JSON lines, s, 16-token blocks)",
        _detect_bailian,
        lambda options: BlockTraceReader(options, "bailian", block=BAILIAN_BLOCK, unit="s"),
    ),
)
