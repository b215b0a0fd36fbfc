"""Any bytes give rows, bad rows or UnreadableError, and the same ones wherever they are cut."""

from __future__ import annotations

import re
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import ReadOptions, UnreadableError
from tests.traffic.formats.reading_logs import SAMPLES, read, told
from tests.traffic.formats.test_servegen import WINDOWS
from tests.traffic.formats.test_traces import (
    AZURE_2023,
    AZURE_2024,
    BURSTGPT_6,
    BURSTGPT_8,
    MOONCAKE,
    VIDUR,
)

RECORDS = (
    b'{"v":1,"id":"a","tenant":"t","arrived":1796006832.5,"ended":1796006833.5,"outcome":"completed"}\n'
    b'{"v":1,"kind":"fleet","t":1796006833.0,"model":"qwen","serving":2}\n'
    b'{"v":1,"id":"b","arrived":1796006833.5,"prompt_tokens":7,"outcome":"queue_full"}\n'
)
PLAIN = (
    b"arrival_time,tenant,prompt_tokens,output_tokens,latency,status\n"
    b'2026-11-30 02:47:12.5,"team, a",12,3,1.5s,200\n'
    b"1796006833.25,team-b,,NaN,,running\n"
    b'30/Nov/2026:10:47:14 +0800,"te""am\nb",5,0,250ms,failed\n'
)
LINES = (
    b'{"timestamp":"2026-11-30T02:47:12Z","usage":{"prompt_tokens":3},"user":"x","latency_ms":5}\n'
    b'{"ts":1796006833.5,"in":4,"status":"ok"}{"end_time":1796006834,"duration":0.5}\n'
    b"{'t': 1796006835, 'out': None, 'prompt': 'words'}\n[]\n"
)
LOGS = [
    ("azure", AZURE_2023),
    ("azure", AZURE_2024),
    ("burstgpt", BURSTGPT_6),
    ("burstgpt", BURSTGPT_8),
    ("vidur", VIDUR),
    ("mooncake", MOONCAKE),
    ("bailian", MOONCAKE),
    ("servegen", WINDOWS),
    ("dynamo", (SAMPLES / "dynamo_request_trace.jsonl").read_bytes()),
    ("records", RECORDS),
    ("csv", PLAIN),
    ("csv", b"t\n1\n2\n"),
    ("jsonl", LINES),
]
NAMES = sorted({name for name, _ in LOGS})


def result(name: str, *pieces: bytes) -> str:
    """Everything that reading gives, as text; a refusal is a result too."""
    try:
        batch, account, reader = read(name, *pieces, options=ReadOptions(year=2026, day_first=True))
    except UnreadableError as e:
        return str(e)
    stated = {k: v for k, v in told(batch).items() if any(x is not None for x in v)}
    return repr((stated, account, reader.arrival_from))


SPOILS = st.one_of(
    st.binary(max_size=4),
    st.sampled_from(
        [
            b'"', b"\\", b"\n", b"\r\n", b"\r", b"-", b"9" * 30, b"-1", b"nan", b"inf", b"{", b"'",
            b",", b"[", b"]", b"}", b":", b"0", b"1e308", b"null", b"true", b"\xff", b"\0", b"#",
            b"03/04/2026 10:00", b"20261130024712", b"\xef\xbb\xbf", b"1796006832000",
        ]
    ),
)  # fmt: skip


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """Some copies of a log with a few of its bytes changed, lost, doubled or swapped."""
    log = bytearray(content * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(log)))
        log[at : at + draw(st.sampled_from((0, 1, 1, 4, 40)))] = draw(SPOILS)
    return bytes(log)


@pytest.mark.parametrize(
    ("name", "content"), LOGS, ids=[f"{n}{i}" for i, (n, _) in enumerate(LOGS)]
)
@settings(max_examples=40)
@given(data=st.data())
def test_a_spoilt_log_is_read_alike_in_one_piece_and_in_many(
    name: str, content: bytes, data: st.DataObject
) -> None:
    log = data.draw(spoilt(content))
    lines = re.findall(rb"[^\n]*\n|[^\n]+", log)
    cuts = data.draw(st.sets(st.integers(1, max(1, len(lines)))))
    edges = [0, *sorted(cuts), len(lines)]
    pieces = [b"".join(lines[a:b]) for a, b in pairwise(edges)]
    assert result(name, log) == result(name, *[p for p in pieces if p])


@settings(max_examples=150)
@given(
    st.sampled_from(NAMES),
    st.lists(st.one_of(st.binary(max_size=200), SPOILS), max_size=8),
    st.sampled_from([b"\n", b"", b",", b"\r\n"]),
)
def test_any_bytes_are_read_or_refused(name: str, parts: list[bytes], between: bytes) -> None:
    log = between.join(parts)
    assert result(name, log)
    try:
        seen = registry.detect(log, "log.csv").name
    except UnreadableError as e:
        seen = str(e)
    assert "\n" not in seen  # a name, or one clear line


@pytest.mark.parametrize("name", [f.name for f in registry.FORMATS])
def test_a_giant_line_costs_no_multiple_of_itself(name: str) -> None:
    size = 16 << 20
    log = b'{"t":1,"x":"' + b"x,y " * (size // 4) + b'"}\n'
    reader = registry.by_name(name).open(ReadOptions(year=2026))
    tracemalloc.start()
    try:
        assert len(reader.feed(log)) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * size
    assert reader.account.skipped == 1
    assert "x,y" not in repr(reader.account)
