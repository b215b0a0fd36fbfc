"""The books of requests that have ended: counted, told to observers, and written as records.

Rule: what has ended is booked in batches, at most `_MOST` requests or `_SECONDS` later, and before
anybody reads. Counting and encoding one request between two others costs three times as much as in
a row, since each finds the processor's caches full of something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from surgetank.adapters.records import record_line
from surgetank.gateway.account import Account
from surgetank.gateway.metrics import Metrics
from surgetank.policy.flow import FlowControl
from surgetank.policy.record import RequestRecord

_MOST: Final = 32  # booked in 0.1 ms: no stream waits for longer
_SECONDS: Final = 0.05


class Ledger:
    """Books ended requests into `metrics`, `observers` and `write` (None: no records).

    `known_model` gives the name under which a model is counted.
    """

    def __init__(
        self,
        flow: FlowControl,
        metrics: Metrics,
        known_model: Callable[[str], str],
        write: Callable[[str], None] | None,
        *,
        wall_offset: float,
    ) -> None:
        self.observers: list[Callable[[RequestRecord], None]] = []
        self._flow = flow
        self._metrics = metrics
        self._known_model = known_model
        self._write = write
        self._wall_offset = wall_offset
        self._loop = asyncio.get_running_loop()
        self._ended: list[Account] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, account: Account) -> None:
        """A request has ended, and its account is closed."""
        ended = self._ended
        ended.append(account)
        if len(ended) >= _MOST:
            self.book()
        elif self._timer is None:
            self._timer = self._loop.call_later(_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        self.book()

    def book(self) -> None:
        """Book all that has ended by now."""
        ended, self._ended = self._ended, []
        service: dict[str, tuple[str, float]] = {}
        models: dict[str, str] = {}
        count, write, wall_offset = self._metrics.count, self._write, self._wall_offset
        for account in ended:
            tenant, model = account.request.tenant, account.request.model
            if tenant not in service:
                service[tenant] = self._flow.tier(tenant).name, self._flow.ttft_objective(tenant)
            if model not in models:
                models[model] = self._known_model(model)
            record = account.record(*service[tenant], wall_offset)
            count(record, models[model])
            if write is not None:
                write(record_line(record))
            for tell in self.observers:
                tell(record)

    def close(self) -> None:
        """Book the last ones; nothing ends after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.book()
