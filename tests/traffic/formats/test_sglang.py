"""SGLang's request log: literals that are never evaluated, and its JSON twin."""

from __future__ import annotations

import json
from datetime import timedelta, timezone

import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import ReadOptions, UnreadableError
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import read, told

END = 1779264164.0  # 2026-05-20T08:02:44Z
STOP = "{'type': 'stop', 'matched': 151645}"


def finished(text: str = "'...'", reason: str = STOP, asked: str = "'max_new_tokens': 64") -> str:
    meta = f"'finish_reason': {reason}, 'prompt_tokens': 320, 'completion_tokens': 220, "
    meta += "'cached_tokens': 80, 'e2e_latency': 8.5"
    return (
        f"[2026-05-20 08:02:44] Finish: obj=GenerateReqInput(rid='bf', text={text}, "
        f"sampling_params={{{asked}}}, stream=True), "
        f"out={{'text': {text}, 'meta_info': {{'id': 'bf', {meta}}}}}\n"
    )


PLAIN = {
    "arrived": [END - 8.5],
    "duration": [8.5],
    "prompt_tokens": [320],
    "output_tokens": [220],
    "cached_tokens": [80],
    "max_tokens": [64],
    "ended": [int(Ended.COMPLETED)],
}


@pytest.mark.parametrize(
    "text",
    [
        "'plain'",
        repr("), out={'meta_info': {'prompt_tokens': 1, 'e2e_latency': 0.1}}"),
        repr("'meta_info': {'prompt_tokens': 1"),
        repr("both ' and \", out={\n"),
        "'prompt_tokens'",
        "'first half' ... '\\'meta_info\\': {'",
        repr("__import__('os').abort()"),
        "'" + "long " * 20_000 + "'",
    ],
)
def test_no_text_passes_for_a_field(text: str) -> None:
    batch, account, _ = read("sglang", finished(text).encode())
    assert told(batch) == PLAIN
    assert account.skipped == 0


@pytest.mark.parametrize(
    ("reason", "ended"),
    [
        ("{'type': 'length', 'length': 220}", Ended.COMPLETED),
        ("{'type': 'abort', 'message': 'x'}", Ended.ABANDONED),
        ("{'type': 'abort', 'message': 'full', 'status_code': 503}", Ended.REFUSED),
        (
            "{'type': 'abort', 'message': 'x', 'status_code': <HTTPStatus.BAD_REQUEST: 400>}",
            Ended.FAILED,
        ),
        ("None", Ended.UNKNOWN),
    ],
)
def test_a_finish_reason_tells_how_a_request_ended(reason: str, ended: Ended) -> None:
    batch, _, _ = read("sglang", (finished() + finished(reason=reason)).encode())
    assert told(batch)["ended"] == [Ended.COMPLETED, ended]


def test_several_answers_on_a_line_are_several_requests() -> None:
    one = finished().strip()
    out = one.split(", out=")[1]
    log = one.replace(", out=", ", out=[") + ", " + out + "]\n"
    assert told(read("sglang", log.encode())[0])["prompt_tokens"] == [320, 320]


def test_a_cut_line_is_bad_and_a_received_line_is_counted_apart() -> None:
    log = "[2026-05-20 08:02:40] Receive: obj=GenerateReqInput(rid='bf', text='secret')\n"
    batch, account, _ = read("sglang", (log + finished()[:200] + "\n" + finished()).encode())
    assert len(batch) == 1
    assert account.ignored == {"start of a request (its end counts)": 1}
    assert [b.line for b in account.bad] == [2]


def test_stamps_are_in_the_zone_of_the_options_unless_a_collector_stamped_the_line() -> None:
    east = ReadOptions(timezone=timezone(timedelta(hours=8)))
    batch, _, _ = read("sglang", finished().encode(), options=east)
    assert batch.arrived.tolist() == [END - 8 * 3600 - 8.5]
    stamped = "1779264164496\t2026-05-20T08:02:44.496Z\t" + finished()
    batch, _, _ = read("sglang", stamped.encode(), options=east)
    assert batch.arrived.tolist() == [1779264164.496 - 8.5]


def test_a_log_without_finished_requests_is_refused_with_the_cure() -> None:
    with pytest.raises(UnreadableError, match="--log-requests"):
        read("sglang", b"[2026-05-20 08:02:44 TP0] Decode batch, #running-req: 4\n")


def test_the_json_form_says_the_same() -> None:
    meta = {
        "finish_reason": {"type": "stop", "matched": "secret"},
        "prompt_tokens": 320,
        "completion_tokens": 220,
        "cached_tokens": 80,
        "e2e_latency": 8.5,
    }
    line = {
        "timestamp": "2026-05-20T08:02:44.000000",
        "event": "request.finished",
        "rid": "bf",
        "obj": {"text": "secret", "sampling_params": {"max_new_tokens": 64}},
        "out": {"text": "secret", "meta_info": meta},
    }
    start = {
        "timestamp": "2026-05-20T08:02:35",
        "event": "request.received",
        "rid": "bf",
        "obj": {},
    }
    log = (json.dumps(start) + "\n" + json.dumps(line) + "\n").encode()
    assert registry.detect(log).name == "sglang-json"
    batch, account, _ = read("sglang-json", log)
    assert told(batch) == PLAIN
    assert account.ignored == {"start of a request (its end counts)": 1}
