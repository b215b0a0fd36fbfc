"""What the degradation ladder takes is told: in a header, in the record, as a gauge, in the log."""

from __future__ import annotations

import asyncio
import json

import pytest

from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.ladder import Fallback, LadderSpec
from surgetank.policy.replica import Replica
from surgetank.policy.request import Outcome, Request
from surgetank.policy.tenant import Tenant, Tier
from tests.gateway.harness import Connection, Engine, Received, answer_well, ask, chat, run, serving

HEADER = "x-surgetank-degraded"
TIERS = (Tier("core", priority=0), Tier("standard", priority=1), Tier("batch", priority=2))


def on_step(level: int, tier: str, model: str = "tiny") -> FlowControl:
    """Give a flow that core requests without a slot have brought there, up to this moment."""
    flow = FlowControl(
        FlowSpec(max_queued=1000),
        tenants=[Tenant("default", tier=tier), Tenant("vip", tier="core")],
        tiers=TIERS,
        models=("tiny", model),
        ladder=LadderSpec(
            enabled=True,
            step_down_interval=3600.0,  # it stays, however slow this machine is
            fallbacks=(Fallback("other", "tiny"),),
        ),
    )
    now = asyncio.get_running_loop().time() - 2.0 * level - 1.0  # a step every two seconds
    flow.join(Replica("gone", model, slots=1), now)
    number = 0
    while flow.degradation()[model] < level:
        flow.offer(Request(f"{number}", "vip", model, 400), now)
        now += 0.25
        number += 1
    for old in reversed(range(number)):
        flow.finish(f"{old}", Outcome.SHUTDOWN, None, now)
    flow.leave("gone", now)
    return flow


def recording() -> tuple[Engine, list[bytes]]:
    """Give an engine, and the bodies it gets."""
    bodies: list[bytes] = []

    async def answer(request: Received, connection: Connection) -> None:
        bodies.append(request.body)
        await answer_well(request, connection)

    engine = Engine()
    engine.default = answer
    return engine, bodies


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_cap_is_written_into_the_body_and_told_with_the_answer(*, stream: bool) -> None:
    async def test() -> None:
        engine, bodies = recording()
        async with serving(engine, control=on_step(2, "standard")) as running:
            reply = await ask(running.port, chat() | {"stream": stream, "max_tokens": 900})
            assert reply.status == 200
            assert reply.headers[HEADER] == "2; queue_timeout=10; max_tokens=256"
            assert json.loads(bodies[0])["max_tokens"] == 256
            record = running.record()
            assert record.degraded == "2; queue_timeout=10; max_tokens=256"
            assert record.max_tokens == 256
            text = running.gateway.metrics.exposition(running.gateway.gauges()).decode()
            assert 'surgetank_degradation_level{model="tiny"} 2.0' in text

    run(test)


def test_a_refusal_tells_the_step_and_when_to_come_back() -> None:
    async def test() -> None:
        async with serving(Engine(), control=on_step(3, "batch")) as running:
            reply = await ask(running.port, chat())
            assert reply.status == 429
            assert reply.headers[HEADER].startswith("3; ")
            assert reply.json["error"]["code"] == "degraded"
            assert float(reply.headers["retry-after"]) >= 1
            assert running.record().outcome == "degraded"

    run(test)


@pytest.mark.parametrize("words", [4000, 8000], ids=["a prompt", "one that is sent in parts"])
def test_a_fallback_model_is_asked_by_its_own_name(words: int) -> None:
    async def test() -> None:
        engine, bodies = recording()
        flow = on_step(3, "standard", "other")
        flow.join(Replica("still", "other", slots=1), asyncio.get_running_loop().time())
        async with serving(engine, control=flow) as running:
            long = [{"role": "user", "content": "word " * words}]
            reply = await ask(running.port, chat() | {"model": "other", "messages": long})
            assert reply.status == 200
            assert reply.headers[HEADER].endswith("; model=tiny")
            assert json.loads(bodies[0])["model"] == "tiny"

    run(test)


def test_the_core_and_a_flow_that_is_well_have_no_such_header() -> None:
    async def test() -> None:
        for control in (None, on_step(2, "core")):
            async with serving(Engine(), control=control) as running:
                reply = await ask(running.port, chat())
                assert reply.status == 200
                assert HEADER not in reply.headers
                assert not running.record().degraded

    run(test)


def test_each_step_is_one_line_in_the_log_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with serving(Engine(), control=on_step(2, "core")) as running:
            await ask(running.port, chat())
            await ask(running.port, chat())
        lines = [r.getMessage() for r in caplog.records if "degradation level" in r.getMessage()]
        assert [line.split(",")[0] for line in lines] == [
            "degradation level 0 -> 1",
            "degradation level 1 -> 2",
        ]
        assert all("core request" in line for line in lines)

    run(test)
