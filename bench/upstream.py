"""The engine of the benchmark: answers at once, and paces the chunks of its streams evenly.

usage: upstream.py STREAMS INTERVAL_SECONDS

Streams stand in a ring of STREAMS places. One tick a place, INTERVAL / STREAMS apart: each stream
gets a chunk every INTERVAL, and no two of them at the same instant, however they began. Prints
PORT; a line "hold" on stdin makes new streams stop after their first token, "flow" lets all go on.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from typing import cast

import uvloop

from pacing import Ticker
from proxies import ALIASES

MODEL = "bench"
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_STREAM = re.compile(rb'"stream":\s*true')
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


def _chunk(delta: dict[str, str], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    event = {
        "id": "chatcmpl-3f1f2f0e6a7b4c6d9e8f7a6b5c4d3e2f",
        "object": "chat.completion.chunk",
        "created": 1_730_000_000,
        "model": MODEL,
        "choices": [choice],
    } | more
    return _framed(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")


def _framed(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _answer(body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


USAGE = {"prompt_tokens": 60, "completion_tokens": 16, "total_tokens": 76}
CHAT = _answer(
    json.dumps(
        {
            "id": "chatcmpl-3f1f2f0e6a7b4c6d9e8f7a6b5c4d3e2f",
            "object": "chat.completion",
            "created": 1_730_000_000,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello! How can I help you today?"},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": USAGE,
        }
    ).encode()
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
ROLE = _chunk({"role": "assistant", "content": ""})
TOKEN = _chunk({"content": " token"})
LAST = _chunk({}, "stop")
USAGE_CHUNK = _chunk({}, choices=[], usage=USAGE)
DONE = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
METRICS = b"""\
vllm:num_requests_running{engine="0",model_name="bench"} 0.0
vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="10000000"} 1.0
"""
MODELS = {"data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 131072}]}
GETS = {
    b"/health": _answer(b""),
    b"/version": _answer(b'{"version":"0.32.0"}'),
    b"/v1/models": _answer(json.dumps({"object": "list"} | MODELS).encode()),
    b"/metrics": _answer(METRICS, b"text/plain; version=0.0.4"),
}
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class Ring:
    """The places streams stand in, and the tick that goes round."""

    def __init__(self, places: int, interval: float) -> None:
        self._places: list[list[Connection]] = [[] for _ in range(places)]
        self._at = 0
        self._count = 0
        self._ticker = Ticker(asyncio.get_running_loop(), interval / places, self._tick)
        self.holding = False
        self.held: set[Connection] = set()

    def add(self, connection: Connection) -> None:
        place = min(range(len(self._places)), key=lambda i: len(self._places[i]))
        self._places[place].append(connection)
        connection.place = place
        self._count += 1
        if not self._ticker.running:
            self._ticker.start()

    def remove(self, connection: Connection) -> None:
        self.held.discard(connection)
        if connection.place >= 0:
            self._places[connection.place].remove(connection)
            connection.place = -1
            self._count -= 1
            if not self._count:
                self._ticker.stop()

    def flow(self) -> None:
        self.holding = False
        for connection in list(self.held):
            connection.end()
        self.held.clear()

    def _tick(self, count: int) -> None:
        places = self._places
        for _ in range(count):
            self._at = at = (self._at + 1) % len(places)
            for connection in tuple(places[at]):
                connection.token()


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests come one after the other."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._data = b""
        self._left = 0
        self._usage = False
        self.place = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by isinstance

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._ring.remove(self)

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(data, 0, end)
        size = end + 4 + (int(length[1]) if length else 0)
        if len(data) < size:
            return
        self._data = data[size:]
        self._request(data[:end], data[end + 4 : size])

    def _request(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"POST"):
            path = head.split(b" ", 2)[1:2]  # an HTTP/2 preface, which one router tries, has none
            self._transport.write(GETS.get(path[0], NOT_FOUND) if path else NOT_FOUND)
        elif _STREAM.search(body):
            asked = _MAX_TOKENS.search(body)
            self._left = int(asked[1]) if asked else 16
            self._usage = b"include_usage" in body
            self._transport.write(STREAM_HEAD + ROLE)
            if self._ring.holding:
                self._transport.write(TOKEN)
                self._ring.held.add(self)
            else:
                self._ring.add(self)
        else:
            self._transport.write(CHAT)

    def token(self) -> None:
        self._transport.write(TOKEN)
        self._left -= 1
        if self._left <= 0:
            self._ring.remove(self)
            self.end()

    def end(self) -> None:
        self._transport.write(LAST + (USAGE_CHUNK if self._usage else b"") + DONE)


async def main() -> None:
    ring = Ring(int(sys.argv[1]), float(sys.argv[2]))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(ring), "127.0.0.1", 0, backlog=4096)
    port: int = server.sockets[0].getsockname()[1]
    await loop.create_server(lambda: Connection(ring), ALIASES, port, backlog=64)
    closed = asyncio.Event()

    def command() -> None:
        lines = os.read(0, 4096).split()
        for line in lines:
            if line == b"hold":
                ring.holding = True
            else:
                ring.flow()
        if not lines:
            closed.set()

    loop.add_reader(0, command)
    print(port, flush=True)
    await closed.wait()


if __name__ == "__main__":
    uvloop.run(main())
