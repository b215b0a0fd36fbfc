"""How much one replica is trusted with at once, learnt from what it does with it.

Two bounds, since two things run out. Streams that decode share slots and KV: `value`, requests at
once. Prompts that are not computed yet wait for each other inside the engine: `window`, their
tokens. A full window stops dispatch and nothing else: queued prefill is no reason to decode less.

    rate     prompt tokens ahead of a first token, its own included, by the seconds it took; follows
             a better one at once (half of the way), a worse one slowly: it is a bound from below
    base     the least seconds a first token took: what no shorter queue would have saved
    window   rate x (base + budget): one more waits no longer than `budget` behind the others
             (BBR's bandwidth-delay product with a queue of its own, CACM 60(2), 2017)
    bad      a first token later than 2 x (base + ahead / best) + budget, `best` being a rate that
             is forgotten ten times as slowly: the prompts ahead of it do not explain that, it
             waited for a slot or for KV, or the engine is in trouble
    value    while it binds: one more per good first token until the first bad one, and up to what
             once ran; beyond that 1 + value / 50 a round. Bad: x 0.7, never below what runs, once
             a round. Shed: see `shed`

What tells nothing, an answer that is not streamed, moves neither window nor rate. Where the engine
says its slots, `value` starts there and never passes them.
"""

from __future__ import annotations

from math import inf
from typing import Final

_UNKNOWN_SLOTS: Final = 4.0  # requests at once a replica of unknown size starts with
_FIRST_WINDOW: Final = 2048.0  # prompt tokens before anything is known: an engine's usual step
_RISE: Final = 0.5
_FALL: Final = 0.05
_FORGET: Final = 0.005
_PROBE: Final = 0.02  # of the value, a round
_CUT: Final = 0.7
_LATE: Final = 2.0  # times what was expected
_SHORTEST: Final = 1e-3  # s: no first token is quicker, and clocks are not finer


class ConcurrencyLimit:
    """`value`: requests at once; `window`: prompt tokens at once that wait for a first token."""

    __slots__ = (
        "_base",
        "_best",
        "_budget",
        "_cap",
        "_cut_at",
        "_fast",
        "_proven",
        "_rate",
        "value",
        "window",
    )

    def __init__(self, cap: float, budget: float, *, known: bool) -> None:
        """`cap`: never more at once, inf for unbounded; `known`: the engine says it bears that.

        `budget`: seconds a prompt may wait behind others in the engine.
        """
        self._cap = cap
        self._budget = budget
        self._fast = not known
        self._proven = 0.0  # most that were seen to run together
        self._cut_at = -inf
        self._base = inf
        self._best = 0.0
        self._rate = 0.0  # prompt tokens per second; 0 before the first
        self.value = cap if known else min(cap, _UNKNOWN_SLOTS)
        self.window = _FIRST_WINDOW

    @property
    def rate(self) -> float | None:
        """Prompt tokens per second; None before the first token that told."""
        return self._rate or None

    @property
    def cap(self) -> float:
        """Never more requests at once; inf for unbounded."""
        return self._cap

    def recap(self, cap: float, budget: float, *, known: bool) -> None:
        """Take other bounds; a value that stood at known slots follows them."""
        at_cap = self.value >= self._cap
        self._cap, self._budget = cap, budget
        self.value = cap if at_cap and known else min(self.value, cap)
        self._open()

    def first_token(
        self,
        ahead: float,
        seconds: float,
        dispatched: float,
        running: int,
        now: float,
        *,
        binds: bool,
    ) -> None:
        """A first token came `seconds` after dispatch, behind `ahead` prompt tokens and its own.

        `running`: requests that decode with it now; `binds`: there was no slot for one more.
        """
        if seconds < _SHORTEST:
            seconds = _SHORTEST
        rate, base, best = self._rate, self._base, self._best
        if seconds < base:
            self._base = base = seconds
        bad = best > 0 and seconds > _LATE * (base + ahead / best) + self._budget
        seen = ahead / seconds
        self._best = best + (seen - best) * (_RISE if seen > best else _FORGET)
        self._rate = rate = (
            rate + (seen - rate) * (_RISE if seen > rate else _FALL) if rate else seen
        )
        if rate:
            self.window = rate * (base + self._budget)
        if running > self._proven:
            self._proven = float(running)
        value = self.value
        if bad:
            if dispatched >= self._cut_at:
                self.value = min(value, max(1.0, _CUT * value, float(running)))
                self._cut_at = now
                self._fast = False
        elif binds and value < self._cap:
            quick = self._fast or value < self._proven
            self.value = min(self._cap, value + (1.0 if quick else 1 / value + _PROBE))

    def served(self, *, binds: bool) -> None:
        """A request ended well: what grows where nothing is streamed."""
        value = self.value
        if binds and value < self._cap:
            self.value = min(self._cap, value + (1.0 if self._fast else 1 / value))

    def shed(self, held: int, dispatched: float, now: float) -> None:
        """The engine refused one dispatched at `dispatched` (429, 503), and holds `held`: halve.

        Refusals of one burst halve once: those dispatched before the last cut only bring the value
        down to what the replica holds on to.
        """
        if dispatched >= self._cut_at:
            self.value = max(1.0, self.value // 2)
            self._cut_at = now
            self._fast = False
        else:
            self.value = max(1.0, min(self.value, held))
        self._proven = min(self._proven, self.value)

    def waits(self, held: int) -> None:
        """Work waits inside that no prompt of ours explains: `held` is what runs."""
        self.value = max(1.0, min(self.value, held))
        self._fast = False

    def _open(self) -> None:
        if self._rate:
            self.window = self._rate * (self._base + self._budget)
