"""The second act as a value: its numbers under stable names, and what they mean.

Rule: a comparison is claimed only when the plain side had at least our replica-seconds, and only
when the sender kept its times; otherwise the verdict says so and claims nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

from surgetank.loadtest.sender import Lag
from surgetank.loadtest.summary import Summary, summarize
from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.studies.fleet_demo.measure import (
    Promotion,
    attainment,
    occupied,
    replica_seconds,
    share,
)
from surgetank.studies.fleet_demo.pulse import BASE, BURST, NOISY, QUIET, Schedule
from surgetank.studies.fleet_demo.setup import OBJECTIVE, TENANTS, TIERS

Name = Literal["surgetank", "plain"]
SIDES: Final[tuple[Name, ...]] = ("surgetank", "plain")
LAG_LIMIT: Final = 0.05  # seconds of P99 beyond which the sender measured itself


@dataclass(frozen=True)
class Side:
    """One side: what its clients saw, and the replicas it had. Times are Unix seconds."""

    records: Sequence[RequestRecord]
    lag: Lag
    samples: Sequence[FleetSample]
    begins: float
    ends: float

    def of(self, tenant: str) -> list[RequestRecord]:
        return [record for record in self.records if record.tenant == tenant]

    def attainment(self, tenant: str) -> float:
        return attainment(self.of(tenant), OBJECTIVE)

    @property
    def wasted_tokens(self) -> int:
        return summarize(self.records).wasted_tokens

    @cached_property
    def replica_seconds(self) -> float:
        return replica_seconds(self.samples, self.begins, self.ends)

    def replicas(self) -> dict[str, int]:
        """Replicas that held a machine: at the start, at most, at the end."""
        before = [s for s in self.samples if s.t <= self.begins]
        within = [s for s in self.samples if self.begins <= s.t <= self.ends]
        counts = [occupied(sample) for sample in (*before[-1:], *within)]
        return {"start": counts[0], "peak": max(counts), "end": counts[-1]}


@dataclass(frozen=True)
class FleetAct:
    """Both sides of one run. `begins`, `ends`: the window replicas are counted over, Unix seconds.

    `pilot`: the replica-seconds foretold; `promoted`: standbys promoted from the burst's onset on,
    `refilled`: when there were as many standbys again; `cut`: streams that failed on a replica
    after it had been told to go.
    """

    schedule: Schedule
    seed: int
    sides: Mapping[Name, Side]
    plain_replicas: int
    pilot: float
    promoted: Sequence[Promotion]
    refilled: float | None
    cut: int

    @property
    def begins(self) -> float:
        return self.sides["surgetank"].begins

    @property
    def onset(self) -> float:
        """When the burst's first request was due, Unix seconds."""
        since = self.schedule.onset
        due = [s.at for s in self.schedule.shots if s.at >= since and s.tenant == NOISY]
        return self.begins + min(due, default=since)

    @property
    def first(self) -> Promotion | None:
        """The promoted standby that served first."""
        served = [p for p in self.promoted if p.first_token is not None]
        return min(served, key=lambda p: p.first_token or 0.0, default=None)

    @property
    def onset_to_standby(self) -> float | None:
        first = self.first
        return None if first is None or not first.first_token else first.first_token - self.onset

    @property
    def decision_to_standby(self) -> float | None:
        first = self.first
        return None if first is None or not first.first_token else first.first_token - first.decided

    @property
    def lag_p99(self) -> float:
        return max(side.lag.p99 for side in self.sides.values())

    @property
    def trusted(self) -> bool:
        """The sender kept its times."""
        return self.lag_p99 <= LAG_LIMIT

    @property
    def fair(self) -> bool:
        """The plain side had at least our replica-seconds."""
        ours, plain = (self.sides[name].replica_seconds for name in SIDES)
        return plain >= ours

    def in_phase(self, name: Name, tenant: str, phase: str) -> list[RequestRecord]:
        """Records of one tenant's requests that were due in a phase."""
        return [r for r in self.sides[name].of(tenant) if self._phase(r) == phase]

    def _phase(self, record: RequestRecord) -> str:
        return self.schedule.phase_of((record.scheduled or record.arrived) - self.begins)

    def burst_share(self, name: Name, tenant: str) -> float:
        """Part of the output tokens of the burst's requests that a tenant got."""
        side = self.sides[name]
        return share([r for r in side.records if self._phase(r) == BURST], tenant)

    def as_json(self) -> dict[str, Any]:
        """Give the numbers stable names; times in seconds."""
        refilled = self.refilled
        return {
            "seed": self.seed,
            "objective": OBJECTIVE,
            "phases": {p.name: [p.begins, p.ends] for p in self.schedule.phases},
            "onset_to_standby_s": _rounded(self.onset_to_standby),
            "decision_to_standby_s": _rounded(self.decision_to_standby),
            "standbys_promoted": len(self.promoted),
            "onset_to_refilled_s": None if refilled is None else _rounded(refilled - self.onset),
            "cut_by_scale_down": self.cut,
            "pilot_replica_seconds": _rounded(self.pilot),
            "send_lag_p99": self.lag_p99,
            "trusted": self.trusted,
            "fair": self.fair,
            **{name: self._side(name) for name in SIDES},
            "verdict": verdict(self),
        }

    def _side(self, name: Name) -> dict[str, Any]:
        side = self.sides[name]
        tenants = sorted({record.tenant for record in side.records})
        return {
            "tenants": {tenant: self._tenant(name, tenant) for tenant in tenants},
            "wasted_tokens": side.wasted_tokens,
            "replica_seconds": _rounded(side.replica_seconds),
            "replicas": side.replicas(),
        }

    def _tenant(self, name: Name, tenant: str) -> dict[str, Any]:
        phases = (phase.name for phase in self.schedule.phases)
        return _numbers(self.sides[name].of(tenant)) | {
            "burst_share": _rounded(self.burst_share(name, tenant)),
            "phases": {phase: _numbers(self.in_phase(name, tenant, phase)) for phase in phases},
        }


def least_share(tenant: str) -> float:
    """Return the part of the work that a tenant is due while others wait too."""
    tier = {t.name: t.tier for t in TENANTS}[tenant]
    return next(t.min_share for t in TIERS if t.name == tier)


def _numbers(records: Sequence[RequestRecord]) -> dict[str, Any]:
    summary: Summary = summarize(records)
    kept = attainment(records, OBJECTIVE) if records else None
    return summary.as_json() | {"attainment": _rounded(kept)}


def _rounded(value: float | None) -> float | None:
    """Six digits, and null for what is not a number: JSON has none."""
    return None if value is None or value != value else round(value, 6)  # noqa: PLR0124 - NaN only


def verdict(act: FleetAct) -> str:
    """Say in a few sentences what the numbers mean, good or bad."""
    if not act.trusted:
        return (
            f"The sender itself was late (P99 {act.lag_p99 * 1e3:.0f} ms, limit "
            f"{LAG_LIMIT * 1e3:.0f}): this machine was too busy, and the latencies of this run are "
            "not to be trusted."
        )
    ours, plain = (act.sides[name] for name in SIDES)
    costs = (
        f"{ours.replica_seconds:.0f} replica-seconds, standbys counted, against "
        f"{plain.replica_seconds:.0f} of the plain proxy's {act.plain_replicas} replicas"
    )
    if not act.fair:
        return (
            f"No comparison: Surgetank used {costs}. The pilot, which foretold {act.pilot:.0f}, "
            "was too low."
        )
    kept, lost = ours.attainment(QUIET), plain.attainment(QUIET)
    if kept <= lost:
        return (
            f"Surgetank did not help here: {kept:.1%} of the quiet tenant's first tokens came "
            f"within {OBJECTIVE:g} s, {lost:.1%} with the plain proxy; {costs}."
        )
    noisy, unshaped = (summarize(side.of(NOISY)) for side in (ours, plain))
    return (
        f"Beside a burst of its neighbour, {kept:.1%} of the quiet tenant's first tokens came "
        f"within {OBJECTIVE:g} s ({lost:.1%} with the plain proxy), for {costs}. The noisy tenant "
        f"had {noisy.completed} of {noisy.requests} requests served (plain: {unshaped.completed}), "
        f"and {act.burst_share('surgetank', NOISY):.0%} of the burst's tokens, where "
        f"{least_share(NOISY):.0%} are its least share.{_standby(act)}"
    )


def _standby(act: FleetAct) -> str:
    if act.onset_to_standby is None or act.decision_to_standby is None:
        return " No standby was promoted."
    return (
        f" A standby served its first token {act.onset_to_standby:.1f} s after the burst began, "
        f"{act.decision_to_standby:.2f} s after the decision."
    )


def base_completed(act: FleetAct, name: Name) -> tuple[int, int]:
    """Return how many requests of the base phase a side completed, and how many there were."""
    records = [r for t in (QUIET, NOISY) for r in act.in_phase(name, t, BASE)]
    summary = summarize(records)
    return summary.completed, summary.requests
