"""One model: its queue, its replicas by role, and how fast they work.

Rule: requests of one model never wait for replicas of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from surgetank.policy.batching import BatchingWindow
from surgetank.policy.fairness import FairQueue
from surgetank.policy.job import Job
from surgetank.policy.ladder import DegradationLadder
from surgetank.policy.placement import Group, Load, Placed
from surgetank.policy.rate import ServiceRate
from surgetank.policy.replica import Role
from surgetank.policy.routing import Routing

_FIRST_TOKENS = 1024  # kept for scaling, which reads them once a second
_FADE = 0.95  # of the learnt prefill speed, per request
_FOUND_FADE = 0.99  # of what is known of cached prompts, per answer
_FRESH = 0.1  # weight of the latest request in the mean service time


class Model:
    """Requests wait in `queue`; they are served whole, or in two legs where only those are."""

    __slots__ = (
        "_answered",
        "_cached",
        "_decode",
        "_most",
        "_prefill",
        "_prefill_seconds",
        "_prefill_tokens",
        "_whole",
        "arrivals",
        "batching_window",
        "expected",
        "expected_output",
        "first_tokens",
        "found",
        "ladder",
        "level",
        "look",
        "name",
        "outstanding",
        "paces",
        "prefill_done",
        "prompt_tokens",
        "queue",
        "rate",
        "routing",
        "running",
        "served",
        "service",
        "window",
    )

    def __init__(self, name: str, shares: Mapping[int, float], draw: Callable[[], float]) -> None:
        self.name = name
        self.routing = Routing(draw)
        self.queue: FairQueue[Job] = FairQueue(shares)
        self.rate = ServiceRate()
        self.running = 0
        self.served = False  # a replica (or a pair of prefill and decode) is there
        self.arrivals = 0  # in all, and their tokens: what scaling counts demand by
        self.prompt_tokens = 0.0  # less what is usually found cached
        self.found = 0.0  # part of the prompt tokens that engines found cached lately
        self._answered = self._cached = 0.0  # prompt tokens, fading
        self.expected_output = 0
        self.service: float | None = None  # seconds a request runs, fading mean
        self.expected: tuple[float, ...] = ()  # when replicas that start will serve, in order
        self.outstanding = 0  # output expected of all that runs or waits
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=_FIRST_TOKENS)
        # Streams that had begun in time: when they ended, and seconds a token; inf: broken off.
        self.paces: deque[tuple[float, float]] = deque(maxlen=_FIRST_TOKENS)
        self.level = 0  # step of the degradation ladder
        self.ladder: DegradationLadder | None = None
        self.look = inf  # from when on a request that comes asks the ladder
        self.prefill_done = 0  # prompt tokens whose first token has come
        self.batching_window = 0.0  # seconds, the longest where engines run whole batches
        self.window: BatchingWindow | None = None  # none without such engines
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
        before = self.replicas
        self.group(load.role).add(load)
        self._count_replicas(before)

    def leave(self, load: Load) -> None:
        before = self.replicas
        self.group(load.role).discard(load)
        self.routing.prefixes.drop(load)
        self._count_replicas(before)

    @property
    def replicas(self) -> int:
        """Those that serve; of those that serve halves, the ones that decode."""
        return len(self._whole.loads or self._decode.loads)

    def _count_replicas(self, before: int) -> None:
        if before and (now := self.replicas):
            self.rate.scale(now / before)
        whole, prefill, decode = self._whole, self._prefill, self._decode
        self.served = bool(whole.loads or (prefill.loads and decode.loads))
        self._most = whole.most if whole.loads else min(prefill.most, decode.most)
        if not any(load.static for load in whole.loads):
            self.window = None
        elif self.window is None:
            self.window = BatchingWindow(self.batching_window)

    def holds(self, job: Job) -> bool:
        """Whether it could be placed if all were idle."""
        return job.least + job.outputs <= self._most

    def place(self, job: Job, now: float) -> tuple[Placed, ...]:
        """Choose where it runs, without taking the room; empty when it has to wait."""
        whole = self._whole
        if whole.loads:
            if self.window is not None and not self._batch_is_open(self.window, job, now):
                return ()
            placed = whole.choose(job, now)
            if placed is None:
                return ()
            if job.hashed or job.session is not None:
                placed = self.routing.prefer(whole, job, placed, self.running, now)
            return (placed,)
        first = self._prefill.choose(job, now)
        then = self._decode.choose(job, now)
        if first is None or then is None:
            return ()
        if job.hashed or job.session is not None:
            first = self.routing.prefer(self._prefill, job, first, self.running, now)
        return first, then

    def _batch_is_open(self, window: BatchingWindow, job: Job, now: float) -> bool:
        return window.lets(
            self._whole.loads,
            job,
            waiting=self.queue.size,
            came=self.arrivals,
            level=self.level,
            now=now,
        )

    def alone(self, load: Load, now: float) -> bool:
        return self.group(load.role).alone(load, now)

    def wakes(self, now: float) -> float:
        """When time alone may make room; inf for never."""
        wake = min(
            (
                load.wakes(now)
                for group in (self._whole, self._prefill, self._decode)
                for load in group.loads
            ),
            default=inf,
        )
        window = self.window
        return wake if window is None or not now < window.until < wake else window.until

    def came(self, job: Job) -> None:
        """Count a request that is to be served, whether there is room for it or not."""
        self.arrivals += 1
        self.prompt_tokens += job.prompt * (1.0 - self.found)
        self.expected_output += job.to_come

    def answered(self, prompt: int, cached: int) -> None:
        """Learn what part of the prompts engines find cached: that is no work for a replica."""
        self._answered = _FOUND_FADE * self._answered + prompt
        self._cached = _FOUND_FADE * self._cached + min(prompt, cached)
        self.found = self._cached / self._answered if self._answered else 0.0

    def soon(self, seconds: float, now: float) -> float:
        """Seconds that work takes which the replicas of now would do in so many.

        Those on their way help from the moment at which they are expected; one that is late counts
        for nothing.
        """
        if not self.expected:
            return seconds
        replicas, passed = self.replicas, 0.0
        coming = [at - now for at in self.expected if at > now]
        if not replicas:
            return coming[0] if coming else seconds
        speed = 1.0
        for more, at in enumerate(coming, start=1):
            done = (at - passed) * speed
            if seconds <= done:
                break
            seconds -= done
            passed, speed = at, 1.0 + more / replicas
        return passed + seconds / speed

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
        self.prefill_done += prompt

    def prefill_rate(self) -> float | None:
        """Prompt tokens per second, from dispatch to first token; None before anything is known."""
        known = self._prefill_tokens > 0 and self._prefill_seconds > 0
        return self._prefill_tokens / self._prefill_seconds if known else None

    def learned(self) -> dict[str, Any]:
        """What of it is worth keeping over a restart, JSON-able: its speed with each request."""
        prefill = [self._prefill_seconds, self._prefill_tokens]
        return {"prefill": prefill, "service": self.service}

    def remember(self, kept: Mapping[str, Any]) -> None:
        """Take what `learned` gave. Raises ValueError, KeyError or TypeError for anything else."""
        seconds, tokens = (float(x) for x in kept["prefill"])
        service = None if kept["service"] is None else float(kept["service"])
        if not (seconds >= 0 and tokens >= 0 and (service is None or service >= 0)):
            raise ValueError(f"{self.name}: negative times or tokens")
        self._prefill_seconds, self._prefill_tokens, self.service = seconds, tokens, service

    def prefill_time(self, prompt: int) -> float:
        """Expected seconds to the first token once dispatched; 0 before anything is known."""
        if self._prefill_tokens <= 0:
            return 0.0
        return prompt * self._prefill_seconds / self._prefill_tokens
