"""How simulated prompts begin: the hashes that a gateway makes of them, and the engine's blocks.

Rule: both say the same of the same texts: a shared beginning, then what a session's prompts have
in common, then what nobody else's prompt has.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from surgetank.policy.prefix import MARKS
from surgetank.simulation.workload import Workload

_BYTES_PER_TOKEN = 4
_BLOCK = 128  # tokens: coarser than an engine's own, and as fast to look up as a gateway's


class Beginnings:
    """Of a workload that says what its prompts share, or which sessions they are of."""

    def __init__(self, load: Workload) -> None:
        rows = len(load)
        self._shared = [-1] * rows if load.shared is None else load.shared.tolist()
        self._session = [-1] * rows if load.session is None else load.session.tolist()
        self._tokens = load.shared_tokens
        self._prompt: list[int] = load.prompt.tolist()

    def hashes(self, row: int, chars: int) -> Sequence[int]:
        """What a gateway makes of the prompt's text."""
        shared = self._tokens * _BYTES_PER_TOKEN if self._shared[row] >= 0 else 0
        return tuple(
            [
                hash((self._shared[row], mark) if mark <= shared else (*self._own(row), mark))
                for mark in MARKS
                if mark <= chars
            ]
        )

    def blocks(self, row: int) -> list[tuple[Hashable, int]]:
        """The whole blocks of the prompt, as an engine's cache knows them."""
        begin, found = 0, list[tuple[Hashable, int]]()
        if self._shared[row] >= 0:
            begin = min(self._tokens, self._prompt[row])
            found.append(((self._shared[row],), begin))
        own = self._own(row)
        found += [
            ((*own, start), _BLOCK)
            for start in range(begin, self._prompt[row] - _BLOCK + 1, _BLOCK)
        ]
        return found

    def _own(self, row: int) -> tuple[int, int, int]:
        session = self._session[row]
        return (self._shared[row], session, -1 if session >= 0 else row)
