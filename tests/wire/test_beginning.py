"""Hashes of how prompts begin: equal where texts are, and only as far."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surgetank.policy.prefix import MARKS
from surgetank.wire.beginning import beginnings
from surgetank.wire.native_body import parse_native
from surgetank.wire.openai import parse_request

SYSTEM = "You are terse. " * 140  # 2,100 characters


def chat(*contents: Any, **more: Any) -> bytes:
    roles = ["system", "user", "assistant", "user"]
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def read(body: bytes) -> tuple[int, ...]:
    return tuple(parse_request("/v1/chat/completions", body).prefix)


def test_texts_share_the_hashes_of_what_they_have_in_common() -> None:
    one, other = read(chat(SYSTEM, "a" * 3000)), read(chat(SYSTEM, "b" * 3000))
    common = sum(mark <= 2100 for mark in MARKS)
    assert one[:common] == other[:common]
    assert not set(one[common:]) & set(other[common:])
    assert len(one) == len(other) == sum(mark <= 5100 for mark in MARKS)


def test_a_text_that_differs_in_its_first_character_shares_nothing() -> None:
    assert not set(beginnings("x" + SYSTEM)) & set(beginnings(SYSTEM))


def test_a_later_turn_begins_as_the_earlier_one() -> None:
    first = read(chat(SYSTEM, "hello " * 50))
    later = read(chat(SYSTEM, "hello " * 50, "hi", "and then?" * 500))
    assert later[: len(first)] == first


def test_the_form_of_the_json_and_other_members_do_not_matter() -> None:
    plain = chat(SYSTEM, "question")
    spaced = json.dumps(json.loads(plain), indent=1, ensure_ascii=False).encode()
    parts = chat([{"type": "text", "text": SYSTEM}], "question", metadata={}, stream=True)
    assert read(plain) == read(spaced) == read(parts) != ()


@pytest.mark.parametrize("text", ["", "short", "é" * 511])
def test_short_prompts_have_none(text: str) -> None:
    assert beginnings(text) == ()
    assert read(chat(text)) == ()


def test_the_routes_passed_on_have_them_too_in_the_order_of_the_prompt() -> None:
    def messages(last: str) -> bytes:
        content = [{"role": "user", "content": "a" * 600}, {"role": "user", "content": last}]
        body = {"model": "m", "max_tokens": 5, "system": SYSTEM, "messages": content}
        return json.dumps(body).encode()

    one = parse_native("/v1/messages", messages("b" * 2000)).prefix
    other = parse_native("/v1/messages", messages("c" * 2000)).prefix
    assert len(one) > 5
    assert list(one[:4]) == list(other[:4])  # 2,700 characters
    assert not set(one[4:]) & set(other[4:])
