"""Simulated fleets: what a size attains and costs on the windows of a log.

Rule: the gateway, its limits and the scaler are the live ones; the same size gives the same trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from surgetank.adapters.zones import local_seconds
from surgetank.policy.calendar import Calendar, Expecting
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.scaling import ScalePolicy
from surgetank.simulation.arena.score import Score, score
from surgetank.simulation.policies import Fixed, Policy, Scaler, policy
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import Objective, PoolPlan, Scenario
from surgetank.studies.planning.thresholds import Thresholds
from surgetank.studies.planning.windows import Window
from surgetank.studies.planning.wish import Size, Trial, Wish

_LAG: Final = 1.0  # s, of what scaling reads of a gateway
_PATIENCE: Final = 120.0  # s after the last arrival: what has no answer then is a miss

Told = Callable[[int, Size, float], None]
"""Hears the number of a trial, its size, and the part of it that is done."""


@dataclass(frozen=True, slots=True)
class _Seen:
    window: Window
    score: Score


class Trials:
    """Runs sizes, each once. `progress` hears of each.

    `fit`: part of the requests that the windows are of; the others are misses of any size.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        wish: Wish,
        limits: Thresholds,
        *,
        fit: float = 1.0,
        progress: Told | None = None,
    ) -> None:
        self.wish = wish
        self.limits = limits
        self._windows = windows
        self._fit = fit
        self._progress = progress
        self.done: dict[Size, Trial] = {}

    @property
    def spent(self) -> bool:
        """No more trials are allowed."""
        return len(self.done) >= self.wish.trials

    def run(self, size: Size) -> Trial:
        """Simulate a size on every window."""
        found = self.done.get(size)
        if found is None:
            found = self.done[size] = self._joined(
                size, [_Seen(w, self._score(size, w, i)) for i, w in enumerate(self._windows)]
            )
        return found

    def keeps(self, size: Size) -> bool:
        """Whether a size attains what was asked."""
        return self.run(size).kept >= self.wish.attainment

    def scale_spec(self, size: Size, made: Scenario) -> ScaleSpec:
        """Settings of the scaler for a size: what one replica does comes from the profile."""
        return replace(
            made.scale_spec(made.pools[0]),
            utilisation=self.limits.utilisation,
            min_replicas=size.base,
            max_replicas=size.total,
            standbys=size.standby,
            max_standbys=size.standby,
            hindsight=not size.standby,  # it would choose their number itself
            attainment=self.wish.attainment,
            standby_cost=self.wish.standby_cost,
            wake_time=self.wish.start.wake_s,
        )

    def scenario(self, size: Size, window: Window) -> Scenario:
        """One window before a fleet of this size."""
        wish = self.wish
        pool = PoolPlan(
            model=window.load.models[0],
            profile=wish.profile,
            replicas=size.base,
            standbys=size.standby,
            max_replicas=size.total,
            start=wish.start,
        )
        return Scenario(
            workload=window.load,
            pools=(pool,),
            flow=self.limits.flow(wish.ttft),
            tenants=self.limits.limited(),
            objective=Objective(ttft=wish.ttft, tpot=wish.tpot),
            seed=wish.seed,
            metric_lag=_LAG,
            patience_after=_PATIENCE,
        )

    def _score(self, size: Size, window: Window, number: int) -> Score:
        made = self.scenario(size, window)

        def told(came: int, rows: int, _now: float) -> None:
            if self._progress is not None:
                part = (number + came / max(1, rows)) / len(self._windows)
                self._progress(len(self.done), size, part)

        chosen = self._policy(size, made, window.load.origin)
        return score(simulate(made, chosen=chosen, progress=told), window.since, window.until)

    def _policy(self, size: Size, made: Scenario, origin: float) -> Policy:
        live = policy("surgetank")
        if size.fixed:
            return replace(live, name="plan", scaler=lambda _pool, _spec: Fixed(size.base))
        spec = self.scale_spec(size, made)
        calendar = Calendar(self.wish.calendar, local=local_seconds)

        def scaler(_pool: PoolPlan, _spec: ScaleSpec) -> Scaler:
            expecting = Expecting(calendar, wall_offset=origin) if calendar else None
            return ScalePolicy(spec, explains=False, expecting=expecting)

        return replace(live, name="plan", scaler=scaler)

    def _joined(self, size: Size, seen: Sequence[_Seen]) -> Trial:
        """Weigh the windows by what they stand for."""
        requests = sum(s.window.weight * s.score.requests for s in seen)
        kept = sum(s.window.weight * s.score.requests * s.score.attainment for s in seen)
        seconds = sum(s.window.weight * (s.window.until - s.window.since) for s in seen)
        standby = self.wish.standby_cost
        paid = sum(s.window.weight * s.score.cost(standby) for s in seen)
        hours = sum(s.window.weight * s.score.replica_hours for s in seen)
        peaks = [s.score for s in seen if s.window.kind != "sampled"]
        busy = sum(s.requests for s in peaks)
        at_peak = sum(s.requests * s.attainment for s in peaks)
        largest = max(seen, key=lambda s: s.score.requests).score
        return Trial(
            size=size,
            requests=round(requests),
            attainment=self._fit * (kept / requests if requests else 1.0),
            cost=paid * 3600 / seconds,
            hours=hours,
            launches=sum(s.score.launches for s in seen),
            p95=largest.p95,
            p99=largest.p99,
            busiest=self._fit * (at_peak / busy if busy else 1.0),
        )
