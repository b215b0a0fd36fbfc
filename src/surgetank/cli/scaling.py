"""How a gateway and its autoscaler are put together in one process."""

from __future__ import annotations

import json
import random
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from surgetank.adapters.learned import Learned
from surgetank.adapters.processes import Processes, end_other_pools
from surgetank.adapters.statedir import StateDir
from surgetank.adapters.zones import local_seconds
from surgetank.autoscaler.controller import PoolController, Sinks
from surgetank.autoscaler.loop import Autoscaler
from surgetank.autoscaler.ports import Observer, Routing
from surgetank.autoscaler.spec import AutoscaleSpec, PoolConfig
from surgetank.gateway.fleet import Fleet
from surgetank.policy.calendar import Calendar

_KEPT: Final = 1000  # decisions that the live page can still ask for


class PoolRouting:
    """The gateway of this process, as one pool routes its replicas (autoscaler.ports.Routing)."""

    def __init__(self, fleet: Fleet, model: str) -> None:
        self._fleet = fleet
        self._model = model

    def add(self, replica: str, url: str) -> None:
        self._fleet.add(replica, url, self._model)

    def attach(self, replica: str) -> None:
        self._fleet.attach(replica)

    def detach(self, replica: str) -> None:
        self._fleet.detach(replica)

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        self._fleet.drain(replica, drained)

    def expect(self, seconds: Sequence[float]) -> None:
        self._fleet.expect(self._model, seconds)

    def remove(self, replica: str) -> None:
        self._fleet.remove(replica)


class DecisionLog:
    """The latest decisions in memory, and all of them to a file."""

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self._write = write
        self._lines: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._next = 0

    def add(self, line: str) -> None:
        if self._write is not None:
            self._write(line)
        row = json.loads(line)
        if "plan" not in row:
            return
        effects = [{e["do"]: e["replica"]} for e in row["effects"]]
        self._lines.append({**row, "effects": effects})
        self._next += 1

    def after(self, number: int) -> tuple[int, list[dict[str, Any]]]:
        """Give the lines after `number`, and the number to ask with the next time."""
        missing = min(len(self._lines), max(0, self._next - number))
        return self._next, list(self._lines)[len(self._lines) - missing :]


def build_autoscaler(
    spec: AutoscaleSpec,
    state: StateDir,
    learned: Learned,
    *,
    observer: Observer,
    routing: Callable[[PoolConfig], Routing],
    clock: Callable[[], float],
    wall_offset: float,
    sinks: Sinks,
    also: Callable[[], dict[str, Any]] = dict,
) -> Autoscaler:
    """Make the controllers of all pools over local processes."""
    end_other_pools(state, {pool.name for pool in spec.pools})
    draw = random.Random(secrets.randbits(64)).random
    calendar = Calendar(spec.calendar, local=local_seconds)
    budget = spec.shared()

    def controller(pool: PoolConfig, kept: Any) -> PoolController:
        return PoolController(
            pool,
            observer=observer,
            routing=routing(pool),
            fleet=None if spec.advisory else Processes(pool.process, state, pool.name),
            clock=clock,
            wall_offset=wall_offset,
            sinks=sinks,
            draw=draw,
            calendar=calendar.of(pool.model),
            learned=kept,
            budget=budget,
        )

    controllers = [
        learned.use(f"pool {pool.name}", partial(controller, pool)) for pool in spec.pools
    ]
    return Autoscaler(spec, controllers, learned=learned, also=also)
