"""Load balancer and CloudFront logs: when a request came, and which columns say so."""

from __future__ import annotations

import pytest

from surgetank.traffic.formats.reading import LONGEST_LINE
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import SAMPLES, read, told

ALB, SECOND_ALB = (SAMPLES / "alb.log").read_bytes().splitlines(keepends=True)
VERSION, FIELDS, ROW = (SAMPLES / "cloudfront.log").read_bytes().splitlines(keepends=True)


def test_a_load_balancers_creation_time_is_the_arrival_whatever_the_waits() -> None:
    batch, _, _ = read("alb", SECOND_ALB)
    assert told(batch)["arrived"] == [pytest.approx(1796006803.001, abs=1e-6, rel=0)]
    assert "ttft" not in told(batch)  # -1: no target was reached


@pytest.mark.parametrize(
    ("status", "ended"),
    [(b"460", Ended.ABANDONED), (b"504", Ended.FAILED), (b"429", Ended.REFUSED)],
)
def test_a_load_balancers_own_status_decides(status: bytes, ended: Ended) -> None:
    batch, _, _ = read("alb", SECOND_ALB.replace(b" 503 - ", b" " + status + b" - "))
    assert told(batch)["ended"] == [ended]


def test_a_quoted_agent_with_quotes_and_spaces_moves_no_field() -> None:
    odd = ALB.replace(b'"OpenAI/Python 1.55.0"', rb'"a \"b c\" [x] 200 503"')
    assert told(read("alb", odd)[0]) == told(read("alb", ALB)[0])


def test_load_balancer_probes_and_short_lines() -> None:
    probe = ALB.replace(
        b"POST https://llm.example.com:443/v1/chat/completions", b"GET http://x/ping"
    )
    garbage = ALB.replace(
        b"POST https://llm.example.com:443/v1/chat/completions", b"- http://x:80-"
    )
    batch, account, _ = read("alb", probe + garbage + b"https only\n" + ALB)
    assert len(batch) == 1
    assert account.ignored == {"probe": 1, "not HTTP": 1}
    assert [b.line for b in account.bad] == [3]


def test_the_fields_line_governs_the_columns_even_in_mid_file() -> None:
    fewer = b"#Fields: time date sc-status cs-method cs-uri-stem time-taken\n"
    row = b"02:47:12\t2026-11-30\t429\tPOST\t/v1/completions\t0.500\n"
    batch, account, _ = read("cloudfront", VERSION + FIELDS + ROW + fewer + row + ROW)
    assert told(batch)["arrived"] == pytest.approx([1796006800.796, 1796006831.5], abs=1e-6, rel=0)
    assert told(batch)["ended"] == [Ended.COMPLETED, Ended.REFUSED]
    assert [b.line for b in account.bad] == [6]  # the long row after the short header


def test_a_piece_without_its_fields_line_is_read_in_the_usual_order_and_that_is_said() -> None:
    batch, account, _ = read("cloudfront", ROW)
    assert len(batch) == 1
    assert any("#Fields" in note for note in account.notes)


@pytest.mark.parametrize(
    ("status", "result", "ended"),
    [
        (b"000", b"Error", Ended.ABANDONED),
        (b"200", b"ClientCommError", Ended.ABANDONED),
        (b"503", b"LimitExceeded", Ended.REFUSED),
        (b"502", b"Error", Ended.FAILED),
    ],
)
def test_cloudfronts_results_tell_how_a_request_ended(
    status: bytes, result: bytes, ended: Ended
) -> None:
    row = ROW.replace(b"\t200\t", b"\t" + status + b"\t").replace(
        b"\tMiss\t", b"\t" + result + b"\t"
    )
    batch, _, _ = read("cloudfront", FIELDS + row)
    assert told(batch)["ended"] == [ended]


def test_an_escaped_path_is_the_path() -> None:
    row = ROW.replace(b"/v1/chat/completions", b"/my%20team/v1/chat%2Fcompletions")
    assert len(read("cloudfront", FIELDS + row)[0]) == 1
    static = ROW.replace(b"/v1/chat/completions", b"/app%20one.js")
    assert read("cloudfront", FIELDS + static)[1].ignored == {"comment": 1, "static file": 1}


def test_a_line_beyond_the_bound_is_bad() -> None:
    _, account, _ = read("cloudfront", FIELDS + b"x" * (LONGEST_LINE + 1) + b"\n" + ROW)
    assert [b.line for b in account.bad] == [2]
    assert account.rows == 1
