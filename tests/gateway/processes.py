"""Gateways and engines as real processes of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from surgetank.adapters.child import Child
from surgetank.policy.record import RequestRecord, parse

READY_WITHIN = 60.0


@dataclass
class Served:
    """A running `surgetank serve`."""

    child: Child
    url: str
    admin: str
    folder: Path

    def records(self) -> list[RequestRecord]:
        path = self.folder / "records.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [row for row in map(parse, lines) if isinstance(row, RequestRecord)]

    async def recorded(self, number: int) -> list[RequestRecord]:
        """Wait until so many records are in the file: it is written behind the requests."""
        async with asyncio.timeout(READY_WITHIN):
            while len(self.records()) < number:  # noqa: ASYNC110 - a file of another process
                await asyncio.sleep(0.02)
        return self.records()

    async def ready(self, replicas: int) -> None:
        """Wait until so many replicas have joined."""
        async with asyncio.timeout(READY_WITHIN), httpx.AsyncClient(trust_env=False) as client:
            while True:
                state = (await client.get(f"{self.admin}/readyz")).json()
                if list(state["replicas"].values()).count("ready") == replicas:
                    return
                await asyncio.sleep(0.02)

    async def metric(self, name: str) -> float:
        """Sum a metric over its labels."""
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"{self.admin}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@asynccontextmanager
async def serve(
    folder: Path,
    replicas: list[str],
    *,
    every_replica: dict[str, Any] | None = None,
    most_files: int | None = None,
    **sections: Any,
) -> AsyncIterator[Served]:
    """Run a gateway before `replicas`; sections of its configuration by name.

    `most_files`: the hard limit of open files it runs under.
    """
    settings = {
        "listen": {"port": 0},
        "admin": {"port": 0},
        "replicas": [{"url": url, **(every_replica or {})} for url in replicas],
        "records": {"path": str(folder / "records.jsonl")},
        "upstream": {"health_interval": 0.1},
        "drain_timeout": 10,
        **sections,
    }
    config = folder / "surgetank.yaml"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "surgetank", "serve", "-c", str(config)]
    if most_files is not None:
        command = ["sh", "-c", f'ulimit -n {most_files}; exec "$@"', "sh", *command]
    child = Child("the gateway", command, start_timeout=READY_WITHIN, stop_timeout=15.0)
    url, admin = await child.start()
    try:
        served = Served(child, url, admin.removeprefix("admin="), folder)
        await served.ready(len(replicas))
        yield served
    finally:
        await child.stop()


@asynccontextmanager
async def mock_engine(*options: str) -> AsyncIterator[tuple[str, Child]]:
    """Run a simulated replica; yields its address."""
    command = [sys.executable, "-m", "surgetank", "engine", "--port", "0", "--model", "tiny"]
    child = Child("engine", [*command, *options], start_timeout=READY_WITHIN, stop_timeout=5.0)
    url, *_ = await child.start()
    try:
        yield url, child
    finally:
        await child.stop()


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], **more}
