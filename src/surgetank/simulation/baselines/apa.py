"""AIBrix's pod autoscaler (APA) on KV cache utilisation.

Source: vllm-project/aibrix, pkg/controller/podautoscaler (apa.go and its context's defaults).
"""

from __future__ import annotations

import math
from typing import Final

from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.rule import Every, Samples, current

RESYNC: Final = 10.0  # s
WINDOW: Final = 180.0  # s, mean of the metric
TOLERANCE: Final = 0.1  # up and down
MAX_STEP: Final = 2.0  # times as many, or half as many, at once
DOWN_WINDOW: Final = 300.0  # s


class Apa:
    """desired = ceil(n x mean / target) outside +-10 %; at most double, at least half a step."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._seen = Samples(WINDOW)
        self._recommended = Samples(DOWN_WINDOW)
        self._clock = Every(RESYNC)
        self._kept: int | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        replicas = current(seen)
        if self._kept is None:
            self._kept = replicas
        if not self._clock.due(now):
            return self._kept
        if seen.kv_held is not None and seen.kv_capacity:
            self._seen.add(seen.kv_held / seen.kv_capacity, now)
        mean = self._seen.mean(now)
        if mean is None:
            return self._kept
        ratio = mean / self._target
        wanted = replicas
        if ratio > 1 + TOLERANCE:
            wanted = min(math.ceil(replicas * ratio), math.floor(replicas * MAX_STEP))
        elif ratio < 1 - TOLERANCE:
            wanted = max(math.ceil(replicas * ratio), math.floor(replicas / MAX_STEP))
        self._recommended.add(wanted, now)
        most = self._recommended.most(now)
        if wanted < replicas and most is not None:
            wanted = min(replicas, int(most))
        self._kept = wanted
        return wanted
