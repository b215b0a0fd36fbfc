"""A portfolio: settings tried on a fleet's own records, a static floor among them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from surgetank.autoscaler.spec import AutoscaleSpec, PoolConfig, PortfolioSpec
from surgetank.cli.backtests import Job, beside, follow, jobs
from surgetank.engine import coldstart
from surgetank.engine.profile import find
from surgetank.errors import InputError, SurgetankError
from surgetank.policy.flow import FlowSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.record import RequestRecord
from surgetank.simulation.workload import Workload
from surgetank.studies.portfolio import AS_IT_IS, Choice, Question, choose, load_of
from surgetank.traffic import arrivals
from tests.autoscaler.world import World
from tests.cli.command import surgetank

PROFILE = find("demo-fleet")
SCALE = ScaleSpec(
    ttft_objective=1.5,
    tpot_objective=0.3,
    attainment=0.9,
    prompt_tokens_per_replica=12_000.0,
    output_tokens_per_replica=200.0,
    kv_tokens_per_replica=16_384,
    min_replicas=1,
    max_replicas=8,
    standbys=0,
    max_standbys=2,
    start_time=20.0,
)
SCALE_OF_POOL = replace(SCALE, min_replicas=1, max_replicas=64)  # the pool has the sizes
QUESTION = Question(
    profile=PROFILE,
    start=replace(coldstart.whole(20.0), wake_s=1.0),
    scale=SCALE,
    flow=FlowSpec(max_in_flight=8, ttft_objective=1.5, request_timeout=300.0),
    requests=20_000,
)


def records(model: str = "chat") -> list[RequestRecord]:
    rng = np.random.default_rng(4)
    times = arrivals.pulse(rng, 0.5, 8.0, 10.0, 60.0, 180.0) + 1_796_169_600.0
    made = []
    for i, t in enumerate(times.tolist()):
        row = RequestRecord(f"r-{i}", model=model, arrived=t, prompt_tokens=200, tenant="web")
        if i % 5:
            row.output_tokens, row.outcome = 100, "completed"
        else:
            row.outcome = "queue_timeout"  # refused ones say no output
        made.append(row)
    return made


@pytest.fixture(scope="module")
def load() -> Workload:
    return load_of(records(), "chat", PROFILE)


@pytest.fixture(scope="module")
def choice(load: Workload) -> Choice:
    return choose(load, QUESTION)


def test_refused_requests_are_asked_anew_with_outputs_like_the_others(load: Workload) -> None:
    assert len(load) == len(records())
    assert set(load.output.tolist()) == {100}


def test_what_a_client_asked_again_counts_once() -> None:
    rows = records()
    again = [replace(row, id=f"{row.id}-2", client_retry=1) for row in rows[:50]]
    assert len(load_of([*rows, *again], "chat", PROFILE)) == len(rows)


def test_the_cheapest_that_keeps_the_objective_is_chosen(choice: Choice) -> None:
    kept = [c for c in choice.tried if c.attainment >= 0.9]
    assert choice.chosen in kept
    assert choice.chosen.cost <= min(c.cost for c in kept) * 1.02


def test_a_static_floor_is_always_among_them_and_is_chosen_where_bursts_beat_starts(
    choice: Choice,
) -> None:
    floors = [c for c in choice.tried if c.name.startswith("static floor")]
    least = min((c for c in floors if c.attainment >= 0.9), key=lambda c: c.cost)
    assert choice.chosen.cost <= least.cost * 1.02
    below = [c for c in floors if c.scale.min_replicas < least.scale.min_replicas]
    assert all(c.attainment < 0.9 for c in below)


def test_the_choice_is_told_in_one_line_with_its_figures(choice: Choice) -> None:
    assert "\n" not in choice.why
    assert choice.chosen.name in choice.why
    assert f"{choice.chosen.attainment:.1%}" in choice.why
    assert "next, " in choice.why


def test_settings_that_are_as_cheap_stay(load: Workload, choice: Choice) -> None:
    again = choose(load, replace(QUESTION, scale=choice.chosen.scale))
    assert again.chosen.scale == choice.chosen.scale


def test_no_cpu_time_tries_nothing_and_says_so(load: Workload) -> None:
    with pytest.raises(InputError, match="CPU time"):
        choose(load, replace(QUESTION, cpu_seconds=0.0))


def test_too_few_requests_are_refused(load: Workload) -> None:
    with pytest.raises(InputError, match="too few"):
        choose(load.first(20), QUESTION)


def test_records_of_no_such_model_are_refused() -> None:
    with pytest.raises(InputError, match="no request of the model other"):
        load_of(records(), "other", PROFILE)


CONFIG = """
records: {path: records.jsonl}
flow: {max_in_flight: 8, ttft_objective: 1.5, request_timeout: 300}
autoscaler:
  portfolio: {engine: demo-fleet}
  pools:
    - model: chat
      max_replicas: 8
      process: {command: "serve-it --port {port}"}
      scale: {ttft_objective: 1.5, standbys: 0, output_tokens_per_replica: 200,
        tpot_objective: 0.3, attainment: 0.9}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "surgetank.yaml").write_text(CONFIG)
    (tmp_path / "records.jsonl").write_text("".join(f"{r.to_line()}\n" for r in records()))
    return tmp_path


def test_the_command_says_what_the_study_found(folder: Path) -> None:
    arguments = ("portfolio", "records.jsonl", "-c", "surgetank.yaml", "--json")
    done = surgetank(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert ScaleSpec(**found["chosen"]["scale"]).max_replicas <= 8
    assert {AS_IT_IS} < {row["name"] for row in found["tried"]}


@pytest.mark.heavy
def test_beside_a_server_it_is_a_process_of_its_own_that_gives_settings(folder: Path) -> None:
    job = Job(
        str(folder / "records.jsonl"),
        "chat",
        PortfolioSpec("demo-fleet"),
        SCALE,
        (20.0, 21.0),
        QUESTION.flow,
        (),
        (),
        (),
    )
    scale, why = asyncio.run(beside(job))
    assert scale.max_replicas <= SCALE.max_replicas
    assert "%" in why
    with pytest.raises(SurgetankError, match="no request of the model other"):
        asyncio.run(beside(replace(job, model="other")))


@pytest.mark.heavy
def test_a_server_uses_what_the_process_chose_and_writes_it_down(folder: Path) -> None:
    config = PoolConfig("chat", max_replicas=8, scale=SCALE_OF_POOL)
    world = World(config)
    spec = AutoscaleSpec(pools=(config,), portfolio=PortfolioSpec("demo-fleet"))
    path = str(folder / "records.jsonl")
    found = jobs([world.controller], spec, records=path, flow=QUESTION.flow, tiers=(), tenants=())
    before = world.controller.scale
    asyncio.run(follow(found))
    assert world.controller.scale != before
    assert world.lines[-1]["event"] == "portfolio"
    assert "% at" in world.lines[-1]["why"]
    asyncio.run(follow([(found[0][0], replace(found[0][1], records="/nowhere/records.jsonl"))]))
    assert len([line for line in world.lines if line.get("event") == "portfolio"]) == 1
