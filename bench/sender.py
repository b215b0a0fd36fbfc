"""The load sender's truthfulness and cost, in one session on one machine.

What is asked: does a server of constant 50 ms to the first token read 50 ms; how late are requests
at 1,000 a second; how many a second can one process send, and how many chunks receive; and does a
rising latency bend the schedule. Costs are processor time, and are held to a bound as ratios to a
bare uvloop client in the same run, which writes and reads and does nothing else. Exits 1 when a
bound is missed, 2 when something cannot be measured.

On a busy machine figures of a few milliseconds are the machine's. --ahead (root, Linux) runs all of
this ahead of the other work: a session of its own with a high weight.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

import sender_peers
from bare import request
from sender_peers import Seen
from surgetank.loadtest.client import Client
from surgetank.loadtest.pacing import keep
from surgetank.loadtest.processes import send
from surgetank.loadtest.sender import fire
from surgetank.loadtest.shot import Lag, LoadResult, Shot
from surgetank.loadtest.summary import nearest_rank

HERE = Path(__file__).parent
TTFT_MS = 50.0
LATENCIES = (0.1, 0.5, 2.0)


class CannotRunError(Exception):
    """Something that is needed is missing here."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its bound; `ok` is None where it has none."""

    what: str
    value: str
    ok: bool | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of the runs at 50 ms")
    parser.add_argument("--aiperf", help="its program, from an environment of its own")
    parser.add_argument("--guidellm", help="its program, from an environment of its own")
    parser.add_argument("--peer-rates", default="100,500", help="requests a second, for the peers")
    parser.add_argument("--only", help="parts, with commas between them")
    parser.add_argument("--ahead", action="store_true", help="ahead of other work (root)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    if args.ahead and "SENDER_AHEAD" not in os.environ:
        return _again_ahead()
    try:
        with tempfile.TemporaryDirectory() as name:
            rows = list(_rows(args, Path(name)))
    except CannotRunError as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 2
    if args.json:
        Path(args.json).write_text(json.dumps([[r.what, r.value, r.ok] for r in rows], indent=1))
    return 0 if all(row.ok is not False for row in rows) else 1


def _again_ahead() -> int:
    """Run this again in a session that goes before others."""
    command = [sys.executable, *sys.argv]
    environment = os.environ | {"SENDER_AHEAD": "1"}
    raised = 'echo -19 > /proc/self/autogroup 2>/dev/null; exec nice -n -15 "$@"'
    shell = ["sh", "-c", raised, "sh", *command]
    return subprocess.run(shell, env=environment, start_new_session=True, check=False).returncode


def _rows(args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Measure, printing each figure as it is known."""
    server = _compiled(folder)
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "constant": lambda: _constant(server, args.seconds),
        "peers": lambda: _peers(server, args, folder),
        "lag": lambda: _punctual(server),
        "rate": lambda: _most(server, folder),
        "chunks": lambda: _chunks(server),
        "schedules": lambda: _schedules(server),
    }
    for name in (args.only or ",".join(parts)).split(","):
        if name not in parts:
            raise CannotRunError(f"--only: {name} is not one of {', '.join(parts)}")
        for row in parts[name]():
            mark = {None: "", True: "  ok", False: "  MISSED"}[row.ok]
            print(f"{row.what:<58} {row.value}{mark}", flush=True)
            yield row


def _constant(server: Path, seconds: float) -> Iterator[Row]:
    result = _sent(server, TTFT_MS, rate=500, seconds=seconds, tokens=4)
    for since in ("send", "schedule"):
        p50, p99 = (1e3 * x for x in _ttft(result, since))
        ok = abs(p50 - TTFT_MS) <= 2 and abs(p99 - TTFT_MS) <= 10
        yield Row(f"surgetank: 50 ms at 500/s, from the {since}", _ms(p50, p99, result), ok)
    yield Row("  send lag P50, P99; CPU per request", _lag(result))


def _peers(server: Path, args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    tools = {"aiperf": (args.aiperf, sender_peers.aiperf)}
    tools["guidellm"] = (args.guidellm, sender_peers.guidellm)
    sender_peers.tokenizer(folder / "tokenizer")
    for name, (program, run) in tools.items():
        for rate in map(float, args.peer_rates.split(",")):
            if program is None:
                continue
            with _serving(server, TTFT_MS) as port:
                try:
                    url = f"http://127.0.0.1:{port}"
                    seen: Seen = run(program, url, rate, args.seconds, folder)
                except (subprocess.SubprocessError, OSError, KeyError) as error:
                    raise CannotRunError(f"{name}: {error}") from error
            text = f"P50 {seen.p50_ms:.1f} ms, P99 {seen.p99_ms:.1f} ms, {seen.rate:.0f}/s reached"
            yield Row(f"{name}: 50 ms at {rate:g}/s", text)


def _punctual(server: Path) -> Iterator[Row]:
    """Three times beside a process that wakes up as often and sends nothing: what the machine does.

    A busy machine is late by itself; the sender answers for what it adds.
    """
    ours, machine = [], []
    for _ in range(3):
        result = _sent(server, 20, rate=1000, seconds=4, tokens=4)
        ours.append(result.lag.p99)
        idle = uvloop.run(_wake(1000, 4))
        machine.append(idle.p99)
        yield Row(
            "  send lag at 1,000/s: P50, P99; waking up alone: P50, P99",
            f"{result.lag.p50 * 1e3:.2f}, {result.lag.p99 * 1e3:.2f} ms; "
            f"{idle.p50 * 1e3:.2f}, {idle.p99 * 1e3:.2f} ms",
        )
    middle, alone = sorted(ours)[1], sorted(machine)[1]
    yield Row(
        "send lag P99 at 1,000/s, one process: middle; the machine's own",
        f"{middle * 1e3:.2f} ms; {alone * 1e3:.2f} ms",
        middle - alone <= 1e-3,
    )


async def _wake(rate: float, seconds: float) -> Lag:
    lags: list[float] = []
    times = [n / rate for n in range(int(rate * seconds))]
    await keep(times, lambda _, due: lags.append(time.monotonic() - due), time.monotonic() + 0.05)
    return Lag.of(lags)


def _most(server: Path, folder: Path) -> Iterator[Row]:
    best, cpu = 0.0, math.inf
    for rate in (6000, 8000, 10_000, 12_000, 14_000, 16_000):
        result = _sent(server, 0, rate=rate, seconds=3, tokens=1, stream=False)
        cpu = min(cpu, result.cpu / len(result.lags))
        if result.valid and abs(_achieved(result) / rate - 1) < 0.01:
            best = rate
        yield Row(f"  {rate:,}/s asked for", f"{_achieved(result):,.0f}/s sent, {_lag(result)}")
    yield Row("highest rate kept within 1 %, one process, lag P99 < 20 ms", f"{best:,.0f}/s",
              best >= 10_000)  # fmt: skip
    with _serving(server, 0) as port:
        bare = _bare("requests", port, 3, 64)
        each = bare["cpu"] / bare["done"]
        yield Row("CPU per request: ours; bare uvloop closed loop; ratio",
                  f"{cpu * 1e6:.0f} us; {each * 1e6:.0f} us; {cpu / each:.1f}")  # fmt: skip
        if shutil.which("wrk"):
            yield _wrk(port, folder, cpu)


def _wrk(port: int, folder: Path, ours: float) -> Row:
    script = folder / "post.lua"
    body = _body(1, stream=False).decode()
    script.write_text(f"wrk.method='POST'\nwrk.body='{body}'\n")
    before = os.times()
    shown = subprocess.run(
        ["wrk", "-t1", "-c64", "-d3s", "-s", script, f"http://127.0.0.1:{port}/v1/chat/completions"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    after = os.times()
    cpu = after.children_user - before.children_user
    cpu += after.children_system - before.children_system
    found = re.search(r"(\d+) requests in", shown)
    done = int(found[1]) if found else 1
    return Row("  wrk's own maximum (closed loop); CPU per request; ratio",
               f"{done / 3:,.0f}/s; "
               f"{cpu / done * 1e6:.0f} us; {ours * done / cpu:.1f}")  # fmt: skip


def _chunks(server: Path) -> Iterator[Row]:
    """400 streams, each with a chunk every 5 ms: 80,000 a second, beside a bare client."""
    ratios: list[float] = []
    reached: list[float] = []
    for _ in range(3):
        with _serving(server, 1, interval_ms=5) as port:
            shots = [Shot(n * 0.1 / 400, _body(500, stream=True)) for n in range(400)]
            result = uvloop.run(send(f"http://127.0.0.1:{port}", shots, processes=1))
        tokens = sum(record.output_tokens or 0 for record in result.records)
        with _serving(server, 1, interval_ms=5) as port:
            bare = _bare("streams", port, 400, 500, 0.1)
        ours, theirs = result.cpu / tokens, bare["cpu"] / bare["done"]
        ratios.append(ours / theirs)
        reached.append(tokens / result.elapsed)
        yield Row(
            "  chunks: received; CPU each; bare uvloop the same",
            f"{tokens / result.elapsed:,.0f}/s; {ours * 1e6:.1f} us; "
            f"{bare['done'] / bare['seconds']:,.0f}/s; {theirs * 1e6:.1f} us",
        )
    best, middle = max(reached), sorted(ratios)[1]
    yield Row("chunks received by one process", f"{best:,.0f}/s", best >= 60_000)
    yield Row("CPU per chunk, ours / bare, middle of three", f"{middle:.2f}", middle <= 1.5)


def _schedules(server: Path) -> Iterator[Row]:
    """20 a second for 5 s, then 80 a second for 5 s, at three latencies at once."""
    times = [n / 20 for n in range(100)] + [5 + n / 80 for n in range(400)]
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(_serving(server, 1e3 * x)) for x in LATENCIES]

        async def ours(port: int) -> LoadResult:
            client = Client(f"http://127.0.0.1:{port}")
            shots = [Shot(at, _body(1, stream=True)) for at in times]
            result = await fire(client, shots)
            await client.close()
            return result

        async def closed(port: int) -> list[float]:
            client, sent, start = Client(f"http://127.0.0.1:{port}"), [], time.monotonic()
            while (now := time.monotonic() - start) < 10:
                sent.append(now)
                await drive_one(client)
                await asyncio.sleep(1 / 20 if now < 5 else 1 / 80)
            await client.close()
            return sent

        async def drive_one(client: Client) -> None:
            await fire(client, [Shot(0.0, _body(1, stream=True))], start=time.monotonic())

        async def both() -> tuple[list[LoadResult], list[list[float]]]:
            results = await asyncio.gather(*map(ours, ports))
            return list(results), list(await asyncio.gather(*map(closed, ports)))

        opens, closes = uvloop.run(both())
    for latency, result, sent in zip(LATENCIES, opens, closes, strict=True):
        start = (result.records[0].scheduled or 0.0) - 0.0
        at = [(record.sent or math.inf) - start for record in result.records]
        # The first shot of the peak is due at 5 s, and may not be early: what is late by less than
        # half a gap is on time.
        rates = _rate(at, 0, 5 - 0.5 / 80), _rate(at, 5 - 0.5 / 80, 10 + 0.5 / 80)
        ok = abs(rates[0] / 20 - 1) <= 0.01 and abs(rates[1] / 80 - 1) <= 0.01
        yield Row(f"20 -> 80/s at {latency:g} s latency: ours; a closed loop",
                  f"{rates[0]:.1f} -> {rates[1]:.1f}/s; "
                  f"{_rate(sent, 0, 5):.1f} -> {_rate(sent, 5, 10):.1f}/s", ok)  # fmt: skip


def _rate(moments: list[float], begin: float, end: float) -> float:
    return sum(begin <= moment < end for moment in moments) / round(end - begin)


# --- the parts


def _body(tokens: int, *, stream: bool) -> bytes:
    return request(tokens, stream=stream).partition(b"\r\n\r\n")[2]


def _compiled(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise CannotRunError("a C compiler (cc) is needed for the server")
    program = folder / "constant"
    subprocess.run([compiler, "-O2", "-o", program, HERE / "constant.c"], check=True)
    return program


@contextmanager
def _serving(server: Path, ttft_ms: float, *, interval_ms: float = 0.0) -> Iterator[int]:
    microseconds = [str(round(1e3 * ttft_ms)), str(round(1e3 * interval_ms))]
    with subprocess.Popen(
        [server, *microseconds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            assert process.stdin is not None
            process.stdin.close()


def _sent(
    server: Path, ttft_ms: float, *, rate: float, seconds: float, tokens: int, stream: bool = True
) -> LoadResult:
    body = _body(tokens, stream=stream)
    shots = [Shot(n / rate, body, stream=stream) for n in range(int(rate * seconds))]
    with _serving(server, ttft_ms) as port:
        result = uvloop.run(send(f"http://127.0.0.1:{port}", shots, processes=1))
    wrong = [record.reason for record in result.records if record.outcome != "completed"]
    if wrong:
        raise CannotRunError(f"{len(wrong)} requests failed: {wrong[0]}")
    return result


def _bare(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "bare.py"), *map(str, arguments)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, check=True).stdout
    )
    return found


def _ttft(result: LoadResult, since: str) -> tuple[float, float]:
    values = sorted(
        record.first_token - (record.sent if since == "send" else record.scheduled)
        for record in result.records
        if record.first_token and record.sent and record.scheduled
    )
    return nearest_rank(values, 0.5), nearest_rank(values, 0.99)


def _achieved(result: LoadResult) -> float:
    sent = [record.sent for record in result.records if record.sent]
    return (len(sent) - 1) / (max(sent) - min(sent))


def _lag(result: LoadResult) -> str:
    cpu = 1e6 * result.cpu / len(result.lags)
    return f"lag {result.lag.p50 * 1e3:.2f}, {result.lag.p99 * 1e3:.2f} ms; {cpu:.0f} us"


def _ms(p50: float, p99: float, result: LoadResult) -> str:
    return f"P50 {p50:.1f} ms, P99 {p99:.1f} ms, {_achieved(result):.0f}/s reached"


if __name__ == "__main__":
    sys.exit(main())
