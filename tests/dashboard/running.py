"""`python -m surgetank.dashboard` as a process, and its event stream."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BOUND = 30.0  # seconds


@contextmanager
def dashboard(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run it on a free port; gives the process and its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "surgetank.dashboard", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                assert selector.select(BOUND), "no line"
            word, address = process.stdout.readline().split()
            assert word == "READY"
            yield process, address
        finally:
            process.kill()


def events(address: str) -> Iterator[tuple[str, Any]]:
    """Events of the stream as (name, body). A silence of BOUND fails."""
    with urllib.request.urlopen(f"{address}/stream", timeout=BOUND) as answer:  # noqa: S310 - http
        name = ""
        for raw in answer:
            field, _, value = raw.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


def until(address: str, true_of: Callable[[Any], bool]) -> Any:
    """The first event's body that fits, of the next 20."""
    for number, (_, body) in enumerate(events(address)):
        if true_of(body):
            return body
        assert number < 20, body["status"]
    raise AssertionError("the stream ended")
