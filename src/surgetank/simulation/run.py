"""simulate(): a heap of events around the same FlowControl, ScalePolicy and Pool as live.

Rule: no decision is made here. At one moment the order is: the gateway's deadline, what was set in
the timeline, arrivals, then engine steps; so that an engine's step ends after every input of its
moment, as the step-by-step batcher demands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from math import inf
from typing import Final

import numpy as np

from surgetank.policy.flow import Counts
from surgetank.policy.replica import Role
from surgetank.policy.shadow import Shadow
from surgetank.simulation.engines import engines
from surgetank.simulation.fleet import Fleet, Machine
from surgetank.simulation.policies import Policy, Setup, policy
from surgetank.simulation.result import Result
from surgetank.simulation.scaling import PoolShell, Surroundings
from surgetank.simulation.scenario import Scenario
from surgetank.simulation.serving import Serving
from surgetank.simulation.timeline import Timeline

Progress = Callable[[int, int, float], None]
"""Told now and then: requests that came, requests in all, the simulation's time."""

_TOLD_EVERY: Final = 2000  # requests


class ConservationError(AssertionError):
    """The simulator lost or made up a request, or an engine overfilled its KV: a fault of ours."""


def simulate(
    scenario: Scenario,
    *,
    chosen: Policy | None = None,
    journal: Callable[[str], object] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a scenario to its end: until every client has an answer, or has given up.

    `chosen`: a policy that has no name; None: the scenario's. `journal`: takes the lines of the
    gateway's journal (`policy.journal.replay` reads them). Raises InputError for a scenario that
    cannot be, ConservationError when requests do not add up.
    """
    return _Run(scenario, chosen or policy(scenario.policy), journal, progress).run()


class Course:
    """A simulation that is run on piece by piece, and looked at in between.

    It comes to what `simulate` does, wherever it is stopped. Raises as that does.
    """

    def __init__(self, scenario: Scenario, chosen: Policy) -> None:
        self._run = _Run(scenario, chosen, None, None)

    def until(self, when: float) -> Result:
        """Run on to `when`, s, or to its end; what came of it so far."""
        return self._run.until(when)

    def rest(self) -> Result:
        """Run on to its end."""
        return self._run.run()


class _Run:
    """One simulation under way."""

    def __init__(
        self,
        scenario: Scenario,
        chosen: Policy,
        journal: Callable[[str], object] | None,
        progress: Progress | None,
    ) -> None:
        self._scenario = scenario
        self._policy = chosen
        chosen.check((pool.model, pool.role) for pool in scenario.pools)
        self._progress = progress
        chance, starts = np.random.default_rng([scenario.seed, 1]).spawn(2)
        flow, self._questions = chosen.gateway(Setup(scenario, chance.random, journal))
        self._shadow = flow if isinstance(flow, Shadow) else None
        self._timeline = Timeline()
        static = any(pool.static_batch is not None for pool in scenario.pools)
        clock, engine = engines(scenario.engine, static=static)
        self._fleet = Fleet(clock)
        self._serving = Serving(scenario, flow, self._fleet, self._timeline, chance.random)
        self._tick_interval = chosen.tick_interval or scenario.tick_interval
        self._events = 0
        self._over = False
        self._turns = self._go()
        self._now = self._wall_s = 0.0
        around = Surroundings(
            world=self._serving,
            fleet=self._fleet,
            timeline=self._timeline,
            questions=self._questions,
            engine=engine,
            rng=starts,
            origin=scenario.workload.origin,
            lag=scenario.metric_lag + chosen.metric_lag,
        )
        self._shells: dict[str, PoolShell] = {}
        for pool in chosen.pools(scenario.pools):
            spec = scenario.scale_spec(pool)
            self._shells[pool.name] = PoolShell(
                pool, chosen.scaler(pool, spec), spec, around, scales=chosen.scales
            )
        self._serving.quiet = lambda machine, now: self._shells[machine.plan.name].quiet(
            machine, now
        )

    def run(self) -> Result:
        """Run it to its end, and collect what it gives."""
        while not self._over:
            self._turn()
        return self._result()

    def until(self, when: float) -> Result:
        """Run it on to `when`, and collect what there is by then."""
        if not self._over:
            self._timeline.at(when, self._halt, None)
            self._turn()
        return self._result()

    def _turn(self) -> None:
        """Run on to the next halt, or to the end."""
        began = time.perf_counter()  # how long it took, for the report alone
        try:
            self._now = next(self._turns)
        except StopIteration as ended:
            self._now = ended.value
            self._over = True
            self._tick(None, self._now)
        self._wall_s += time.perf_counter() - began

    def _result(self) -> Result:
        shells = self._shells.values()
        load = self._scenario.workload
        return Result(
            scenario=self._scenario,
            policy=self._policy.name,
            ledger=self._serving.ledger,
            machines=self._fleet.all,
            samples=[sample for shell in shells for sample in shell.samples],
            objectives=[self._questions.ttft_objective(name) for name in load.tenants],
            end=self._now,
            launches=sum(shell.launches for shell in shells),
            failed_starts=sum(shell.failed_starts for shell in shells),
            preemptions=sum(machine.engine.preemptions for machine in self._fleet.all),
            events=self._events,
            wall_s=self._wall_s,
            shadow=self._shadow,
        )

    def _halt(self, _what: object, _now: float) -> None:
        self._serving.halted = True

    def _go(self) -> Generator[float, None, float]:
        """Run until the last client has its last word: the time of each halt, and of the end."""
        serving, timeline = self._serving, self._timeline
        arrived = self._scenario.workload.arrived.tolist()
        rows = len(arrived)
        now = min(0.0, arrived[0]) if rows else 0.0
        for shell in self._shells.values():
            shell.begin(now)
        timeline.at(now, self._tick, None)
        timeline.at(now + self._scenario.scrape_interval, self._scrape, None)
        last = arrived[-1] if rows else now
        timeline.at(last + self._scenario.patience_after, serving.give_all_up, None)
        arrived.append(inf)
        came = None if self._progress is None else self._came
        now, events = yield from serving.serve(arrived, now, came)
        self._events = events + self._fleet.clock.steps
        return now

    def _came(self, rows: int, now: float) -> None:
        if self._progress is not None and not rows % _TOLD_EVERY:
            self._progress(rows, len(self._scenario.workload), now)

    def _tick(self, _what: object, now: float) -> None:
        self._check()
        for shell in self._shells.values():
            shell.tick(now)
        self._timeline.at(now + self._tick_interval, self._tick, None)

    def _scrape(self, _what: object, now: float) -> None:
        self._serving.scrape(now)
        self._timeline.at(now + self._scenario.scrape_interval, self._scrape, None)

    # What must hold.

    def _check(self) -> None:
        """Requests add up, here, in the gateway and on the engines; no KV is over."""
        machines = self._fleet.machines.values()
        counts = self._questions.counts()
        _add_up(counts, self._serving.alive)
        for machine in machines:
            _kv_holds(machine)
        placed = sum(len(machine.rows) for machine in machines)
        running = counts.running
        split = any(pool.role is not Role.BOTH for pool in self._scenario.pools)
        if placed > running or (placed < running and not split):
            raise ConservationError(f"{placed} requests are on engines: the gateway has {running}")


def _add_up(counts: Counts, alive: int) -> None:
    ended = counts.completed + counts.refused + counts.abandoned + counts.failed
    if counts.offered != ended + counts.queued + counts.running:
        raise ConservationError(f"requests do not add up: {counts}")
    if counts.queued + counts.running != alive:
        raise ConservationError(f"{alive} requests are open: the gateway has {counts}")


def _kv_holds(machine: Machine) -> None:
    used, whole = machine.engine.kv_blocks_used, machine.plan.profile.kv_blocks
    if not 0 <= used <= whole:
        raise ConservationError(f"{machine.id}: {used} of {whole} KV blocks are used")
