"""nginx: ends made arrivals, retries counted once, and what is no request."""

from __future__ import annotations

import json

import numpy as np
import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import LONGEST_LINE, ReadOptions, UnreadableError
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import read, told


def line(**fields: object) -> bytes:
    usual: dict[str, object] = {
        "msec": "1796006832.412",
        "request_method": "POST",
        "request_uri": "/v1/chat/completions",
        "status": "200",
        "request_time": "31.204",
        "upstream_header_time": "2.118",
        "upstream_response_time": "31.203",
        "http_x_tenant_id": "team-a",
    }
    return json.dumps(usual | fields).encode() + b"\n"


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ("200", Ended.COMPLETED),
        ("429", Ended.REFUSED),
        ("503", Ended.REFUSED),
        ("499", Ended.ABANDONED),
        ("400", Ended.FAILED),
        ("504", Ended.FAILED),
        ("000", Ended.UNKNOWN),
    ],
)
def test_a_status_tells_how_a_request_ended(status: str, ended: Ended) -> None:
    # with a known one beside it: a column that no row states is None
    batch, _, _ = read("nginx-json", line() + line(status=status))
    assert batch.ended is not None
    assert batch.ended.tolist() == [Ended.COMPLETED, ended]


@pytest.mark.parametrize(
    ("method", "uri", "why"),
    [
        ("GET", "/health", "probe"),
        ("GET", "/metrics", "probe"),
        ("GET", "/v1/models", "probe"),
        ("GET", "/ping?x=1", "probe"),
        ("GET", "/", "probe"),
        ("GET", "/static/app.js", "static file"),
        ("GET", "/favicon.ico", "static file"),
        ("OPTIONS", "/v1/chat/completions", "not a POST"),
        ("POST", "/tokenize", "other route"),
        ("", "", "not HTTP"),
        ("\x16\x03\x01", "x", "not HTTP"),
    ],
)
def test_what_is_no_inference_request_is_counted_by_its_reason(
    method: str, uri: str, why: str
) -> None:
    batch, account, _ = read("nginx-json", line() + line(request_method=method, request_uri=uri))
    assert len(batch) == 1
    assert dict(account.ignored) == {why: 1}
    assert account.skipped == 0


@pytest.mark.parametrize(
    "uri",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/generate",
        "/generate_stream",
        "/completion",
        "/infill",
        "/api/chat",
        "/api/generate",
        "/team-a/llm/v1/chat/completions",
        "/openai/deployments/gpt/chat/completions?api-version=2026-01-01",
        "/v1/chat/completions/",
    ],
)
def test_inference_routes_count_with_any_prefix(uri: str) -> None:
    assert len(read("nginx-json", line(request_uri=uri))[0]) == 1


def test_a_retry_is_one_request_and_is_said() -> None:
    tried = line(upstream_response_time="60.000, 0.002", upstream_header_time="-, 0.001")
    batch, account, _ = read("nginx-json", tried + line())
    assert len(batch) == 2
    assert "1 requests went to more than one upstream; each counts once" in account.notes
    assert told(batch)["ttft"] == [None, 2.118]


def test_a_line_that_does_not_fit_is_told_by_number_and_spares_its_neighbours() -> None:
    log = line() + b'{"msec":"never","status":"200"\n' + b"\n" + line(msec="-") + line()
    batch, account, _ = read("nginx-json", log)
    assert len(batch) == 2
    assert [(b.line, b.reason) for b in account.bad] == [
        (2, "not a JSON object"),
        (4, "no time stamp (msec or time_iso8601)"),
    ]


def test_the_fast_way_and_the_line_by_line_way_agree() -> None:
    good = b"".join(
        line(
            msec=f"{1796006832 + i / 8:.3f}",
            request_time=f"{i / 4:.3f}",
            status=["200", "429", "499"][i % 3],
            upstream_header_time=["0.125", "-", "1.000, 0.5"][i % 3],
            http_x_tenant_id=["a", "", "-", "b"][i % 4],
        )
        for i in range(24)
    )
    fast, _, _ = read("nginx-json", good)
    slow, account, _ = read("nginx-json", good + b"[1]\n")  # one bad line: no fast way
    assert account.skipped == 1
    assert told(fast) == told(slow)
    assert told(fast)["tenant"][:4] == ["a", None, None, "b"]


def test_numbers_may_be_numbers() -> None:
    batch, _, _ = read("nginx-json", line(msec=1796006832.412, status=200, request_time=31.204))
    assert batch.arrived.tolist() == [1796006832.412 - 31.204]


def test_dates_serve_where_there_are_no_milliseconds() -> None:
    log = b'{"time_iso8601":"2026-11-30T10:47:12+08:00","request":"POST /v1/completions HTTP/1.1",'
    log += b'"status":"200","request_time":"2.000"}\n'
    assert registry.detect(log, "").name == "nginx-json"
    batch, _, _ = read("nginx-json", log)
    assert batch.arrived.tolist() == [1796006830.0]


def test_without_a_request_time_an_arrival_is_the_end_and_that_is_said() -> None:
    log = b'{"msec":"1796006832.5","request_uri":"/v1/completions","status":"200"}\n'
    batch, account, reader = read("nginx-json", log)
    assert batch.arrived.tolist() == [1796006832.5]
    assert reader.arrival_from == "end"
    assert any("when they end" in note for note in account.notes)


def test_a_column_option_names_the_tenant() -> None:
    options = ReadOptions(columns={"tenant": "http_x_org"})
    batch, _, _ = read("nginx-json", line(http_x_org="org-1"), options=options)
    assert told(batch)["tenant"] == ["org-1"]


def test_a_column_option_may_state_a_unit() -> None:
    options = ReadOptions(columns={"duration": "took:ms"})
    batch, _, _ = read("nginx-json", line(took="1500"), options=options)
    assert told(batch)["duration"] == [1.5]
    assert batch.arrived[0] == pytest.approx(1796006830.912, abs=1e-6, rel=0)


@pytest.mark.parametrize("columns", [{"tenant": 'a"b'}, {"tenant": "x", "model": "x"}])
def test_names_that_no_log_can_have_are_refused(columns: dict[str, str]) -> None:
    with pytest.raises(UnreadableError, match="each a different one"):
        read("nginx-json", line(), options=ReadOptions(columns=columns))


def test_what_float_alone_would_take_is_a_gap() -> None:
    log = line(upstream_header_time="1_0") + line(upstream_header_time=" 2.5") + line()
    assert told(read("nginx-json", log)[0])["ttft"] == [None, None, 2.118]


def test_a_line_beyond_the_bound_is_bad_and_its_neighbours_are_read() -> None:
    log = line() + line(user_agent="x" * LONGEST_LINE) + line()
    batch, account, _ = read("nginx-json", log)
    assert len(batch) == 2
    assert [(b.line, b.reason) for b in account.bad] == [(2, f"longer than {LONGEST_LINE} bytes")]


def test_runs_longer_than_a_piece_keep_order_and_line_numbers() -> None:
    log = b"".join(line(msec=f"{1796000000 + i}.000", request_time="0.000") for i in range(9100))
    assert len(log) > 2 * LONGEST_LINE
    batch, account, _ = read("nginx-json", log + b"{\n")
    assert np.array_equal(batch.arrived, 1796000000 + np.arange(9100))
    assert [b.line for b in account.bad] == [9101]


def test_a_first_line_beyond_the_bound_is_bad_too() -> None:
    batch, account, _ = read("nginx-json", line(user_agent="x" * LONGEST_LINE) + line())
    assert len(batch) == 1
    assert [b.line for b in account.bad] == [1]


def test_the_combined_format_has_ends_only() -> None:
    log = (
        b'203.0.113.9 - - [30/Nov/2026:02:47:12 +0000] "POST /v1/completions HTTP/1.1" 499 0\n'
        b'203.0.113.9 - - [30/Nov/2026:02:47:12 +0000] "GET /health HTTP/1.1" 200 2 "-" "curl"\n'
        b'203.0.113.9 - - [31/Feb/2026:02:47:12 +0000] "POST /v1/completions HTTP/1.1" 200 9\n'
        b"nothing of the kind\n"
    )
    batch, account, reader = read("nginx", log)
    assert told(batch) == {"arrived": [1796006832.0], "ended": [int(Ended.ABANDONED)]}
    assert reader.arrival_from == "end"
    assert account.ignored == {"probe": 1}
    assert [b.line for b in account.bad] == [3, 4]
