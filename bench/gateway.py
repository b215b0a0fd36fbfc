"""The gateway's CPU and memory beside nginx and aiohttp, in one session on one machine.

Every proxy gets the same load from the same client and upstream: small requests at a fixed rate,
streams paced at 20 ms with evenly spread phases, and idle streams. What is counted is the CPU time
of all its processes; nothing is subtracted, warm-up is left out. Rounds are interleaved, and what
is held to a bound is the ratio to nginx within a round, since that is stable where microseconds
are not. Exits 1 when a bound is missed, 2 when something cannot be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxies import HERE, PROXIES, CannotRunError, Running, running

OURS, PEER = "surgetank", "nginx"
BOUNDS = {"request_us": 4.0, "chunk_us": 1.6}  # ours / nginx, at most
JOINED = 0.95  # reads per chunk: with fewer, chunks were late enough to meet the next
FILES = 8192  # descriptors: each idle stream takes two in a proxy
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """What every proxy gets. Rates in requests per second, times in seconds."""

    rate: float = 1000.0
    connections: int = 64
    streams: int = 200
    interval: float = 0.02
    idle: int = 1000
    warm: float = 1.0
    seconds: float = 4.0


@dataclass(slots=True)
class Figures:
    """One proxy's figures, a value a round. The shares are of one core."""

    request_us: list[float] = field(default_factory=list)
    chunk_us: list[float] = field(default_factory=list)
    idle_mb: list[float] = field(default_factory=list)  # per 1,000 streams
    reads_per_chunk: list[float] = field(default_factory=list)  # below 1: chunks were joined
    p99_ms: list[float] = field(default_factory=list)
    client_share: list[float] = field(default_factory=list)
    upstream_share: list[float] = field(default_factory=list)


class Peer:
    """The client or the upstream: a process of ours that speaks lines."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._name = script
        self._said = b""

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, timeout: float) -> str:
        """Return the next line; raises CannotRunError when none comes within `timeout` seconds."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._said:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                raise CannotRunError(f"{self._name} said nothing for {timeout:g} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise CannotRunError(f"{self._name} ended early; its error stands above")
            self._said += data
        line, self._said = self._said.split(b"\n", 1)
        return line.decode()

    def expect(self, event: str, timeout: float) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.hear(timeout))
        if said["event"] != event:
            raise CannotRunError(f"{self._name}: {said.get('message', said)}")
        return said


@contextmanager
def peer(script: str, *arguments: str) -> Iterator[Peer]:
    """Run a script of this folder until the block ends."""
    one = Peer(script, *arguments)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        for pipe in (one.process.stdin, one.process.stdout):
            if pipe is not None:
                pipe.close()


# What processes cost.


def tree(pid: int) -> list[int]:
    """List a process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in _tasks(parent):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def cpu_seconds(pid: int) -> float:
    """Add up user and system time of a process and its descendants.

    utime + stime come in ticks of 10 ms; schedstat has the same in nanoseconds, but loses what
    threads that have ended used: the larger one is right to a tick in any case.
    """
    total = 0.0
    for one in tree(pid):
        user, system = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13]
        exact = sum(int((task / "schedstat").read_text().split()[0]) for task in _tasks(one))
        total += max((int(user) + int(system)) / _TICK, exact / 1e9)
    return total


def memory_mb(pid: int) -> float:
    """Add up the proportional set size of a process and its descendants, in MB."""
    total = 0
    for one in tree(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1000


# One round of one proxy.


class Bench:
    """The client, the upstream, and what has been measured so far."""

    def __init__(self, load: Load, client: Peer, upstream: Peer, port: int) -> None:
        self._load = load
        self._client = client
        self._upstream = upstream
        self._upstream_port = port
        self.figures: dict[str, Figures] = {}

    def round(self, name: str) -> None:
        """Start a proxy, give it every load once, stop it. "direct" is no proxy at all."""
        figures = self.figures.setdefault(name, Figures())
        if name == "direct":
            self._measure(Running(0, self._upstream_port), figures)
            return
        with (
            tempfile.TemporaryDirectory(prefix="surgetank-bench-") as folder,
            running(name, Path(folder), self._upstream_port) as proxy,
        ):
            self._measure(proxy, figures)

    def _measure(self, proxy: Running, figures: Figures) -> None:
        load = self._load
        paced = {"warm": load.warm, "seconds": load.seconds}
        self._command(proxy, "requests", rate=load.rate, connections=8, warm=0.3, seconds=0.1)
        for event in ("begin", "end", "result"):
            self._client.expect(event, 30)
        if proxy.pid:
            figures.idle_mb.append(self._idle(proxy))

        self._command(proxy, "requests", rate=load.rate, connections=load.connections, **paced)
        cost, done, result = self._window(proxy, figures)
        if result["errors"]:
            raise CannotRunError(f"{result['errors']} requests were not answered with 200")
        figures.request_us.append(1e6 * cost / done)
        figures.p99_ms.append(result["p99_ms"])

        tokens = int((load.warm + load.seconds + 1) / load.interval)
        self._command(proxy, "streams", count=load.streams, tokens=tokens, **paced)
        cost, done, result = self._window(proxy, figures)
        if result["errors"] or result["broken"]:
            raise CannotRunError(f"streams were refused or not whole: {result}")
        figures.chunk_us.append(1e6 * cost / done)
        figures.reads_per_chunk.append(result["reads"] / done)

    def _idle(self, proxy: Running) -> float:
        before = memory_mb(proxy.pid)
        self._upstream.tell("hold")
        self._command(proxy, "idle", count=self._load.idle)
        if self._client.expect("idle", 60)["errors"]:
            raise CannotRunError("idle streams were refused")
        held = memory_mb(proxy.pid)
        self._client.tell("{}")
        self._client.expect("result", 30)
        self._upstream.tell("flow")
        return (held - before) * 1000 / self._load.idle

    def _command(self, proxy: Running, what: str, **members: object) -> None:
        command = {"do": what, "port": proxy.port, "key": proxy.key} | members
        self._client.tell(json.dumps(command))

    def _window(self, proxy: Running, figures: Figures) -> tuple[float, int, dict[str, Any]]:
        """CPU seconds of the proxy, answers and the client's verdict from "begin" to "end"."""
        pids = (proxy.pid, self._client.process.pid, self._upstream.process.pid)
        begin = self._client.expect("begin", 60)
        before, began = [cpu_seconds(pid) if pid else 0.0 for pid in pids], time.monotonic()
        end = self._client.expect("end", 60)
        after, ended = [cpu_seconds(pid) if pid else 0.0 for pid in pids], time.monotonic()
        used, client, upstream = (b - a for a, b in zip(before, after, strict=True))
        figures.client_share.append(client / (ended - began))
        figures.upstream_share.append(upstream / (ended - began))
        return used, end["done"] - begin["done"], self._client.expect("result", 90)


# What comes out.


def ratios(figures: dict[str, Figures], name: str) -> dict[str, list[float]]:
    """Divide a proxy's figures by nginx's of the same round."""
    return {
        what: [
            own / peer_value
            for own, peer_value in zip(
                getattr(figures[name], what), getattr(figures[PEER], what), strict=True
            )
        ]
        for what in BOUNDS
    }


def report(figures: dict[str, Figures]) -> None:
    print(f"{'':10} {'us/request':>22} {'us/chunk':>22} {'MB/1000 idle':>20}", end="")
    print(f" {'reads/chunk':>11} {'p99 ms':>7} {'client':>7} {'upstream':>8}")
    for name, own in figures.items():
        cells = [_cell(own.request_us, 22), _cell(own.chunk_us, 22), _cell(own.idle_mb, 20)]
        if name == "direct":
            cells[:2] = ["-".rjust(22)] * 2
        print(f"{name:10} {' '.join(cells)}", end="")
        print(f" {statistics.median(own.reads_per_chunk):11.3f}", end="")
        print(f" {statistics.median(own.p99_ms):7.2f}", end="")
        print(f" {max(own.client_share):7.0%} {max(own.upstream_share):8.0%}")
    print("medians (min-max) over the rounds; client and upstream: most of one core they took")
    joined = [name for name, own in figures.items() if min(own.reads_per_chunk) < JOINED]
    if joined:
        print(
            f"chunks arrived joined in some round of {', '.join(joined)}: a busy machine, or a "
            "proxy that holds them back; both make a chunk look cheaper. Repeat on a quiet machine"
        )


def _cell(values: list[float], width: int) -> str:
    if not values:
        return "-".rjust(width)
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.1f} ({low:.1f}-{high:.1f})".rjust(width)


def verdict(figures: dict[str, Figures]) -> bool:
    """Print ours over nginx with the bounds; whether all are kept."""
    kept = True
    for what, values in ratios(figures, OURS).items():
        middle, bound = statistics.median(values), BOUNDS[what]
        kept = kept and middle <= bound
        word = "kept" if middle <= bound else "MISSED"
        print(f"{OURS} / {PEER}, {what[:-3]}: {_cell(values, 0)}x, bound {bound}x: {word}")
    return kept


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU and memory beside nginx and aiohttp")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=Load().seconds, help="of each measurement")
    parser.add_argument("--rate", type=float, default=Load().rate, help="requests a second")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    parser.add_argument(
        "--proxies",
        default=",".join(["direct", *PROXIES]),
        help="rows to measure (default %(default)s); bounds are checked when ours and nginx are in",
    )
    return parser.parse_args()


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        raise CannotRunError(f"only {hard} open files are allowed: raise 'ulimit -Hn' to {FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))


def run(options: argparse.Namespace) -> int:
    names = options.proxies.split(",")
    if unknown := set(names) - {"direct", *PROXIES}:
        raise CannotRunError(
            f"--proxies: {', '.join(sorted(unknown))} is not one of direct, {PEER}, ..."
        )
    _allow_files()
    load = Load(seconds=options.seconds, rate=options.rate)
    with ExitStack() as stack:
        upstream = stack.enter_context(peer("upstream.py", str(load.streams), str(load.interval)))
        client = stack.enter_context(peer("client.py"))
        bench = Bench(load, client, upstream, int(upstream.hear(20)))
        for number in range(options.rounds):
            for name in names:
                print(f"round {number + 1}/{options.rounds}: {name}", file=sys.stderr)
                bench.round(name)
    figures = bench.figures
    bounded = OURS in figures and PEER in figures
    if options.json:
        found = {name: {f: getattr(v, f) for f in Figures.__slots__} for name, v in figures.items()}
        machine = {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}
        over = ratios(figures, OURS) if bounded else {}
        kept = all(statistics.median(values) <= BOUNDS[what] for what, values in over.items())
        shown = {"machine": machine, "figures": found, "ratios": over, "bounds": BOUNDS}
        print(json.dumps(shown | {"kept": kept if bounded else None}))
        return 0 if kept else 1
    report(figures)
    return 0 if not bounded or verdict(figures) else 1


def main() -> int:
    try:
        return run(arguments())
    except CannotRunError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
