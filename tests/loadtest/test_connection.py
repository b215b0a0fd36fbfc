"""However a stream is cut into reads, the connection sees what a scanner sees of the whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from surgetank.loadtest.connection import Connection, Exchange, Flight, Owner
from surgetank.policy.request import Outcome
from surgetank.wire.http1 import LAST_CHUNK, Limits, chunk
from surgetank.wire.sse import SseScanner
from tests.loadtest.scripted import DONE, STREAM_HEAD, USAGE

WORDS = st.sampled_from([" a", " token", "", '"', "\\", "\n", "é", "}", "data: ", " a", " a"])


class _Pool:
    def opened(self, connection: Connection) -> None: ...

    def connect(self, flight: Flight) -> None: ...

    def release(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class _Transport:
    def get_extra_info(self, name: str) -> None: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False


def event(content: str, finish: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    text = json.dumps({"id": "x", "choices": [choice]}, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def read(pieces: list[bytes]) -> Exchange:
    async def run() -> Exchange:
        ended: list[Exchange] = []
        connection = Connection(cast("Owner", _Pool()), Limits())
        connection.connection_made(cast("Any", _Transport()))
        connection.carry(Flight(b"", ended.append))
        for piece in pieces:
            connection.data_received(piece)
        (exchange,) = ended
        return exchange

    return asyncio.run(run())


@given(
    words=st.lists(WORDS, min_size=8, max_size=30),
    joined=st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1),
    cuts=st.lists(st.sampled_from([0, 0, 0, 0, 1, 30, 93, 150]), min_size=1, max_size=9),
)
def test_tokens_and_gaps_are_those_of_the_whole(
    words: list[str], joined: list[int], cuts: list[int]
) -> None:
    events = [event(word, None) for word in words] + [event("", "stop"), USAGE, DONE]
    chunks: list[bytes] = []
    at = 0
    while at < len(events):
        size = joined[len(chunks) % len(joined)]
        chunks.append(chunk(b"".join(events[at : at + size])))
        at += size
    wire = STREAM_HEAD + b"".join(chunks) + LAST_CHUNK
    # A cut of 0 is a read that ends where a chunk does: what a network gives most of the time.
    ends = [len(STREAM_HEAD)]
    for piece in chunks:
        ends.append(ends[-1] + len(piece))
    pieces: list[bytes] = []
    at = number = 0
    while at < len(wire):
        cut = cuts[number % len(cuts)]
        stop = next((e for e in ends if e > at), len(wire)) if cut == 0 else at + cut
        pieces.append(wire[at:stop])
        at, number = stop, number + 1
    scanner = SseScanner()
    scanner.feed(b"".join(events))
    exchange = read(pieces)
    assert exchange.outcome is Outcome.COMPLETED
    assert exchange.usage == scanner.usage
    assert sum(exchange.gaps.values()) == max(0, scanner.tokens - 1)
    assert (exchange.first_token is not None) == (scanner.tokens > 0)
