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

from bisect import bisect_left, bisect_right, insort
from math import inf
from operator import attrgetter, itemgetter
from typing import Final

from surgetank.policy.request import Request

Key = tuple[object, ...]

_GRACE: Final = 1.0  # seconds after its time that a promise is kept: networks, and slow clients
_EARLY: Final = 0.05  # seconds before it that count as in time
MARGIN: Final = 1.25  # what is told is later than what is expected: a rate is an estimate
START: Final = 1.0  # the same where it is learnt, at first
LEAST: Final = 0.7
_TARGET: Final = 1.0  # parts of the longest wait that who comes back should find; 2 are let in
_GAIN: Final = 0.01  # of the margin, for each second in which others come back
_SINGLE: Final = 200  # promises of one stock that are counted one by one
_TOGETHER: Final = 0.5  # seconds within which others are counted as one
_GARBAGE: Final = 64  # void promises that may be held beyond as many as there are
_ROUNDING: Final = 1e-9
_when: Final = attrgetter("at")
_first: Final = itemgetter(0)


class _Due:
    """What is promised for one moment, or for several that are close."""

    __slots__ = ("amount", "at", "number")

    def __init__(self, at: float, amount: float) -> None:
        self.at = at
        self.amount = amount
        self.number = 1


class Promises:
    """Amounts promised of one stock, in the order of their times.

    `margin`: by how much the stock may fill more slowly than it is said to; 1 where the rate is
    known exactly. Where `came` is told of each who comes, it is only where the margin starts.
    `kept`: those there are; empty for most stocks, which may spare the questions. A promise is to a
    `key`: what a request looks like, and its retry again. Those of many are counted together where
    they are due within half a second: a flash crowd makes thousands and each newcomer is held
    against all of them.
    """

    __slots__ = ("_held", "_learnt", "_margin", "_whose", "kept")

    def __init__(self, margin: float = MARGIN) -> None:
        self._margin = margin
        self.kept: list[_Due] = []  # in order of time
        self._whose: dict[Key, list[tuple[float, float, _Due]]] = {}  # when, how much; in order
        self._held = 0  # in `_whose`, void ones too
        self._learnt = -inf  # when

    def __len__(self) -> int:
        return len(self.kept)

    def expire(self, now: float) -> None:
        """Nobody came for these."""
        dues, void = self.kept, 0
        for due in dues:
            if due.at + _GRACE >= now:
                break
            due.number = 0
            void += 1
        if void:
            del dues[:void]
            if self._held > 2 * sum(due.number for due in dues) + _GARBAGE:
                self._forget()

    def _forget(self) -> None:
        """Drop whose promises are void."""
        alive = {key: [p for p in mine if p[2].number] for key, mine in self._whose.items()}
        self._whose = {key: mine for key, mine in alive.items() if mine}
        self._held = sum(map(len, self._whose.values()))

    def came(self, wait: float, now: float) -> None:
        """Learn the margin: who came when told finds that it would wait so long.

        In parts of the longest that a newcomer may. Where nobody waits, others could have been told
        to come sooner. Slow, since those told now come much later; a second without any teaches
        nothing.
        """
        seconds = min(1.0, now - self._learnt)
        self._learnt = now
        self._margin *= 1 + _GAIN * seconds * max(-1.0, min(1.0, wait - _TARGET))
        self._margin = max(LEAST, min(MARGIN, self._margin))

    def wait(self, level: float, rate: float, amount: float, now: float) -> float:
        """Seconds until `amount` can be promised with every other promise kept; inf for never.

        `level` of the stock now, which fills by `rate` per second. After the last promise that
        `amount` before it would break, as soon as the stock covers what is due by then, and it.
        """
        rate /= self._margin
        cumulated = before = 0.0
        earliest = now
        for due in self.kept:
            at = due.at
            cumulated += due.amount
            ahead = at - now if at > now else 0.0
            if level + rate * ahead - cumulated < amount * (1 - _ROUNDING):
                earliest, before = at, cumulated
        missing = before + amount - level
        if missing <= 0:
            return max(0.0, earliest - now)
        return max(earliest - now, missing / rate) if rate > 0 else inf

    def keep(self, wait: float, amount: float, now: float, key: Key) -> float:
        """Promise `amount` after `wait` seconds, which are returned."""
        at = now + wait
        due = self._near(at) if len(self.kept) >= _SINGLE else None
        if due is None:
            due = _Due(at, amount)
            insort(self.kept, due, key=_when)
        else:
            due.amount += amount
            due.number += 1
        insort(self._whose.setdefault(key, []), (at, amount, due), key=_first)
        self._held += 1
        return wait

    def _near(self, at: float) -> _Due | None:
        """What is due so shortly before that it may be counted with it."""
        place = bisect_right(self.kept, at, key=_when)
        if place and at - self.kept[place - 1].at <= _TOGETHER:
            return self.kept[place - 1]
        return None

    def of(self, key: Key, now: float) -> float | None:
        """Seconds until what it was promised is due, 0 when it is; None: nothing was promised."""
        for at, _, due in self._whose.get(key, ()):
            if due.number:
                return max(0.0, at - now)
        return None

    def due(self, key: Key, now: float) -> bool:
        """Whether it was promised something that it may have by now."""
        left = self.of(key, now)
        return left is not None and left <= _EARLY

    def take(self, key: Key, now: float) -> bool:
        """It came back: whether it was promised something that is due, which is void then."""
        mine = self._whose.get(key)
        if mine is None:
            return False
        for number, (at, amount, due) in enumerate(mine):
            if at - _EARLY > now:
                return False
            if due.number:
                del mine[number]
                self._held -= 1
                if not mine:
                    del self._whose[key]
                self._fulfil(due, amount)
                return True
        return False

    def _fulfil(self, due: _Due, amount: float) -> None:
        due.number -= 1
        due.amount -= amount
        if not due.number:
            place = bisect_left(self.kept, due.at, key=_when)
            while self.kept[place] is not due:
                place += 1
            del self.kept[place]

    def until(self, moment: float) -> int:
        """How many are due by then."""
        number = 0
        for due in self.kept:
            if due.at > moment:
                break
            number += due.number
        return number

    def leaves(self, level: float, rate: float, now: float) -> bool:
        """Whether a stock of `level`, after somebody else has taken of it, covers every promise."""
        promised = 0.0
        rate /= self._margin
        for due in self.kept:
            promised += due.amount
            ahead = due.at - now if due.at > now else 0.0
            if level + rate * ahead < promised - _ROUNDING * (1 + promised):
                return False
        return True


def key_of(request: Request) -> Key:
    """What a request looks like, and its retry again. Equal ones stand in for each other.

    Not every client says that it comes again, so that whoever looks like it and comes in time is.
    """
    return (
        request.tenant,
        request.key,
        request.model,
        request.prompt_bytes,
        request.prompt_chars,
        request.max_tokens,
        request.session,
    )
