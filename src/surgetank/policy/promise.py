"""What was promised to those who were refused: that there will be room when they come back.

A Retry-After is true only if the room it counts on is still there at that time. So it is a
reservation: of places in a queue, of tokens in a bucket, of a tenant's share of the service. All
three are a stock that fills at a known rate, from which amounts are promised for later moments:

    told    the moment at which the stock has filled to cover all promises before, and this one
    kept    who comes without a promise gets only what would leave every promise covered

Rule: a promise is taken by whoever comes back for it, and is void when nobody has come for a while;
until then nobody else gets its room.
"""

from __future__ import annotations

from bisect import insort
from math import inf
from operator import itemgetter
from typing import Final

from surgetank.policy.request import Request

Key = tuple[object, ...]

_GRACE: Final = 1.0  # seconds after its time that a promise is kept: networks, and slow clients
_EARLY: Final = 0.05  # seconds before it that count as in time
MARGIN: Final = 1.25  # what is told is later than what is expected: a rate is an estimate
_MOST: Final = 200  # promises of one stock: beyond them a time is told, and nothing kept for it
_ROUNDING: Final = 1e-9
_when: Final = itemgetter(0)


class Promises:
    """Amounts promised of one stock, in the order of their times.

    `margin`: by how much the stock may fill more slowly than it is said to; 1 where the rate is
    known exactly. A promise is to a `key`: what a request looks like, and its retry again.
    """

    __slots__ = ("_kept", "_margin")

    def __init__(self, margin: float = MARGIN) -> None:
        self._margin = margin
        self._kept: list[tuple[float, float, Key]] = []  # when, how much, to whom

    def __len__(self) -> int:
        return len(self._kept)

    def expire(self, now: float) -> None:
        """Nobody came for these."""
        void = 0
        for at, _, _ in self._kept:
            if at + _GRACE >= now:
                break
            void += 1
        if void:
            del self._kept[:void]

    def wait(self, level: float, rate: float, amount: float, now: float) -> float:
        """Seconds until `amount` can be promised with every other promise kept; inf for never.

        `level` of the stock now, which fills by `rate` per second. After the last promise that
        `amount` before it would break, as soon as the stock covers what is due by then, and it.
        """
        rate /= self._margin
        cumulated = before = 0.0
        earliest = now
        for at, promised, _ in self._kept:
            cumulated += promised
            ahead = at - now if at > now else 0.0
            if level + rate * ahead - cumulated < amount * (1 - _ROUNDING):
                earliest, before = at, cumulated
        missing = before + amount - level
        if missing <= 0:
            return max(0.0, earliest - now)
        return max(earliest - now, missing / rate) if rate > 0 else inf

    def keep(self, wait: float, amount: float, now: float, key: Key) -> float:
        """Promise `amount` after `wait` seconds, which are returned."""
        if len(self._kept) >= _MOST:
            return wait
        insort(self._kept, (now + wait, amount, key), key=_when)
        return wait

    def of(self, key: Key, now: float) -> float | None:
        """Seconds until what it was promised is due, 0 when it is; None: it was promised nothing.

        It is asked of retries alone.
        """
        for at, _, whom in self._kept:
            if whom == key:
                return max(0.0, at - now)
        return None

    def take(self, key: Key, now: float) -> bool:
        """It came back: whether it was promised something that is due, which is void then."""
        for number, (at, _, whom) in enumerate(self._kept):
            if at - _EARLY > now:
                return False
            if whom == key:
                del self._kept[number]
                return True
        return False

    def leaves(self, level: float, rate: float, now: float) -> bool:
        """Whether a stock of `level`, after somebody else has taken of it, covers every promise."""
        promised = 0.0
        rate /= self._margin
        for at, amount, _ in self._kept:
            promised += amount
            ahead = at - now if at > now else 0.0
            if level + rate * ahead < promised - _ROUNDING * (1 + promised):
                return False
        return True


def key_of(request: Request) -> Key:
    """What a request looks like, and its retry again. Equal ones stand in for each other.

    Not every client says that it comes again, so that whoever looks like it and comes in time is.
    """
    return (
        request.tenant,
        request.model,
        request.prompt_bytes,
        request.prompt_chars,
        request.max_tokens,
        request.session,
    )
