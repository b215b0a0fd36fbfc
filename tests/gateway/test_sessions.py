"""How a request tells its session at the edge, and what an operator sees of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest

from surgetank.gateway.spec import SessionSpec
from surgetank.policy.tenant import Tenant
from tests.gateway.harness import Engine, Running, ask, chat, run, serving, until

Member = Literal["metadata.session_id", "user", "none"]


def configured(gateway: Running, **sessions: Any) -> None:
    gateway.gateway.sessions = spec = SessionSpec(**sessions)
    gateway.gateway.session_header = spec.header.lower().encode()


@pytest.mark.parametrize(
    ("member", "headers", "more", "expected"),
    [
        ("metadata.session_id", "x-session-id: h\r\n", {"metadata": {"session_id": "m"}}, "h"),
        ("metadata.session_id", "", {"metadata": {"session_id": "m"}, "user": "u"}, "m"),
        ("metadata.session_id", "", {"user": "u"}, ""),
        ("user", "", {"metadata": {"session_id": "m"}, "user": "u"}, "u"),
        ("user", "", {"user": "u"}, "u"),
        ("user", "", {"user": 7}, ""),
        ("none", "", {"metadata": {"session_id": "m"}, "user": "u"}, ""),
        ("none", f"X-Session-Id: {300 * 'h'}\r\n", {}, "h" * 256),
    ],
)  # fmt: skip
def test_the_header_goes_before_the_member_that_is_configured(
    member: Member, headers: str, more: dict[str, Any], expected: str
) -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            configured(gateway, member=member)
            reply = await ask(gateway.port, chat(**more), headers=headers)
            assert reply.status == 200
            assert gateway.record().session == expected

    run(test)


def test_another_header_can_be_named() -> None:
    async def test() -> None:
        async with serving(Engine()) as gateway:
            configured(gateway, header="X-Task")
            await ask(gateway.port, chat(), headers="x-task: t\r\nx-session-id: s\r\n")
            assert gateway.record().session == "t"

    run(test)


def test_one_session_too_many_gets_a_429_and_metrics_show_what_is_under_way() -> None:
    async def test() -> None:
        tenants = (Tenant("default", max_sessions=1),)
        async with serving(Engine(), tenants=tenants) as gateway:
            await ask(gateway.port, chat(), headers="x-session-id: one\r\n")
            reply = await ask(gateway.port, chat(), headers="x-session-id: two\r\n")
            assert reply.status == 429
            assert json.loads(reply.body)["error"]["code"] == "sessions_quota_exceeded"
            assert reply.headers["x-should-retry"] == "false"  # not before 300 s
            again = await ask(gateway.port, chat(), headers="x-session-id: one\r\n")
            assert again.status == 200
            gateway.gateway.ledger.book()
            text = gateway.gateway.metrics.exposition(gateway.gateway.gauges()).decode()
            assert 'surgetank_sessions{tenant="default"} 1.0' in text
            assert 'surgetank_tenant_token_rate{tenant="default"} 0.' in text
            (view,) = gateway.gateway.driver.flow.sessions(asyncio.get_running_loop().time())
            assert (view.served, view.here) == (2, 0)
            assert view.session != "one"

    run(test)


def test_what_came_in_of_a_session_is_known_while_it_runs() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def waits(request: Any, connection: Any) -> None:
            await gate.wait()
            await connection.whole({"error": {"message": "late"}}, 400)

        engine = Engine(scripts=[waits])
        async with serving(engine) as gateway:
            flow = gateway.gateway.driver.flow
            task = asyncio.create_task(ask(gateway.port, chat(), headers="x-session-id: s\r\n"))
            await until(lambda: bool(engine.requests))
            (view,) = flow.sessions(asyncio.get_running_loop().time())
            assert (view.here, view.begun) == (1, True)
            assert view.tokens_per_second > 0
            gate.set()
            await task
            (view,) = flow.sessions(asyncio.get_running_loop().time())
            assert (view.here, view.served) == (0, 0)

    run(test)
