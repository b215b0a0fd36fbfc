"""`python -m surgetank.loadtest.worker`: one process of a sender, told what to do on its stdin."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from typing import Final

import uvloop

from surgetank.errors import InputError
from surgetank.loadtest.calm import calm
from surgetank.loadtest.client import Client
from surgetank.loadtest.jobs import (
    Done,
    Go,
    Job,
    Progress,
    Ready,
    Refused,
    Up,
    framed,
    read_down,
)
from surgetank.loadtest.sender import fire
from surgetank.loadtest.shot import Tally

_TELL_EVERY: Final = 0.25  # seconds


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    job = await read_down(reader)
    if not isinstance(job, Job):
        return
    try:
        client = Client(job.url, tls=job.tls)
    except InputError as error:
        _tell(Refused(str(error)))
        return
    with calm():
        _tell(Ready())
        go = await read_down(reader)
        if isinstance(go, Go):
            await _send(client, job, go, reader)


async def _send(client: Client, job: Job, go: Go, reader: asyncio.StreamReader) -> None:
    stop = asyncio.Event()
    tally = Tally()
    listening = asyncio.create_task(_listen(reader, stop))
    telling = asyncio.create_task(_tell_often(tally))
    try:
        result = await fire(
            client,
            job.shots,
            rule=job.rule,
            draws=random.Random(job.seed),
            start=go.start,
            wall=go.wall,
            stop=stop,
            tally=tally,
        )
    finally:
        telling.cancel()
        listening.cancel()
        await asyncio.gather(telling, listening, return_exceptions=True)
    _tell(Done(result.records, result.lags.tobytes(), result.elapsed, result.cpu, result.stopped))
    await client.close()


async def _listen(reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    await read_down(reader)  # nothing but an order to stop, or the parent's end, can come now
    stop.set()


async def _tell_often(tally: Tally) -> None:
    while True:
        await asyncio.sleep(_TELL_EVERY)
        _tell(Progress(tally))


def _tell(message: Up) -> None:
    data = memoryview(framed(message))
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to understand
    uvloop.run(_main())
