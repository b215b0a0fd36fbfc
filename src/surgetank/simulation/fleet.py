"""The simulated replicas: their engines, the nodes they stand on, and how long they existed.

Rule: a replica is asked for, becomes ready or fails, serves, and is gone; it costs from the first
to the last, in whatever state.
"""

from __future__ import annotations

from math import inf

import numpy as np

from surgetank.engine.coldstart import ColdStart, Start
from surgetank.engine.numbered import Clock
from surgetank.engine.prefixcache import PrefixCache
from surgetank.policy.replica import Replica, Signals
from surgetank.simulation.engines import Engine, SteppedClock
from surgetank.simulation.scenario import PoolPlan


class Machine:
    """One replica. `code`: its place among all there were, and its engine's on their clock."""

    __slots__ = (
        "asked",
        "cache",
        "code",
        "draining",
        "engine",
        "gone",
        "id",
        "longest",
        "node",
        "plan",
        "push",
        "ready",
        "replica",
        "routed",
        "rows",
    )

    def __init__(self, name: str, code: int, plan: PoolPlan, engine: Engine, asked: float) -> None:
        self.id = name
        self.code = code
        self.plan = plan
        self.engine = engine
        self.push = engine.push
        self.longest = plan.profile.max_model_len
        self.replica: Replica = plan.replica(name)
        self.asked = asked
        self.node = -1
        self.ready: float | None = None
        self.gone: float | None = None
        self.routed = False  # the gateway sends to it
        self.draining = False
        self.rows: set[int] = set()  # in flight here
        self.cache = PrefixCache(plan.profile.kv_tokens)  # used where prompts are known to share

    def signals(self, now: float) -> Signals:
        """What a scrape of its metrics says, as vLLM counts: after its latest step.

        So what came while a step runs is not told as waiting: the next step may well take it.
        """
        engine = self.engine
        engine.observe(now)
        used = engine.kv_blocks_used / self.plan.profile.kv_blocks
        waiting = max(0, engine.waiting - engine.newcomers)
        return Signals(now, waiting, engine.running, used)


class Nodes:
    """The machines of one pool. What was there last is taken again first: its caches are warm."""

    def __init__(self, most: int | None) -> None:
        self._most = inf if most is None else most
        self._free: list[int] = []
        self._known = 0
        self._used: set[int] = set()  # held a replica once

    def take(self) -> int | None:
        """Give a node; None: there is none left."""
        if self._free:
            return self._free.pop()
        if self._known >= self._most:
            return None
        self._known += 1
        return self._known - 1

    def warm(self, node: int) -> bool:
        """Whether a replica was loaded there before."""
        return node in self._used

    def loaded(self, node: int) -> None:
        """A replica came up there."""
        self._used.add(node)

    def give_back(self, node: int) -> None:
        self._free.append(node)


class Fleet:
    """All machines, and the clock of their engines' steps; those that drain, and are not gone."""

    def __init__(self, clock: Clock | SteppedClock) -> None:
        self.machines: dict[str, Machine] = {}
        self.all: list[Machine] = []
        self.clock = clock
        self.stepped = clock if isinstance(clock, SteppedClock) else None
        self.draining: set[Machine] = set()

    def add(self, name: str, plan: PoolPlan, engine: Engine, now: float) -> Machine:
        """Take in a machine, whose engine is the latest that was made."""
        machine = Machine(name, len(self.all), plan, engine, now)
        self.machines[name] = machine
        self.all.append(machine)
        return machine

    def drain(self, machine: Machine) -> None:
        """It is to serve what it has, and no more."""
        machine.draining = True
        self.draining.add(machine)

    def keep(self, machine: Machine) -> None:
        """It drains no more: it has, or it is wanted again."""
        machine.draining = False
        self.draining.discard(machine)

    def remove(self, machine: Machine, now: float) -> None:
        """It is gone; its engine computes no more."""
        if self.machines.pop(machine.id, None) is not None:
            machine.gone = now
            self.clock.remove(machine.code)
            self.draining.discard(machine)


def draw_start(start: ColdStart, nodes: Nodes, node: int | None, rng: np.random.Generator) -> Start:
    """Draw a start on a node; without a node it is denied."""
    drawn = start.draw(rng, warm_node=node is not None and nodes.warm(node))
    if node is None:
        return Start("denied", start.denied_s, ())
    return drawn
