"""One request as its client makes it: the first attempt, and those that its retry rule allows.

Rule: the request is one whatever its attempts. It was due once, was first sent once, and ends once:
with its last attempt, or when the patience of who asked is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from surgetank.loadtest import outcome as words
from surgetank.loadtest.client import Client
from surgetank.loadtest.connection import CLOCK, Exchange, Flight
from surgetank.loadtest.shot import Shot
from surgetank.policy.request import Outcome
from surgetank.policy.retry import Refusal, RetryRule

_MAY_BE_TRIED_AGAIN: Final = (words.LOST, "client timeout", "protocol:")


@dataclass(frozen=True, slots=True)
class Habits:
    """How requests are made: by which client, with which retries; `draw` gives [0, 1)."""

    client: Client
    rule: RetryRule
    draw: Callable[[], float]


class Attempts:
    """The attempts at one shot. `on_end` is told once, and then `exchange` is the last one's.

    `sent`: of the first attempt.
    """

    __slots__ = (
        "_flight", "_habits", "_leave_at", "_on_end", "_waiting", "due", "exchange", "index",
        "retries", "sent", "shot",
    )  # fmt: skip

    exchange: Exchange

    def __init__(
        self,
        habits: Habits,
        shot: Shot,
        index: int,
        due: float,
        on_end: Callable[[Attempts], None],
    ) -> None:
        self._habits = habits
        self._on_end: Callable[[Attempts], None] | None = on_end
        self._flight: Flight | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._leave_at = None if shot.abandon_after is None else CLOCK() + shot.abandon_after
        self.shot = shot
        self.index = index
        self.due = due
        self.sent: float | None = None
        self.retries = 0

    def begin(self) -> None:
        """Make the next attempt."""
        self._waiting = None
        shot = self.shot
        left = None if self._leave_at is None else max(0.0, self._leave_at - CLOCK())
        client = self._habits.client
        message = client.message(shot.body, key=shot.key, route=shot.route, retries=self.retries)
        self._flight = client.launch(message, self._ended, timeout=shot.timeout, abandon_after=left)

    def stop(self) -> None:
        """Hang up, or end the wait for the next attempt."""
        told, self._on_end = self._on_end, None
        if told is None:
            return
        if self._waiting is not None:
            self._waiting.cancel()
            self._leave(words.STOPPED)
        elif self._flight is not None:
            self._flight.cut(Outcome.ABANDONED, words.STOPPED)
        told(self)

    def _ended(self, exchange: Exchange) -> None:
        self.exchange = exchange
        if self.sent is None:
            self.sent = exchange.sent
        refusal = self._refusal(exchange)
        habits = self._habits
        if self._on_end is not None and refusal is not None and habits.rule.most:
            wait = habits.rule.wait(refusal, self.retries, habits.draw())
            if wait is not None:
                self._again_in(wait)
                return
        self._end()

    def _refusal(self, exchange: Exchange) -> Refusal | None:
        """What the retry rule is asked about; None: the client has its answer, or has left."""
        if exchange.outcome in {Outcome.COMPLETED, Outcome.ABANDONED}:
            return None
        if exchange.refusal is not None:
            return exchange.refusal
        # A stream is the caller's once it began; a whole answer that broke is still the SDK's.
        broke = not self.shot.stream and exchange.reason.startswith(_MAY_BE_TRIED_AGAIN)
        return Refusal(0) if broke else None

    def _again_in(self, wait: float) -> None:
        loop = asyncio.get_running_loop()
        left = None if self._leave_at is None else self._leave_at - CLOCK()
        if left is not None and left < wait:
            self._waiting = loop.call_later(max(0.0, left), self._lose_patience)
            return
        self.retries += 1
        self._waiting = loop.call_later(wait, self.begin)

    def _lose_patience(self) -> None:
        self._leave(words.LEFT)
        self._end()

    def _leave(self, why: str) -> None:
        self._waiting = None
        self.exchange.outcome = Outcome.ABANDONED
        self.exchange.reason = why
        self.exchange.ended = CLOCK()

    def _end(self) -> None:
        told, self._on_end = self._on_end, None
        self._flight = None
        if told is not None:
            told(self)
