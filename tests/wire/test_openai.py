"""Errors, usage, models and durations are written and read as OpenAI clients expect."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.request import Usage
from surgetank.wire.openai import (
    StreamError,
    error_body,
    error_event,
    error_of,
    format_reset,
    models_body,
    usage_of,
)
from surgetank.wire.sse import SseScanner


def test_an_error_body_has_all_four_members() -> None:
    body = error_body('no "model"', type="invalid_request_error", code="x", param="model")
    assert json.loads(body) == {
        "error": {
            "message": 'no "model"',
            "type": "invalid_request_error",
            "param": "model",
            "code": "x",
        }
    }
    bare = json.loads(error_body("m", type="t"))["error"]
    assert (bare["param"], bare["code"]) == (None, None)


def test_an_error_event_is_read_back_as_an_error() -> None:
    scanner = SseScanner()
    scanner.feed(error_event("gone", type="server_error", code="upstream_failed"))
    assert scanner.error == StreamError(500, "gone", "server_error")
    assert not scanner.partial


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("vllm/chat_nonstream.http", Usage(18, 6)),
        ("llamacpp/chat_nonstream.http", Usage(24, 6, 23)),
        ("vllm/unknown_model.http", None),
    ],
)
def test_usage_of_real_answers(
    capture: Callable[[str], bytes], name: str, usage: Usage | None
) -> None:
    assert usage_of(capture(name)) == usage


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("vllm/unknown_model.http", 404, "NotFoundError"),
        ("vllm/oversize_prompt.http", 400, "BadRequestError"),
        ("vllm/burst_overflow_503_nonstream.http", 503, "Service Unavailable"),
        ("llamacpp/oversize_prompt.http", 400, "exceed_context_size_error"),
        ("llamacpp/missing_messages.http", 400, "invalid_request_error"),
    ],
)
def test_errors_of_real_engines(
    capture: Callable[[str], bytes], name: str, status: int, kind: str
) -> None:
    error = error_of(capture(name))
    assert error is not None
    assert (error.status, error.type) == (status, kind)
    assert error.message


def test_old_errors_with_their_members_at_the_top_are_read_too() -> None:
    body = b'{"object":"error","message":"m","type":"t","param":null,"code":400}'
    assert error_of(body) == StreamError(400, "m", "t")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{broken",
        b'{"usage":null}',
        b'{"usage":7}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":-1}}',
        b'{"usage":{"prompt_tokens":true}}',
        b'{"usage":{"prompt_tokens":1.5}}',
        b'{"usage":{"prompt_tokens":"1"}}',
        b'{"usage":' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_an_answer_without_a_sound_usage_has_none(body: bytes) -> None:
    assert usage_of(body) is None
    assert error_of(body) is None


def test_cached_tokens_never_exceed_the_prompt() -> None:
    body = b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":9}}}'
    assert usage_of(body) == Usage(3, 0, 3)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_without_harm(data: bytes) -> None:
    for body in (data, b'{"usage":' + data + b"}", b'{"error":' + data + b"}"):
        usage = usage_of(body)
        assert usage is None or (usage.prompt_tokens or 0) >= 0
        error = error_of(body)
        assert error is None or 400 <= error.status <= 599


def test_the_list_of_models() -> None:
    listed = json.loads(models_body(["a", "b"], 7))
    assert listed["object"] == "list"
    assert [(m["id"], m["object"], m["created"]) for m in listed["data"]] == [
        ("a", "model", 7),
        ("b", "model", 7),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (math.nan, "0s"),
        (0.0001, "1ms"),
        (0.25, "250ms"),
        (0.9994, "1s"),
        (1, "1s"),
        (1.001, "2s"),
        (59.2, "1m0s"),
        (360, "6m0s"),
        (3723, "1h2m3s"),
        (math.inf, "87600h0m0s"),
    ],
)
def test_resets_are_written_as_openai_does_and_never_too_early(seconds: float, text: str) -> None:
    assert format_reset(seconds) == text
