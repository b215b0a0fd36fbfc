"""What a replica's KV cache still holds of earlier prompts, approximately.

A block of a prompt is known by everything up to its end, as vLLM's prefix cache knows it, so of a
prompt's blocks the leading ones that are held are found. The blocks used longest ago go first.
Approximate in what it leaves out: running requests take room from what is kept, and a prompt's
blocks are there as soon as it is queued (vLLM's are once its first step is scheduled).

Rule: no text; a block is a hash.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class PrefixCache:
    """Room for `tokens` of past prompts."""

    __slots__ = ("_held", "_room", "_tokens")

    def __init__(self, tokens: int) -> None:
        self._room = tokens
        self._tokens = 0
        self._held: dict[Hashable, int] = {}  # block -> its tokens, used longest ago first

    def __len__(self) -> int:
        return len(self._held)

    def found(self, blocks: Sequence[tuple[Hashable, int]]) -> int:
        """Tokens of the leading blocks that are held. Blocks: (hash, tokens), in order."""
        held, tokens = self._held, 0
        for block, _ in blocks:
            there = held.get(block)
            if there is None:
                break
            tokens += there
        return tokens

    def hold(self, blocks: Sequence[tuple[Hashable, int]]) -> None:
        """A prompt of these blocks is computed here. The first are used last: all need them."""
        held = self._held
        for block, tokens in reversed(blocks):
            self._tokens += tokens - held.pop(block, 0)
            held[block] = tokens
        while self._tokens > self._room and held:
            oldest = next(iter(held))
            self._tokens -= held.pop(oldest)
