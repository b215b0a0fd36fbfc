"""llm-d's workload-variant autoscaler, version 2: saturation in KV tokens.

Source: llm-d-incubation/workload-variant-autoscaler, the token-based saturation analyser, and the
HPA that carries its number out.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.rule import Every, current

LOOP: Final = 60.0  # s
UP: Final = 0.85  # part of the supply that demand may take before more is asked for
DOWN: Final = 0.70  # and below which there is some to spare
SATURATED: Final = 5  # waiting requests per replica: what is held then is what it can hold
KV_SHARE: Final = 0.8  # of the KV tokens, before any saturation was seen
REMEMBERED: Final = 10
DEAD_BAND: Final = 0.1  # HPA's tolerance, behind it


class Wva:
    """required = demand / 0.85 - (ready + pending) x capacity; spare = supply - demand / 0.70.

    Capacity of a replica: the lesser of 0.8 (here the knob) of its KV and what was held when five
    or more waited per replica. Demand: KV blocks held and to be held.
    """

    def __init__(self, kv_share: float = KV_SHARE) -> None:
        self._share = kv_share
        self._clock = Every(LOOP)
        self._held: deque[float] = deque(maxlen=REMEMBERED)
        self._kept: int | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        replicas = current(seen)
        if self._kept is None:
            self._kept = replicas
        if not self._clock.due(now):
            return self._kept
        if seen.kv_held is None or seen.kv_to_be_held is None or not seen.kv_capacity:
            return self._kept
        ready = max(1, seen.serving)
        capacity = self._share * seen.kv_capacity / ready
        if (seen.queue_length or 0) / ready >= SATURATED and seen.kv_held > 0:
            self._held.append(seen.kv_held / ready)
        if self._held:
            capacity = min(capacity, sum(self._held) / len(self._held))
        demand = seen.kv_held + seen.kv_to_be_held
        required = demand / UP - replicas * capacity
        spare = ready * capacity - demand / DOWN
        wanted = replicas
        if required > 0:
            wanted = replicas + math.ceil(required / capacity)
        elif spare > 0:
            wanted = replicas - math.floor(spare / capacity)
        if abs(wanted / max(1, replicas) - 1) > DEAD_BAND:
            self._kept = max(1, wanted)
        else:
            self._kept = replicas
        return self._kept
