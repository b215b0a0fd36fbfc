"""A chat of the usual form is read and written as the general reader would have it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.wire.request_body import CHAT, BadRequest, Body, parse_request
from surgetank.wire.usual_chat import read_usual

HELLO = [{"role": "user", "content": "hello"}]
MARK = b'"mark":1'  # a member of no usual name: the general reader takes the body


def usual(body: bytes) -> Body:
    parsed = parse_request(CHAT, body)
    assert parsed.usual is not None
    return parsed


def general(body: bytes) -> Body:
    parsed = parse_request(CHAT, b"{" + MARK + b"," + body.lstrip()[1:])
    assert parsed.usual is None
    return parsed


def told(parsed: Body) -> tuple[object, ...]:
    return (
        parsed.route, parsed.model, parsed.stream, parsed.max_tokens, parsed.choices,
        parsed.prompt_bytes, parsed.prompt_chars, parsed.prompt_tokens, parsed.messages,
        parsed.include_usage, parsed.session,
    )  # fmt: skip


def sent(parsed: Body, **how: Any) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(parsed.encode(**how))
    out.pop("mark", None)
    return out


CONTENTS = st.one_of(
    st.text(max_size=20),
    st.none(),
    st.lists(st.builds(lambda t: {"type": "text", "text": t}, st.text(max_size=9)), max_size=3),
)
MESSAGES = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, st.text(), CONTENTS),
    min_size=1,
    max_size=4,
)
MEMBERS = st.fixed_dictionaries(
    {"model": st.text(min_size=1, max_size=9), "messages": MESSAGES},
    optional={
        "max_tokens": st.integers(1, 2**31 - 1),
        "stream": st.booleans(),
        "temperature": st.one_of(st.none(), st.floats(0, 2)),
        "stop": st.one_of(st.none(), st.text(), st.lists(st.text(), max_size=2)),
        "seed": st.integers(),
        "user": st.text(),
        "response_format": st.just({"type": "json_object"}),
        "min_tokens": st.just(3),
    },
)


@given(MEMBERS, st.booleans(), st.sampled_from([None, True, False]))
def test_it_is_priced_and_sent_as_by_the_general_reader(
    members: dict[str, Any],
    ascii_only: bool,  # noqa: FBT001 - drawn
    stream: bool | None,  # noqa: FBT001 - drawn
) -> None:
    try:
        body = json.dumps(members, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        return
    a, b = usual(body), general(body)
    assert told(a) == told(b)
    assert sent(a, stream=stream) == sent(b, stream=stream)
    assert sent(a, stream=True, include_usage=True) == sent(b, stream=True, include_usage=True)
    assert sent(a, stream=False, max_tokens=7) == sent(b, stream=False, max_tokens=7)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"m","messages":null}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":"x"}',
        b'{"model":"m","messages":[{"content":"x"}]}',
        b'{"model":"m"}',
        b'{"model":"","messages":[{"role":"user","content":"x"}]}',
        b'{"model":null,"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":0}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":-1}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":2147483648}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1.5}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":1}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}]',
        b'{"model":"%b","messages":[{"role":"user","content":"x"}]}' % (b"m" * 257),
    ],
)
def test_what_is_not_well_is_refused_in_the_general_reader_s_words(body: bytes) -> None:
    with pytest.raises(BadRequest) as own:
        parse_request(CHAT, body)
    with pytest.raises(BadRequest) as other:
        general(body)
    assert own.value.param == other.value.param
    if own.value.code != "invalid_json":  # that tells a place, which the mark has moved
        assert str(own.value) == str(other.value)


@pytest.mark.parametrize(
    "more",
    [
        b'"priority":1', b'"Priority":1', b'"prior\\u0069ty":1', b'"kv_transfer_params":{}',
        b'"n_predict":1', b'"n":2', b'"tools":[]', b'"max_completion_tokens":5',
        b'"metadata":{"session_id":"s"}', b'"max_tokens":null', b'"stream":null', b'"mark":1',
    ],
)  # fmt: skip
def test_any_other_member_is_the_general_reader_s(more: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],' + more + b"}"
    assert read_usual(body) is None


def test_of_duplicates_the_last_is_priced_and_sent_and_no_other() -> None:
    parsed = usual(
        b'{"model":"a","max_tokens":5,"messages":[],"messages":[{"role":"user","content":"x"}],'
        b'"max_t\\u006fkens":9,"model":"b","user":"u","user":"v"}'
    )
    assert (parsed.model, parsed.max_tokens, parsed.messages) == ("b", 9, 1)
    out = parsed.encode(stream=False)
    assert (out.count(b"max_tokens"), out.count(b"user"), out.count(b"model")) == (1, 2, 1)
    assert sent(parsed)["user"] == "v"


def test_values_stay_byte_for_byte() -> None:
    parsed = usual(
        b'{"model":"m","messages":[ {"role":"user", "content":"\\u0041"} ],"temperature":0.70,'
        b'"seed":12345678901234567890,"stop":null}'
    )
    out = parsed.encode(stream=True)
    for value in (
        b'"messages":[ {"role":"user", "content":"\\u0041"} ]',
        b'"temperature":0.70',
        b'"seed":12345678901234567890',
        b'"stop":null',
        b'"stream":true',
    ):
        assert value in out
    assert parsed.members["temperature"] == b"0.70"


def test_what_was_forgotten_holds_no_prompt() -> None:
    parsed = usual(json.dumps({"model": "m", "messages": HELLO}).encode())
    assert "hello" not in repr(parsed)
    parsed.forget()
    assert parsed.members == {}
