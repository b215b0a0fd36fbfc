"""Settings, keys and replicas that change while streams run and requests wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from surgetank.errors import ConfigError
from surgetank.gateway.keys import KeyRing, StoredKey, digest_of
from surgetank.gateway.spec import GatewaySpec, ListenSpec, ReplicaSpec, UpstreamSpec
from surgetank.policy.flow import FlowSettings, FlowSpec
from surgetank.policy.tenant import Tenant
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

UPSTREAM = UpstreamSpec(health_interval=0.05)


def spec_of(*engines: Engine, ids: tuple[str, ...] = (), **more: object) -> GatewaySpec:
    replicas = tuple(
        ReplicaSpec(url=f"http://127.0.0.1:{e.port}", id=ids[i] if ids else None)
        for i, e in enumerate(engines)
    )
    return replace(GatewaySpec(upstream=UPSTREAM, replicas=replicas), **more)  # type: ignore[arg-type]  # by name


def change(
    running: Running,
    spec: GatewaySpec,
    *,
    keys: KeyRing | None = None,
    settings: FlowSettings | None = None,
    promised: tuple[str, ...] = (),
) -> None:
    settings = settings or FlowSettings(models=("tiny",))
    running.gateway.reconfigure(spec, settings, keys=keys, promised=promised)


class Gate:
    """A script that begins a stream and goes on when told."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, request: Received, connection: Connection) -> None:
        if not request.json.get("stream"):
            await self.open.wait()
            await connection.whole({"choices": []})
            return
        await connection.head()
        await connection.event(delta("word"))
        await self.open.wait()
        await connection.event("[DONE]")
        await connection.end()


async def begun(running: Running) -> RawClient:
    client = await RawClient.connect(running.port)
    client.send(post(chat(stream=True)))
    await client.reader.readuntil(b"word")
    return client


def test_a_replica_that_is_named_no_more_ends_its_streams_and_then_is_gone() -> None:
    async def test() -> None:
        gate = Gate()
        old, new = Engine(default=gate), Engine()
        await new.start()
        async with serving(old) as running:
            stream = await begun(running)
            change(running, spec_of(new))
            fleet = running.gateway.fleet
            assert {row["state"] for row in fleet.rows("tiny", fleet.pools()[0][1])} == {"leaving"}
            await until(lambda: sum(t.serving for t in fleet) == 1)
            assert (await ask(running.port, chat(stream=True))).status == 200
            assert len(new.requests) == 1
            gate.open.set()
            assert b"[DONE]" in (await stream.reader.readuntil(b"0\r\n\r\n"))
            await until(lambda: len(list(fleet)) == 1)
            assert next(iter(fleet)).url.endswith(f":{new.port}")
            assert [r.outcome for r in running.records] == ["completed", "completed"]
        await new.kill()

    run(test)


def test_one_that_is_named_again_before_its_last_stream_ended_stays() -> None:
    async def test() -> None:
        gate = Gate()
        engine, other = Engine(default=gate), Engine()
        await other.start()
        async with serving(engine) as running:
            stream = await begun(running)
            change(running, spec_of(other))
            change(running, spec_of(engine))
            gate.open.set()
            await stream.reader.readuntil(b"0\r\n\r\n")
            await until(lambda: len(list(running.gateway.fleet)) == 1)
            reply = await ask(running.port, chat())
            assert reply.status == 200
            assert len(engine.requests) == 2
        await other.kill()

    run(test)


def test_a_new_address_takes_over_a_name_and_the_old_stream_goes_on() -> None:
    async def test() -> None:
        gate = Gate()
        old, new = Engine(default=gate), Engine()
        await new.start()
        async with serving(old, replica={"id": "gpu-0"}) as running:
            stream = await begun(running)
            change(running, spec_of(new, ids=("gpu-0",)))
            await until(lambda: running.gateway.fleet.ready)
            assert (await ask(running.port, chat())).status == 200
            assert (len(old.requests), len(new.requests)) == (1, 1)
            gate.open.set()
            assert b"[DONE]" in (await stream.reader.readuntil(b"0\r\n\r\n"))
            assert {r.replica for r in running.records} == {"gpu-0"}
            (view,) = running.gateway.driver.flow.replicas()
            assert view.in_flight == 0
        await new.kill()

    run(test)


def test_a_replica_described_anew_is_not_asked_again_and_lets_in_what_waits() -> None:
    async def test() -> None:
        gate = Gate()
        async with serving(Engine(default=gate), replica={"slots": 1}) as running:
            one = await begun(running)
            waiting = asyncio.ensure_future(ask(running.port, chat()))
            await until(lambda: running.gateway.driver.flow.counts().queued == 1)
            spec = spec_of()
            (target,) = running.gateway.fleet
            change(running, replace(spec, replicas=(replace(target.spec, slots=2),)))
            counts = running.gateway.driver.flow.counts()
            assert (counts.queued, counts.running) == (0, 2)  # slots that are told are used
            gate.open.set()
            await one.reader.readuntil(b"0\r\n\r\n")
            assert (await waiting).status == 200
            assert target in list(running.gateway.fleet)
            assert target.replica is not None
            assert target.replica.slots == 2

    run(test)


def test_keys_change_for_the_next_request_of_a_connection_that_is_open() -> None:
    secret = bytes(32)

    def ring(**tenants: str) -> KeyRing:
        return KeyRing(secret, [StoredKey(t, digest_of(k, secret)) for t, k in tenants.items()])

    async def test() -> None:
        engine = Engine()
        async with serving(engine, keys=ring(acme="one")) as running:
            client = await RawClient.connect(running.port)
            with_key = post(chat(), headers="authorization: Bearer one\r\n")
            client.send(with_key)
            assert (await client.reply()).status == 200
            change(running, spec_of(engine), keys=ring(acme="two"))
            client.send(with_key)
            assert (await client.reply()).status == 401
            new_key = post(chat(), headers="authorization: Bearer two\r\n")
            late = await RawClient.connect(running.port)
            late.send(new_key)
            assert (await late.reply()).status == 200
            outcomes = sorted(r.outcome for r in running.records)
            assert outcomes == ["completed", "completed", "unauthorized"]

    run(test)


def test_limits_and_timeouts_are_taken_at_once() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as running:
            assert (await ask(running.port, chat())).status == 200
            limited = FlowSettings(
                models=("tiny",), tenants=(Tenant("default", requests_per_minute=1),)
            )
            change(
                running,
                spec_of(engine, listen=ListenSpec(port=1, max_body_bytes=300), drain_timeout=9.0),
                settings=limited,
            )
            assert (await ask(running.port, chat())).status == 200
            refused = await ask(running.port, chat())
            assert refused.json["error"]["code"] == "requests_quota_exceeded"
            assert (await ask(running.port, chat(user="x" * 300))).status == 413
            assert running.gateway.listen.port == 0  # it listens where it did

    run(test)


def test_what_does_not_fit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)

    async def test() -> None:
        engine = Engine()
        async with serving(engine) as running:
            before = running.gateway.listen
            wrong = FlowSettings(tenants=(Tenant("a", tier="none"),))
            with pytest.raises(ValueError, match="must be one of"):
                change(running, spec_of(listen=ListenSpec(max_body_bytes=1)), settings=wrong)
            keyless = ReplicaSpec(url="http://127.0.0.1:1", api_key_env="ENGINE_KEY")
            with pytest.raises(ConfigError, match="ENGINE_KEY is not set"):
                change(running, GatewaySpec(replicas=(keyless,)))
            assert running.gateway.listen is before
            assert (await ask(running.port, chat())).status == 200

    run(test)


def test_it_is_ready_only_with_a_replica_for_each_model_that_is_promised() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as running:
            gateway = running.gateway
            assert gateway.unready == ""
            change(running, spec_of(engine), promised=("large", "tiny"))
            assert gateway.unready == "no replica is ready for large"
            change(running, spec_of(engine), promised=("tiny",))
            assert gateway.unready == ""
            engine.health = 503
            await until(lambda: not gateway.fleet.ready)
            assert gateway.unready == "no replica is ready"
            gateway.draining = True
            assert gateway.unready == "draining"

    run(test)


def test_many_changes_in_a_burst_lose_no_request() -> None:
    """Two engines come and go by turns while 60 requests run and wait: each is answered 200."""

    async def test() -> None:
        one, two = Engine(), Engine()
        await two.start()
        flow = FlowSpec(max_in_flight=2)
        async with serving(one, flow=flow) as running:
            asked = [asyncio.ensure_future(ask(running.port, chat(stream=True))) for _ in range(60)]
            for number in range(6):
                await until(lambda least=10 * number: len(running.records) >= least)  # type: ignore[misc]  # bound early
                both = spec_of(one, two)
                settings = FlowSettings(FlowSpec(max_in_flight=1 + number % 3), models=("tiny",))
                change(running, both, settings=settings)
                await until(lambda: sum(t.serving for t in running.gateway.fleet) == 2)
                change(running, spec_of((one, two)[number % 2]), settings=settings)
            replies = await asyncio.gather(*asked)
            assert [r.status for r in replies] == [200] * 60
            assert len(running.records) == 60
            counts = running.gateway.driver.flow.counts()
            assert (counts.queued, counts.running, counts.completed) == (0, 0, 60)
        await two.kill()

    run(test)
