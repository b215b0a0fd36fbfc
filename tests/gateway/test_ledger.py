"""What has ended is booked in batches, in order, and before anybody reads."""

from __future__ import annotations

import asyncio
import gc
import json
import time

import pytest

from surgetank.gateway import observation
from surgetank.gateway.account import Account
from surgetank.gateway.ledger import Ledger
from surgetank.gateway.metrics import Metrics
from surgetank.gateway.observation import GatewayObserver
from surgetank.gateway.relay import Exchange
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.request import Outcome, Request, Usage
from tests.gateway.harness import Connection, Engine, Received, ask, chat, run, serving, until


def _ended(name: str) -> Account:
    account = Account(Request(name, "t", "tiny", 10), name.encode(), 1.0)
    account.close(Outcome.COMPLETED, "", 200, Usage(3, 2), 2.0)
    return account


def _ledger(lines: list[str]) -> Ledger:
    return Ledger(
        FlowControl(FlowSpec()), Metrics(), lambda name: name, lines.append, wall_offset=100.0
    )


def test_a_full_batch_is_booked_at_once_and_in_order() -> None:
    async def test() -> None:
        lines: list[str] = []
        ledger = _ledger(lines)
        for number in range(31):
            ledger.add(_ended(str(number)))
        assert lines == []
        ledger.add(_ended("31"))
        assert [json.loads(line)["id"] for line in lines] == [str(n) for n in range(32)]
        assert json.loads(lines[0])["arrived"] == 101.0

    run(test)


def test_a_batch_that_does_not_fill_up_is_booked_by_time_and_the_last_one_at_the_end() -> None:
    async def test() -> None:
        lines: list[str] = []
        ledger = _ledger(lines)
        ledger.add(_ended("a"))
        await until(lambda: len(lines) == 1)
        ledger.add(_ended("b"))
        ledger.close()
        assert [json.loads(line)["id"] for line in lines] == ["a", "b"]
        ledger.book()
        assert len(lines) == 2

    run(test)


def test_a_reader_sees_what_has_just_ended() -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            observer = GatewayObserver(gateway.gateway)
            reply = await ask(gateway.port, chat())
            assert reply.status == 200
            assert observer.snapshot()["outcomes"] == {"completed": 1}

    run(test)


def test_every_second_tells_its_arrivals_those_under_way_and_those_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observation, "_SETTLED", -1.0)  # tell the second at hand as well

    async def hold(_: Received, connection: Connection) -> None:
        await connection.left()

    async def test() -> None:
        async with serving(Engine(default=hold)) as gateway:
            observer = GatewayObserver(gateway.gateway)
            assert observer.snapshot()["arrivals"] == []
            waiting = asyncio.ensure_future(ask(gateway.port, chat()))
            await until(lambda: bool(observer.snapshot()["arrivals"]))
            ((second, requests, tokens),) = observer.snapshot()["arrivals"]
            assert abs(second - time.time()) < 5
            assert requests == 1
            assert tokens > 0
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until(lambda: bool(observer.snapshot()["outcomes"]))
            assert [row[:2] for row in observer.snapshot()["arrivals"]] == [(second, 1)]

    run(test)


def test_an_exchange_is_gone_with_its_answer_and_leaves_nothing_to_the_collector() -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            gc.collect()
            older = [thing for thing in gc.get_objects() if type(thing) is Exchange]
            gc.disable()
            try:
                for _ in range(3):
                    assert (await ask(gateway.port, chat())).status == 200
                alive = [thing for thing in gc.get_objects() if type(thing) is Exchange]
            finally:
                gc.enable()
            assert [thing for thing in alive if not any(thing is old for old in older)] == []

    run(test)
