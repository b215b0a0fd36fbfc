"""The simulator beside what it simulates: a gateway and engines as processes of their own."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from surgetank.engine import profile as profiles
from surgetank.loadtest.client import Client
from surgetank.loadtest.sender import LoadResult, Shot, fire
from surgetank.policy.flow import FlowSpec
from surgetank.policy.journal import replay
from surgetank.simulation.pulses import Sender, draw_pulse
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario
from surgetank.simulation.workload import Workload
from surgetank.traffic.pulse import parse_pulse
from surgetank.traffic.tokencounts import Lengths
from surgetank.traffic.trace import Seconds
from tests.gateway.processes import mock_engine, serve

MODEL = "tiny"  # as tests.gateway.processes starts them
ENGINE = "demo-fleet"
FLOW = {"max_in_flight": 8, "queue_timeout": 60.0, "request_timeout": 120.0}
TEXT = "surge tank "


def shots(load: Workload) -> list[Shot]:
    """The workload as requests of exactly so many tokens."""
    made = []
    rows = zip(load.arrived.tolist(), load.prompt.tolist(), load.output.tolist(), strict=True)
    for at, prompt, output in rows:
        size = 4 * max(1, prompt - 4)
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": (TEXT * (size // len(TEXT) + 1))[:size]}],
            "max_tokens": output,
            "ignore_eos": True,
            "stream": True,
        }
        made.append(Shot(at, json.dumps(body).encode(), model=MODEL, max_tokens=output))
    return made


async def live(load: Workload, folder: Path, replicas: int) -> tuple[LoadResult, list[str]]:
    """Send it to a real gateway before simulated engines; the journal comes with it."""
    journal = folder / "journal.jsonl"
    async with AsyncExitStack() as parts:
        engines = [mock_engine("--profile", ENGINE) for _ in range(replicas)]
        urls = [(await parts.enter_async_context(engine))[0] for engine in engines]
        gateway = serve(
            folder,
            urls,
            flow=FLOW,
            upstream={"health_interval": 1.0},
            journal={"path": str(journal)},
        )
        served = await parts.enter_async_context(gateway)
        client = Client(served.url)
        parts.push_async_callback(client.close)
        result = await fire(client, shots(load))
        await served.recorded(len(load))
    return result, journal.read_text().splitlines()


def simulated(load: Workload, replicas: int, seed: int) -> Seconds:
    pool = PoolPlan(model=MODEL, profile=profiles.find(ENGINE), replicas=replicas)
    flow = FlowSpec(max_in_flight=8, queue_timeout=60.0, request_timeout=120.0)
    made = Scenario(workload=load, pools=(pool,), policy="static", flow=flow, seed=seed)
    return simulate(made).requests.ttft


@pytest.mark.heavy
def test_first_tokens_come_when_the_live_fleets_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Median of three pulses: TTFT P50 and P95 within 10 % where they exceed 200 ms."""
    found: list[Seconds] = []
    told: list[str] = []
    for seed in range(3):
        load = draw_pulse(
            parse_pulse("2:14:9:30:30"),
            Lengths("uniform", 100, 300),
            Lengths("uniform", 30, 60),
            senders=(Sender("default", share=1.0),),
            model=MODEL,
            seed=seed,
        )
        bounded = Workload(
            **{name: getattr(load, name) for name in load.__slots__ if name != "max_tokens"},
            max_tokens=load.output,
        )
        folder = tmp_path / str(seed)
        folder.mkdir()
        result, journal = asyncio.run(live(bounded, folder, replicas=2))
        assert {record.outcome for record in result.records} == {"completed"}
        assert replay(journal) is None
        real = np.array([record.ttft or np.nan for record in result.records])
        model = simulated(bounded, 2, seed)
        ours = np.percentile(model, (50, 95))
        theirs = np.percentile(real, (50, 95))
        assert theirs.min() > 0.2
        assert result.lag.p99 < 0.1 * theirs.min(), f"the sender was late: {result.lag}"
        found.append(ours / theirs)
        told.append(f"{len(load)} requests, P50 and P95 simulated {ours}, live {theirs}")
    with capsys.disabled():
        print(*told, f"ratios {found}", sep="\n")  # noqa: T201 - the figures are the point
    assert np.abs(np.median(found, axis=0) - 1).max() < 0.10


def test_the_journal_of_a_live_gateway_replays_identically(tmp_path: Path) -> None:
    load = draw_pulse(
        parse_pulse("10:60:0.5:1.5:1.5"),
        Lengths("uniform", 20, 60),
        Lengths("uniform", 4, 12),
        senders=(Sender("default", share=1.0),),
        model=MODEL,
        seed=1,
    )
    _, journal = asyncio.run(live(load, tmp_path, replicas=1))
    assert len(journal) > 3 * len(load)
    assert replay(journal) is None
