"""Captured answers of real engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from surgetank.wire.http1 import ResponseParser

CAPTURES = Path(__file__).parent.parent / "data" / "captures"


@pytest.fixture(scope="session")
def capture() -> Callable[[str], bytes]:
    """Give the decoded body of a captured answer."""

    def body(name: str) -> bytes:
        data = (CAPTURES / name).read_bytes()
        head, _, rest = data.partition(b"\r\n\r\n")
        if name.endswith("_tail.txt"):
            data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n:" + data
        elif b"chunked" in head and rest.startswith(b"data:"):
            return rest
        parser = ResponseParser()
        decoded = parser.receive(data)
        parser.eof()
        return decoded.removeprefix(b":")

    return body


@pytest.fixture(scope="session")
def captures_of_pairs() -> Callable[[str], tuple[bytes, bytes]]:
    """Give llama.cpp's answers to one request, without and with stream."""

    def pair(name: str) -> tuple[bytes, bytes]:
        base = CAPTURES / "llamacpp" / name
        return base.with_suffix(".json").read_bytes(), base.with_suffix(".sse").read_bytes()

    return pair
