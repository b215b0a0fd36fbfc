"""The load client against real sockets: what it stamps, and how each call ends."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from surgetank.errors import InputError
from surgetank.loadtest.client import Call, Client
from surgetank.loadtest.client import Exchange as Result
from surgetank.policy.request import Outcome
from surgetank.wire.http1 import LAST_CHUNK, chunk
from tests.loadtest.scripted import (
    DONE,
    STREAM,
    STREAM_HEAD,
    TOKEN,
    USAGE,
    Engine,
    Exchange,
    Script,
    capture,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]
CALL = Call(b'{"model":"tiny"}')


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


async def send(*scripts: Script, call: Call = CALL) -> Result:
    async with Engine(*scripts) as engine:
        client = Client(engine.url)
        try:
            return await client.send(call)
        finally:
            await client.close()


def test_a_whole_stream_is_stamped_in_order_and_counted_by_its_usage(run: Run) -> None:
    result: Result = run(send(STREAM))
    assert result.outcome is Outcome.COMPLETED
    assert result.status == 200
    assert result.tokens == 3
    assert result.usage is not None
    assert result.usage.prompt_tokens == 7
    stamps = [result.begun, result.sent, result.first_byte, result.first_token, result.ended]
    known = [stamp for stamp in stamps if stamp is not None]
    assert len(known) == 5
    assert known == sorted(known)


def test_without_usage_tokens_are_counted_from_the_stream(run: Run) -> None:
    result = run(send(STREAM_HEAD + chunk(TOKEN) * 2 + chunk(DONE) + LAST_CHUNK))
    assert result.outcome is Outcome.COMPLETED
    assert result.tokens == 2


def test_the_first_token_is_the_first_content_and_not_the_first_byte(run: Run) -> None:
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'

    async def both() -> tuple[Result, float]:
        asked = asyncio.Event()
        stamped = 0.0

        async def slowly(exchange: Exchange) -> None:
            nonlocal stamped
            await exchange.write(STREAM_HEAD + chunk(role))
            await asked.wait()
            stamped = asyncio.get_running_loop().time()
            await exchange.write(chunk(TOKEN) + chunk(DONE) + LAST_CHUNK)

        async with Engine(slowly) as engine:
            client = Client(engine.url)
            flight = client.begin(CALL)
            while not engine.requests:  # noqa: ASYNC110 (the server side has no event to give)
                await asyncio.sleep(0)
            asked.set()
            result = await flight
            await client.close()
        return result, stamped

    result, stamped = run(both())
    assert result.first_token >= stamped - 0.002  # uvloop's clock counts whole milliseconds


@pytest.mark.parametrize(
    ("name", "outcome", "tokens"),
    [
        ("llamacpp_chat_stream.http", Outcome.COMPLETED, 6),
        ("llamacpp_chat_nonstream.http", Outcome.COMPLETED, 6),
        ("vllm_chat_stream.http", Outcome.COMPLETED, None),
        ("vllm_burst_overflow_200_stream.http", Outcome.UPSTREAM_ERROR, 0),
        ("vllm_queue_full_503_stream.http", Outcome.ENGINE_BUSY, 0),
        ("llamacpp_oversize_prompt_stream.http", Outcome.TOO_LARGE, 0),
    ],
)
def test_a_real_engines_answer_gets_its_one_outcome(
    run: Run, name: str, outcome: Outcome, tokens: int | None
) -> None:
    result = run(send(capture(name)))
    assert result.outcome is outcome
    assert (result.first_token is not None) == (outcome is Outcome.COMPLETED)
    if tokens is not None:
        assert result.tokens == tokens


def test_the_reason_never_quotes_the_engines_message(run: Run) -> None:
    body = b'{"error":{"message":"secret prompt","type":"odd","code":400}}'
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(body)
    result = run(send(head + body))
    assert result.outcome is Outcome.UPSTREAM_ERROR
    assert result.reason == "400 odd"


def test_a_surgetank_refusal_keeps_its_own_outcome(run: Run) -> None:
    body = b'{"error":{"message":"m","type":"rate_limit_error","code":"queue_timeout"}}'
    head = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n" % len(body)
    result = run(send(head + body))
    assert result.outcome is Outcome.QUEUE_TIMEOUT
    assert result.status == 429


async def _close(exchange: Exchange) -> None:
    exchange.close()


async def _one_token_then_close(exchange: Exchange) -> None:
    await exchange.write(STREAM_HEAD + chunk(TOKEN) + chunk(TOKEN)[:20])
    exchange.close()


_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "


@pytest.mark.parametrize(
    ("script", "tokens"),
    [
        (STREAM_HEAD + chunk(TOKEN) + chunk(USAGE) + LAST_CHUNK, 3),
        (STREAM_HEAD + LAST_CHUNK, 0),
        (_one_token_then_close, 1),
        (_close, 0),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 0),
        (_JSON_HEAD + b"2\r\n\r\n{}", 0),
    ],
    ids=["no [DONE]", "empty stream", "cut in a chunk", "closed", "not HTTP", "no completion"],
)
def test_an_answer_that_is_not_whole_is_a_failure(run: Run, script: Script, tokens: int) -> None:
    result = run(send(script))
    assert result.outcome is Outcome.UPSTREAM_FAILED
    assert result.tokens == tokens


def test_an_error_event_is_a_failure_even_after_tokens_and_with_done(run: Run) -> None:
    error = b'data: {"error":{"code":500,"message":"Context size","type":"server_error"}}\n\n'
    result = run(send(STREAM_HEAD + chunk(TOKEN) + chunk(error) + chunk(DONE) + LAST_CHUNK))
    assert result.outcome is Outcome.UPSTREAM_ERROR
    assert result.reason == "500 server_error"
    assert result.tokens == 1


def test_nobody_listening_is_a_failure_that_says_so(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = run(Client(url).send(CALL))
    assert result.outcome is Outcome.UPSTREAM_FAILED
    assert result.reason == "connect: refused"


def test_a_connection_is_used_again_without_delay_and_after_an_error(run: Run) -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"

    async def thrice() -> tuple[int, list[Outcome | None], int]:
        async with Engine(STREAM, refusal, STREAM) as engine:
            client = Client(engine.url)
            outcomes = [(await client.send(CALL)).outcome for _ in range(3)]
            (connection,) = client._pool.open
            assert connection._transport is not None
            sock = connection._transport.get_extra_info("socket")
            no_delay = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await client.close()
            return engine.connections, outcomes, no_delay

    connections, outcomes, no_delay = run(thrice())
    assert connections == 1
    assert outcomes == [Outcome.COMPLETED, Outcome.ENGINE_BUSY, Outcome.COMPLETED]
    assert no_delay


def test_a_kept_connection_that_was_dead_is_replaced_by_a_new_one(run: Run) -> None:
    async def run_it() -> tuple[Result, int]:
        async with Engine(STREAM, STREAM, _close, STREAM) as engine:
            client = Client(engine.url)
            # Two are kept. The second may be as dead as the first, so it is not tried.
            await asyncio.gather(client.begin(CALL), client.begin(CALL))
            result = await client.send(CALL)
            await client.close()
            return result, engine.connections

    result, connections = run(run_it())
    assert (result.outcome, result.attempts) == (Outcome.COMPLETED, 2)
    assert connections == 3


def test_a_new_connection_that_is_closed_unanswered_is_not_tried_again(run: Run) -> None:
    result = run(send(_close, STREAM))
    assert (result.outcome, result.attempts) == (Outcome.UPSTREAM_FAILED, 1)


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (Call(b"{}", timeout=0.05), Outcome.REQUEST_TIMEOUT),
        (Call(b"{}", abandon_after=0.05), Outcome.ABANDONED),
    ],
)
def test_a_client_that_has_waited_enough_hangs_up_and_the_server_sees_it(
    run: Run, call: Call, outcome: Outcome
) -> None:
    async def stall() -> Result:
        hung_up = asyncio.Event()

        async def one_token(exchange: Exchange) -> None:
            await exchange.write(STREAM_HEAD + chunk(TOKEN))
            await exchange.gone()
            hung_up.set()

        async with Engine(one_token) as engine:
            client = Client(engine.url)
            result = await client.send(call)
            async with asyncio.timeout(5):
                await hung_up.wait()
            assert client.connections == 0
        return result

    result: Result = run(stall())
    assert result.outcome is outcome
    assert result.first_token is not None
    assert result.tokens == 1
    assert result.ended is not None
    assert 0.045 <= result.ended - result.begun < 5


def test_closing_the_client_ends_what_is_in_flight_as_abandoned(run: Run) -> None:
    async def close_early() -> list[Result]:
        async def stall(exchange: Exchange) -> None:
            await exchange.gone()

        async with Engine(stall) as engine:
            client = Client(engine.url)
            flights = [client.begin(CALL) for _ in range(3)]
            while len(engine.requests) < 2:  # noqa: ASYNC110 (the server side has no event)
                await asyncio.sleep(0)
            await client.close()
            assert client.connections == 0
            return [await flight for flight in flights]

    results = run(close_early())
    assert {result.outcome for result in results} == {Outcome.ABANDONED}


def test_the_key_goes_out_as_a_bearer_and_is_never_shown(run: Run) -> None:
    async def look() -> bytes:
        async with Engine(STREAM) as engine:
            client = Client(engine.url + "/prefix/")
            await client.send(Call(b"{}", key="sk-hidden"))
            await client.close()
            return engine.requests[0].head

    head = run(look())
    assert head.startswith(b"POST /prefix/v1/chat/completions HTTP/1.1\r\n")
    assert b"authorization: Bearer sk-hidden\r\n" in head.lower().replace(b"bearer", b"Bearer")
    assert "hidden" not in repr(Call(b"hidden", key="sk-hidden"))


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_base_url_as_sdks_have_it_is_understood(run: Run, ending: str) -> None:
    async def look() -> bytes:
        async with Engine(STREAM) as engine:
            client = Client(engine.url + ending)
            await client.send(CALL)
            await client.close()
            return engine.requests[0].head

    assert run(look()).startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "url", ["ftp://host", "localhost:8000", "http://", "http://h:port", "http://[bad"]
)
def test_an_address_it_cannot_use_is_refused_by_name(url: str) -> None:
    with pytest.raises(InputError, match=re.escape(url)):
        Client(url)


@pytest.mark.parametrize(
    ("second", "tokens"),
    [
        (chunk(TOKEN.replace(b"word", b"other words")), 4),
        (chunk(TOKEN.replace(b"word", b'a\\"b')), 4),
        (chunk(TOKEN.replace(b"word", b"")), 4),
        (chunk(TOKEN + TOKEN), 5),
        (chunk(TOKEN) + chunk(TOKEN), 5),
        (chunk(TOKEN)[:30], 4),
        (chunk(TOKEN.replace(b"}}]}", b'},"finish_reason":"stop"}]}')), 4),
        (chunk(b": ping\n\n"), 3),
        (b"0" + chunk(TOKEN), 4),
    ],
)
def test_chunks_like_the_last_one_and_unlike_it_are_counted_alike(
    run: Run, second: bytes, tokens: int
) -> None:
    async def test() -> Result:
        async def by_reads(exchange: Exchange) -> None:
            whole = chunk(TOKEN) if second == chunk(TOKEN)[:30] else b""
            rest = whole[30:] if whole else b""
            for piece in (STREAM_HEAD, chunk(TOKEN), chunk(TOKEN), second, rest + chunk(TOKEN)):
                await exchange.write(piece)
                await asyncio.sleep(0.005)
            await exchange.write(chunk(DONE) + LAST_CHUNK)

        async with Engine(by_reads) as engine:
            client = Client(engine.url)
            result = await client.send(CALL)
            await client.close()
            return result

    result = run(test())
    assert result.outcome is Outcome.COMPLETED, result.reason
    assert result.tokens == tokens
    assert sum(result.gaps.values()) == tokens - 1


@pytest.mark.parametrize(
    "broken",
    [
        chunk(TOKEN).replace(b"\r\ndata", b"f\r\ndata"),
        chunk(TOKEN)[:-2] + b"xx",
        b"zz" + chunk(TOKEN)[2:],
    ],
)
def test_a_chunk_that_lies_about_its_size_is_still_seen(run: Run, broken: bytes) -> None:
    async def by_reads(exchange: Exchange) -> None:
        end = chunk(DONE) + LAST_CHUNK  # taken for whole, it would complete
        for piece in (STREAM_HEAD, chunk(TOKEN), chunk(TOKEN), broken, end):
            await exchange.write(piece)
            await asyncio.sleep(0.005)
        exchange.close()

    result = run(send(by_reads))
    assert result.outcome is Outcome.UPSTREAM_FAILED
