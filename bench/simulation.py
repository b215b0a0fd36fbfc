"""How many simulated requests a second of CPU buys: the engine model alone, on this machine.

One kind of request (512 prompt and 200 output tokens, Poisson arrivals) at 70 % of what an engine
can take. Measured are the specification in Python (engine.literal), the replica fed request by
request from Python (engine.replica), and whole traces in machine code (engine.bulk) on one engine
and on fleets. Rounds are interleaved; the best of each counts, in CPU seconds of this process, and
what is held to a bound is the ratio to the specification. `--peer` adds a program of your own: it
gets a CSV file (arrival, prompt and output of each request, as Vidur and vLLM's scheduler under a
virtual clock take it) as its last argument, and its CPU time counts, its start included. Exits 1
when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from surgetank.engine.bulk import Routing, run_fleet, run_trace
from surgetank.engine.literal import Batcher
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica
from surgetank.engine.skipping.compiled import on_compile

# Llama-3.1-70B in bf16 on four H100, and what vLLM gives it
PROFILE = EngineProfile(
    name="bench",
    a_ms=14.5,
    b_us=52.5,
    c_ns=1.09,
    d_us=35.3,
    e_ns=29.5,
    kv_blocks=29_686,
    max_model_len=16_384,
)
PROMPT, OUTPUT, LOAD = 512, 200, 0.7
BOUNDS = {"bulk 1": 500.0, "fleet": 100.0, "replica": 5.0}  # times the specification, at least
ROUTINGS: tuple[Routing, ...] = ("round_robin", "random", "least_outstanding")


def trace(count: int, rate: float) -> tuple[Any, Any, Any]:
    """Make `count` requests at `rate` a second."""
    arrived = np.cumsum(np.random.default_rng(1).exponential(1 / rate, count))
    return arrived, np.full(count, PROMPT, np.int32), np.full(count, OUTPUT, np.int32)


def most() -> float:
    """Measure what one engine can take: requests a second with a queue that never ends."""
    count = 20_000
    finished = run_trace(PROFILE, np.zeros(count), *trace(count, 1.0)[1:]).finished_at
    return float(count / finished.max())


def feed(engine: Batcher | Replica, columns: tuple[Any, Any, Any]) -> None:
    """Run a trace request by request, from Python."""
    arrived, prompt, output = (column.tolist() for column in columns)
    for i, at in enumerate(arrived):
        while (due := engine.due) is not None and due < at:
            engine.step(due)
        engine.add(str(i), prompt[i], output[i], at)
    while (due := engine.due) is not None:
        engine.step(due)


def rate_of(work: Callable[[], object], count: int) -> float:
    """Return requests per second of CPU, user and system."""
    before = time.process_time()
    work()
    return count / (time.process_time() - before)


def peer(command: str, columns: tuple[Any, Any, Any]) -> None:
    """Run a peer on the trace; its failure is its own message's."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.csv"
        head = "arrived_at,num_prefill_tokens,num_decode_tokens"
        np.savetxt(file, np.column_stack(columns), "%.9g", ",", header=head, comments="")
        subprocess.run([*shlex.split(command), str(file)], check=True, stdout=sys.stderr)


def children() -> float:
    """Return the CPU seconds of ended children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure all, requests per CPU second by name; `peer` among them if there is one."""
    rate = most() * LOAD
    best: dict[str, float] = {}

    def keep(name: str, found: float) -> None:
        best[name] = max(best.get(name, 0.0), found)

    small, middle, big = arguments.requests // 1000, arguments.requests // 20, arguments.requests
    for _ in range(arguments.rounds):
        columns = trace(small, rate)
        keep("literal", rate_of(lambda: feed(Batcher(PROFILE), columns), small))  # noqa: B023 - now
        columns = trace(middle, rate)
        keep("replica", rate_of(lambda: feed(Replica(PROFILE), columns), middle))  # noqa: B023
        columns = trace(big, rate)
        keep("bulk 1", rate_of(lambda: run_trace(PROFILE, *columns), big))  # noqa: B023 - now
        for replicas in arguments.replicas:
            columns = trace(big, rate * replicas)
            for routing in ROUTINGS:

                def run(routing: Routing = routing, replicas: int = replicas) -> None:
                    run_fleet(PROFILE, *columns, replicas=replicas, routing=routing)  # noqa: B023

                keep(f"fleet {replicas} {routing}", rate_of(run, big))
    if arguments.peer:
        before = children()
        peer(arguments.peer, trace(small, rate))
        best["peer"] = small / (children() - before)
    return best


def missed(rates: dict[str, float]) -> list[str]:
    """List the bounds that are not kept."""
    return [
        f"{name}: {found / rates['literal']:.0f} times the specification, must be >= {bound:g}"
        for name, found in rates.items()
        for key, bound in BOUNDS.items()
        if name.startswith(key) and found / rates["literal"] < bound
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1_000_000, help="of each bulk run")
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 16, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="a command that takes a trace's CSV file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with on_compile(lambda line: print(line, file=sys.stderr)):
        before = time.process_time()
        most()
        feed(Replica(PROFILE), trace(10, 1.0))
        first = time.process_time() - before
    rates = measure(arguments)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    python = platform.python_version()
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {python}",
        "first_run_s": first,
        "peak_mb": memory,
        "requests_per_cpu_s": rates,
        "missed": missed(rates),
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{result['machine']}; first run {first:.1f} s of CPU, peak {memory:.0f} MB")
        for name, found in rates.items():
            print(f"{name:30} {found:12,.0f} requests/s {found / rates['literal']:8,.1f} x literal")
    for line in missed(rates):
        print(line, file=sys.stderr)
    return 1 if missed(rates) else 0


if __name__ == "__main__":
    sys.exit(main())
