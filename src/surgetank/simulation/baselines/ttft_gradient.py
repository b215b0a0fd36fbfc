"""The published TTFT-gradient rule (EvaluateReplicas, in Go), as written and with a scale-down.

Source: as published: six samples 5 s apart, a two-point gradient, a limit of 200 ms/s (300 and 500
are named elsewhere in the same text), a growth of 1.5, and no scale-down.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from surgetank.policy.plan import Observation
from surgetank.simulation.baselines.rule import Amounts, Every, LatestTtft, Samples, current

PERIOD: Final = 5.0  # s
SAMPLES: Final = 6
GRADIENT: Final = 0.2  # s/s
GROWTH: Final = 1.5
DOWN_WINDOW: Final = 300.0  # s, as HPA's; the published rule has no scale-down


class TtftGradient:
    """Steep: half as many again; over the target: in proportion; at least for the prompt tokens.

    `pod_tokens`: prompt tokens/s of a replica; `target`: TTFT, s. `down`: with a scale-down, to
    what the prompt tokens needed at the most within 300 s, once TTFT is under the target.
    """

    def __init__(self, pod_tokens: float, *, target: float = 0.8, down: bool = False) -> None:
        self._pod_tokens = pod_tokens
        self._target = target
        self._down = down
        self._ttft = LatestTtft()
        self._came = Amounts()
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._clock = Every(PERIOD, first=PERIOD)
        self._needed = Samples(DOWN_WINDOW)
        self._kept: int | None = None

    def replicas(self, seen: Observation, now: float) -> int:
        self._ttft.add(seen)
        self._came.add(seen)
        if self._kept is None:
            self._kept = current(seen)
            self._needed.add(self._kept, now)
        if self._clock.due(now):
            self._kept = self._evaluate(current(seen), now)
        return self._kept

    def _evaluate(self, replicas: int, now: float) -> int:
        _, prompt, _ = self._came.take()
        floor = math.ceil(prompt / PERIOD / self._pod_tokens)
        ttft = self._ttft.take()
        if ttft is None:
            return max(replicas, floor)
        self._samples.append(ttft)
        gradient = 0.0
        if len(self._samples) > 1:
            gradient = (self._samples[-1] - self._samples[-2]) / PERIOD
        wanted = replicas
        if gradient > GRADIENT:
            wanted = math.ceil(replicas * GROWTH)
        elif ttft > self._target:
            wanted = math.ceil(replicas * ttft / self._target)
        wanted = max(wanted, floor)
        if not self._down:
            return wanted
        calm = gradient <= GRADIENT and ttft <= self._target
        self._needed.add(max(1, floor) if calm else wanted, now)
        most = self._needed.most(now)
        return wanted if most is None or wanted > replicas else min(wanted, int(most))
