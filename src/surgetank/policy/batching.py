"""When a batch leaves for engines that run whole batches: whoever is in one leaves with the last.

Such an engine takes what is there when it is idle, and nobody else until all of them are done. A
request that finds it idle would run alone, and the next ones wait for its end. So they are held
here, where they can still be ordered, until there are enough, for at most a window:

    window = longest x (1 - fill)      fill = what came in the time of one run / size of a batch

Nobody comes for company while it is idle, so waiting is what makes a batch; at the peak a batch has
come together while the last one ran, and the window is 0. It is 0 too on a step of the degradation
ladder, and over as soon as a batch is full. Continuous batching (vLLM, SGLang) needs none: there a
request joins at the next step.

Rule: one batch opens at a time, and is filled before the next; it is open for one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from surgetank.policy.job import Job
    from surgetank.policy.placement import Load

_PATIENT: Final = 0.5  # part of a request's TTFT objective that the window may take


class BatchingWindow:
    """The window of one model. `longest`: seconds that a request waits for company at most."""

    __slots__ = ("_came", "_open", "_opened", "_since", "longest", "until")

    def __init__(self, longest: float) -> None:
        self.longest = longest
        self.until = inf  # when the window that is open for company ends
        self._since: float | None = None  # when the first of them came
        self._open: Load | None = None  # the replica that is being filled
        self._opened = -inf
        self._came = 0

    def lets(
        self, loads: Sequence[Load], job: Job, *, waiting: int, came: int, level: int, now: float
    ) -> bool:
        """Whether a batch is open for a request now; opens one when its time has come.

        `waiting`: requests in the queue, it included or not; `came`: all that ever came; `level`:
        of the degradation ladder.
        """
        load = self._open
        if load is not None and load.batch_at == now and load.in_flight + 1 <= load.limit:
            return True
        load = next(
            (x for x in loads if x.static and not x.in_flight and now >= x.paused_until), None
        )
        waiting = max(1, waiting)
        if self._since is None or waiting == 1:
            self._begin(loads, job, came, level, now)
        if load is None:
            return any(not x.static for x in loads)
        if waiting < load.limit and now < self.until and not level:
            return any(not x.static for x in loads)
        load.batch_at = now
        self._open, self._opened, self._came = load, now, came
        self._since, self.until = None, inf
        return True

    def _begin(self, loads: Sequence[Load], job: Job, came: int, level: int, now: float) -> None:
        """The first one waits for company from now on."""
        began = now if job.waiting is None else job.queued_at
        if self._since == began:
            return
        self._since = began
        seats = max((x.limit for x in loads if x.static), default=1.0)
        service, passed = job.model.service, now - self._opened
        fill = 0.0
        if service is not None and 0 < passed < inf:
            fill = min(1.0, (came - self._came) * service / passed / seats)
        window = 0.0 if level else min(self.longest, _PATIENT * job.objective) * (1 - fill)
        self.until = began + window
