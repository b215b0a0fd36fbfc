"""An engine that runs whole batches: what is in one starts together and leaves together.

    batch  the first `size` that wait, once it is idle and `gather` seconds after the first came;
           right after the last batch where some wait already
    steps  one for all prompts, padded to the longest, then one for each token, also of those that
           have all of theirs: their seats and their KV stay taken
    end    with the last token of the longest answer; only then do the last tokens of all come out

So are a plain `generate` over padded prompts, and servers that batch at their door. Times are those
of `steptime`. Whoever is aborted leaves its seat empty until the end.

Rule: fed in order of time, as `literal.Batcher` is; a stretch is always one step.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from surgetank.engine.literal import Event, EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.steptime import StepWork, step_seconds

GATHER: Final = 0.02  # seconds: those that are sent together do not come in one moment


class _Sequence:
    """One sequence: `given` of its `total` output tokens have come out."""

    __slots__ = ("blocks", "given", "gone", "id", "prompt", "total")

    def __init__(self, id_: str, prompt: int, total: int, blocks: int) -> None:
        self.id = id_
        self.prompt = prompt
        self.total = total
        self.blocks = blocks
        self.given = 0
        self.gone = False


class StaticBatcher:
    """One engine. Times in seconds on any clock that never runs backwards."""

    def __init__(self, profile: EngineProfile, size: int, gather: float = GATHER) -> None:
        self.profile = profile
        self.size = size
        self.preemptions: int = 0  # it never does
        self.batches = 0  # begun so far
        self.steps: int = 0  # the same
        self.busy = 0.0  # seconds of steps, in all
        self._gather = gather
        self._alive: dict[str, _Sequence] = {}
        self._queue: deque[_Sequence] = deque()
        self._batch: list[_Sequence] = []
        self._done = 0  # tokens that each of the batch has been computed
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """When `step` must be called next; None while idle."""
        return self._due

    @property
    def ends(self) -> float | None:
        """The same: no step is skipped."""
        return self._due

    @property
    def running(self) -> int:
        """Sequences of the batch under way."""
        return sum(not s.gone for s in self._batch)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a batch."""
        return len(self._alive) - self.running

    @property
    def kv_blocks_used(self) -> int:
        """Blocks held by the batch, from its begin to its end."""
        return sum(s.blocks for s in self._batch)

    def tokens(self, id_: str) -> int:
        """Return the output so far of a sequence in flight. Raises KeyError for any other."""
        return self._alive[id_].given

    def prefilled(self, id_: str) -> int:
        """Return how much of its prompt was computed: all of it, or nothing."""
        sequence = self._alive[id_]
        return sequence.prompt if self._done and sequence in self._batch else 0

    def has_room(self, sequences: int = 1) -> bool:
        """Tell whether so many more would be admitted, not shed."""
        most = self.profile.max_queued
        return most is None or len(self._alive) + sequences <= most

    def add(
        self,
        id_: str,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        *,
        priority: int = 0,  # noqa: ARG002 - the batchers' form: first come, first served here
        cached_tokens: int = 0,  # noqa: ARG002 - the same: there is no prefix cache
    ) -> bool:
        """Queue a sequence; False when it is shed. Raises ValueError as `literal.Batcher` does."""
        if self._due is not None and now > self._due:
            raise ValueError(f"input at {now} while a step was due at {self._due}: step first")
        total = prompt_tokens + output_tokens
        if prompt_tokens < 1 or output_tokens < 1 or total > self.profile.max_model_len:
            raise ValueError(
                f"{prompt_tokens} prompt and {output_tokens} output tokens: must be >= 1 each and"
                f" <= {self.profile.max_model_len} in all"
            )
        if id_ in self._alive:
            raise ValueError(f"sequence {id_!r} is in flight already: must be new")
        if not self.has_room():
            return False
        blocks = -(-total // self.profile.block_size)
        sequence = self._alive[id_] = _Sequence(id_, prompt_tokens, output_tokens, blocks)
        self._queue.append(sequence)
        if self._due is None:
            self._due = now + self._gather
        return True

    def abort(self, id_: str, now: float) -> bool:
        """Forget a sequence; False when it is not in flight. Its seat stays taken until the end."""
        if self._due is not None and now > self._due:
            raise ValueError(f"input at {now} while a step was due at {self._due}: step first")
        sequence = self._alive.pop(id_, None)
        if sequence is None:
            return False
        sequence.gone = True
        if sequence in self._queue:
            self._queue.remove(sequence)
        return True

    def observe(self, now: float) -> None:
        """Bring what it tells up to `now`: it is."""

    def tick(self, now: float) -> list[Event]:
        """As `step`: no step is skipped."""
        return self.step(now)

    def step(self, now: float) -> list[Event]:
        """End the step that is due and begin the next one, both at the time it was due."""
        at = self._due
        if at is None or now < at:
            return []
        events = self._complete(at) if self._batch else []
        if not self._batch:
            self._gather_batch()
        self._due = at + self._begin() if self._batch else None
        return events

    def _complete(self, at: float) -> list[Event]:
        """Give a token to each that has more to come; at the end of the longest, the last ones."""
        self._done += 1
        alive = [s for s in self._batch if not s.gone]
        over = all(self._done >= s.total for s in alive)
        events: list[Event] = []
        for sequence in alive:
            if self._done >= sequence.total and not over:
                continue
            sequence.given += 1
            kind = EventKind.FIRST_TOKEN if sequence.given == 1 else EventKind.TOKEN
            events.append(Event(kind, sequence.id, at, sequence.given))
            if over:
                events.append(Event(EventKind.FINISHED, sequence.id, at, sequence.given))
                del self._alive[sequence.id]
        if over:
            self._batch = []
        return events

    def _gather_batch(self) -> None:
        """Take those that are next, as far as the KV holds all that they may need."""
        self._done = 0
        free = self.profile.kv_blocks
        while self._queue and len(self._batch) < self.size and self._queue[0].blocks <= free:
            sequence = self._queue.popleft()
            free -= sequence.blocks
            self._batch.append(sequence)
        self.batches += bool(self._batch)

    def _begin(self) -> float:
        """Seconds of the next step."""
        batch, work = self._batch, StepWork()
        if self._done:
            work.decodes = len(batch)
            work.decode_context = sum(s.prompt + self._done for s in batch)
        else:
            longest = max(s.prompt for s in batch)
            for _ in batch:
                work.add_prefill(longest, 0)
        seconds = step_seconds(self.profile, work)
        self.busy += seconds
        self.steps += 1
        return seconds
