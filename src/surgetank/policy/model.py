"""One model: its queue, its replicas by role, and how fast they work.

Rule: requests of one model never wait for replicas of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import inf

from surgetank.policy.fairness import FairQueue
from surgetank.policy.job import Job
from surgetank.policy.placement import Group, Load, Placed
from surgetank.policy.rate import ServiceRate
from surgetank.policy.replica import Role

_FIRST_TOKENS = 1024  # kept for scaling, which reads them once a second
_FADE = 0.95  # of the learnt prefill speed, per request
_FRESH = 0.1  # weight of the latest request in the mean service time


class Model:
    """Requests wait in `queue`; they are served whole, or in two legs where only those are."""

    __slots__ = (
        "_decode",
        "_most",
        "_prefill",
        "_prefill_seconds",
        "_prefill_tokens",
        "_whole",
        "arrivals",
        "expected_output",
        "first_tokens",
        "name",
        "outstanding",
        "prompt_tokens",
        "queue",
        "rate",
        "running",
        "served",
        "service",
    )

    def __init__(self, name: str, shares: Mapping[int, float]) -> None:
        self.name = name
        self.queue: FairQueue[Job] = FairQueue(shares)
        self.rate = ServiceRate()
        self.running = 0
        self.served = False  # a replica (or a pair of prefill and decode) is there
        self.arrivals = 0  # in all, and their tokens: what scaling counts demand by
        self.prompt_tokens = 0
        self.expected_output = 0
        self.service: float | None = None  # seconds a request runs, fading mean
        self.outstanding = 0  # output expected of all that runs or waits
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=_FIRST_TOKENS)
        self._most = 0.0  # tokens of a request that any could hold
        self._whole = Group()
        self._prefill = Group()
        self._decode = Group()
        self._prefill_seconds = 0.0
        self._prefill_tokens = 0.0

    def group(self, role: Role) -> Group:
        if role is Role.BOTH:
            return self._whole
        return self._prefill if role is Role.PREFILL else self._decode

    def join(self, load: Load) -> None:
        self.group(load.role).add(load)
        self._count_replicas()

    def leave(self, load: Load) -> None:
        self.group(load.role).discard(load)
        self._count_replicas()

    def _count_replicas(self) -> None:
        whole, prefill, decode = self._whole, self._prefill, self._decode
        self.served = bool(whole.loads or (prefill.loads and decode.loads))
        self._most = whole.most if whole.loads else min(prefill.most, decode.most)

    def holds(self, job: Job) -> bool:
        """Whether it could be placed if all were idle."""
        return job.least + job.outputs <= self._most

    def place(self, job: Job, now: float) -> tuple[Placed, ...]:
        """Choose where it runs, without taking the room; empty when it has to wait."""
        whole = self._whole
        if whole.loads:
            placed = whole.choose(job, now)
            return () if placed is None else (placed,)
        first = self._prefill.choose(job, now)
        then = self._decode.choose(job, now)
        if first is None or then is None:
            return ()
        return first, then

    def alone(self, load: Load, now: float) -> bool:
        return self.group(load.role).alone(load, now)

    def wakes(self, now: float) -> float:
        """When time alone may make room; inf for never."""
        return min(
            (
                load.wakes(now)
                for group in (self._whole, self._prefill, self._decode)
                for load in group.loads
            ),
            default=inf,
        )

    def came(self, job: Job) -> None:
        """Count a request that is to be served, whether there is room for it or not."""
        self.arrivals += 1
        self.prompt_tokens += job.prompt
        self.expected_output += job.to_come

    def mark(self, now: float) -> None:
        """Tell the rate the present state, after each change of it."""
        rate, running = self.rate, self.running > 0
        if running is not rate.working or (running and self.queue.size > 0) is not rate.backlogged:
            rate.mark(now, waiting=self.queue.size > 0, running=running)

    def free(self) -> float:
        """Requests for which there is a slot now."""
        loads = self._whole.loads or self._prefill.loads
        return sum(max(0.0, load.limit - load.in_flight) for load in loads)

    def ran(self, seconds: float) -> None:
        """A request ended well after so many seconds of running."""
        service = self.service
        self.service = seconds if service is None else service + (seconds - service) * _FRESH

    def prefilled(self, prompt: int, seconds: float) -> None:
        """A first token came `seconds` after dispatch."""
        self._prefill_seconds = self._prefill_seconds * _FADE + seconds
        self._prefill_tokens = self._prefill_tokens * _FADE + prompt

    def prefill_time(self, prompt: int) -> float:
        """Expected seconds to the first token once dispatched; 0 before anything is known."""
        if self._prefill_tokens <= 0:
            return 0.0
        return prompt * self._prefill_seconds / self._prefill_tokens
