"""Stretches: steps that only decode, taken together.

While nobody is prefilled, step m of a stretch (from 0) takes cost + m slope with slope = e B, since
each of the B sequences has a token more of context: m steps take m cost + slope m (m - 1) / 2. A
stretch ends with the first finish, or before the step whose new KV blocks are not to be had. An
input cuts it at the end of the step under way.
"""

from __future__ import annotations

import math
from typing import Any

from surgetank.engine.skipping.finishes import BITS
from surgetank.engine.skipping.layout import Ints
from surgetank.engine.skipping.marks import inner


@inner
def quotient(engine: Any, tokens: int) -> int:
    """Divide by the block size; it is nearly always a power of two, and shifting is faster."""
    return int(tokens >> engine.shift if engine.shift >= 0 else tokens // engine.size)


@inner
def remainder(engine: Any, tokens: int) -> int:
    """Return tokens modulo the block size, never negative."""
    return int(tokens & (engine.size - 1) if engine.shift >= 0 else tokens % engine.size)


@inner
def lasting(engine: Any, m: int) -> float:
    """Return how long m steps from `began` take, seconds."""
    return float(m * engine.cost + engine.slope * (0.5 * m * (m - 1)))


@inner
def new_blocks(engine: Any, phases: Ints, m: int) -> int:
    """Count the KV blocks that the m steps after the one under way allocate."""
    count = quotient(engine, m) * engine.decoding  # in `size` steps, each needs one
    size = engine.size
    p = engine.phase
    for _ in range(remainder(engine, m)):
        p += 1
        if p == size:
            p = 0
        count += phases[p]
    return int(count)


@inner
def advance(engine: Any, m: int) -> None:
    """Count m steps as completed: each gave a token to each decoding sequence."""
    engine.done += m
    engine.phase = remainder(engine, engine.phase + m)
    engine.context += engine.decoding * m


@inner
def plan(engine: Any, heap: Ints, phases: Ints) -> int:
    """Return how many steps like the one just begun follow each other, that one included."""
    steps = (heap[0] >> BITS) - engine.done
    more = steps - 1
    size = engine.size
    if (quotient(engine, more) + 1) * engine.decoding <= engine.free:
        return int(steps)  # the usual case: as many blocks as could be needed are there
    whole = min(quotient(engine, more), engine.free // engine.decoding)
    count = whole * engine.decoding
    m = whole * size
    p = engine.phase
    while m < more:
        p += 1
        if p == size:
            p = 0
        count += phases[p]
        if count > engine.free:
            break
        m += 1
    return int(m + 1)


@inner
def catch_up(engine: Any, phases: Ints, now: float) -> None:
    """Complete the steps of the stretch that ended before `now`; its last one stays under way."""
    most = engine.left - 1
    if most < 1 or now <= engine.began + engine.cost:
        return
    elapsed = now - engine.began
    half = engine.cost - 0.5 * engine.slope  # solves lasting(m) = elapsed without cancellation
    m = int(2.0 * elapsed / (half + math.sqrt(half * half + 2.0 * engine.slope * elapsed)))
    m = min(max(m, 1), most)
    while m > 1 and engine.began + lasting(engine, m) >= now:
        m -= 1
    while m < most and engine.began + lasting(engine, m + 1) < now:
        m += 1
    pass_steps(engine, phases, m)


@inner
def pass_steps(engine: Any, phases: Ints, m: int) -> None:
    """Complete m steps of the stretch, and be in the one after them."""
    engine.free -= new_blocks(engine, phases, m)
    engine.began += lasting(engine, m)
    engine.cost += engine.slope * m
    engine.left -= m
    advance(engine, m)


@inner
def cut(engine: Any, phases: Ints, now: float) -> None:
    """End the stretch with the step that is under way at `now`."""
    catch_up(engine, phases, now)
    if engine.left > 1:
        engine.left = 1
        engine.due = engine.began + engine.cost
