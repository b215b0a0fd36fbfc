"""What viewers get: the history first, then what is new, whatever their pace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from surgetank.dashboard.board import SECONDS, Board
from surgetank.dashboard.observation import Observation, read_decisions, read_observation

from .pulse import Pulse

T = 1_800_000_000.0


def observation(pulse: Pulse) -> Observation:
    pulse.second()
    return read_observation(json.dumps(pulse.observation()).encode())


async def event(stream: AsyncIterator[bytes]) -> tuple[str, dict[str, Any]]:
    """The next event's name and body."""
    async with asyncio.timeout(5):
        lines = (await anext(stream)).decode().strip().splitlines()
    body: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))
    return lines[-2].removeprefix("event: "), body


def test_a_viewer_gets_the_history_then_each_new_sample() -> None:
    async def run() -> None:
        pulse, board = Pulse(), Board("http://s", T)
        board.observe(observation(pulse), T)
        stream = board.events()
        name, body = await event(stream)
        assert (name, len(body["samples"])) == ("history", 1)
        waiting = asyncio.ensure_future(event(stream))
        await asyncio.sleep(0)
        assert not waiting.done()
        board.observe(observation(pulse), T + 1)
        board.decide(read_decisions(json.dumps(pulse.decided(0)).encode()).lines)
        board.notify()
        name, body = await waiting
        assert name == "tick"
        assert [sample["t"] for sample in body["samples"]] == [T + 1]
        assert body["status"]["state"] == "live"
        assert body["status"]["autoscaler"] is True
        assert [entry["plan"]["replicas"] for entry in body["decisions"]] == [3]
        board.close()
        assert [e async for e in stream] == []

    asyncio.run(run())


def test_a_slow_viewer_catches_up_or_begins_anew() -> None:
    async def run() -> None:
        pulse, board = Pulse(), Board("http://s", T)
        stream = board.events()
        await event(stream)
        for second in range(3):
            board.observe(observation(pulse), T + second)
        assert len((await event(stream))[1]["samples"]) == 3
        for second in range(SECONDS + 5):
            board.observe(observation(pulse), T + 3 + second)
        name, body = await event(stream)
        assert (name, len(body["samples"])) == ("history", SECONDS)
        assert body["samples"][-1]["t"] == T + 3 + SECONDS + 4

    asyncio.run(run())


def test_a_lost_source_leaves_a_gap_and_since_when() -> None:
    async def run() -> None:
        pulse, board = Pulse(), Board("http://s", T)
        board.observe(observation(pulse), T)
        board.lose("refused", T + 1)
        board.lose("timed out", T + 2)
        _, body = await event(board.events())
        assert body["status"]["state"] == "lost"
        assert body["status"]["since"] == T + 1
        assert body["status"]["detail"] == "timed out"
        assert [sample["state"] is None for sample in body["samples"]] == [False, True, True]

    asyncio.run(run())


def test_what_the_gateway_has_learnt_is_shown_as_it_says_it() -> None:
    async def run() -> None:
        pulse, board = Pulse(), Board("http://s", T)
        pulse.second()
        said = pulse.observation() | {"learned": ["tiny: answers of 180 tokens expected"]}
        board.observe(read_observation(json.dumps(said).encode()), T)
        _, body = await event(board.events())
        assert body["status"]["learned"] == said["learned"]

    asyncio.run(run())
