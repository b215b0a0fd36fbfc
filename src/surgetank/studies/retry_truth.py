"""How true a Retry-After is: who comes back when told gets in, and would hardly have sooner.

A simulation with clients that obey Retry-After, around the live FlowControl. Two figures:

    share  of the retries at the time told, those that were not refused again, then or later
    ratio  the time told / the earliest that would have done, median over a sample of refusals

The earliest is found as a client would: by coming again, at each tenth of a second after the
refusal, to a copy of FlowControl as it is then. The copy has seen all that really happened up to
that moment, others' retries and new arrivals included, and is thrown away. Who comes too early has
no right yet to what it was promised, and what it was promised is kept from it as from others, as in
life. When told, it comes once more: in truth, or in the copy where the client has given up.

Rule: it only watches; what the watched gateway decides is what it decides alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Any, Final

from surgetank.policy.effect import Effect, Refuse
from surgetank.policy.flow import FlowControl, RetryCause
from surgetank.policy.promise import Key, key_of
from surgetank.policy.replica import Replica, Signals
from surgetank.policy.request import ENDINGS, Outcome, Request, Usage
from surgetank.simulation.plain import Gateway
from surgetank.simulation.policies import Setup, policy
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import Scenario

_STEP: Final = 0.1  # s between two tries
_LONGEST: Final = 115.0  # s that somebody is followed who was told something untrue
_TURNED_AWAY: Final = 429


@dataclass(frozen=True, slots=True)
class Told:
    """One refusal of the sample. Seconds."""

    outcome: Outcome
    told: float
    earliest: float | None  # None: not even when told, nor for long after

    @property
    def ratio(self) -> float | None:
        """Told / earliest, each at least a tenth of a second."""
        if self.earliest is None:
            return None
        return max(_STEP, self.told) / max(_STEP, self.earliest)


@dataclass(frozen=True, slots=True)
class Truth:
    """What came of the times told. Seconds."""

    refused: int  # by admission, with a time to come back
    came_back: int  # retries of those, at the time told
    let_in: int  # of which were not refused again
    completed: int  # requests that were answered in full
    told: float | None  # median
    sample: tuple[Told, ...]

    @property
    def share(self) -> float:
        """Part of the retries that got in."""
        return self.let_in / self.came_back if self.came_back else 1.0

    @property
    def ratio(self) -> float | None:
        """Median of told / earliest."""
        return median(ratios) if (ratios := self.ratios()) else None

    def ratios(self, outcome: Outcome | None = None) -> list[float]:
        """Told / earliest of the sample, or of those refused for one reason."""
        asked = (t for t in self.sample if outcome is None or t.outcome is outcome)
        return [t.ratio for t in asked if t.ratio is not None]


@dataclass(slots=True)
class _Probe:
    request: Request
    outcome: Outcome
    since: float
    until: float  # when it was told to come

    def seen(self, at: float | None) -> Told:
        """It got in at last, or never; who came when told was as early as told."""
        earliest = None if at is None else at - self.since
        told = self.until - self.since
        if at is not None and self.until <= at <= self.until + _STEP:
            earliest = told
        return Told(self.outcome, told, earliest)


class _Watched:
    """FlowControl, with its refusals noted and every `each`-th of them followed. A Gateway."""

    def __init__(self, flow: FlowControl, *, each: int) -> None:
        self._flow = flow
        self._each = each
        self._probes: list[_Probe] = []
        self._tick = 0
        self._inside: set[str] = set()  # retries that were let in
        self._came: dict[tuple[Key, int], bool] = {}  # and those of all, by whose it is
        self.sample: list[Told] = []
        self.told: list[float] = []
        self.came_back = self.let_in = self.completed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flow, name)  # what can be asked

    def offer(self, request: Request, now: float) -> Sequence[Effect]:
        self._look(now)
        effects = self._flow.offer(request, now)
        refused = next((e for e in effects if isinstance(e, Refuse) and e.request is request), None)
        inside = refused is None or ENDINGS[refused.outcome].status != _TURNED_AWAY
        if request.client_retry:
            self.came_back += 1
            self.let_in += inside
            self._came[key_of(request), request.client_retry] = inside
            if inside:
                self._inside.add(request.id)
        return self._note(effects, now)

    def advance(self, now: float) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.advance(now), now)

    def first_token(self, request_id: str, now: float) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.first_token(request_id, now), now)

    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]:
        self._look(now)
        self.completed += outcome is Outcome.COMPLETED
        return self._note(self._flow.finish(request_id, outcome, usage, now), now)

    def abandon(self, request_id: str, usage: Usage | None, now: float) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.abandon(request_id, usage, now), now)

    def retry(
        self, request_id: str, cause: RetryCause, retry_after: float | None, now: float
    ) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.retry(request_id, cause, retry_after, now), now)

    def join(self, replica: Replica, now: float) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.join(replica, now), now)

    def leave(self, replica_id: str, now: float) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.leave(replica_id, now), now)

    def observe(self, replica_id: str, signals: Signals, now: float) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.observe(replica_id, signals, now), now)

    def expect(self, model: str, etas: Iterable[float], now: float) -> Sequence[Effect]:
        self._look(now)
        return self._note(self._flow.expect(model, etas, now), now)

    def _note(self, effects: Sequence[Effect], now: float) -> Sequence[Effect]:
        for effect in effects:
            if not isinstance(effect, Refuse) or effect.retry_after is None:
                continue
            if ENDINGS[effect.outcome].status != _TURNED_AWAY:
                continue
            request, told = effect.request, effect.retry_after
            if request.id in self._inside:
                self._inside.discard(request.id)
                self.let_in -= 1
            self.told.append(told)
            if len(self.told) % self._each == 0:
                self._probes.append(_Probe(request, effect.outcome, now, now + told))
        return effects

    def _look(self, now: float) -> None:
        """Let all who are followed come again, at each tenth of a second that has passed."""
        if not self._probes:
            self._tick = max(self._tick, ceil(now / _STEP))
            return
        while (at := self._tick * _STEP) < now:
            self._tick += 1
            twin: FlowControl | None = None
            for probe in list(self._probes):
                if at <= probe.since:
                    continue
                done, twin = self._comes(probe, twin, at)
                if done or at > probe.until + _LONGEST:
                    self._probes.remove(probe)
                    self.sample.append(probe.seen(at if done else None))

    def _comes(
        self, probe: _Probe, twin: FlowControl | None, at: float
    ) -> tuple[bool, FlowControl | None]:
        """Whether it gets in now, and the copy it was offered to while that shows no trace of it.

        One copy does for many that are refused.
        """
        asked = probe.request
        if at >= probe.until and self._came.get((key_of(asked), asked.client_retry + 1)):
            return True, twin  # it came in truth
        twin = copy_of(self._flow) if twin is None else twin
        before = promised(twin)
        again = asked._replace(id=f"{asked.id}?", client_retry=asked.client_retry + 1)
        effects = twin.offer(again, at)
        refused = any(isinstance(e, Refuse) and e.request is again for e in effects)
        clean = refused and len(effects) == 1 and promised(twin) == before
        return not refused, twin if clean else None


def copy_of(flow: FlowControl) -> FlowControl:
    """Another in the same state, random numbers included; a third of the time of `deepcopy`."""
    twin = pickle.loads(pickle.dumps(flow, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - its own
    assert isinstance(twin, FlowControl)  # noqa: S101 - for the type checker
    return twin


def promised(flow: FlowControl) -> int:
    """How many promises there are: a refused one that was promised more has left a trace."""
    state = flow._state  # noqa: SLF001 - a study of just that
    lanes = [lane for account in state.accounts.values() for lane in account.lanes.values()]
    return len(state.places) + sum(
        len(x) for x in (*(a.places for a in state.accounts.values()), *(y.promises for y in lanes))
    )


def measure(scenario: Scenario, *, each: int = 1) -> Truth:
    """Run a scenario whose clients obey Retry-After; follow every `each`-th refusal."""
    watched: list[_Watched] = []

    def gateway(setup: Setup) -> tuple[Gateway, FlowControl]:
        flow, _ = policy("surgetank").gateway(replace(setup, journal=None))
        assert isinstance(flow, FlowControl)  # noqa: S101 - without a journal it is
        watched.append(_Watched(flow, each=each))
        return watched[0], flow

    simulate(scenario, chosen=replace(policy("static"), gateway=gateway))
    seen = watched[0]
    return Truth(
        refused=len(seen.told),
        came_back=seen.came_back,
        let_in=seen.let_in,
        completed=seen.completed,
        told=median(seen.told) if seen.told else None,
        sample=tuple(seen.sample),
    )
