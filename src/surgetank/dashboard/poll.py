"""Ask the source once a second, whatever it answers.

Rule: every failure becomes the page's status and a gap in its curves; the poll never ends by one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from surgetank.adapters.http import FetchError, Response, fetch
from surgetank.dashboard.board import Board
from surgetank.dashboard.burstiness import Live
from surgetank.dashboard.observation import SourceError, read_decisions, read_observation

PERIOD: Final = 1.0  # seconds
_TIMEOUT: Final = 2.0  # seconds: a gateway in a burst may be late, and is not lost for that


class Poll:
    """Feeds a board from `source`, a gateway's admin listener; `token` goes along as a bearer's."""

    def __init__(self, source: str, board: Board, *, token: str | None = None) -> None:
        self._source = source.rstrip("/")
        self._board = board
        self._headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        self._live = Live()
        self._figures: asyncio.Task[None] | None = None
        self._after = 0  # the number of the next decision
        self._wall_offset = time.time() - time.monotonic()  # once: curves must not run backwards

    async def run(self) -> None:
        """Poll until cancelled, at whole periods from now."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self.once()
            due = max(due + PERIOD, loop.time())
            await asyncio.sleep(due - loop.time())

    async def once(self) -> None:
        """Ask for one second's observation and the decisions since the last time."""
        try:
            await self._observe()
        except (FetchError, SourceError) as error:
            self._board.lose(str(error), self._now())
        else:
            try:
                await self._decide()
            except (FetchError, SourceError) as error:
                self._board.doubt(str(error))
        self._board.notify()

    async def _observe(self) -> None:
        answer = await self._get("/observation")
        if answer.status != 200:
            raise SourceError(_refused(self._source, answer.status, sent=bool(self._headers)))
        seen = read_observation(answer.body)
        if self._board.status.gateway not in {"", seen.gateway}:
            self._after = 0  # another process, which numbers its decisions anew
        self._board.observe(seen, self._now())
        self._live.take(seen)
        if self._live.due(self._now()) and (self._figures is None or self._figures.done()):
            self._figures = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        self._board.tell(await asyncio.to_thread(self._live.figures))

    async def _decide(self) -> None:
        answer = await self._get(f"/decisions?after={self._after}")
        if answer.status == 404:  # no autoscaler in this process
            self._board.decide(None)
            return
        if answer.status != 200:
            raise SourceError(f"{self._source}/decisions answered HTTP {answer.status}")
        page = read_decisions(answer.body)
        if page.next < self._after:
            self._after = 0
            return
        self._after = page.next
        self._board.decide(page.lines)

    def _now(self) -> float:
        return self._wall_offset + time.monotonic()

    async def _get(self, path: str) -> Response:
        return await fetch(self._source + path, timeout=_TIMEOUT, headers=self._headers)


def _refused(source: str, status: int, *, sent: bool) -> str:
    if status in {401, 403}:
        wrong = "does not accept the token of --token-file" if sent else "wants a --token-file"
        return f"{source} {wrong} (HTTP {status})"
    if status == 404:
        return f"{source} has no /observation: is it the address of a gateway's admin listener?"
    return f"{source}/observation answered HTTP {status}"
