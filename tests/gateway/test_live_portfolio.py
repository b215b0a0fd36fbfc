"""The portfolio's timer in a running server: it chooses, tells, and ends with the server."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from tests.cli.command import surgetank
from tests.gateway.processes import Served
from tests.gateway.scaled import (
    ENGINE,
    alive,
    burst,
    command,
    descendants,
    events,
    pids_of,
    pool,
    scaled,
    settings,
    until,
    until_states,
)

_CHILD = b"surgetank.cli.backtests"
_OLDER = "-20260101T000000000Z"  # in the name of records that were cut off


def chosen(folder: Path, **portfolio: Any) -> dict[str, Any]:
    """Settings of a server that back-tests every second and a half."""
    made = settings(folder)
    spec = {"engine": "tiny", "interval": 1.5, "cpu_seconds": 5, **portfolio}
    made["autoscaler"]["portfolio"] = spec
    # What is configured keeps far more than such a load needs: a choice has something to save.
    start = shlex.split(ENGINE)
    line = shlex.join([*start, "--model", "tiny", "--port", "{port}"])
    made["autoscaler"]["pools"] = [
        pool(base=1, scale={"standbys": 3, "max_standbys": 3}, process={"command": line})
    ]
    return made


def back_tests(server: int) -> set[int]:
    """Processes of a server that back-test."""
    found = set()
    for pid in descendants(server):
        path = Path(f"/proc/{pid}/cmdline")
        if path.exists() and _CHILD in path.read_bytes():
            found.add(pid)
    return found


async def told(served: Served) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(trust_env=False) as client:
        body = (await client.get(f"{served.admin}/status")).json()
    return list(body["portfolio"])


@pytest.mark.heavy  # half a minute
def test_a_server_chooses_twice_says_why_and_scales_by_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with scaled(tmp_path, command(tmp_path, "serve", chosen(tmp_path))) as served:
            await until_states(served, serving=1, standby=1)
            seen: set[float] = set()
            async with asyncio.timeout(120):
                while len(seen) < 2:
                    assert set(await burst(served, 8)) == {200}
                    seen |= {row["at"] for row in await told(served) if row["result"] != "failed"}
            (row,) = await told(served)
            assert row["pool"] == "tiny/both"
            assert "% at" in row["why"]
            assert "\n" not in row["why"]
            line = events(tmp_path, "portfolio")[-1]
            said = surgetank(
                "explain", str(tmp_path / "decisions.jsonl"), "--at", f"{line['t'] + 3}"
            )
            assert line["why"] in said.stdout
            assert f"portfolio of tiny/both {row['result']}" in served.child.errors
            assert {r.outcome for r in served.records()} == {"completed"}  # nobody was harmed

    uvloop.run(test())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_back_test_under_way_ends_with_its_server(tmp_path: Path, number: signal.Signals) -> None:
    """Its older records are a pipe that nobody writes to: it is under way until it is ended."""
    made = chosen(tmp_path, interval=0.2)
    os.mkfifo(tmp_path / f"records{_OLDER}.jsonl")

    async def test() -> None:
        child = command(tmp_path, "serve", made)
        async with scaled(tmp_path, child) as served:
            await until_states(served, serving=1)
            assert child.pid is not None
            server = child.pid
            await until(lambda: bool(back_tests(server)))
            under_way = back_tests(server)
            os.kill(server, number)
            await until(lambda: not any(map(alive, {server, *under_way})))

    try:
        uvloop.run(test())
    finally:
        for pid in pids_of(tmp_path):  # a killed server leaves them, warm, to its next life
            os.kill(pid, signal.SIGKILL)
