"""Replicas that fail their requests, fleets that die, and who waits for them."""

from __future__ import annotations

import asyncio

import pytest

from surgetank.gateway.spec import UpstreamSpec
from surgetank.policy.flow import FlowSpec
from tests.gateway.harness import (
    WHOLE,
    Connection,
    Engine,
    RawClient,
    Received,
    answer_well,
    ask,
    chat,
    post,
    run,
    serving,
    until,
)

QUICK = UpstreamSpec(health_interval=0.05, lost_grace=0.2)


async def cuts(_: Received, connection: Connection) -> None:
    await connection.cut()


async def fails(_: Received, connection: Connection) -> None:
    await connection.whole({"error": {"message": "no", "code": 500}}, 500)


@pytest.mark.parametrize("script", [cuts, fails])
def test_a_replica_that_is_healthy_and_fails_every_request_is_out_and_comes_back_on_trial(
    script: object,
) -> None:
    async def test() -> None:
        bad, good = Engine(default=script), Engine()  # type: ignore[arg-type] # one of two
        two_each = FlowSpec(max_in_flight=2)
        async with serving(bad, good, upstream=QUICK, flow=two_each) as gateway:
            fleet = list(gateway.gateway.fleet)
            target = next(t for t in fleet if t.url.endswith(f":{bad.port}"))
            while target.ready:
                await asyncio.gather(*(ask(gateway.port, chat()) for _ in range(8)))
            assert target.outlier.failures >= 5
            seen = len(bad.requests)
            replies = await asyncio.gather(*(ask(gateway.port, chat()) for _ in range(8)))
            assert {r.status for r in replies} == {200}
            assert len(bad.requests) == seen  # nothing more goes there
            bad.default = answer_well
            await until(lambda: target.ready)  # its second out is over
            view = {v.id: v for v in gateway.gateway.driver.flow.replicas()}[target.id]
            assert view.limit == 1  # one request at a time
            tried = asyncio.Event()

            async def waits(request: Received, connection: Connection) -> None:
                await tried.wait()
                await answer_well(request, connection)

            good.default = waits  # so that there is no more room on it
            asked = [asyncio.ensure_future(ask(gateway.port, chat())) for _ in range(3)]
            await until(lambda: len(bad.requests) > seen)
            tried.set()
            assert {(await one).status for one in asked} == {200}
            await until(lambda: not target.outlier.on_trial)
            assert target.outlier.failures == 0
            (slots,) = {t.replica.slots for t in fleet if t.replica}
            assert slots is None  # and it is no longer described as having one

    run(test)


def test_overload_is_no_failure_and_the_last_replica_is_never_put_out() -> None:
    async def busy(_: Received, connection: Connection) -> None:
        await connection.whole({"error": {"message": "busy", "code": 503}}, 503)

    async def test() -> None:
        shedding = Engine(default=busy)
        async with serving(shedding, upstream=QUICK) as gateway:
            (target,) = gateway.gateway.fleet
            for _ in range(2):
                assert (await ask(gateway.port, chat())).status == 429
            assert target.outlier.failures == 0
            shedding.default = fails
            for _ in range(12):
                assert (await ask(gateway.port, chat())).status == 500
            assert target.ready

    run(test)


def test_what_waits_when_the_whole_fleet_dies_is_told_so_at_once_and_not_at_its_timeout() -> None:
    async def hangs(_: Received, connection: Connection) -> None:
        await connection.left()

    async def test() -> None:
        engine = Engine(default=hangs)
        async with serving(engine, flow=FlowSpec(max_in_flight=1), upstream=QUICK) as gateway:
            running, waiting = [await RawClient.connect(gateway.port) for _ in range(2)]
            running.send(post(chat()))
            await until(lambda: len(engine.requests) == 1)
            waiting.send(post(chat()))
            flow = gateway.gateway.driver.flow
            await until(lambda: flow.counts().queued == 1)
            began = asyncio.get_running_loop().time()
            await engine.kill()
            for client in (running, waiting):
                reply = await client.reply()
                assert reply.status == 503
                assert reply.json["error"]["code"] == "no_replica_ready"
                assert int(reply.headers["retry-after"]) >= 1
                client.close()
            assert asyncio.get_running_loop().time() - began < 5
            assert flow.counts().queued == flow.counts().running == 0
            assert [r.outcome for r in gateway.records] == ["no_replica"] * 2

    run(test)


@pytest.mark.parametrize("loading", [True, False])
def test_what_waits_goes_on_waiting_while_a_replica_is_about_to_come(
    loading: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async def hangs(_: Received, connection: Connection) -> None:
        await connection.left()

    async def test() -> None:
        engine = Engine(default=hangs)
        async with serving(engine, flow=FlowSpec(max_in_flight=1), upstream=QUICK) as gateway:
            gateway.gateway.fleet.expects = lambda _model: not loading
            running, waiting = [await RawClient.connect(gateway.port) for _ in range(2)]
            running.send(post(chat()))
            await until(lambda: len(engine.requests) == 1)
            waiting.send(post(chat()))
            flow = gateway.gateway.driver.flow
            await until(lambda: flow.counts().queued == 1)
            await engine.kill()
            if loading:
                engine.health, engine.health_body = 503, {"status": "Loading model"}
                await engine.start()
            looked = 0

            def count(model: str, look: object = gateway.gateway.fleet._look_for) -> None:
                nonlocal looked
                looked += 1
                look(model)  # type: ignore[operator] # the method itself

            gateway.gateway.fleet._look_for = count  # type: ignore[method-assign]
            await until(lambda: looked >= 2)
            assert flow.counts().queued == 2
            engine.default, engine.health = answer_well, 200
            if not loading:
                await engine.start()
            for client in (running, waiting):
                assert (await client.reply()).json == WHOLE
                client.close()

    run(test)
