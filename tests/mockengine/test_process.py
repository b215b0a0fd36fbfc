"""The replica as users run it: a process, its READY line, its signals, and openai-python."""

from __future__ import annotations

import json
import selectors
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import openai
import pytest

from tests.cli.command import surgetank

from .client import CAPTURES, chat, events, shape

BOUND = 30.0  # seconds


def line_of(stream: IO[str]) -> str:
    """Read a line, or fail when none comes within BOUND."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        assert selector.select(BOUND), "no line"
    return stream.readline()


@contextmanager
def engine(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `surgetank engine` on a free port; gives the process and its address."""
    command = [sys.executable, "-m", "surgetank", "engine", "--profile", "tiny-fast"]
    with subprocess.Popen(
        [*command, "--model", "tiny", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            word, address = line_of(process.stdout).split()
            assert word == "READY"
            yield process, address
        finally:
            process.kill()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with engine() as (_, found):
        yield found


def post(address: str, body: Any, path: str = "/v1/chat/completions") -> Any:
    request = urllib.request.Request(address + path, json.dumps(body).encode())  # noqa: S310 - http
    return urllib.request.urlopen(request, timeout=BOUND)  # noqa: S310 - http


def test_openai_python_streams(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=7,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    words = [c.choices[0].delta.content for c in chunks if c.choices]
    assert len("".join(filter(None, words)).split()) == 7
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


def test_openai_python_gets_whole_answers_models_and_errors(address: str) -> None:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
        )
        assert answer.choices[0].message.content
        text = client.completions.create(model="tiny", prompt="hello", max_tokens=5)
        assert text.choices[0].text
        assert [m.id for m in client.models.list()] == ["tiny"]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.completions.create(model="nope", prompt="hello")


def test_sigterm_ends_a_stream_with_abort_and_done_as_captured() -> None:
    with engine() as (process, address):
        body = chat(stream=True, max_tokens=1900, ignore_eos=True)
        with post(address, body) as answer:
            first = answer.readline()
            process.send_signal(signal.SIGTERM)
            got = events(first + answer.read())
        assert process.wait(BOUND) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    tail = (CAPTURES / "sigterm_midstream_tail.txt").read_text(encoding="utf-8")
    data = [line for line in tail.splitlines() if line.startswith("data:")]
    assert shape(got[-3:]) == shape(events("\n\n".join(data).encode()))
    assert got[-1] == "[DONE]"
    assert got[-2]["choices"][0]["finish_reason"] == "abort"


def test_die_ends_the_process_in_the_middle_of_a_stream() -> None:
    with engine("--fault", "die:after=5") as (process, address):
        host, _, port = address.removeprefix("http://").rpartition(":")
        body = json.dumps(chat(stream=True, max_tokens=50, ignore_eos=True)).encode()
        with socket.create_connection((host, int(port)), timeout=BOUND) as raw:
            raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\n")
            raw.sendall(b"content-length: %d\r\n\r\n%b" % (len(body), body))
            answer = b""
            while data := raw.recv(65536):
                answer += data
        assert answer.count(b'"token_ids"') == 5
        assert b"[DONE]" not in answer
        assert process.wait(BOUND) == 1


def test_loading_refuses_until_it_is_ready() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.monotonic()
    with engine("--port", str(port), "--cold-start", "5", "--speed", "10") as (_, address):
        assert time.monotonic() - began >= 0.5  # 5 s of loading at ten times the speed
        with urllib.request.urlopen(f"{address}/health", timeout=BOUND) as answer:  # noqa: S310 - http
            assert answer.status == 200


def test_sigterm_while_loading_ends_at_once() -> None:
    command = [sys.executable, "-m", "surgetank", "engine", "--cold-start", "1000"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([*command, "--loading", "503", "--port", str(port)]) as process:
        try:
            give_up = time.monotonic() + BOUND
            while time.monotonic() < give_up:
                try:
                    with pytest.raises(urllib.error.HTTPError) as raised:
                        post(f"http://127.0.0.1:{port}", chat())
                except urllib.error.URLError:
                    continue  # it has not opened its port yet
                break
            with raised.value as error:
                assert error.code == 503
                assert json.loads(error.read())["error"]["message"] == "Loading model"
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "nope"], "surgetank: no engine profile `nope`: `surgetank profiles` lists"),
        (["--fault", "cute"], "surgetank: fault kind 'cute': must be one of"),
        (["--speed", "0"], "surgetank: --speed 0.0: must be > 0"),
        (["--cold-start", "inf"], "surgetank: --cold-start inf: must be finite"),
        (["--host", "203.0.113.1"], "surgetank: --host 203.0.113.1 --port 0: cannot listen"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    done = surgetank("engine", "--port", "0", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
