"""The continuous batcher that skips what repeats: what `engine.literal` does, from event to event.

Between two events a batch only decodes, and each step takes a little longer than the one before by
a known amount, so many steps are taken at once, exactly (`engine.skipping.stretch`). Times equal
the specification's but for rounding (1e-9 relative), and an input within rounding of a step's end
may fall on either side of it.

`due` is the end of a stretch of steps, and `step` has no TOKEN events (ask `tokens`). An input
before it is fine: it cuts the stretch at the end of the step under way. So the rule for feeding it
in order of time is that of `literal.Batcher`:

    while (due := replica.due) is not None and due < now: deliver(replica.step(due))
    replica.add(...)  # or abort, or observe

Who wants every token takes step by step what is known of the stretch, with TOKEN events:

    while (ends := replica.ends) is not None and ends < now: deliver(replica.tick(ends))
    replica.add(...)  # or abort

One source, two ways to run it: machine code for simulations, a hundred times as fast, for which
numba has to be loaded (0.6 s); plain Python for a process that has other costs (`plain`).

Rule: no clock. What it tells of itself is as of its latest input, step or `observe`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from surgetank.engine.literal import Event, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.skipping import entries, layout, objects

_KINDS: Final = {
    layout.FIRST_TOKEN: EventKind.FIRST_TOKEN,
    layout.FINISHED: EventKind.FINISHED,
    layout.PREEMPTED: EventKind.PREEMPTED,
    layout.TOKEN: EventKind.TOKEN,
}
_FEWEST_SLOTS: Final = 64


def prepare(on_compile: Callable[[str], None] | None = None) -> None:
    """Load the compiled model, or compile it: about 10 s, once for each version and user.

    Without it that happens in the first calls. `on_compile` gets a line for the user when it has to
    be compiled: a command prints it to stderr.
    """
    from surgetank.engine.bulk import run_trace  # noqa: PLC0415 - numba: only for machine code
    from surgetank.engine.numbered import Numbered  # noqa: PLC0415
    from surgetank.engine.skipping import compiled  # noqa: PLC0415

    with compiled.on_compile(on_compile or (lambda _: None)):
        profile = EngineProfile(
            name="", a_ms=1.0, b_us=0.0, c_ns=0.0, d_us=0.0, e_ns=0.0, kv_blocks=512
        )
        replica = Replica(profile)
        replica.add("", 1, 2, 0.0)
        replica.step(0.0)
        replica.observe(0.0)
        replica.tokens("")
        replica.abort("", 0.0)
        engine = Numbered(profile)
        engine.add(0, 1, 2, 0, 0, 0.0)
        engine.step()
        engine.clock.run(0.0)
        engine.clock.remove(engine.number)
        engine.observe(0.0)
        engine.tokens(0)
        engine.prefilled(0)
        engine.all_tokens()
        engine.abort(0, 0.0)
        run_trace(profile, [0.0], [1], [1])


class Replica:
    """One engine. Times in seconds on any clock that never runs backwards.

    Sheds (`add` returns False) when `max_queued` sequences are in flight, waiting or running.
    """

    def __init__(self, profile: EngineProfile, *, plain: bool = False) -> None:
        self.profile = profile
        if plain:
            self._state: Any = objects
            self._code: Any = entries
        else:
            from surgetank.engine.skipping import arrays, compiled  # noqa: PLC0415 - numba

            self._state = arrays
            self._code = compiled.compiled(entries)
        self._engines, self._heaps, self._phases, self._events = self._state.engines(profile)
        self._slots = self._state.slots(_FEWEST_SLOTS)
        self._given: Any = None  # room for the tokens of a step, once they are asked for
        self._ids: list[str] = [""] * len(self._slots)
        self._slot_of: dict[str, int] = {}
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """When `step` must be called next; None while idle."""
        return self._due

    @property
    def ends(self) -> float | None:
        """When `tick` must be called next, the end of the step under way; None while idle."""
        engine = self._engines[0]
        if engine["left"] > 1:
            return float(engine["began"] + engine["cost"])
        return self._due

    @property
    def running(self) -> int:
        """Sequences that hold KV."""
        return self._read("running")

    @property
    def waiting(self) -> int:
        """Sequences that hold none, the preempted ones too."""
        return self._read("waiting")

    @property
    def decoding(self) -> int:
        """Sequences past their prefill: the decode batch."""
        return self._read("decoding")

    @property
    def kv_blocks_used(self) -> int:
        """Blocks held by running sequences."""
        return self.profile.kv_blocks - self._read("free")

    @property
    def kv_tokens_used(self) -> int:
        """Tokens in the KV, those of the step under way too."""
        return self._read("context") + self._read("prefilled")

    @property
    def prefill_backlog(self) -> int:
        """Tokens to compute before everyone in flight decodes; chunks in flight count as done."""
        return self._read("backlog")

    @property
    def preemptions(self) -> int:
        """Preemptions so far."""
        return self._read("preemptions")

    @property
    def steps(self) -> int:
        """Steps begun so far."""
        return self._read("done") + (self._read("left") > 0)

    def _read(self, field: str) -> int:
        return int(self._engines[0][field])

    def tokens(self, id_: str) -> int:
        """Return the output so far of a sequence in flight. Raises KeyError for any other."""
        return int(self._code.tokens(self._engines, self._slots, self._slot_of[id_]))

    def prefilled(self, id_: str) -> int:
        """Return how much of its prompt was computed since it was admitted, cached tokens not.

        A chunk in flight counts as done. Raises KeyError for a sequence not in flight.
        """
        slot = self._slots[self._slot_of[id_]]
        prompt = slot["prompt"]
        computed = prompt if slot["state"] == layout.DECODING else slot["computed"]
        return int(max(0, min(computed, prompt) - slot["cached"]))

    def has_room(self, sequences: int = 1) -> bool:
        """Tell whether so many more would be admitted, not shed."""
        most = self.profile.max_queued
        return most is None or len(self._slot_of) + sequences <= most

    def add(
        self,
        id_: str,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        *,
        priority: int = 0,
        cached_tokens: int = 0,
    ) -> bool:
        """Queue a sequence that will produce exactly `output_tokens`; False when it is shed.

        A lower `priority` goes first (with the priority policy only). `cached_tokens` of the prompt
        are found in the prefix cache. Raises ValueError for what a server must have refused before:
        no tokens, more than `max_model_len`, an id in use.
        """
        self._in_order(now)
        limit = self.profile.max_model_len
        if prompt_tokens < 1 or output_tokens < 1 or prompt_tokens + output_tokens > limit:
            raise ValueError(
                f"{prompt_tokens} prompt and {output_tokens} output tokens:"
                f" must be >= 1 each and <= {limit} in all"
            )
        if cached_tokens < 0:
            raise ValueError(f"{cached_tokens} cached tokens: must be >= 0")
        if id_ in self._slot_of:
            raise ValueError(f"sequence {id_!r} is in flight already: must be new")
        if len(self._slot_of) + 1 == len(self._slots):
            self._state.grow(self._slots, len(self._slots))
            self._ids += [""] * (len(self._slots) - len(self._ids))
        slot, self._due = self._code.add(
            self._engines,
            self._slots,
            self._phases,
            prompt_tokens,
            output_tokens,
            priority,
            cached_tokens,
            float(now),
        )
        if not slot:
            self._due = None if self._due == inf else self._due
            return False
        self._ids[slot] = id_
        self._slot_of[id_] = slot
        return True

    def abort(self, id_: str, now: float) -> bool:
        """Forget a sequence and free its KV at once; False when it is not in flight.

        The step in flight keeps its length: its work was given to the GPU already.
        """
        self._in_order(now)
        slot = self._slot_of.pop(id_, 0)
        if not slot:
            return False
        self._due = self._code.abort(
            self._engines, self._slots, self._heaps, self._phases, slot, float(now)
        )
        return True

    def observe(self, now: float) -> None:
        """Bring what the properties tell up to `now`; changes nothing that happens."""
        self._in_order(now)
        self._code.observe(self._engines, self._phases, float(now))

    def step(self, now: float) -> list[Event]:
        """End the stretch that is due and begin the next one, both at the time it was due.

        Nothing happens before `due`. The events are in the order in which they happened; there may
        be none.
        """
        at = self._due
        if at is None or now < at:
            return []
        n, due = self._code.step(
            self._engines, self._slots, self._heaps, self._phases, self._events
        )
        self._due = None if due == inf else due
        if not n:
            return []
        events = []
        for kind, slot, _, tokens in self._state.told(self._events, n):
            if kind == layout.TOKEN:
                continue
            id_ = self._ids[slot]
            events.append(Event(_KINDS[kind], id_, at, tokens))
            if kind == layout.FINISHED:
                del self._slot_of[id_]
        return events

    def tick(self, now: float) -> list[Event]:
        """End the step that is under way and begin the next one, both at the time it `ends`.

        Nothing happens before. The events are in the order in which they happened, tokens too.
        """
        at = self.ends
        if at is None or now < at:
            return []
        if self._given is None:
            self._given = self._state.engines(self.profile)[3]
        count, n, due = self._code.tick(
            self._engines, self._slots, self._heaps, self._phases, self._events, self._given
        )
        self._due = None if due == inf else due
        ids, token = self._ids, EventKind.TOKEN
        given = self._state.told(self._given, count)
        if not n:
            return [Event(token, ids[slot], at, tokens) for _, slot, _, tokens in given]
        told = self._state.told(self._events, n)
        rest = 0  # of those who decode, the ones that finish are told first, in the same order
        events = []
        for _, slot, _, tokens in given:
            events.append(Event(token, ids[slot], at, tokens))
            if rest < n and told[rest][:2] == (layout.FINISHED, slot):
                events.append(Event(EventKind.FINISHED, ids[slot], at, tokens))
                rest += 1
        events += [
            Event(_KINDS[kind], ids[slot], at, tokens) for kind, slot, _, tokens in told[rest:]
        ]
        for kind, slot, _, _ in told:
            if kind == layout.FINISHED:
                del self._slot_of[ids[slot]]
        return events

    def _in_order(self, now: float) -> None:
        if self._due is not None and now > self._due:
            raise ValueError(f"input at {now} while a step was due at {self._due}: step first")
