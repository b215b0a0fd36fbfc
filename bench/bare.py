"""Bare uvloop clients, which do nothing but write and read: what the sender is held against.

usage: bare.py requests PORT SECONDS CONNECTIONS | bare.py streams PORT STREAMS TOKENS SPREAD
Prints one JSON object: what was done, the seconds it took, and the processor seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop


def request(tokens: int, *, stream: bool) -> bytes:
    """One request as bytes, as the benchmark's other clients send it."""
    body = json.dumps(
        {
            "model": "bench",
            "messages": [{"role": "user", "content": "the quick brown fox"}],
            "max_tokens": tokens,
            "stream": stream,
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: "
    return head.encode() + b"%d\r\n\r\n" % len(body) + body


class Asker(asyncio.Protocol):
    """Writes its next request as soon as an answer came."""

    done = 0

    def __init__(self, message: bytes) -> None:
        self._message = message

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by isinstance
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - whatever it is
        Asker.done += 1
        self._transport.write(self._message)


class Listener(asyncio.Protocol):
    """Counts the events of one stream."""

    events = 0
    left = 0

    def __init__(self, message: bytes, over: asyncio.Event) -> None:
        self._message = message
        self._over = over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._message)

    def data_received(self, data: bytes) -> None:
        Listener.events += data.count(b"\n\n")
        if b"[DONE]" in data:
            Listener.left -= 1
            if not Listener.left:
                self._over.set()


async def requests(port: int, seconds: float, connections: int) -> tuple[int, float, float]:
    loop = asyncio.get_running_loop()
    message = request(1, stream=False)
    for _ in range(connections):
        await loop.create_connection(lambda: Asker(message), "127.0.0.1", port)
    done, began, cpu = Asker.done, time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return Asker.done - done, time.monotonic() - began, time.process_time() - cpu


async def streams(port: int, count: int, tokens: int, spread: float) -> tuple[int, float, float]:
    loop = asyncio.get_running_loop()
    message = request(tokens, stream=True)
    over = asyncio.Event()
    Listener.left = count
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(count):
        await loop.create_connection(lambda: Listener(message, over), "127.0.0.1", port)
        await asyncio.sleep(spread / count)
    await over.wait()
    return Listener.events, time.monotonic() - began, time.process_time() - cpu


if __name__ == "__main__":
    what, port, *rest = sys.argv[1:]
    if what == "requests":
        figures = uvloop.run(requests(int(port), float(rest[0]), int(rest[1])))
    else:
        figures = uvloop.run(streams(int(port), int(rest[0]), int(rest[1]), float(rest[2])))
    print(json.dumps(dict(zip(("done", "seconds", "cpu"), figures, strict=True))))
