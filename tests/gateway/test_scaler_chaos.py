"""What may befall a scaled fleet in a burst, as real processes: deaths, hangs, silent metrics."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from tests.gateway.processes import Served
from tests.gateway.scaled import (
    TIMEOUT,
    alive,
    burst,
    command,
    decisions,
    descendants,
    events,
    pool,
    scaled,
    settings,
    states,
    until,
    until_states,
)


def with_pool(folder: Path, **more: Any) -> dict[str, Any]:
    made = settings(folder)
    made["autoscaler"]["pools"] = [pool(**more)]
    return made


def pid_of(folder: Path, replica: str) -> int:
    rows = json.loads((folder / "state" / "replicas-tiny%2Fboth.json").read_text())["replicas"]
    return next(int(row["pid"]) for row in rows if row["id"] == replica)


def did(folder: Path, what: str) -> list[str]:
    """Replicas to which it was done, in order."""
    return [e["replica"] for line in decisions(folder) for e in line["effects"] if e["do"] == what]


async def replicas(served: Served) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(trust_env=False) as client:
        return list((await client.get(f"{served.admin}/replicas")).json()["replicas"])


def test_a_standby_killed_as_it_is_promoted_costs_at_most_its_own_streams(tmp_path: Path) -> None:
    async def test() -> None:
        async with scaled(tmp_path, command(tmp_path, "serve", settings(tmp_path))) as served:
            found = await until_states(served, serving=1, standby=1)
            standby = next(name for name, state in found.items() if state == "standby")
            doomed = pid_of(tmp_path, standby)
            running = asyncio.ensure_future(burst(served, 60))
            await until(lambda: standby in did(tmp_path, "attach"))
            os.kill(doomed, signal.SIGKILL)
            codes = await running
            assert set(codes) <= {200, 502}
            assert codes.count(502) <= 8  # its seats
            await until(lambda: bool(events(tmp_path, "crashed")))
            assert events(tmp_path, "crashed")[0]["replica"] == standby
            await until_states(served, serving=1, standby=1)  # refilled, what was killed too
            assert set(await burst(served, 5)) == {200}
            records = await served.recorded(65)
            assert {r.outcome for r in records} <= {"completed", "upstream_failed"}
            # Who had seen nothing of an answer was asked elsewhere.
            lost = [r for r in records if r.outcome == "upstream_failed"]
            assert {r.replica for r in lost} <= {standby}

    uvloop.run(test())


@pytest.mark.heavy
def test_a_start_that_hangs_is_ended_and_another_serves_in_its_place(tmp_path: Path) -> None:
    """The first start to come by never gets ready, and does not end on SIGTERM either."""
    engine = pool()["process"]["command"]
    flag = tmp_path / "hangs"
    hangs = "trap : TERM; while :; do sleep 1; done"
    line = f"sh -c 'if mkdir {flag} 2>/dev/null; then {hangs}; else exec {engine}; fi'"

    async def test() -> None:
        made = with_pool(
            tmp_path, base=2, start_timeout=6, process={"command": line, "stop_timeout": 1}
        )
        made["autoscaler"]["pools"][0]["scale"] = {"standbys": 0, "max_standbys": 0}
        child = command(tmp_path, "serve", made)
        async with scaled(tmp_path, child) as served:
            await until_states(served, serving=1)
            assert set(await burst(served, 20)) == {200}  # meanwhile
            await until_states(served, serving=2)
            (given_up,) = did(tmp_path, "stop")
            await until(lambda: given_up not in json.dumps(_rows(tmp_path)))
            assert set(await burst(served, 20)) == {200}
            assert child.pid is not None
            left = [pid for pid in descendants(child.pid) if _runs(pid, "sleep 1")]
            assert left == []
        assert {r.outcome for r in served.records()} == {"completed"}

    uvloop.run(test())


def _rows(folder: Path) -> Any:
    return json.loads((folder / "state" / "replicas-tiny%2Fboth.json").read_text())


def _runs(pid: int, word: str) -> bool:
    path = Path(f"/proc/{pid}/cmdline")
    return path.exists() and word in path.read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.heavy
def test_starts_that_fail_three_times_are_backed_off_while_what_serves_goes_on(
    tmp_path: Path,
) -> None:
    engine = pool()["process"]["command"]
    # The first two come up, the next three fail, all later ones come up.
    count = tmp_path / "count"
    line = (
        f"sh -c 'echo x >> {count}; n=$(wc -l < {count}); "
        f"if [ $n -gt 2 ] && [ $n -lt 6 ]; then echo no GPU; exit 3; else exec {engine}; fi'"
    )

    async def test() -> None:
        made = with_pool(tmp_path, process={"command": line})
        async with scaled(tmp_path, command(tmp_path, "serve", made)) as served:
            await until_states(served, serving=1, standby=1)
            assert set(await burst(served, 60)) == {200}
            async with asyncio.timeout(TIMEOUT):
                while len(events(tmp_path, "failed")) < 3:
                    assert set(await burst(served, 5)) == {200}
            failed = events(tmp_path, "failed")
            assert {line["why"] for line in failed} == {"ended with status 3: no GPU"}
            times = [line["t"] for line in failed]
            # One after the other, or those asked for together; never sooner than half a second.
            pauses = sorted({round(t, 1) for t in times})
            assert pauses[-1] - pauses[0] >= 0.5
            await until(lambda: len(events(tmp_path, "became_ready")) >= 3)
            assert set(await burst(served, 5)) == {200}

    uvloop.run(test())


def test_without_the_engines_metrics_a_burst_promotes_and_nothing_is_stopped(
    tmp_path: Path,
) -> None:
    """The gateway's own signals say that it bursts; what an engine no longer tells holds."""

    async def test() -> None:
        made = with_pool(tmp_path, scale={"standbys": 1, "scale_down_delay": 600})
        async with scaled(tmp_path, command(tmp_path, "serve", made)) as served:
            found = await until_states(served, serving=1, standby=1)
            standby = next(name for name, state in found.items() if state == "standby")
            async with httpx.AsyncClient(trust_env=False) as client:
                for row in await replicas(served):
                    fault = {"kind": "metrics-error", "status": 500}
                    reply = await client.post(f"{row['url']}/mock/faults", json=fault)
                    assert reply.status_code == 200, reply.text
            assert set(await burst(served, 60)) == {200}
            assert standby in did(tmp_path, "attach")
            assert did(tmp_path, "drain") == did(tmp_path, "stop") == did(tmp_path, "detach") == []
            assert list((await states(served)).values()).count("serving") >= 2
            assert {r.outcome for r in await served.recorded(60)} == {"completed"}

    uvloop.run(test())
    assert not [pid for pid in descendants(os.getpid()) if alive(pid) and _runs(pid, str(tmp_path))]
