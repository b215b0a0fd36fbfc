"""Which replica holds the beginning of which prompt: hashes of it, and who was sent them.

A prompt is hashed at the edge over blocks of `BLOCK` characters, and the running hash is kept at
`MARKS`: dense where system prompts end, sparse where histories do, so that 32,000 characters are
twelve numbers. A replica holds a beginning once it was sent one that starts with it; how long it
holds it is guessed as its engine would: in two generations, the younger of which becomes the older,
and the older is forgotten, when half as many tokens as its KV cache has were sent since, or after
`_AGE`. So what was used within the last half of a cache is remembered, and nothing beyond a whole.

Rule: bounded, whatever is sent; and nobody's text, only numbers that mean nothing in another
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from surgetank.policy.placement import Load

BLOCK: Final = 512  # characters, about 128 tokens: shorter beginnings are computed in no time
MARKS: Final = tuple(BLOCK * n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64))
_MOST: Final = 1024  # beginnings in a generation of one replica: 0.2 MB
_AGE: Final = 300.0  # seconds a generation lasts at most


class Held:
    """What one replica is believed to hold; `tokens`: of the younger generation."""

    __slots__ = ("old", "tokens", "turned", "young")

    def __init__(self, now: float) -> None:
        self.young: set[int] = set()
        self.old: set[int] = set()
        self.tokens = 0.0
        self.turned = now


class Prefixes:
    """The replicas of one model by what they hold.

    `known`: by hash the one that holds it, or all of them; `replicas`: what each holds.
    """

    __slots__ = ("known", "replicas")

    def __init__(self) -> None:
        self.known: dict[int, Load | dict[Load, None]] = {}
        self.replicas: dict[Load, Held] = {}

    def __len__(self) -> int:
        return len(self.known)

    def size(self, load: Load) -> int:
        """How many beginnings it is believed to hold."""
        held = self.replicas.get(load)
        return 0 if held is None else len(held.young | held.old)

    def held(self, load: Load, prefix: Sequence[int], most: int) -> int:
        """The number of marks, up to `most`, of the longest beginning that this one holds."""
        held = self.replicas.get(load)
        if held is None:
            return 0
        young, old = held.young, held.old
        if prefix[0] not in young and prefix[0] not in old:
            return 0
        for marks in range(most, 1, -1):
            if prefix[marks - 1] in young or prefix[marks - 1] in old:
                return marks
        return 1

    def hold(self, load: Load, prefix: Sequence[int], per_char: float, now: float) -> None:
        """It was sent a prompt that begins so. `per_char`: tokens for each character of it."""
        held = self.replicas.get(load)
        if held is None:
            held = self.replicas[load] = Held(now)
        elif prefix[-1] in held.young:
            return  # with all shorter ones: they came together
        young, old, known = held.young, held.old, self.known
        marks = len(prefix)
        there_already = 0
        if prefix[0] in young:  # who holds a beginning holds all shorter ones
            there_already = marks - 1
            while prefix[there_already - 1] not in young:
                there_already -= 1
        young.update(prefix)
        if prefix[-1] not in old:
            for key in prefix[there_already:]:
                if key in old:
                    continue
                there = known.get(key)
                if there is None:
                    known[key] = load
                elif isinstance(there, dict):
                    there[load] = None
                elif there is not load:
                    known[key] = {there: None, load: None}
        before = MARKS[there_already - 1] if there_already else 0
        held.tokens += (MARKS[marks - 1] - before) * per_char
        if 2 * held.tokens > load.kv or len(young) > _MOST or now - held.turned > _AGE:
            self._turn(load, held, now)

    def _turn(self, load: Load, held: Held, now: float) -> None:
        for key in held.old - held.young:
            self._forget(key, load)
        held.young, held.old = set(), held.young
        held.tokens, held.turned = 0.0, now

    def drop(self, load: Load) -> None:
        """It has left, or begins anew with nothing."""
        held = self.replicas.pop(load, None)
        if held is not None:
            for key in held.old | held.young:
                self._forget(key, load)

    def _forget(self, key: int, load: Load) -> None:
        there = self.known[key]
        if isinstance(there, dict):
            del there[load]
            if len(there) == 1:
                (self.known[key],) = there
        else:
            del self.known[key]
