"""A served fleet that grows and shrinks, as real processes: deaths of every part included."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from tests.gateway.processes import chat
from tests.gateway.scaled import (
    TIMEOUT,
    alive,
    burst,
    command,
    decisions,
    events,
    pids_of,
    pool,
    scaled,
    settings,
    states,
    until,
    until_states,
)


def test_a_burst_promotes_the_standby_and_every_stream_of_it_ends_well(tmp_path: Path) -> None:
    async def test() -> None:
        async with scaled(tmp_path, command(tmp_path, "serve", settings(tmp_path))) as served:
            await until_states(served, serving=1, standby=1)
            assert set(await burst(served, 60)) == {200}
            done = [effect["do"] for line in decisions(tmp_path) for effect in line["effects"]]
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


def test_while_a_replica_starts_who_is_refused_is_told_when_it_will_serve(tmp_path: Path) -> None:
    """By the start that was measured: what is told is its time, and at most a second after it."""
    made = settings(tmp_path)
    line = pool()["process"]["command"].replace("--cold-start 0.3", "--cold-start 2")
    made["autoscaler"]["pools"] = [
        pool(scale={"standbys": 0, "max_standbys": 0}, process={"command": line})
    ]

    async def test() -> list[tuple[float, float, float]]:
        told: list[tuple[float, float, float]] = []
        async with (
            scaled(tmp_path, command(tmp_path, "serve", made)) as served,
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client,
        ):
            await until_states(served, serving=1)
            os.kill(min(pids_of(tmp_path)), signal.SIGKILL)
            async with asyncio.timeout(TIMEOUT):
                await until(lambda: bool(events(tmp_path, "crashed")))
                while True:
                    at = time.time()
                    body = chat(max_tokens=3)
                    reply = await client.post(f"{served.url}/v1/chat/completions", json=body)
                    if reply.status_code == 200:
                        return told
                    assert reply.status_code == 503
                    wait = float(reply.headers["retry-after-ms"]) / 1000
                    told.append((at, time.time(), wait))
                    await asyncio.sleep(0.1)

    told = uvloop.run(test())
    first, second, *_ = (line["t"] for line in decisions(tmp_path) if _starts(line))
    ready = second + events(tmp_path, "became_ready")[0]["t"] - first
    # Those that were answered before it was overdue; nobody could know of the others.
    known = [(at, answered, wait) for at, answered, wait in told if answered < ready]
    assert known
    assert [row for row in known if row[1] + row[2] < ready - 0.25] == []
    assert [row for row in known if row[0] + row[2] > ready + 1.25] == []


def _starts(line: dict[str, Any]) -> bool:
    return any(effect["do"] == "start" for effect in line["effects"])
