"""`surgetank.RetryTransport` under httpx and under the real openai client, on the mock engine."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tests.mockengine.client import BOUND, Replica, chat, replica

import surgetank
from surgetank.mockengine.faults import Fault, FaultKind
from surgetank.policy.backoff import RetryBudget
from surgetank.policy.retry import RetryRule

QUICK = RetryRule("quick", most=4, first=0.001, cap=0.002, longest_retry_after=1.0)
PLENTY = 1000.0
ASK: dict[str, Any] = chat(max_tokens=4)


def transport(**more: Any) -> surgetank.RetryTransport:
    settings: dict[str, Any] = {
        "rule": QUICK,
        "budget": RetryBudget(reserve=PLENTY),
        "draws": random.Random(0),
    }
    return surgetank.RetryTransport(**settings | more)


@pytest.fixture(scope="module")
def engine() -> Iterator[Replica]:
    """A replica in a loop of its own thread, for clients that block."""
    ready, found = threading.Event(), []

    async def serve() -> None:
        async with replica() as running:
            over = asyncio.Event()
            found.append((running, asyncio.get_running_loop(), over))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(BOUND)
    running, loop, over = found[0]
    yield running
    loop.call_soon_threadsafe(over.set)
    thread.join(BOUND)


@pytest.fixture
def url(engine: Replica) -> str:
    engine.engine.faults.clear()
    return f"http://127.0.0.1:{engine.port}"


def strike(engine: Replica, **settings: Any) -> None:
    engine.engine.faults.add(Fault(**settings))


def busy(engine: Replica, times: int, retry_after: str = "") -> None:
    strike(engine, kind=FaultKind.STATUS, status=429, times=times, retry_after=retry_after)


Send = Callable[[surgetank.RetryTransport, str], Any]


def _sync(retrying: surgetank.RetryTransport, url: str) -> Any:
    with httpx.Client(transport=retrying, trust_env=False) as client:
        return client.post(f"{url}/v1/chat/completions", json=ASK)


def _async(retrying: surgetank.RetryTransport, url: str) -> Any:
    async def run() -> Any:
        async with httpx.AsyncClient(transport=retrying, trust_env=False) as client:
            return await client.post(f"{url}/v1/chat/completions", json=ASK)

    return asyncio.run(run())


@pytest.mark.parametrize("send", [_sync, _async])
def test_refusals_are_tried_again_until_the_answer(send: Send, engine: Replica, url: str) -> None:
    busy(engine, 3)
    retrying = transport()
    response = send(retrying, url)
    assert response.status_code == 200
    assert response.json()["choices"]
    assert (retrying.retries, retrying.denied) == (3, 0)


@pytest.mark.parametrize("send", [_sync, _async])
def test_when_the_rule_gives_up_the_last_answer_is_returned(
    send: Send, engine: Replica, url: str
) -> None:
    busy(engine, 99)
    retrying = transport()
    assert send(retrying, url).status_code == 429
    assert retrying.retries == 4


@pytest.mark.parametrize("send", [_sync, _async])
def test_connections_that_break_are_tried_again_and_then_raise(
    send: Send, engine: Replica, url: str
) -> None:
    strike(engine, kind=FaultKind.CUT, after=0, times=2)
    assert send(transport(), url).status_code == 200
    strike(engine, kind=FaultKind.CUT, after=0, times=99)
    retrying = transport()
    with pytest.raises(httpx.RemoteProtocolError):
        send(retrying, url)
    assert retrying.retries == 4


@pytest.mark.parametrize("send", [_sync, _async])
def test_what_is_wrong_with_the_request_itself_is_not_sent_again(send: Send, url: str) -> None:
    retrying = transport()
    assert send(retrying, f"{url}/nowhere").status_code == 404
    assert retrying.retries == 0
    with pytest.raises(httpx.UnsupportedProtocol):
        send(retrying, "gopher://host")
    assert retrying.retries == 0


@pytest.mark.parametrize("send", [_sync, _async])
def test_retry_after_is_waited_for(send: Send, engine: Replica, url: str) -> None:
    busy(engine, 1, retry_after="0.2")
    begun = time.monotonic()
    assert send(transport(), url).status_code == 200
    assert time.monotonic() - begun >= 0.197


def test_a_retry_after_that_is_too_long_is_the_callers(engine: Replica, url: str) -> None:
    busy(engine, 1, retry_after="3600")
    retrying = transport()
    assert _sync(retrying, url).status_code == 429
    assert retrying.retries == 0


def test_retries_are_a_share_of_the_requests_over_all_threads(engine: Replica, url: str) -> None:
    busy(engine, 10_000)
    retrying = transport(budget=RetryBudget(0.1, window=60.0, reserve=1.0))
    with httpx.Client(transport=retrying, trust_env=False) as client, ThreadPoolExecutor(8) as pool:
        path = f"{url}/v1/chat/completions"
        answers = list(pool.map(lambda _: client.post(path, json=ASK), range(100)))
    assert {answer.status_code for answer in answers} == {429}
    assert 1 <= retrying.retries <= 11
    assert retrying.denied >= 89


def test_a_body_that_can_be_sent_only_once_is_sent_once(engine: Replica, url: str) -> None:
    busy(engine, 1)
    retrying = transport()
    with httpx.Client(transport=retrying, trust_env=False) as client:
        body = iter([b'{"model":"tiny",', b'"messages":[]}'])
        response = client.post(f"{url}/v1/chat/completions", content=body)
    assert response.status_code == 429
    assert retrying.retries == 0


def _modules() -> list[str]:
    return [name for name in ("httpx", "httpx2") if importlib.util.find_spec(name)]


@pytest.mark.parametrize("module", _modules())
def test_the_openai_client_streams_through_it(module: str, engine: Replica, url: str) -> None:
    http = importlib.import_module(module)
    busy(engine, 2)
    retrying = transport()
    with openai.OpenAI(
        api_key="k",
        base_url=f"{url}/v1",
        max_retries=0,
        http_client=http.Client(transport=retrying, trust_env=False),
    ) as client:
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=4,
                stream=True,
            )
        )
    assert any(chunk.choices and chunk.choices[0].delta.content for chunk in chunks)
    assert retrying.retries == 2


@pytest.mark.parametrize("module", _modules())
def test_the_async_openai_client_gets_its_own_errors(
    module: str, engine: Replica, url: str
) -> None:
    http = importlib.import_module(module)
    busy(engine, 99)
    retrying = transport()

    async def run() -> None:
        async with openai.AsyncOpenAI(
            api_key="k",
            base_url=f"{url}/v1",
            max_retries=0,
            http_client=http.AsyncClient(transport=retrying, trust_env=False),
        ) as client:
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4
                )

    asyncio.run(run())
    assert retrying.retries == 4


def test_without_httpx_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"surgetank\.RetryTransport needs httpx: pip install"):
        surgetank.RetryTransport()


def test_an_inner_transport_is_used_and_closed() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("x-stainless-retry-count", "-"))
        return httpx.Response(200 if len(seen) == 3 else 503)

    retrying = transport(inner=httpx.MockTransport(answer))
    with httpx.Client(transport=retrying) as client:
        assert client.get("http://anywhere").status_code == 200
    assert seen == ["-", "1", "2"]


def test_a_lone_script_gets_all_four_retries_of_the_default_budget(
    engine: Replica, url: str
) -> None:
    busy(engine, 4)
    retrying = surgetank.RetryTransport(rule=QUICK)
    assert _sync(retrying, url).status_code == 200
    assert (retrying.retries, retrying.denied) == (4, 0)
