"""Whose step is due first, of many engines: a winner tree in machine code.

Of those due at one moment, the one goes first of which that was known first, also when an input
brought its step forward meanwhile: such times, `KEPT` of each engine, are kept until they pass. The
tree's leaves are the engines' numbers, from `LEAVES` on; its root is node 1.
"""

from __future__ import annotations

import math
from typing import Any, Final

from numba import types

from surgetank.engine.skipping.intrinsics import pointing
from surgetank.engine.skipping.layout import Ints
from surgetank.engine.skipping.marks import inner

# where a clock's memory has what: addresses first, then plain numbers
MEMORIES: Final = 0  # of each engine (`addressed`)
DUES: Final = 1  # when each one's next step is due; infinite while it is idle, or gone
ORDERS: Final = 2  # in which that was noted
TREE: Final = 3
TOLD: Final = 4
LEAVES: Final = 5
NOTED: Final = 6
STEPS: Final = 7
KEPT_DUES: Final = 8  # of each engine
KEPT_ORDERS: Final = 9
WORDS: Final = 10

KEPT: Final = 4

ints_at: Any = pointing(types.CPointer(types.int64))  # type: ignore[no-untyped-call]  # numba's
floats_at: Any = pointing(types.CPointer(types.float64))  # type: ignore[no-untyped-call]  # same


@inner
def known(clock: Ints, e: int, before: float, due: float) -> int:
    """Return the order of a due time that is new; keep the one `before` when it is brought forward.

    Of those kept, the earliest makes way: it is over, or will be first.
    """
    dues, orders = floats_at(clock[KEPT_DUES]), ints_at(clock[KEPT_ORDERS])
    order, earliest = -1, KEPT * e
    for k in range(KEPT * e, KEPT * e + KEPT):
        if dues[k] == due:
            order = orders[k]
        if dues[k] < dues[earliest]:
            earliest = k
        if dues[k] == before:
            before = -math.inf  # it is kept already, in an order as early
    if due < before < math.inf:
        dues[earliest] = before
        orders[earliest] = ints_at(clock[ORDERS])[e]
    if order < 0:
        order = clock[NOTED]
        clock[NOTED] += 1
    return int(order)


@inner
def arm(clock: Ints, e: int, due: float) -> None:
    """Note when the next step of engine e is due, and play its games again if that is new."""
    dues = floats_at(clock[DUES])
    if dues[e] == due:
        return
    orders, tree = ints_at(clock[ORDERS]), ints_at(clock[TREE])
    orders[e] = known(clock, e, dues[e], due)
    dues[e] = due
    node = (clock[LEAVES] + e) >> 1
    while node:
        left, right = tree[2 * node], tree[2 * node + 1]
        wins = dues[right] < dues[left] or (
            dues[right] == dues[left] and orders[right] < orders[left]
        )
        tree[node] = right if wins else left
        node >>= 1
