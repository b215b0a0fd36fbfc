"""The client of the benchmark: one command a line on stdin, one event a line on stdout (JSON).

requests: open loop at a fixed rate over a set of keep-alive connections, each send at its own
absolute time. streams: many streams at once, every event counted. idle: streams that have had their
first token and then wait, until the line "drop". Between the events "begin" and "end" (with the
count so far) whoever drives it takes the CPU times of all processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import uvloop

from pacing import Ticker

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
PROMPT = "the quick brown fox jumps over the lazy dog and sleeps until noon " * 4


def _request(
    port: int, key: str, tokens: int, *, stream: bool, prompt_bytes: int = len(PROMPT)
) -> bytes:
    prompt = (PROMPT * (prompt_bytes // len(PROMPT) + 1))[:prompt_bytes]
    body: dict[str, Any] = {
        "model": "bench",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"authorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        f"accept: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def _emit(event: str, **members: object) -> None:
    print(json.dumps({"event": event} | members), flush=True)


class Requester(asyncio.Protocol):
    """One keep-alive connection of the request load."""

    def __init__(self, load: RequestLoad, request: bytes) -> None:
        self._load = load
        self.request = request
        self._data = b""
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by isinstance

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._load.lost()

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(data, 0, end + 2)
        if length is not None:
            if len(data) < end + 4 + int(length[1]):
                return
        elif not data.endswith(b"0\r\n\r\n"):
            return
        self._data = b""
        self._load.answered(self, data)


class RequestLoad:
    """`rate` requests a second; what finds no free connection waits for one, and is counted."""

    def __init__(self, requests: Sequence[bytes], rate: float) -> None:
        self._requests = requests  # dealt out to the connections in turn
        self._free: deque[Requester] = deque()
        self._owed = 0
        self._connections = 0  # set when the load is over and all are to come home
        self.done = 0
        self.errors = 0
        self.waited = 0
        self.latencies: list[float] = []
        self._closing = False
        self._idle = asyncio.Event()
        self._ticker = Ticker(asyncio.get_running_loop(), 1 / rate, self._tick)

    async def run(self, port: int, connections: int, warm: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        for number in range(connections):
            made = partial(Requester, self, self._requests[number % len(self._requests)])
            _, requester = await loop.create_connection(made, "127.0.0.1", port)
            self._free.append(requester)
        self._ticker.start()
        await asyncio.sleep(warm)
        self.latencies.clear()
        _emit("begin", done=self.done)
        await asyncio.sleep(seconds)
        _emit("end", done=self.done)
        self._ticker.stop()
        self._connections = connections
        self._settle()
        await asyncio.wait_for(self._idle.wait(), 30)
        self._closing = True
        for requester in self._free:
            requester.transport.close()
        times = sorted(self.latencies)
        if not times:
            raise SystemExit(f"client.py: nothing was answered within {seconds:g} s")
        _emit(
            "result",
            errors=self.errors,
            waited=self.waited,
            p50_ms=1e3 * times[len(times) // 2],
            p99_ms=1e3 * times[len(times) * 99 // 100],
        )

    def _tick(self, count: int) -> None:
        self._owed += count
        self._send()

    def _send(self) -> None:
        while self._owed and self._free:
            self._owed -= 1
            requester = self._free.popleft()
            requester.sent = time.perf_counter()
            requester.transport.write(requester.request)
        self.waited += self._owed

    def answered(self, requester: Requester, data: bytes) -> None:
        self.done += 1
        self.latencies.append(time.perf_counter() - requester.sent)
        if not data.startswith(b"HTTP/1.1 200"):
            self.errors += 1
        self._free.append(requester)
        if self._owed:
            self._send()
        self._settle()

    def _settle(self) -> None:
        if not self._owed and len(self._free) == self._connections:
            self._idle.set()

    def lost(self) -> None:
        if not self._closing:
            _emit("failed", message="a connection was closed by the other side")
            sys.exit(1)


class Stream(asyncio.Protocol):
    """One stream: counts its events, and sees whether it ended as it should."""

    def __init__(self, request: bytes, load: StreamLoad) -> None:
        self._request = request
        self._load = load
        self._last = b""
        self.events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by isinstance
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.events and not self._last and not data.startswith(b"HTTP/1.1 200"):
            self._load.errors += 1
        found = data.count(b"\n\n") + (self._last == b"\n" and data[:1] == b"\n")
        self._last = data[-1:]
        load = self._load
        load.reads += 1
        load.chunks += found
        before = self.events
        self.events = before + found
        if before < 2 <= self.events:
            load.has_begun()
        if b"[DONE]" in data:
            load.ended(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._load.has_closed()


class StreamLoad:
    """`count` streams at once."""

    def __init__(self, request: bytes, count: int) -> None:
        self._request = request
        self._count = count
        self._streams: list[Stream] = []
        self._begun = 0  # streams with their first token
        self._closed = 0
        self.all_begun, self.all_ended, self.all_closed = (asyncio.Event() for _ in range(3))
        self.whole: list[int] = []  # events of each finished stream
        self.reads = 0
        self.chunks = 0
        self.errors = 0

    async def begin(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for number in range(self._count):
            _, stream = await loop.create_connection(
                lambda: Stream(self._request, self), "127.0.0.1", port
            )
            self._streams.append(stream)
            if number % 8 == 7:
                await asyncio.sleep(0.005)  # a ramp: this is no test of the listen queue
        await asyncio.wait_for(self.all_begun.wait(), 30)

    def has_begun(self) -> None:
        self._begun += 1
        if self._begun == self._count:
            self.all_begun.set()

    def ended(self, stream: Stream) -> None:
        self.whole.append(stream.events)
        stream.transport.close()
        if len(self.whole) == self._count:
            self.all_ended.set()

    def has_closed(self) -> None:
        self._closed += 1
        if self._closed == self._count:
            self.all_closed.set()

    async def close(self) -> None:
        for stream in self._streams:
            stream.transport.abort()
        await asyncio.wait_for(self.all_closed.wait(), 10)


async def _streams(
    request: bytes, port: int, *, count: int, warm: float, seconds: float, tokens: int
) -> None:
    load = StreamLoad(request, count)
    await load.begin(port)
    await asyncio.sleep(warm)
    reads = load.reads
    _emit("begin", done=load.chunks)
    await asyncio.sleep(seconds)
    _emit("end", done=load.chunks)
    reads = load.reads - reads
    await asyncio.wait_for(load.all_ended.wait(), 60)
    # Role, tokens, finish, usage, [DONE].
    broken = sum(events != tokens + 4 for events in load.whole)
    await load.close()
    _emit("result", errors=load.errors, broken=broken, reads=reads)


async def _idle(port: int, key: str, count: int, commands: asyncio.Queue[dict[str, Any]]) -> None:
    load = StreamLoad(_request(port, key, 1, stream=True), count)
    await load.begin(port)
    _emit("idle", errors=load.errors)
    await commands.get()
    await load.close()
    _emit("result", errors=load.errors)


async def main() -> None:
    loop = asyncio.get_running_loop()
    commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    closed = asyncio.Event()

    def read() -> None:
        lines = os.read(0, 1 << 16).splitlines()
        for line in lines:
            commands.put_nowait(json.loads(line))
        if not lines:
            closed.set()

    loop.add_reader(0, read)
    ended = loop.create_task(closed.wait())
    while True:
        got = loop.create_task(commands.get())
        await asyncio.wait({got, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            got.cancel()
            return
        command = got.result()
        what, port, keys = command.pop("do"), command.pop("port"), command.pop("keys")
        try:
            if what == "requests":
                size = command.pop("prompt_bytes", len(PROMPT))
                requests = [_request(port, k, 16, stream=False, prompt_bytes=size) for k in keys]
                await RequestLoad(requests, command.pop("rate")).run(port, **command)
            elif what == "streams":
                request = _request(port, keys[0], command["tokens"], stream=True)
                await _streams(request, port, **command)
            else:
                await _idle(port, keys[0], command["count"], commands)
        except TimeoutError:
            _emit("failed", message=f"{what}: answers did not come; too much load for this proxy?")
            return


if __name__ == "__main__":
    uvloop.run(main())
