"""What a simulation gives: every attempt's record, fleet samples, and columns to count with.

Rule: records and samples are those that the live gateway writes, so that whatever reads those reads
these. A client's request is judged by its last attempt and from its first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.policy.request import HTTP_STATUS
from surgetank.policy.shadow import Shadow
from surgetank.simulation.fleet import Machine
from surgetank.simulation.ledger import COMPLETED, OPEN, OUTCOMES, Columns, Ledger
from surgetank.simulation.scenario import Scenario

if TYPE_CHECKING:
    from surgetank.simulation.summary import Summary


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests as their clients saw them, in the workload's order. Seconds; NaN: never."""

    ttft: NDArray[np.float64]  # from the first try to the first token of the last
    tpot: NDArray[np.float64]  # of completed ones with two tokens or more
    ended: NDArray[np.float64]
    outcome: NDArray[np.int16]  # code into OUTCOMES, of the last try; OPEN: unfinished
    in_time: NDArray[np.bool_]  # the first token came within its objective
    attained: NDArray[np.bool_]  # completed within its objectives
    tries: NDArray[np.int64]


@dataclass(kw_only=True)
class Result:
    """One run. `objectives`: TTFT promised to each tenant, s; `end`: when the last request ended.

    `wall_s` is real seconds; all other times are the simulation's.
    """

    scenario: Scenario
    policy: str
    ledger: Ledger | Columns
    machines: Sequence[Machine]
    samples: list[FleetSample]
    objectives: Sequence[float]
    end: float
    launches: int
    failed_starts: int
    preemptions: int
    events: int  # turns of the simulation's loop; steps of the engines in bulk
    wall_s: float
    parameters: dict[str, Any] = field(default_factory=dict)  # of a sweep
    shadow: Shadow | None = None  # what admission would have done, where it was in shadow

    @cached_property
    def summary(self) -> Summary:
        """The figures that policies are compared by."""
        from surgetank.simulation.summary import summarise  # noqa: PLC0415 - it counts these

        return summarise(self)

    @cached_property
    def requests(self) -> Requests:
        """Every client's view."""
        ledger, load, objective = self.ledger, self.scenario.workload, self.scenario.objective
        rows = len(load)
        last = np.arange(rows)
        root = np.asarray(ledger.root, np.int64)
        last[root] = np.arange(len(root))  # rows are in order of time: the last one stays
        first = np.asarray(ledger.first)[last]
        ended = np.asarray(ledger.ended)[last]
        output = np.asarray(ledger.output)[last]
        outcome = np.asarray(ledger.outcome, np.int16)[last]
        done = outcome == COMPLETED
        ttft = first - load.arrived
        with np.errstate(invalid="ignore", divide="ignore"):
            tpot = np.where(done & (output > 1), (ended - first) / (output - 1), np.nan)
        if objective.ttft is None:
            limit = np.asarray(self.objectives)[load.tenant]
        else:
            limit = np.full(rows, objective.ttft)
        limit = limit + objective.ttft_per_prompt_token * load.prompt
        in_time = ttft <= limit
        attained = done & in_time
        if objective.tpot is not None:
            attained &= ~(tpot > objective.tpot)
        tries = np.bincount(root, minlength=rows)
        return Requests(ttft, tpot, ended, outcome, in_time, attained, tries)

    @cached_property
    def replica_hours(self) -> float:
        """All replicas, from being asked for to being gone."""
        begin = min((machine.asked for machine in self.machines), default=0.0)
        seconds = sum(
            max(0.0, (self.end if m.gone is None else min(m.gone, self.end)) - max(m.asked, begin))
            for m in self.machines
        )
        return seconds / 3600

    @cached_property
    def wasted_tokens(self) -> int:
        """Tokens computed for answers that nobody got whole: their prompts and what came of them.

        Of a prompt that was cut off, what had been computed, a chunk under way too; nowhere what
        the prefix cache held. Recomputing after preemptions is not in it: `preemptions` counts
        those.
        """
        ledger, load = self.ledger, self.scenario.workload
        lost = np.asarray(ledger.outcome) != COMPLETED
        begun = lost & ~np.isnan(np.asarray(ledger.first))
        root = np.asarray(ledger.root, np.int64)[begun]
        prompts = load.prompt[root]
        if load.cached is not None:
            prompts = prompts - np.clip(load.cached[root], 0, prompts - 1)
        total = int(prompts.sum() + np.asarray(ledger.output)[begun].sum())
        if isinstance(ledger, Columns):  # there nobody leaves
            return total
        return total + sum(n for row, n in ledger.prefilled.items() if lost[row])

    def records(self) -> Iterator[RequestRecord]:
        """One for each attempt, in the order in which they were offered."""
        ledger, scenario = self.ledger, self.scenario
        if isinstance(ledger, Columns):
            ledger = ledger.listed(scenario.workload)
        load = scenario.workload
        tiers = {tenant.name: tenant.tier for tenant in scenario.tenants}
        shadow = {} if self.shadow is None else self.shadow.verdicts
        names = [machine.id for machine in self.machines]
        prompts, tenants, models = load.prompt.tolist(), load.tenant.tolist(), load.model.tolist()
        bounds = None if load.max_tokens is None else load.max_tokens.tolist()
        cached = None if load.cached is None else load.cached.tolist()

        simulated, known = ledger.cached, load.session

        def found(row: int, root: int) -> int | None:
            if load.shared is not None:
                return simulated.get(row, 0)
            return None if cached is None else max(0, cached[root])

        def sessions(root: int) -> str:
            return "" if known is None or known[root] < 0 else load.sessions[known[root]]

        def stamp(at: float) -> float | None:
            return None if isnan(at) else at + load.origin

        for row, root in enumerate(ledger.root):
            code = ledger.outcome[row]
            outcome = None if code == OPEN else OUTCOMES[code]
            ran = not isnan(ledger.first[row])
            tenant = load.tenants[tenants[root]]
            told = shadow.get(str(row))
            yield RequestRecord(
                id=str(row),
                tenant=tenant,
                tier=tiers.get(tenant, "standard"),
                model=load.models[models[root]],
                route="/v1/chat/completions",
                stream=True,
                arrived=ledger.arrived[row] + load.origin,
                queued=ledger.arrived[row] + load.origin if ledger.queued[row] else None,
                dispatched=stamp(ledger.dispatched[row]),
                first_token=stamp(ledger.first[row]),
                ended=stamp(ledger.ended[row]),
                prompt_tokens=prompts[root] if ran else None,
                session=sessions(root),
                cached_tokens=found(row, root) if ran else None,
                output_tokens=ledger.output[row] if ran else None,
                max_tokens=bounds[root] if bounds is not None and bounds[root] >= 0 else None,
                ttft_objective=self.objectives[tenants[root]],
                outcome="" if outcome is None else outcome.value,
                reason=ledger.reasons.get(row, ""),
                status=0 if outcome is None else HTTP_STATUS[outcome],
                replica=names[ledger.replica[row]] if ledger.replica[row] >= 0 else "",
                attempts=ledger.attempts[row],
                client_retry=ledger.retry[row],
                predicted_wait=ledger.predicted.get(row),
                position=ledger.position.get(row),
                degraded=ledger.degraded.get(row, ""),
                shadow="" if told is None else told.outcome,
                shadow_wait=None if told is None else told.wait,
                shadow_ttft=None if told is None else told.ttft,
            )
