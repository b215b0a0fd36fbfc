"""ScalePolicy: one observation in, one plan with its reasons out.

Rule: it grows at once and shrinks late. Missing or stale data never shrinks anything; every plan
carries what decided, and what was measured and overruled.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from surgetank.policy.calendar import Expecting
from surgetank.policy.evidence import Claim, Evidence, Reading, whole
from surgetank.policy.forecaster import Forecaster, LastValue
from surgetank.policy.hold import DirectionGuard, WantedLately
from surgetank.policy.plan import Observation, Reason, ScalePlan, ScaleSpec, Signal
from surgetank.policy.portfolio import Choice
from surgetank.policy.replica import Role

__all__ = [
    "Observation",
    "Reason",
    "ScalePlan",
    "ScalePolicy",
    "ScaleSpec",
    "Signal",
]

_LEARNT = 300.0  # s of records before they decide
_SUSTAINED = 60.0  # s: shorter stretches are bursts, whatever a start takes


def _wants(reason: Reason) -> int:
    return reason.wants


@dataclass(slots=True)
class _Surge:
    """A rise that slow first tokens asked for: to be confirmed by work, or taken back."""

    since: float
    last: float  # when they last asked
    before: int  # what work wanted then


class ScalePolicy:
    """How many replicas of one pool should serve. The largest claim of all signals wins.

    With `hindsight`, once there are records of some minutes, the rule that was the cheapest on them
    while it kept the target says how many are loaded and how many of those serve (`portfolio`);
    signals of a burst promote what is loaded, and nothing is started for a burst that the records
    do not justify, until it has lasted two starts. Before, or without:

    Up: at once, within the limits. Down: to the most that any tick of the last scale_down_delay
    wanted; sooner when a surge (slow or slowing first tokens) was not confirmed by any work within
    surge_confirm, and then only once per scale_down_delay: a second such surge is taken seriously,
    since the configured capacity may be too large.

    `explains` False, for whoever reads no reasons: the plans are the same, but what was measured
    and claimed nothing may be missing in `rejected`, and is not computed.
    """

    def __init__(
        self,
        spec: ScaleSpec,
        *,
        role: Role = Role.BOTH,
        forecaster: Forecaster | None = None,
        explains: bool = True,
        expecting: Expecting | None = None,
    ) -> None:
        self._spec = spec
        self._expecting = expecting
        self._evidence = Evidence(spec, role, forecaster or LastValue(), explains=explains)
        self._guard = DirectionGuard(spec.direction_tolerance)
        self._wanted: WantedLately | None = None
        self._surge: _Surge | None = None
        self._taken_back_at = -math.inf
        self._surges: deque[tuple[float, int]] = deque()  # when, replicas beyond those serving
        self._capacity: deque[tuple[float, int]] = deque()  # for the step limit
        self._target = 0
        self._warm = 0
        self._needs: deque[tuple[float, float]] = deque()  # the least from each time on
        self._now = -math.inf

    def tick(self, seen: Observation, now: float) -> ScalePlan:
        """Decide. `now`: monotonic seconds, of the same clock as the observation's times."""
        now = self._now = max(now, self._now)
        spec = self._spec
        self._evidence.absorb(seen)
        reading = self._evidence.read(seen, seen.start_time or spec.start_time, now)
        if self._expecting is not None:
            reading = self._with_calendar(self._expecting, reading, seen, now)
        notes = self._notice_capacity(seen, now)
        wanted = self._wanted
        if wanted is None:
            wanted = self._wanted = WantedLately(spec.scale_down_delay, self._target, now)
        work, symptom = reading.need(symptom=False), reading.need(symptom=True)
        symptom = self._within(symptom) if symptom else 0
        portfolio = self._evidence.portfolio
        choice = portfolio.choice() if portfolio is not None else None
        work = max(work, choice.prior if choice is not None else 0)
        wanted.add(self._within(max(work, self._target) if reading.missing else work), symptom, now)
        notes += self._judge_surge(wanted, seen, reading, symptom, now)
        if choice is not None and choice.age >= max(spec.scale_down_delay, _LEARNT):
            return self._chosen(choice, seen, reading, symptom, notes, now)
        asked = self._within(max(work, symptom))
        if choice is not None and choice.prior > reading.need(symptom=False):
            notes.append(self._few_records(choice))
        return self._plan(seen, reading, asked, self._within(wanted.most()), notes, now)

    def _with_calendar(
        self, expecting: Expecting, reading: Reading, seen: Observation, now: float
    ) -> Reading:
        """Let the operator's calendar claim beside what was measured: the larger decides."""
        measured = (c.need for c in reading.claims if c.reason.signal is Signal.DEMAND)
        ahead = (seen.start_time or self._spec.start_time) + self._spec.step_period
        asked = expecting.asks(max(measured, default=None), ahead, now)
        return (
            reading if asked is None else replace(reading, claims=(*reading.claims, Claim(*asked)))
        )

    def _within(self, replicas: int) -> int:
        return min(max(replicas, self._spec.min_replicas), self._spec.max_replicas)

    def _notice_capacity(self, seen: Observation, now: float) -> list[Reason]:
        """Remember the capacity; what somebody else added is kept as if it had been wanted."""
        capacity = seen.serving + seen.starting
        known = self._capacity[-1][1] if self._capacity else -1
        self._capacity.append((now, capacity))
        while self._capacity[0][0] <= now - self._spec.step_period and len(self._capacity) > 1:
            self._capacity.popleft()
        if capacity <= max(known, self._target):
            self._target = self._within(self._target)
            return []
        before, self._target = self._target, self._within(capacity)
        if self._wanted is None:
            text = f"{capacity} replicas were found at the first tick, and are kept for the delay"
        else:
            self._wanted.add(self._target, 0, now)
            text = f"{capacity} replicas were found where {before} were planned, and are kept"
        return [Reason(Signal.OUTSIDE, capacity, before, self._target, text)]

    def _judge_surge(
        self, wanted: WantedLately, seen: Observation, reading: Reading, symptom: int, now: float
    ) -> list[Reason]:
        """Open a surge, keep it open while symptoms ask, and take it back if it did not come."""
        spec = self._spec
        if symptom:
            if self._surge is None:
                self._surge = _Surge(now, now, wanted.work())
            self._surge.last = now
            self._surges.append((now, max(0, symptom - seen.serving)))
        while self._surges and self._surges[0][0] <= now - spec.standby_memory:
            self._surges.popleft()
        open_ = self._surge
        if symptom or open_ is None or now - open_.last < spec.surge_confirm or reading.missing:
            return []
        self._surge = None
        came = wanted.work(open_.since) > open_.before or self._waiting(seen)
        if came or now - self._taken_back_at < spec.scale_down_delay:
            return []  # the ordinary delay holds for what it brought
        self._taken_back_at = now
        wanted.take_back(open_.since)
        text = (
            f"the surge of {now - open_.since:.0f} s ago was confirmed by no work, and is over "
            f"for {spec.surge_confirm:g} s"
        )
        return [
            Reason(Signal.SURGE_PASSED, now - open_.last, spec.surge_confirm, open_.before, text)
        ]

    def _waiting(self, seen: Observation) -> bool:
        return (seen.queue_age or 0.0) >= self._spec.queue_age_gate

    def _plan(
        self,
        seen: Observation,
        reading: Reading,
        asked: int,
        held: int,
        notes: list[Reason],
        now: float,
    ) -> ScalePlan:
        spec = self._spec
        before = self._target
        proposed = asked if asked > before else min(before, held)
        demand = max((claim.need for claim in reading.claims), default=None)
        start_time = seen.start_time or spec.start_time
        reasons = list(notes)
        if proposed != before:
            step = proposed - before
            if self._guard.allows(step, demand or 0.0, start_time, now):
                self._guard.moved(step, demand or 0.0, now)
                self._target = proposed
            else:
                text = (
                    f"{proposed} would turn around within one start time ({start_time:.0f} s) "
                    f"while demand moved by less than {spec.direction_tolerance:.0%}"
                )
                reasons.append(Reason(Signal.DIRECTION, proposed, before, before, text))
        deciding = [
            c.reason for c in reading.claims if self._within(c.reason.wants) == self._target
        ]
        overruled = [c.reason for c in reading.claims if c.reason not in deciding]
        reasons += deciding
        reasons += self._holding(asked, held, reading, deciding)
        return ScalePlan(
            replicas=self._target,
            launch=self._launch(),
            standbys=self._standbys(),
            surge=any(c.reason.signal is Signal.TTFT_SLOPE for c in reading.claims),
            demand=demand,
            reasons=tuple(reasons),
            rejected=(*overruled, *reading.aside),
        )

    def _chosen(
        self,
        choice: Choice,
        seen: Observation,
        reading: Reading,
        symptom: int,
        notes: list[Reason],
        now: float,
    ) -> ScalePlan:
        """Follow the rule that the last records call the cheapest; promotions past all of it."""
        spec, before = self._spec, self._target
        start_time = seen.start_time or spec.start_time
        sustained = self._sustained(choice, seen, start_time, now)
        planned = max(
            (c.reason for c in reading.claims if c.reason.signal is Signal.CALENDAR),
            key=_wants,
            default=None,
        )
        expected = planned.wants if planned is not None else 0
        loaded = self._within(max(choice.loaded, choice.prior, sustained, expected))
        serving = (
            min(max(choice.serving, choice.prior), loaded) if spec.standby_cost < 1 else loaded
        )
        warm, present = seen.serving + seen.standby, loaded
        if self._expecting is not None and self._expecting.standbys and self._wanted is not None:
            # Kept for bursts that no record holds: signals wake them, as without records.
            present = max(loaded, warm)
            serving = max(serving, min(present, self._within(self._wanted.most())))
        if symptom or self._waiting(seen):
            serving = max(serving, min(present, max(symptom, warm)))
        serving = self._within(max(serving, expected))
        loaded = max(loaded, serving)
        if reading.missing:
            serving, loaded = max(serving, before), max(loaded, before + self._warm)
            names = ", ".join(reading.missing)
            text = f"nothing is scaled down while data is missing: {names}"
            notes.append(Reason(Signal.STALE, len(reading.missing), 0.0, serving, text))
        reasons = [*notes, *self._why(choice, loaded, sustained)]
        if planned is not None:
            reasons.append(planned)
        if self._expecting is not None:
            loaded = max(loaded, serving + self._expecting.standbys)
        loaded = self._turned(min(loaded, spec.max_replicas), choice, start_time, reasons, now)
        if spec.standby_cost >= 1 and self._expecting is None:
            serving = loaded  # a standby that costs as much had better serve
        self._target = min(serving, loaded)
        self._warm = loaded - self._target
        return ScalePlan(
            replicas=self._target,
            launch=self._launch(),
            standbys=self._warm,
            surge=any(c.reason.signal is Signal.TTFT_SLOPE for c in reading.claims),
            demand=choice.need / spec.utilisation,
            reasons=tuple(reasons),
            rejected=(
                *self._passed_over(choice),
                *(c.reason for c in reading.claims),
                *reading.aside,
            ),
        )

    def _turned(
        self, loaded: int, choice: Choice, start_time: float, reasons: list[Reason], now: float
    ) -> int:
        """Hold what would start or stop a replica too soon after the opposite; wakes are free."""
        before = self._target + self._warm
        if loaded == before:
            return loaded
        if self._guard.allows(loaded - before, choice.need, start_time, now):
            self._guard.moved(loaded - before, choice.need, now)
            return loaded
        text = (
            f"{loaded} would turn around within one start time ({start_time:.0f} s) while demand "
            f"moved by less than {self._spec.direction_tolerance:.0%}"
        )
        reasons.append(Reason(Signal.DIRECTION, loaded, before, before, text))
        return before

    def _sustained(self, choice: Choice, seen: Observation, start_time: float, now: float) -> int:
        """What has been needed for two starts on end, while requests wait: it is no burst."""
        needs = self._needs
        while needs and needs[-1][1] >= choice.need:
            needs.pop()
        needs.append((now, choice.need))
        span = max(2 * start_time, _SUSTAINED)
        while needs[0][0] < now - span:
            needs.popleft()
        if (seen.queue_age or 0.0) < self._spec.ttft_objective:
            return 0
        return whole(needs[0][1] / self._spec.utilisation)

    def _why(self, choice: Choice, loaded: int, sustained: int) -> list[Reason]:
        """The rule that decides, and what else holds the fleet up."""
        spec, best = self._spec, choice.standing
        text = (
            f"{best.rule}: on the last records the cheapest that keeps {spec.attainment:.0%}, with "
            f"{best.missed:.1%} late"
        )
        if choice.period is not None and best.rule.foretold:
            text += f"; a period of {choice.period:.0f} s"
        found = [Reason(Signal.HINDSIGHT, best.missed, 1 - spec.attainment, choice.loaded, text)]
        if loaded == choice.prior > choice.loaded:
            found.append(self._few_records(choice))
        if loaded == sustained > choice.loaded:
            text = f"{sustained} have been needed all the time since before a start would have done"
            found.append(Reason(Signal.SUSTAINED, choice.need, spec.utilisation, sustained, text))
        return found

    def _few_records(self, choice: Choice) -> Reason:
        spec = self._spec
        text = (
            f"records of {choice.age:.0f} s are too few to go below {choice.prior} replicas: "
            f"{spec.burst_factor:g} x the root of the mean need beyond it"
        )
        return Reason(Signal.FEW_RECORDS, choice.age, spec.learning_period, choice.prior, text)

    @staticmethod
    def _passed_over(choice: Choice) -> tuple[Reason, ...]:
        """The rules that were next best, and why they were not taken."""
        spent = max(choice.standing.cost, 1e-9)
        return tuple(
            Reason(
                Signal.HINDSIGHT,
                other.missed,
                choice.allowed,
                0,
                f"{other.rule}: {other.cost / spent:.2f} x the cost, {other.missed:.1%} late",
            )
            for other in choice.others
        )

    def _holding(
        self, asked: int, held: int, reading: Reading, deciding: list[Reason]
    ) -> list[Reason]:
        """Why the target is not simply the largest claim."""
        spec, target = self._spec, self._target
        found: list[Reason] = []
        if reading.missing and asked < target:
            text = f"nothing is scaled down while data is missing: {', '.join(reading.missing)}"
            found.append(Reason(Signal.STALE, len(reading.missing), 0.0, target, text))
        elif asked < target:
            text = (
                f"{asked} would do now, but {held} were wanted within {spec.scale_down_delay:g} s"
            )
            found.append(Reason(Signal.SCALE_DOWN_DELAY, asked, held, target, text))
        if any(r.wants > target for r in deciding):
            most = max(r.wants for r in deciding)
            text = f"max_replicas = {spec.max_replicas} allows {target} of {most}"
            found.append(Reason(Signal.LIMIT, most, spec.max_replicas, target, text))
        elif target == spec.min_replicas and not any(r.wants == target for r in deciding):
            text = f"min_replicas = {spec.min_replicas}"
            found.append(Reason(Signal.LIMIT, asked, spec.min_replicas, target, text))
        return found

    def _launch(self) -> int:
        """At most max_step more than there were at the least within step_period."""
        floor = min(capacity for _, capacity in self._capacity)
        present = self._capacity[-1][1]
        return min(self._target, max(present, floor + self._spec.max_step))

    def _standbys(self) -> int:
        """As many as the largest surge in memory went beyond those serving, within the limits.

        At max_replicas none: a standby that may not be promoted is only an idle replica.
        """
        spec = self._spec
        surged = max((beyond for _, beyond in self._surges), default=0)
        wanted = min(max(spec.standbys, surged), spec.max_standbys)
        if self._expecting is not None:
            wanted = max(wanted, self._expecting.standbys)
        return min(wanted, spec.max_replicas - self._target)
