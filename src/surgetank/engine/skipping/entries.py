"""What Python calls of one engine: the first of `engines`. Each call is one entry of the cache."""

from __future__ import annotations

from surgetank.engine.skipping import inputs
from surgetank.engine.skipping.layout import Ints, Records
from surgetank.engine.skipping.marks import entry
from surgetank.engine.skipping.pointers import pointer
from surgetank.engine.skipping.stretch import catch_up, pass_steps


@entry
def add(
    engines: Records,
    slots: Records,
    phases: Ints,
    prompt: int,
    output: int,
    priority: int,
    cached: int,
    now: float,
) -> tuple[int, float]:
    """Queue a sequence; return its slot (0: shed) and when `step` is due."""
    engine, steps = engines[0], pointer(phases)
    catch_up(engine, steps, now)
    s = inputs.arrive(engine, pointer(slots), steps, 0, prompt, output, priority, cached, now)
    return s, engine.due


@entry
def abort(engines: Records, slots: Records, heaps: Ints, phases: Ints, s: int, now: float) -> float:
    """Forget a sequence; return when `step` is due."""
    engine, steps = engines[0], pointer(phases)
    catch_up(engine, steps, now)
    inputs.leave(engine, pointer(slots), pointer(heaps), steps, s, now)
    return float(engine.due)


@entry
def step(
    engines: Records, slots: Records, heaps: Ints, phases: Ints, events: Records
) -> tuple[int, float]:
    """Run the stretch that is due; return the count of events and when the next one is."""
    engine = engines[0]
    n = inputs.turn(engine, pointer(slots), pointer(heaps), pointer(phases), pointer(events))
    return n, engine.due


@entry
def tick(
    engines: Records, slots: Records, heaps: Ints, phases: Ints, events: Records, given: Records
) -> tuple[int, int, float]:
    """Run the step under way; return the counts of tokens given to who decodes, and of events.

    And when `step` is due. The events are those of `step`: none within a stretch.
    """
    engine = engines[0]
    count = inputs.give(engine, pointer(slots), pointer(given))
    n = 0
    if engine.left > 1:
        pass_steps(engine, pointer(phases), 1)
    else:
        n = inputs.turn(engine, pointer(slots), pointer(heaps), pointer(phases), pointer(events))
    return count, n, engine.due


@entry
def observe(engines: Records, phases: Ints, now: float) -> None:
    """Count the steps that ended before `now`."""
    catch_up(engines[0], pointer(phases), now)


@entry
def tokens(engines: Records, slots: Records, s: int) -> int:
    """Return the output so far of the sequence in slot s."""
    return inputs.tokens_of(engines[0], pointer(slots), s)
