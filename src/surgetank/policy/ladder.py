"""The degradation ladder: what lower tiers give up, step by step, for the core to be kept.

    0 normal
    1 no batching window; the lower tiers wait less long, have no min_share, and make room in a full
      queue for the core
    2 their answers are capped
    3 batch is refused; their long prompts go to a fallback model, or are to come back later
    4 standard is refused by session: the same sessions stay in
    5 the core tier alone

Up by one step when the pressure is at `UP` or more, at most once in `step_up_interval`. Down by
one after `step_down_interval` with less than `DOWN`, if what came in the last ten seconds would fit
with that step taken back. Pressure is the time to the first token that a core request would see
now, as a part of the objective (see `pressure`); between the two bounds nothing changes.

A step up after one down is a reversal: the overload was not over. The next step down then waits
`_HOLD` seconds, twice as long after each further one, until there was as long a time at step 0. So
an overload of a minute has at most one.

Rule: told of pressure and of what comes, it says which step it is on, and why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final, NamedTuple

from surgetank.policy.rate import PrefillRate
from surgetank.policy.tenant import Tier

UP: Final = 0.75  # of the objective: later there is no time left to act
DOWN: Final = 0.4
TOP: Final = 5
LOOK: Final = 0.25  # seconds between two looks at the pressure
NO_WINDOW, CAPPED, NO_BATCH, SESSIONS, CORE_ONLY = 1, 2, 3, 4, 5
CAP: Final = "max_tokens="  # words of what is told
FALLBACK: Final = "model="
_HOLD: Final = 60.0  # seconds without a step down after the first reversal
_HEADROOM: Final = 0.9  # of what the replicas can do, that may come after a step down
_HARDLY: Final = 1.02  # times what comes on this step
_WINDOW: Final = 10  # seconds of what came
_STEPS_KEPT: Final = 256  # that nobody has asked for


class Rung(IntEnum):
    """What a tier is to the ladder: the larger, the sooner it gives way."""

    CORE = 0
    STANDARD = 1
    BATCH = 2


_RUNGS: Final = {rung.name.lower(): rung for rung in Rung}


@dataclass(frozen=True, slots=True)
class Fallback:
    """Where long prompts of lower tiers go on step 3 and above."""

    model: str  # as clients name it
    to: str  # a smaller or less busy model of this gateway


@dataclass(frozen=True, slots=True)
class LadderSpec:
    """The degradation ladder: what lower tiers give up, step by step, so that the core is kept."""

    enabled: bool = False  # answers are cut shorter on it, which is for an operator to decide
    ttft_objective: float = 0.8  # what it defends: time to the first token of the core tiers
    step_up_interval: float = 2.0  # least time between two steps up
    step_down_interval: float = 10.0  # of calm before each step down
    queue_timeout: float = 10.0  # step 1: longest wait of lower tiers
    max_tokens: int = 256  # step 2: cap on the answers of lower tiers
    long_prompt_tokens: int = 2000  # step 3: longer prompts of lower tiers give way
    kept_sessions: float = 0.5  # step 4: part (0..1) of standard's sessions that stay in
    fallbacks: tuple[Fallback, ...] = ()  # step 3: models that take long prompts


class Step(NamedTuple):
    """One step. `at`: monotonic seconds; `was` and `level`: before it and after it."""

    at: float
    model: str
    was: int
    level: int
    reason: str


class Offered:
    """Cost that came in the last seconds, by rung: as it was asked for, and with answers capped."""

    __slots__ = ("_seconds", "_since")

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, list[float]]] = deque()
        self._since = inf

    def add(self, rung: int, cost: float, capped: float, now: float) -> None:
        """A request came."""
        second = int(now)
        if now < self._since:
            self._since = now
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, [0.0] * 2 * len(Rung)))
            self._drop(second)
        sums = self._seconds[-1][1]
        sums[rung] += cost
        sums[rung + len(Rung)] += capped

    def _drop(self, second: int) -> None:
        seconds = self._seconds
        while seconds and seconds[0][0] <= second - _WINDOW:
            seconds.popleft()

    def clear(self) -> None:
        self._seconds.clear()
        self._since = inf

    def rate(self, level: int, kept: float, now: float) -> float:
        """Cost per second that a step would let in, by what came in the last ten."""
        self._drop(int(now))
        span = min(float(_WINDOW), max(1.0, now - self._since))
        core, standard, batch, capped, capped_batch = (
            sum(sums[i] for _, sums in self._seconds) / span for i in (0, 1, 2, 4, 5)
        )
        if level >= CORE_ONLY:
            return core
        if level >= SESSIONS:
            return core + kept * capped
        if level >= NO_BATCH:
            return core + capped
        return core + (capped + capped_batch if level >= CAPPED else standard + batch)


class DegradationLadder:
    """The ladder of one model. `due`: when it is to be looked at next.

    `level`: the step it is on; `overflowed`: the last time a core request found the queue full.
    """

    __slots__ = (
        "_calm_since",
        "_changed",
        "_held_until",
        "_reversals",
        "_went_down",
        "_zero_since",
        "due",
        "level",
        "model",
        "offered",
        "overflowed",
        "prefill",
        "spec",
    )

    def __init__(self, model: str, spec: LadderSpec) -> None:
        self.model = model
        self.spec = spec
        self.level = 0
        self.due = -inf
        self.offered = Offered()
        self.overflowed = -inf
        self.prefill = PrefillRate()
        self._changed = -inf
        self._calm_since = -inf
        self._held_until = -inf
        self._zero_since = -inf
        self._went_down = False  # the last step of this overload
        self._reversals = 0

    def look(
        self,
        pressure: float,
        capacity: float | None,
        reason: str,
        now: float,
        *,
        waiting: bool = False,
    ) -> Step | None:
        """Take the step that is due, if one is.

        `pressure`: 1 is the whole objective; `capacity`: cost per second the replicas can do, None
        when that is unknown (the pressure alone decides then); `reason`: where pressure comes from;
        `waiting`: requests are in the queue.
        """
        self.due = now + LOOK
        full = now - self.overflowed < self.spec.step_down_interval
        if pressure >= UP or (full and not self.level):
            self._calm_since = now
            if self.level < TOP and now - self._changed >= self.spec.step_up_interval:
                return self._up(reason if pressure >= UP else "the queue was full", now)
            return None
        if pressure >= DOWN or full:
            self._calm_since = now
            return None
        if not self.level or now < self.earliest_down():
            return None
        fits = capacity is None or self._fits(capacity, now, waiting=waiting)
        return self._down(now) if fits else None

    def _fits(self, capacity: float, now: float, *, waiting: bool) -> bool:
        """Whether what came would be served one step further down.

        Where nothing waits all of it is served now, whatever the capacity was measured to be: then
        it fits if it would be hardly more.
        """
        kept = self.spec.kept_sessions
        more = self.offered.rate(self.level - 1, kept, now)
        most = _HEADROOM * capacity
        if not waiting:
            most = max(most, _HARDLY * self.offered.rate(self.level, kept, now))
        return more <= most

    def earliest_down(self) -> float:
        """When the next step down may be, if it stays calm."""
        calm = max(self._changed, self._calm_since) + self.spec.step_down_interval
        return max(calm, self._held_until)

    def returns(self, level: int, now: float) -> float:
        """Seconds until it may be down on a step, at the soonest."""
        down = self.level - level
        if down <= 0:
            return 0.0
        return max(0.0, self.earliest_down() - now) + (down - 1) * self.spec.step_down_interval

    def _up(self, reason: str, now: float) -> Step:
        if not self.level and now - self._zero_since >= _HOLD:
            self._reversals, self._went_down = 0, False  # another overload
        if self._went_down:
            self._held_until = now + _HOLD * 2**self._reversals
            self._reversals += 1
            self._went_down = False
        return self._step(self.level + 1, reason, now)

    def _down(self, now: float) -> Step:
        self._went_down = True
        step = self._step(self.level - 1, "calm, and what comes would fit", now)
        if not self.level:
            self._zero_since = now
            self.offered.clear()
        return step

    def _step(self, level: int, reason: str, now: float) -> Step:
        was, self.level = self.level, level
        self._changed = now
        return Step(now, self.model, was, level, reason)


class Ladders:
    """The ladders of all models of a flow; none where nobody could give way to anybody.

    `rungs`: what each tier is, by name; `core`: the priorities of the core tiers; `steps`: those
    taken, for the shell to tell of and to clear.
    """

    __slots__ = ("core", "rungs", "spec", "steps")

    def __init__(self, spec: LadderSpec, tiers: Iterable[Tier]) -> None:
        self.steps: deque[Step] = deque(maxlen=_STEPS_KEPT)
        self.configure(spec, tiers)

    def configure(self, spec: LadderSpec, tiers: Iterable[Tier]) -> None:
        """Take other settings."""
        tiers = tuple(tiers)
        self.spec = spec
        self.rungs = rungs_of(tiers)
        self.core = frozenset(t.priority for t in tiers if self.rungs[t.name] is Rung.CORE)

    @property
    def on(self) -> bool:
        """Whether there is a ladder, and somebody below the core."""
        return self.spec.enabled and any(self.rungs.values())

    def of(self, model: str, before: DegradationLadder | None = None) -> DegradationLadder | None:
        """Make the ladder of a model, or give these settings to the one before; None: no ladder."""
        if not self.on:
            return None
        ladder = before or DegradationLadder(model, self.spec)
        ladder.spec = self.spec
        return ladder


def rungs_of(tiers: Iterable[Tier]) -> dict[str, Rung]:
    """What each tier is to the ladder, by name: as it says, else by its priority.

    The least priority is the core; what comes after `standard` is batch, the rest is standard.
    """
    known = {tier.name: tier for tier in tiers}
    first = min((tier.priority for tier in known.values()), default=0)
    usual = known["standard"].priority if "standard" in known else first
    found: dict[str, Rung] = {}
    for name, tier in known.items():
        if tier.degrades is not None:
            found[name] = _RUNGS[tier.degrades]
        elif tier.priority == first:
            found[name] = Rung.CORE
        else:
            found[name] = Rung.BATCH if tier.priority > usual else Rung.STANDARD
    return found
