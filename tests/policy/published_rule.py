"""Somebody else's autoscaler, exactly as published: EvaluateReplicas, a TTFT-gradient rule in Go.

Six samples 5 s apart, a two-point derivative, no scale-down, no limits. Kept to compare with.
"""

from __future__ import annotations

import math
from collections import deque


class PublishedRule:
    """Gradient > 200 ms/s: half as many again; else by the ratio to the target; never fewer.

    In any case at least as many as the prompt tokens per second need.
    """

    TARGET_MS = 800.0
    GRADIENT_MS_PER_S = 200.0
    GROWTH = 1.5
    POD_TOKENS_PER_S = 4000.0
    PERIOD = 5.0
    SAMPLES = 6

    def __init__(self) -> None:
        self._ttft: deque[float] = deque(maxlen=self.SAMPLES)

    def evaluate(self, replicas: int, ttft_ms: float, prompt_tokens_per_s: float) -> int:
        self._ttft.append(ttft_ms)
        wanted = replicas
        if self._gradient() > self.GRADIENT_MS_PER_S:
            wanted = math.ceil(replicas * self.GROWTH)
        elif ttft_ms > self.TARGET_MS:
            wanted = math.ceil(replicas * ttft_ms / self.TARGET_MS)
        return max(wanted, math.ceil(prompt_tokens_per_s / self.POD_TOKENS_PER_S), replicas)

    def _gradient(self) -> float:
        if len(self._ttft) < 2:
            return 0.0
        return (self._ttft[-1] - self._ttft[-2]) / self.PERIOD
