"""What the processes of a sender tell each other, as length-prefixed MessagePack over pipes.

Down: a `Job`, then `Go` once all are ready, and `Stop`; the end of the pipe means stop as well, so
that none outlives who started it. Up: `Ready`, `Progress` a few times a second, and one `Done`.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from surgetank.loadtest.client import Tls
from surgetank.loadtest.shot import Shot, Tally
from surgetank.policy.record import RequestRecord
from surgetank.policy.retry import RetryRule

_PREFIX: Final = 8  # bytes


class Job(msgspec.Struct, tag=True):
    """Its share of the shots, and how to send them."""

    url: str
    shots: list[Shot]
    rule: RetryRule
    seed: int
    tls: Tls | None


class Go(msgspec.Struct, tag=True):
    """Begin at this moment of time.monotonic(), which all processes of a machine share.

    `wall`: what turns such a moment into Unix seconds.
    """

    start: float
    wall: float


class Stop(msgspec.Struct, tag=True):
    """Send nothing more, hang up, and say what was done."""


class Ready(msgspec.Struct, tag=True):
    """It has read its job."""


class Progress(msgspec.Struct, tag=True):
    """How far it is."""

    tally: Tally


class Done(msgspec.Struct, tag=True):
    """All it did. `lags`: float64 in the machine's order; times in seconds."""

    records: list[RequestRecord]
    lags: bytes
    elapsed: float
    cpu: float
    stopped: bool


class Refused(msgspec.Struct, tag=True):
    """It cannot do the job: one line for the user."""

    why: str


Down = Job | Go | Stop
Up = Ready | Progress | Done | Refused
_encode: Final = msgspec.msgpack.Encoder().encode
_down: Final = msgspec.msgpack.Decoder(Down).decode
_up: Final = msgspec.msgpack.Decoder(Up).decode


def framed(message: Down | Up) -> bytes:
    """Write one message with its length in front."""
    data = _encode(message)
    return len(data).to_bytes(_PREFIX, "little") + data


async def read_down(reader: asyncio.StreamReader) -> Down | None:
    """Read what the parent tells; None at the end of the pipe."""
    data = await _read(reader)
    return None if data is None else _down(data)


async def read_up(reader: asyncio.StreamReader) -> Up | None:
    """Read what a process tells; None at the end of the pipe."""
    data = await _read(reader)
    return None if data is None else _up(data)


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    try:
        size = int.from_bytes(await reader.readexactly(_PREFIX), "little")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
