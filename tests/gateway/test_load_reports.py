"""What engines say of their load on an answer: asked for, believed, and never passed on."""

from __future__ import annotations

import pytest

from surgetank.policy.replica import Role
from tests.gateway.harness import Engine, ask, chat, run, serving

TOLD = 'endpoint-load-metrics: JSON {"named_metrics": {"kv_cache_usage_perc": 0.5}}\r\n'


def test_whole_answers_of_vllm_are_asked_for_its_load_and_streams_are_not() -> None:
    async def test() -> None:
        engine = Engine(response_headers=TOLD)
        async with serving(engine, replica={"dialect": "vllm", "kv_tokens": 1000}) as gateway:
            reply = await ask(gateway.port, chat())
            await ask(gateway.port, chat(stream=True))
            asked = [r.headers.get("endpoint-load-metrics-format") for r in engine.requests]
            assert asked == ["JSON", None]
            assert "endpoint-load-metrics" not in reply.headers
            (row,) = gateway.gateway.fleet.rows("tiny", Role.BOTH)
            assert row["dialect"] == "vllm"
            assert row["signals"]["kv_used"] == 0.5
            assert row["signals"]["waiting"] is None  # its scrape has failed: unknown, not 0

    run(test)


@pytest.mark.parametrize("told", ["", "endpoint-load-metrics: JSON {nonsense\r\n"])
def test_an_engine_that_says_nothing_of_use_is_unknown(told: str) -> None:
    async def test() -> None:
        engine = Engine(response_headers=told)
        async with serving(engine) as gateway:
            assert (await ask(gateway.port, chat())).status == 200
            assert "endpoint-load-metrics-format" not in engine.requests[0].headers
            (row,) = gateway.gateway.fleet.rows("tiny", Role.BOTH)
            assert row["signals"] == {
                "waiting": None,
                "running": None,
                "kv_used": None,
                "age": None,
            }

    run(test)
