"""Each sample of a real tool's log says what its lines state; expected values are by hand."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import ReadOptions, UnreadableError
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import SAMPLES, read, told

DONE, REFUSED, LEFT = int(Ended.COMPLETED), int(Ended.REFUSED), int(Ended.ABANDONED)
# 2026-11-30T02:46:41.208Z and 02:46:43.001Z, arrivals of the same two requests in most samples
FIRST, SECOND = 1796006801.208, 1796006803.001

EXPECTED: list[tuple[str, str, dict[str, list[object]], dict[str, int], str]] = [
    (
        "alb.log",
        "alb",
        {
            "arrived": [FIRST, SECOND],
            "duration": [31.205006, 60.0],
            "ttft": [2.118, None],
            "ended": [DONE, REFUSED],
        },
        {},
        "start",
    ),
    (
        "cloudfront.log",
        "cloudfront",
        {"arrived": [1796006800.796], "duration": [31.204], "ttft": [2.118], "ended": [DONE]},
        {"comment": 2},
        "end - duration",
    ),
    (
        "envoy_default.log",
        "envoy",
        {
            "arrived": [FIRST, SECOND],
            "duration": [31.204, 0.0],
            "ttft": [2.118, None],
            "ended": [DONE, REFUSED],
        },
        {},
        "start",
    ),
    (
        "envoy_json.log",
        "envoy-json",
        {"arrived": [FIRST], "duration": [31.204], "ttft": [2.118], "ended": [DONE]},
        {},
        "start",
    ),
    (
        "langfuse_observations_v2.jsonl",
        "langfuse",
        {
            "arrived": [FIRST],
            "duration": [31.204],
            "ttft": [2.118],
            "prompt_tokens": [1100],
            "output_tokens": [220],
            "ended": [DONE],
            "tenant": ["u-17"],
            "model": ["qwen3-32b"],
            "session": ["s-9"],
        },
        {"observation that is no generation": 1},
        "start",
    ),
    (
        "litellm_spendlogs.csv",
        "litellm",
        {
            "arrived": [FIRST, SECOND],
            "duration": [31.204, 0.003],
            "ttft": [2.118, None],
            "prompt_tokens": [1100, None],  # a refused prompt was not counted: 0 is no length
            "output_tokens": [220, 0],
            "ended": [DONE, REFUSED],
            "tenant": ["team-a", "team-a"],
            "model": ["qwen3-32b", "qwen3-32b"],
        },
        {"header": 1},
        "start",
    ),
    (
        "nginx_combined.log",
        "nginx",
        {
            "arrived": [1796006832.0, 1796006832.0],
            "ended": [DONE, REFUSED],
            "tenant": ["team-a", "team-a"],
        },
        {"not HTTP": 1},
        "end",
    ),
    (
        "nginx_json.log",
        "nginx-json",
        {
            "arrived": [FIRST, 1796006772.512],
            "duration": [31.204, 60.0],
            "ttft": [2.118, None],
            "ended": [DONE, LEFT],
            "tenant": ["team-a", None],
        },
        {},
        "end - duration",
    ),
    (
        "otel_genai_spans.jsonl",
        "otel",
        {
            "arrived": [FIRST, SECOND],
            "duration": [31.204, 0.003],
            "ttft": [2.118, None],
            "prompt_tokens": [1100, 1100],
            "output_tokens": [220, 0],
            "ended": [DONE, REFUSED],
            "tenant": ["support-bot", None],
            "model": ["qwen3-32b", None],
            "session": ["conv_5j66", None],
        },
        {},
        "start",
    ),
    (
        "sglang.log",
        "sglang",
        {
            "arrived": [1779264155.488],  # 2026-05-20T08:02:44Z - 8.512 s
            "duration": [8.512],
            "prompt_tokens": [320],
            "output_tokens": [220],
            "cached_tokens": [80],
            "max_tokens": [32000],
            "ended": [DONE],
        },
        {"engine statistics": 2},
        "end - duration",
    ),
    (
        "tgi.jsonl",
        "tgi",
        {"arrived": [1796006801.208345], "duration": [31.204], "ended": [DONE]},
        {},
        "end - duration",
    ),
    (
        "vllm_server.log",
        "vllm",
        {"arrived": [1796006832.0], "max_tokens": [512]},
        {"access line without a time": 1, "engine statistics": 1},
        "start",
    ),
]


def same(found: object, expected: object) -> bool:
    """Compare; a stamp of 1.8e9 s is held to 0.24 us, so differences of stamps are as well."""
    if isinstance(found, float) and isinstance(expected, float):
        return abs(found - expected) < 1e-6
    return found == expected


@pytest.mark.parametrize(
    ("file", "name", "columns", "ignored", "arrival_from"), EXPECTED, ids=[e[0] for e in EXPECTED]
)
def test_a_sample_says_what_its_lines_state(
    file: str,
    name: str,
    columns: dict[str, list[object]],
    ignored: dict[str, int],
    arrival_from: str,
) -> None:
    zone = ReadOptions(year=2026, timezone=timezone(timedelta(hours=8)))
    options = zone if name == "vllm" else ReadOptions()  # that server ran eight hours east
    batch, account, reader = read(name, (SAMPLES / file).read_bytes(), options=options)
    found = told(batch)
    assert found.keys() == columns.keys()
    for column, values in columns.items():
        assert len(found[column]) == len(values)
        assert all(map(same, found[column], values)), (column, found[column])
    assert account.rows == len(batch)
    assert (account.skipped, dict(account.ignored)) == (0, ignored)
    assert reader.arrival_from == arrival_from


@pytest.mark.parametrize(("file", "name"), [(e[0], e[1]) for e in EXPECTED])
def test_a_sample_is_detected_as_its_own_format(file: str, name: str) -> None:
    assert registry.detect((SAMPLES / file).read_bytes(), file).name == name


def test_a_llama_cpp_log_without_stamps_is_refused_with_the_cure() -> None:
    content = (SAMPLES / "llamacpp_server.log").read_bytes()
    assert registry.detect(content, "llamacpp_server.log").name == "llamacpp"
    with pytest.raises(UnreadableError, match="--log-timestamps"):
        read("llamacpp", content)


@pytest.mark.parametrize(("file", "name"), [(e[0], e[1]) for e in EXPECTED])
@pytest.mark.parametrize("change", ["crlf", "bom", "no final newline", "blank last line"])
def test_line_ends_and_byte_order_marks_change_nothing(file: str, name: str, change: str) -> None:
    content = (SAMPLES / file).read_bytes().rstrip(b"\n") + b"\n"
    plain = told(read(name, content)[0])
    changed = {
        "crlf": content.replace(b"\n", b"\r\n"),
        "bom": b"\xef\xbb\xbf" + content,
        "no final newline": content.rstrip(b"\n"),
        "blank last line": content + b"\n  \n",
    }[change]
    assert registry.detect(changed, file).name == name
    batch, account, _ = read(name, changed)
    assert told(batch) == plain
    assert account.skipped == 0
