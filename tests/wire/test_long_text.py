"""Long texts that are measured without being read have the sizes that reading them gives."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from surgetank.policy.prefix import MARKS
from surgetank.wire.long_text import cut
from surgetank.wire.openai import BadRequest, parse_request

CHAT = "/v1/chat/completions"
PLAIN = b"the quick brown fox " * 200
PIECES = (
    PLAIN, b"x" * 4097, b"\\n" * 700, b'\\"' * 40, b"\\\\" * 900, b"\\\\n", b"\\u00e9",
    b"\\ud834\\udd1e", "é".encode() * 9, "你好".encode() * 800, "𝄞".encode() * 500, b"\\", b'"',
    b"\\q", b"\n", b"\x01", b"\x7f", b"\xff", b"[", b"]", b"\\u00",
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join)


def general(body: bytes) -> bytes:
    """The same with an array in front, which keeps the messages from being taken apart."""
    return b'{"mark":[],' + body[1:]


def told(body: bytes) -> tuple[object, ...]:
    """What is measured, or which member is refused."""
    try:
        parsed = parse_request(CHAT, body)
    except BadRequest as error:
        return (error.param,)
    return parsed.prompt_bytes, parsed.prompt_chars, parsed.messages, parsed.prefix


def check(body: bytes) -> None:
    assert told(body) == told(general(body))


@given(st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from([b"", PLAIN * 9]))
@example([b"\\n" * 40_000], b"")  # the cut of the beginning falls within no escape
@example([b"y" + b"\\n" * 40_000], b"")
@example([b"y" + b"\\\\" * 40_000], b"")
@example(["é".encode() + b"\\n" * 70_000], b"")
@example([b"y" + "𝄞".encode() * 40_000], b"")
@example([PLAIN * 20], b"")
@settings(max_examples=200, deadline=None)
def test_texts_of_any_kind_are_measured_as_if_read(texts: list[bytes], more: bytes) -> None:
    messages = [b'{"role":"user","content":"%b"}' % text for text in [*texts, more, PLAIN * 9]]
    check(b'{"model":"m","messages":[%b]}' % b",\n".join(messages))


@pytest.mark.parametrize(
    "message",
    [
        b'{"role":"user","content":["%b",{"type":"text","text":"%b"}]}' % (PLAIN, PLAIN),
        b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"%b"}}]}' % PLAIN,
        b'{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"%b"}}]}' % PLAIN,
        b'{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":"%b"}}}]}'
        % PLAIN,
        b'{"role":"assistant","function_call":{"name":"f","arguments":{"%b":[1]}}}' % PLAIN,
        b'{"role":"user","content":"%b","content":"b"}' % PLAIN,
        b'{"role":"user","content":"b","%b":"%b"}' % (PLAIN, PLAIN),
        b'{"role":"%b","reasoning_content":"%b"}' % (PLAIN, PLAIN),
        b'{"role":"user","content":%b}' % json.dumps({"a": 1}).encode(),
        b'{"role":"user","content":"%b}' % PLAIN,
        b'{"role":"user","content":\\"%b"}' % PLAIN,
        b'{"role":"user","content":"%b"x}' % PLAIN,
        b'{"role":"user","content":"%b"}\\' % PLAIN,
    ],
)
def test_only_texts_that_are_prompt_count_and_faults_between_them_are_found(message: bytes) -> None:
    check(b'{"model":"m","messages":[%b,{"role":"user","content":"%b"}]}' % (message, PLAIN * 9))


def test_a_long_text_is_not_read() -> None:
    body = b'["%b","short","%b"]' % (PLAIN, "né".encode() * 3000)
    taken = cut(body, 0, len(body))
    assert taken is not None
    first, second = json.loads(taken.rest)[::2]
    assert len(taken.rest) < 200
    assert taken.texts[first][:2] == (len(PLAIN), len(PLAIN))
    assert taken.texts[second][:2] == (9000, 6000)
    assert taken.texts[second].beginning(10).startswith("né" * 5)


def test_what_begins_a_long_text_is_read_as_far_as_it_is_asked_for() -> None:
    body = b'"%b"' % (b"\\t" * 100_000)
    taken = cut(body, 0, len(body))
    assert taken is not None
    (text,) = taken.texts.values()
    begin = text.beginning(MARKS[-1])
    assert set(begin) == {"\t"}
    assert MARKS[-1] <= len(begin) < 50_000
