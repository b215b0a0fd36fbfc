"""The admin listener's own routes: who may, what is shown, and what is changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from surgetank.adapters.http import Response, fetch
from surgetank.cli.admin import app
from surgetank.errors import SurgetankError
from surgetank.gateway import admin_connection
from surgetank.gateway.admin import AdminServer
from surgetank.gateway.observation import GatewayObserver
from surgetank.gateway.operations import Controls
from surgetank.gateway.room import MOST_ADMIN
from surgetank.gateway.spec import AdminSpec
from surgetank.policy.flow import FlowSpec
from surgetank.policy.tenant import KeyLimits, ModelLimits, Tenant, Tier
from tests.gateway.harness import (
    Connection,
    Engine,
    RawClient,
    Received,
    Running,
    ask,
    chat,
    run,
    serving,
    until,
)

TOKEN = "t" * 40


class Admin:
    """A client of the listener; `token` goes along with every call."""

    def __init__(self, running: Running, port: int, token: str | None = TOKEN) -> None:
        self.running = running
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.token = token

    async def call(self, path: str, method: str = "GET", body: bytes = b"") -> Response:
        headers = (
            [] if self.token is None else [(b"authorization", f"Bearer {self.token}".encode())]
        )
        return await fetch(
            f"{self.url}{path}", timeout=10.0, method=method, headers=headers, body=body
        )

    async def get(self, path: str) -> Any:
        answer = await self.call(path)
        assert answer.status == 200, answer.text
        return json.loads(answer.text)

    async def post(self, path: str, status: int = 200) -> Any:
        answer = await self.call(path, "POST")
        assert answer.status == status, answer.text
        return json.loads(answer.text)


@asynccontextmanager
async def administered(
    *engines: Engine, token: str | None = TOKEN, controls: Controls | None = None, **how: Any
) -> AsyncIterator[Admin]:
    async with serving(*engines, **how) as running:
        server = AdminServer(
            running.gateway,
            AdminSpec(port=0),
            observer=GatewayObserver(running.gateway),
            token=token,
            controls=controls or Controls(),
        )
        port = await server.start()
        assert port is not None
        try:
            yield Admin(running, port)
        finally:
            await server.stop()


async def hang(_: Received, connection: Connection) -> None:
    await connection.left()


SLOW_BODY = (
    f"POST /replicas HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
    "content-length: 9\r\n\r\n{"
).encode()
CHANGES = ["/reload", "/hold", "/release", "/replicas/x/drain", "/replicas/x/resume", "/replicas"]
READS = ["/status", "/config", "/tenants", "/queue", "/sessions", "/replicas", "/observation"]


def test_nothing_but_health_and_metrics_is_open_without_the_token() -> None:
    async def test() -> None:
        async with administered(Engine()) as admin:
            for wrong in (None, "", "t" * 39, "t" * 41, "T" * 40):
                admin.token = wrong
                for path in READS:
                    assert (await admin.call(path)).status == 401
                for path in CHANGES:
                    answer = await admin.call(path, "POST")
                    assert answer.status == 401
                    assert answer.get(b"www-authenticate") == b"Bearer"
                for path in ("/livez", "/readyz", "/metrics"):
                    assert (await admin.call(path)).status == 200

    run(test)


def test_without_a_token_set_this_machine_may_look_and_nobody_may_change() -> None:
    async def test() -> None:
        async with administered(Engine(), token=None) as admin:
            for path in READS:
                assert (await admin.call(path)).status == 200
            for path in CHANGES:
                assert (await admin.call(path, "POST")).status == 403

    run(test)


def test_errors_are_json_and_bodies_are_bounded() -> None:
    async def test() -> None:
        async with administered(Engine()) as admin:
            for path, method, status in (
                ("/nothing", "GET", 404),
                ("/reload", "GET", 405),
                ("/reload", "POST", 404),
                ("/hold", "POST", 404),
                ("/replicas/none/drain", "POST", 404),
            ):
                answer = await admin.call(path, method)
                assert answer.status == status
                assert json.loads(answer.text)["error"]["message"]
            assert (await admin.call("/replicas", "POST", b"x" * 70_000)).status == 413

    run(test)


def test_sessions_are_listed_by_a_hash_and_what_an_engine_does_not_say_is_unknown() -> None:
    async def test() -> None:
        async with administered(Engine()) as admin:
            for name in ("mine", "mine", "other"):
                await ask(admin.running.port, chat(), headers=f"x-session-id: {name}\r\n")
            rows = (await admin.get("/sessions"))["sessions"]
            assert [(row["tenant"], row["served"]) for row in rows] == [
                ("default", 2), ("default", 1),
            ]  # fmt: skip
            assert "mine" not in json.dumps(rows)
            assert len((await admin.get("/sessions?top=1"))["sessions"]) == 1
            assert (await admin.call("/sessions?top=0")).status == 400
            told = (await command(admin, "sessions", "--top", "1")).stdout.splitlines()
            assert told[0].split() == [
                *("SESSION", "TENANT", "TOKENS/S", "REQUESTS", "SERVED", "BEGUN", "IDLE", "S"),
            ]
            assert len(told) == 2
            (row,) = (await admin.get("/replicas"))["replicas"]
            assert row["signals"]["waiting"] is None
            assert "unknown" in (await command(admin, "replicas")).stdout

    run(test)


def test_the_queue_is_told_by_tenant_without_any_prompt() -> None:
    tiers = [Tier("gold", 0), Tier("bulk", 3)]
    models = (ModelLimits("tiny", max_concurrent=9),)
    bulk_tenant = Tenant("default", "bulk", tokens_per_minute=60_000, weight=2.0, models=models)
    tenants = [bulk_tenant, Tenant("b", "gold")]

    async def test() -> None:
        async with administered(
            Engine(default=hang), flow=FlowSpec(max_in_flight=1), tenants=tenants, tiers=tiers
        ) as admin:
            asked = [
                asyncio.ensure_future(ask(admin.running.port, chat(max_tokens=10)))
                for _ in range(3)
            ]
            flow = admin.running.gateway.driver.flow
            await until(lambda: flow.counts().queued == 2)
            body = await admin.get("/queue")
            assert (body["waiting"], body["running"]) == (2, 1)
            gold, bulk = body["tenants"]
            assert (gold["tenant"], gold["tier"], gold["waiting"]) == ("b", "gold", 0)
            assert (bulk["tenant"], bulk["waiting"], bulk["running"]) == ("default", 2, 1)
            assert bulk["waiting_tokens"] == 2 * bulk["running_tokens"] > 20
            assert bulk["oldest"] >= 0
            assert "hello" not in json.dumps(body)
            (row, _) = (await admin.get("/tenants"))["tenants"]
            assert (row["tenant"], row["weight"], row["offered"], row["queued"]) == (
                *("default", 2.0, 3, 2),
            )
            assert 0 < row["tokens_left"] < 60_000
            whole, of_model = row["levels"]
            assert (whole["key"], whole["model"]) == (None, None)
            assert 0 < whole["tokens_left"] < 60_000
            assert (of_model["key"], of_model["model"]) == (None, "tiny")
            assert (of_model["tokens_left"], of_model["concurrent_left"]) == (None, 6)
            assert (await admin.get("/status"))["waiting"] == 2
            for task in asked:
                task.cancel()

    run(test)


def test_a_drained_replica_gets_no_more_until_it_is_resumed() -> None:
    async def test() -> None:
        one, two = Engine(), Engine()
        async with administered(one, two) as admin:
            replica = f"127.0.0.1:{one.port}"
            assert (await admin.post(f"/replicas/{replica}/drain"))["drained"] is True
            for _ in range(4):
                assert (await ask(admin.running.port, chat())).status == 200
            assert (len(one.requests), len(two.requests)) == (0, 4)
            rows = {row["id"]: row for row in (await admin.get("/replicas"))["replicas"]}
            assert (rows[replica]["state"], rows[replica]["drained"]) == ("standby", True)
            await admin.post(f"/replicas/127.0.0.1:{two.port}/drain")
            assert (await admin.call("/readyz")).status == 503
            assert (await admin.post(f"/replicas/{replica}/resume"))["ready"] is True
            assert (await admin.call("/readyz")).status == 200
            assert (await ask(admin.running.port, chat())).status == 200
            assert len(one.requests) == 1

    run(test)


def test_a_reading_that_fails_is_told_with_its_reason() -> None:
    async def fail() -> dict[str, Any]:
        raise SurgetankError("flow.max_queud is not a setting (surgetank.yaml line 7)")

    async def test() -> None:
        async with administered(Engine(), controls=Controls(reload=fail)) as admin:
            body = await admin.post("/reload", 409)
            assert body["error"]["message"].endswith("not a setting (surgetank.yaml line 7)")

    run(test)


def test_scaling_is_held_and_let_go() -> None:
    held = [False]
    controls = Controls(hold=lambda on: held.__setitem__(0, on), held=lambda: held[0])

    async def test() -> None:
        async with administered(Engine(), controls=controls) as admin:
            assert (await admin.get("/status"))["held"] is False
            assert (await admin.post("/hold"))["held"] is True
            assert (await admin.get("/status"))["held"] is True
            assert (await admin.post("/release"))["held"] is False

    run(test)


@pytest.mark.parametrize("promised", [("tiny",), ("tiny", "large")])
def test_readiness_names_the_model_without_a_replica(promised: tuple[str, ...]) -> None:
    async def test() -> None:
        async with administered(Engine()) as admin:
            admin.running.gateway._promised = promised
            answer = await admin.call("/readyz")
            wanted = "no replica is ready for large" if len(promised) == 2 else "ready"
            assert json.loads(answer.text)["status"] == wanted
            assert answer.status == (503 if len(promised) == 2 else 200)
            assert (await admin.call("/livez")).status == 200

    run(test)


def test_silent_and_dribbling_connections_are_bounded_in_number_and_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_connection, "PATIENCE", 0.3)  # a real one takes 20 s

    async def test() -> None:
        async with administered(Engine()) as admin:
            crowd = [await RawClient.connect(admin.port) for _ in range(MOST_ADMIN + 80)]
            for number, client in enumerate(crowd):
                client.send((b"", b"GET /livez HTTP/1.1\r\n", SLOW_BODY)[number % 3])
            assert all([await client.closed() for client in crowd[MOST_ADMIN:]])
            assert all([await client.closed() for client in crowd])
            assert (await admin.call("/livez")).status == 200

    run(test)


async def command(admin: Admin, *words: str) -> Result:
    """Run `surgetank admin` beside the gateway of this loop."""
    environ = {"SURGETANK_ADMIN_TOKEN": TOKEN, "SURGETANK_ADMIN_URL": admin.url}
    return await asyncio.to_thread(CliRunner().invoke, app, words, env=environ)


def test_the_command_shows_what_the_listener_tells() -> None:
    status = {
        "version": "1.0", "uptime": 61.5, "records": {"written": 7, "dropped": 2},
        "configuration": {"reloads": 3, "error": "line 7", "kept": ["listen.port"]},
        "portfolio": [{"pool": "tiny/both", "at": 1.0, "result": "chose", "why": "as it is: 97%"}],
    }  # fmt: skip
    held = [False]
    controls = Controls(
        status=lambda: status,
        hold=lambda on: held.__setitem__(0, on),
        held=lambda: held[0],
    )

    async def test() -> None:
        engine = Engine()
        keys = (KeyLimits("ci", max_concurrent=7),)
        tenants = [Tenant("acme", keys=keys)]
        async with administered(engine, controls=controls, tenants=tenants) as admin:
            replica = f"127.0.0.1:{engine.port}"
            lines = (await command(admin, "status")).stdout.splitlines()
            assert lines[0] == "ready: 0 running, 0 waiting"
            assert "configuration: 3 times read anew; the last reading failed: line 7" in lines
            assert lines[-4:] == [
                "kept until a restart: listen.port",
                "records: 7 written, 2 lost",
                "scaling: by itself",
                "portfolio of tiny/both chose: as it is: 97%",
            ]
            head, row = (await command(admin, "replicas")).stdout.splitlines()
            assert (head.split()[0], row.split()[:4]) == ("ID", [replica, "tiny", "serving", "yes"])
            told = (await command(admin, "tenants")).stdout.splitlines()
            assert [line.split()[0] for line in told[1:]] == ["acme", "key"]
            assert "7" in told[2].split()
            assert "acme" in (await command(admin, "queue")).stdout
            drained = await command(admin, "drain", replica)
            assert drained.stdout == f"{replica} gets no more requests, and nothing runs on it\n"
            body = json.loads((await command(admin, "replicas", "--json")).stdout)
            assert body["replicas"][0]["state"] == "standby"
            assert "gets requests again" in (await command(admin, "resume", replica)).stdout
            assert (await command(admin, "hold")).stdout == "scaling is held\n"
            assert held == [True]
            assert (await command(admin, "release")).stdout == "scaling goes on by itself\n"
            refused = await command(admin, "reload")
            assert "no configuration file" in str(refused.exception)
            missing = await command(admin, "drain", "a b/c")
            assert "no replica a b/c here" in str(missing.exception)

    run(test)


def test_the_command_says_what_is_wrong_with_its_listener() -> None:
    async def test() -> None:
        engine = Engine()
        async with administered(engine) as admin:
            environ = {"SURGETANK_ADMIN_TOKEN": "wrong"}
            for url, why in (
                (admin.url, "the admin token is needed"),
                (f"http://127.0.0.1:{admin.running.port}", "no such route"),
                ("http://127.0.0.1:1", "is admin.port set there?"),
            ):
                asked = ["queue", "--url", url]
                result = await asyncio.to_thread(CliRunner().invoke, app, asked, env=environ)
                assert why in str(result.exception)

    run(test)
