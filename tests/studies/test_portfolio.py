"""A portfolio: settings tried on a fleet's own records, a static floor among them."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from surgetank.autoscaler.spec import AutoscaleSpec, PoolConfig, PortfolioSpec
from surgetank.cli import backtests
from surgetank.cli.backtests import Job, Told, beside, follow, jobs
from surgetank.engine import coldstart
from surgetank.engine.profile import find
from surgetank.errors import ConfigError, InputError, SurgetankError
from surgetank.policy.flow import FlowSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.record import RequestRecord
from surgetank.simulation.workload import Workload
from surgetank.studies.portfolio import AS_CONFIGURED, AS_IT_IS, Choice, Question, choose, load_of
from surgetank.traffic import arrivals
from tests.autoscaler.world import World
from tests.cli.command import surgetank
from tests.gateway.scaled import alive, descendants

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


_Found = TypeVar("_Found")


def within(found: Callable[[], _Found | None], bound: float = 60.0) -> _Found:
    """Wait for what other processes bring about."""
    ends = time.monotonic() + bound
    while not (value := found()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return value


def job_of(records_path: Path, **more: Any) -> Job:
    spec = PortfolioSpec("demo-fleet")
    given = (spec, SCALE, (20.0,), QUESTION.flow, (), (), ())
    return replace(Job(str(records_path), "chat", *given), **more)


def test_what_an_earlier_choice_set_is_in_use_and_stays_while_it_is_as_cheap(
    load: Workload, choice: Choice
) -> None:
    """The configured settings are tried beside it, and are no reason to leave it."""
    again = choose(load, replace(QUESTION, in_use=choice.chosen.scale))
    assert again.chosen.name == AS_IT_IS
    assert again.chosen.scale == choice.chosen.scale
    assert {AS_CONFIGURED, AS_IT_IS} < {c.name for c in again.tried}


def test_a_back_test_that_hangs_is_ended_told_and_changes_nothing(tmp_path: Path) -> None:
    """As on a file system that does not answer: nobody ever writes into this pipe."""
    hung = tmp_path / "records.jsonl"
    os.mkfifo(hung)
    with pytest.raises(SurgetankError, match=r"^it had no answer after 4 s, and was ended$"):
        asyncio.run(beside(job_of(hung), bound=4.0))
    assert not descendants(os.getpid()) & with_word("surgetank.cli.backtests")


def test_a_back_test_beyond_its_cpu_time_is_ended_by_the_system_and_told(tmp_path: Path) -> None:
    hung = tmp_path / "records.jsonl"
    os.mkfifo(hung)

    async def test() -> None:
        task = asyncio.create_task(beside(job_of(hung)))
        limited: list[Path] = []
        async with asyncio.timeout(60):
            while not limited:
                await asyncio.sleep(0.02)
                known = descendants(os.getpid()) & with_word("surgetank.cli.backtests")
                limits = [Path(f"/proc/{pid}/limits") for pid in known]
                # 60 s of trials, and as much for what it has to load
                limited = [p for p in limits if re.search(r"cpu time +120 +125 ", p.read_text())]
        os.kill(int(limited[0].parent.name), signal.SIGXCPU)  # as the system does beyond it
        with pytest.raises(SurgetankError, match=r"^it took more than 120 s of CPU time, and was"):
            await task

    asyncio.run(test())


def with_word(word: str) -> set[int]:
    """Processes of this machine with a word in their command lines."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def test_one_pool_that_fails_is_told_and_the_next_is_tried(tmp_path: Path) -> None:
    world = World(PoolConfig("chat", max_replicas=8, scale=SCALE_OF_POOL))
    missing = job_of(tmp_path / "none.jsonl")
    told: list[Told] = []
    before = world.controller.scale
    asyncio.run(follow([(world.controller, missing), (world.controller, missing)], told.append))
    assert [(t.pool, t.result) for t in told] == [("chat/both", "failed")] * 2
    assert "cannot be read" in told[0].why
    assert world.controller.scale == before
    assert not [line for line in world.lines if line.get("event") == "portfolio"]


def test_a_choice_that_does_not_fit_is_told_and_does_not_end_the_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(PoolConfig("chat", max_replicas=8, scale=SCALE_OF_POOL))

    async def answered(_: Job) -> tuple[ScaleSpec, str]:
        return SCALE, "any"

    def unfit(_scale: ScaleSpec, _why: str) -> bool:
        raise ConfigError("scale.standbys = 4: must be between 0 and max_standbys (2)")

    monkeypatch.setattr(backtests, "beside", answered)
    monkeypatch.setattr(world.controller, "use", unfit)
    told: list[Told] = []
    asyncio.run(follow([(world.controller, job_of(tmp_path))], told.append))
    assert [t.result for t in told] == ["failed"]


def test_a_back_test_is_nice_and_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    hung = tmp_path / "records.jsonl"
    os.mkfifo(hung)
    (tmp_path / "job").write_bytes(pickle.dumps(job_of(hung)))
    call = (
        "import asyncio, pickle, sys; from surgetank.cli.backtests import beside; "
        "asyncio.run(beside(pickle.load(open(sys.argv[1], 'rb'))))"
    )
    server = subprocess.Popen([sys.executable, "-c", call, str(tmp_path / "job")])
    try:
        (child,) = within(lambda: descendants(server.pid))
        within(lambda: len(list(Path(f"/proc/{child}/task").iterdir())) > 1)  # it has its job
        assert os.getpriority(os.PRIO_PROCESS, child) == 19
    finally:
        server.kill()
        server.wait()
    within(lambda: not alive(child))
