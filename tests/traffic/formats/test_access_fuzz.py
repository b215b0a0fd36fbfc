"""Any bytes give rows, bad rows or UnreadableError, however they are cut; and no prompt's text."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import UnreadableError
from tests.traffic.formats.reading_logs import SAMPLES, read, told

SAMPLE_OF = {
    "alb": "alb.log",
    "cloudfront": "cloudfront.log",
    "envoy": "envoy_default.log",
    "envoy-json": "envoy_json.log",
    "langfuse": "langfuse_observations_v2.jsonl",
    "litellm": "litellm_spendlogs.csv",
    "litellm-json": "litellm_spendlogs.csv",
    "llamacpp": "llamacpp_server.log",
    "nginx": "nginx_combined.log",
    "nginx-json": "nginx_json.log",
    "otel": "otel_genai_spans.jsonl",
    "sglang": "sglang.log",
    "sglang-json": "sglang.log",
    "tgi": "tgi.jsonl",
    "vllm": "vllm_server.log",
}
CONTENT = {name: (SAMPLES / file).read_bytes() for name, file in SAMPLE_OF.items()}
CONTENT["llamacpp"] = re.sub(rb"(?m)^(?=slot|srv)", b"0.10.000.000 I ", CONTENT["llamacpp"])
CONTENT["litellm-json"] = (
    b'{"call_type":"acompletion","startTime":"2026-11-30T02:46:41.208Z","prompt_tokens":1,'
    b'"completion_tokens":2,"status":"failure","metadata":"{\\"error_information\\":{}}"}\n'
)
CONTENT["sglang-json"] = (
    b'{"timestamp": "2026-05-20T08:02:44", "event": "request.finished", "rid": "b", "obj": {},'
    b' "out": {"meta_info": {"e2e_latency": 8.5, "finish_reason": {"type": "stop"}}}}\n'
)
NAMES = sorted(SAMPLE_OF)


def result(name: str, *pieces: bytes) -> object:
    """Everything that reading gives, as text; a refusal is a result too."""
    try:
        batch, account, reader = read(name, *pieces)
    except UnreadableError as e:
        return str(e)
    return repr((told(batch), account, reader.arrival_from))


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """A few copies of a log with some of its bytes changed, lost, doubled or swapped for others."""
    log = bytearray(content * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(log)))
        length = draw(st.sampled_from((0, 1, 1, 4, 40)))
        log[at : at + length] = draw(
            st.binary(max_size=4)
            | st.sampled_from(
                (b'"', b"\\", b"\n", b"\r\n", b"-", b"9" * 30, b"-1", b"nan", b"{", b"'")
            )
        )
    return bytes(log)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(data=st.data())
def test_a_spoilt_log_is_read_alike_in_one_piece_and_in_many(
    name: str, data: st.DataObject
) -> None:
    log = data.draw(mutated(CONTENT[name]))
    lines = re.findall(rb"[^\n]*\n|[^\n]+", log)
    cuts = data.draw(st.sets(st.integers(1, max(1, len(lines)))))
    edges = [0, *sorted(cuts), len(lines)]
    pieces = [b"".join(lines[a:b]) for a, b in pairwise(edges)]
    assert result(name, log) == result(name, *[p for p in pieces if p])


@settings(max_examples=100)
@given(st.sampled_from(NAMES), st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_are_read_or_refused(name: str, lines: list[bytes]) -> None:
    log = b"\n".join(lines)
    assert result(name, log)
    for known in registry.FORMATS:
        known.detect(log, "a.log")


OPENINGS = {
    "alb": b'https 2026-11-30T02:47:12.413006Z app/x 1.1.1.1:1 2.2.2.2:2 0 0 0 200 200 1 1 "',
    "envoy": b'[2026-11-30T02:46:41.208Z] "',
    "litellm": b"startTime,completion_tokens,api_key\n2026-11-30,",
    "nginx": b'1.1.1.1 - - [30/Nov/2026:10:47:12 +0800] "',
    "sglang": b"[2026-05-20 08:02:44] Finish: obj=",
    "tgi": b'{"timestamp":"2026-11-30T02:47:12Z","span":{"name":"generate","parameters":"',
    "vllm": b"INFO 11-30 10:47:12 [a.py:6] Received request x: params: SamplingParams(",
}


@pytest.mark.parametrize("name", sorted(OPENINGS))
def test_a_line_of_quotes_takes_no_time_that_grows_with_its_square(name: str) -> None:
    began = time.process_time()
    for unit in (b"\\'", b'\\"', b"'\"", b'""', b"\\\\'", b"'meta_info': {", b"SamplingParams("):
        line = OPENINGS[name] + unit * (150_000 // len(unit)) + b"\n"
        assert result(name, line)
        registry.by_name(name).detect(line, "a.log")
    assert time.process_time() - began < 10  # tries from each quote anew took minutes


MARK = "Zyzzyva-4711"
HOLDS_TEXT = {
    "vllm": CONTENT["vllm"].replace(b"Summarise the incident", MARK.encode()),
    "sglang": CONTENT["sglang"].replace(b"'...'", f"'{MARK}'".encode()),
    "sglang-json": CONTENT["sglang-json"].replace(
        b'"obj": {}', f'"obj": {{"text": "{MARK}"}}'.encode()
    ),
    "langfuse": CONTENT["langfuse"].replace(b'"level"', f'"input": "{MARK}", "level"'.encode()),
    "litellm-json": CONTENT["litellm-json"].replace(b"{", f'{{"messages": "{MARK}", '.encode(), 1),
    "litellm": CONTENT["litellm"].replace(b"hosted_vllm,http", f"{MARK},http".encode()),
    "otel": CONTENT["otel"].replace(
        b'"attributes":[{"key":"gen_ai.operation',
        b'"attributes":[{"key":"gen_ai.input.messages","value":{"stringValue":"'
        + MARK.encode()
        + b'"}},{"key":"gen_ai.operation',
    ),
    "nginx-json": CONTENT["nginx-json"].replace(b'"request_id"', f'"body": "{MARK}", "x"'.encode()),
    "tgi": CONTENT["tgi"].replace(b'"seed"', f'"inputs": "{MARK}", "seed"'.encode()),
    "llamacpp": b"srv  log_server_r: request:  {" + MARK.encode() + b"}\n" + CONTENT["llamacpp"],
}


@pytest.mark.parametrize("name", sorted(HOLDS_TEXT))
@settings(max_examples=20)
@given(data=st.data())
def test_the_text_of_a_prompt_is_in_no_result_even_of_a_spoilt_line(
    name: str, data: st.DataObject
) -> None:
    log = HOLDS_TEXT[name]
    assert MARK.encode() in log
    at = data.draw(st.integers(0, log.index(MARK.encode())))
    spoilt = log[:at] + data.draw(st.binary(max_size=3)) + log[at:]
    assert MARK not in str(result(name, log))
    assert MARK not in str(result(name, spoilt))
