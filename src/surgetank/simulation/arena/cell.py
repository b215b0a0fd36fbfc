"""One cell of the arena: a workload, a start time, a seed; one contender's choice and its score.

Rule: the knob is chosen on the first half alone: the least cost that kept the objective there; then
both halves are run with it, and the second is scored. Nobody sees the second half before, but those
that say so: the bound, the feasible schedule, and the best static number in hindsight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
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
from surgetank.simulation.arena.score import Score, score
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
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import Objective, PoolPlan, Scenario, capacity
from surgetank.simulation.schedule import Scheduled

ENGINE: Final = "h100-llama-3.1-70b-fp8-tp2"
TTFT: Final = 1.0  # s
TPOT: Final = 0.1
TARGETS: Final = (0.95, 0.99)
COSTS: Final = (1.0, 0.25)  # of a standby, in serving replicas
LEAST: Final = 1  # replicas
MOST: Final = 24
STANDBYS: Final = 2  # of everybody who takes any
WAKE: Final = 3.0  # s
LAG: Final = 1.0  # s, of what scaling reads
SIGMA: Final = 0.2  # of the logarithm of a start

BOUND: Final = "bound"
FEASIBLE: Final = "feasible"
HINDSIGHT: Final = "static-in-hindsight"
REFERENCES: Final = (BOUND, FEASIBLE, HINDSIGHT)
_WARM_UP: Final = 300.0  # s: a fleet that begins with one replica is not judged by its first ones
_SCHEDULED: Final = 0.98  # of the requests: what a schedule is made for; the rest may be late
_PLANS: Final = ((1.3, 0), (1.05, 1), (0.85, 2), (0.85, 0), (0.65, 1))
"""Schedules to try: times the usual work, and replicas beyond what that takes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Where contenders meet. `start`: mean seconds of a cold start."""

    workload: str
    start: float
    seed: int
    traces: str = ""  # folder of the public traces, "" for none


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
        half = self.load.half
        arrived = self.load.workload.arrived
        self.first_half = self.load.workload.first(int(np.searchsorted(arrived, half)))
        self.half = half

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

    def scenario(self, *, whole: bool, standbys: int, replicas: int = LEAST) -> Scenario:
        """The first half, or both. Nothing but time refuses: waiting too long is a miss."""
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
            workload=self.load.workload if whole else self.first_half,
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

    def run(
        self,
        contender: Contender,
        knob: float,
        *,
        whole: bool,
        standby_cost: float = 1.0,
        target: float = TARGETS[0],
    ) -> Score:
        """Run one contender at one knob; score the half that is asked for.

        One that is `priced` is told what a standby costs, what it takes to wake, and the target.
        """

        def make(pool: PoolPlan, spec: ScaleSpec) -> Scaler:
            if contender.priced:
                spec = replace(spec, standby_cost=standby_cost, wake_time=WAKE, attainment=target)
            return contender.make(knob, self.capacity, pool, spec)

        replicas = int(knob) if contender.name == "static" else LEAST
        asked = self.scenario(
            whole=whole, standbys=STANDBYS if contender.standbys else 0, replicas=replicas
        )
        chosen = replace(
            policy("surgetank"),
            name=contender.name,
            scaler=make,
        )
        return self._scored(asked, chosen, whole=whole)

    def follow(self, found: Bound, beyond: int) -> Score:
        """Run a schedule over both halves, with so many replicas beyond it."""
        found = replace(found, serving=found.serving + beyond, loaded=found.loaded + beyond)
        lead = self.start.p95() + 1.0
        chosen = replace(
            policy("surgetank"),
            name=FEASIBLE,
            scaler=lambda _pool, _spec: Scheduled(
                found, lead=lead, wake=WAKE + 1.0, least=LEAST, most=MOST
            ),
        )
        return self._scored(self.scenario(whole=True, standbys=0), chosen, whole=True)

    def _scored(self, asked: Scenario, chosen: Policy, *, whole: bool) -> Score:
        seen = simulate(asked, chosen=chosen)
        if whole:
            return score(seen, self.half, 2 * self.half)
        return score(seen, _WARM_UP, self.half)


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
    if name == HINDSIGHT:
        return _static(cell, hindsight=True)
    if name == "static":
        return _static(cell, hindsight=False)
    contender, here = find(name), court(cell)
    if contender.priced:
        return [_priced(cell, contender, c, t) for c in COSTS for t in TARGETS]
    first = [(knob, here.run(contender, knob, whole=False)) for knob in contender.values]
    chosen = {(c, t): choose(first, c, t) for c in COSTS for t in TARGETS}
    second = {
        knob: here.run(contender, knob, whole=True)
        for knob in dict.fromkeys(knob for knob, _ in chosen.values())
    }
    return [
        _choice(cell, name, c, t, knob, second[knob], reached=reached)
        for (c, t), (knob, reached) in chosen.items()
    ]


def _priced(cell: Cell, contender: Contender, standby_cost: float, target: float) -> Choice:
    """Let one compete that is told the price and the target: its knob is chosen for each alike."""
    here = court(cell)
    first = [
        (k, here.run(contender, k, whole=False, standby_cost=standby_cost, target=target))
        for k in contender.values
    ]
    knob, reached = choose(first, standby_cost, target)
    seen = here.run(contender, knob, whole=True, standby_cost=standby_cost, target=target)
    return _choice(cell, contender.name, standby_cost, target, knob, seen, reached=reached)


def choose(
    tried: Sequence[tuple[float, Score]], standby_cost: float, target: float
) -> tuple[float, bool]:
    """Choose the knob of least cost that kept the target, else of most attainment."""
    kept = [(s.cost(standby_cost), knob) for knob, s in tried if s.attainment >= target]
    if kept:
        return min(kept)[1], True
    return max(tried, key=lambda x: (x[1].attainment, -x[1].cost(standby_cost)))[0], False


def _static(cell: Cell, *, hindsight: bool) -> list[Choice]:
    """The least number that keeps the target: on the first half, or (hindsight) on the second."""
    here, contender = court(cell), find("static")
    tried: dict[tuple[int, bool], Score] = {}

    def run(n: int, *, whole: bool) -> Score:
        if (n, whole) not in tried:
            tried[n, whole] = here.run(contender, float(n), whole=whole)
        return tried[n, whole]

    found = []
    for target in TARGETS:
        low, high = LEAST, MOST  # the least that keeps it, by halving; MOST when none does
        while low < high:
            middle = (low + high) // 2
            kept = run(middle, whole=hindsight).attainment >= target
            low, high = (low, middle) if kept else (middle + 1, high)
        reached = run(low, whole=hindsight).attainment >= target
        name, seen = HINDSIGHT if hindsight else "static", run(low, whole=True)
        found += [_choice(cell, name, c, target, float(low), seen, reached=reached) for c in COSTS]
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
        tried: list[tuple[float, Score]] = []
        for number, (margin, beyond) in enumerate(_PLANS):
            work = replace(usual, prefill=margin * usual.prefill, decode=margin * usual.decode)
            try:
                solved = solve(work, fleet, _SCHEDULED, end=2 * here.half)
            except InputError:
                continue  # with so much to spare it is more than the fleet may grow to
            tried.append((float(number), here.follow(solved, beyond)))
        if not tried:
            raise InputError(f"{cell.workload}: no schedule of {MOST} replicas serves it at all")
        for target in TARGETS:
            plan, reached = choose(tried, standby_cost, target)
            seen = dict(tried)[plan]
            found.append(_choice(cell, FEASIBLE, standby_cost, target, plan, seen, reached=reached))
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
        cell.workload, cell.start, cell.seed, standby_cost, target, name, knob, reached, cost, seen
    )


def burst_share(cell: Cell) -> float:
    """Share of the cell's requests that no start can be ready for."""
    here = court(cell)
    return unavoidable(here.load.workload, start=cell.start)


def cells(
    workloads: Iterable[str], starts: Iterable[float], seeds: Iterable[int], traces: str = ""
) -> list[Cell]:
    """Every combination; seeds change slowest, so that each workload is seen early."""
    names, times = list(workloads), list(starts)
    return [Cell(w, s, seed, traces) for seed in seeds for w in names for s in times]
