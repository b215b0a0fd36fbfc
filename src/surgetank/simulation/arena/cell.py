"""One cell of the arena: a workload, a start time, a seed; one contender's choice and its score.

Rule: the knob is chosen on the first half alone: the least cost that kept the objective there; then
both halves are run with it, and the second is scored. Nobody sees the second half before, but those
that say so: the bound, the feasible schedule, and the best static number in hindsight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from surgetank.engine import coldstart
from surgetank.engine.profile import EngineProfile
from surgetank.engine.profile import find as find_profile
from surgetank.errors import InputError
from surgetank.policy.flow import FlowSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.tenant import Tier
from surgetank.simulation.arena.contenders import Capacity, Contender, find
from surgetank.simulation.arena.score import Score
from surgetank.simulation.arena.trial import FIRST, SECOND, Trial, choose, least
from surgetank.simulation.arena.workloads import Load, draw
from surgetank.simulation.bound import (
    Bound,
    Fleet,
    Work,
    least_work,
    shortest_start,
    solve,
    unavoidable,
    usual_work,
)
from surgetank.simulation.policies import Policy, Scaler, policy
from surgetank.simulation.run import Course
from surgetank.simulation.scenario import Objective, PoolPlan, Scenario, capacity
from surgetank.simulation.schedule import Scheduled

ENGINE: Final = "h100-llama-3.1-70b-fp8-tp2"
TTFT: Final = 1.0  # s
TPOT: Final = 0.1
TARGETS: Final = (0.95, 0.99)
COSTS: Final = (1.0, 0.25)  # of a standby, in serving replicas
LEAST: Final = 1  # replicas
MOST: Final = 24
STANDBYS: Final = 2  # of everybody who takes any, where nobody says otherwise
WAKE: Final = 3.0  # s
LAG: Final = 1.0  # s, of what scaling reads
SIGMA: Final = 0.2  # of the logarithm of a start

BOUND: Final = "bound"
FEASIBLE: Final = "feasible"
HINDSIGHT: Final = "static-in-hindsight"
REFERENCES: Final = (BOUND, FEASIBLE, HINDSIGHT)
_SCHEDULED: Final = 0.98  # of the requests: what a schedule is made for; the rest may be late
_PLANS: Final = ((1.3, 0), (1.05, 1), (0.85, 2), (0.85, 0), (0.65, 1))
"""Schedules to try: times the usual work, and replicas beyond what that takes."""
_STEPS: Final = 1200  # of a schedule's grid: a start and a wake are longer than one


@dataclass(frozen=True, slots=True)
class Cell:
    """Where contenders meet. `start`: mean seconds of a cold start."""

    workload: str
    start: float
    seed: int
    traces: str = ""  # folder of the public traces, "" for none
    standbys: int = STANDBYS


@dataclass(frozen=True, slots=True)
class Choice:
    """One contender in one cell, at one standby cost and target attainment."""

    workload: str
    start: float
    seed: int
    standby_cost: float
    target: float
    policy: str
    knob: float | None  # as chosen; None: it has none
    reached: bool  # some knob kept the target on the first half (what was seen, in hindsight)
    cost: float  # replica-hours of the scored half
    score: Score | None  # of the scored half; None for the bound
    standbys: int = STANDBYS  # that everybody had who takes any

    def row(self) -> dict[str, Any]:
        """Flat, for a table."""
        row = {k: v for k, v in asdict(self).items() if k != "score"}
        seen = {} if self.score is None else asdict(self.score)
        return {**row, **seen}


class Court:
    """A cell's workload and fleet, made once."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.load: Load = draw(
            cell.workload, cell.seed, traces=Path(cell.traces) if cell.traces else None
        )
        self.profile: EngineProfile = replace(
            find_profile(ENGINE), max_model_len=32_768, wake_s=WAKE
        )
        self.start = replace(coldstart.whole(cell.start, SIGMA), wake_s=WAKE)
        self.capacity = self._capacity()
        self.half = self.load.half

    def _capacity(self) -> Capacity:
        load, profile = self.load.workload, self.profile
        mean_prompt, mean_output = float(load.prompt.mean()), float(load.output.mean())
        prompt, output = capacity(
            profile, tpot=TPOT, context=mean_prompt + mean_output / 2, most=256
        )
        if load.cached is not None:
            mean_prompt -= float(np.maximum(0, load.cached).mean())
        prefill, decode = mean_prompt / prompt, mean_output / output
        stay = 2 * prefill + mean_output * TPOT / 2  # a batch at half the objective's pace
        requests = max(2.0, stay / (prefill + decode))
        held = requests * (float(load.prompt.mean()) + mean_output / 2)
        return Capacity(prompt, output, requests, min(1.0, held / profile.kv_tokens), TTFT)

    def scenario(self, *, standbys: int, replicas: int = LEAST) -> Scenario:
        """Both halves. Nothing but time refuses: waiting too long is a miss."""
        most = max(8, round(1.5 * self.capacity.requests))
        pool = PoolPlan(
            model="model",
            profile=self.profile,
            replicas=replicas,
            standbys=standbys,
            max_replicas=max(MOST, replicas),
            slots=most,
            start=self.start,
        )
        return Scenario(
            workload=self.load.workload,
            pools=(pool,),
            flow=FlowSpec(
                max_in_flight=most,
                max_queued=5000,
                max_queued_bytes=1 << 40,
                max_queued_bytes_per_tenant=1 << 40,
                ttft_objective=TTFT,
                request_timeout=120.0,
            ),
            tiers=(Tier(predicted_wait=False),),
            clients=self.load.clients,
            objective=Objective(ttft=TTFT, tpot=TPOT),
            seed=self.cell.seed,
            metric_lag=LAG,
            patience_after=120.0,
        )

    def trial(
        self,
        contender: Contender,
        knob: float,
        *,
        standby_cost: float = 1.0,
        target: float = TARGETS[0],
    ) -> Trial:
        """Set one contender out at one knob.

        One that is `priced` is told what a standby costs, what it takes to wake, and the target.
        """

        def make(pool: PoolPlan, spec: ScaleSpec) -> Scaler:
            if contender.priced:
                spec = replace(spec, standby_cost=standby_cost, wake_time=WAKE, attainment=target)
            return contender.make(knob, self.capacity, pool, spec)

        replicas = int(knob) if contender.name == "static" else LEAST
        asked = self.scenario(
            standbys=self.cell.standbys if contender.standbys else 0, replicas=replicas
        )
        return self._set_out(asked, replace(policy("surgetank"), name=contender.name, scaler=make))

    def follow(self, found: Bound, beyond: int) -> Trial:
        """Set out a schedule over both halves, with so many replicas beyond it."""
        found = replace(found, serving=found.serving + beyond, loaded=found.loaded + beyond)
        lead = self.start.p95() + 1.0
        chosen = replace(
            policy("surgetank"),
            name=FEASIBLE,
            scaler=lambda _pool, _spec: Scheduled(
                found, lead=lead, wake=WAKE + 1.0, least=LEAST, most=MOST
            ),
        )
        return self._set_out(self.scenario(standbys=0), chosen)

    def _set_out(self, asked: Scenario, chosen: Policy) -> Trial:
        return Trial(lambda: Course(asked, chosen), self.half, TTFT)


@lru_cache(maxsize=1)
def court(cell: Cell) -> Court:
    """Make a cell's court; the next contender of the same cell finds it there."""
    return Court(cell)


def compete(cell: Cell, name: str) -> list[Choice]:
    """Run a contender, or a reference, in a cell: a choice for each standby cost and target.

    Raises InputError for unknown names.
    """
    if name == BOUND:
        return _bounds(cell)
    if name == FEASIBLE:
        return _feasible(cell)
    if name in {HINDSIGHT, "static"}:
        return _static(cell, name)
    contender, here = find(name), court(cell)
    if contender.priced:
        return [_priced(cell, contender, c, t) for c in COSTS for t in TARGETS]
    trials = [(knob, here.trial(contender, knob)) for knob in contender.values]
    return [_chosen(cell, name, c, t, trials, choose(trials, c, t)) for c in COSTS for t in TARGETS]


def _priced(cell: Cell, contender: Contender, standby_cost: float, target: float) -> Choice:
    """Let one compete that is told the price and the target: its knob is chosen for each alike."""
    here = court(cell)
    trials = [
        (k, here.trial(contender, k, standby_cost=standby_cost, target=target))
        for k in contender.values
    ]
    knob = choose(trials, standby_cost, target)
    return _chosen(cell, contender.name, standby_cost, target, trials, knob)


def _chosen(  # noqa: PLR0917 - a row's columns in their order
    cell: Cell,
    name: str,
    standby_cost: float,
    target: float,
    trials: Sequence[tuple[float, Trial]],
    choice: tuple[float, bool],
) -> Choice:
    knob, reached = choice
    seen = dict(trials)[knob].score(SECOND)
    return _choice(cell, name, standby_cost, target, knob, seen, reached=reached)


def _static(cell: Cell, name: str) -> list[Choice]:
    found = []
    for target, (number, reached, seen) in _fixed(replace(cell, start=1.0, standbys=0))[
        name
    ].items():
        found += [
            _choice(cell, name, c, target, float(number), seen, reached=reached) for c in COSTS
        ]
    return found


@lru_cache(maxsize=1)
def _fixed(cell: Cell) -> dict[str, dict[float, tuple[int, bool, Score]]]:
    """Find the least fixed numbers that keep the targets on the first half, and on the second.

    Nothing is started there: they are the same whatever a start takes.
    """
    here, contender = Court(cell), find("static")

    @cache
    def trial(n: int) -> Trial:
        return here.trial(contender, float(n))

    found: dict[str, dict[float, tuple[int, bool, Score]]] = {}
    for name, half in ((HINDSIGHT, SECOND), ("static", FIRST)):
        found[name] = {}
        for target in TARGETS:
            number, reached = least(trial, LEAST, MOST, target, half)
            found[name][target] = number, reached, trial(number).score(SECOND)
    return found


def _bounds(cell: Cell) -> list[Choice]:
    here = court(cell)
    work = _of_second(least_work(here.load.workload, here.profile, TTFT, TPOT), here)
    found = []
    for standby_cost in COSTS:
        for target in TARGETS:
            fleet = Fleet(shortest_start(cell.start, SIGMA), standby_cost, LEAST, MOST)
            solved = solve(work, fleet, target, begin=here.half, end=2 * here.half)
            cost = solved.replica_hours
            found.append(_choice(cell, BOUND, standby_cost, target, None, None, cost=cost))
    return found


def _of_second(work: Work, here: Court) -> Work:
    kept = work.arrived >= here.half
    return Work(
        work.arrived[kept],
        work.prefill[kept],
        work.prefill_due[kept],
        work.decode[kept],
        work.decode_due[kept],
    )


def _feasible(cell: Cell) -> list[Choice]:
    """The cheapest schedule of several that kept the target; its knob is its place among them."""
    here = court(cell)
    c = here.capacity
    usual = usual_work(here.load.workload, c.prompt, c.output, slack=0.4 * TTFT, tpot=TPOT)
    found = []
    for standby_cost in COSTS:
        fleet = Fleet(cell.start, standby_cost, LEAST, MOST)

        @cache
        def plan(margin: float, fleet: Fleet = fleet) -> Bound | None:
            work = replace(usual, prefill=margin * usual.prefill, decode=margin * usual.decode)
            try:
                return solve(work, fleet, _SCHEDULED, end=2 * here.half, most_steps=_STEPS)
            except InputError:
                return None  # with so much to spare it is more than the fleet may grow to

        trials = [
            (float(number), here.follow(solved, beyond))
            for number, (margin, beyond) in enumerate(_PLANS)
            if (solved := plan(margin)) is not None
        ]
        if not trials:
            raise InputError(f"{cell.workload}: no schedule of {MOST} replicas serves it at all")
        for target in TARGETS:
            choice = choose(trials, standby_cost, target, SECOND)
            found.append(_chosen(cell, FEASIBLE, standby_cost, target, trials, choice))
    return found


def _choice(  # noqa: PLR0917 - a row's columns in their order
    cell: Cell,
    name: str,
    standby_cost: float,
    target: float,
    knob: float | None,
    seen: Score | None,
    *,
    reached: bool = True,
    cost: float | None = None,
) -> Choice:
    if cost is None:
        cost = 0.0 if seen is None else seen.cost(standby_cost)
    return Choice(
        workload=cell.workload,
        start=cell.start,
        seed=cell.seed,
        standby_cost=standby_cost,
        target=target,
        policy=name,
        knob=knob,
        reached=reached,
        cost=cost,
        score=seen,
        standbys=cell.standbys,
    )


def burst_share(cell: Cell) -> float:
    """Share of the cell's requests that no start can be ready for."""
    here = court(cell)
    return unavoidable(here.load.workload, start=cell.start)


def cells(
    workloads: Iterable[str],
    starts: Iterable[float],
    seeds: Iterable[int],
    traces: str = "",
    standbys: Iterable[int] = (STANDBYS,),
) -> list[Cell]:
    """Every combination; seeds change slowest, so that each workload is seen early."""
    names, times, pools = list(workloads), list(starts), list(standbys)
    return [
        Cell(w, s, seed, traces, k) for seed in seeds for w in names for k in pools for s in times
    ]
