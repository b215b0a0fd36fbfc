"""A gateway under a service manager: told of each state, reloaded, and replaced without a gap."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from surgetank.cli.admin import app as admin_app
from surgetank.gateway.server import Gateway
from surgetank.gateway.spec import GatewaySpec, ReplicaSpec, UpstreamSpec
from surgetank.policy.flow import FlowControl, FlowSpec
from surgetank.policy.record import RequestRecord
from tests.gateway.harness import Engine, RawClient, ask, chat, post, run, until

TIMEOUT = 60.0
TOKEN = "t" * 40
# As a service manager does: the socket becomes descriptor 3, and the variables name this process.
BECOME = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="gateway")
os.execv(sys.executable, [sys.executable, "-m", "surgetank", *sys.argv[2:]])
"""


@contextmanager
def started(*command: str, sock: socket.socket | None = None, **environ: str) -> Iterator[Any]:
    """Run a surgetank command; yields the process, its READY line read into `.words`."""
    if sock is None:
        line = [sys.executable, "-m", "surgetank", *command]
    else:
        line = [sys.executable, "-c", BECOME, str(sock.fileno()), *command]
    with subprocess.Popen(
        line,
        pass_fds=() if sock is None else (sock.fileno(),),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environ},
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            assert words[:1] == ["READY"]
            process.words = words[1:]  # type: ignore[attr-defined]  # told along with the process
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(TIMEOUT)


def admin(url: str, *command: str) -> Any:
    done = CliRunner().invoke(
        admin_app, [*command, "--url", url, "--json"], env={"SURGETANK_ADMIN_TOKEN": TOKEN}
    )
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


class Callers:
    """Threads that ask one request after another, each on a connection of its own, until told."""

    def __init__(self, url: str, number: int) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(number)
        self._runs = [self._pool.submit(self._run) for _ in range(number)]
        self.answers: list[int | str] = []

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
            while not self._stop.wait(0.02):  # paced: the processes that start need the machine
                try:
                    reply = client.post(
                        self._url, json=chat(max_tokens=3), headers={"connection": "close"}
                    )
                    self.answers.append(
                        reply.status_code if reply.status_code == 200 else reply.text
                    )
                except httpx.HTTPError as error:
                    self.answers.append(repr(error))

    def until(self, more: int) -> None:
        """Wait for so many further answers."""
        wanted = len(self.answers) + more
        while len(self.answers) < wanted and not all(run.done() for run in self._runs):
            self._stop.wait(0.01)

    def stop(self) -> None:
        self._stop.set()
        for caller in self._runs:
            caller.result(TIMEOUT)
        self._pool.shutdown()


@pytest.mark.heavy  # four processes; what they share is tested in one below
def test_it_is_reloaded_and_replaced_while_requests_go_on(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    config, token = tmp_path / "surgetank.json", tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)

    def write(**more: Any) -> None:
        config.write_text(json.dumps({
            "admin": {"port": 0, "token_file": str(token)},
            "replicas": [{"url": engine.words[0]}],
            "records": {"path": str(records)},
            "drain_timeout": 20,
            **more,
        }))  # fmt: skip

    with (
        socket.create_server(("127.0.0.1", 0), backlog=256) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        started("engine", "--port", "0", "--model", "tiny", "--profile", "tiny-fast") as engine,
    ):
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        url = "http://{}:{}".format(*listener.getsockname())
        write()
        serve = ("serve", "-c", str(config))
        with started(*serve, sock=listener, **told) as old:
            assert manager.recv(999).startswith(b"READY=1\n")
            assert old.words[0] == url
            where = old.words[1].removeprefix("admin=")
            wait_ready(where)
            callers = Callers(url, 4)
            callers.until(20)

            write(tenants=[{"name": "default", "weight": 3}], listen={"port": 1})
            old.send_signal(signal.SIGHUP)
            assert manager.recv(999).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert manager.recv(999).startswith(b"READY=1\nSTATUS=serving")
            assert admin(where, "tenants")["tenants"][0]["weight"] == 3
            state = admin(where, "status")
            assert (state["ready"], state["configuration"]["reloads"]) == (True, 1)
            config.write_text("listen: [")
            refused = CliRunner().invoke(
                admin_app, ["reload", "--url", where, "--token-file", str(token)]
            )
            assert "stays" in str(refused.exception)
            assert manager.recv(999).startswith(b"RELOADING=1")
            assert b"STATUS=reload failed: " in manager.recv(999)
            write()

            with started(*serve, sock=listener, **told) as new:
                assert manager.recv(999).startswith(b"READY=1\n")
                wait_ready(new.words[1].removeprefix("admin="))
                callers.until(20)
                old.terminate()
                assert manager.recv(999) == b"STOPPING=1\nSTATUS=draining"
                assert old.wait(TIMEOUT) == 0
                callers.until(20)
                callers.stop()
                assert new.poll() is None
    assert set(callers.answers) == {200}
    found = [RequestRecord.from_line(line) for line in records.read_bytes().splitlines()]
    assert len(found) == len(callers.answers)
    assert len({record.id.rsplit("-", 1)[0] for record in found}) == 2  # both served


def wait_ready(admin_url: str) -> None:
    with httpx.Client(trust_env=False, timeout=TIMEOUT) as client:
        for _ in range(3000):
            if client.get(f"{admin_url}/readyz").status_code == 200:
                return
            threading.Event().wait(0.02)
    raise AssertionError("it does not become ready")


def test_two_gateways_on_one_socket_leave_nobody_without_an_answer() -> None:
    async def test() -> None:
        engine = Engine()
        await engine.start()
        records: list[str] = []
        spec = GatewaySpec(
            upstream=UpstreamSpec(health_interval=0.05),
            replicas=(ReplicaSpec(url=f"http://127.0.0.1:{engine.port}"),),
        )

        def gateway(sock: socket.socket) -> Gateway:
            flow = FlowControl(FlowSpec(), models=("tiny",))
            return Gateway(spec, flow, write_record=records.append, listener=sock.dup())

        with socket.create_server(("127.0.0.1", 0)) as sock:
            sock.setblocking(False)
            old = gateway(sock)
            port = await old.start()
            assert old.unready == ""  # it takes nobody before
            fresh, used = [await RawClient.connect(port) for _ in range(2)]
            await until(lambda: len(old.clients) == 2)
            used.send(post(chat()))
            assert (await used.reply()).status == 200
            draining = asyncio.ensure_future(old.drain())
            await until(lambda: old.draining)
            new = gateway(sock)
            assert await new.start() == port
            replies = await asyncio.gather(*(ask(port, chat()) for _ in range(20)))
            assert [reply.status for reply in replies] == [200] * 20
            assert await used.closed()
            fresh.send(post(chat()))
            last = await fresh.reply()
            assert (last.status, last.headers["connection"]) == (200, "close")
            await draining
            assert (await ask(port, chat())).status == 200
            await new.drain()
            assert len(records) == 23
        await engine.kill()

    run(test)
