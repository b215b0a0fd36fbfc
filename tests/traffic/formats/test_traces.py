"""Public traces: what their lines state, by hand, and what the whole files add up to."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from surgetank.traffic.formats import mooncake
from surgetank.traffic.formats.reading import UnreadableError
from surgetank.traffic.formats.registry import detect
from surgetank.traffic.trace import Batch, Ended, Trace
from tests.traffic.formats.reads import listed, names, read

ROOT = Path(__file__).parents[3]
TRACES = next(  # beside the repository, or one folder further up
    (found for up in ROOT.parents[:2] if (found := up / "shared" / "traces").is_dir()),
    ROOT / "none",
)
SAMPLES = Path(__file__).parents[2] / "data" / "log_samples"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not here")


def trace_bytes(name: str) -> bytes:
    data = (TRACES / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


AZURE_2023 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:04.0319600,3180,8"
)
AZURE_2024 = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    b"2024-05-10 00:00:01+00:00,2399,6\n"
)
BURSTGPT_6 = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
)
BURSTGPT_8 = (
    b'Timestamp,"Session ID","Elapsed time",Model,"Request tokens","Response tokens",'
    b'"Total tokens","Log Type"\n'
    b"5,s-1,3.5,ChatGPT,472,18,490,Conversation log\n45,s-1,,GPT-4,1087,0,1087,API log\n"
)
VIDUR = b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.1,100,7\n0.30000000000000004,200,8\n"


def test_azure_2023_is_naive_with_seven_digits_crlf_and_no_final_newline() -> None:
    batch, reader = read(AZURE_2023)
    assert detect(AZURE_2023).name == "azure"
    # 2023-11-16 18:17:03 UTC is 1700158623
    assert (batch.arrived - 1700158623).tolist() == pytest.approx([0.97996, 1.03196], abs=3e-7)
    assert listed(batch.prompt_tokens) == [4808, 3180]
    assert listed(batch.output_tokens) == [10, 8]
    assert reader.account.skipped == 0


def test_azure_2024_has_zones_and_mixed_fractions() -> None:
    batch, _ = read(AZURE_2024)
    assert detect(AZURE_2024).name == "azure"
    # 2024-05-10 00:00:00 UTC is 1715299200
    assert (batch.arrived - 1715299200).tolist() == pytest.approx([0.00993, 1.0], abs=3e-7)


@pytest.mark.parametrize("data", [BURSTGPT_6, BURSTGPT_8])
def test_burstgpt_counts_from_its_start_and_an_empty_answer_is_a_failure(data: bytes) -> None:
    batch, reader = read(data)
    assert detect(data).name == "burstgpt"
    assert batch.arrived.tolist() == [5.0, 45.0]
    assert listed(batch.prompt_tokens) == [472, 1087]
    assert listed(batch.output_tokens) == [18, 0]
    assert listed(batch.ended) == [Ended.COMPLETED, Ended.FAILED]
    assert names(batch.model) == ["ChatGPT", "GPT-4"]
    assert reader.arrival_from == "relative start"
    assert reader.account.notes == []


def test_burstgpts_newer_files_tell_session_and_duration() -> None:
    batch, _ = read(BURSTGPT_8)
    assert names(batch.session) == ["s-1", "s-1"]
    assert listed(batch.duration)[0] == 3.5
    assert np.isnan(listed(batch.duration)[1])


def test_vidurs_times_are_kept_to_the_last_bit() -> None:
    batch, reader = read(VIDUR)
    assert detect(VIDUR).name == "vidur"
    assert batch.arrived.tolist() == [0.1, 0.30000000000000004]
    assert listed(batch.prompt_tokens) == [100, 200]
    assert listed(batch.output_tokens) == [7, 8]
    assert reader.arrival_from == "relative start"
    more = b"arrived_at,num_prefill_tokens,num_decode_tokens,priority,tenant\n0.1,100,7,3,a\n"
    batch, _ = read(more)
    assert listed(batch.priority) == [3]
    assert names(batch.tenant) == ["a"]


MOONCAKE = (
    b'{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 250, "input_length": 1500, "output_length": 6, "hash_ids": [0, 1, 3]}\n'
    b'{"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 3000, "input_length": 600, "output_length": 0, "hash_ids": [9, 0]}\n'
)


def test_mooncakes_leading_blocks_seen_before_are_cached_tokens() -> None:
    batch, reader = read(MOONCAKE)
    assert detect(MOONCAKE).name == "mooncake"
    assert batch.arrived.tolist() == [0.0, 0.25, 3.0, 3.0]
    assert listed(batch.prompt_tokens) == [1100, 1500, 1100, 600]
    # none; blocks 0, 1; all three, the last not full; 9 is new, so 0 behind it does not count
    assert listed(batch.cached_tokens) == [0, 1024, 1100, 0]
    assert listed(batch.output_tokens) == [5, 6, 7, 0]
    assert batch.ended is None
    assert reader.arrival_from == "relative start"


def test_the_memory_of_blocks_is_bounded_and_what_is_forgotten_counts_as_new() -> None:
    blocks = mooncake.Blocks(remembered=4)
    assert blocks.leading([1, 2, 3]) == 0
    assert blocks.leading([1, 2, 3]) == 3
    for i in range(10, 30):
        blocks.leading([i])
    assert blocks.forgot
    assert blocks.leading([1, 2, 3]) == 0


def test_bailian_has_seconds_and_blocks_of_16() -> None:
    data = (
        b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40,'
        b' "output_length": 13, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]}\n'
        b'{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.5, "input_length": 60,'
        b' "output_length": 9, "type": "text", "turn": 2, "hash_ids": [1, 2, 7, 8]}\n'
    )
    batch, _ = read(data)
    assert detect(data).name == "bailian"
    assert batch.arrived.tolist() == [61.114, 62.5]
    assert listed(batch.cached_tokens) == [0, 32]


def test_dynamos_request_end_is_a_request_and_tool_events_are_ignored() -> None:
    sample = (SAMPLES / "dynamo_request_trace.jsonl").read_bytes()
    tool = (
        b'{"timestamp":1,"event":{"schema":"dynamo.request.trace.v1","event_type":"tool_start"}}\n'
    )
    batch, reader = read(sample + tool)
    assert detect(sample).name == "dynamo"
    # request_received_ms 1779163048815, total 1381.891193 ms, first token after 1328.418365 ms
    assert batch.arrived.tolist() == [1779163048.815]
    assert listed(batch.duration) == pytest.approx([1.381891193])
    assert listed(batch.ttft) == pytest.approx([1.328418365])
    assert listed(batch.prompt_tokens) == [15]
    assert listed(batch.output_tokens) == [3]
    assert listed(batch.cached_tokens) == [0]
    assert names(batch.model) == ["Qwen/Qwen3-14B-FP8"]
    assert names(batch.session) == ["manual-noadm:root"]
    assert listed(batch.ended) == [Ended.COMPLETED]
    assert reader.account.ignored == {"tool event": 1}
    assert reader.account.skipped == 0


def test_a_dynamo_event_without_its_arrival_has_its_end_less_its_duration() -> None:
    data = (
        b'{"event":{"schema":"dynamo.request.trace.v1","event_type":"request_end",'
        b'"event_time_unix_ms":1779163050200,"request":{"total_time_ms":1200.0}}}\n'
    )
    batch, _ = read(data)
    assert batch.arrived.tolist() == [1779163049.0]


def whole(name: str) -> tuple[Batch, Trace]:
    batch, reader = read(trace_bytes(name))
    assert reader.account.skipped == 0
    assert reader.account.rows == len(batch)
    return batch, Trace.of([batch])


@needs_traces
def test_the_azure_code_trace_adds_up() -> None:
    batch, trace = whole("azure_llm_2023_code.csv")
    assert len(batch) == 8819
    assert trace.span == pytest.approx(3435.948056, abs=1e-6)  # 18:17:03.97996 to 19:14:19.928016
    assert listed(batch.prompt_tokens)[-1] == 549
    assert listed(batch.output_tokens)[-1] == 173


@needs_traces
def test_the_mooncake_traces_add_up() -> None:
    batch, trace = whole("mooncake_conversation.jsonl.gz")
    assert len(batch) == 12031
    assert trace.span == 3536.999
    assert listed(batch.prompt_tokens)[:5] == [6758, 7322, 7236, 2290, 6760]
    assert listed(batch.cached_tokens)[:5] == [0, 512, 512, 512, 512]
    batch, trace = whole("mooncake_synthetic.jsonl.gz")
    assert len(batch) == 3993
    assert batch.arrived[:5].tolist() == [0.0, 0.0, 0.04, 0.277, 0.471]
    assert listed(batch.output_tokens)[:5] == [6, 4, 3, 92, 210]


@needs_traces
def test_the_dynamo_trace_adds_up() -> None:
    batch, reader = read(trace_bytes("dynamo_request_trace.jsonl.gz"))
    assert len(batch) == 17
    assert reader.account.ignored == {"tool event": 44}
    assert batch.arrived[1] == 1779163080.006
    assert listed(batch.cached_tokens)[2] == 5232
    assert len(batch.session.names if batch.session else ()) == 5


def test_a_trace_with_other_columns_than_its_format_needs_says_so() -> None:
    with pytest.raises(UnreadableError, match="no column of arrival times"):
        read(b"a,b\n1,2\n", format_name="azure")
