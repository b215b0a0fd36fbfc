"""Which format a log is: told from its content, never taken for another."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from surgetank.errors import InputError
from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import ReadOptions, UnreadableError
from surgetank.traffic.formats.registry import FORMATS, by_name, detect
from tests.traffic.formats.reading_logs import SAMPLES
from tests.traffic.formats.test_trace_fuzz import LOGS
from tests.traffic.formats.test_traces import TRACES, needs_traces

SAMPLE_FORMATS = {
    "alb.log": "alb",
    "cloudfront.log": "cloudfront",
    "dynamo_request_trace.jsonl": "dynamo",
    "envoy_default.log": "envoy",
    "envoy_json.log": "envoy-json",
    "langfuse_observations_v2.jsonl": "langfuse",
    "litellm_spendlogs.csv": "litellm",
    "llamacpp_server.log": "llamacpp",
    "nginx_combined.log": "nginx",
    "nginx_json.log": "nginx-json",
    "otel_genai_spans.jsonl": "otel",
    "sglang.log": "sglang",
    "tgi.jsonl": "tgi",
    "vllm_server.log": "vllm",
}
TRACE_FORMATS = {
    "azure_llm_2023_code.csv": "azure",
    "dynamo_request_trace.jsonl.gz": "dynamo",
    "mooncake_conversation.jsonl.gz": "mooncake",
    "mooncake_synthetic.jsonl.gz": "mooncake",
    "servegen_multimodal_mm-image.csv.gz": "servegen",
    "servegen_reason_deepseek-r1.csv.gz": "servegen",
}
GENERAL = {"csv", "jsonl"}  # they take what no other format knows


def claimants(content: bytes, filename: str = "") -> set[str]:
    """All formats that would take a log, the general ones aside."""
    return {f.name for f in FORMATS if f.detect(content, filename)} - GENERAL


def test_every_sample_has_a_format_and_every_format_its_own_name() -> None:
    assert {p.name for p in SAMPLES.iterdir()} - {"NOTE.md"} == set(SAMPLE_FORMATS)
    assert len({f.name for f in FORMATS}) == len(FORMATS)
    assert [f.name for f in FORMATS[-2:]] == ["jsonl", "csv"]  # the general ones are asked last


@pytest.mark.parametrize("name", SAMPLE_FORMATS)
@pytest.mark.parametrize("filename", ["", "log.csv", "log.jsonl", "log.txt"])
def test_a_sample_is_its_own_format_whatever_its_name_and_no_other_claims_it(
    name: str, filename: str
) -> None:
    content = (SAMPLES / name).read_bytes()
    for variant in (
        content,
        content.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + content,
        content.rstrip(b"\n"),
        content * 50,
    ):
        assert detect(variant, filename).name == SAMPLE_FORMATS[name]
        assert claimants(variant, filename) == {SAMPLE_FORMATS[name]}


@needs_traces
@pytest.mark.parametrize("name", TRACE_FORMATS)
def test_a_public_trace_is_its_own_format_from_any_head(name: str) -> None:
    content = (TRACES / name).read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    for length in (700, 4096, registry.HEAD_BYTES, 1 << 20):
        assert detect(content[:length], "data").name == TRACE_FORMATS[name]
        assert claimants(content[:length]) == {TRACE_FORMATS[name]}


@pytest.mark.parametrize(
    ("name", "content"), [log for log in LOGS if log[0] != "bailian"], ids=lambda v: str(v)[:12]
)
def test_a_log_of_a_trace_family_is_its_own_format(name: str, content: bytes) -> None:
    assert detect(content, "data").name == name
    assert claimants(content) == {name} - GENERAL


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"arrival_time\n1796006832\n", "csv"),
        (b"1796006832\n1796006833\n", "csv"),
        (b"2026-11-30 02:47:12\n2026-11-30 02:47:13\n", "csv"),
        (b"30/Nov/2026:10:47:12 +0800\n30/Nov/2026:10:47:13 +0800\n", "csv"),
        (b"1796006832;12;3\n", "csv"),
        (b"when,size\n1,2\n", "csv"),  # by the name of its file
        (b'{"t":1}\n', "jsonl"),
        (b'[\n{"t":1},\n{"t":2}\n]\n', "jsonl"),
        (b'{"t":1,"prompt":"' + b"x" * 100_000, "jsonl"),  # its first line is longer than the head
    ],
)
def test_what_no_special_format_knows_is_read_by_column_names(content: bytes, name: str) -> None:
    assert detect(content, "requests.csv").name == name


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "a git-LFS pointer"),
        (b"", "the log is empty"),
        (b"\xef\xbb\xbf \r\n\n", "the log is empty"),
        (b"\xff\xfea\0b\0", "UTF-16 text: save it as UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "binary data, which is none of the known formats"),
        (b"<html><body>502</body></html>", "HTML or XML, which is none of the known formats"),
        (b"Dear all,\nplease find below\n", "text, which is none of the known formats"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_refused_with_what_was_seen(content: bytes, seen: str) -> None:
    with pytest.raises(UnreadableError, match=seen):
        detect(content, "log")


def test_a_refusal_names_the_formats_there_are() -> None:
    with pytest.raises(
        UnreadableError, match="choose one with --format: records, dynamo, mooncake"
    ):
        detect(b"hello\n", "log")
    with pytest.raises(UnreadableError, match="format 'ngnix': must be one of records, dynamo"):
        by_name("ngnix")
    assert by_name("mooncake").name == "mooncake"


@pytest.mark.parametrize("name", ["records", "dynamo", "mooncake", "bailian", "servegen"])
def test_a_mapping_is_refused_where_the_columns_are_fixed(name: str) -> None:
    with pytest.raises(InputError, match=f"format {name} has fixed columns: name them with"):
        by_name(name).open(ReadOptions(columns={"tenant": "owner"}))


def test_this_file_is_no_log() -> None:
    with pytest.raises(UnreadableError):
        detect(Path(__file__).read_bytes(), Path(__file__).name)
