"""Text Generation Inference: durations as Rust prints them, and what the log does not say."""

from __future__ import annotations

import json

import pytest

from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import read, told

END = 1796006832.0  # 2026-11-30T02:47:12Z


def line(
    took: str | None = "2s", level: str = "INFO", message: str = "Success", **span: str
) -> bytes:
    about = {"name": "chat_completions", **span} | ({"total_time": took} if took else {})
    found = {"timestamp": "2026-11-30T02:47:12Z", "level": level, "message": message, "span": about}
    return json.dumps(found | {"target": "text_generation_router::server"}).encode() + b"\n"


@pytest.mark.parametrize(
    ("took", "seconds"),
    [("2s", 2.0), ("1.5ms", 1.5e-3), ("250us", 2.5e-4), ("250\u00b5s", 2.5e-4), ("4ns", 4e-9)],
)
def test_durations_have_their_unit(took: str, seconds: float) -> None:
    batch, _, _ = read("tgi", line(took))
    assert told(batch)["duration"] == [pytest.approx(seconds)]
    assert batch.arrived[0] == pytest.approx(END - seconds, abs=1e-6, rel=0)


def test_an_error_is_a_failed_request_and_an_overload_a_refused_one() -> None:
    log = line() + line(None, "ERROR", "Request failed during generation: CUDA")
    log += line(None, "ERROR", "Model is overloaded")
    assert told(read("tgi", log)[0])["ended"] == [Ended.COMPLETED, Ended.FAILED, Ended.REFUSED]


def test_the_bound_is_read_past_the_clients_own_words() -> None:
    parameters = (
        'GenerateParameters { stop: ["max_new_tokens: Some(9)"], max_new_tokens: Some(64) }'
    )
    assert told(read("tgi", line(parameters=parameters))[0])["max_tokens"] == [64]


def test_other_lines_are_no_requests() -> None:
    other = b'{"timestamp":"2026-11-30T02:47:12Z","level":"INFO","message":"Connected"}\n'
    batch, account, _ = read(
        "tgi", other + b"Args {\n" + b'{"level":\n' + line(name="health") + line()
    )
    assert len(batch) == 1
    assert account.ignored == {"other log line": 3}
    assert [b.line for b in account.bad] == [3]
