"""What Python calls of one engine for every request of a simulation; machine code only.

As `entries`, but an engine is named by the address of its `Memory`: a number crosses from Python in
a tenth of the time that arrays of records take, and there are five of them.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import from_dtype

from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import arrays, clock, inputs
from surgetank.engine.skipping.clock import floats_at, ints_at
from surgetank.engine.skipping.intrinsics import Rows, pointing
from surgetank.engine.skipping.layout import DECODING, FREE, Ints
from surgetank.engine.skipping.marks import entry, inner
from surgetank.engine.skipping.stretch import catch_up

# where `Memory` has what
ENGINES: Final = 0
SLOTS: Final = 1
HEAPS: Final = 2
PHASES: Final = 3
EVENTS: Final = 4
CLOCK: Final = 5
NUMBER: Final = 6  # on that clock
LONGEST: Final = 7  # tokens of a sequence

# what `add` gives in place of a slot
SHED: Final = 0
LATE: Final = -1
NO_TOKENS: Final = -2  # or too many of them, or cached ones below 0
NO_SLOT: Final = -3

engines_at: Any = pointing(Rows(from_dtype(arrays.ENGINE)))
slots_at: Any = pointing(Rows(from_dtype(arrays.SLOT)))
events_at: Any = pointing(Rows(from_dtype(arrays.EVENT)))
told_at: Any = pointing(Rows(from_dtype(arrays.TOLD)))


class Memory:
    """The arrays of one engine; their addresses stand at `address`.

    `fields` and `told` are the engine's record and the events of a step as plain numbers: reading
    one from an array of records takes ten times as long.
    """

    __slots__ = ("_addresses", "_arrays", "address", "fields", "slots", "times", "told")

    def __init__(self, profile: EngineProfile, count: int) -> None:
        engines, heaps, phases, events = self._arrays = arrays.engines(profile)
        self.slots = arrays.slots(count)
        self.fields = engines.view(np.int64).data
        self.times = engines.view(np.float64).data
        self.told = events.view(np.int64).data
        parts = (engines, self.slots, heaps, phases, events)  # in the order above
        words = [*(part.ctypes.data for part in parts), 0, 0, profile.max_model_len]
        self._addresses = np.array(words, np.int64)
        self.address = self._addresses.ctypes.data

    def grow(self) -> None:
        """Double the slots."""
        arrays.grow(self.slots, len(self.slots))
        self._addresses[SLOTS] = self.slots.ctypes.data

    def stand(self, clock: int, number: int) -> None:
        """Be engine `number` on the clock at this address."""
        self._addresses[CLOCK], self._addresses[NUMBER] = clock, number


@inner
def settle(at: Ints) -> float:
    """Tell an engine's clock when it is due, after anything that may have moved that."""
    due = engines_at(at[ENGINES])[0].due
    clock.arm(ints_at(at[CLOCK]), at[NUMBER], due)
    return float(due)


@inner
def turn(at: Ints) -> int:
    """Run the stretch that is due and begin the next; return the count of events."""
    n = inputs.turn(
        engines_at(at[ENGINES])[0],
        slots_at(at[SLOTS]),
        ints_at(at[HEAPS]),
        ints_at(at[PHASES]),
        events_at(at[EVENTS]),
    )
    settle(at)
    return int(n)


@entry
def add(
    memory: int, request: int, prompt: int, output: int, cached: int, priority: int, now: float
) -> int:
    """Queue a sequence; return its slot, or why it has none (SHED and below)."""
    at = ints_at(memory)
    engine = engines_at(at[ENGINES])[0]
    if now > engine.due:
        return LATE
    if prompt < 1 or output < 1 or prompt + output > at[LONGEST] or cached < 0:
        return NO_TOKENS
    slots = slots_at(at[SLOTS])
    if slots[0].next == 0:
        return NO_SLOT
    phases = ints_at(at[PHASES])
    catch_up(engine, phases, now)
    s = inputs.arrive(engine, slots, phases, request, prompt, output, priority, cached, now)
    settle(at)
    return int(s)


@entry
def abort(memory: int, s: int, now: float) -> float:
    """Forget a sequence; return when `step` is due."""
    at = ints_at(memory)
    engine = engines_at(at[ENGINES])[0]
    phases = ints_at(at[PHASES])
    catch_up(engine, phases, now)
    inputs.leave(engine, slots_at(at[SLOTS]), ints_at(at[HEAPS]), phases, s, now)
    return settle(at)


@entry
def step(memory: int) -> int:
    """Run the stretch that is due; return the count of events."""
    return turn(ints_at(memory))


@entry
def run(memory: int, until: float, most: int) -> int:
    """Run the steps of a clock's engines that are due before `until`, in their order.

    It ends after the step that makes `most` events or more; returns their count.
    """
    own = ints_at(memory)
    dues, told = floats_at(own[clock.DUES]), told_at(own[clock.TOLD])
    memories, tree = ints_at(own[clock.MEMORIES]), ints_at(own[clock.TREE])
    n = 0
    while n < most:
        e = tree[1]
        due = dues[e]
        if not due < until:
            break
        at = ints_at(memories[e])
        events = events_at(at[EVENTS])
        count = turn(at)
        own[clock.STEPS] += 1
        for i in range(count):
            told[n].when = due
            told[n].engine = e
            told[n].kind = events[i].kind
            told[n].request = events[i].request
            n += 1
    return n


@entry
def withdraw(memory: int, e: int) -> None:
    """Take engine e off the clock at this address: its steps are run no more."""
    clock.arm(ints_at(memory), e, math.inf)


@entry
def find(memory: int, count: int, request: int) -> int:
    """Return the slot of a request in flight, of `count` slots; 0: it is not."""
    slots = slots_at(ints_at(memory)[SLOTS])
    for s in range(1, count):
        if slots[s].request == request and slots[s].state != FREE:
            return int(s)
    return 0


@entry
def observe(memory: int, now: float) -> None:
    """Count the steps that ended before `now`."""
    at = ints_at(memory)
    catch_up(engines_at(at[ENGINES])[0], ints_at(at[PHASES]), now)


@entry
def tokens(memory: int, s: int) -> int:
    """Return the output so far of the sequence in slot s."""
    at = ints_at(memory)
    return inputs.tokens_of(engines_at(at[ENGINES])[0], slots_at(at[SLOTS]), s)


@entry
def prefilled(memory: int, s: int) -> int:
    """Return how much of a prompt was computed since it was admitted, cached tokens not."""
    slots = slots_at(ints_at(memory)[SLOTS])
    prompt = slots[s].prompt
    computed = prompt if slots[s].state == DECODING else slots[s].computed
    return int(max(0, min(computed, prompt) - slots[s].cached))


@entry
def all_tokens(memory: int, count: int) -> int:
    """Return the output so far of all sequences in flight, in `count` slots."""
    at = ints_at(memory)
    engine = engines_at(at[ENGINES])[0]
    slots = slots_at(at[SLOTS])
    total = 0
    for s in range(1, count):
        if slots[s].state != FREE:
            total += inputs.tokens_of(engine, slots, s)
    return total
