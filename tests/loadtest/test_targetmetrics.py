"""Metrics of the target: each source told by its content, joined into one row, gaps left gaps."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from surgetank.adapters import http
from surgetank.loadtest.client import Tls
from surgetank.loadtest.target import Target
from surgetank.loadtest.targetmetrics import Reading, Row, Watch, find, least_interval, read, row
from tests.loadtest import certificate

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
GATEWAY = """
surgetank_queued{tenant="a"} 3
surgetank_queued{tenant="b"} 2
surgetank_running{tenant="a"} 7
surgetank_replica_ready{model="m",replica="r1"} 1
surgetank_replica_ready{model="m",replica="r2"} 0
surgetank_replica_kv_reserved_tokens{model="m",replica="r1"} 250
surgetank_replica_kv_tokens{model="m",replica="r1"} 1000
"""
DCGM = """
DCGM_FI_DEV_GPU_UTIL{gpu="0"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1"} 30
DCGM_FI_DEV_FB_USED{gpu="0"} 60
DCGM_FI_DEV_FB_FREE{gpu="0"} 20
DCGM_FI_DEV_FB_USED{gpu="1"} 15
DCGM_FI_DEV_FB_FREE{gpu="1"} 5
"""
SMI = """
nvidia_smi_utilization_gpu_ratio{uuid="a"} 0.5
nvidia_smi_memory_used_bytes{uuid="a"} 1e9
nvidia_smi_memory_total_bytes{uuid="a"} 4e9
"""
VLLM = """
vllm:num_requests_waiting{engine="0"} 4
vllm:num_requests_running{engine="0"} 9
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:num_preemptions_total{engine="0"} 6
"""


def test_an_engines_queue_running_kv_and_preemptions_are_read() -> None:
    assert row(1.0, read(VLLM)) == {
        "t": 1.0,
        "queue": 4,
        "running": 9,
        "kv": 0.5,
        "preemptions": 6,
        "replicas": 1,
    }


def test_a_gateways_tenants_are_added_up_and_its_ready_replicas_counted() -> None:
    assert row(0, read(GATEWAY)) == {
        "t": 0,
        "queue": 5,
        "running": 7,
        "kv": 0.25,
        "replicas": 1,
    }


@pytest.mark.parametrize(
    ("text", "gpu", "memory"), [(DCGM, 0.6, 0.75), (SMI, 0.5, 0.25), (DCGM + SMI, 0.6, 0.75)]
)
def test_gpus_are_averaged_and_their_memory_is_a_part_of_the_whole(
    text: str, gpu: float, memory: float
) -> None:
    found = row(0, read(text))
    assert found is not None
    assert found["gpu"] == pytest.approx(gpu)
    assert found["gpu_memory"] == pytest.approx(memory)


def test_with_gateway_and_engines_queues_add_up_and_the_rest_is_the_engines() -> None:
    found = row(0, [*read(GATEWAY), *read(VLLM), *read(VLLM)])
    assert found is not None
    assert found["queue"] == 13
    assert found["running"] == 18
    assert found["kv"] == 0.5
    assert found["preemptions"] == 12
    assert found["replicas"] == 1


def test_kv_of_a_gateway_stands_in_for_an_engine_that_tells_none() -> None:
    found = row(0, [Reading("engine", 1, 2), *read(GATEWAY)])
    assert found is not None
    assert found["kv"] == 0.25


def test_an_empty_cache_is_zero_and_not_unknown() -> None:
    found = row(0, read(VLLM.replace("0.5", "0")))
    assert found is not None
    assert found["kv"] == 0


@pytest.mark.parametrize("text", ["", "python_gc_objects 3\n", "<html>", "vllm\n", "\0"])
def test_text_of_another_kind_says_nothing(text: str) -> None:
    assert row(0, read(text)) is None


@pytest.mark.parametrize("name", ["vllm", "llamacpp"])
def test_what_real_engines_wrote_is_read(name: str) -> None:
    (found,) = read((CAPTURES / name / "metrics_after_load.txt").read_text(encoding="utf-8"))
    assert found.queue is not None
    assert found.running is not None


def test_llamacpp_is_not_scraped_more_often_than_it_bears() -> None:
    text = (CAPTURES / "llamacpp" / "metrics_after_load.txt").read_text(encoding="utf-8")
    assert least_interval(text) == 2.0
    assert least_interval(VLLM) == 0.0


async def _serve(
    texts: list[str | None], tls: ssl.SSLContext | None = None
) -> tuple[asyncio.Server, str]:
    """Answer GETs with `texts` in turn; None: close without an answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = texts.pop(0) if len(texts) > 1 else texts[0]
        if text is not None:
            body = text.encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    return server, f"http://127.0.0.1:{port}" if tls is None else f"https://localhost:{port}"


def test_only_addresses_that_give_known_metrics_are_kept() -> None:
    async def look() -> tuple[list[str], str]:
        good, url = await _serve([VLLM])
        bad, other = await _serve(["nothing"])
        async with good, bad:
            return await find([other, url, "http://127.0.0.1:1"]), url

    kept, url = asyncio.run(look())
    assert kept == [url]


def test_metrics_are_read_over_tls_from_whom_the_certificate_says(tmp_path: Path) -> None:
    cafile, context = certificate.made(tmp_path)
    target = Target("https://localhost", tls=Tls(str(cafile)))

    async def look() -> tuple[list[list[str]], str]:
        server, url = await _serve([VLLM], context)
        stranger = http.Tls(ssl.create_default_context())
        plain, other = await _serve([VLLM])
        async with server, plain:
            asked = [target.trusted(url), stranger, None]
            return [await find([url, other], (), tls) for tls in asked], url

    (trusted, strange, without), url = asyncio.run(look())
    assert trusted[:1] == [url]
    assert len(trusted) == 2
    assert url not in strange + without
    assert len(strange) == len(without) == 1


class _Told(list[Row]):
    """Rows that tell when so many are there."""

    def __init__(self, number: int, seen: asyncio.Event) -> None:
        super().__init__()
        self._number, self._seen = number, seen

    def append(self, value: Row) -> None:
        super().append(value)
        if len(self) == self._number:
            self._seen.set()


def test_a_scrape_that_fails_is_a_gap_and_the_watch_goes_on() -> None:
    async def watch() -> Watch:
        server, url = await _serve([VLLM, None, VLLM])
        async with server:
            seen = asyncio.Event()
            made = Watch([url], interval=0.01, rows=_Told(2, seen))
            loop = asyncio.get_running_loop()
            task = asyncio.create_task(made.run(loop.time(), loop.time))
            async with asyncio.timeout(10):
                await seen.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return made

    made = asyncio.run(watch())
    assert made.failures >= 1
    assert made.rows[0]["queue"] == 4
    assert made.rows[0]["t"] < made.rows[1]["t"]
