"""Replicas behind https: who they are is checked, for requests and health checks alike."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from surgetank.errors import ConfigError
from tests.gateway.harness import WHOLE, Engine, ask, chat, run, serving, until
from tests.loadtest.certificate import made

Made = tuple[Path, ssl.SSLContext]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("tls"))


def test_an_https_replica_is_served_and_its_streams_too(certificate: Made) -> None:
    file, context = certificate
    context.set_alpn_protocols(["h2", "http/1.1"])

    async def test() -> None:
        engine = Engine(tls=context)
        settings = {"ca_file": str(file), "server_name": "localhost"}
        async with serving(engine, replica=settings) as gateway:
            assert (await ask(gateway.port, chat())).json == WHOLE
            assert (await ask(gateway.port, chat(stream=True))).events[-1] == "[DONE]"
            body = {"model": "tiny", "input": "hello"}
            assert (await ask(gateway.port, body, path="/v1/embeddings")).status == 200
            big = await ask(gateway.port, chat(user="u" * 3_000_000))
            assert big.status == 200
            assert engine.protocols == {"http/1.1"}
            (target,) = gateway.gateway.fleet
            assert len(target.pool.open) == 1  # kept, over TLS too

    run(test)


@pytest.mark.parametrize(
    "settings",
    [
        {},  # the system's authorities do not know it
        {"ca_file": "it", "server_name": "another.example"},
        {"ca_file": "it"},  # its name is not 127.0.0.1
    ],
)
def test_who_cannot_prove_its_name_gets_no_request(
    certificate: Made, settings: dict[str, Any]
) -> None:
    file, context = certificate
    if "ca_file" in settings:
        settings = {**settings, "ca_file": str(file)}

    async def test() -> None:
        engine = Engine(tls=context)
        async with serving(engine, replica=settings, wait_ready=False) as gateway:
            (target,) = gateway.gateway.fleet
            await until(lambda: target.health is not None)
            assert target.health == "down"
            assert (await ask(gateway.port, chat())).status == 503
            with pytest.raises(ssl.SSLError):
                await target.pool.connect()
        assert engine.requests == []

    run(test)


def test_without_verification_any_certificate_will_do(certificate: Made) -> None:
    async def test() -> None:
        engine = Engine(tls=certificate[1])
        async with serving(engine, replica={"verify_certificate": False}) as gateway:
            assert (await ask(gateway.port, chat())).status == 200

    run(test)


def test_a_server_that_speaks_no_tls_is_unreachable_and_hangs_nobody(certificate: Made) -> None:
    async def test() -> None:
        plain = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
        port = plain.sockets[0].getsockname()[1]
        async with serving(Engine()) as gateway:
            fleet = gateway.gateway.fleet
            fleet.add("plain", f"https://127.0.0.1:{port}", "tiny")
            target = fleet.target("plain")
            assert target is not None
            await until(lambda: target.health is not None)
            assert target.health == "down"
            assert certificate
        plain.close()

    run(test)


def test_a_file_of_authorities_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        settings = {"ca_file": str(tmp_path / "none.pem")}
        engine = Engine(scheme="https")
        with pytest.raises(ConfigError, match=r"ca_file = .*none\.pem: No such file"):
            async with serving(engine, replica=settings):
                pass
        await engine.kill()

    run(test)
