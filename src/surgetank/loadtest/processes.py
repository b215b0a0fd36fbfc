"""Send a schedule from as many processes as its rate needs, as if from one.

Rule: all keep one clock and one start. Shots are dealt out in turn, so that each process has an
even share of every pulse; a process that dies makes the run invalid, and the others' figures stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, Literal

from surgetank.errors import InputError
from surgetank.loadtest.calm import calm
from surgetank.loadtest.client import Client, Tls
from surgetank.loadtest.connection import CLOCK
from surgetank.loadtest.jobs import Done, Go, Job, Progress, Ready, Refused, Stop, framed, read_up
from surgetank.loadtest.sender import fire
from surgetank.loadtest.shot import MAX_LAG, Lag, LoadResult, Shot, Tally
from surgetank.policy.retry import NO_RETRIES, RetryRule

REQUESTS_PER_PROCESS: Final = 1000.0  # a second: half of what a slow core sends on time
TOKENS_PER_PROCESS: Final = 10_000.0  # a second: the same for what it receives
_TOKENS: Final = 256  # of an answer whose bound is not known
_LEAD_IN: Final = 0.1  # seconds for the word to reach all processes
_TELL_EVERY: Final = 0.25

Processes = int | Literal["auto"]
OnProgress = Callable[[Tally], None]


async def send(
    url: str,
    shots: Iterable[Shot],
    *,
    rule: RetryRule = NO_RETRIES,
    seed: int = 0,
    processes: Processes = "auto",
    tls: Tls | None = None,
    start: float | None = None,
    stop: asyncio.Event | None = None,
    max_lag: float = MAX_LAG,
    on_progress: OnProgress | None = None,
) -> LoadResult:
    """Send every shot at its time and wait for all their ends. See `sender.fire`.

    `processes`: "auto" takes one for each 1,000 requests or 10,000 tokens a second that the
    schedule's busiest second may have, and no more than there are cores. One is this process.
    `seed`: of the retries' jitter. `start`: of the schedule, on time.monotonic's clock; as soon as
    may be without. `on_progress` is called four times a second. Raises InputError.
    """
    schedule = sorted(shots, key=lambda shot: shot.at)
    count = processes_for(schedule) if processes == "auto" else processes
    if count < 1:
        raise InputError(f"--processes {count}: must be >= 1, or auto")
    if count > 1:
        named = [
            shot if shot.id else replace(shot, id=f"{index:06d}")
            for index, shot in enumerate(schedule)
        ]
        jobs = [Job(url, named[n::count], rule, seed + n, tls) for n in range(count)]
        return await _Crew(jobs, len(schedule), stop, max_lag, on_progress).run(start)
    client = Client(url, tls=tls)
    tally = Tally()
    try:
        with calm():
            async with telling(tally, on_progress):
                return await fire(
                    client,
                    schedule,
                    rule=rule,
                    draws=random.Random(seed),
                    start=start,
                    stop=stop,
                    max_lag=max_lag,
                    tally=tally,
                )
    finally:
        await client.close()


def processes_for(schedule: Sequence[Shot]) -> int:
    """How many processes its busiest second needs, at most one for each core of this machine."""
    requests: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for shot in schedule:
        second = int(shot.at)
        requests[second] = requests.get(second, 0) + 1
        tokens[second] = tokens.get(second, 0) + (shot.max_tokens or _TOKENS)
    needed = max(
        max(requests.values(), default=0) / REQUESTS_PER_PROCESS,
        max(tokens.values(), default=0) / TOKENS_PER_PROCESS,
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(math.ceil(needed), cores or 1))


@asynccontextmanager
async def telling(tally: Tally, on_progress: OnProgress | None) -> AsyncIterator[None]:
    """Call `on_progress(tally)` four times a second meanwhile, and once at the end."""
    if on_progress is None:
        yield
        return

    async def tell() -> None:
        while True:
            await asyncio.sleep(_TELL_EVERY)
            on_progress(tally)

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        on_progress(tally)


class _Crew:
    """The processes of one run."""

    def __init__(
        self,
        jobs: Sequence[Job],
        planned: int,
        stop: asyncio.Event | None,
        max_lag: float,
        on_progress: OnProgress | None,
    ) -> None:
        self._jobs = jobs
        self._planned = planned
        self._stop = stop
        self._max_lag = max_lag
        self._on_progress = on_progress
        self._tallies = [Tally() for _ in jobs]
        self._processes: list[asyncio.subprocess.Process] = []

    async def run(self, start: float | None) -> LoadResult:
        try:
            for _ in self._jobs:
                self._processes.append(await _start())
            await asyncio.gather(
                *(self._prepare(p, job) for p, job in zip(self._processes, self._jobs, strict=True))
            )
            soon = CLOCK() + _LEAD_IN
            go = framed(Go(soon if start is None else start, time.time() - CLOCK()))
            for process in self._processes:
                _write(process, go)
            stopping = asyncio.create_task(self._pass_on_stop())
            try:
                done = await asyncio.gather(*map(self._follow, range(len(self._jobs))))
            finally:
                stopping.cancel()
                await asyncio.gather(stopping, return_exceptions=True)
        finally:
            await asyncio.gather(*map(_end, self._processes))
        return self._joined(done)

    async def _prepare(self, process: asyncio.subprocess.Process, job: Job) -> None:
        _write(process, framed(job))
        assert process.stdout is not None  # noqa: S101  (it was started with a pipe)
        told = await read_up(process.stdout)
        if isinstance(told, Refused):
            raise InputError(told.why)
        if not isinstance(told, Ready):
            raise InputError(
                f"--processes {len(self._jobs)}: a process of the sender did not start"
            )

    async def _follow(self, number: int) -> Done | None:
        """Hear one process out; None: it died."""
        reader = self._processes[number].stdout
        assert reader is not None  # noqa: S101  (it was started with a pipe)
        while True:
            told = await read_up(reader)
            if isinstance(told, Progress):
                self._tallies[number] = told.tally
                if self._on_progress is not None and number == 0:
                    self._on_progress(Tally.total(self._tallies))
                continue
            return told if isinstance(told, Done) else None

    async def _pass_on_stop(self) -> None:
        if self._stop is None:
            return
        await self._stop.wait()
        order = framed(Stop())
        for process in self._processes:
            _write(process, order)

    def _joined(self, done: Sequence[Done | None]) -> LoadResult:
        lags = array("d")
        records = []
        for one in done:
            if one is not None:
                lags.frombytes(one.lags)
                records += one.records
        records.sort(key=lambda record: (record.scheduled or 0.0, record.id))
        back = [one for one in done if one is not None]
        return LoadResult(
            records,
            Lag.of(lags),
            max((one.elapsed for one in back), default=0.0),
            planned=self._planned,
            cpu=sum(one.cpu for one in back),
            processes=len(done),
            stopped=any(one.stopped for one in back),
            lost=sum(
                len(job.shots) for job, one in zip(self._jobs, done, strict=True) if one is None
            ),
            max_lag=self._max_lag,
            lags=lags,
        )


async def _start() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "surgetank.loadtest.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise InputError(f"--processes: cannot start another process: {error.strerror}") from error


def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(data)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let it go: the end of its pipe stops it, and one that does not listen is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(5):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
