"""The demo: what it sends, what it says of the numbers, and what it leaves behind (nothing)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop

from surgetank import config
from surgetank.adapters.llamacpp.model import write_tiny_gguf
from surgetank.adapters.llamacpp.process import LlamaServer
from surgetank.cli import demo as command
from surgetank.cli import main
from surgetank.gateway.keys import KeyRing
from surgetank.loadtest.client import Call, Client, Exchange
from surgetank.loadtest.sender import Lag, LoadResult, fire
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome
from surgetank.policy.tenant import Tenant, Tier
from surgetank.studies.demo import (
    KV_TOKENS,
    LONG,
    NOISY,
    QUIET,
    SLOTS,
    Act,
    long_burst,
    mixed_burst,
    verdict,
)
from surgetank.studies.gateway_process import GatewayProcess


def result(*rows: tuple[str, Outcome, float | None, int]) -> LoadResult:
    """Make records of (tenant, outcome, TTFT, output tokens)."""
    records = [
        RequestRecord(
            f"{n}",
            tenant=tenant,
            outcome=outcome.value,
            scheduled=50.0,
            first_token=None if ttft is None else 50.0 + ttft,
            output_tokens=tokens,
        )
        for n, (tenant, outcome, ttft, tokens) in enumerate(rows)
    ]
    return LoadResult(records, Lag(0.001, 0.002, 0.003), 1.5)


DIED = (LONG, Outcome.UPSTREAM_ERROR, 0.1, 180)
SERVED = (LONG, Outcome.COMPLETED, 0.5, 600)
MIXED_DIRECT = result(
    (NOISY, Outcome.UPSTREAM_ERROR, 0.1, 100),
    (NOISY, Outcome.COMPLETED, 0.1, 300),
    (QUIET, Outcome.COMPLETED, 3.25, 40),
)
MIXED_THROUGH = result(
    (NOISY, Outcome.COMPLETED, 1.0, 300),
    (NOISY, Outcome.QUEUE_TIMEOUT, None, 0),
    (QUIET, Outcome.COMPLETED, 0.125, 40),
)
SAVED = Act(
    long={"direct": result(DIED, DIED), "surgetank": result(SERVED, SERVED)},
    mixed={"direct": MIXED_DIRECT, "surgetank": MIXED_THROUGH},
)


def test_the_long_burst_is_24_different_prompts_at_one_instant_beyond_the_kv() -> None:
    shots = long_burst()
    assert len(shots) == 24
    assert {shot.at for shot in shots} == {0.0}
    assert len({shot.body for shot in shots}) == 24
    assert shots == long_burst()
    assert all(json.loads(shot.body)["max_tokens"] == shot.max_tokens == 600 for shot in shots)
    assert SLOTS * 600 > KV_TOKENS
    assert KV_TOKENS >= 3 * (75 + 600)


def test_the_mixed_burst_is_60_requests_one_tenant_at_once_and_one_spread() -> None:
    shots = mixed_burst()
    at = {t: sorted(s.at for s in shots if s.tenant == t) for t in (QUIET, NOISY)}
    assert len(shots) == 60
    assert len(set(at[NOISY])) == 1
    assert len(set(at[QUIET])) == len(at[QUIET]) == 16
    assert at[QUIET][0] < at[NOISY][0] < at[QUIET][-1]


def test_the_verdict_says_what_the_numbers_say() -> None:
    assert verdict(SAVED) == (
        "Sent straight at the engine, 0 of 2 long requests finished and 360 tokens were generated "
        "for nobody; through Surgetank 2 finished and 0 were wasted. Beside a noisy tenant, a "
        "quiet one had 1 of 1 requests served (direct: 1), its median first token after 0.12 s "
        "(direct: 3.25 s)."
    )


def test_the_verdict_admits_when_it_did_not_help() -> None:
    same = Act(long={"direct": result(SERVED), "surgetank": result(DIED)}, mixed=SAVED.mixed)
    assert verdict(same).startswith("Surgetank did not help here: 0 of 1")


def test_the_verdict_admits_when_the_quiet_tenant_waited_longer() -> None:
    slower = Act(long=SAVED.long, mixed={"direct": MIXED_THROUGH, "surgetank": MIXED_DIRECT})
    assert verdict(slower).endswith(
        "its median first token later than direct: 3.25 s against 0.12 s."
    )


def test_the_json_has_its_stable_names_and_the_texts_numbers() -> None:
    out = json.loads(json.dumps(SAVED.as_json()))
    assert out["requests"] == 2
    assert out["direct_finished"] == 0
    assert out["surgetank_finished"] == 2
    assert out["wasted_tokens"] == {"direct": 460, "surgetank": 0}
    assert list(out["tenants"]) == [NOISY, QUIET]
    assert out["tenants"][NOISY]["surgetank"] == {
        "requests": 2,
        "completed": 1,
        "refused": 1,
        "abandoned": 0,
        "failed": 0,
        "retried": 0,
        "attempts": 2,
        "amplification": 1.0,
        "ttft": {"p50": pytest.approx(1.0), "p95": None, "p99": None},
        "output_tokens": 300,
        "wasted_tokens": 0,
    }
    assert out["verdict"] == verdict(SAVED)


def test_the_table_shows_every_tenant_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    command.show(SAVED)
    text = capsys.readouterr().out
    for tenant in (LONG, NOISY, QUIET):
        assert text.count(tenant) >= 1
    assert text.count("direct") >= 3
    assert "0/2" in text
    assert "2/2" in text
    assert "3.25 s" in text
    assert " - " in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_gateways_configuration_is_valid_private_and_knows_its_keys(tmp_path: Path) -> None:
    gateway = GatewayProcess(
        tmp_path / "g",
        "http://127.0.0.1:9",
        [Tenant("noisy", tier="batch"), Tenant("quiet")],
        tiers=[Tier("batch", priority=2, kv_fill=0.7)],
        flow={"queue_timeout": 90.0},
        records=tmp_path / "r.jsonl",
    )
    loaded = config.load(tmp_path / "g" / "surgetank.yaml")
    assert [replica.url for replica in loaded.replicas] == ["http://127.0.0.1:9"]
    assert loaded.flow.queue_timeout == 90.0
    assert loaded.listen.port == 0
    assert loaded.tenants == (Tenant("noisy", tier="batch"), Tenant("quiet"))
    assert loaded.tiers == (Tier("batch", priority=2, kv_fill=0.7),)
    ring = KeyRing.load(loaded.auth, {})
    assert ring is not None
    for tenant, key in gateway.keys.items():
        assert ring.tenant(key.encode()) == tenant
        assert key not in (tmp_path / "g" / "surgetank.yaml").read_text()
    assert loaded.auth.keys_file is not None
    assert loaded.auth.hmac_secret_file is not None
    for name in (loaded.auth.keys_file, loaded.auth.hmac_secret_file):
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "g").stat().st_mode) == 0o700


def test_a_real_engine_is_wiped_out_at_once_and_serves_all_three_at_a_time(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model)

    async def at_once(url: str) -> Sequence[RequestRecord]:
        client = Client(url)
        try:
            return (await fire(client, long_burst())).records
        finally:
            await client.close()

    async def three_at_a_time(url: str) -> Sequence[Exchange]:
        client = Client(url)
        room = asyncio.Semaphore(3)

        async def one(body: bytes) -> Exchange:
            async with room:
                return await client.send(Call(body))

        try:
            return await asyncio.gather(*(one(shot.body) for shot in long_burst()[:12]))
        finally:
            await client.close()

    async def run() -> tuple[Sequence[RequestRecord], Sequence[Exchange]]:
        async with LlamaServer(model, slots=SLOTS, context=KV_TOKENS) as engine:
            wiped = await at_once(engine.url)
            await engine.restart()
            return wiped, await three_at_a_time(engine.url)

    wiped, served = uvloop.run(run())
    assert sum(record.outcome == "completed" for record in wiped) < 6
    assert {r.reason for r in wiped if r.outcome != "completed"} == {"500 server_error"}
    assert {record.status for record in wiped} == {200}
    assert [exchange.outcome for exchange in served] == [Outcome.COMPLETED] * 12
    assert {exchange.tokens for exchange in served} == {600}
    prompts = {exchange.usage and exchange.usage.prompt_tokens for exchange in served}
    assert prompts <= set(range(70, 83))


@pytest.mark.heavy  # `make demo` itself; the engine alone is tested by default
def test_the_first_act_saves_the_burst_and_keeps_its_records(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "surgetank", "demo", "--act", "1", "--json", "--records", str(kept)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    act = json.loads(done.stdout)["act1"]
    assert act["requests"] == 24
    assert act["direct_finished"] < 6
    assert act["surgetank_finished"] == 24
    assert act["wasted_tokens"]["surgetank"] == 0 < act["wasted_tokens"]["direct"]
    assert act["tenants"][QUIET]["surgetank"]["completed"] == 16
    assert act["tenants"][NOISY]["surgetank"]["failed"] == 0
    names = ["long-direct", "long-surgetank", "mixed-direct", "mixed-surgetank"]
    for name in names:
        path = kept / f"{name}.jsonl"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        records = [RequestRecord.from_line(line) for line in path.read_text().splitlines()]
        assert len(records) == (24 if name.startswith("long") else 60)
        assert all(r.scheduled is not None and r.sent is not None for r in records)
    assert done.stderr.splitlines()[0].endswith("straight at the engine ...")


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def run() -> tuple[int, str, list[int]]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "surgetank",
            "demo",
            "--act",
            "1",
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(60):
            first = (await process.stderr.readline()).decode()
            children = children_of(process.pid)
            process.send_signal(number)
            said = (await process.stderr.read()).decode()
            code = await process.wait()
        assert "straight at the engine" in first
        return code, said, children

    code, said, children = asyncio.run(run())
    assert code == 130
    assert said == "surgetank: interrupted; everything it started has ended\n"
    assert children
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not list(tmp_path.iterdir())


def test_without_the_extra_the_demo_names_it_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr(sys, "argv", ["surgetank", "demo"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == (
        "surgetank: gguf is not installed: pip install 'surgetank[demo]'\n"
    )
