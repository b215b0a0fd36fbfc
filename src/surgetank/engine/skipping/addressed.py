"""What Python calls of one engine for every request of a simulation; machine code only.

As `entries`, but an engine is named by the address of its `Memory`: a number crosses from Python in
a tenth of the time that arrays of records take, and there are five of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import from_dtype, types

from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import arrays, inputs
from surgetank.engine.skipping.intrinsics import Rows, pointing
from surgetank.engine.skipping.layout import DECODING, FREE
from surgetank.engine.skipping.marks import entry
from surgetank.engine.skipping.stretch import catch_up

# where `Memory` has what
ENGINES: Final = 0
SLOTS: Final = 1
HEAPS: Final = 2
PHASES: Final = 3
EVENTS: Final = 4

ints_at: Any = pointing(types.CPointer(types.int64))  # type: ignore[no-untyped-call]  # numba's
engines_at: Any = pointing(Rows(from_dtype(arrays.ENGINE)))
slots_at: Any = pointing(Rows(from_dtype(arrays.SLOT)))
events_at: Any = pointing(Rows(from_dtype(arrays.EVENT)))


class Memory:
    """The arrays of one engine; their addresses stand at `address`.

    `fields` and `told` are the engine's record and the events of a step as plain numbers: reading
    one from an array of records takes ten times as long.
    """

    __slots__ = ("_addresses", "_arrays", "address", "fields", "slots", "told")

    def __init__(self, profile: EngineProfile, count: int) -> None:
        engines, heaps, phases, events = self._arrays = arrays.engines(profile)
        self.slots = arrays.slots(count)
        self.fields = engines.view(np.int64).data
        self.told = events.view(np.int64).data
        parts = (engines, self.slots, heaps, phases, events)  # in the order above
        self._addresses = np.array([part.ctypes.data for part in parts], np.int64)
        self.address = self._addresses.ctypes.data

    def grow(self) -> None:
        """Double the slots."""
        arrays.grow(self.slots, len(self.slots))
        self._addresses[SLOTS] = self.slots.ctypes.data


@entry
def add(
    memory: int, request: int, prompt: int, output: int, priority: int, cached: int, now: float
) -> tuple[int, float]:
    """Queue a sequence; return its slot (0: shed) and when `step` is due. A slot must be free."""
    at = ints_at(memory)
    engine = engines_at(at[ENGINES])[0]
    phases = ints_at(at[PHASES])
    catch_up(engine, phases, now)
    slots = slots_at(at[SLOTS])
    s = inputs.arrive(engine, slots, phases, request, prompt, output, priority, cached, now)
    return s, engine.due


@entry
def abort(memory: int, s: int, now: float) -> float:
    """Forget a sequence; return when `step` is due."""
    at = ints_at(memory)
    engine = engines_at(at[ENGINES])[0]
    phases = ints_at(at[PHASES])
    catch_up(engine, phases, now)
    inputs.leave(engine, slots_at(at[SLOTS]), ints_at(at[HEAPS]), phases, s, now)
    return float(engine.due)


@entry
def step(memory: int) -> tuple[int, float, int, int]:
    """Run the stretch that is due; return the count of events and when the next one is.

    And kind and request of the first event, as mostly there is but one.
    """
    at = ints_at(memory)
    engine = engines_at(at[ENGINES])[0]
    n = inputs.turn(
        engine,
        slots_at(at[SLOTS]),
        ints_at(at[HEAPS]),
        ints_at(at[PHASES]),
        events_at(at[EVENTS]),
    )
    first = events_at(at[EVENTS])[0]
    return n, engine.due, first.kind, first.request


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
