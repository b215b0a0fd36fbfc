"""One request made by an async function of the user's own, instead of our client.

Rule: the function decides nothing about time. It is started when its shot is due, whatever became
of the others, and gets the same stamps and the same record as a request of our own client.

- `async def ask(shot)`: when it returns, its answer was there. It may return the number of output
  tokens, or a `Usage`.
- an async generator (`async def ask(shot): ... yield text`), or a coroutine that returns an async
  iterator: each item that is not empty is a token, stamped as it comes; an item that is a `Usage`
  tells the engine's own count.
- raising: an error with a `status_code` (openai-python's) or a `response` that has one (httpx's) is
  judged as that status; TimeoutError is a timeout; anything else fails with the error's type.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from surgetank.loadtest import outcome as words
from surgetank.loadtest.connection import CLOCK, Exchange
from surgetank.loadtest.outcome import outcome_of_status
from surgetank.loadtest.shot import Shot
from surgetank.policy.gaps import count_gaps
from surgetank.policy.request import Outcome, Usage

RequestFunction = Callable[[Shot], "Awaitable[Any] | AsyncIterator[Any]"]


class NotAsyncError(TypeError):
    """The function gave neither an awaitable nor an async generator."""


class FunctionCall:
    """One call of the function, from its start to its one outcome. `on_end` is told once."""

    def __init__(
        self,
        function: RequestFunction,
        shot: Shot,
        index: int,
        due: float,
        on_end: Callable[[FunctionCall], None],
        *,
        clock: Callable[[], float] = CLOCK,
    ) -> None:
        self._clock = clock
        self._function = function
        self._on_end = on_end
        self._moments = array("d")
        self._why = "cancelled"
        self.shot = shot
        self.index = index
        self.due = due
        self.retries = 0
        self.exchange = Exchange(clock())

    @property
    def sent(self) -> float | None:
        return self.exchange.sent

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """Cancel it; it ends as abandoned once the function has let go."""
        self._why = words.STOPPED
        self._task.cancel()

    async def _run(self) -> None:
        shot, exchange = self.shot, self.exchange
        exchange.sent = self._clock()
        patience = shot.abandon_after
        leaves = patience is not None and patience < shot.timeout
        try:
            async with asyncio.timeout(patience if leaves else shot.timeout) as bound:
                await self._ask()
            outcome, why, status = Outcome.COMPLETED, "", 200
        except Exception as error:  # noqa: BLE001 - whatever it raises is what became of it
            status = _status_of(error)
            if isinstance(error, TimeoutError) and bound.expired() and leaves:
                outcome, why = Outcome.ABANDONED, words.LEFT
            elif isinstance(error, TimeoutError):
                seen = exchange.first_byte is not None
                outcome = Outcome.REQUEST_TIMEOUT
                why = words.MID_ANSWER if seen else words.NO_ANSWER
            elif status:
                outcome, why = outcome_of_status(status, _body_of(error))
            else:
                outcome, why = Outcome.UPSTREAM_FAILED, type(error).__name__
        exchange.outcome, exchange.reason, exchange.status = outcome, why, status

    async def _ask(self) -> None:
        answer = self._function(self.shot)
        if inspect.isasyncgen(answer):
            async with aclosing(answer) as items:
                await self._listen(items)
            return
        if not inspect.isawaitable(answer):
            raise NotAsyncError
        given = await answer
        if hasattr(given, "__aiter__"):
            await self._listen(given)
            return
        self.exchange.first_byte = self.exchange.first_token = self._clock()
        if isinstance(given, Usage):
            self.exchange.usage = given
        elif isinstance(given, int) and not isinstance(given, bool):
            self.exchange.tokens = given

    async def _listen(self, items: AsyncIterator[Any]) -> None:
        async for item in items:
            now = self._clock()
            if self.exchange.first_byte is None:
                self.exchange.first_byte = now
            if isinstance(item, Usage):
                self.exchange.usage = item
            elif item:
                self._moments.append(now)

    def _ended(self, task: asyncio.Task[None]) -> None:
        exchange, moments = self.exchange, self._moments
        exchange.ended = self._clock()
        if task.cancelled() or exchange.outcome is None:
            exchange.outcome, exchange.reason = Outcome.ABANDONED, self._why
        if moments:
            exchange.first_token = moments[0]
            exchange.tokens = len(moments)
            exchange.gaps = count_gaps(moments, len(moments))
        if exchange.usage is not None:
            exchange.tokens = exchange.usage.output_tokens
        self._on_end(self)


def _status_of(error: Exception) -> int:
    for bearer in (error, getattr(error, "response", None)):
        status = getattr(bearer, "status_code", None)
        if isinstance(status, int):
            return status
    return 0


def _body_of(error: Exception) -> bytes:
    """The error body as openai-python keeps it, to be read as any engine's."""
    body = getattr(error, "body", None)
    try:
        return json.dumps(body).encode() if isinstance(body, dict) else b""
    except (TypeError, ValueError):
        return b""
