"""Requests, streams and errors of the routes beside completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surgetank.policy.request import Usage
from surgetank.wire.dialect import error_for, event_for
from surgetank.wire.native_body import parse_native
from surgetank.wire.native_stream import NativeAssembler, NativeScanner
from surgetank.wire.openai import AssembleError, BadRequest, error_body, is_whole, usage_of

RESPONSES, MESSAGES, EMBEDDINGS = "/v1/responses", "/v1/messages", "/v1/embeddings"
COUNT = "/v1/messages/count_tokens"


def body(**members: Any) -> bytes:
    return json.dumps({"model": "m", **members}).encode()


@pytest.mark.parametrize(
    ("route", "sent", "size", "items", "bound"),
    [
        (EMBEDDINGS, body(input="abc"), 3, 1, None),
        (EMBEDDINGS, body(input=["abc", "de"], stream=True), 5, 2, None),
        (EMBEDDINGS, body(messages=[{"role": "user", "content": "abc"}]), 3, 1, None),
        (RESPONSES, body(input="abc", instructions="de", max_output_tokens=7), 5, 2, 7),
        (
            RESPONSES,
            body(
                input=[
                    {"role": "user", "content": [{"type": "input_text", "text": "abc"}]},
                    {"type": "input_image", "image_url": "data:" + "x" * 999},
                    {"type": "function_call_output", "call_id": "c1", "output": "de"},
                ]
            ),
            7,
            3,
            None,
        ),
        (
            MESSAGES,
            body(
                max_tokens=9,
                system=[{"type": "text", "text": "ab", "cache_control": {"type": "ephemeral"}}],
                messages=[
                    {"role": "user", "content": "abc"},
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "data": "x" * 999}},
                            {"type": "document", "source": {"type": "text", "data": "def"}},
                            {"type": "tool_result", "content": [{"type": "text", "text": "g"}]},
                        ],
                    },
                ],
            ),
            9,
            3,
            9,
        ),
        (COUNT, body(messages=[{"role": "user", "content": "abc"}], max_tokens=5), 3, 1, None),
    ],
)
def test_all_text_of_a_request_is_priced_and_media_are_not(
    route: str, sent: bytes, size: int, items: int, bound: int | None
) -> None:
    parsed = parse_native(route, sent)
    assert (parsed.prompt_bytes, parsed.messages, parsed.max_tokens) == (size, items, bound)
    assert not parsed.stream
    assert json.loads(parsed.encode(stream=False)) == json.loads(sent)


@pytest.mark.parametrize("given", [[], [[]], [[1], []]])
def test_an_input_without_anything_is_refused_by_its_own_name(given: list[object]) -> None:
    with pytest.raises(BadRequest, match="'input': must not be or hold an empty array"):
        parse_native(EMBEDDINGS, body(input=given))


def test_token_ids_are_counted_exactly_and_sessions_and_streams_are_seen() -> None:
    assert parse_native(EMBEDDINGS, body(input=[[1, 2, 3], [4]])).prompt_tokens == 4
    asked = {"input": "a", "metadata": {"session_id": "s"}, "stream": True}
    parsed = parse_native(RESPONSES, body(**asked))
    assert (parsed.stream, parsed.session) == (True, "s")
    asked = {"messages": "a", "metadata": {"user_id": "u"}}
    assert parse_native(MESSAGES, body(**asked)).session == "u"


def test_no_other_name_lets_an_engine_give_more_than_was_priced() -> None:
    tricks = {"max_tokens": 9999, "max_completion_tokens": 9999, "n": 64, "best_of": 64}
    parsed = parse_native(RESPONSES, body(input="a", max_output_tokens=5, **tricks, n_predict=9))
    assert json.loads(parsed.encode()) == {"model": "m", "input": "a", "max_output_tokens": 5}
    assert json.loads(parsed.encode(max_tokens=3))["max_output_tokens"] == 3
    del tricks["max_tokens"]
    parsed = parse_native(MESSAGES, body(messages="a", max_tokens=5, **tricks))
    assert json.loads(parsed.encode(max_tokens=3)) == {
        "model": "m",
        "messages": "a",
        "max_tokens": 3,
    }


@pytest.mark.parametrize(
    ("route", "sent", "param"),
    [
        (EMBEDDINGS, body(), "input"),
        (EMBEDDINGS, body(input={}), "input"),
        (EMBEDDINGS, b'{"input":"a"}', "model"),
        (RESPONSES, body(), "input"),
        (RESPONSES, body(input=None), "input"),
        (RESPONSES, body(input="a", max_output_tokens=0), "max_output_tokens"),
        (RESPONSES, body(input="a", stream="yes"), "stream"),
        (RESPONSES, body(input="a", background=True), "background"),
        (RESPONSES, body(input="a", previous_response_id="r"), "previous_response_id"),
        (MESSAGES, body(max_tokens=5), "messages"),
        (MESSAGES, body(messages="a", max_tokens=-1), "max_tokens"),
        (MESSAGES, body(messages="a", metadata={"user_id": 5}), "metadata.user_id"),
    ],
)
def test_what_is_no_request_is_refused_and_the_member_named(
    route: str, sent: bytes, param: str
) -> None:
    with pytest.raises(BadRequest) as error:
        parse_native(route, sent)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"prompt_tokens": 7, "total_tokens": 7}}, Usage(7, 0, 0)),
        ({"usage": {"input_tokens": 7, "output_tokens": 2}}, Usage(7, 2, 0)),
        (
            {
                "usage": {
                    "input_tokens": 7,
                    "output_tokens": 2,
                    "input_tokens_details": {"cached_tokens": 3},
                }
            },
            Usage(7, 2, 3),
        ),
        (
            {"usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 15}},
            Usage(16, 2, 15),
        ),
        ({"input_tokens": 16}, Usage(16, 0, 0)),
        ({"usage": {"input_tokens": -1}}, None),
        ({"usage": {"output_tokens": 1}}, None),
    ],
)
def test_usage_is_read_in_every_dialect(answer: Any, usage: Usage | None) -> None:
    assert usage_of(json.dumps(answer).encode()) == usage


TOOL = [
    '{"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":4}}}',
    '{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}',
    '{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}',
    '{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}',
    '{"type":"content_block_stop","index":0}',
    (
        '{"type":"content_block_start","index":1,'
        '"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}'
    ),
    (
        '{"type":"content_block_delta","index":1,'
        '"delta":{"type":"input_json_delta","partial_json":"{\\"a\\": "}}'
    ),
    (
        '{"type":"content_block_delta","index":1,'
        '"delta":{"type":"input_json_delta","partial_json":"1}"}}'
    ),
    '{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":3}}',
    '{"type":"message_stop"}',
]


def test_a_message_is_put_together_block_by_block_however_it_is_cut() -> None:
    stream = "".join(f"data: {event}\n\n" for event in TOOL).encode()
    for step in (1, 7, len(stream)):
        assembler, scanner = NativeAssembler(), NativeScanner()
        for at in range(0, len(stream), step):
            assembler.feed(stream[at : at + step])
            assert scanner.feed(stream[at : at + step]) == stream[at : at + step]
        assert json.loads(assembler.result()) == {
            "id": "m",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
            "usage": {"input_tokens": 4, "output_tokens": 3},
            "stop_reason": "tool_use",
        }
        assert (scanner.usage, scanner.finish_reason) == (Usage(4, 3, 0), "tool_use")
        assert scanner.done
        assert not scanner.partial


@pytest.mark.parametrize("kept", range(len(TOOL)))
def test_a_message_without_its_last_event_is_none_and_its_tokens_are_counted(kept: int) -> None:
    stream = "".join(f"data: {event}\n\n" for event in TOOL[:kept]).encode()
    assembler, scanner = NativeAssembler(), NativeScanner()
    assembler.feed(stream)
    scanner.feed(stream)
    with pytest.raises(AssembleError):
        assembler.result()
    assert not scanner.done
    if 0 < kept < 9:
        assert scanner.usage == Usage(4, scanner.tokens, 0)


def test_errors_are_told_in_the_form_of_their_route() -> None:
    told = error_body("no", type="rate_limit_error", code="queue_full")
    assert error_for(RESPONSES, 429, told) == told
    for status, kind in (
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (431, "invalid_request_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ):
        told_so = json.loads(error_for(MESSAGES, status, told))
        assert told_so == {"type": "error", "error": {"type": kind, "message": "no"}}
    own = b'{"type":"error","error":{"type":"x","message":"of the engine"}}'
    assert error_for(COUNT, 400, own) == own
    event = event_for(RESPONSES, 502, "lost", type="server_error", code="upstream_failed")
    data = json.loads(event.decode().splitlines()[1].removeprefix("data: "))
    assert (data["type"], data["message"], data["error"]["message"]) == ("error", "lost", "lost")


def test_half_an_answer_is_not_whole() -> None:
    assert is_whole(b'{"a": [1, NaN, Infinity]}')
    assert not is_whole(b'{"a": [1, 2')
    assert not is_whole(b"")
    assert not is_whole(b"[" * 100_000)
