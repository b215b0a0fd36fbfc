"""How many requests a CPU second the simulator plays with the live policies in the loop.

Each line is one fleet. Beside the simulation stand, in the same run:
  floor      FlowControl alone: offer, first token, finish, on the same requests; nothing simulated
  prototype  the smallest simulation: the same FlowControl and a heap; a fixed time for each
             request in place of an engine
  literal    the simulation on the step-by-step engine (small fleets only)
Figures are requests per CPU second (user and system) of one core; ratios are what counts.

    python bench/simulation_policies.py [--requests 20000] [--quick]
"""

from __future__ import annotations

import argparse
import heapq
import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from surgetank.engine import profile as profiles
from surgetank.policy.effect import Dispatch, Effect
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.simulation.run import simulate
from surgetank.simulation.scenario import PoolPlan, Scenario, capacity
from surgetank.simulation.workload import Workload, of_batch
from surgetank.traffic.trace import Batch, Labels

PROMPT, OUTPUT = 512, 200
CURVE = ((1, 1), (8, 8), (8, 200), (32, 32), (64, 8), (128, 64), (256, 8), (256, 200))
QUICK = ((1, 1), (8, 8))
PROFILE = profiles.find("h100-llama-3.1-8b-bf16-tp1")
POOL = PoolPlan(model="model", profile=PROFILE)
FLOW = FlowSpec(max_in_flight=64)


def load(requests: int, replicas: int, tenants: int, use: float) -> Workload:
    """Poisson arrivals at so much of what the replicas can do."""
    prompt, output = capacity(PROFILE, tpot=1.0, context=PROMPT + OUTPUT / 2, most=64)
    each = 1 / (PROMPT / prompt + OUTPUT / output)
    rng = np.random.default_rng(1)
    at = np.cumsum(rng.exponential(1 / (use * each * replicas), requests))
    who = rng.integers(0, tenants, requests).astype(np.int32)
    size = np.full(requests, PROMPT)
    names = tuple(f"t{i}" for i in range(tenants))
    return of_batch(Batch(at, size, np.full(requests, OUTPUT), tenant=Labels(who, names)))


def scenario(workload: Workload, replicas: int, policy: str, engine: str = "exact") -> Scenario:
    return Scenario(
        workload=workload,
        pools=(replace(POOL, replicas=replicas),),
        policy=policy,
        flow=FLOW,
        engine=engine,
    )


def gateway(replicas: int) -> FlowControl:
    flow = FlowControl(FLOW, models=["model"])
    for i in range(replicas):
        flow.join(replace(POOL.replica(f"model-{i}"), slots=64), 0.0)
    return flow


def requests_of(workload: Workload) -> list[Request]:
    size = 4 * PROMPT
    who = [workload.tenants[code] for code in workload.tenant.tolist()]
    return [
        Request(str(i), name, "model", size, size, stream=True, body_bytes=size)
        for i, name in enumerate(who)
    ]


def floor(workload: Workload, replicas: int) -> None:
    """Offer, first token and finish alone, each request two thousand after its own."""
    flow, most = gateway(replicas), min(2000, 32 * replicas)
    asked, times = requests_of(workload), workload.arrived.tolist()
    usage = Usage(PROMPT, OUTPUT)
    running: deque[str] = deque()

    def started(effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Dispatch):
                running.append(effect.request.id)

    for i, request in enumerate(asked):
        now = times[i]
        started(flow.offer(request, now))
        if len(running) > most:
            id_ = running.popleft()
            started(flow.first_token(id_, now))
            started(flow.finish(id_, Outcome.COMPLETED, usage, now))


def prototype(workload: Workload, replicas: int) -> None:
    """Play it with a heap and a fixed service time: no engine, no scaling, no clients."""
    flow = gateway(replicas)
    usage = Usage(PROMPT, OUTPUT)
    rows = zip(workload.arrived.tolist(), requests_of(workload), strict=True)
    events = [(at, i, "offer", request) for i, (at, request) in enumerate(rows)]
    order = len(events)
    heapq.heapify(events)

    def carry_out(effects: Sequence[Effect], now: float) -> None:
        nonlocal order
        for effect in effects:
            if isinstance(effect, Dispatch):
                heapq.heappush(events, (now + 0.05, order, "first", effect.request))
                heapq.heappush(events, (now + 1.6, order + 1, "finish", effect.request))
                order += 2

    while events:
        deadline = flow.next_deadline()
        if deadline is not None and deadline <= events[0][0]:
            carry_out(flow.advance(deadline), deadline)
            continue
        now, _, kind, request = heapq.heappop(events)
        if kind == "offer":
            carry_out(flow.offer(request, now), now)
        elif kind == "first":
            carry_out(flow.first_token(request.id, now), now)
        else:
            carry_out(flow.finish(request.id, Outcome.COMPLETED, usage, now), now)


def rate(requests: int, play: Callable[[], object]) -> float:
    """Requests per CPU second of this process."""
    began = time.process_time()
    play()
    return requests / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--use", type=float, default=0.7, help="of the replicas' capacity")
    parser.add_argument("--quick", action="store_true", help="two small fleets only")
    asked = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {asked.requests:,} requests,")
    print(f"{PROMPT} prompt and {OUTPUT} output tokens, {asked.use:.0%} load; requests/CPU s")
    simulate(scenario(load(200, 1, 1, asked.use), 1, "surgetank"))  # compiles, once
    head = ("replicas", "tenants", "surgetank", "passthrough", "floor", "prototype", "literal")
    print("".join(f"{name:>12}" for name in (*head, "of floor")))
    for replicas, tenants in QUICK if asked.quick else CURVE:
        workload = load(asked.requests, replicas, tenants, asked.use)
        rates = [
            rate(asked.requests, partial(simulate, scenario(workload, replicas, name)))
            for name in ("surgetank", "passthrough")
        ]
        rates += [
            rate(asked.requests, partial(play, workload, replicas)) for play in (floor, prototype)
        ]
        cells = [f"{value:>12,.0f}" for value in rates]
        small = workload.first(2000)
        slow = partial(simulate, scenario(small, replicas, "surgetank", "literal"))
        cells.append(f"{rate(len(small), slow):>12,.0f}" if replicas <= 8 else f"{'-':>12}")
        print(f"{replicas:>12}{tenants:>12}{''.join(cells)}{rates[0] / rates[2]:>12.2f}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
