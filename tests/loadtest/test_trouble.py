"""What is wrong out there: one outcome, one clear line, and nothing hangs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from surgetank.errors import InputError
from surgetank.loadtest.client import Call, Client, Exchange, Tls
from surgetank.loadtest.outcome import outcome_of_status, reason_of_connect
from surgetank.loadtest.trouble import trouble
from surgetank.policy.request import Outcome
from surgetank.wire.http1 import chunk
from tests.loadtest import certificate
from tests.loadtest.scripted import STREAM, STREAM_HEAD, TOKEN, Engine, Script
from tests.loadtest.scripted import Exchange as Asked

CALL = Call(b"{}", timeout=5.0)
HTML = b"<!DOCTYPE html><html><h1>Sign in</h1></html>"


def answer(status: int, body: bytes, kind: bytes = b"text/html", more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n"
    return head % (status, kind, more, len(body)) + body


def json(status: int, body: bytes) -> bytes:
    return answer(status, body, b"application/json")


async def _half_stream(asked: Asked) -> None:
    await asked.write(STREAM_HEAD + chunk(TOKEN))
    asked.close()


async def _no_head(asked: Asked) -> None:
    asked.close()


async def _hang(asked: Asked) -> None:
    await asked.gone()


async def _hang_in_stream(asked: Asked) -> None:
    await asked.write(STREAM_HEAD + chunk(TOKEN))
    await asked.gone()


async def _answers_anything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    writer.close()


def line(exchange: Exchange) -> str:
    assert exchange.outcome is not None
    return trouble(exchange.outcome, exchange.status, exchange.reason)


async def sent(url: str, call: Call = CALL, tls: Tls | None = None) -> Exchange:
    client = Client(url, tls=tls)
    try:
        async with asyncio.timeout(10):
            return await client.send(call)
    finally:
        await client.close()


def ask(script: Script, call: Call = CALL) -> Exchange:
    async def run() -> Exchange:
        async with Engine(script) as engine:
            return await sent(engine.url, call)

    return uvloop.run(run())


REDIRECT = b"location: https://user:pw@engine.example/v1/chat/completions?key=secret\r\n"


@pytest.mark.parametrize(
    ("script", "outcome", "expected"),
    [
        (answer(502, HTML), Outcome.UPSTREAM_ERROR, "a web page answered instead of an engine"),
        (answer(200, HTML), Outcome.UPSTREAM_FAILED, "a web page answered instead of an engine"),
        (answer(503, HTML), Outcome.ENGINE_BUSY, "a web page answered instead of an engine"),
        (
            answer(308, b"", more=REDIRECT),
            Outcome.UPSTREAM_ERROR,
            "give the address it leads to (308 redirect to https://engine.example)",
        ),
        (answer(302, HTML), Outcome.UPSTREAM_ERROR, "(302 redirect)"),
        (
            json(404, b'{"error":{"message":"The model `x` does not exist.","code":404}}'),
            Outcome.UNKNOWN_MODEL,
            "it serves no model of that name; GET /v1/models lists those it has",
        ),
        (json(404, b'{"detail":"Not Found"}'), Outcome.UPSTREAM_ERROR, "no such path"),
        (answer(404, HTML), Outcome.UPSTREAM_ERROR, "no such path"),
        (json(405, b"{}"), Outcome.UPSTREAM_ERROR, "takes no POST"),
        (
            json(401, b'{"error":{"message":"secret","type":"auth","code":"invalid_api_key"}}'),
            Outcome.UNAUTHORIZED,
            "the key was not accepted; give a valid one (401 invalid_api_key)",
        ),
        (json(429, b"{}"), Outcome.ENGINE_BUSY, "refused (429)"),
        (json(500, b"oops"), Outcome.UPSTREAM_ERROR, "the engine answered with an error (500)"),
        (json(200, b'{"object":"list"}'), Outcome.UPSTREAM_FAILED, "the answer is no completion"),
        (_half_stream, Outcome.UPSTREAM_FAILED, "closed in the middle of a stream"),
        (STREAM_HEAD + b"zz\r\n", Outcome.UPSTREAM_FAILED, "broke HTTP's framing"),
        (STREAM_HEAD + b"0\r\n\r\n", Outcome.UPSTREAM_FAILED, "ended without [DONE]"),
        (_no_head, Outcome.UPSTREAM_FAILED, "closed before a whole answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Outcome.UPSTREAM_FAILED, "does not speak HTTP/1.1"),
        (b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n", Outcome.UPSTREAM_FAILED, "https:// instead"),
    ],
)
def test_each_trouble_has_its_line(script: Script, outcome: Outcome, expected: str) -> None:
    exchange = ask(script)
    assert exchange.outcome is outcome
    assert expected in line(exchange)
    assert "\n" not in line(exchange)
    assert "secret" not in line(exchange)
    assert "pw" not in line(exchange)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (_hang, "connected, and no answer within the timeout"),
        (_hang_in_stream, "the answer began and did not end within the timeout"),
    ],
)
def test_a_server_that_hangs_is_left_after_the_timeout(script: Script, expected: str) -> None:
    exchange = ask(script, Call(b"{}", timeout=0.1))
    assert exchange.outcome is Outcome.REQUEST_TIMEOUT
    assert expected in line(exchange)


def test_a_dead_endpoint_and_an_unknown_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = uvloop.run(sent(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert "nothing listens there; is the server up, and the port right?" in line(dead)
    unknown = uvloop.run(sent("http://no-such-host.invalid:8000"))
    assert unknown.outcome is Outcome.UPSTREAM_FAILED
    assert "no such host name" in line(unknown)


def test_a_host_that_swallows_packets_ends_with_the_timeout() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # Linux takes one connection more than the backlog; the handshake of the rest hangs.
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        exchange = uvloop.run(sent(f"http://127.0.0.1:{address[1]}", Call(b"{}", timeout=0.3)))
        for one in waiting:
            one.close()
    assert exchange.outcome is Outcome.REQUEST_TIMEOUT
    assert exchange.sent is None
    assert "no connection within the timeout" in line(exchange)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_tls_is_spoken_verified_and_explained(tmp_path: Path, runner: Callable[..., None]) -> None:
    cafile, context = certificate.made(tmp_path)

    async def run() -> None:
        async with Engine(STREAM, STREAM, STREAM, tls=context) as engine:
            trusted = Tls(cafile=str(cafile))
            for tls in (trusted, Tls(verify=False)):
                exchange = await sent(engine.url, tls=tls)
                assert exchange.outcome is Outcome.COMPLETED, exchange.reason
                assert exchange.tokens == 3
            stranger = await sent(engine.url)
            assert "certificate is not trusted; give its CA file" in line(stranger)
            other = await sent(engine.url.replace("localhost", "127.0.0.1"), tls=trusted)
            assert other.reason == "connect: certificate not trusted"
            assert len(engine.requests) == 2
        plain = await asyncio.start_server(_answers_anything, "127.0.0.1", 0)
        port = plain.sockets[0].getsockname()[1]
        wrong = await sent(f"https://localhost:{port}", tls=trusted)
        plain.close()
        assert "it does not speak TLS; http:// instead of https://?" in line(wrong)

    runner(run())


def test_a_ca_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(InputError, match=r"missing\.pem: No such file"):
        Client("https://localhost", tls=Tls(cafile=str(missing)))
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(InputError, match=r"empty\.pem: "):
        Client("https://localhost", tls=Tls(cafile=str(tmp_path / "empty.pem")))


def test_errors_of_several_addresses_joined_in_one_are_understood() -> None:
    joined = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9, 0, 0), "
        "[Errno 111] Connect call failed ('127.0.0.1', 9)"
    )
    assert reason_of_connect(joined) == "connect: refused"
    assert reason_of_connect(OSError(24, os.strerror(24))) == "connect: out of file descriptors"
    assert reason_of_connect(OSError("odd")) == "connect: OSError"


def test_a_completed_request_is_no_trouble() -> None:
    assert trouble(Outcome.COMPLETED, 200, "") == ""


@pytest.mark.parametrize("location", [None, b"", b"/v1", b"\xff\x00", b"http://[bad"])
def test_any_location_is_survived(location: bytes | None) -> None:
    assert outcome_of_status(301, b"", location=location) == (
        Outcome.UPSTREAM_ERROR,
        "301 redirect",
    )
