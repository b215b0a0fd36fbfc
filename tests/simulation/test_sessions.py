"""Agents in whole runs: under overload, tasks that are begun are finished."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import Tenant, Tier
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import Scenario
from surgetank.simulation.workload import Workload, of_batch
from surgetank.traffic.trace import Batch, Labels
from tests.simulation.build import engine, scenario

CALLS = 9  # a plan, then four and four at once
GAP = 0.5  # seconds between a call and those that follow it


def agents(tasks: int, per_second: float, tenant: str = "agents") -> Workload:
    """Tasks that come one after another; each fans out twice, whether it was answered or not."""
    begin = np.cumsum(np.random.default_rng(5).exponential(1 / per_second, tasks))
    after = np.array([0.0, *[GAP] * 4, *[2 * GAP] * 4])
    at = (begin[:, None] + after).ravel()
    order = np.argsort(at, kind="stable")
    name = np.repeat(np.arange(tasks), CALLS)[order]
    size = len(at)
    return of_batch(
        Batch(
            arrived=at[order],
            prompt_tokens=np.full(size, 200, np.int64),
            output_tokens=np.full(size, 50, np.int64),
            tenant=Labels.of([tenant] * size),
            session=Labels.of([f"task-{n}" for n in name.tolist()]),
        )
    )


def run(load: Workload, **settings: object) -> Scenario:
    values = {
        "profile": engine(max_num_seqs=4),
        "slots": 4,
        "policy": "static",
        "flow": FlowSpec(max_in_flight=4, queue_timeout=6.0, max_queued=40),
        **settings,
    }
    return scenario(load, **values)


def finished(load: Workload, names: list[str]) -> tuple[int, int]:
    """Tasks of which every call was answered, and calls that were."""
    records = list(simulate(run(load)).records())
    done = Counter(names[int(record.id)] for record in records if record.outcome == "completed")
    return sum(count == CALLS for count in done.values()), sum(done.values())


def test_at_twice_what_the_engine_can_do_more_tasks_are_finished_whole_than_without_sessions() -> (
    None
):
    load = agents(120, 1.6)
    assert load.session is not None
    names = [load.sessions[code] for code in load.session.tolist()]
    tasks, calls = finished(load, names)
    without, calls_without = finished(replace(load, session=None, sessions=()), names)
    assert tasks >= 1.5 * without
    # Little was done in vain: what comes later than its session was told to is let in again, and
    # these agents do not ask a second time for what was refused before.
    assert tasks * CALLS >= 0.7 * calls
    assert calls >= 0.95 * calls_without


def test_records_name_the_session_of_each_request() -> None:
    load = agents(3, 1.0)
    records = list(simulate(run(load)).records())
    assert Counter(record.session for record in records) == {f"task-{n}": CALLS for n in range(3)}


def test_a_tenant_with_sessions_takes_nothing_from_one_without() -> None:
    """Two tenants of one weight, each with more than the engine can do.

    Sessions are sent away whole, so that their line is empty at times: what they leave is the
    other's.
    """
    one, other = agents(120, 1.6, "agents"), agents(120, 1.6, "chats")
    size = len(one) + len(other)
    at = np.concatenate([one.arrived, other.arrived])
    order = np.argsort(at, kind="stable")
    assert one.session is not None
    names = [f"task-{n}" for n in one.session.tolist()] + [None] * len(other)
    both = of_batch(
        Batch(
            arrived=at[order],
            prompt_tokens=np.full(size, 200, np.int64),
            output_tokens=np.full(size, 50, np.int64),
            tenant=Labels.of([["agents", "chats"][i >= len(one)] for i in order.tolist()]),
            session=Labels.of([names[i] for i in order.tolist()]),
        )
    )
    tenants = (Tenant("agents", max_queued=20), Tenant("chats", max_queued=20))
    records = simulate(run(both, tenants=tenants, tiers=(Tier(),))).records()
    done = Counter(record.tenant for record in records if record.outcome == "completed")
    assert done["agents"] - done["chats"] <= 0.05 * done.total()
    assert done["agents"] >= 0.4 * done.total()
