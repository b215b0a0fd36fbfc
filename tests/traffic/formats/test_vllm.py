"""vLLM's log: arrivals without a year, and prompts that look like log lines."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import ReadOptions, UnreadableError
from tests.traffic.formats.reading_logs import read, told

NOV_30 = 1796035632.0  # 2026-11-30T10:47:12Z


def received(
    stamp: str = "11-30 10:47:12", prompt: str = "'Hello'", params: str = "max_tokens=512"
) -> str:
    return (
        f"(APIServer pid=1) INFO {stamp} [logger.py:63] Received request chatcmpl-1: "
        f"prompt: {prompt}, params: SamplingParams(n=1, {params}, min_tokens=0), "
        "prompt_token_ids: None, prompt_embeds shape: None, lora_request: None.\n"
    )


def test_a_stamp_is_in_the_year_and_zone_of_the_options() -> None:
    east = ReadOptions(year=2026, timezone=timezone(timedelta(hours=8)))
    batch, account, _ = read("vllm", received().encode(), options=east)
    assert batch.arrived.tolist() == [NOV_30 - 8 * 3600]
    assert any("year" in note for note in account.notes)


def test_without_a_year_only_differences_hold_and_that_is_said() -> None:
    log = (received("02-28 23:59:59") + received("03-01 00:00:00")).encode()
    batch, account, _ = read("vllm", log, options=ReadOptions())
    assert batch.arrived[1] - batch.arrived[0] == 86401  # 1972 has a 29 February
    assert any("only differences hold" in note for note in account.notes)


def test_a_log_goes_on_past_the_end_of_a_year() -> None:
    log = (
        received("12-31 23:59:58") + received("01-01 00:00:01") + received("01-01 00:00:01")
    ).encode()
    batch, _, _ = read("vllm", log)
    assert (batch.arrived - batch.arrived[0]).tolist() == [0, 3, 3]


def test_a_date_that_the_year_has_not_is_a_bad_row() -> None:
    _, account, _ = read("vllm", (received("02-29 10:00:00") + received()).encode())
    assert [(b.line, b.reason) for b in account.bad] == [(1, "no such date in 2026")]


FORGED = (
    "INFO 11-30 10:47:12 [logger.py:63] Received request forged: prompt: 'x', "
    "params: SamplingParams(max_tokens=9)"
)


@pytest.mark.parametrize(
    "prompt",
    [
        "'text, params: SamplingParams(max_tokens=9)'",
        repr("a\n" + FORGED + "\n'quoted' \\"),
        '"it\'s \\" , params: SamplingParams(max_tokens=9)"',
        "None",
        "'" + "long " * 20_000 + "'",
    ],
)
def test_a_prompt_never_passes_for_parameters_or_a_line(prompt: str) -> None:
    batch, account, _ = read("vllm", received(prompt=prompt).encode())
    assert told(batch) == {"arrived": [NOV_30], "max_tokens": [512]}
    assert account.rows == 1


def test_raw_newlines_in_a_prompt_hide_nothing_and_forge_nothing() -> None:
    prompt = "'first\n(APIServer pid=1) " + FORGED.split(", params", maxsplit=1)[0] + "\nlast'"
    log = (received(prompt=prompt) + received("11-30 10:47:13")).encode()
    batch, account, _ = read("vllm", log)
    assert batch.arrived.tolist() == [NOV_30, NOV_30 + 1]
    assert told(batch)["max_tokens"] == [512, 512]
    assert account.ignored == {"prompt text": 2}
    cut = log.index(b"\n") + 1
    assert told(read("vllm", log[:cut], log[cut:])[0]) == told(batch)


def test_a_stop_string_of_the_client_is_no_bound() -> None:
    params = "stop=['max_tokens=9'], max_tokens=512"
    assert told(read("vllm", received(params=params).encode())[0])["max_tokens"] == [512]


def test_without_a_bound_it_is_unknown() -> None:
    log = (received(params="max_tokens=None") + received()).encode()
    assert told(read("vllm", log)[0])["max_tokens"] == [None, 512]


def test_prompt_token_ids_give_the_prompts_length() -> None:
    log = received().replace("prompt_token_ids: None", "prompt_token_ids: [1, 22557, 3]")
    assert told(read("vllm", log.encode())[0])["prompt_tokens"] == [3]


OTHER_VERSIONS = """\
INFO 11-30 10:47:12 logger.py:37] Received request cmpl-1: prompt: 'x', params: P
(APIServer pid=7) INFO 11-30 10:47:12 [logger.py:48] Received request cmpl-1: params: P
\x1b[32m(APIServer pid=7)\x1b[0;0m INFO 11-30 10:47:12 [v1/log.py:48] Received request c: params: P
""".replace("P\n", "SamplingParams(n=1, max_tokens=512), lora_request: None.\n")


@pytest.mark.parametrize("line", OTHER_VERSIONS.splitlines())
def test_other_versions_spell_it_otherwise(line: str) -> None:
    assert registry.detect(line.encode()).name == "vllm"
    batch, _, _ = read("vllm", line.encode())
    assert told(batch) == {"arrived": [NOV_30], "max_tokens": [512]}


@pytest.mark.parametrize(
    "around",
    [
        "2025-03-04T05:06:07.125Z {}",
        '{{"log":"\\u001b[32m{}\\u001b[0m\\n","time":"2025-03-04T05:06:07.125Z"}}',
    ],
)
def test_a_collectors_stamp_is_better_than_one_without_year_and_zone(around: str) -> None:
    log = around.format(received().strip()) + "\n"
    assert registry.detect(log.encode()).name == "vllm"
    batch, account, _ = read("vllm", log.encode(), options=ReadOptions())
    assert batch.arrived.tolist() == [1741064767.125]
    assert account.notes == []


def test_a_log_without_request_lines_is_refused_with_the_cure() -> None:
    line = b'INFO:     10.42.3.17:54812 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    with pytest.raises(UnreadableError, match="--enable-log-requests"):
        read("vllm", line)
