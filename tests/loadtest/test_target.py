"""A look at the target: what would fail every request is one line, and words are counted."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surgetank.errors import InputError
from surgetank.loadtest.client import Tls
from surgetank.loadtest.prompts import COMPLETIONS, WordScale
from surgetank.loadtest.target import Found, Target, preflight, public_address
from surgetank.wire.http1 import LAST_CHUNK, chunk

from . import certificate
from .scripted import DONE, STREAM_HEAD, TOKEN

HTML = b"HTTP/1.1 %b\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n<html>no</html>"
ERROR = b'{"error":{"message":"what","type":"%b"}}'


class Endpoint:
    """An OpenAI-compatible server that counts five tokens a word and seven around them."""

    def __init__(
        self,
        models: list[dict[str, Any]] | None,
        answer: Callable[[dict[str, Any]], bytes] | None = None,
        *,
        tokenize: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._models = models
        self._answer = answer or served
        self._tokenize = tokenize
        self._tls = tls
        self.asked: list[dict[str, Any]] = []
        self.heads: list[bytes] = []

    async def look(self, model: str = "", **options: Any) -> Found:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        port = server.sockets[0].getsockname()[1]
        origin = "http://127.0.0.1" if self._tls is None else "https://localhost"
        target = Target(f"{origin}:{port}/v1", model, timeout=10, **options.pop("to", {}))
        async with server, asyncio.timeout(20):
            return await preflight(target, **options)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                writer.write(self._reply(head, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()

    def _reply(self, head: bytes, body: bytes) -> bytes:
        self.heads.append(head)
        path = head.split(b" ")[1]
        if path == b"/v1/models":
            return HTML % b"404 x" if self._models is None else whole({"data": self._models})
        said = json.loads(body) if body else {}
        if path == b"/tokenize":
            count = 7 + 5 * words_of(said) if self._tokenize else None
            return whole({"count": count}) if count else HTML % b"404 x"
        self.asked.append(said)
        return self._answer(said)


def words_of(said: dict[str, Any]) -> int:
    text = said["messages"][0]["content"] if "messages" in said else said["prompt"]
    return len(text.split(" "))


def whole(value: object, status: bytes = b"200 OK") -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def served(said: dict[str, Any], tokens: int | None = None) -> bytes:
    count = 7 + 5 * words_of(said) if tokens is None else tokens
    usage = json.dumps({"prompt_tokens": count, "completion_tokens": 1, "total_tokens": count + 1})
    event = b'data: {"choices":[],"usage":%b}\n\n' % usage.encode()
    told = chunk(event) if tokens != 0 else b""
    return STREAM_HEAD + chunk(TOKEN) + told + chunk(DONE) + LAST_CHUNK


ONE = [{"id": "m", "max_model_len": 4096}]


def test_the_only_model_is_taken_and_its_context_known() -> None:
    found = asyncio.run(Endpoint(ONE).look())
    assert found.asking.model == "m"
    assert found.context == 4096


def test_words_are_counted_by_the_usage_of_two_short_requests() -> None:
    endpoint = Endpoint(ONE)
    found = asyncio.run(endpoint.look())
    assert (found.scale, found.counted) == (WordScale(5.0, 7.0), "usage")
    assert [said["max_tokens"] for said in endpoint.asked] == [1, 1]


def test_words_are_counted_by_the_targets_own_tokenizer_when_asked_for() -> None:
    endpoint = Endpoint(ONE, lambda said: served(said, tokens=0), tokenize=True)
    found = asyncio.run(endpoint.look(count_by="tokenizer"))
    assert (found.scale, found.counted) == (WordScale(5.0, 7.0), "tokenizer")
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("way", ["usage", "tokenizer"])
def test_a_target_that_does_not_count_is_estimated_and_that_is_said(way: str) -> None:
    endpoint = Endpoint(ONE, lambda said: served(said, tokens=0))
    found = asyncio.run(endpoint.look(count_by=way))
    assert (found.scale, found.counted) == (WordScale(), "estimate")
    assert found.notes == (f"the target gave no {way} to count by: a word is taken as one token",)


def test_a_target_that_refuses_ignore_eos_is_asked_without_it() -> None:
    def picky(said: dict[str, Any]) -> bytes:
        if "ignore_eos" in said:
            return whole(ERROR % b"unknown_parameter", b"400 Bad Request")
        return served(said)

    endpoint = Endpoint(ONE, picky)
    found = asyncio.run(endpoint.look())
    assert found.asking.ignore_eos is False
    assert found.notes == ("the target takes no ignore_eos: outputs may end before their length",)
    assert asyncio.run(Endpoint(ONE, picky).look(ignore_eos=False)).notes == ()
    with pytest.raises(InputError, match="400 unknown_parameter"):
        asyncio.run(Endpoint(ONE, picky).look(ignore_eos=True))


@pytest.mark.parametrize("way", ["usage", "tokenizer"])
def test_model_context_and_words_are_asked_over_tls_too(tmp_path: Path, way: str) -> None:
    cafile, context = certificate.made(tmp_path)
    endpoint = Endpoint(ONE, tokenize=True, tls=context)
    found = asyncio.run(endpoint.look(to={"tls": Tls(str(cafile))}, count_by=way))
    assert (found.asking.model, found.context) == ("m", 4096)
    assert (found.scale, found.counted) == (WordScale(5.0, 7.0), way)
    with pytest.raises(InputError, match="certificate is not trusted"):
        asyncio.run(endpoint.look())


def test_the_key_goes_with_every_question() -> None:
    endpoint = Endpoint(ONE)
    asyncio.run(endpoint.look(to={"keys": {"": "secret"}}))
    assert len(endpoint.heads) == 3
    assert all(b"authorization: Bearer secret\r\n" in head for head in endpoint.heads)


def test_completions_are_asked_with_a_prompt() -> None:
    endpoint = Endpoint(ONE)
    found = asyncio.run(endpoint.look(to={"route": COMPLETIONS}))
    assert found.asking.route == COMPLETIONS
    assert all("prompt" in said for said in endpoint.asked)


@pytest.mark.parametrize(
    ("models", "model", "said"),
    [
        ([{"id": "a"}, {"id": "b"}], "", "serves a, b: choose one with --model"),
        ([{"id": "a"}, {"id": "b"}], "c", "--model c: http://127.0.0.1"),
        ([], "", "does not say which model it serves: give --model"),
        (None, "", "does not say which model it serves: give --model"),
    ],
)
def test_a_model_that_cannot_be_told_is_asked_for(
    models: list[dict[str, Any]] | None, model: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        asyncio.run(Endpoint(models).look(model))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (HTML % b"200 OK", "a web page answered instead of an engine"),
        (HTML % b"502 Bad Gateway", "a web page answered instead of an engine"),
        (b"HTTP/1.1 302 x\r\nlocation: http://b.example/x\r\ncontent-length: 0\r\n\r\n",
         "it redirects, which is not followed"),
        (whole(ERROR % b"invalid_api_key", b"401 x"), "the key was not accepted"),
        (whole({"error": {"message": "The model `m` does not exist", "code": 404}}, b"404 x"),
         "it serves no model of that name"),
        (whole({}), "the answer is no completion; is the path right?"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "what answered does not speak HTTP/1.1"),
        (STREAM_HEAD + chunk(TOKEN) + LAST_CHUNK, "the stream ended without [DONE]"),
        (whole(ERROR % b"overloaded", b"503 x"), "refused"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["", "m"])
def test_what_would_fail_every_request_is_one_line(answer: bytes, said: str, model: str) -> None:
    with pytest.raises(InputError, match=r"^http://127\.0\.0\.1:\d+/v1") as caught:
        asyncio.run(Endpoint(ONE, lambda _: answer).look(model))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_that_listens_and_no_such_host_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(InputError, match="nothing listens there"):
        asyncio.run(preflight(Target(f"http://127.0.0.1:{port}")))
    with pytest.raises(InputError, match="no such host name"):
        asyncio.run(preflight(Target("http://no-such-host.invalid")))


def test_a_target_is_named_without_the_secrets_of_its_address() -> None:
    target = Target("http://user:word@h:1/v1", keys={"": "secret"})
    assert target.named() == "http://h:1/v1"
    assert "secret" not in repr(target)


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("http://127.0.0.1:8000", False),
        ("http://[::1]:8000", False),
        ("http://10.3.4.5", False),
        ("http://192.168.1.9/v1", False),
        ("https://8.8.8.8/v1", True),
        ("http://no-such-host.invalid", False),
    ],
)
def test_only_an_address_that_the_world_shares_is_public(url: str, *, public: bool) -> None:
    assert (public_address(url) is not None) == public
