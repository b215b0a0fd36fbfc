"""A large chat's messages are read by themselves, and come out as the general way has them."""

from __future__ import annotations

import json

import pytest

from surgetank.wire.openai import BadRequest, Body, parse_request

CHAT = "/v1/chat/completions"
LONG = "the quick brown fox " * 2500
TEXT = json.dumps(LONG).encode()
OTHER = b'{"role":"user","content":%b}' % TEXT


def general(body: bytes) -> Body:
    """The same with an array in front, which keeps the messages from being taken apart."""
    parsed = parse_request(CHAT, b'{"mark":[],' + body.lstrip()[1:])
    assert parsed.apart is None
    return parsed


def priced(body: Body) -> tuple[object, ...]:
    return (
        body.model, body.stream, body.max_tokens, body.choices, body.prompt_bytes,
        body.prompt_chars, body.messages, body.include_usage, body.session,
    )  # fmt: skip


def sent(body: Body, **options: bool | int | None) -> dict[str, object]:
    parts = body.parts(**options)  # type: ignore[arg-type] # each has a type of its own
    members = json.loads(b"".join(parts))
    members.pop("mark", None)
    return members  # type: ignore[no-any-return] # an object


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[%b]}' % OTHER,
        b'{"messages":[%b],"model":"m"}' % OTHER,
        b'\n{ "model" : "m" , "messages" :\r\n [ %b ] , "max_tokens" : 5 }\t' % OTHER,
        b'{"model":"m","messages":[%b],"stream":true,"stream_options":{"include_usage":false}}'
        % OTHER,
        b'{"model":"m","messages":[%b],"max_completion_tokens":7,"max_tokens":9,"n":2}' % OTHER,
        b'{"model":"m","messages":[%b],"metadata":{"session_id":"s"},"priority":3}' % OTHER,
        b'{"model":"m","messages":[%b,{"role":"assistant","content":null,"tool_calls":[{"function":'
        b'{"name":"f","arguments":"{\\"a\\":[1]}"}}]}],"temperature":0.50}' % OTHER,
        b'{"model":"m","messages":[{"role":"user","content":"%b \\u00e9\\n \xc3\xa9"}]}'
        % TEXT.strip(b'"'),
    ],
)  # fmt: skip
def test_messages_that_stand_apart_are_priced_and_sent_as_any(body: bytes) -> None:
    parsed, other = parse_request(CHAT, body), general(body)
    assert parsed.apart is not None
    assert priced(parsed) == priced(other)
    assert sent(parsed) == sent(other)
    for options in ({"stream": True, "include_usage": True}, {"stream": False, "max_tokens": 3}):
        assert sent(parsed, **options) == sent(other, **options)
    assert b"".join(parsed.parts(stream=True, max_tokens=4)).count(TEXT.strip(b'"')) == 1
    members = dict(other.members)
    del members["mark"]
    assert parsed.members == members  # asked for as any, and the same from then on
    assert sent(parsed) == sent(other)


@pytest.mark.parametrize(
    "body",
    [
        # The last of duplicates counts, wherever it stands and however its name is written.
        b'{"model":"m","messages":[%b],"messages":[{"role":"user","content":"x"}]}' % OTHER,
        b'{"model":"m","messages":[%b],"m\\u0065ssages":[{"role":"user","content":"x"}]}' % OTHER,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"messages":[%b]}' % OTHER,
        b'{"model":"m","m\\u0065ssages":[{"role":"user","content":"x"}],"x":{"messages":[%b]}}'
        % OTHER,
        b'{"model":"m","messages":[ ],"x":{"messages":[%b]},"messages":[{"role":"user"}]}' % OTHER,
        # Other arrays.
        b'{"model":"m","messages":[%b],"stop":["a"]}' % OTHER,
        b'{"model":"m","messages":[%b],"tools":[{"x":"]"}]}' % OTHER,
        b'{"model":"a[b]","messages":[%b]}' % OTHER,
        b'{"model":"m","user":"%b","messages":[{"role":"user","content":"x"}]}' % (b"u" * 40_000),
    ],
)
def test_what_does_not_stand_out_is_read_the_general_way(body: bytes) -> None:
    parsed, other = parse_request(CHAT, body), general(body)
    assert parsed.apart is None
    assert priced(parsed) == priced(other)
    assert sent(parsed) == sent(other)


def test_the_last_of_duplicates_stands_apart_when_the_first_is_no_array() -> None:
    parsed = parse_request(CHAT, b'{"model":"m","messages":null,"messages":[%b]}' % OTHER)
    assert (parsed.messages, parsed.prompt_bytes) == (1, len(LONG))
    assert sent(parsed) == {"model": "m", "messages": [{"role": "user", "content": LONG}]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","x":{"messages":[%b]}}' % OTHER,
        b'{"model":"m","x\\"messages":[%b]}' % OTHER,
        b'{"model":"m","messages":[%b],"m\\u0065ssages":null}' % OTHER,
        b'{"model":"m","messages":[%b,]}' % OTHER,
        b'{"model":"m","messages":[%b]' % OTHER,
        b'{"model":"m","messages":[%b]}}' % OTHER,
        b'{"model":"m","messages":[%b,"a"]}' % OTHER,
        b'{"model":"m","messages":[%b]}' % OTHER.replace(b"fox", b"f\x01x"),
        b'{"model":"m","messages":[%b]}' % OTHER.replace(b"fox", b"f\xffx"),
        b'{"model":"m","messages":[%b]}' % OTHER.replace(b"fox", b"f\\qx"),
        b'{"model":"m","messages":[%b],"user":"\xff"}' % OTHER,
        b'{"messages":[%b]}' % OTHER,
        b'{"model":"m","messages":[%b],"max_tokens":0}' % OTHER,
    ],
)
def test_what_is_wrong_is_told_in_the_general_reader_s_words(body: bytes) -> None:
    with pytest.raises(BadRequest) as own:
        parse_request(CHAT, body)
    with pytest.raises(BadRequest) as other:
        general(body)
    assert (own.value.param, own.value.code) == (other.value.param, other.value.code)
    if own.value.code != "invalid_json":  # that tells a place, which the mark has moved
        assert str(own.value) == str(other.value)


def test_a_large_prompt_that_was_forgotten_is_held_no_more() -> None:
    parsed = parse_request(CHAT, b'{"model":"m","messages":[%b]}' % OTHER)
    assert "quick" not in repr(parsed)
    parsed.forget()
    assert parsed.members == {}
    assert parsed.apart is None
