"""What engines say of themselves: captures of real ones, and what their sources document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.adapters.engines import (
    DIALECTS,
    EngineFacts,
    can_sleep,
    health,
    is_sleeping,
    parse_signals,
    probe,
    unknown_signals,
)
from surgetank.adapters.http import FetchError
from surgetank.policy.replica import Signals

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
VLLM_METRICS = (CAPTURES / "vllm" / "metrics_after_load.txt").read_text()
LLAMACPP_METRICS = (CAPTURES / "llamacpp" / "metrics_after_load.txt").read_text()


# --- signals


def test_an_idle_vllm_reads_as_zero_and_not_as_unknown() -> None:
    assert parse_signals("vllm", VLLM_METRICS, 7.0) == Signals(7.0, waiting=0, running=0, kv_used=0)


def test_llamacpp_has_requests_and_no_kv_gauge() -> None:
    signals = parse_signals("llamacpp", LLAMACPP_METRICS, 7.0)
    assert signals == Signals(7.0, waiting=0, running=0, kv_used=None)
    assert unknown_signals("llamacpp", signals) == ()  # it never gives one: nothing has drifted


def test_data_parallel_engines_are_summed_and_their_kv_use_averaged() -> None:
    text = """\
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0
vllm:num_requests_running{engine="0",model_name="m"} 10.0
vllm:num_requests_running{engine="1",model_name="m"} 20.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6
"""
    signals = parse_signals("vllm", text, 1.0)
    assert (signals.waiting, signals.running) == (7, 30)
    assert signals.kv_used == pytest.approx(0.4)


def test_the_name_of_an_older_vllm_is_known() -> None:
    text = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.83\n'
    signals = parse_signals("vllm", text, 1.0)
    assert signals.kv_used == 0.83
    assert unknown_signals("vllm", signals) == ("waiting", "running")


def test_the_newer_name_wins_when_both_are_there() -> None:
    text = "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.9\n"
    assert parse_signals("vllm", text, 1.0).kv_used == 0.9


def test_sglang_ranks_are_copies_and_priorities_are_parts_of_the_total() -> None:
    text = """\
sglang:num_queue_reqs{model_name="m",tp_rank="0",pp_rank="0",dp_rank="0",priority=""} 5.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",pp_rank="0",dp_rank="0",priority="1"} 2.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",pp_rank="0",dp_rank="0",priority="9"} 3.0
sglang:num_queue_reqs{model_name="m",tp_rank="1",pp_rank="0",dp_rank="0",priority=""} 5.0
sglang:num_queue_reqs{model_name="m",tp_rank="2",pp_rank="0",dp_rank="1",priority=""} 6.0
sglang:num_running_reqs{model_name="m",tp_rank="0"} 8.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.55
"""
    assert parse_signals("sglang", text, 1.0) == Signals(1.0, 11, 8, 0.55)


def test_tensorrt_llm_signals() -> None:
    text = """\
trtllm_num_requests_waiting{model_name="m",engine_type="trtllm"} 1.0
trtllm_num_requests_running{model_name="m",engine_type="trtllm"} 3.0
trtllm_kv_cache_utilization{model_name="m",engine_type="trtllm"} 0.42
"""
    assert parse_signals("trtllm", text, 1.0) == Signals(1.0, 1, 3, 0.42)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "many", ""])
def test_one_series_without_a_number_makes_the_sum_unknown(value: str) -> None:
    text = f"""\
vllm:num_requests_waiting{{engine="0"}} 3.0
vllm:num_requests_waiting{{engine="1"}} {value}
vllm:kv_cache_usage_perc {value}
vllm:num_requests_running 2
"""
    signals = parse_signals("vllm", text, 1.0)
    assert signals == Signals(1.0, waiting=None, running=2, kv_used=None)
    assert unknown_signals("vllm", signals) == ("waiting", "kv_used")


def test_a_plain_openai_server_is_expected_to_say_nothing() -> None:
    signals = parse_signals("openai", VLLM_METRICS, 1.0)
    assert signals == Signals(1.0)
    assert unknown_signals("openai", signals) == ()


names = st.sampled_from(
    [alias for d in DIALECTS.values() for a in d.signals.values() for alias in a]
)
lines = st.tuples(names, st.sampled_from(["", '{engine="1"}', "{", '{a="']), st.text(max_size=12))


@given(st.sampled_from(sorted(DIALECTS)), st.one_of(st.text(), st.lists(lines)))
def test_no_scrape_raises_and_what_is_known_is_sane(dialect: str, scrape: Any) -> None:
    text = scrape if isinstance(scrape, str) else "\n".join("".join(parts) for parts in scrape)
    signals = parse_signals(dialect, text, 1.0)
    assert signals.waiting is None or signals.waiting >= 0
    assert signals.running is None or signals.running >= 0
    assert signals.kv_used is None or 0 <= signals.kv_used <= 1


def test_vllm_says_in_its_metrics_that_it_sleeps() -> None:
    asleep = VLLM_METRICS.replace('sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0')
    assert is_sleeping(VLLM_METRICS) is False
    assert is_sleeping(asleep) is True
    assert is_sleeping(LLAMACPP_METRICS) is None


# --- probe and health, over HTTP

Pages = Mapping[str, tuple[int, str]]


@asynccontextmanager
async def engine(pages: Pages) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        status, body = pages.get(path, (404, '{"error":{"message":"File Not Found"}}'))
        payload = body.encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(payload)))
        writer.write(payload)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def facts_of(pages: Pages, **options: Any) -> EngineFacts:
    async def run() -> EngineFacts:
        async with engine(pages) as url:
            return await probe(url + "/", timeout=5, **options)

    return asyncio.run(run())


def models(owner: str, **members: Any) -> tuple[int, str]:
    return 200, json.dumps({"object": "list", "data": [{"id": "m", "owned_by": owner} | members]})


def test_vllm_facts() -> None:
    pages = {
        "/v1/models": models("vllm", max_model_len=2048),
        "/version": (200, '{"version":"0.32.0"}'),
        "/metrics": (200, VLLM_METRICS),
    }
    assert facts_of(pages) == EngineFacts(
        "vllm",
        version="0.32.0",
        models=("m",),
        kv_tokens=32768 * 128,
        block_size=128,
        preempts=True,
        max_context=2048,
        frees_on_disconnect=True,
    )


def test_vllm_kv_is_the_product_where_the_size_is_not_told_and_the_sum_over_engines() -> None:
    info = 'vllm:cache_config_info{{block_size="16",engine="{}",num_gpu_blocks="{}"}} 1.0\n'
    pages = {
        "/v1/models": models("vllm"),
        "/metrics": (200, info.format(0, 1000) + info.format(1, 500)),
    }
    assert facts_of(pages).kv_tokens == 1500 * 16
    pages["/metrics"] = (200, info.format(0, 1000) + info.format(1, "None"))
    assert facts_of(pages).kv_tokens is None


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang_facts(path: str) -> None:
    state = {
        "effective_max_running_requests_per_dp": 128,
        "memory_usage": {"token_capacity": 20480},
    }
    info = {"version": "0.5.23", "page_size": 1, "internal_states": [state, state]}
    pages = {
        "/v1/models": models("sglang", max_model_len=32768),
        path: (200, json.dumps(info)),
    }
    assert facts_of(pages) == EngineFacts(
        "sglang",
        version="0.5.23",
        models=("m",),
        slots=256,
        kv_tokens=40960,
        block_size=1,
        preempts=True,
        max_context=32768,
        frees_on_disconnect=True,
    )


def test_sglang_kv_from_its_scheduler_where_states_do_not_tell() -> None:
    info = {"max_total_num_tokens": 20480, "internal_states": [{}]}
    facts = facts_of({"/v1/models": models("sglang"), "/get_server_info": (200, json.dumps(info))})
    assert (facts.kv_tokens, facts.slots) == (20480, None)


@pytest.mark.parametrize(("unified", "kv_tokens"), [(None, 4096), (True, 4096), (False, 4 * 4096)])
def test_llamacpp_facts(unified: bool | None, kv_tokens: int) -> None:  # noqa: FBT001 - a parameter
    pages = {
        "/v1/models": (200, (CAPTURES / "llamacpp" / "models.json").read_text()),
        "/props": (200, (CAPTURES / "llamacpp" / "props.json").read_text()),
    }
    assert facts_of(pages, kv_unified=unified) == EngineFacts(
        "llamacpp",
        version="b0-unknown",
        models=("tiny",),
        slots=4,
        kv_tokens=kv_tokens,
        block_size=1,
        preempts=False,
        max_context=4096,
        frees_on_disconnect=False,
    )


def test_tensorrt_llm_facts() -> None:
    metrics = """\
trtllm_kv_cache_max_blocks{model_name="m"} 1000.0
trtllm_kv_cache_tokens_per_block{model_name="m"} 32.0
trtllm_max_num_active_requests{model_name="m"} 64.0
"""
    pages = {
        "/v1/models": models("tensorrt_llm"),
        "/version": (200, '{"version":"1.3.0"}'),
        "/metrics": (200, "[]"),
        "/prometheus/metrics": (200, metrics),
    }
    assert facts_of(pages) == EngineFacts(
        "trtllm",
        version="1.3.0",
        models=("m",),
        slots=64,
        kv_tokens=32000,
        block_size=32,
        preempts=True,
    )


TGI_METRICS = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 3
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 12
tgi_batch_current_max_tokens 9000
"""
"""Names from huggingface.co/docs/text-generation-inference/reference/metrics; no capture."""


def test_tgi_tells_its_queue_and_batch_and_no_kv_use() -> None:
    signals = parse_signals("tgi", TGI_METRICS, 1.0)
    assert signals == Signals(1.0, waiting=3, running=12, kv_used=None)
    assert unknown_signals("tgi", signals) == ()


def test_tgi_facts() -> None:
    """Members of /info as its OpenAPI schema names them."""
    info = {
        "model_id": "acme/m",
        "version": "3.3.4",
        "max_concurrent_requests": 128,
        "max_total_tokens": 4096,
        "max_batch_total_tokens": 65536,
    }
    pages = {
        "/v1/models": models("acme/m"),
        "/metrics": (200, TGI_METRICS),
        "/info": (200, json.dumps(info)),
    }
    assert facts_of(pages) == EngineFacts(
        "tgi",
        version="3.3.4",
        models=("m",),
        kv_tokens=65536,
        block_size=1,
        preempts=True,
        max_context=4096,
    )


SGLANG_NAMES = {
    line
    for line in (CAPTURES / "sglang_metric_names.txt").read_text().splitlines()
    if line.startswith("sglang:")
}


@pytest.mark.parametrize("signal", ["waiting", "running", "kv_used"])
def test_the_newest_name_of_each_signal_is_one_that_sglang_has(signal: str) -> None:
    assert DIALECTS["sglang"].signals[signal][0] in SGLANG_NAMES


@pytest.mark.parametrize(
    ("text", "dialect"),
    [(VLLM_METRICS, "vllm"), (LLAMACPP_METRICS, "llamacpp"), ("up 1\n", "openai")],
)
def test_an_engine_that_renames_its_owner_is_known_by_its_metrics(text: str, dialect: str) -> None:
    facts = facts_of({"/v1/models": models("acme"), "/metrics": (200, text)})
    assert facts.dialect == dialect


def test_a_plain_openai_server_is_known_by_its_models_alone() -> None:
    assert facts_of({"/v1/models": models("acme")}) == EngineFacts("openai", models=("m",))


@pytest.mark.parametrize(
    "body", ["", "[]", '{"data":7}', '{"data":[7,{"id":7}]}', "[" * 9999, "null"]
)
def test_nonsense_is_unknown_and_not_an_error(body: str) -> None:
    for owner in ("vllm", "sglang", "llamacpp", "tensorrt_llm"):
        paths = ("/version", "/metrics", "/props", "/server_info", "/prometheus/metrics")
        facts = facts_of(dict.fromkeys(paths, (200, body)) | {"/v1/models": models(owner)})
        assert (facts.version, facts.slots, facts.kv_tokens, facts.max_context) == (None,) * 4
    assert facts_of({"/v1/models": (200, body)}) == EngineFacts("openai")


def test_an_engine_that_does_not_list_its_models_is_an_error_that_says_so() -> None:
    with pytest.raises(FetchError, match="/v1/models: answered 503, expected 200"):
        facts_of({"/v1/models": (503, '{"error":{"message":"Loading model","code":503}}')})


LOADING = '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ({"/health": (200, "")}, "ready"),
        ({"/health": (200, '{"status":"ok"}')}, "ready"),
        ({"/health": (503, LOADING)}, "loading"),
        ({"/health": (503, "")}, "down"),  # a vLLM whose engine has died
        ({"/health": (500, LOADING)}, "down"),
        ({}, "down"),
        ({"/health": (200, ""), "/is_sleeping": (200, '{"is_sleeping":true}')}, "loading"),
        ({"/health": (200, ""), "/is_sleeping": (200, '{"is_sleeping":false}')}, "ready"),
        ({"/health": (200, ""), "/is_sleeping": (500, "")}, "ready"),
    ],
)
def test_health(pages: Pages, expected: str) -> None:
    async def run() -> str:
        async with engine(pages) as url:
            return await health(url, 5)

    assert asyncio.run(run()) == expected


def test_an_engine_that_cannot_sleep_is_not_asked_whether_it_does() -> None:
    async def run() -> str:
        pages = {"/health": (200, ""), "/is_sleeping": (200, '{"is_sleeping":true}')}
        async with engine(pages) as url:
            return await health(url, 5, sleeps=False)

    assert asyncio.run(run()) == "ready"


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ({"/is_sleeping": (200, '{"is_sleeping":false}')}, True),
        ({"/is_sleeping": (500, "")}, True),
        ({"/health": (200, "")}, False),
    ],
)
def test_whether_it_can_sleep_is_told_by_the_route(pages: Pages, expected: bool) -> None:  # noqa: FBT001
    async def run() -> bool:
        async with engine(pages) as url:
            return await can_sleep(url, 5)

    assert asyncio.run(run()) is expected


def test_health_is_down_when_refused_or_silent() -> None:
    async def refused() -> str:
        async with engine({}) as url:
            pass
        return await health(url, 5)

    async def silent() -> str:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.read()
                await reader.read()
            except OSError:
                pass
            writer.transport.abort()
            gone.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            answer = await health(f"http://127.0.0.1:{port}", 0.05)
            await asyncio.wait_for(gone.wait(), 5)
        return answer

    runs: list[Coroutine[Any, Any, str]] = [refused(), silent()]
    assert [asyncio.run(run) for run in runs] == ["down", "down"]
