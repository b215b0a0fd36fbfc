"""Which rule would have been the cheapest that kept the target, on this fleet's own last arrivals.

The candidates are fixed numbers, rules that keep what was needed for a while, and rules that let
loaded replicas stand by. Each is followed by a virtual fleet (`hindsight`); the cheapest within the
budget of misses decides. A fixed number is always among them, so where bursts are shorter than a
start the policy becomes the best fixed number of its last records.

Rule: nothing is believed that was not seen: a new fleet keeps a multiple of its mean need until it
has records to go by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from surgetank.policy.demand import DemandEnvelope
from surgetank.policy.hindsight import Believed, Fluid, Rule, Terms, VirtualFleet
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.rhythm import Rhythm

_BLOCK: Final = 15.0  # s: how often the choice is made, and what is forgotten at once
_SLACK: Final = 1.0  # of the TTFT objective: a second's requests do not really come together
_STAY: Final = 0.4  # of the TPOT objective: the pace at which most engines decode
_REST: Final = (10.0, 30.0)  # s that serving replicas outlive the need
_HEADS: Final = (1.0, 1.25, 1.5, 2.0)
_RESTING_HEADS: Final = (1.0, 1.5, 2.0)
_KEEPS: Final = (1.0, 3.0)  # starts that loaded replicas outlive the need
_KEEPS_FORETOLD: Final = (0.25, 1.0)  # what comes back is started for ahead
_STICKY: Final = 0.97  # a rule must be that much cheaper to take over
_SAFETY: Final = 0.7  # part of the misses allowed that a rule may have had: bursts differ
_LEAST_ALLOWED: Final = 0.3  # of these, whatever part is late for reasons that no replica cures
_LEAST_SPARE: Final = 0.5  # of that, while more were late than may be
_TRIALS: Final = 1.5  # times that a rule must have been put to the test
_TRIALS_FADE: Final = 0.25  # they are rare: they fade so much slower than what came
_BETTER: Final = 0.95  # of a fixed number's cost, to be worth the risk
_TOLD: Final = 2  # rules that move, which a choice tells beside the fixed numbers
_BEGINNING: Final = 2.0  # starts, after which a rule has what it asked for, and belief its ground
_SETTLED: Final = 30.0  # s, before a mean is one
_FINE: Final = 32  # fixed numbers up to here are all tried, beyond it every fiftieth part


@dataclass(frozen=True, slots=True)
class Standing:
    """One candidate's record: what it would have cost and missed in the window."""

    rule: Rule
    cost: float  # replicas, on average
    missed: float  # part of the requests


@dataclass(frozen=True, slots=True)
class Choice:
    """What the best rule of the last records wants now."""

    loaded: int
    serving: int
    standing: Standing
    others: tuple[Standing, ...]  # the next best, and those beside the best fixed number
    allowed: float  # part of the requests that may miss
    period: float | None
    prior: int  # replicas that are kept while there are few records
    need: float  # replicas, before utilisation
    age: float  # s of records
    believed: float  # part of the stated capacity that explains who was late


class _Candidate:
    """A rule's virtual fleet and its record, which fades."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.fleet = VirtualFleet(rule)
        self.cost = self.missed = 0.0
        self.requests = self.seconds = 0.0
        self.trials = 0.0  # times it had let go what was needed again
        self._cost = self._missed = 0.0
        self._tried = 0

    def step(self, came: Fluid, terms: Terms, now: float) -> float:
        """Follow it for a step; give the requests that it made late."""
        cost, missed = self.fleet.step(came, terms, now)
        self._cost += cost
        self._missed += missed
        return missed

    def close(self, requests: float, seconds: float, fading: float) -> None:
        """End a block; what was before it counts less."""
        self.requests = fading * self.requests + requests
        self.seconds = fading * self.seconds + seconds
        fixed = self.rule.fixed  # it costs the same whether it was looked at or not
        self.cost = fading * self.cost + (self._cost if fixed is None else fixed * seconds)
        self.missed = fading * self.missed + self._missed
        self.trials = fading**_TRIALS_FADE * self.trials + self.fleet.returns - self._tried
        self._cost = self._missed = 0.0
        self._tried = self.fleet.returns

    def begin_anew(self) -> None:
        """Forget a record made while it had nothing yet, or nothing to believe in."""
        self.cost = self.missed = self.requests = self.seconds = self.trials = 0.0

    def rate(self) -> float:
        """Replica-seconds a second: records need not be of one length."""
        return self.cost / max(self.seconds, 1e-9)

    def late(self) -> float:
        """Part of the requests that would have missed."""
        return self.missed / max(self.requests, 1.0)

    def standing(self) -> Standing:
        return Standing(self.rule, self.rate(), self.late())


class Portfolio:
    """Feed it what came, second by second; ask it what the best rule wants."""

    def __init__(self, spec: ScaleSpec) -> None:
        self._spec = spec
        self._slack = _SLACK * spec.ttft_objective
        self._envelope = DemandEnvelope(self._slack)
        self._rhythm = Rhythm()
        self._fixed: dict[int, _Candidate] = {}
        self._ladder: list[_Candidate] = []  # the same, upwards
        self._movers = [_Candidate(rule) for rule in _moving(spec)]
        self._best = spec.min_replicas
        self._decoding = 0.0  # decode work under way, replica-seconds
        self._output = 0.0  # mean output tokens of a request
        self._requests = self._seconds = 0.0  # of the record
        self._block_requests = self._block_seconds = 0.0
        self._mean_need = self._age = 0.0
        self._late = self._late_of = 0.0  # requests, as it really went
        self._chosen: _Candidate | None = None
        self._others: tuple[Standing, ...] = ()
        self._rhythmic = False
        self._believed = Believed()
        self.need = 0.0  # replicas, before utilisation

    def add(
        self,
        *,
        requests: float,
        prompt_tokens: float,
        output_tokens: float,
        seconds: float,
        start: float,
        now: float,
        serving: int = 1,
        late: float | None = None,
    ) -> None:
        """Count what came within the last `seconds`; a start takes `start`.

        `serving`: replicas then; `late`: requests that were, None where nothing tells.
        """
        spec = self._spec
        if seconds <= 0:
            return
        prefill = prompt_tokens / spec.prompt_tokens_per_replica
        decode = spec.decode_share * output_tokens / spec.output_tokens_per_replica
        if requests:
            known = output_tokens / requests
            self._output += (known - self._output) * (1.0 if not self._output else 0.01)
        stay = max(seconds, self._output * _STAY * spec.tpot_objective)
        self._decoding += decode
        done = self._decoding * -math.expm1(-seconds / stay)
        self._decoding -= done
        self._envelope.add(prefill, now, since=now - seconds)
        peak = self._envelope.peak(now)
        self.need = (peak.rate if peak else 0.0) + done / seconds
        self._rhythm.add(self.need, now)
        self._age += seconds
        if self._age - seconds < _BEGINNING * start <= self._age:
            self._requests = self._seconds = 0.0
            for candidate in (*self._fixed.values(), *self._movers):
                candidate.begin_anew()
        self._mean_need += (self.need - self._mean_need) * min(1.0, seconds / self._age)
        came = Fluid(
            seconds,
            requests,
            prefill,
            done / seconds,
            self.need,
            self._rhythm.foretold(start),
            self._rhythm.foretold(spec.wake_time + 1.0),
        )
        if late is not None:
            if self._age > _BEGINNING * start:
                self._late += late
                self._late_of += requests
            self._believed.step(came, replace(self._terms(start), rho=1.0), serving, late, now)
        terms = self._terms(start)
        self._grow(terms)
        for candidate in self._trusted():
            candidate.step(came, terms, now)
        self._follow_fixed(came, terms, now)
        self._block_requests += requests
        self._block_seconds += seconds
        if self._block_seconds >= _BLOCK:
            self._close()

    def _follow_fixed(self, came: Fluid, terms: Terms, now: float) -> None:
        """Follow the fixed numbers upwards: above one where nobody waits, nobody does."""
        for candidate in self._ladder:
            waited = candidate.fleet.queue
            missed = candidate.step(came, terms, now)
            if not (waited or missed or candidate.fleet.queue):
                return

    def _terms(self, start: float) -> Terms:
        spec = self._spec
        return Terms(
            start=start,
            wake=spec.wake_time + 1.0,
            standby_cost=spec.standby_cost,
            slack=self._slack,
            rho=spec.utilisation * self._believed.part,
            memory=spec.record_memory,
            least=spec.min_replicas,
            most=spec.max_replicas,
            best=self._best,
        )

    def _grow(self, terms: Terms) -> None:
        """Follow every fixed number up to one that what came could not have filled."""
        most = max(terms.least, min(terms.most, math.ceil(1.3 * self.need / terms.rho) + 2))
        for number in _numbers(terms.least, most):
            if number not in self._fixed:
                made = _Candidate(Rule(fixed=number))
                made.cost = number * self._seconds  # it would have kept everybody so far
                made.seconds, made.requests = self._seconds, self._requests
                self._fixed[number] = made
        if len(self._ladder) < len(self._fixed):
            self._ladder = [c for _, c in sorted(self._fixed.items())]

    def _close(self) -> None:
        fading = 0.5 ** (self._block_seconds / self._spec.record_memory)
        self._late *= fading
        self._late_of *= fading
        self._requests = fading * self._requests + self._block_requests
        self._seconds = fading * self._seconds + self._block_seconds
        for candidate in (*self._fixed.values(), *self._movers):
            candidate.close(self._block_requests, self._block_seconds, fading)
        self._block_requests = self._block_seconds = 0.0
        found = self._rhythm.period is not None
        if found and not self._rhythmic:
            for candidate in self._movers:
                if candidate.rule.foretold:
                    candidate.begin_anew()
        self._rhythmic = found
        self._choose()

    def _choose(self) -> None:
        allowed = self._allowed()
        best = next((c for c in self._ladder if c.late() <= allowed), self._ladder[-1])
        self._best = best.rule.fixed or self._best
        tried = [c for c in self._trusted() if c.trials >= _TRIALS and c.late() <= allowed]
        found = min(tried, key=_Candidate.rate, default=best)
        if found.rate() > _BETTER * best.rate():
            found = best
        held = self._chosen
        if (
            held is None
            or held not in tried
            or found is best
            or found.rate() < _STICKY * held.rate()
        ):
            self._chosen = found
        self._others = self._rivals(allowed)

    def _allowed(self) -> float:
        """Give the part of the requests that may be late for want of replicas."""
        whole, other = _SAFETY * (1 - self._spec.attainment), self._believed.other
        missed = self._late / max(self._late_of, 1.0)
        overspent = missed > whole > other  # beyond it no replica brings the target back
        spare = max(_LEAST_SPARE, whole / missed) if overspent else 1.0
        return spare * max(whole - other, _LEAST_ALLOWED * whole)

    def _trusted(self) -> list[_Candidate]:
        """The rules that move, without those that believe in a rhythm while there is none."""
        return [c for c in self._movers if self._rhythmic or not c.rule.foretold]

    def choice(self) -> Choice | None:
        """What the best rule wants now; None before the first block ended."""
        chosen = self._chosen
        if chosen is None:
            return None
        spec = self._spec
        unknown = min(1.0, max(0.0, 2 * (1 - self._age / spec.learning_period)))
        mean = self._mean_need
        burst = unknown * (mean + spec.burst_factor * math.sqrt(mean))
        prior = math.ceil(burst / spec.utilisation - 0.02)
        return Choice(
            loaded=chosen.fleet.loaded,
            serving=chosen.fleet.serving,
            standing=chosen.standing(),
            others=self._others,
            allowed=self._allowed(),
            period=self._rhythm.period,
            prior=min(prior, spec.max_replicas) if self._age >= _SETTLED else 0,
            need=self.need,
            age=self._age,
            believed=self._believed.part,
        )

    def _rivals(self, allowed: float) -> tuple[Standing, ...]:
        """The best fixed number and its neighbours, and the best of those that move."""
        near = (self._fixed.get(self._best + more) for more in (-1, 0, 1))
        kept = (c for c in self._trusted() if c.trials >= _TRIALS and c.late() <= allowed)
        told = [c for c in near if c is not None] + sorted(kept, key=_Candidate.rate)[:_TOLD]
        return tuple(c.standing() for c in told if c is not self._chosen)


def _moving(spec: ScaleSpec) -> list[Rule]:
    found: list[Rule] = []
    for foretold in (False, True):
        for keep in _KEEPS_FORETOLD if foretold else _KEEPS:
            found += [Rule(keep=keep, head=head, foretold=foretold) for head in _HEADS]
            found.append(Rule(keep=keep, head=_HEADS[2], capped=True, foretold=foretold))
        if spec.standby_cost < 1:
            loads = [Rule(beyond=0), Rule(beyond=1), Rule(keep=_KEEPS[1], load=_HEADS[2])]
            found += [
                replace(loaded, rest=rest, head=head, foretold=foretold)
                for loaded in loads
                for rest in _REST
                for head in _RESTING_HEADS
            ]
    return found


def _numbers(least: int, most: int) -> list[int]:
    """Fixed numbers to follow: all small ones, and steps of two per cent beyond."""
    found = list(range(least, min(most, _FINE) + 1))
    at = max(least, _FINE)
    while at < most:
        at += max(1, at // 50)
        found.append(min(at, most))
    return found
