"""How true a Retry-After is: who comes back when told gets in, and would hardly have sooner.

A simulation with clients that obey Retry-After, around the live FlowControl. Two figures: the share
of retries at the time told that were not refused again; and, of a sample of refusals, the time told
beside the earliest that would have done, found by offering the request to a copy of FlowControl
every tenth of a second.

Rule: it only watches; what the watched gateway decides is what it decides alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from surgetank.policy.effect import Effect, Refuse
from surgetank.policy.flow import FlowControl
from surgetank.policy.request import ENDINGS, Request
from surgetank.simulation.plain import Gateway
from surgetank.simulation.policies import Setup, policy
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import Scenario

_PROBE: Final = 0.1  # s
_LONGEST: Final = 115.0  # s that a probe looks ahead


@dataclass(frozen=True, slots=True)
class Truth:
    """What came of the times told. Seconds; `ratio`: told / earliest, of the sample's median."""

    refused: int  # by admission, with a time to come back
    came_back: int  # retries of those, at the time told
    let_in: int  # of which were not refused again
    told: float | None  # median
    sampled: int
    earliest: float | None  # median of the sample
    ratio: float | None  # median of told / earliest, each at least a tenth of a second

    @property
    def share(self) -> float:
        """Part of the retries that got in."""
        return self.let_in / self.came_back if self.came_back else 1.0


@dataclass(slots=True)
class _Probe:
    request: Request
    refused_at: float
    told: float
    earliest: float | None = None


class _Watched:
    """FlowControl, with its refusals noted and probed. A Gateway."""

    def __init__(self, flow: FlowControl, *, every: int) -> None:
        self._flow = flow
        self._every = every  # one refusal of so many is probed
        self._promised: dict[str, float] = {}  # base id of a request -> when it was told to come
        self._probes: list[_Probe] = []
        self._next = 0.0
        self.done: list[_Probe] = []
        self.told: list[float] = []
        self.came_back = self.let_in = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flow, name)

    def offer(self, request: Request, now: float) -> Sequence[Effect]:
        self._look(now)
        effects = self._flow.offer(request, now)
        refused = next((e for e in effects if isinstance(e, Refuse) and e.request is request), None)
        if request.client_retry:
            self.came_back += 1
            self.let_in += refused is None or ENDINGS[refused.outcome].status != 429
        self._note(effects, now)
        return effects

    def advance(self, now: float) -> Sequence[Effect]:
        self._look(now)
        effects = self._flow.advance(now)
        self._note(effects, now)
        return effects

    def finish(self, *args: Any) -> Sequence[Effect]:
        self._look(args[-1])
        effects = self._flow.finish(*args)
        self._note(effects, args[-1])
        return effects

    def _note(self, effects: Sequence[Effect], now: float) -> None:
        for effect in effects:
            if not isinstance(effect, Refuse) or effect.retry_after is None:
                continue
            if ENDINGS[effect.outcome].status != 429:
                continue
            self.told.append(effect.retry_after)
            if len(self.told) % self._every == 0:
                self._probes.append(_Probe(effect.request, now, effect.retry_after))

    def _look(self, now: float) -> None:
        """Offer every probe to a copy of its own, at each tenth of a second that has passed."""
        while self._probes and self._next <= now:
            at, self._next = self._next, self._next + _PROBE
            for probe in list(self._probes):
                if at <= probe.refused_at:
                    continue
                twin = copy.deepcopy(self._flow)
                again = probe.request._replace(
                    id=f"{probe.request.id}?", client_retry=probe.request.client_retry + 1
                )
                effects = twin.offer(again, at)
                if not any(isinstance(e, Refuse) and e.request is again for e in effects):
                    probe.earliest = at - probe.refused_at
                if probe.earliest is not None or at - probe.refused_at > _LONGEST:
                    self._probes.remove(probe)
                    self.done.append(probe)
        if not self._probes:
            self._next = now


def measure(scenario: Scenario, *, every: int = 50) -> Truth:
    """Run a scenario whose clients obey Retry-After; probe one of `every` refusals."""
    watched: list[_Watched] = []

    def gateway(setup: Setup) -> tuple[Gateway, FlowControl]:
        flow, _ = policy("surgetank").gateway(replace(setup, journal=None))
        assert isinstance(flow, FlowControl)  # noqa: S101 - without a journal it is
        watched.append(_Watched(flow, every=every))
        return watched[0], flow

    simulate(scenario, chosen=replace(policy("static"), gateway=gateway))
    seen = watched[0]
    known = [p for p in seen.done if p.earliest is not None]
    ratios = [max(_PROBE, p.told) / max(_PROBE, p.earliest or 0.0) for p in known]
    return Truth(
        refused=len(seen.told),
        came_back=seen.came_back,
        let_in=seen.let_in,
        told=median(seen.told) if seen.told else None,
        sampled=len(known),
        earliest=median([p.earliest or 0.0 for p in known]) if known else None,
        ratio=median(ratios) if ratios else None,
    )
