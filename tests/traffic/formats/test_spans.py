"""OpenTelemetry spans and Langfuse observations: names old and new, and what is no model call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import read, told

START, END = 1796006801250000000, 1796006832250000000  # 31 s


def value(of: object) -> dict[str, object]:
    if isinstance(of, bool):
        return {"boolValue": of}
    kind = {str: "stringValue", int: "intValue", float: "doubleValue"}[type(of)]
    return {kind: of}


def span(said: dict[str, object], *, start: object = START, end: object = END, **more: Any) -> Any:
    attributes = [{"key": key, "value": value(of)} for key, of in said.items()]
    return {
        "name": "chat",
        "startTimeUnixNano": start,
        "endTimeUnixNano": end,
        "attributes": attributes,
        **more,
    }


def export(*spans: Any, scope: str = "scopeSpans", service: str = "bot") -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    groups = [{"resource": resource, scope: [{"spans": list(spans)}]}]
    return json.dumps({"resourceSpans": groups}).encode() + b"\n"


NEW: dict[str, object] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.usage.input_tokens": 1100,
    "gen_ai.usage.output_tokens": 220,
    "gen_ai.response.time_to_first_chunk": 2.0,
}
OLD: dict[str, object] = {
    "gen_ai.system": "openai",
    "gen_ai.request.model": "m",
    "gen_ai.usage.prompt_tokens": 1100,
    "gen_ai.usage.completion_tokens": 220,
    "gen_ai.latency.time_to_first_token": 2.0,
}


@pytest.mark.parametrize("said", [NEW, OLD])
@pytest.mark.parametrize("nanos", [int, str])
@pytest.mark.parametrize("scope", ["scopeSpans", "instrumentationLibrarySpans"])
def test_spans_old_and_new_say_the_same(said: dict[str, object], nanos: Any, scope: str) -> None:
    log = export(span(said, start=nanos(START), end=nanos(END)), scope=scope)
    assert registry.detect(log).name == "otel"
    batch, account, _ = read("otel", log)
    assert told(batch) == {
        "arrived": [1796006801.25],
        "duration": [31.0],
        "ttft": [2.0],
        "prompt_tokens": [1100],
        "output_tokens": [220],
        "ended": [int(Ended.COMPLETED)],
        "tenant": ["bot"],
        "model": ["m"],
    }
    assert account.skipped == 0


def test_a_line_holds_several_spans_and_only_model_calls_count() -> None:
    tool = span({"gen_ai.operation.name": "execute_tool"})
    other = span({"http.method": "GET"})
    batch, account, _ = read("otel", export(span(NEW), tool, other, span(NEW | {"tenant.id": "t"})))
    assert told(batch)["tenant"] == ["bot", "t"]
    assert account.ignored == {
        "span of no model call (tool, agent, ...)": 1,
        "span of something else": 1,
    }


@pytest.mark.parametrize(
    ("said", "code", "ended"),
    [
        ({"error.type": "429"}, 2, Ended.REFUSED),
        ({"error.type": "503"}, 2, Ended.REFUSED),
        ({"error.type": "openai.RateLimitError"}, 2, Ended.REFUSED),
        ({"error.type": "CancelledError"}, 2, Ended.ABANDONED),
        ({"error.type": "timeout"}, 2, Ended.FAILED),
        ({}, 2, Ended.FAILED),
        ({}, "STATUS_CODE_ERROR", Ended.FAILED),
        ({}, 0, Ended.COMPLETED),
    ],
)
def test_an_error_type_tells_how_a_span_ended(said: Any, code: Any, ended: Ended) -> None:
    batch, _, _ = read("otel", export(span(NEW | said, status={"code": code})))
    assert told(batch)["ended"] == [ended]


def test_spans_of_both_sides_are_said_to_count_twice() -> None:
    _, account, _ = read("otel", export(span(NEW, kind=3)) + export(span(NEW, kind=2)))
    assert any("counts twice" in note for note in account.notes)


def test_a_span_without_times_is_bad_and_metrics_are_no_spans() -> None:
    log = export(span(NEW, start="soon")) + b'{"resourceMetrics":[]}\n' + export(span(NEW))
    batch, account, _ = read("otel", log)
    assert len(batch) == 1
    assert [b.line for b in account.bad] == [1]
    assert account.ignored == {"no spans (metrics or logs)": 1}


GENERATION: dict[str, Any] = {
    "id": "o",
    "trace_id": "t",
    "type": "GENERATION",
    "start_time": "2026-11-30T02:46:41.250Z",
    "end_time": "2026-11-30T02:47:12.250Z",
    "completion_start_time": "2026-11-30T02:46:43.250Z",
    "level": "DEFAULT",
    "provided_model_name": "m",
    "usage_details": {"input": 1100, "output": 220, "input_cached_tokens": 80},
    "user_id": "u-17",
    "session_id": "s-9",
    "input": "secret",
}


def observation(**fields: Any) -> bytes:
    return json.dumps(GENERATION | fields).encode() + b"\n"


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def test_the_exports_and_the_apis_spelling_say_the_same() -> None:
    api = {camel(name): of for name, of in GENERATION.items()}
    log = json.dumps(api).encode() + b"\n"
    assert registry.detect(log).name == "langfuse"
    expected = told(read("langfuse", observation())[0])
    assert told(read("langfuse", log)[0]) == expected
    assert expected["arrived"] == [1796006801.25]
    assert (expected["duration"], expected["ttft"]) == ([31.0], [2.0])
    assert expected["cached_tokens"] == [80]


def test_the_latency_serves_where_an_end_is_missing() -> None:
    log = observation(
        end_time=None, completion_start_time=None, latency=31.5, time_to_first_token=2
    )
    found = told(read("langfuse", log)[0])
    assert (found["duration"], found["ttft"]) == ([31.5], [2.0])
    assert "ended" not in found  # it may still run


@pytest.mark.parametrize(
    ("message", "ended"), [("Error 429: slow down", Ended.REFUSED), ("boom", Ended.FAILED)]
)
def test_an_error_is_refused_or_failed_by_its_message(message: str, ended: Ended) -> None:
    log = observation(level="ERROR", status_message=message)
    assert told(read("langfuse", log)[0])["ended"] == [ended]


def test_characters_are_no_tokens() -> None:
    usage = {"input": 4400, "output": 880, "unit": "CHARACTERS"}
    batch, account, _ = read("langfuse", observation(usage_details=None, usage=usage))
    assert "prompt_tokens" not in told(batch)
    assert any("characters" in note for note in account.notes)
