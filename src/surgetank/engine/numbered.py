"""The batcher of `engine.replica` for a caller that numbers its sequences: nothing but numbers.

Simulations use it. What is called for every request is one call of compiled code with a few plain
numbers, and the steps of all engines on one `Clock` are run in their order without Python, until
one of them has something to tell. `engine.replica` is the same under names.

Rule: no clock but the one it is given. What it tells of itself is as of its latest input, step or
`observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from struct import Struct
from typing import Any, Final

import numpy as np

from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import layout

MOST_AT_ONCE: Final = 64
"""Events after which `Clock.run` ends at the latest, with the step that makes them."""

_FEWEST_SLOTS: Final = 64
_FEWEST_ENGINES: Final = 8
_WORDS: Final = len(layout.EVENT)
_TOLD: Final = Struct("=dqqq")  # layout.TOLD
_FIELDS: Final = [name for name, _ in layout.ENGINE]
_RUNNING: Final = _FIELDS.index("running")
_WAITING: Final = _FIELDS.index("waiting")
_FREE: Final = _FIELDS.index("free")
_PREEMPTIONS: Final = _FIELDS.index("preemptions")
_NEWCOMERS: Final = _FIELDS.index("newcomers")
_DUE: Final = _FIELDS.index("due")

Event = tuple[int, int]
"""Its kind (FIRST_TOKEN, FINISHED, PREEMPTED of `layout`; others: tokens), and the sequence's
number."""

Told = tuple[float, int, int, int]
"""An event of one of many: when, the engine's number, kind and sequence's number."""


def _calls(code: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`add` and `run`, which every request calls."""
    from surgetank.engine.skipping import compiled  # noqa: PLC0415 - numba

    six = ", ".join(["int64"] * 6)
    return (
        compiled.direct(code.add, f"({six}, float64)"),
        compiled.direct(code.run, "(int64, float64, int64)"),
    )


class Clock:
    """The engines of one run, numbered as they enter, and the order of their steps.

    Of steps due at one moment, the one goes first of which that was known first.
    """

    def __init__(self) -> None:
        from surgetank.engine.skipping import addressed, arrays, clock, compiled  # noqa: PLC0415

        self._at, self._told_type = clock, arrays.TOLD
        self._code: Any = compiled.compiled(addressed)
        self._run = _calls(self._code)[1]
        self._own = np.zeros(clock.WORDS, np.int64)
        self.address: int = self._own.ctypes.data
        self._count = self._leaves = self._room = 0
        self._dues, self._orders = np.empty(0), np.empty(0, np.int64)
        self._memories, self._tree = np.empty(0, np.int64), np.empty(0, np.int64)
        self._kept_dues, self._kept_orders = np.empty(0), np.empty(0, np.int64)
        self._bytes = memoryview(b"")
        self._grow(_FEWEST_ENGINES)

    @property
    def steps(self) -> int:
        """Stretches of steps run so far."""
        return int(self._own[self._at.STEPS])

    def enter(self, memory: Any, profile: EngineProfile) -> int:
        """Take in an idle engine by its `addressed.Memory`; its number here."""
        number = self._count
        if number == self._leaves:
            self._grow(2 * number)
        self._count += 1
        self._memories[number] = memory.address
        memory.stand(self.address, number)
        room = MOST_AT_ONCE + layout.most_events(profile)
        if room > self._room:
            self._room = room
            told = np.zeros(room, self._told_type)
            self._own[self._at.TOLD] = told.ctypes.data
            self._bytes = told.view(np.uint8).data  # it keeps the array
        return number

    def run(self, until: float, most: int = 1) -> Iterable[Told]:
        """Run the steps due before `until`, in order; what they tell.

        It ends after the step that makes `most` events or more, MOST_AT_ONCE at most. To be read
        before it is called again.
        """
        n = self._run(self.address, until, most)
        return _TOLD.iter_unpack(self._bytes[: n * 32]) if n else ()

    def remove(self, number: int) -> None:
        """Run an engine's steps no more."""
        self._code.withdraw(self.address, number)

    def _grow(self, leaves: int) -> None:
        """Make room for so many engines, a power of two, and play all games anew."""
        at, own, count = self._at, self._own, self._count
        dues, orders, memories = np.full(leaves, inf), *np.zeros((2, leaves), np.int64)
        dues[:count], orders[:count] = self._dues[:count], self._orders[:count]
        memories[:count] = self._memories[:count]
        tree = np.zeros(2 * leaves, np.int64)
        tree[leaves:] = np.arange(leaves)
        for node in range(leaves - 1, 0, -1):
            pair = tree[2 * node], tree[2 * node + 1]
            tree[node] = min(pair, key=lambda e: (dues[e], orders[e]))
        self._dues, self._orders, self._memories, self._tree = dues, orders, memories, tree
        self._leaves = own[at.LEAVES] = leaves
        own[at.DUES], own[at.ORDERS] = dues.ctypes.data, orders.ctypes.data
        kept = at.KEPT * leaves
        dues, orders = np.full(kept, -inf), np.zeros(kept, np.int64)
        dues[: at.KEPT * count], orders[: at.KEPT * count] = self._kept_dues, self._kept_orders
        self._kept_dues, self._kept_orders = dues, orders
        own[at.KEPT_DUES], own[at.KEPT_ORDERS] = dues.ctypes.data, orders.ctypes.data
        own[at.MEMORIES], own[at.TREE] = memories.ctypes.data, tree.ctypes.data


class Numbered:
    """One engine on a clock, a new one unless given; `number` there.

    Inputs come in order of time, none after `due`. Sheds (`add` returns False) when `max_queued`
    sequences are in flight, waiting or running. No two in flight may have one number.
    """

    __slots__ = ("_address", "_code", "_memory", "clock", "number", "profile", "push")

    def __init__(self, profile: EngineProfile, clock: Clock | None = None) -> None:
        from surgetank.engine.skipping import addressed, compiled  # noqa: PLC0415 - numba

        self.profile = profile
        self._code: Any = compiled.compiled(addressed)
        self._memory = addressed.Memory(profile, _FEWEST_SLOTS)
        self._address = self._memory.address
        # As `add`, in one call of compiled code: more than 0 when it is queued, else ask `add`.
        self.push: Callable[..., int] = partial(_calls(self._code)[0], self._address)
        self.clock = Clock() if clock is None else clock
        self.number = self.clock.enter(self._memory, profile)

    def __len__(self) -> int:
        return self.running + self.waiting

    @property
    def due(self) -> float:
        """When its next step ends; inf while idle."""
        return self._memory.times[_DUE]

    @property
    def running(self) -> int:
        """Sequences that hold KV."""
        return self._memory.fields[_RUNNING]

    @property
    def waiting(self) -> int:
        """Sequences that hold none, the preempted ones too."""
        return self._memory.fields[_WAITING]

    @property
    def newcomers(self) -> int:
        """Sequences that came since its latest stretch of steps began."""
        return self._memory.fields[_NEWCOMERS]

    @property
    def kv_blocks_used(self) -> int:
        """Blocks held by running sequences."""
        return self.profile.kv_blocks - self._memory.fields[_FREE]

    @property
    def preemptions(self) -> int:
        """Preemptions so far."""
        return self._memory.fields[_PREEMPTIONS]

    def tokens(self, number: int) -> int:
        """Return the output so far of a sequence in flight. Raises KeyError for any other."""
        return int(self._code.tokens(self._address, self._slot(number)))

    def all_tokens(self) -> int:
        """Return the output so far of all sequences in flight."""
        if not len(self):
            return 0
        return int(self._code.all_tokens(self._address, len(self._memory.slots)))

    def prefilled(self, number: int) -> int:
        """Return how much of its prompt was computed since it was admitted, cached tokens not.

        A chunk in flight counts as done. Raises KeyError for a sequence not in flight.
        """
        return int(self._code.prefilled(self._address, self._slot(number)))

    def _slot(self, number: int) -> int:
        slot = int(self._code.find(self._address, len(self._memory.slots), number))
        if not slot:
            raise KeyError(number)
        return slot

    def add(
        self, number: int, prompt: int, output: int, cached: int, priority: int, now: float
    ) -> bool:
        """Queue a sequence that will produce exactly `output` tokens; False when it is shed.

        `cached` tokens of its prompt are found in the prefix cache; a lower `priority` goes first
        (with the priority policy only). Raises ValueError for what a server must have refused
        before: no tokens, more than `max_model_len`.
        """
        slot = self.push(number, prompt, output, cached, priority, now)
        if slot > 0:
            return True
        if not slot:
            return False
        if now > self.due:
            raise ValueError(f"input at {now} while a step was due at {self.due}: step first")
        limit = self.profile.max_model_len
        if prompt < 1 or output < 1 or cached < 0 or prompt + output > limit:
            raise ValueError(
                f"{prompt} prompt, {output} output and {cached} cached tokens:"
                f" must be >= 1, 1 and 0, and prompt and output <= {limit} in all"
            )
        self._memory.grow()
        return self.add(number, prompt, output, cached, priority, now)

    def abort(self, number: int, now: float) -> bool:
        """Forget a sequence and free its KV at once; False when it is not in flight.

        The step in flight keeps its length: its work was given to the GPU already.
        """
        self._in_order(now)
        slot = int(self._code.find(self._address, len(self._memory.slots), number))
        if slot:
            self._code.abort(self._address, slot, now)
        return bool(slot)

    def observe(self, now: float) -> None:
        """Bring what is told of it up to `now`; changes nothing that happens."""
        self._in_order(now)
        self._code.observe(self._address, now)

    def step(self) -> Sequence[Event]:
        """End the stretch that is due and begin the next one, both at the time it was due.

        To be called at `due`, where `Clock.run` is not. The events are in the order in which they
        happened; there may be none.
        """
        n = self._code.step(self._address)
        flat = self._memory.told[: n * _WORDS].tolist()
        return list(zip(flat[::_WORDS], flat[2::_WORDS], strict=True))

    def _in_order(self, now: float) -> None:
        if now > self.due:
            raise ValueError(f"input at {now} while a step was due at {self.due}: step first")
