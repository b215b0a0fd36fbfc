"""The batcher of `engine.replica` for a caller that numbers its sequences: nothing but numbers.

Simulations use it: three calls of it are made for every request, so each is one call of compiled
code with a few plain numbers. `engine.replica` is the same under names.

Rule: no clock. What it tells of itself is as of its latest input, step or `observe`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import layout

_FEWEST_SLOTS: Final = 64
_WORDS: Final = len(layout.EVENT)
_FINISHED: Final = layout.FINISHED
_FIELDS: Final = [name for name, _ in layout.ENGINE]
_RUNNING: Final = _FIELDS.index("running")
_WAITING: Final = _FIELDS.index("waiting")
_FREE: Final = _FIELDS.index("free")
_PREEMPTIONS: Final = _FIELDS.index("preemptions")

Told = tuple[int, int]
"""An event: its kind (FIRST_TOKEN, FINISHED, PREEMPTED of `layout`; others: tokens), and whose."""


def _calls(code: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`add` and `step`, which every request calls."""
    from surgetank.engine.skipping import compiled  # noqa: PLC0415 - numba

    six = ", ".join(["int64"] * 6)
    return compiled.direct(code.add, f"({six}, float64)"), compiled.direct(code.step, "(int64,)")


class Numbered:
    """One engine. `due`: when `step` must be called next; inf while idle.

    Inputs come in order of time, none after `due`. Sheds (`add` returns False) when `max_queued`
    sequences are in flight, waiting or running.
    """

    __slots__ = (
        "_add",
        "_address",
        "_code",
        "_longest",
        "_memory",
        "_room",
        "_slot_of",
        "_step",
        "_told",
        "due",
        "profile",
    )

    def __init__(self, profile: EngineProfile) -> None:
        from surgetank.engine.skipping import addressed, compiled  # noqa: PLC0415 - numba

        self.profile = profile
        self.due = inf
        self._code: Any = compiled.compiled(addressed)
        self._add, self._step = _calls(self._code)
        self._memory = addressed.Memory(profile, _FEWEST_SLOTS)
        self._address = self._memory.address
        self._told = self._memory.told
        self._room = _FEWEST_SLOTS
        self._longest = profile.max_model_len
        self._slot_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def running(self) -> int:
        """Sequences that hold KV."""
        return self._memory.fields[_RUNNING]

    @property
    def waiting(self) -> int:
        """Sequences that hold none, the preempted ones too."""
        return self._memory.fields[_WAITING]

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
        return int(self._code.tokens(self._address, self._slot_of[number]))

    def all_tokens(self) -> int:
        """Return the output so far of all sequences in flight."""
        if not self._slot_of:
            return 0
        return int(self._code.all_tokens(self._address, len(self._memory.slots)))

    def prefilled(self, number: int) -> int:
        """Return how much of its prompt was computed since it was admitted, cached tokens not.

        A chunk in flight counts as done. Raises KeyError for a sequence not in flight.
        """
        return int(self._code.prefilled(self._address, self._slot_of[number]))

    def add(
        self, number: int, prompt: int, output: int, cached: int, now: float, *, priority: int = 0
    ) -> bool:
        """Queue a sequence that will produce exactly `output` tokens; False when it is shed.

        `cached` tokens of its prompt are found in the prefix cache; a lower `priority` goes first
        (with the priority policy only). Raises ValueError for what a server must have refused
        before: no tokens, more than `max_model_len`, a number in use.
        """
        if now > self.due:
            raise ValueError(f"input at {now} while a step was due at {self.due}: step first")
        if prompt < 1 or output < 1 or prompt + output > self._longest:
            raise ValueError(
                f"{prompt} prompt and {output} output tokens:"
                f" must be >= 1 each and <= {self._longest} in all"
            )
        if cached < 0:
            raise ValueError(f"{cached} cached tokens: must be >= 0")
        slot_of = self._slot_of
        if number in slot_of:
            raise ValueError(f"sequence {number} is in flight already: must be new")
        if len(slot_of) == self._room:
            self._memory.grow()
            self._room = len(self._memory.slots) - 1
        slot, self.due = self._add(self._address, number, prompt, output, priority, cached, now)
        if slot:
            slot_of[number] = slot
        return bool(slot)

    def abort(self, number: int, now: float) -> bool:
        """Forget a sequence and free its KV at once; False when it is not in flight.

        The step in flight keeps its length: its work was given to the GPU already.
        """
        if now > self.due:
            raise ValueError(f"input at {now} while a step was due at {self.due}: step first")
        slot = self._slot_of.pop(number, 0)
        if slot:
            self.due = self._code.abort(self._address, slot, now)
        return bool(slot)

    def observe(self, now: float) -> None:
        """Bring what is told of it up to `now`; changes nothing that happens."""
        if now > self.due:
            raise ValueError(f"input at {now} while a step was due at {self.due}: step first")
        self._code.observe(self._address, now)

    def step(self) -> Sequence[Told]:
        """End the stretch that is due and begin the next one, both at the time it was due.

        To be called at `due`. The events are in the order in which they happened; there may be
        none.
        """
        n, self.due, kind, number = self._step(self._address)
        if not n:
            return ()
        if n == 1:
            if kind == _FINISHED:
                del self._slot_of[number]
            return ((kind, number),)
        flat = self._told[: n * _WORDS].tolist()
        events = list(zip(flat[::_WORDS], flat[2::_WORDS], strict=True))
        for kind, number in events:
            if kind == _FINISHED:
                del self._slot_of[number]
        return events
