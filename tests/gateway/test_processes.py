"""The gateway as its users run it: real processes, the client most of them have, and death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import httpx
import openai
import pytest
import uvloop

from tests.gateway.processes import Served, chat, mock_engine, serve

TIMEOUT = 60.0


def client_of(served: Served, *, retries: int = 2) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="any", max_retries=retries, timeout=TIMEOUT
    )


def test_openai_python_completes_streams_and_lists_models(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mock_engine("--profile", "tiny-fast") as (engine, _),
            serve(tmp_path, [engine]) as served,
            client_of(served) as client,
        ):
            assert [m.id async for m in client.models.list()] == ["tiny"]
            assert (await client.models.retrieve("tiny")).id == "tiny"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("org/other")
            whole = await client.chat.completions.create(**chat(max_tokens=5))
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 5
            stream = await client.chat.completions.create(**chat(max_tokens=5), stream=True)
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].choices[0].finish_reason == "length"
            assert all(chunk.usage is None for chunk in chunks)
            asked = await client.chat.completions.create(
                **chat(max_tokens=5), stream=True, stream_options={"include_usage": True}
            )
            last = [chunk async for chunk in asked][-1]
            assert last.choices == []
            assert last.usage is not None
            assert last.usage.completion_tokens == 5

    uvloop.run(test())


def test_openai_python_reads_retry_after_and_succeeds_on_its_retry(tmp_path: Path) -> None:
    tenants = [{"name": "default", "requests_per_minute": 60, "burst_seconds": 1}]

    async def test() -> None:
        async with (
            mock_engine("--profile", "tiny-fast") as (engine, _),
            serve(tmp_path, [engine], tenants=tenants) as served,
        ):
            async with client_of(served, retries=0) as impatient:
                await impatient.chat.completions.create(**chat(max_tokens=1))
                with pytest.raises(openai.RateLimitError) as refused:
                    await impatient.chat.completions.create(**chat(max_tokens=1))
                assert refused.value.code == "requests_quota_exceeded"
                told = float(refused.value.response.headers["retry-after-ms"]) / 1000
                assert 0 < told <= 1.2
                assert refused.value.response.headers["x-ratelimit-limit-requests"] == "1"
            async with client_of(served) as patient:
                began = time.monotonic()
                answer = await patient.chat.completions.create(**chat(max_tokens=1))
                assert answer.choices[0].finish_reason == "length"
                assert time.monotonic() - began >= 0.5 * told  # it waited as it was told
            retried = [r.client_retry for r in served.records()]
            assert max(retried, default=0) <= 2

    uvloop.run(test())


async def _read_stream(
    client: httpx.AsyncClient, url: str, started: asyncio.Event, **more: object
) -> str:
    body = chat(stream=True, **more)
    seen = ""
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        async for text in reply.aiter_text():
            seen += text
            if seen.count("data: ") >= 3:
                started.set()
    return seen


def test_a_killed_replica_ends_its_own_streams_with_an_error_and_harms_no_other(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with (
            mock_engine("--profile", "tiny") as (one, doomed),
            mock_engine("--profile", "tiny") as (two, _),
            serve(tmp_path, [one, two]) as served,
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client,
        ):
            events = [asyncio.Event() for _ in range(8)]
            streams = [
                asyncio.ensure_future(_read_stream(client, served.url, started, max_tokens=150))
                for started in events
            ]
            await asyncio.wait_for(asyncio.gather(*(e.wait() for e in events)), TIMEOUT)
            assert doomed.pid is not None
            os.kill(doomed.pid, signal.SIGKILL)
            ended = await asyncio.wait_for(asyncio.gather(*streams), TIMEOUT)
            broken = [text for text in ended if '"error"' in text]
            whole = [text for text in ended if text.rstrip().endswith("[DONE]")]
            assert len(broken) + len(whole) == 8
            assert len(broken) == len(whole) == 4
            assert all("[DONE]" not in text for text in broken)
            later = [
                await client.post(f"{served.url}/v1/chat/completions", json=chat(max_tokens=2))
                for _ in range(6)
            ]
            assert [r.status_code for r in later] == [200] * 6
            await served.ready(1)

    uvloop.run(test())


def test_requests_that_were_not_begun_when_their_replica_was_killed_are_replayed(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with (
            mock_engine("--profile", "tiny", "--fault", "hang") as (one, doomed),
            mock_engine("--profile", "tiny") as (two, _),
            serve(tmp_path, [one, two]) as served,
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client,
        ):
            url = f"{served.url}/v1/chat/completions"
            asked = [
                asyncio.ensure_future(client.post(url, json=chat(max_tokens=3))) for _ in range(8)
            ]
            await asyncio.wait_for(
                asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED), TIMEOUT
            )
            assert doomed.pid is not None
            os.kill(doomed.pid, signal.SIGKILL)
            replies = await asyncio.wait_for(asyncio.gather(*asked), TIMEOUT)
            assert [r.status_code for r in replies] == [200] * 8
            assert sorted({r.attempts for r in await served.recorded(8)}) == [1, 2]

    uvloop.run(test())


def test_sigterm_lets_streams_finish_and_exits_0(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mock_engine("--profile", "tiny") as (engine, _),
            serve(tmp_path, [engine]) as served,
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client,
        ):
            started = asyncio.Event()
            stream = asyncio.ensure_future(_read_stream(client, served.url, started, max_tokens=60))
            await asyncio.wait_for(started.wait(), TIMEOUT)
            process = served.child._process
            assert process is not None
            process.send_signal(signal.SIGTERM)
            text = await asyncio.wait_for(stream, TIMEOUT)
            assert text.rstrip().endswith("[DONE]")
            assert await asyncio.wait_for(process.wait(), TIMEOUT) == 0
            assert [r.outcome for r in served.records()] == ["completed"]

    uvloop.run(test())


def test_a_second_sigterm_ends_streams_with_a_word_and_exits_0(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mock_engine("--profile", "tiny") as (engine, _),
            serve(tmp_path, [engine], drain_timeout=50) as served,
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client,
        ):
            started = asyncio.Event()
            stream = asyncio.ensure_future(
                _read_stream(client, served.url, started, max_tokens=1000)
            )
            await asyncio.wait_for(started.wait(), TIMEOUT)
            process = served.child._process
            assert process is not None
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(TIMEOUT):
                while (await client.get(f"{served.admin}/readyz")).status_code != 503:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            late = await client.post(f"{served.url}/v1/chat/completions", json=chat())
            assert (late.status_code, late.headers["connection"]) == (503, "close")
            process.send_signal(signal.SIGTERM)
            text = await asyncio.wait_for(stream, TIMEOUT)
            assert "shutting_down" in text
            assert await asyncio.wait_for(process.wait(), 10.0) == 0
            assert [r.outcome for r in served.records()] == ["shutdown"] * 2  # the late one's too

    uvloop.run(test())


def test_sighup_opens_the_files_anew_and_harms_no_stream(tmp_path: Path) -> None:
    async def test() -> None:
        journal = tmp_path / "journal.jsonl"
        async with (
            mock_engine("--profile", "tiny") as (engine, _),
            serve(tmp_path, [engine], journal={"path": str(journal)}) as served,
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client,
        ):
            url = f"{served.url}/v1/chat/completions"
            await client.post(url, json=chat(max_tokens=1))
            await served.recorded(1)
            started = asyncio.Event()
            stream = asyncio.ensure_future(_read_stream(client, served.url, started, max_tokens=60))
            await asyncio.wait_for(started.wait(), TIMEOUT)
            path = served.folder / "records.jsonl"
            path.rename(tmp_path / "rotated.jsonl")
            journal.unlink()
            assert served.child.pid is not None
            os.kill(served.child.pid, signal.SIGHUP)
            async with asyncio.timeout(TIMEOUT):
                while not (path.exists() and journal.exists()):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            text = await asyncio.wait_for(stream, TIMEOUT)
            assert text.rstrip().endswith("[DONE]")
            assert [r.outcome for r in await served.recorded(1)] == ["completed"]
            assert len((tmp_path / "rotated.jsonl").read_text().splitlines()) == 1
            assert served.child.errors.count("SIGHUP: reopening ") == 1

    uvloop.run(test())


def test_silent_connections_starve_neither_health_nor_engines(tmp_path: Path) -> None:
    """With 400 files there are 72 connections for clients: the other 328 are spoken for.

    What runs has one on each side, and no limit on what a replica runs is set.
    """

    async def test() -> None:
        async with (
            mock_engine("--profile", "tiny-fast") as (engine, _),
            serve(tmp_path, [engine], most_files=400) as served,
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client,
        ):
            assert "listen.max_connections = 4096 is lowered to 72" in served.child.errors
            url = f"{served.url}/v1/chat/completions"
            assert (await client.post(url, json=chat(max_tokens=1))).status_code == 200
            host, port = served.url.removeprefix("http://").split(":")
            crowd = [await asyncio.open_connection(host, int(port)) for _ in range(450)]
            assert (await client.get(f"{served.admin}/readyz")).status_code == 200
            assert (await client.post(url, json=chat(max_tokens=1))).status_code == 200
            async with httpx.AsyncClient(trust_env=False) as late:
                with contextlib.suppress(httpx.TransportError):  # too many to tell them all
                    assert (await late.post(url, json=chat())).status_code == 503
            assert await served.metric("surgetank_connections_turned_away_total") >= 341
            for _, writer in crowd:
                writer.transport.abort()

    uvloop.run(test())


def test_a_burst_is_never_seen_by_the_engine_beyond_its_limit(tmp_path: Path) -> None:
    """200 requests in one instant: what the engine cannot run waits here, where it can be told."""

    async def test() -> None:
        flow = {"max_in_flight": 8, "max_queued": 400}
        async with (
            mock_engine("--profile", "tiny-fast", "--max-queued", "16") as (
                engine,
                _,
            ),
            serve(tmp_path, [engine], flow=flow) as served,
            httpx.AsyncClient(
                trust_env=False, timeout=TIMEOUT, limits=httpx.Limits(max_connections=None)
            ) as client,
        ):
            url = f"{served.url}/v1/chat/completions"
            replies = await asyncio.gather(
                *(client.post(url, json=chat(max_tokens=2)) for _ in range(200))
            )
            assert [r.status_code for r in replies] == [200] * 200
            text = (await client.get(f"{engine}/metrics")).text
            shed = [
                x for x in text.splitlines() if x.startswith("vllm:admission_rejections_total{")
            ]
            assert sum(float(line.rsplit(" ", 1)[1]) for line in shed) == 0

    uvloop.run(test())


def test_a_gateway_that_cannot_listen_says_so_in_one_line(tmp_path: Path) -> None:
    async def test() -> None:
        async with mock_engine("--profile", "tiny-fast") as (engine, _):
            port = engine.rsplit(":", 1)[1]
            with contextlib.ExitStack() as stack:
                error = stack.enter_context(pytest.raises(Exception, match=r"listen\.port"))
                async with serve(tmp_path, [], listen={"port": int(port)}):
                    pass
            assert "already in use" in str(error.value)

    uvloop.run(test())
