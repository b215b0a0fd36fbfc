"""LiteLLM's spend logs: CSV with JSON in its cells, and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import UnreadableError
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import read, told

KEY = "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b"


def row(**fields: Any) -> dict[str, Any]:
    usual = {
        "request_id": "chatcmpl-1",
        "call_type": "acompletion",
        "api_key": KEY,
        "prompt_tokens": 1100,
        "completion_tokens": 220,
        "startTime": "2026-11-30 02:46:41.250",
        "endTime": "2026-11-30 02:47:12.250",
        "completionStartTime": "2026-11-30 02:46:43.250",
        "model_group": "qwen3-32b",
        "metadata": {"user_api_key_alias": "batch, nightly"},
        "team_id": "team-a",
        "session_id": "s-9",
        "status": "success",
        "messages": "",
    }
    return usual | fields


def as_csv(*rows: dict[str, Any]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(row()), lineterminator="\n")
    writer.writeheader()
    for one in rows:
        writer.writerow(one | {"metadata": json.dumps(one["metadata"])})
    return out.getvalue().encode()


def as_json(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows)


@pytest.mark.parametrize(("name", "written"), [("litellm", as_csv), ("litellm-json", as_json)])
def test_both_forms_say_the_same(name: str, written: Any) -> None:
    log = written(row())
    assert registry.detect(log).name == name
    batch, account, _ = read(name, log)
    assert told(batch) == {
        "arrived": [1796006801.25],
        "duration": [31.0],
        "ttft": [2.0],
        "prompt_tokens": [1100],
        "output_tokens": [220],
        "ended": [int(Ended.COMPLETED)],
        "tenant": ["team-a"],
        "model": ["qwen3-32b"],
        "session": ["s-9"],
    }
    assert account.skipped == 0


def test_the_tenant_is_the_team_else_the_alias_else_a_hash_of_the_keys_hash() -> None:
    rows = [row(), row(team_id=""), row(team_id="", metadata={})]
    tenants = told(read("litellm", as_csv(*rows))[0])["tenant"]
    assert tenants[:2] == ["team-a", "batch, nightly"]
    assert str(tenants[2]).startswith("key-")
    assert KEY[:6] not in str(tenants[2])


@pytest.mark.parametrize(
    ("metadata", "ended"),
    [
        ({"error_information": {"error_code": "429"}}, Ended.REFUSED),
        ({"error_information": {"error_code": 503}}, Ended.REFUSED),
        ({"error_information": {"error_class": "RateLimitError"}}, Ended.REFUSED),
        ({"error_information": {"error_code": "499"}}, Ended.ABANDONED),
        ({"error_information": {"error_code": "500"}}, Ended.FAILED),
        ({}, Ended.FAILED),
        ("not JSON", Ended.FAILED),
    ],
)
def test_a_failure_ends_as_its_error_code_says(metadata: Any, ended: Ended) -> None:
    failed = row(status="failure", metadata=metadata, prompt_tokens=0, completion_tokens=0)
    for name, log in (("litellm", as_csv(failed)), ("litellm-json", as_json(failed))):
        assert told(read(name, log)[0])["ended"] == [ended]


def test_metadata_may_be_a_json_string_in_json() -> None:
    inner = json.dumps({"error_information": {"error_code": "429"}})
    batch, _, _ = read("litellm-json", as_json(row(status="failure", metadata=inner)))
    assert told(batch)["ended"] == [Ended.REFUSED]


def test_without_streaming_the_first_tokens_time_is_unknown() -> None:
    same = row(completionStartTime="2026-11-30 02:47:12.250")
    assert "ttft" not in told(read("litellm", as_csv(same))[0])


def test_a_cell_may_hold_newlines_commas_and_100_kilobytes() -> None:
    prompt = 'secret "quoted", 2026-11-30\n1,2\n' * 4000
    log = as_csv(row(messages=prompt), row(team_id="team-b"))
    assert len(log) > 100_000
    lines = log.splitlines(keepends=True)
    for pieces in ([log], lines):
        batch, account, _ = read("litellm", *pieces)
        assert told(batch)["tenant"] == ["team-a", "team-b"]
        assert account.skipped == 0


def test_a_quote_that_never_ends_is_bounded_and_said() -> None:
    _, account, _ = read("litellm", as_csv(row()) + b'x,"open\n' + b"line\n" * 10)
    assert account.rows == 1
    assert account.skipped == 1
    assert any("cut off" in note for note in account.notes)
    _, account, _ = read("litellm", as_csv(row()) + b'x,"open\n' + (b"y" * 99 + b"\n") * 11_000)
    assert account.bad[0].reason == "a quoted cell that does not end"


def test_short_rows_probes_and_other_calls_are_told_apart() -> None:
    log = as_csv(
        row(call_type="aimage_generation"), row(api_key="litellm-internal-health-check"), row()
    )
    _, account, _ = read("litellm", log + b"a,b\n")
    assert account.rows == 1
    assert account.ignored == {"header": 1, "no text request": 1, "probe": 1}
    assert [b.line for b in account.bad] == [5]


def test_a_csv_without_its_header_is_refused() -> None:
    with pytest.raises(UnreadableError, match="header"):
        read("litellm", as_csv(row()).split(b"\n", 1)[1])
