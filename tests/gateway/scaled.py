"""A served fleet that grows and shrinks, as real processes: its settings, and what it does."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

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


def decisions(folder: Path) -> list[dict[str, Any]]:
    """Lines of the decision log so far; a last one that is not whole yet is left out."""
    path = folder / "decisions.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [line for line in decisions(folder) if line.get("event") == name]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - other processes bring it about
            await asyncio.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """All processes below one, those in sessions of their own included."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for word in task.read_text().split():
            found |= {int(word)} | descendants(int(word))
    return found
