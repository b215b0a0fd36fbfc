"""What must hold in every simulation, whatever is simulated."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.engine.coldstart import ColdStart
from surgetank.engine.profile import Stage
from surgetank.errors import InputError
from surgetank.policy.flow import FlowSpec
from surgetank.policy.journal import replay
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.record import parse
from surgetank.policy.replica import Role
from surgetank.policy.tenant import Tenant
from surgetank.simulation.clients import KINDS, ClientSpec
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.summary import summarise
from surgetank.simulation.workload import of_batch
from surgetank.traffic.trace import Batch, Labels
from tests.simulation.build import MODEL, bursts, engine, load, scenario

POLICIES = ("passthrough", "passthrough:round_robin", "fifo-cap:3", "static:2", "surgetank")
SHORT = ColdStart((Stage("start", 3.0, 0.3),), failure=0.3, denied=0.1, denied_s=0.5)
EAGER = ScaleSpec(
    ttft_objective=0.3,
    prompt_tokens_per_replica=500.0,
    output_tokens_per_replica=200.0,
    max_replicas=4,
    scale_down_delay=5.0,
    start_time=3.0,
    standbys=1,
    max_standbys=1,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_once_and_the_records_say_so(policy: str) -> None:
    made = scenario(load(bursts(400, 20.0, 1)), policy=policy, replicas=2)
    result = simulate(made)
    total = summarise(result)
    assert total.requests == 400 == total.completed + total.refused + total.failed
    records = [parse(record.to_line()) for record in result.records()]
    assert len(records) == 400
    assert all(record.outcome for record in records)  # type: ignore[union-attr]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(POLICIES),
    rate=st.floats(2.0, 40.0),
    client=st.sampled_from(sorted(KINDS)),
    patience=st.none() | st.floats(0.05, 3.0),
    timeout=st.none() | st.floats(0.3, 5.0),
    kv_blocks=st.integers(1024, 1200),
    seats=st.integers(1, 8),
    max_queued=st.none() | st.integers(2, 10),
)
def test_requests_add_up_and_kv_is_never_over(  # the run asserts both at every tick
    *,
    seed: int,
    policy: str,
    rate: float,
    client: str,
    patience: float | None,
    timeout: float | None,
    kv_blocks: int,
    seats: int,
    max_queued: int | None,
) -> None:
    profile = engine(kv_blocks=kv_blocks, max_num_seqs=seats, max_queued=max_queued)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 60, 120)
    clients = replace(KINDS[client], patience=patience, timeout=timeout)
    made = scenario(
        load(bursts(120, rate, seed), prompt=300, output=sizes, tenants=["a", "b"] * 60),
        profile=profile,
        policy=policy,
        replicas=1 if policy == "surgetank" else 2,
        standbys=1,
        max_replicas=4,
        start=SHORT,
        scale=EAGER,
        clients=clients,
        seed=seed,
        flow=FlowSpec(queue_timeout=2.0, request_timeout=6.0, max_queued=20),
    )
    result = simulate(made)
    total = summarise(result)
    ended = total.completed + total.refused + total.abandoned + total.failed
    assert ended == total.requests == 120
    assert total.unfinished == 0
    assert total.amplification >= 1.0


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    def outcome(seed: int) -> tuple[list[float], int]:
        made = scenario(
            load(bursts(300, 30.0, 3)),
            profile=engine(max_num_seqs=4),
            start=SHORT,
            scale=EAGER,
            max_replicas=4,
            clients=KINDS["sdk"],
            flow=FlowSpec(queue_timeout=1.0),
            seed=seed,
        )
        result = simulate(made)
        return list(result.ledger.ended), result.launches

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_the_journal_of_a_simulation_replays_to_the_same_decisions() -> None:
    lines: list[str] = []
    made = scenario(
        load(bursts(300, 30.0, 5), tenants=["a", "b", "c"] * 100),
        profile=engine(max_num_seqs=4, max_queued=6),
        start=SHORT,
        scale=EAGER,
        max_replicas=4,
        clients=replace(KINDS["sdk"], patience=2.0),
        flow=FlowSpec(queue_timeout=1.0, max_queued=20),
        tenants=(Tenant("a", requests_per_minute=600.0),),
    )
    with_journal = simulate(made, journal=lines.append)
    assert replay(lines) is None
    assert len(lines) > 900
    assert simulate(made).ledger.ended == with_journal.ledger.ended


def test_a_journal_whose_decision_was_changed_does_not_replay() -> None:
    lines: list[str] = []
    simulate(scenario(load(bursts(50, 30.0, 5))), journal=lines.append)
    at = next(i for i, line in enumerate(lines) if '"do":"Dispatch"' in line)
    lines[at] = lines[at].replace('"Dispatch"', '"Refuse"', 1)
    divergence = replay(lines)
    assert divergence is not None
    assert divergence.line == at + 1


def test_a_started_replica_serves_only_after_its_cold_start() -> None:
    start = ColdStart((Stage("weights", 7.0, 0.0), Stage("compile", 5.0, 0.0)))
    result = simulate(
        scenario(
            load(np.arange(0, 60, 0.05)),
            profile=engine(max_num_seqs=4),
            start=start,
            scale=replace(EAGER, standbys=0, max_standbys=0),
            max_replicas=3,
        )
    )
    born = {machine.id: machine for machine in result.machines}
    launched = [machine for machine in result.machines if machine.asked > 0]
    assert len(launched) == result.launches > 0
    for machine in launched:
        assert machine.ready == pytest.approx(machine.asked + 12.0)
    for record in result.records():
        if record.replica and record.dispatched is not None:
            ready = born[record.replica].ready
            assert ready is not None
            assert record.dispatched >= ready
    assert {record.replica for record in result.records()} > {f"{MODEL}-0"}
    times = [time for sample in result.samples for time in sample.start_times]
    assert times == pytest.approx([12.0] * len(launched))


def test_a_standby_is_promoted_without_a_start() -> None:
    result = simulate(
        scenario(
            load([0.0, *np.arange(20, 40, 0.02)]),
            profile=engine(max_num_seqs=4),
            start=ColdStart((Stage("start", 1000.0, 0.0),)),
            scale=EAGER,
            standbys=1,
            max_replicas=4,
        )
    )
    used = {record.replica for record in result.records()} - {""}
    assert used == {f"{MODEL}-0", f"{MODEL}-1"}


def test_failed_starts_are_counted_and_asked_for_again() -> None:
    start = ColdStart((Stage("start", 2.0, 0.0),), failure=1.0)
    result = simulate(
        scenario(
            load(np.arange(0, 40, 0.05)),
            profile=engine(max_num_seqs=4),
            start=start,
            scale=EAGER,
            max_replicas=2,
        )
    )
    assert result.failed_starts == result.launches > 1
    assert {record.replica for record in result.records()} <= {f"{MODEL}-0", ""}


def test_what_policies_see_is_as_old_as_its_metrics() -> None:
    def promoted(lag: float) -> float:
        result = simulate(
            scenario(
                load([0.0, *np.arange(20, 60, 0.02)]),
                profile=engine(max_num_seqs=4),
                scale=replace(EAGER, stale_after=30.0),
                standbys=1,
                max_replicas=4,
                metric_lag=lag,
            )
        )
        return next(sample.t for sample in result.samples if (sample.wanted or 0) > 1)

    assert promoted(0.0) < 25.0
    assert promoted(5.0) >= promoted(0.0) + 4.0


def test_replica_hours_count_all_that_exists() -> None:
    result = simulate(scenario(load([0.0, 100.0]), policy="static:3", tick_interval=10.0))
    assert result.replica_hours == pytest.approx(3 * result.end / 3600)


def test_a_person_without_patience_leaves_and_does_not_come_back() -> None:
    made = scenario(
        load([0.0, 0.0], output=[1000, 10]),
        profile=engine(max_num_seqs=1),
        policy="passthrough",
        clients=ClientSpec(retries=3, patience=1.0),
    )
    first, second = simulate(made).records()
    assert (first.outcome, second.outcome) == ("completed", "abandoned")
    assert second.ended == pytest.approx(1.0)


def test_a_program_that_times_out_asks_again_and_amplifies_the_load() -> None:
    made = scenario(
        load([0.0, 0.0], output=[1000, 10]),
        profile=engine(max_num_seqs=1),
        policy="passthrough",
        clients=ClientSpec(retries=2, timeout=3.0, pause=0.5, obeys_retry_after=False),
    )
    result = simulate(made)
    tries = sorted((r.client_retry, round(r.arrived, 6)) for r in result.records())
    assert tries == [(0, 0.0), (0, 0.0), (1, 3.5), (1, 3.5), (2, 7.0), (2, 7.0)]
    assert summarise(result).amplification == 3.0
    assert summarise(result).wasted_tokens > 0


def test_prefill_and_decode_replicas_serve_a_request_one_after_the_other() -> None:
    profile = engine()
    pools = (
        PoolPlan(model=MODEL, profile=profile, role=Role.PREFILL),
        PoolPlan(model=MODEL, profile=profile, role=Role.DECODE, replicas=2),
    )
    made = Scenario(
        workload=load(np.arange(0, 20, 0.05), output=[1, 30] * 200),
        pools=pools,
        policy="static",
        kv_transfer=0.1,
    )
    result = simulate(made)
    first, second = list(result.records())[:2]
    assert {record.outcome for record in result.records()} == {"completed"}
    assert first.replica.startswith(f"{MODEL}/prefill")
    assert second.replica.startswith(f"{MODEL}/decode")
    assert second.first_token == pytest.approx(second.arrived + 0.01, abs=0.011)
    # a token in prefill, the transfer, then 29 steps of which the first may have to wait for one
    assert second.ended is not None
    assert second.first_token is not None
    assert 0.39 <= second.ended - second.first_token <= 0.41 + 1e-9


@pytest.mark.parametrize("name", ["passthrough", "passthrough:round_robin", "fifo-cap:4"])
def test_what_sends_whole_requests_refuses_replicas_that_serve_half_of_one(name: str) -> None:
    pools = tuple(
        PoolPlan(model=MODEL, profile=engine(), role=role) for role in (Role.PREFILL, Role.DECODE)
    )
    made = Scenario(workload=load([0.0]), pools=pools, policy=name)
    with pytest.raises(InputError, match=rf"--policy {name}: the pool {MODEL}/prefill serves one"):
        simulate(made)


@pytest.mark.parametrize("kind", ["exact", "literal"])
def test_prefill_of_a_request_that_is_cut_before_its_first_token_is_wasted(kind: str) -> None:
    made = scenario(
        load([0.0], prompt=1000, output=10),
        profile=engine(max_num_batched_tokens=100),  # ten steps of 10 ms
        policy="passthrough",
        clients=ClientSpec(patience=0.045),
        engine=kind,
    )
    result = simulate(made)
    assert [record.outcome for record in result.records()] == ["abandoned"]
    assert result.wasted_tokens == 500  # the fifth chunk is under way
    served = replace(made, clients=ClientSpec())
    assert simulate(served).wasted_tokens == 0


def test_a_prompt_that_waits_or_is_found_in_the_cache_wastes_nothing() -> None:
    both = of_batch(
        Batch(
            arrived=np.zeros(2),
            prompt_tokens=np.array([1000, 1000]),
            output_tokens=np.array([500, 10]),
            cached_tokens=np.array([800, 0]),
        )
    )
    made = scenario(
        both,
        profile=engine(max_num_seqs=1),
        policy="passthrough",
        clients=ClientSpec(timeout=1.0),
    )
    result = simulate(made)
    first, second = result.records()
    assert (first.outcome, second.outcome) == ("abandoned", "abandoned")
    assert second.first_token is None
    assert first.output_tokens is not None
    assert result.wasted_tokens == 200 + first.output_tokens


def test_models_are_served_by_pools_of_their_own() -> None:
    both = of_batch(
        Batch(
            arrived=np.arange(0.0, 100.0),
            prompt_tokens=np.full(100, 50),
            output_tokens=np.full(100, 5),
            model=Labels.of(["small", "large"] * 50),
        )
    )
    pools = (
        PoolPlan(model="small", profile=engine()),
        PoolPlan(model="large", profile=engine(a_ms=50.0)),
    )
    result = simulate(Scenario(workload=both, pools=pools))
    ended = {"small": 0.05, "large": 0.25}
    for record in result.records():
        assert record.replica == f"{record.model}-0"
        assert record.ended == pytest.approx(record.arrived + ended[record.model])
    assert {sample.model for sample in result.samples} == {"small", "large"}


def test_a_model_without_a_pool_is_refused_with_its_name() -> None:
    with pytest.raises(InputError, match="model other: no pool serves it"):
        Scenario(
            workload=replace(load([0.0]), models=("other",)),
            pools=(PoolPlan(model="x", profile=engine()),),
        )


def test_the_literal_engine_gives_the_same_run() -> None:
    def ended(kind: str) -> list[float]:
        made = scenario(
            load(bursts(300, 30.0, 9), output=np.random.default_rng(2).integers(1, 50, 300)),
            profile=engine(a_ms=7.3, b_us=31.0, d_us=130.0, e_ns=40.0, max_num_seqs=6),
            policy="static:2",
            clients=replace(KINDS["sdk"], patience=2.0),
            engine=kind,
        )
        return list(simulate(made).ledger.ended)

    assert ended("exact") == pytest.approx(ended("literal"), rel=1e-9)


@pytest.mark.parametrize(("seats", "waits"), [(256, False), (1, True)])
def test_a_scrape_tells_what_waited_after_the_latest_step(seats: int, *, waits: bool) -> None:
    """What came while a step runs does not wait yet: vLLM counts after each step."""
    lines: list[str] = []
    made = scenario(
        load(np.arange(0.001, 4.0, 0.0037), output=3),
        profile=engine(max_num_seqs=seats, max_num_batched_tokens=100_000),
        policy="static",
        slots=64,
        flow=FlowSpec(max_in_flight=64),
        scrape_interval=0.0131,
    )
    simulate(made, journal=lines.append)
    told = [json.loads(line) for line in lines]
    seen = [row["args"][1].get("waiting") for row in told if row.get("do") == "observe"]
    assert len(seen) > 200
    assert (max(seen) > 0) is waits


def test_what_goes_on_for_too_long_is_unfinished_and_a_miss() -> None:
    made = scenario(
        load([0.0, 0.0, 1.0], output=[10, 5000, 5000]),
        policy="passthrough",
        patience_after=10.0,
        clients=KINDS["naive"],
    )
    result = simulate(made)
    total = summarise(result)
    assert (total.completed, total.unfinished, total.refused) == (1, 2, 0)
    assert total.attainment == pytest.approx(1 / 3)
    assert result.end == pytest.approx(11.0)
