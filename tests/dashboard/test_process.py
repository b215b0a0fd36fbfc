"""The dashboard as users run it: a process, its source, its headers and its end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from surgetank.dashboard import start
from surgetank.dashboard.process import DashboardError

from .pulse import Pulse, serve
from .running import BOUND, dashboard, events, until


def get(address: str, path: str = "/", host: str | None = None) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(address + path)  # noqa: S310 - http
    if host is not None:
        request.add_header("host", host)
    try:
        with urllib.request.urlopen(request, timeout=BOUND) as answer:  # noqa: S310 - http
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}


def test_it_follows_a_source_second_by_second_with_its_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n", encoding="ascii")
    with (
        serve(Pulse()) as source,
        dashboard("--source", source.address, "--token-file", str(token)) as (_, address),
    ):
        body = until(address, lambda body: body["samples"] and body["samples"][-1]["flows"])
        assert body["status"]["gateway"] == "gw-1"
        assert body["samples"][-1]["flows"]["arrivals"] == sum(
            [rate for _, rate in body["samples"][-1]["flows"]["tenants"]]
        )
    assert ("/observation", "Bearer s3cret") in source.seen
    assert ("/decisions?after=0", "Bearer s3cret") in source.seen
    asked = [path for path, _ in source.seen if path.startswith("/decisions")]
    assert asked[1] == "/decisions?after=1"


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ((401, b""), "wants a --token-file (HTTP 401)"),
        ((404, b""), "has no /observation: is it the address of a gateway's admin listener?"),
        ((500, b""), "/observation answered HTTP 500"),
        ((200, b"<html>"), "/observation is not what a gateway answers"),
    ],
)
def test_a_source_of_another_kind_is_told_in_a_sentence(
    answer: tuple[int, bytes], detail: str
) -> None:
    with serve(Pulse()) as source, dashboard("--source", source.address) as (_, address):
        source.answer = answer
        body = until(address, lambda body: body["status"]["state"] == "lost")
    assert detail in body["status"]["detail"]


def test_a_lost_source_is_found_again_and_its_decisions_are_not_told_twice() -> None:
    with serve(Pulse()) as source, dashboard("--source", source.address) as (_, address):
        until(address, lambda body: body["status"]["state"] == "live")
        source.answer = (503, b"")
        until(address, lambda body: body["status"]["state"] == "lost")
        source.answer = None
        until(address, lambda body: body["status"]["state"] == "live")
        _, body = next(events(address))
        assert None in [sample["state"] for sample in body["samples"]]
        assert len(body["decisions"]) == 1


def test_a_restarted_source_numbers_its_decisions_anew() -> None:
    with serve(Pulse()) as source, dashboard("--source", source.address) as (_, address):
        until(address, lambda body: body["samples"] and body["samples"][-1]["flows"])
        source.pulse = Pulse(gateway="gw-2", start=source.pulse.now + 1)
        until(address, lambda body: body["status"]["gateway"] == "gw-2")
    first = next(
        i for i, (path, _) in enumerate(source.seen) if i > 2 and path == "/decisions?after=0"
    )
    assert first > 0


def test_a_source_without_an_autoscaler_says_so_and_stays_live() -> None:
    with serve(Pulse()) as source:
        source.autoscaler = False
        with dashboard("--source", source.address) as (_, address):
            body = until(address, lambda body: body["status"]["autoscaler"] is False)
    assert body["status"]["state"] == "live"


def test_every_answer_has_strict_headers_and_nothing_inline() -> None:
    with dashboard("--source", "http://127.0.0.1:1") as (_, address):
        for path in ("/", "/static/page.js", "/static/uplot/uPlot.iife.min.js", "/nope"):
            status, headers = get(address, path)
            assert status == (404 if path == "/nope" else 200)
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
        assert get(address, "/static/../app.py")[0] == 404
        assert get(address, "/static/%2e%2e/app.py")[0] == 404


def test_on_loopback_it_answers_to_this_machines_names_only() -> None:
    with dashboard("--source", "http://127.0.0.1:1") as (_, address):
        for host in ("localhost:80", "127.0.0.1", "[::1]:80", "[::1]"):
            assert get(address, host=host)[0] == 200
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.0.2.1:80"):
            assert get(address, "/stream", host=host)[0] == 421


def test_sigterm_ends_it_cleanly_though_a_page_is_open() -> None:
    with dashboard("--source", "http://127.0.0.1:1") as (process, address):
        stream = events(address)
        next(stream)
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND) == 0
        for _ in stream:
            pass


def test_start_gives_an_address_and_stop_ends_the_child() -> None:
    async def run() -> int:
        page = await start("http://127.0.0.1:1")
        status, _ = await asyncio.to_thread(get, page.address)
        assert status == 200
        await page.stop()
        await page.stop()
        return page.pid

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(run()), 0)


def test_start_fails_when_the_child_cannot_listen(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DashboardError, match="ended with exit code 2"):
        asyncio.run(start("http://127.0.0.1:1", host="203.0.113.1"))
    assert "--host 203.0.113.1 --port 0: cannot listen" in capfd.readouterr().err


def test_the_child_ends_when_its_parent_is_killed() -> None:
    parent = (
        "import asyncio, os, signal\n"
        "from surgetank.dashboard import start\n"
        "async def run():\n"
        "    page = await start('http://127.0.0.1:1')\n"
        "    print(page.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(run())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, timeout=BOUND, check=False
    )
    assert done.returncode == -signal.SIGKILL
    try:
        child = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return  # it has ended already
    try:
        ended, _, _ = select.select([child], [], [], BOUND)  # readable once the process has ended
    finally:
        os.close(child)
    assert ended


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "ftp://x"], "--source ftp://x: must be http://HOST:PORT"),
        (["--source", "http://x", "--port", "70000"], "--port 70000: must be 0 to 65535"),
        (["--source", "http://x", "--port", "many"], "argument --port: invalid int value: 'many'"),
        (["--source", "http://x", "--token-file", "/nope"], "--token-file /nope: No such file"),
        ([], "the following arguments are required: --source"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surgetank.dashboard", *arguments],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"surgetank: {message}")
    assert done.stderr.count("\n") == 1
