"""The gateway's own readers understand the replica: two implementations, written apart."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from surgetank.engine.static import StaticBatcher
from surgetank.mockengine import asked
from surgetank.wire.openai import Assembler, parse_request
from surgetank.wire.sse import SseScanner

from .client import Replica, chat, run


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_put_together_is_the_whole_answer(path: str, n: int) -> None:
    async def test(replica: Replica) -> None:
        body: dict[str, Any] = chat(n=n, seed=3, max_tokens=40)
        if path == "/v1/completions":
            body["prompt"] = body.pop("messages")[0]["content"]
        whole = (await replica.ask(path, body)).json
        streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
        stream = await replica.ask(path, streaming)
        assembler = Assembler(parse_request(path, json.dumps(body).encode()))
        assembler.feed(stream.body)
        together = json.loads(assembler.result())
        for choice, expected in zip(together["choices"], whole["choices"], strict=True):
            assert choice["index"] == expected["index"]
            assert choice["finish_reason"] == expected["finish_reason"]
            if path == "/v1/completions":
                assert choice["text"] == expected["text"]
            else:
                assert choice["message"]["content"] == expected["message"]["content"]
        assert together["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        scanner = SseScanner()
        assert scanner.feed(stream.body) is stream.body
        assert scanner.done
        assert scanner.usage is not None
        assert scanner.usage.output_tokens == whole["usage"]["completion_tokens"]

    run(test)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "messages": [
                {"role": "system", "content": "short"},
                {"role": "user", "content": "é" * 9},
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}]}]},
    ],
)
def test_both_readers_count_the_same_text(fields: dict[str, Any]) -> None:
    body = json.dumps(chat(**fields)).encode()
    theirs = parse_request("/v1/chat/completions", body)
    ours = asked.read("/v1/chat/completions", body)
    assert ours.prompt_tokens == -(-theirs.prompt_bytes // 4) + 4 * theirs.messages


def test_an_engine_of_whole_batches_answers_everyone_in_full() -> None:
    async def test(replica: Replica) -> None:
        lengths = [5, 40, 20, 1, 8]
        asking = (
            replica.ask("/v1/chat/completions", chat(max_tokens=n, min_tokens=n)) for n in lengths
        )
        replies = await asyncio.gather(*asking)
        assert [r.json["usage"]["completion_tokens"] for r in replies] == lengths
        batcher = replica.engine.batcher
        assert isinstance(batcher, StaticBatcher)
        assert 2 <= batcher.batches <= 5  # of two at most
        assert (batcher.running, batcher.waiting) == (0, 0)

    run(test, static_batch=2)
