"""A served fleet that grows and shrinks, as real processes: deaths of every part included."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from surgetank.adapters.child import Child
from tests.gateway.processes import READY_WITHIN, Served, chat

TIMEOUT = 60.0
ENGINE = shlex.join([sys.executable, "-m", "surgetank", "engine", "--profile", "tiny"])


def pool(**more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "base": 1,
        "max_replicas": 4,
        "process": {"command": f"{ENGINE} --model tiny --port {{port}} --cold-start 0.3"},
        "scale": {"standbys": 1, "scale_down_delay": 3},
        **more,
    }


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "listen": {"port": 0},
        "admin": {"port": 0},
        "records": {"path": str(folder / "records.jsonl")},
        "upstream": {"health_interval": 0.1},
        "drain_timeout": 5,
        "autoscaler": {
            "state_dir": str(folder / "state"),
            "decisions": str(folder / "decisions.jsonl"),
            "pools": [pool()],
        },
        **more,
    }


def command(folder: Path, name: str, config: dict[str, Any]) -> Child:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    line = [sys.executable, "-m", "surgetank", name, "-c", str(path)]
    return Child(name, line, start_timeout=READY_WITHIN, stop_timeout=20.0)


@asynccontextmanager
async def scaled(folder: Path, child: Child) -> AsyncIterator[Served]:
    url, admin, *_ = await child.start()
    try:
        yield Served(child, url, admin.removeprefix("admin="), folder)
    finally:
        await child.stop()


async def states(served: Served) -> dict[str, str]:
    """Every replica that is well, and whether it serves or stands by."""
    async with httpx.AsyncClient(trust_env=False) as client:
        body = (await client.get(f"{served.admin}/observation")).json()
    rows = [row for each in body["pools"] for row in each["replicas"]]
    return {row["id"]: row["state"] for row in rows if row["ready"]}


async def until_states(served: Served, **wanted: int) -> dict[str, str]:
    async with asyncio.timeout(TIMEOUT):
        while True:
            found = await states(served)
            counts = {name: list(found.values()).count(name) for name in wanted}
            if all(counts[name] >= number for name, number in wanted.items()):
                return found
            await asyncio.sleep(0.05)


def pids_of(folder: Path) -> set[int]:
    """Processes started from a state folder: each replica's command names its own port."""
    state = folder / "state"
    found = set()
    for path in state.glob("*.json"):
        for row in json.loads(path.read_text()).get("replicas", ()):
            found.add(int(row["pid"]))
    return {pid for pid in found if alive(pid)}


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


async def burst(served: Served, number: int) -> list[int]:
    async with httpx.AsyncClient(
        trust_env=False, timeout=TIMEOUT, limits=httpx.Limits(max_connections=None)
    ) as client:
        body = chat(max_tokens=60)
        replies = await asyncio.gather(
            *(client.post(f"{served.url}/v1/chat/completions", json=body) for _ in range(number))
        )
        return [reply.status_code for reply in replies]


def test_a_burst_promotes_the_standby_and_every_stream_of_it_ends_well(tmp_path: Path) -> None:
    async def test() -> None:
        async with scaled(tmp_path, command(tmp_path, "serve", settings(tmp_path))) as served:
            await until_states(served, serving=1, standby=1)
            assert set(await burst(served, 60)) == {200}
            lines = [json.loads(x) for x in (tmp_path / "decisions.jsonl").read_text().splitlines()]
            done = [effect["do"] for line in lines for effect in line["effects"]]
            assert done.count("attach") >= 2  # the base's, and at least one standby's
            # Afterwards the fleet shrinks to its base, and cuts nothing while it does.
            async with asyncio.timeout(TIMEOUT):
                while list((await states(served)).values()).count("serving") > 1:
                    assert set(await burst(served, 1)) == {200}
            assert {r.outcome for r in served.records()} == {"completed"}
            pids = pids_of(tmp_path)
            assert pids
        assert not any(alive(pid) for pid in pids)

    uvloop.run(test())


def test_after_kill_9_of_the_server_its_replicas_are_adopted_and_none_is_left(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        first = command(tmp_path, "serve", settings(tmp_path))
        async with scaled(tmp_path, first) as served:
            before = await until_states(served, serving=1, standby=1)
            assert set(await burst(served, 5)) == {200}
            await served.recorded(5)
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
        pids = pids_of(tmp_path)
        assert len(pids) >= 2
        async with scaled(tmp_path, command(tmp_path, "serve", settings(tmp_path))) as again:
            after = await until_states(again, serving=1, standby=1)
            assert set(before) <= set(after)
            assert set(await burst(again, 5)) == {200}
            assert [r.outcome for r in await again.recorded(10)] == ["completed"] * 10
            pids |= pids_of(tmp_path)
        assert not any(alive(pid) for pid in pids)

    uvloop.run(test())


@pytest.mark.heavy
def test_a_killed_replica_is_replaced_while_the_others_serve(tmp_path: Path) -> None:
    async def test() -> None:
        async with scaled(tmp_path, command(tmp_path, "serve", settings(tmp_path))) as served:
            before = await until_states(served, serving=1, standby=1)
            running = asyncio.ensure_future(burst(served, 30))
            doomed = min(pids_of(tmp_path))
            os.kill(doomed, signal.SIGKILL)
            codes = await running
            assert set(codes) <= {200, 502}
            assert codes.count(200) >= 15
            async with asyncio.timeout(TIMEOUT):
                while not set(  # noqa: ASYNC110 - the fleet of another process
                    await until_states(served, serving=1)
                ) - set(before):
                    await asyncio.sleep(0.05)
            assert set(await burst(served, 5)) == {200}

    uvloop.run(test())


def test_a_controller_alone_scales_a_gateway_in_another_process(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a" * 40)

    async def test() -> None:
        plain = settings(tmp_path, admin={"port": 0, "token_file": str(token)})
        del plain["autoscaler"]
        url, admin, *_ = await (gateway := command(tmp_path, "serve", plain)).start()
        try:
            alone = {
                "autoscaler": {
                    "state_dir": str(tmp_path / "state"),
                    "gateways": [admin.removeprefix("admin=")],
                    "token_file": str(token),
                    "pools": [pool()],
                }
            }
            controller = command(tmp_path, "autoscale", alone)
            await controller.start()
            try:
                async with asyncio.timeout(TIMEOUT), httpx.AsyncClient(trust_env=False) as client:
                    ready = f"{admin.removeprefix('admin=')}/readyz"
                    while (  # noqa: ASYNC110 - another process
                        await client.get(ready)
                    ).status_code != 200:
                        await asyncio.sleep(0.05)
                    reply = await client.post(
                        f"{url}/v1/chat/completions", json=chat(max_tokens=3), timeout=TIMEOUT
                    )
                    assert reply.status_code == 200
                pids = pids_of(tmp_path)
                assert pids
            finally:
                await controller.stop()
            assert not any(alive(pid) for pid in pids)
        finally:
            await gateway.stop()

    uvloop.run(test())
