"""Nothing that could be read in two ways, and no control route, gets through to an engine."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.gateway.harness import Engine, RawClient, ask, chat, post, run, serving

CORPUS = Path(__file__).parents[1] / "data" / "smuggling" / "requests.json"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" + post(chat())


async def answers_to(port: int, data: bytes) -> bytes:
    """Send bytes and more requests behind them; return all that comes until the end."""
    client = await RawClient.connect(port)
    client.send(data + HIDDEN)
    try:
        async with asyncio.timeout(10):
            return await client.reader.read()
    except ConnectionResetError:
        return b""
    finally:
        client.close()


def test_each_case_of_the_corpus_is_refused_once_and_closed_and_no_engine_hears_of_it() -> None:
    cases = json.loads(CORPUS.read_text())

    async def test() -> None:
        engine = Engine()
        wrong = {}
        async with serving(engine) as gateway:
            for case in cases:
                answer = await answers_to(gateway.port, case["bytes"].encode("latin-1"))
                lines = len(re.findall(rb"HTTP/1\.1 \d{3} ", answer))
                first = answer.split(b"\r\n", 1)[0].decode()
                if (
                    lines != 1
                    or f" {case['status']} " not in first
                    or b"x-request-id" not in answer
                ):
                    wrong[case["name"]] = f"{lines} answers, the first: {first}"
            assert (await ask(gateway.port, chat())).status == 200
        assert wrong == {}
        assert len(engine.requests) == 1
        assert len(cases) >= 60

    run(test)


TARGETS = [
    "/sleep", "/sleep?level=1", "/wake_up", "/is_sleeping", "/metrics", "/health", "/tokenize",
    "/detokenize", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/update_weights",
    "/update_weights_from_disk", "/collective_rpc", "/reset_prefix_cache", "/server_info",
    "/flush_cache", "/slots", "/slots/0?action=erase", "/props", "/lora-adapters",
    "/invocations", "/v1/rerank", "/v1/audio/transcriptions", "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel", "/v1/messages/batches", "/v1/completions/render", "/docs",
    "/openapi.json", "/", "/v1", "/v1/models/%2e%2e/%2e%2e/sleep/..", "/v1/models/../../sleep",
    "/v1/models/./x", "/v1/models//x", "/v1/chat/completions/", "/v1/chat/completions/..",
    "/v1/chat/completions/../../sleep", "/v1/chat/completions%2f..%2f..%2fsleep",
    "/v1/chat/completions;x=1", "/v1/chat/completions%00", "/V1/chat/completions",
    "/v1/Chat/Completions", "/v1/chat%2fcompletions", "//v1/chat/completions",
    "/./v1/chat/completions", "/%76%31/chat/completions", "/v1/chat/completions%20",
    "/v1/chat\\completions", "/v1/chat/completions%3f", "/v1/embeddings/",
    "/v1/messages/count_tokens/", "/%2e%2e/sleep",
]  # fmt: skip


SMALL = "host: x\r\ncontent-length: 2\r\n\r\n{}"


def test_no_spelling_of_a_control_route_reaches_an_engine() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            for target in TARGETS:
                for method in ("GET", "POST", "PUT", "DELETE"):
                    client = await RawClient.connect(gateway.port)
                    client.send(f"{method} {target} HTTP/1.1\r\n{SMALL}".encode())
                    reply = await client.reply()
                    if target.startswith("/v1/models/") and ".." not in target:
                        assert reply.status in {404, 405}, (method, target)
                    else:
                        assert reply.status == 404, (method, target)
                    assert set(reply.json["error"]) == {"message", "type", "param", "code"}
                    client.close()
        assert engine.requests == []

    run(test)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "PRI"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages"])
def test_other_methods_are_405_whatever_an_override_says(method: str, path: str) -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            client = await RawClient.connect(gateway.port)
            client.send(
                f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-http-method-override: POST\r\n"
                "x-original-url: /sleep\r\nx-rewrite-url: /sleep\r\n\r\n".encode()
            )
            reply = await client.reply()
            assert (reply.status, reply.headers["allow"]) == (405, "POST")
            client.close()
        assert engine.requests == []

    run(test)


def test_an_offer_to_upgrade_is_not_taken_and_the_request_served_as_it_is() -> None:
    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            more = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"
            reply = await ask(gateway.port, chat(), headers=more)
            assert reply.status == 200
            sent = engine.requests[0].headers
            assert not {"upgrade", "http2-settings", "connection"} & set(sent)
            reply = await ask(gateway.port, chat(), path="/v1/chat/completions?a=/sleep&b=..%2f")
            assert reply.status == 200
            assert engine.requests[1].path == "/v1/chat/completions"

    run(test)


HOP_BY_HOP = (
    "authorization: Bearer secret\r\ncookie: a=b\r\nproxy-authorization: Basic eA==\r\n"
    "x-api-key: secret\r\nkeep-alive: timeout=5\r\nte: trailers\r\nproxy-connection: keep-alive\r\n"
    "connection: keep-alive, x-private\r\nx-private: 1\r\nx-forwarded-for: 1.2.3.4\r\n"
)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat()),
        ("/v1/embeddings", {"model": "tiny", "input": "hello"}),
        ("/v1/responses", {"model": "tiny", "input": "hello"}),
        ("/v1/messages", {"model": "tiny", "max_tokens": 5, "messages": chat()["messages"]}),
    ],
)
def test_only_the_gateways_own_headers_go_up_and_of_the_engines_only_the_type_comes_down(
    path: str, body: dict[str, object]
) -> None:
    async def test() -> None:
        engine = Engine(
            response_headers="set-cookie: a=b\r\nserver: x\r\nkeep-alive: timeout=5\r\n"
        )
        async with serving(engine) as gateway:
            reply = await ask(gateway.port, body, path=path, headers=HOP_BY_HOP)
            assert reply.status == 200
            sent = set(engine.requests[-1].headers)
            assert sent == {"host", "content-type", "content-length", "x-request-id"}
            assert not {"set-cookie", "server", "keep-alive"} & set(reply.headers)

    run(test)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/embeddings", "/v1/messages"])
def test_what_belongs_to_the_gateway_is_taken_out_of_every_body_however_it_is_spelt(
    route: str,
) -> None:
    raw = (
        b'{"model":"tiny", "priority":-5,"messages":[{"role":"user","content":"hi","priority":1}],'
        b'"prior\\u0069ty":-9,"priority":-7,"Priority":-1,"KV_Transfer_Params":{},"max_tokens":5,'
        b'"kv_transfer_params":{"do_remote_decode":true},"\\u006bv_transfer_params":{},'
        b'"input":"hi","metadata":{"priority":"kept"},"temperature":1.50}'
    )

    async def test() -> None:
        engine = Engine()
        async with serving(engine) as gateway:
            assert (await ask(gateway.port, raw, path=route)).status == 200
            sent = engine.requests[-1]
            assert not {"priority", "kv_transfer_params"} & {name.lower() for name in sent.json}
            assert sent.json["metadata"] == {"priority": "kept"}
            assert sent.json["messages"][0]["priority"] == 1
            assert b'"temperature":1.50' in sent.body
            assert b'[{"role":"user","content":"hi","priority":1}]' in sent.body

    run(test)
