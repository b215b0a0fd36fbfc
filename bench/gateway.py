"""The gateway's CPU, latency and memory beside nginx, aiohttp and other gateways, in one session.

Every proxy gets the same load from the same client and upstream, and a core of its own where there
are two: small requests at a fixed rate, streams paced at 20 ms with evenly spread phases, large
prompts, a lower rate for its latency, and idle streams. What is counted is the CPU time of all its
processes; nothing is subtracted but where it says so, warm-up is left out. Rounds are interleaved.
The row surgetank-many is ours among 100 tenants and 200 replicas. Exits 1 when a bar is missed, or
when nginx's own figures are too unsteady for a verdict (then none is told); 2 when something cannot
be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bars import (
    BARS,
    MANY,
    NONE,
    OURS,
    Figures,
    ahead,
    judge,
    table,
    unsteady,
    words,
)
from peers import SLOW
from processes import Peer, cpu_seconds, divide_cores, memory_mb, peer
from proxies import PROXIES, RECIPES, CannotRunError, Running, running, version

FILES = 8192  # descriptors: each idle stream takes two in a proxy
TRIAL_RATE = 2.0  # requests a second, to see what a slow peer bears
TRIAL_SECONDS = 5.0
EASED_WARM, EASED_SECONDS = 5.0, 10.0  # its answers are few, and the first ones late
SHARE = 0.25  # of a core: with more, a slow peer's queue is measured and not its cost


@dataclass(frozen=True, slots=True)
class Load:
    """What every proxy gets. Rates in requests per second, times in seconds."""

    rate: float = 1000.0
    connections: int = 100  # one for each tenant of the row with many
    streams: int = 200
    interval: float = 0.02
    idle: int = 2000
    latency_rate: float = 500.0
    prompt_bytes: int = 400_000
    prompt_rate: float = 50.0
    rest: float = 2.0
    warm: float = 1.0
    seconds: float = 4.0


def bearable(load: Load, cost: float) -> Load:
    """What a peer can take of the load when a small request costs it so many CPU seconds.

    More would measure its queue, not its cost. A chunk is taken to cost a fifth of a request.
    """
    rate = SHARE / cost
    streams = max(1, int(rate * 5 * load.interval))
    part = min(1.0, streams / load.streams)
    return replace(
        load,
        rate=min(rate, load.rate),
        latency_rate=min(rate / 2, load.latency_rate),
        prompt_rate=min(rate / 4, load.prompt_rate),
        streams=min(streams, load.streams),
        idle=max(1, round(load.idle * max(part, 0.02))),
        warm=max(load.warm, EASED_WARM),
        seconds=max(load.seconds, EASED_SECONDS),
    )


class Bench:
    """The client, the upstream, and what has been measured so far."""

    def __init__(
        self, load: Load, client: Peer, upstream: Peer, port: int, cores: set[int]
    ) -> None:
        self._full = self._load = load
        self._client = client
        self._upstream = upstream
        self._upstream_port = port
        self._cores = cores
        self.figures: dict[str, Figures] = {}
        self.eased: dict[str, Load] = {}  # of peers that do not bear the whole

    def round(self, name: str) -> None:
        """Start a proxy, give it every load once, stop it. "direct" is no proxy at all."""
        figures = self.figures.setdefault(name, Figures())
        self._load = self._full
        if name == NONE:
            self._measure(Running(0, self._upstream_port), figures)
            return
        with (
            tempfile.TemporaryDirectory(prefix="surgetank-bench-") as folder,
            running(name, Path(folder), self._upstream_port, self._cores) as proxy,
        ):
            if name in SLOW:
                self._load = self.eased.get(name) or self._ease(proxy, name)
            self._measure(proxy, figures, small_alone=name == MANY)

    def _ease(self, proxy: Running, name: str) -> Load:
        """Find out how much of the load a slow peer bears, from what a few requests cost it."""
        self._open(proxy, TRIAL_RATE)  # it loads half of itself for its first answer
        self._command(
            proxy, "requests", rate=TRIAL_RATE, connections=8, warm=5.0, seconds=TRIAL_SECONDS
        )
        cost, done, _ = self._window(proxy, Figures())
        eased = self.eased[name] = bearable(self._full, cost / max(1, done))
        return eased

    def _measure(self, proxy: Running, figures: Figures, *, small_alone: bool = False) -> None:
        load = self._load
        paced = {"warm": load.warm, "seconds": load.seconds}
        self._open(proxy, load.rate if load == self._full else TRIAL_RATE)
        resting = self._resting(proxy)
        if proxy.pid and not small_alone:
            figures.idle_mb.append(self._idle(proxy))
            self._settle(proxy)

        self._command(proxy, "requests", rate=load.rate, connections=load.connections, **paced)
        cost, done, result = self._window(proxy, figures)
        figures.request_us.append(1e6 * cost / done)
        figures.p99_ms.append(result["p99_ms"])
        if proxy.pid:
            figures.resting.append(resting)
            figures.loaded_us.append(1e6 * (cost - resting * result["seconds"]) / done)
        if small_alone:
            return

        tokens = int((load.warm + load.seconds + 1) / load.interval)
        self._command(proxy, "streams", count=load.streams, tokens=tokens, **paced)
        cost, done, result = self._window(proxy, figures)
        figures.chunk_us.append(1e6 * cost / done)
        figures.reads_per_chunk.append(result["reads"] / done)

        self._command(proxy, "requests", rate=load.latency_rate, connections=32, **paced)
        _, _, result = self._window(proxy, figures)
        figures.p50_ms.append(result["p50_ms"])

        prompt = {"rate": load.prompt_rate, "prompt_bytes": load.prompt_bytes}
        self._command(proxy, "requests", connections=8, **prompt, **paced)
        cost, done, _ = self._window(proxy, figures)
        figures.prompt_ms.append(1e3 * cost / done)

    def _open(self, proxy: Running, rate: float) -> None:
        """Have a few requests answered, however long the first ones take."""
        brief = max(0.1, 2 / rate)  # some are sent within it
        self._command(proxy, "requests", rate=rate, connections=8, warm=0.6, seconds=brief)
        for event in ("begin", "end", "result"):
            self._client.expect(event, 60)

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
        return (held - before) * self._full.idle / self._load.idle

    def _settle(self, proxy: Running) -> None:
        """Wait until it has closed what the clients left: nothing measured shall pay for that."""
        for _ in range(50):
            before = cpu_seconds(proxy.pid)
            time.sleep(0.2)
            if cpu_seconds(proxy.pid) - before < 0.02:
                return

    def _resting(self, proxy: Running) -> float:
        """Share of a core it takes without any load."""
        if not proxy.pid:
            return 0.0
        before, began = cpu_seconds(proxy.pid), time.monotonic()
        time.sleep(self._load.rest)
        return (cpu_seconds(proxy.pid) - before) / (time.monotonic() - began)

    def _command(self, proxy: Running, what: str, **members: object) -> None:
        command = {"do": what, "port": proxy.port, "keys": proxy.keys} | members
        self._client.tell(json.dumps(command))

    def _window(self, proxy: Running, figures: Figures) -> tuple[float, int, dict[str, Any]]:
        """CPU seconds of the proxy, answers and the client's verdict from "begin" to "end"."""
        pids = (proxy.pid, self._client.process.pid, self._upstream.process.pid)
        begin = self._client.expect("begin", 60)
        before, began = [cpu_seconds(pid) if pid else 0.0 for pid in pids], time.monotonic()
        end = self._client.expect("end", 60)
        after, ended = [cpu_seconds(pid) if pid else 0.0 for pid in pids], time.monotonic()
        if end["done"] == begin["done"]:
            raise CannotRunError("it answered nothing in time: too slow for this machine as it is")
        used, client, upstream = (b - a for a, b in zip(before, after, strict=True))
        figures.client_share.append(client / (ended - began))
        figures.upstream_share.append(upstream / (ended - began))
        result = self._client.expect("result", 90)
        if result["errors"] or result.get("broken"):
            raise CannotRunError(f"requests were refused, or streams not whole: {result}")
        return used, end["done"] - begin["done"], result | {"seconds": ended - began}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="CPU, latency and memory beside nginx and aiohttp (8 minutes by default)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=Load().seconds, help="of each measurement")
    parser.add_argument("--rate", type=float, default=Load().rate, help="requests a second")
    parser.add_argument("--json", action="store_true", help="all figures as one JSON object")
    parser.add_argument(
        "--anyway", action="store_true", help="tell unsteady figures too; still exits 1"
    )
    parser.add_argument(
        "--proxies",
        default=",".join([NONE, *PROXIES]),
        help="rows to measure (default %(default)s); a bar is checked when its rows are in",
    )
    return parser.parse_args()


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        raise CannotRunError(f"only {hard} open files are allowed: raise 'ulimit -Hn' to {FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))


def measure(names: Sequence[str], rounds: int, load: Load) -> Bench:
    """Give each proxy every load in every round."""
    _allow_files()
    cores = divide_cores()
    with ExitStack() as stack:
        upstream = stack.enter_context(peer("upstream.py", str(load.streams), str(load.interval)))
        client = stack.enter_context(peer("client.py"))
        bench = Bench(load, client, upstream, int(upstream.hear(20)), cores)
        for number in range(rounds):
            for name in names:
                print(f"round {number + 1}/{rounds}: {name}", file=sys.stderr)
                bench.round(name)
    return bench


def run(options: argparse.Namespace) -> int:
    names = options.proxies.split(",")
    if unknown := set(names) - {NONE, *RECIPES}:
        raise CannotRunError(
            f"--proxies: {', '.join(sorted(unknown))} is not one of {NONE}, {', '.join(RECIPES)}"
        )
    seconds = options.seconds
    load = Load(seconds=seconds, rate=options.rate, warm=min(Load().warm, seconds))
    bench = measure(names, options.rounds, load)
    figures = bench.figures
    doubt = unsteady(figures)
    if doubt is not None:
        print(f"bench: {doubt}", file=sys.stderr)
        if not options.anyway:
            return 1
    judged = judge(figures) if OURS in figures else []
    kept = all(one.kept for one in judged)
    versions = {name: version(name) for name in figures if name not in {NONE, MANY}}
    if options.json:
        rows = {name: {f: getattr(v, f) for f in Figures.__slots__} for name, v in figures.items()}
        machine = {"cores": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}
        bars = {
            one.bar.what: {"values": one.values, "most": one.bar.most, "kept": one.kept}
            for one in judged
        }
        eased = {
            name: {"rate": of.rate, "prompt_rate": of.prompt_rate, "streams": of.streams}
            for name, of in bench.eased.items()
        }
        told = {"machine": machine, "versions": versions, "figures": rows, "bars": bars}
        told["eased"] = eased
        print(json.dumps(told | {"unsteady": doubt, "kept": kept if judged else None}))
    else:
        print(table(figures))
        for name, of in bench.eased.items():
            print(
                f"{name} bears no more on one core: it was measured at {of.rate:.0f} requests/s, "
                f"{of.prompt_rate:.1f} large prompts/s and {of.streams} streams"
            )
        own = f"{platform.python_implementation()} {platform.python_version()}"
        print(", ".join([f"{name} {of}" for name, of in versions.items() if of] + [own]))
        found = ahead(figures)
        kept = kept and all(one.kept for one in found)
        print(words([*found, *judged]))
        if left := len(BARS) - len(judged):
            print(f"{left} bars were not looked at: their rows were not asked for")
    return 0 if kept and doubt is None else 1


def main() -> int:
    try:
        return run(arguments())
    except CannotRunError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
