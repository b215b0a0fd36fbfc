"""What one routing decision costs: 200 replicas, 100 tenants, with and without a shared beginning.

Counted is CPU time (a thread's own clock) around FlowControl's inputs, batch by batch, beside a
floor in the same batches: a hundred look-ups in a dict. The ratio of the two can be compared
between machines. A decision is an offer that is dispatched at once, or, with a queue, an offer that
waits and the finish that dispatches another. Exits 1 when the median decision takes more than
12 us, or half as much again with 10,000 waiting as with 100.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from surgetank.policy.effect import Dispatch
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.prefix import MARKS
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tenant

REPLICAS, TENANTS, PREFIXES = 200, 100, 1000
MOST_US, MOST_GROWTH = 12.0, 1.5
_BATCH = 50
_USAGE = Usage(1024, 100, 512)


def fleet(slots: int) -> FlowControl:
    """Make the fleet; in all other respects everything is a default."""
    spec = FlowSpec(max_in_flight=slots, max_queued=100_000, queue_timeout=1e6, request_timeout=1e6)
    flow = FlowControl(
        spec,
        tenants=[Tenant(f"t{i}") for i in range(TENANTS)],
        models=("m",),
        draw=random.Random(1).random,
    )
    for i in range(REPLICAS):
        flow.join(Replica(f"r{i:03d}", "m", slots=slots, kv_tokens=400_000), 0.0)
    return flow


def requests(marks: int) -> Iterator[Request]:
    """Requests whose prompts begin with one of PREFIXES of `marks` marks; 0: with none."""
    order = random.Random(2)
    chars = max(2048, MARKS[marks - 1] if marks else 0)
    number = 0
    while True:
        number += 1
        shared = order.randrange(PREFIXES)
        prefix = tuple(hash((shared, mark)) for mark in MARKS[:marks])
        yield Request(
            f"q{number}", f"t{number % TENANTS}", "m", chars, chars,
            prompt_tokens=chars // 4, max_tokens=100, prefix=prefix,
        )  # fmt: skip


def floor(table: dict[int, int]) -> None:
    """Look a hundred keys up: what the ratio is to."""
    for key in range(100):
        table[key]


def started(effects: Sequence[object]) -> list[str]:
    return [effect.request.id for effect in effects if isinstance(effect, Dispatch)]


def measure(marks: int, waiting: int, rounds: int) -> tuple[float, float]:
    """Median microseconds of a decision, and of the floor."""
    asks, now = requests(marks), 1.0
    flow = fleet(64 if not waiting else 4)
    running: list[str] = []
    while len(running) < 4 * REPLICAS - (0 if waiting else 200):
        running += started(flow.offer(next(asks), now))
    for _ in range(waiting):
        flow.offer(next(asks), now)
    for name in running:
        flow.first_token(name, now)
    table = dict.fromkeys(range(100), 1)
    costs, floors = [], []
    clock = time.thread_time_ns
    for _ in range(rounds):
        batch = [next(asks) for _ in range(_BATCH)]
        ending = running[:_BATCH]
        del running[:_BATCH]
        now += 0.01
        offer, finish = flow.offer, flow.finish
        effects: list[object] = []
        if waiting:
            begin = clock()
            for request, name in zip(batch, ending, strict=True):
                offer(request, now)
                effects += finish(name, Outcome.COMPLETED, _USAGE, now)
            spent = clock() - begin
        else:
            for name in ending:
                finish(name, Outcome.COMPLETED, _USAGE, now)
            begin = clock()
            for request in batch:
                effects += offer(request, now)
            spent = clock() - begin
        running += started(effects)
        for name in running[-_BATCH:]:
            flow.first_token(name, now)
        begin = clock()
        for _ in range(_BATCH):
            floor(table)
        floors.append((clock() - begin) / _BATCH / 1000)
        costs.append(spent / _BATCH / 1000)
    return statistics.median(costs), statistics.median(floors)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=200, help=f"batches of {_BATCH}")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args(arguments)
    rows = {}
    cases: list[tuple[str, Callable[[], tuple[float, float]]]] = [
        ("no prefix", lambda: measure(0, 0, told.rounds)),
        ("prefix of 4 marks", lambda: measure(4, 0, told.rounds)),
        ("prefix of 12 marks", lambda: measure(12, 0, told.rounds)),
        ("4 marks, 100 wait", lambda: measure(4, 100, told.rounds)),
        ("4 marks, 10,000 wait", lambda: measure(4, 10_000, told.rounds)),
    ]
    for name, run in cases:
        cost, least = run()
        rows[name] = {"us": cost, "floor_us": least, "ratio": cost / least}
    growth = rows["4 marks, 10,000 wait"]["ratio"] / rows["4 marks, 100 wait"]["ratio"]
    if told.json:
        print(json.dumps({"rows": rows, "growth": growth}))
    else:
        print(f"{'decision':<24} {'us':>6} {'floor us':>9} {'ratio':>6}")
        for name, row in rows.items():
            print(f"{name:<24} {row['us']:6.1f} {row['floor_us']:9.2f} {row['ratio']:6.2f}")
        print(f"10,000 waiting instead of 100: {growth:.2f} times")
    kept = rows["prefix of 4 marks"]["us"] <= MOST_US and growth <= MOST_GROWTH
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
