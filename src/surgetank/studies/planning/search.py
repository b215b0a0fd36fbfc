"""The search for the cheapest fleet from which nothing can be taken away.

First the least fixed number, by halving. Then, for bases below it, fleets that grow: from a size
that attains the objective one replica after the other is taken away, of whichever pool can spare
one, until none can. So each of these is minimal; the cheapest of them that also bears a tenth more
traffic is the answer, and where none does the one that bears it best. Where growth is planned for
already, the cheapest is: a margin is taken once. A fixed fleet wins a tie, since it has no part
that can fail.

Rule: whatever is returned was simulated, and so was every size with one replica less in one pool,
none of which attains what was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from surgetank.studies.planning.trials import Trials
from surgetank.studies.planning.wish import Size, Trial

_TIE: Final = 0.01  # of the cost: less is not worth a moving part
_BASES: Final = 3  # below the fixed number that are tried


def least_fixed(trials: Trials) -> Trial | None:
    """The least number of replicas that attains it without any scaling; None: not even the most."""
    low, high = 1, 1
    most = trials.wish.max_replicas
    while high < most and not trials.keeps(Size(high)):
        low, high = high + 1, min(most, 2 * high)
    if not trials.keeps(Size(high)):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if trials.keeps(Size(middle)) else (middle + 1, high)
    return trials.run(Size(low))


def minimal(trials: Trials, fixed: Trial | None) -> list[Trial]:
    """Minimal fleets, cheapest first; `fixed`: the least fixed one, which is one of them."""
    found = {} if fixed is None else {fixed.size: fixed}
    for size in _starts(trials, fixed):
        if trials.spent:
            break
        if size in trials.done or not trials.keeps(size):
            continue
        least = descend(trials, size)
        if least is not None:
            found[least.size] = least
    return sorted(found.values(), key=lambda t: t.cost * (1 if t.size.fixed else 1 + _TIE))


def choose(
    found: Sequence[Trial], stress: Trials, *, margin: bool = True
) -> tuple[Trial, Trial] | None:
    """The cheapest that bears more traffic as well, and how it did then; None: none was found.

    Without `margin` the cheapest of all: the traffic has grown already.
    """
    best: tuple[Trial, Trial] | None = None
    for trial in found:
        stressed = stress.run(trial.size)
        if not margin or stressed.kept >= stress.wish.attainment:
            return trial, stressed
        if best is None or stressed.kept > best[1].kept:
            best = trial, stressed
    return best


def descend(trials: Trials, size: Size) -> Trial | None:
    """Take away what can be spared; None: the trials ran out before nothing could be.

    Each pool in turn is halved towards its least number, as if more never harmed; then every size
    with one less is looked at, which does not count on that.
    """
    before = None
    while size != before and not trials.spent:
        before = size
        for pool in ("base", "standby", "elastic"):
            size = _least(trials, size, pool)
    while True:
        spared = [s for s in size.smaller() if trials.keeps(s)]
        if not spared:
            return trials.run(size)
        if trials.spent:
            return None
        size = min(spared, key=lambda s: trials.run(s).cost)


def _least(trials: Trials, size: Size, pool: str) -> Size:
    """The least of one pool that attains it, the others as they are."""
    high = int(getattr(size, pool))
    low = 1 if pool == "base" else 0
    while low < high and not trials.spent:
        middle = (low + high) // 2
        if trials.keeps(replace(size, **{pool: middle})):
            high = middle
        else:
            low = middle + 1
    return replace(size, **{pool: high})


def _starts(trials: Trials, fixed: Trial | None) -> Iterator[Size]:
    """Sizes to come down from: for each base all others elastic, all warm, and half of each."""
    most = trials.wish.max_replicas
    whole = most if fixed is None else min(most, fixed.size.base + 2)
    top = whole if fixed is None else fixed.size.base - 1
    for base in _bases(top):
        others = whole - base
        yield Size(base, others, 0)
        yield Size(base, 0, min(others, max(1, whole - 1 - base)))
        if others >= 2:
            yield Size(base, others - others // 2, others // 2)


def _bases(top: int) -> list[int]:
    """A few numbers from `top` down to 1, evenly apart."""
    if top < 1:
        return []
    count = min(_BASES, top)
    return sorted({max(1, round(top * (i + 1) / count)) for i in range(count)}, reverse=True)
