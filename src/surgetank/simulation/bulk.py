"""A simulation in machine code, for capacity sweeps: no Python for any single request.

It is there where the gateway decides nothing that looks at a request: the pass-through before a
fixed fleet, and clients that take every answer as it is. What comes out equals the simulation of
single events but for rounding (1e-9); there are no fleet samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from surgetank.engine.bulk import Results, Routing, run_fleet
from surgetank.engine.numbered import Numbered
from surgetank.policy.replica import Role
from surgetank.policy.request import Outcome
from surgetank.simulation.clients import ClientSpec
from surgetank.simulation.fleet import Machine
from surgetank.simulation.ledger import CODES, COMPLETED, OPEN, Columns
from surgetank.simulation.policies import policy
from surgetank.simulation.result import Result
from surgetank.simulation.run import ConservationError, Progress, simulate
from surgetank.simulation.scenario import PoolPlan, Scenario

_REJECTED = CODES[Outcome.ENGINE_REJECTED]
_BUSY = CODES[Outcome.ENGINE_BUSY]


def hindrance(scenario: Scenario) -> str | None:
    """Say why a scenario cannot be run in bulk; None: it can."""
    chosen = policy(scenario.policy)
    pools = {pool.model: pool for pool in scenario.pools}
    if chosen.routing is None:
        return f"the policy {chosen.name} decides on every request: only passthrough can"
    if scenario.clients != ClientSpec() or scenario.clients_of:
        return "clients try again, or leave"
    if scenario.workload.shared is not None:
        return "caches are simulated: which replica serves whom depends on all before"
    if scenario.engine != "exact":
        return "the step-by-step engine was asked for"
    if len(pools) < len(scenario.pools) or any(p.role is not Role.BOTH for p in scenario.pools):
        return "prefill and decode are apart"
    served = {scenario.workload.models[m] for m in np.unique(scenario.workload.model).tolist()}
    if not served <= set(pools) or not all(pools[name].replicas for name in served):
        return "a model has no replica of its own"
    return None


def simulate_fast(scenario: Scenario, *, progress: Progress | None = None) -> Result:
    """Run a scenario in bulk where that is possible, else event by event: the figures are the same.

    Raises InputError, ConservationError.
    """
    done = None if hindrance(scenario) else simulate_bulk(scenario, progress=progress)
    return simulate(scenario, progress=progress) if done is None else done


def simulate_bulk(scenario: Scenario, *, progress: Progress | None = None) -> Result | None:
    """Run a scenario for which there is no `hindrance`.

    None: the fleet is so far behind that the simulation of single events would give some requests
    up (`patience_after`); run that. Raises InputError, ConservationError.
    """
    began = time.perf_counter()  # how long it took, for the report alone
    load, chosen = scenario.workload, policy(scenario.policy)
    rows = len(load)
    columns = Columns(
        root=np.arange(rows, dtype=np.int32),
        first=np.full(rows, np.nan),
        ended=load.arrived.copy(),
        output=np.zeros(rows, np.int32),
        outcome=np.full(rows, OPEN, np.int16),
        replica=np.full(rows, -1, np.int32),
        preemptions=np.zeros(rows, np.int32),
    )
    machines: list[Machine] = []
    begin = min(0.0, float(load.arrived[0])) if rows else 0.0
    steps = before = 0
    for pool in chosen.pools(scenario.pools):
        code = load.models.index(pool.model) if pool.model in load.models else -1
        of = _rows(load.model, code, single=len(load.models) == 1)

        def told(sent: int, before: int = before, of: Any = of) -> None:
            if progress is not None and sent:
                progress(before + sent, rows, float(load.arrived[of][sent - 1]))

        sent = len(load.arrived[of])
        if sent:
            found = _run(scenario, pool, of, chosen.routing or "", told)
            _write(columns, of, found, _outputs(scenario, pool, of), len(machines))
            steps += found.steps
            before += sent
        machines += [
            Machine(f"{pool.name}-{i}", len(machines) + i, pool, Numbered(pool.profile), begin)
            for i in range(pool.replicas)
        ]
    end = max(begin, float(columns.ended.max())) if rows else begin
    if rows and end > load.arrived[-1] + scenario.patience_after:
        return None
    if (columns.outcome == OPEN).any():
        raise ConservationError("requests were sent to engines and never ended")
    return Result(
        scenario=scenario,
        policy=chosen.name,
        ledger=columns,
        machines=machines,
        samples=[],
        objectives=[scenario.flow.ttft_objective] * len(load.tenants),
        end=end,
        launches=0,
        failed_starts=0,
        preemptions=int(columns.preemptions.sum()),
        events=steps,
        wall_s=time.perf_counter() - began,
    )


def _rows(models: NDArray[np.int32], code: int, *, single: bool) -> slice | NDArray[np.intp]:
    """Where a model's rows are: a slice copies nothing."""
    if single:
        return slice(None) if code == 0 else slice(0)
    return np.flatnonzero(models == code)


def _run(
    scenario: Scenario,
    pool: PoolPlan,
    of: slice | NDArray[np.intp],
    routing: str,
    progress: Callable[[int], None],
) -> Results:
    load = scenario.workload
    return run_fleet(
        pool.profile,
        load.arrived[of],
        load.prompt[of],
        _outputs(scenario, pool, of),
        replicas=pool.replicas,
        routing=cast("Routing", routing),
        priority=None if load.priority is None else load.priority[of],
        cached=None if load.cached is None else np.maximum(0, load.cached[of]),
        progress=progress,
    )


def _outputs(scenario: Scenario, pool: PoolPlan, of: slice | NDArray[np.intp]) -> NDArray[np.int64]:
    """Output tokens: the engine stops at the request's bound and at its context; 0: it rejects."""
    load = scenario.workload
    output = load.output[of]
    if load.max_tokens is not None:
        bound = load.max_tokens[of]
        output = np.where((bound >= 0) & (bound < output), bound, output)
    return np.maximum(0, np.minimum(output, pool.profile.max_model_len - load.prompt[of]))


def _write(
    columns: Columns,
    of: slice | NDArray[np.intp],
    found: Results,
    output: NDArray[np.int64],
    first: int,
) -> None:
    """Put one pool's results into the ledger; `first` is the code of its first replica."""
    done = ~np.isnan(found.finished_at)
    outcome = np.where(done, COMPLETED, OPEN).astype(np.int16)
    outcome[found.shed & (output > 0)] = _BUSY
    outcome[output < 1] = _REJECTED
    columns.outcome[of] = outcome
    columns.first[of] = found.first_token_at
    columns.ended[of] = np.where(done, found.finished_at, found.arrived)
    columns.output[of] = np.where(done, output, 0)
    columns.replica[of] = np.where(done, found.replica + first, -1)
    columns.preemptions[of] = found.preempted
