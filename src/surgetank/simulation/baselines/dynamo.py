"""NVIDIA Dynamo's SLA planner, aggregated mode: its throughput and load loops.

Source: ai-dynamo/dynamo, components/planner (planner_core and its defaults), predictor "constant".
"""

from __future__ import annotations

import math
from typing import Final

from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.rule import Amounts, Every, LatestTtft

ADJUST: Final = 180.0  # s, the throughput loop
MOST_STEP: Final = 8  # replicas at once, either way
LOAD: Final = 5.0  # s, the load loop
SENSITIVITY: Final = 0.8  # of the objective: below it a replica may go
KV_FULL: Final = 0.9


class DynamoThroughput:
    """Replicas for the next interval's mean rate, taken to be the last one's.

    `prompt_rate`, `output_rate`: tokens/s that one replica does, each alone; `rho`: part of that.
    """

    def __init__(self, rho: float, *, prompt_rate: float, output_rate: float) -> None:
        self._rho = rho
        self._prompt_rate = prompt_rate
        self._output_rate = output_rate
        self._came = Amounts()
        self._clock = Every(ADJUST, first=ADJUST)
        self._kept: int | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        self._came.add(seen)
        if self._kept is None:
            self._kept = seen.serving + seen.starting
        if self._clock.due(now):
            _, prompt, output = self._came.take()
            busy = (prompt / self._prompt_rate + output / self._output_rate) / ADJUST
            wanted = math.ceil(busy / self._rho)
            self._kept = min(max(wanted, seen.serving - MOST_STEP, 1), seen.serving + MOST_STEP)
        return self._kept


class DynamoLoad:
    """One more when the fleet misses its TTFT, one less when one fewer would keep it with room.

    Nothing while a replica starts. `floor`: never fewer than that rule wants (hybrid).
    """

    def __init__(
        self,
        objective: float,
        *,
        sensitivity: float = SENSITIVITY,
        floor: DynamoThroughput | None = None,
    ) -> None:
        self._objective = objective
        self._sensitivity = sensitivity
        self._floor = floor
        self._ttft = LatestTtft()
        self._clock = Every(LOAD, first=LOAD)
        self._kept: int | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        self._ttft.add(seen)
        least = 1 if self._floor is None else self._floor.replicas(seen, now)
        if self._kept is None:
            self._kept = seen.serving + seen.starting
        if self._clock.due(now) and not seen.starting:
            self._kept = self._step(seen)
        self._kept = max(self._kept, least)
        return self._kept

    def _step(self, seen: Observation) -> int:
        ready = max(1, seen.serving)
        ttft = max(self._ttft.take() or 0.0, seen.queue_age or 0.0)
        if ttft > self._objective:
            return ready + 1
        if ready == 1:
            return ready
        more = ready / (ready - 1)  # times the load of each, with one fewer
        kv = seen.kv_held / seen.kv_capacity if seen.kv_held and seen.kv_capacity else 0.0
        fits = ttft * more < self._sensitivity * self._objective and kv * more < KV_FULL
        return ready - 1 if fits else ready
