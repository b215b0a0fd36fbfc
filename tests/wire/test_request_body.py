"""A request body is read strictly, priced as it is sent, and otherwise left as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.wire.openai import ROUTES, BadRequest, Body, parse_request

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def chat(**members: object) -> Body:
    body = {"model": "m", "messages": HELLO} | members
    return parse_request(CHAT, json.dumps(body, ensure_ascii=False).encode())


def text(**members: object) -> Body:
    body = {"model": "m", "prompt": "hello"} | members
    return parse_request(TEXT, json.dumps(body).encode())


def sent(body: bytes) -> Any:
    """Read what was written, and hold that no member stands twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    return json.loads(body, object_pairs_hook=once)


def test_a_plain_chat_request() -> None:
    body = chat()
    assert (body.route, body.model, body.stream, body.max_tokens) == (CHAT, "m", False, None)
    assert (body.choices, body.messages, body.session) == (1, 1, "")
    assert (body.prompt_bytes, body.prompt_chars, body.prompt_tokens) == (5, 5, None)
    assert body.include_usage is None


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_content": "four"},
        {"tool_calls": [{"function": {"name": "f", "arguments": "{1}"}}]},
        {"function_call": {"name": "f", "arguments": "{1}"}},
    ],
)
def test_a_message_alone_counts_with_all_its_text(more: dict[str, object]) -> None:
    assert chat(messages=[{"role": "assistant", "content": "hello"} | more]).prompt_bytes == 9


def test_text_of_all_kinds_counts_and_data_does_not() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    messages = [
        {"role": "system", "content": "né"},
        {"role": "user", "content": [{"type": "text", "text": "你好"}, image, "x"]},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "assistant", "function_call": {"name": "g", "arguments": {"b": "c"}}},
        {"role": "tool", "content": "ok", "tool_call_id": "1"},
    ]
    body = chat(messages=messages)
    assert body.messages == 6
    assert body.prompt_chars == 2 + 2 + 1 + 2 + 8 + 5 + 2
    assert body.prompt_bytes == 3 + 6 + 1 + 2 + 8 + 5 + 2
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat(tools=tools).prompt_bytes == 5 + len(json.dumps(tools))


@pytest.mark.parametrize(
    ("prompt", "size"),
    [
        ("héllo", (6, 5, None, 1)),
        ("", (0, 0, None, 1)),
        (["ab", "c"], (3, 3, None, 2)),
        ([1, 2, 3], (0, 0, 3, 1)),
        ([[1, 2], [3]], (0, 0, 3, 2)),
    ],
)
def test_prompts_of_every_form(prompt: object, size: tuple[int, int, int | None, int]) -> None:
    body = text(prompt=prompt, n=3, best_of=4)
    assert (body.prompt_bytes, body.prompt_chars, body.prompt_tokens, body.messages) == size
    assert body.choices == 4 * size[3]


def test_the_limit_that_is_priced_is_the_one_that_is_sent() -> None:
    body = chat(max_tokens=100, max_completion_tokens=7)
    assert body.max_tokens == 7
    assert (sent(body.encode())["max_tokens"], sent(body.encode())["max_completion_tokens"]) == (
        7,
        7,
    )
    cut = sent(body.encode(max_tokens=3))
    assert (cut["max_tokens"], cut["max_completion_tokens"]) == (3, 3)
    assert "max_tokens" not in sent(chat(max_completion_tokens=7).encode(max_tokens=3))
    assert sent(chat().encode(max_tokens=3))["max_tokens"] == 3
    assert "max_tokens" not in sent(chat().encode())
    assert sent(chat(max_tokens=None, max_completion_tokens=9).encode())["max_tokens"] is None


def test_names_that_engines_read_instead_are_priced_or_dropped() -> None:
    body = chat(max_tokens=5, n_predict=9000, n=2, n_cmpl=64)
    assert (body.max_tokens, body.choices) == (5, 2)
    assert {"n_predict", "n_cmpl"}.isdisjoint(sent(body.encode()))
    body = chat(n_predict=9)
    assert (body.max_tokens, sent(body.encode())["max_tokens"]) == (9, 9)
    assert chat(n_predict=-1).max_tokens is None
    body = text(max_completion_tokens=9)
    assert body.max_tokens == 9
    assert sent(body.encode())["max_tokens"] == 9
    assert "max_completion_tokens" not in sent(body.encode())


def test_duplicates_collapse_to_the_last() -> None:
    raw = (
        b'{"model":"a","model":"m","n":9,"n":2,"max_tokens":1,"\\u006dax_tokens":50,'
        b'"messages":[],"messages":[{"role":"user","content":"xyz"}]}'
    )
    body = parse_request(CHAT, raw)
    assert (body.model, body.choices, body.max_tokens, body.prompt_bytes) == ("m", 2, 50, 3)
    out = sent(body.encode())
    assert (out["model"], out["n"], out["max_tokens"]) == ("m", 2, 50)


def test_of_duplicates_inside_a_message_the_last_is_priced_as_engines_read_it() -> None:
    message = b'{"role":"user","content":"%b","content":"xyz"}' % (b"a" * 100)
    body = parse_request(CHAT, b'{"model":"m","messages":[%b]}' % message)
    assert body.prompt_bytes == 3
    assert message in body.encode()


def test_members_are_sent_byte_for_byte() -> None:
    odd = b'{ "b" : 1.50e+01,\t"a":[ ],"c":123456789012345678901234567890,"\\u00e9":"\\u00e9\\/"}'
    messages = b'[{"role":"user","content":"a\\u0062\\n"} ]'
    body = parse_request(CHAT, b'{"x":%b , "model" : "m","messages":%b}' % (odd, messages))
    assert body.encode() == b'{"x":%b,"model":"m","messages":%b}' % (odd, messages)


def test_priorities_and_transfers_of_the_client_never_go_up() -> None:
    body = chat(priority=-1, kv_transfer_params={"a": 1}, user="u")
    assert set(sent(body.encode())) == {"model", "messages", "user"}
    own = body.encode(members={"kv_transfer_params": b'{"b":2}', "priority": b"3"}, drop={"user"})
    assert sent(own)["kv_transfer_params"] == {"b": 2}
    assert sent(own)["priority"] == 3
    assert "user" not in sent(own)


def test_usage_is_asked_for_without_touching_other_stream_options() -> None:
    body = chat(stream=True, stream_options={"continuous_usage_stats": True})
    assert body.include_usage is None
    assert sent(body.encode(include_usage=True))["stream_options"] == {
        "continuous_usage_stats": True,
        "include_usage": True,
    }
    assert chat(stream=True, stream_options={"include_usage": False}).include_usage is False
    body = chat(stream=True, stream_options={"include_usage": True})
    assert body.include_usage is True
    assert "stream_options" not in sent(body.encode(stream=False))
    upstream = sent(chat().encode(stream=True, include_usage=True))
    assert (upstream["stream"], upstream["stream_options"]) == (True, {"include_usage": True})
    assert "stream_options" not in sent(chat().encode(include_usage=True))


def test_session_is_taken_from_metadata_and_bounded() -> None:
    assert chat(metadata={"session_id": "s"}).session == "s"
    assert chat(metadata={"session_id": None}).session == ""
    assert chat(metadata=None).session == ""
    assert len(chat(metadata={"session_id": "s" * 9000}).session) == 256


BAD: list[tuple[str, bytes, str | None]] = [
    (CHAT, b"", None),
    (CHAT, b"nonsense", None),
    (CHAT, b"[]", None),
    (CHAT, b'"x"', None),
    (CHAT, b"null", None),
    (CHAT, b'{"model":"m"', None),
    (CHAT, b'{"model":"m"} x', None),
    (CHAT, b'\xef\xbb\xbf{"model":"m"}', None),
    (CHAT, b'{"model":"m","x":NaN}', None),
    (CHAT, b'{"model":"m","x":[Infinity]}', None),
    (CHAT, b'{"model":"m","x":"\xff"}', None),
    (CHAT, b'{"model":"m","x":"\\ud800"}', None),
    (CHAT, b'{"model":"m","x":"\x00"}', None),
    (CHAT, b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    (CHAT, b'{"messages":[{"role":"user","content":"x"}]}', "model"),
    (CHAT, b'{"model":"m"}', "messages"),
    (TEXT, b'{"model":"m"}', "prompt"),
    (TEXT, b'{"model":"m","prompt":null}', "prompt"),
    (TEXT, b'{"model":"m","prompt":[]}', "prompt"),
    (TEXT, b'{"model":"m","prompt":[[]]}', "prompt"),
    (TEXT, b'{"model":"m","prompt":[1,"a"]}', "prompt[1]"),
    (TEXT, b'{"model":"m","prompt":["a",1]}', "prompt[1]"),
    (TEXT, b'{"model":"m","prompt":[-1]}', "prompt[0]"),
    (TEXT, b'{"model":"m","prompt":[1.5]}', "prompt[0]"),
    (TEXT, b'{"model":"m","prompt":[true]}', "prompt[0]"),
    (TEXT, b'{"model":"m","prompt":[99999999999999999999999]}', "prompt[0]"),
    (TEXT, b'{"model":"m","prompt":{"a":1}}', "prompt"),
    (TEXT, b'{"model":"m","prompt":7}', "prompt"),
]


@pytest.mark.parametrize(("route", "body", "param"), BAD)
def test_what_is_no_request_is_refused_and_told_why(
    route: str, body: bytes, param: str | None
) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(route, body)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert caught.value.message
    assert caught.value.code


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": 7}, "model"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"model": "m" * 300}, "model"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [*HELLO, {"role": 1}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]},
            "messages[0].content[0].text",
        ),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"session_id": 7}}, "metadata.session_id"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        *(
            ({name: value}, name)
            for name in ("max_tokens", "max_completion_tokens", "n")
            for value in (-1, 0, True, 1.0, 1.5, "7", 10**30, 2**31, [1])
        ),
        ({"n": 129}, "n"),
        ({"n_predict": -2}, "n_predict"),
    ],
)
def test_a_wrong_member_is_named(members: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**members)
    assert caught.value.param == param
    assert param in caught.value.message
    assert caught.value.code


def test_limits_at_their_edges_are_accepted() -> None:
    assert chat(max_tokens=1).max_tokens == 1
    assert chat(max_tokens=2**31 - 1).max_tokens == 2**31 - 1
    assert chat(n=128).choices == 128


def test_an_error_does_not_quote_the_prompt() -> None:
    with pytest.raises(BadRequest) as caught:
        chat(messages=[{"role": "user", "content": {"secret": "hunter2"}}])
    assert "hunter2" not in caught.value.message
    assert "secret" not in caught.value.message
    assert "hunter2" not in repr(chat(messages=[{"role": "user", "content": "hunter2"}]))


NAMES = [
    "model", "stream", "messages", "prompt", "n", "best_of", "max_tokens", "max_completion_tokens",
    "n_predict", "stream_options", "metadata", "tools", "suffix", "priority", "other",
]  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["user", "\ud800", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "text", "type", "include_usage", "session_id", "tool_calls",
                 "function", "arguments", "name"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60)
@given(st.sampled_from(sorted(ROUTES)), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_any_values_are_accepted_or_refused_and_never_crash(
    route: str, members: dict[str, Any]
) -> None:
    base: dict[str, Any] = {"model": "m", "messages": HELLO, "prompt": "p"}
    raw = json.dumps(base | members).encode()
    try:
        body = parse_request(route, raw)
    except BadRequest as error:
        refusal = error
    else:
        again = parse_request(route, body.encode())
        assert (again.max_tokens, again.choices) == (body.max_tokens, body.choices)
        assert (again.prompt_bytes, again.prompt_tokens) == (body.prompt_bytes, body.prompt_tokens)
        return
    assert refusal.message


@given(st.sampled_from(sorted(ROUTES)), st.binary(max_size=80))
def test_any_bytes_are_refused_and_never_crash(route: str, data: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(route, data)
    with pytest.raises(BadRequest):
        parse_request(route, b'{"model":"m","messages":' + data)
