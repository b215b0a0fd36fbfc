"""The clients people have, on every route: openai-python, curl, and by `make clients` two more."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
import uvloop

from tests.gateway.processes import Served, mock_engine, serve

TIMEOUT = 60.0
ENVIRONMENT = Path(__file__).parents[2] / "build" / "clients" / "bin" / "python"
SCRIPT = Path(__file__).parent / "client_scripts" / "anthropic_and_langchain.py"


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    async with (
        mock_engine("--profile", "tiny-fast") as (engine, _),
        serve(folder, [engine]) as gateway,
    ):
        yield gateway


async def output_of(*command: str) -> str:
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(TIMEOUT):
        out, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    return out.decode()


def test_openai_python_embeds_and_responds_and_curl_streams_messages(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as gateway:
            client = openai.AsyncOpenAI(
                base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT
            )
            async with client:
                vectors = await client.embeddings.create(model="tiny", input=["hello", "there"])
                assert [len(v.embedding) for v in vectors.data] == [8, 8]
                whole = await client.responses.create(
                    model="tiny", input="hello", max_output_tokens=5
                )
                assert whole.usage is not None
                assert whole.usage.output_tokens == 5
                assert whole.output_text
                stream = await client.responses.create(
                    model="tiny", input="hello", max_output_tokens=5, stream=True
                )
                kinds = [event.type async for event in stream]
                assert kinds[0] == "response.created"
                assert kinds.count("response.output_text.delta") == 5
                assert kinds[-1] in {"response.completed", "response.incomplete"}
                with pytest.raises(openai.NotFoundError):
                    await client.responses.create(model="other", input="hello")
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve("resp_1")
            if shutil.which("curl") is not None:
                await curl(gateway)
            records = await gateway.recorded(5 if shutil.which("curl") else 4)
            assert [r.output_tokens for r in records[:3]] == [0, 5, 5]

    uvloop.run(test())


async def curl(gateway: Served) -> None:
    body = {
        "model": "tiny",
        "max_tokens": 5,
        "stream": True,
        "messages": [{"role": "user", "content": "hello"}],
    }
    text = await output_of(
        *("curl", "-sSN", "--max-time", "50", f"{gateway.url}/v1/messages"),
        *("-H", "x-api-key: any", "-H", "content-type: application/json"),
        *("-H", "expect: 100-continue", "-d", json.dumps(body)),
    )
    assert text.count("event: content_block_delta") == 5
    assert text.endswith('data: {"type":"message_stop"}\n\n')


def test_anthropic_and_langchain_are_served(tmp_path: Path) -> None:
    if not ENVIRONMENT.exists():
        pytest.skip(
            "anthropic and langchain-openai are in an environment of their own: make clients"
        )

    async def test() -> None:
        async with served(tmp_path) as gateway:
            told = json.loads(await output_of(str(ENVIRONMENT), str(SCRIPT), gateway.url))
            assert told == {
                "message": 5,
                "streamed": 5,
                "counted": True,
                "refused": "NotFoundError",
                "langchain": 5,
                "langchain_streamed": True,
                "langchain_embeddings": [8, 8],
                "langchain_responses": True,
            }
            routes = {r.route for r in await gateway.recorded(8)}
            assert routes == {
                "/v1/messages",
                "/v1/messages/count_tokens",
                "/v1/chat/completions",
                "/v1/embeddings",
                "/v1/responses",
            }

    uvloop.run(test())
