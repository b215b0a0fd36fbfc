"""A tenant's limits, level by level: the tenant, its keys, and models of either.

Rule: a request takes from every level it belongs to, or from none; what it has taken is settled or
given back once, and on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from surgetank.policy.flowspec import Budget, LevelBudget
from surgetank.policy.promise import Key
from surgetank.policy.quota import KINDS, Amounts, Cap, Level, Stock, limits_of, wait_of
from surgetank.policy.request import Request
from surgetank.policy.tenant import Tenant

_NO_LIMIT: Final = (None, None, None)
_NO_CAP: Final = (None, None)
_NOTHING_ELSE: Final = (*_NO_LIMIT, *_NO_LIMIT, *_NO_CAP)
NO_BUDGET: Final = Budget(*_NO_LIMIT, *_NO_LIMIT)
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more


class Chain:
    """The levels that a request counts on, the outermost first; there may be none.

    `stocks` and `caps`: their limits, by minute and at once.
    """

    __slots__ = ("_kinds", "_plain", "_plan", "caps", "levels", "stocks")

    def __init__(self, levels: Iterable[Level]) -> None:
        self.levels = tuple(levels)
        self.stocks = tuple(stock for level in self.levels for stock in level.stocks)
        self.caps = tuple(level.cap for level in self.levels if level.cap is not None)
        self._kinds = tuple(
            tuple(stock.bucket for stock in self.stocks if stock.of is kind) for kind in KINDS
        )
        # What each request goes through: which amount, of which bucket, and to whom it is promised.
        self._plan = tuple((KINDS.index(s.of), s.bucket, s.promises, s) for s in self.stocks)
        requests, tokens, *others = self._kinds
        # Most limit nothing but requests and tokens, on one level: told without a choice.
        plain = not (any(others) or self.caps) and len(requests) <= 1 and len(tokens) <= 1
        self._plain = (requests, tokens) if plain else None

    def reserve(
        self, amounts: Amounts, request: Request, service: float, now: float
    ) -> Stock | Cap | None:
        """Take one request and its tokens; on None all are taken, else nothing is.

        What is returned had not enough. `service`: seconds a request of its model is here.
        """
        plan, caps = self._plan, self.caps
        prompt, output = amounts
        wanted = (1.0, prompt + output, prompt, output)
        for kind, bucket, promises, stock in plan:
            if not bucket.holds(wanted[kind], now):
                return stock
            if promises.kept and not stock.has(amounts, request, now):
                return stock
        for cap in caps:
            if not cap.has(request, service, now):
                return cap
        for kind, bucket, promises, stock in plan:
            if promises.kept:
                stock.take(amounts, request, now)
            else:
                bucket.reserve(wanted[kind], now, whose=request.id)
        for cap in caps:
            cap.take(request, now)
        return None

    def settle(self, whose: str, taken: Amounts, used: Amounts, now: float) -> None:
        """The request called `whose` ran: its tokens are corrected to what it used."""
        prompt, output = taken
        before = (1.0, prompt + output, prompt, output)
        prompt, output = used
        after = (1.0, prompt + output, prompt, output)
        for kind, bucket, _, _ in self._plan:
            bucket.settle(before[kind], after[kind], now, whose=whose)
        for cap in self.caps:
            cap.used -= 1

    def refund(self, whose: str, taken: Amounts, now: float) -> None:
        """The request did not run: it and its tokens are given back."""
        for stock in self.stocks:
            stock.bucket.refund(stock.of(taken), now, whose=whose)
        for cap in self.caps:
            cap.used -= 1

    def promise(
        self, amounts: Amounts, now: float, most: float, key: Key, *, again: bool
    ) -> float | None:
        """Seconds until all tokens can be had, promised up to `most`; None when they never can.

        `again`: it is a retry; what came before its time has its promise already.
        """
        if again:
            known = [wait for stock in self.stocks if (wait := stock.promises.of(key, now))]
            if known:
                return max(known)
        wait = 0.0
        for stock in self.stocks:
            one = wait_of(stock, stock.of(amounts), now)
            if one is None:
                return None
            wait = max(wait, one)
        if wait <= most:
            for stock in self.stocks:
                stock.promises.keep(wait, stock.of(amounts), now, key)
        return wait

    def never(self, amounts: Amounts) -> Stock | None:
        """The first limit that could not give so much if it were full."""
        return next((s for s in self.stocks if s.of(amounts) > s.bucket.burst), None)

    def left(self, now: float) -> Budget:
        """What clients are told: of each kind the level with the least left.

        It is the first to refuse. Of limits on both, prompt and output tokens, `tokens` tells the
        one with the least part left: any other would show plenty beside a refusal.
        """
        if self._plain is not None:
            requests_of, tokens_of = self._plain
            first = requests_of[0].told(now) if requests_of else _NO_LIMIT
            second = tokens_of[0].told(now) if tokens_of else _NO_LIMIT
            return _new(Budget, (*first, *second, *_NOTHING_ELSE))
        ones, *tokens = self._kinds
        told = [None if not kind else _least([b.told(now) for b in kind]) for kind in tokens]
        known = [one for one in told if one is not None]
        requests = _least([b.told(now) for b in ones]) if ones else _NO_LIMIT
        tightest = min(known, key=_part) if known else _NO_LIMIT
        cap = min(self.caps, key=_free, default=None)
        places = _NO_CAP if cap is None else (cap.most, max(0, cap.most - cap.used))
        return _new(
            Budget,
            (*requests, *tightest, *(told[1] or _NO_LIMIT), *(told[2] or _NO_LIMIT), *places),
        )


_Told = tuple[int, int, float]


def _least(told: list[_Told]) -> _Told:
    return told[0] if len(told) == 1 else min(told, key=_remaining)


def _remaining(told: _Told) -> int:
    return told[1]


def _part(told: _Told) -> float:
    return told[1] / told[0] if told[0] else 0.0


def _free(cap: Cap) -> int:
    return cap.most - cap.used


class Levels:
    """All levels of one tenant that have limits."""

    __slots__ = ("_chains", "_keys", "_levels", "_models", "_only")

    def __init__(self, tenant: Tenant) -> None:
        self._levels = {(k, m): Level(limits, k, m) for limits, k, m in limits_of(tenant)}
        self._index()

    def _index(self) -> None:
        self._keys = frozenset(key for key, _ in self._levels)
        self._models = frozenset(model for _, model in self._levels)
        self._chains: dict[tuple[str, str], Chain] = {}
        self._only = Chain(self._levels.values()) if self._levels.keys() == {("", "")} else None

    def __bool__(self) -> bool:
        return bool(self._levels)

    def chain(self, key: str, model: str) -> Chain:
        """The levels of a request with this key for this model; names without limits are alike."""
        if self._only is not None:
            return self._only
        place = (key if key in self._keys else "", model if model in self._models else "")
        chain = self._chains.get(place)
        if chain is None:
            key, model = place
            names = dict.fromkeys((("", ""), ("", model), (key, ""), place))
            found = [self._levels[name] for name in names if name in self._levels]
            chain = self._chains[place] = Chain(found)
        return chain

    def each(self, now: float) -> list[LevelBudget]:
        """What each level has left, the tenant's own first."""
        return [
            LevelBudget(level.key, level.model, Chain([level]).left(now))
            for level in self._levels.values()
        ]

    def take_over(
        self, old: Levels | None, taken: Callable[[Level], Mapping[str, Amounts]], now: float
    ) -> None:
        """Go on where the tenant's limits before left off. `taken`: what is here of a level."""
        for place, level in self._levels.items():
            before = None if old is None else old._levels.get(place)  # noqa: SLF001 - of its kind
            level.take_over(before, taken(level), now)
        self._index()
