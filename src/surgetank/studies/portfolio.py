"""Which settings of scaling would have been best lately: candidates tried on a fleet's own records.

Candidates are the settings as they are, the least fixed number that keeps the objective (a static
floor), and variants that grow: by hindsight, with a lower planned load, by signals alone, with
standbys, with a shorter delay. Each runs in the simulator on the busiest and on sampled parts of
the last records, behind the fleet's own gateway settings; the cheapest that keeps the objective is
chosen, and where none does the one that comes nearest.

Rule: a static floor is always among them, so the choice is never dearer than it was there. Bounded
in requests and in CPU time: what was not tried is said.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from surgetank.adapters.zones import local_seconds
from surgetank.engine.coldstart import ColdStart
from surgetank.engine.profile import EngineProfile
from surgetank.errors import InputError
from surgetank.policy.calendar import Calendar, CalendarEvent, Expecting
from surgetank.policy.flow import FlowSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.record import RequestRecord
from surgetank.policy.scaling import ScalePolicy
from surgetank.policy.tenant import Tenant, Tier
from surgetank.simulation.arena.score import score
from surgetank.simulation.policies import Fixed, Policy, policy
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import Objective, PoolPlan, Scenario
from surgetank.simulation.workload import Workload
from surgetank.studies.planning.traffic import completed, one_pool
from surgetank.studies.planning.windows import Window, windows
from surgetank.traffic.tokencounts import Observed, TokenCounts, parse_lengths
from surgetank.traffic.trace import UNKNOWN, Batch, Labels, Trace

_LAG: Final = 1.0  # s, of what scaling reads
_PATIENCE: Final = 120.0  # s after the last arrival
_CANDIDATES: Final = 12  # about so many are tried: each gets its part of the requests
_FEWEST: Final = 100  # requests: fewer say nothing of bursts
_SURE: Final = 0.02  # of the cost: a change of settings must save so much
AS_IT_IS: Final = "as it is"
AS_CONFIGURED: Final = "as configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A pool as it runs, and what is wanted of it.

    `in_use`: what an earlier choice set; None: `scale`. `cpu_seconds`: of one core, for all trials.
    """

    profile: EngineProfile
    start: ColdStart
    scale: ScaleSpec  # as configured, with the pool's own sizes
    in_use: ScaleSpec | None = None
    flow: FlowSpec = field(default_factory=FlowSpec)
    tiers: tuple[Tier, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    calendar: tuple[CalendarEvent, ...] = ()
    requests: int = 100_000
    cpu_seconds: float = 60.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings, and how they did. `cost`: replicas in the mean, standbys at their part."""

    name: str
    scale: ScaleSpec
    attainment: float
    cost: float
    launches: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The verdict. `why`: one line; `untried`: names that the CPU time did not allow."""

    chosen: Candidate
    tried: tuple[Candidate, ...]
    untried: tuple[str, ...]
    requests: int
    cpu_s: float
    why: str

    def to_json(self) -> dict[str, Any]:
        """The stable form."""
        return {
            "chosen": _row(self.chosen),
            "why": self.why,
            "tried": [_row(candidate) for candidate in self.tried],
            "untried": list(self.untried),
            "requests": self.requests,
            "cpu_s": self.cpu_s,
        }


def _row(candidate: Candidate) -> dict[str, Any]:
    return asdict(candidate)


def choose(load: Workload, question: Question) -> Choice:
    """Try the candidates. Raises InputError for too few requests to say anything."""
    if len(load) < _FEWEST:
        raise InputError(
            f"{len(load)} requests of this pool are too few for a back-test: must be >= {_FEWEST}"
        )
    court = _Court(load, question)
    court.floor()
    untried = []
    for name, scale in _variants(question.scale, question.in_use):
        if not court.tries(name, scale):
            untried.append(name)
    return _verdict(court, question, untried)


def load_of(records: Iterable[RequestRecord], model: str, profile: EngineProfile) -> Workload:
    """Turn records into a workload: what clients asked first, whatever became of it.

    Raises InputError when none is of this model.
    """
    rows = sorted(
        (r for r in records if r.model == model and not r.client_retry), key=lambda r: r.arrived
    )
    if not rows:
        raise InputError(f"the records hold no request of the model {model}")

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        values = (getattr(r, name) for r in rows)
        return np.array([UNKNOWN if v is None else v for v in values], np.int64)

    output = np.where([r.outcome == "completed" for r in rows], column("output_tokens"), UNKNOWN)
    batch = Batch(
        np.array([r.arrived for r in rows]),
        prompt_tokens=column("prompt_tokens"),
        output_tokens=output,
        cached_tokens=column("cached_tokens"),
        max_tokens=column("max_tokens"),
        tenant=Labels.of(r.tenant for r in rows),
    )
    prompts, outputs = (
        _lengths(column, text)
        for column, text in (
            (batch.prompt_tokens, "lognormal:500,0.8,8000"),
            (batch.output_tokens, "lognormal:200,0.7,4000"),
        )
    )
    filled, _ = completed(Trace.of([batch]), prompts, outputs, seed=0)
    load, _ = one_pool(filled, model)
    room = min(profile.max_model_len, profile.kv_tokens)
    return load.only(load.prompt + load.output <= room)


def _lengths(column: np.ndarray[Any, Any] | None, otherwise: str) -> TokenCounts:
    """Draw unknown counts from the known ones."""
    known = np.empty(0, np.int64) if column is None else column[column > 0]
    return Observed(known) if len(known) else parse_lengths(otherwise, "the records")


class _SpentError(Exception):
    """The CPU time is over, in the midst of a simulation."""


class _Court:
    """The parts of the load, and the candidates tried on them so far."""

    def __init__(self, load: Workload, question: Question) -> None:
        self.question = question
        self.tried: dict[str, Candidate] = {}
        self._windows = windows(load, max(_FEWEST, question.requests // _CANDIDATES))
        self.requests = sum(len(window.load) for window in self._windows)
        self._began = time.process_time()  # the bound is of this process's CPU

    @property
    def cpu(self) -> float:
        return time.process_time() - self._began

    def floor(self) -> None:
        """The least fixed number that keeps the objective, by halving."""
        scale, asked = self.question.scale, self.question.scale.attainment
        low, high = max(1, scale.min_replicas), scale.max_replicas
        while low < high:
            middle = (low + high) // 2
            kept = self.fixed(middle)
            if kept is None:
                return
            low, high = (low, middle) if kept.attainment >= asked else (middle + 1, high)
        self.fixed(low)

    def fixed(self, replicas: int) -> Candidate | None:
        name = f"static floor of {replicas}"
        scale = replace(
            self.question.scale,
            min_replicas=replicas,
            max_replicas=replicas,
            standbys=0,
            max_standbys=0,
        )
        self.tries(name, scale)
        return self.tried.get(name)

    def tries(self, name: str, scale: ScaleSpec) -> bool:
        """Run one candidate; False: there was no time for it."""
        if name in self.tried:
            return True
        if self.cpu >= self.question.cpu_seconds:
            return False
        try:
            self.tried[name] = self._run(name, scale)
        except _SpentError:
            return False
        return True

    def _run(self, name: str, scale: ScaleSpec) -> Candidate:
        requests = kept = seconds = paid = 0.0
        launches = 0
        for window in self._windows:
            made, chosen = self._scenario(scale, window)
            found = simulate(made, chosen=chosen, progress=self._told)
            seen = score(found, window.since, window.until)
            requests += window.weight * seen.requests
            kept += window.weight * seen.requests * seen.attainment
            seconds += window.weight * (window.until - window.since)
            paid += window.weight * seen.cost(self.question.scale.standby_cost)
            launches += seen.launches
        attained = kept / requests if requests else 1.0
        return Candidate(name, scale, attained, paid * 3600 / seconds, launches)

    def _told(self, _came: int, _rows: int, _now: float) -> None:
        if self.cpu >= self.question.cpu_seconds:
            raise _SpentError

    def _scenario(self, scale: ScaleSpec, window: Window) -> tuple[Scenario, Policy]:
        asked = self.question
        pool = PoolPlan(
            model=window.load.models[0],
            profile=asked.profile,
            replicas=scale.min_replicas,
            standbys=min(scale.standbys, scale.max_replicas - scale.min_replicas),
            max_replicas=scale.max_replicas,
            scale=scale,
            start=asked.start,
        )
        made = Scenario(
            workload=window.load,
            pools=(pool,),
            flow=asked.flow,
            tiers=asked.tiers,
            tenants=asked.tenants,
            objective=Objective(ttft=scale.ttft_objective, tpot=scale.tpot_objective),
            seed=asked.seed,
            metric_lag=_LAG,
            patience_after=_PATIENCE,
        )
        calendar = Calendar(asked.calendar, local=local_seconds)
        origin = window.load.origin

        def scaler(_pool: PoolPlan, _spec: ScaleSpec) -> ScalePolicy | Fixed:
            if scale.min_replicas == scale.max_replicas:
                return Fixed(scale.min_replicas)
            expecting = Expecting(calendar, wall_offset=origin) if calendar else None
            return ScalePolicy(scale, explains=False, expecting=expecting)

        return made, replace(policy("surgetank"), name="portfolio", scaler=scaler)


def _variants(scale: ScaleSpec, in_use: ScaleSpec | None) -> Sequence[tuple[str, ScaleSpec]]:
    """What is in use first, then what is configured, with one thing changed at a time."""
    most = min(max(2, scale.max_standbys), max(0, scale.max_replicas - scale.min_replicas))
    changed: dict[str, dict[str, float | bool]] = {
        AS_CONFIGURED: {},
        "hindsight": {"hindsight": True},
        "planned load 60 %": {"utilisation": 0.6},
        "signals alone": {"hindsight": False, "standbys": 0, "max_standbys": 0},
        f"signals and {most} standbys": {
            "hindsight": False,
            "standbys": most,
            "max_standbys": most,
        },
        f"signals and {most} standbys, delay 60 s": {
            "hindsight": False,
            "standbys": most,
            "max_standbys": most,
            "scale_down_delay": 60.0,
        },
    }
    found = [(AS_IT_IS, scale if in_use is None else in_use)]
    for name, settings in changed.items():
        made = replace(scale, **settings)  # type: ignore[arg-type]  # by name
        if all(made != other for _, other in found):
            found.append((name, made))
    return found


def _verdict(court: _Court, question: Question, untried: list[str]) -> Choice:
    tried = sorted(court.tried.values(), key=lambda c: (c.cost, c.name))
    if not tried:
        raise InputError(
            f"{question.cpu_seconds:g} s of CPU time are too few for one candidate: allow more"
        )
    kept = [c for c in tried if c.attainment >= question.scale.attainment]
    best = kept[0] if kept else max(tried, key=lambda c: (c.attainment, -c.cost))
    now = court.tried.get(AS_IT_IS)
    stays = now is not None and now in kept and now.cost <= best.cost * (1 + _SURE)
    if stays and now is not None:
        best = now
    others = [c for c in (kept or tried) if c is not best]
    why = (
        f"{best.name}: {best.attainment:.1%} at {best.cost:.2f} replicas in the mean"
        f"{'' if kept else f', short of {question.scale.attainment:.1%}, the most of all'}"
    )
    if others:
        other = others[0]
        why += f"; next, {other.name}: {other.attainment:.1%} at {other.cost:.2f}"
    if now is not None and now is not best and (not others or others[0] is not now):
        why += f"; {now.name}: {now.attainment:.1%} at {now.cost:.2f}"
    return Choice(best, tuple(tried), tuple(untried), court.requests, court.cpu, why)
