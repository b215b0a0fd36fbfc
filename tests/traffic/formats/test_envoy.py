"""Envoy: its flags tell what the status does not."""

from __future__ import annotations

import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import ReadOptions
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import read, told

TAIL = b' "203.0.113.9" "OpenAI/Python" "5a9c2c0e" "llm.example.com" "10.0.4.12:8000"\n'


def line(status: str = "200", flags: str = "-", request: str = "") -> bytes:
    request = request or "POST /v1/chat/completions HTTP/1.1"
    return f'[2026-11-30T02:46:41.208Z] "{request}" {status} {flags} 9 8 31204 2118'.encode() + TAIL


@pytest.mark.parametrize(
    ("status", "flags", "ended"),
    [
        ("200", "-", Ended.COMPLETED),
        ("200", "DC", Ended.ABANDONED),
        ("0", "DC", Ended.ABANDONED),
        ("503", "UO", Ended.REFUSED),
        ("429", "RL", Ended.REFUSED),
        ("503", "OM", Ended.REFUSED),
        ("503", "UH", Ended.REFUSED),
        ("503", "UC", Ended.FAILED),
        ("503", "UF,URX", Ended.FAILED),
        ("504", "UT", Ended.FAILED),
        ("404", "NR", Ended.FAILED),
    ],
)
def test_flags_and_status_tell_how_a_request_ended(status: str, flags: str, ended: Ended) -> None:
    batch, _, _ = read("envoy", line() + line(status, flags))
    assert batch.ended is not None
    assert batch.ended.tolist() == [Ended.COMPLETED, ended]


def test_the_retry_limit_is_said() -> None:
    _, account, _ = read("envoy", line("503", "UF,URX"))
    assert any("each counts once" in note for note in account.notes)


def test_the_first_byte_counts_only_where_the_answer_completed() -> None:
    batch, _, _ = read("envoy", line() + line("503", "UO"))
    assert told(batch)["ttft"] == [2.118, None]


def test_istio_adds_fields_in_the_middle() -> None:
    log = (
        b'[2026-11-30T02:46:41.208Z] "POST /v1/completions HTTP/2" 200 - via_upstream - "-" '
        b"1873 48211 31204 2118" + TAIL
    )
    assert registry.detect(log, "").name == "envoy"
    batch, account, _ = read("envoy", log)
    assert told(batch)["duration"] == [31.204]
    assert account.skipped == 0


def test_a_probe_is_no_request_and_a_strange_line_is_bad() -> None:
    log = line() + line(request="GET /healthz HTTP/1.1") + line(request="- - HTTP/1.1") + b"boo\n"
    batch, account, _ = read("envoy", log)
    assert len(batch) == 1
    assert account.ignored == {"probe": 1, "not HTTP": 1}
    assert [b.line for b in account.bad] == [4]


def test_json_fields_of_istio_and_a_named_tenant() -> None:
    log = (
        b'{"start_time":"2026-11-30T02:46:41.208Z","method":"POST","path":"/v1/completions",'
        b'"response_code":"503","response_flags":"UO","duration":0,"upstream_service_time":null,'
        b'"x-org":"org-1"}\n'
    )
    batch, _, _ = read("envoy-json", log, options=ReadOptions(columns={"tenant": "x-org"}))
    assert told(batch) == {
        "arrived": [pytest.approx(1796006801.208, abs=1e-6, rel=0)],
        "duration": [0.0],
        "ended": [int(Ended.REFUSED)],
        "tenant": ["org-1"],
    }
