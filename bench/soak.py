"""A gateway under steady load for half an hour: does anything grow, stay behind or get lost.

300 requests a second on an absolute schedule (whoever falls behind catches up), three quarters
streamed, one in twenty hung up by its client, before two simulated replicas; all real processes.
It holds when every request ended once for its client and left exactly one record, over all files
the records were cut into; when no gauge is left above 0; and when the gateway's memory has grown by
no more than 5 % since the end of the first tenth. Exits 1 when it does not, 2 when it cannot run,
or when the machine was too busy for the schedule.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from surgetank.adapters.child import Child
from surgetank.adapters.http import fetch
from surgetank.adapters.records import read_records
from surgetank.errors import SurgetankError
from surgetank.loadtest.client import CHAT, Client, Exchange
from surgetank.policy.request import Outcome

START = 60.0  # seconds for a process to come up
TIMEOUT = 60.0
GROWTH = 0.05
MOST_LATE = 1.0  # seconds; then the machine, not the gateway, was measured
GAUGES = (
    "surgetank_queued", "surgetank_running", "surgetank_replica_in_flight",
    "surgetank_replica_kv_reserved_tokens",
)  # fmt: skip


@dataclass
class Books:
    """What the clients saw."""

    sent: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    unsent: int = 0  # hung up, or out of time, before a connection took them
    late: float = 0.0  # seconds the schedule was behind at most

    def end(self, exchange: Exchange) -> None:
        outcome = exchange.outcome
        self.unsent += exchange.sent is None
        self.ended[
            str(outcome)
            if outcome in {Outcome.COMPLETED, Outcome.ABANDONED}
            else f"{exchange.status} {exchange.reason}"
        ] += 1


async def child(stack: AsyncExitStack, name: str, *command: str) -> tuple[Child, list[str]]:
    made = Child(
        name, [sys.executable, "-m", "surgetank", *command], start_timeout=START, stop_timeout=40.0
    )
    words = await made.start()
    stack.push_async_callback(made.stop)
    return made, words


async def metrics(admin: str) -> dict[str, float]:
    """Each metric, summed over its labels."""
    answer = await fetch(f"{admin}/metrics", timeout=TIMEOUT)
    found: Counter[str] = Counter()
    for line in answer.text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] += float(value)  # type: ignore[assignment]  # sums
    return dict(found)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the state of other processes."""
    while not await condition():  # noqa: ASYNC110 - they tell nobody
        await asyncio.sleep(0.1)


async def _ready(admin: str, replicas: int) -> bool:
    return (await metrics(admin)).get("surgetank_replica_ready", 0) == replicas


async def _at_rest(admin: str) -> bool:
    found = await metrics(admin)
    return not any(found.get(name, 0) for name in GAUGES)


async def _ended(books: Books) -> bool:
    return sum(books.ended.values()) == books.sent


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * int(next(x for x in text.splitlines() if x.startswith("VmRSS:")).split()[1])


def cpu(pid: int) -> float:
    """Processor seconds of a process."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / 100


async def load(client: Client, books: Books, rate: float, seconds: float) -> None:
    """Launch each request when it is due; a look at the clock every few milliseconds."""
    draw = random.Random(1)
    bodies = [
        json.dumps({
            "model": "tiny",
            "messages": [{"role": "user", "content": "soak " * size}],
            "max_tokens": 1 + size % 8,
            "stream": size % 4 != 0,
        }).encode()
        for size in range(1, 41)
    ]  # fmt: skip
    began = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        due = int((now - began) * rate)
        books.late = max(books.late, (due - books.sent) / rate)
        while books.sent < due:
            books.sent += 1
            leaves = draw.random() * 0.05 if draw.random() < 0.05 else None
            message = client.message(draw.choice(bodies), key="", route=CHAT)
            client.launch(message, books.end, timeout=TIMEOUT, abandon_after=leaves)
        await asyncio.sleep(0.004)


async def soak(folder: Path, rate: float, seconds: float) -> int:
    async with AsyncExitStack() as stack:
        engine = ("engine", "--port", "0", "--model", "tiny", "--profile", "tiny-fast")
        urls = [(await child(stack, "engine", *engine))[1][0] for _ in range(2)]
        config = folder / "soak.json"
        settings: dict[str, Any] = {
            "listen": {"port": 0},
            "admin": {"port": 0},
            "replicas": [{"url": url} for url in urls],
            "records": {"path": str(folder / "records.jsonl"), "max_file_bytes": "32MiB"},
        }
        config.write_text(json.dumps(settings))
        gateway, words = await child(stack, "gateway", "serve", "-c", str(config))
        admin = words[1].removeprefix("admin=")
        pid = gateway.pid
        assert pid is not None  # it has just said READY
        async with asyncio.timeout(START):
            await until(lambda: _ready(admin, len(urls)))
        client, books = Client(words[0]), Books()
        stack.push_async_callback(client.close)
        running = asyncio.ensure_future(load(client, books, rate, seconds))
        began, early = time.monotonic(), 0
        every = seconds / 10
        print(f"{rate:g} requests a second for {seconds:g} s")
        for tenth in range(1, 11):
            await asyncio.wait([running], timeout=began + tenth * every - time.monotonic())
            size = memory(pid)
            early = early or size
            print(
                f"{time.monotonic() - began:6.0f} s: {books.sent} sent, {dict(books.ended)}, "
                f"{size / 1e6:.1f} MB ({size / early - 1:+.2%}), {cpu(pid):.1f} CPU s",
                flush=True,
            )
        await running
        return await verdict(folder, books, admin, memory(pid) / early - 1)


async def verdict(folder: Path, books: Books, admin: str, growth: float) -> int:
    async with asyncio.timeout(2 * TIMEOUT):
        await until(lambda: _ended(books))
        await until(lambda: _at_rest(admin))
    await asyncio.sleep(1.0)  # the records' last batch is written 0.15 s behind
    found: Counter[str] = Counter()
    files = sorted(folder.glob("records*.jsonl"))  # noqa: ASYNC240 - the load is over
    for path in files:
        found.update(record.id for record in read_records(path))
    # A client that hangs up before its request was read whole has asked for nothing.
    unread = books.sent - books.unsent - len(found)
    checks = {
        "each request ended once for its client": sum(books.ended.values()) == books.sent,
        "one record for each request that was read": max(found.values()) == 1
        and 0 <= unread <= books.ended[str(Outcome.ABANDONED)],
        "all but those hung up completed": set(books.ended)
        <= {str(Outcome.COMPLETED), str(Outcome.ABANDONED)},
        f"memory grew by no more than {GROWTH:.0%}": growth <= GROWTH,
    }
    print(
        f"{books.sent} due: {dict(books.ended)}; {books.unsent} never sent, {unread} hung up "
        f"unread, {len(found)} records in {len(files)} files; gauges at 0; memory {growth:+.2%}; "
        f"schedule at most {books.late * 1000:.0f} ms behind"
    )
    if books.late > MOST_LATE:
        print("INVALID: the sender fell behind, so this machine is too busy to tell anything")
        return 2
    for what, holds in checks.items():
        print(f"  {'ok    ' if holds else 'MISSED'} {what}")
    return 0 if all(checks.values()) else 1


def main() -> None:
    """Run it, and exit with its verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=1800.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="surgetank-soak-") as folder:
        try:
            sys.exit(uvloop.run(soak(Path(folder), given.rate, given.seconds)))
        except (SurgetankError, OSError, TimeoutError) as error:
            print(f"soak: cannot run: {str(error) or 'it did not come to rest'}", file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main()
