"""The gateway before a real llama.cpp server: the five rules that its habits teach."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from tests.gateway.processes import Served, chat, serve

pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra `demo`: run `make install`")

from surgetank.adapters.engines import count_prompt_tokens
from surgetank.adapters.llamacpp.model import write_tiny_gguf
from surgetank.adapters.llamacpp.process import LlamaServer

TIMEOUT = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    write_tiny_gguf(path, hidden=128, layers=4)
    return path


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose answers of 3,900 tokens take many seconds."""
    path = tmp_path_factory.mktemp("llama") / "slow.gguf"
    write_tiny_gguf(path, hidden=384, layers=8, heads=6, kv_heads=2)
    return path


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a state of another process."""
    async with asyncio.timeout(TIMEOUT):
        while not await condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


def client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(trust_env=False, timeout=TIMEOUT, limits=limits)


async def busy_slots(server: LlamaServer) -> int:
    async with client() as http:
        slots = (await http.get(f"{server.url}/slots")).json()
    return sum(bool(slot["is_processing"]) for slot in slots)


async def holds(server: LlamaServer, number: int) -> bool:
    """Whether so many of its slots are busy; a dead server's are not."""
    try:
        return await busy_slots(server) == number
    except httpx.TransportError:
        return number == 0


async def either(one: LlamaServer, two: LlamaServer) -> bool:
    return await holds(one, 1) or await holds(two, 1)


async def ask(http: httpx.AsyncClient, served: Served, **more: Any) -> httpx.Response:
    return await http.post(f"{served.url}/v1/chat/completions", json=chat(**more))


def test_a_whole_answer_put_together_is_what_the_engine_itself_would_have_said(
    model: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with (
            LlamaServer(model) as server,
            serve(tmp_path, [server.url]) as served,
            client() as http,
        ):
            body = chat(max_tokens=12, temperature=0, seed=1)
            own = (await http.post(f"{server.url}/v1/chat/completions", json=body)).json()
            ours = (await http.post(f"{served.url}/v1/chat/completions", json=body)).json()
            assert ours["choices"] == own["choices"]
            assert ours["object"] == own["object"]
            assert ours["usage"]["completion_tokens"] == own["usage"]["completion_tokens"] == 12
            assert set(own) - set(ours) == set()

    uvloop.run(test())


def test_a_client_that_leaves_a_whole_answer_frees_its_slot_within_a_second(
    slow_model: Path, tmp_path: Path
) -> None:
    """Straight at it, the slot stays taken for over 25 s while another one streams."""

    async def test() -> None:
        async with (
            LlamaServer(slow_model, context=8192) as server,
            serve(tmp_path, [server.url]) as served,
            client() as http,
        ):
            streaming = asyncio.Event()

            async def stream() -> None:
                body = chat(stream=True, max_tokens=3900)
                async with http.stream(
                    "POST", f"{served.url}/v1/chat/completions", json=body
                ) as reply:
                    async for _ in reply.aiter_bytes():
                        streaming.set()

            other = asyncio.ensure_future(stream())
            await asyncio.wait_for(streaming.wait(), TIMEOUT)
            leaving = asyncio.ensure_future(ask(http, served, max_tokens=3900))
            await until(lambda: holds(server, 2))
            leaving.cancel()
            left = time.monotonic()
            await until(lambda: holds(server, 1))
            freed = time.monotonic() - left
            assert not other.done(), "the other one still streams"
            assert freed < 1.0
            other.cancel()
            await asyncio.gather(other, leaving, return_exceptions=True)

    uvloop.run(test())


def test_an_error_event_under_a_200_is_a_failure_and_is_told(model: Path, tmp_path: Path) -> None:
    """The operator claims more KV than there is: the engine ends its streams, and it shows."""

    async def test() -> None:
        async with LlamaServer(model, context=1024) as server:
            lie = {"kv_tokens": 100_000, "max_context": 4096}
            async with (
                serve(tmp_path, [server.url], every_replica=lie) as served,
                client() as http,
            ):
                body = chat(stream=True, max_tokens=600)
                url = f"{served.url}/v1/chat/completions"
                replies = await asyncio.gather(*(http.post(url, json=body) for _ in range(6)))
                broken = [r.text for r in replies if '"error"' in r.text]
                assert broken
                assert not any("[DONE]" in text for text in broken)
                records = await served.recorded(6)
                failed = [r for r in records if r.outcome == "upstream_error"]
                assert len(failed) == len(broken)
                assert await served.metric("surgetank_running") == 0

    uvloop.run(test())


def test_with_its_kv_known_the_same_burst_is_served_whole(model: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            LlamaServer(model, context=1024) as server,
            serve(tmp_path, [server.url]) as served,
            client() as http,
        ):
            replies = await asyncio.gather(
                *(ask(http, served, stream=True, max_tokens=600) for _ in range(6))
            )
            assert all(r.text.rstrip().endswith("[DONE]") for r in replies)

    uvloop.run(test())


def test_an_engine_killed_under_a_request_is_asked_once_more_and_then_it_is_502(
    model: Path, tmp_path: Path
) -> None:
    async def test() -> None:
        async with (
            LlamaServer(model, context=16_384) as one,
            LlamaServer(model, context=16_384) as two,
            serve(tmp_path, [one.url, two.url]) as served,
            client() as http,
        ):
            asked = asyncio.ensure_future(ask(http, served, max_tokens=8000))
            for _ in range(2):
                await until(lambda: either(one, two))
                doomed = one if await holds(one, 1) else two
                assert doomed.pid is not None
                os.kill(doomed.pid, signal.SIGKILL)
                await until(lambda gone=doomed: holds(gone, 0))  # type: ignore[misc]
            reply = await asyncio.wait_for(asked, TIMEOUT)
            assert reply.status_code == 502
            assert reply.json()["error"]["code"] == "upstream_failed"
            (record,) = await served.recorded(1)
            assert record.attempts == 2

    uvloop.run(test())


def test_a_prompt_no_replica_can_hold_is_the_clients_error(model: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            LlamaServer(model) as server,
            serve(tmp_path, [server.url]) as served,
            client() as http,
        ):
            long = [{"role": "user", "content": "the people " * 20_000}]
            reply = await ask(http, served, messages=long, max_tokens=5)
            assert reply.status_code == 400
            assert reply.json()["error"]["code"] == "context_length_exceeded"

    uvloop.run(test())


def test_dense_prompts_after_easy_ones_do_not_run_the_engine_into_its_wall(
    model: Path, tmp_path: Path
) -> None:
    """Room is reserved for the prompt as the engine itself counts it, not as others were."""

    async def test() -> None:
        async with (
            LlamaServer(model, slots=4, context=2048) as server,
            serve(tmp_path, [server.url]) as served,
            client() as http,
        ):
            for _ in range(20):
                easy = [{"role": "user", "content": "the people of the time " * 20}]
                assert (await ask(http, served, messages=easy, max_tokens=2)).status_code == 200
            dense = [{"role": "user", "content": "Zq9!" * 112}]
            replies = await asyncio.gather(
                *(ask(http, served, messages=dense, max_tokens=300) for _ in range(16))
            )
            assert [r.status_code for r in replies] == [200] * 16
            counted = await count_prompt_tokens(
                server.url,
                "/v1/chat/completions",
                {"messages": json.dumps(dense).encode()},
                timeout=TIMEOUT,
            )
            assert {r.json()["usage"]["prompt_tokens"] for r in replies} == {counted}

    uvloop.run(test())


def test_responses_and_messages_are_served_and_embeddings_it_does_not_make_are_404(
    model: Path, tmp_path: Path
) -> None:
    responses = {"model": "tiny", "input": "hello there", "max_output_tokens": 5}
    messages = chat(max_tokens=5)

    async def test() -> None:
        async with (
            LlamaServer(model, slots=2) as server,
            serve(tmp_path, [server.url]) as served,
            client() as http,
        ):
            for path, body, output in (
                ("/v1/responses", responses, "output"),
                ("/v1/messages", messages, "content"),
            ):
                whole = await http.post(served.url + path, json=body)
                assert whole.status_code == 200
                assert whole.json()[output]
                assert whole.json()["usage"]["output_tokens"] == 5
                stream = await http.post(served.url + path, json={**body, "stream": True})
                assert stream.text.count("_text.delta" if output == "output" else "_delta\n") >= 5
            counted = await http.post(f"{served.url}/v1/messages/count_tokens", json=messages)
            assert counted.json()["input_tokens"] > 2
            lacking = await http.post(
                f"{served.url}/v1/embeddings", json={"model": "tiny", "input": "hello"}
            )
            assert (lacking.status_code, lacking.json()["error"]["code"]) == (
                404,
                "unsupported_here",
            )
            records = await served.recorded(6)
            assert [r.output_tokens for r in records[:5]] == [5, 5, 5, 5, 0]
            assert len({r.prompt_tokens for r in records[:5]}) == 1  # however it is told

    uvloop.run(test())
