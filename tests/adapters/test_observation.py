"""The controller that runs alone: real gateways over HTTP, summed, and kept in step."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.harness import (
    Connection,
    Engine,
    RawClient,
    Received,
    Running,
    ask,
    chat,
    delta,
    post,
    run,
    serving,
    until,
)

from surgetank.adapters.http import FetchError, fetch
from surgetank.adapters.observation import RemoteGateways, RemoteRouting, orders, read_ingress
from surgetank.gateway.admin import AdminServer
from surgetank.gateway.observation import GatewayObserver, ingress_row
from surgetank.gateway.spec import AdminSpec
from surgetank.policy.ingress import Ingress
from surgetank.policy.replica import Role

TOKEN = "t" * 40


@dataclass
class Told:
    running: Running
    url: str


@asynccontextmanager
async def gateway(token: str | None = TOKEN) -> AsyncIterator[Told]:
    """A gateway without replicas of its own, with its admin listener."""
    async with serving(wait_ready=False) as running:
        admin = AdminServer(
            running.gateway,
            AdminSpec(port=0),
            observer=GatewayObserver(running.gateway),
            token=token,
        )
        port = await admin.start()
        try:
            yield Told(running, f"http://127.0.0.1:{port}")
        finally:
            await admin.stop()


def remote(*gateways: Told, token: str = TOKEN) -> RemoteGateways:
    loop = asyncio.get_running_loop()
    urls = [g.url for g in gateways]
    return RemoteGateways(urls, token=token, clock=loop.time, interval=0.05)


def states(told: Told) -> dict[str, bool]:
    return {t.id: t.attached for t in told.running.gateway.fleet}


def test_replicas_are_brought_in_attached_and_taken_out_at_every_gateway() -> None:
    async def test() -> None:
        engine = Engine()
        await engine.start()
        async with gateway() as one, gateway() as two:
            fleet = remote(one, two)
            fleet.start()
            routing = RemoteRouting(fleet, "tiny")
            routing.add("r1", f"http://127.0.0.1:{engine.port}")
            await until(lambda: states(one) == states(two) == {"r1": False})
            assert (await ask(one.running.port, chat())).status == 503
            routing.attach("r1")
            for told in (one, two):
                await until(lambda told=told: told.running.gateway.fleet.ready)  # type: ignore[misc]
                assert (await ask(told.running.port, chat())).status == 200
            readings = fleet.read("tiny", Role.BOTH, 0.0)
            await until(lambda: [r.arrivals for r in fleet.read("tiny", Role.BOTH, 0.0)] == [2, 1])
            assert len({r.gateway for r in readings}) == 2
            routing.detach("r1")
            await until(lambda: states(one) == states(two) == {"r1": False})
            routing.remove("r1")
            await until(lambda: states(one) == states(two) == {})
            await fleet.stop()
        await engine.kill()

    run(test)


def test_a_drain_is_told_once_the_last_stream_at_any_gateway_has_ended() -> None:
    release = asyncio.Event()

    async def hold(_: Received, connection: Connection) -> None:
        await connection.head()
        await connection.event(delta("word"))
        await release.wait()
        await connection.event("[DONE]")
        await connection.end()

    async def test() -> None:
        engine = Engine(default=hold)
        await engine.start()
        async with gateway() as one, gateway() as two:
            fleet = remote(one, two)
            fleet.start()
            routing = RemoteRouting(fleet, "tiny")
            routing.add("r1", f"http://127.0.0.1:{engine.port}")
            routing.attach("r1")
            await until(lambda: two.running.gateway.fleet.ready)
            client = await RawClient.connect(two.running.port)
            client.send(post(chat(stream=True)))
            await client.reader.readuntil(b"word")
            quiet: list[str] = []
            routing.drain("r1", quiet.append)
            await until(lambda: states(one) == states(two) == {"r1": False})
            await asyncio.sleep(0.2)
            assert quiet == []
            release.set()
            await until(lambda: quiet == ["r1"])
            assert b"[DONE]" in await client.reader.readuntil(b"0\r\n\r\n")
            await fleet.stop()
        await engine.kill()

    run(test)


def test_a_gateway_that_began_anew_is_put_right() -> None:
    async def test() -> None:
        engine = Engine()
        await engine.start()
        async with gateway() as one:
            fleet = remote(one)
            fleet.start()
            routing = RemoteRouting(fleet, "tiny")
            routing.add("r1", f"http://127.0.0.1:{engine.port}")
            routing.attach("r1")
            await until(lambda: states(one) == {"r1": True})
            one.running.gateway.fleet.remove("r1")  # as after a restart
            await until(lambda: states(one) == {"r1": True})
            await fleet.stop()
        await engine.kill()

    run(test)


@pytest.mark.parametrize(("token", "status"), [(None, 403), (TOKEN, 401)])
def test_nobody_changes_the_fleet_without_the_token(token: str | None, status: int) -> None:
    async def test() -> None:
        async with gateway(token) as one:
            answer = await fetch(
                f"{one.url}/replicas",
                timeout=5,
                method="POST",
                body=b'{"replica":"x","do":"add","url":"http://127.0.0.1:9","model":"m"}',
                headers=[(b"authorization", b"Bearer nonsense")],
            )
            assert answer.status == status
            assert states(one) == {}
            reading = await fetch(f"{one.url}/observation", timeout=5)
            assert reading.status == (200 if token is None else 401)
            assert (await fetch(f"{one.url}/metrics", timeout=5)).status == 200

    run(test)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"{}", b'{"replica":"x"}', b'{"replica":"","do":"add"}',
     b'{"replica":"x","do":"explode"}', b'{"replica":"x","do":"add","url":"ftp://x","model":"m"}',
     b'{"replica":"x","do":"add","url":"http://127.0.0.1:9"}'],
)  # fmt: skip
def test_an_order_that_cannot_be_carried_out_is_400(body: bytes) -> None:
    async def test() -> None:
        async with gateway() as one:
            answer = await fetch(
                f"{one.url}/replicas",
                timeout=5,
                method="POST",
                body=body,
                headers=[(b"authorization", b"Bearer " + TOKEN.encode())],
            )
            assert answer.status == 400

    run(test)


def test_only_the_difference_is_told() -> None:
    url = "http://h:1"
    there = {"a": {"url": url, "state": "standby", "drained": None}}
    serving_ = {"a": {"url": url, "state": "serving", "drained": None}}
    drained = {"a": {"url": url, "state": "standby", "drained": True}}
    add = {"replica": "a", "do": "add", "url": url, "model": "m"}

    def told(state: str, known: Mapping[str, Mapping[str, object]]) -> list[str]:
        return [order["do"] for order in orders("a", url, "m", state, known)]

    assert orders("a", url, "m", "standby", {}) == [add]
    assert told("serving", {}) == ["add", "attach"]
    assert told("draining", {}) == []
    assert told("standby", there) == []
    assert told("serving", there) == ["attach"]
    assert told("draining", there) == ["drain"]
    assert told("serving", serving_) == []
    assert told("standby", serving_) == ["detach"]
    assert told("draining", drained) == []
    assert told("serving", drained) == ["attach"]


NUMBER = st.floats(0, 1e9) | st.integers(0, 10**9)


@given(
    ages=st.lists(st.floats(0, 30), max_size=5),
    offset=st.floats(0, 2e9),
    there=st.floats(0, 1e6),
    here=st.floats(0, 1e6),
    queue_age=st.none() | st.floats(0, 100),
)
def test_a_reading_survives_the_way_with_its_ages(
    ages: list[float], offset: float, there: float, here: float, queue_age: float | None
) -> None:
    reading = Ingress(
        "g", there, arrivals=3, prompt_tokens=5.0, queue_age=queue_age,
        first_tokens=tuple((there - age, 0.5) for age in ages),
        paces=((there, 0.04), (there, math.inf)),
    )  # fmt: skip
    row = ingress_row(reading, offset)
    read = read_ingress(row, there + offset, here)
    assert read.as_of == pytest.approx(here, abs=1e-5)
    assert read.queue_age == queue_age
    assert [here - at for at, _ in read.first_tokens] == pytest.approx(ages, abs=1e-5)
    assert [pace for _, pace in read.paces] == [0.04, math.inf]
    assert json.loads(json.dumps(row, allow_nan=False))["paces"][1][1] is None


@given(
    st.dictionaries(
        st.sampled_from(["gateway", "as_of", "arrivals", "queued", "first_tokens", "paces"]),
        st.none() | st.booleans() | st.text() | NUMBER | st.lists(NUMBER),
    )
)
def test_any_row_is_read_or_refused(row: dict[str, object]) -> None:
    with contextlib.suppress(FetchError):
        read_ingress(row, 1.0, 1.0)
