"""A stream put together again is what the engine would have answered without stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.wire.openai import (
    AssembleError,
    Assembler,
    Body,
    StreamError,
    can_assemble,
    parse_request,
)

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
Answer = dict[str, Any]


def request(route: str = CHAT, **members: object) -> Body:
    base: Answer = {"model": "m"}
    base |= {"messages": [{"role": "user", "content": "x"}]} if route == CHAT else {"prompt": "x"}
    return parse_request(route, json.dumps(base | members).encode())


def assembled(stream: bytes, route: str = CHAT, *, step: int = 0) -> Answer:
    assembler = Assembler(request(route))
    for at in range(0, len(stream), step or len(stream)):
        assembler.feed(stream[at : at + (step or len(stream))])
    answer: Answer = json.loads(assembler.result())
    return answer


def event(**members: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(members).encode()


def said(delta: object, finish: str | None = None, index: int = 0, **extra: object) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish} | extra
    return event(id="i", object="chat.completion.chunk", choices=[choice])


DONE = b"data: [DONE]\n\n"
VARIES = ("id", "created", "timings")  # from one request to the next


def comparable(answer: Answer, *, nulls: bool = True) -> Any:
    """Drop what differs between two requests; without `nulls`, null members too."""

    def lean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: lean(v) for k, v in value.items() if nulls or v is not None}
        return [lean(item) for item in value] if isinstance(value, list) else value

    return lean({name: value for name, value in answer.items() if name not in VARIES})


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    ("route", "name"),
    [
        (CHAT, "chat_logprobs"),
        (CHAT, "chat_n2"),
        (CHAT, "chat_empty"),
        (CHAT, "chat_stop"),
        (TEXT, "completion"),
        (TEXT, "completion_logprobs"),
        (TEXT, "completion_n2"),
    ],
)
def test_a_real_stream_becomes_the_real_answer(
    captures_of_pairs: Callable[[str], tuple[bytes, bytes]], *, route: str, name: str, step: int
) -> None:
    whole, stream = captures_of_pairs(name)
    assert comparable(assembled(stream, route, step=step)) == comparable(json.loads(whole))


def test_members_of_real_answers_are_all_there(capture: Callable[[str], bytes]) -> None:
    for engine in ("vllm", "llamacpp"):
        whole = comparable(json.loads(capture(f"{engine}/chat_nonstream.http")), nulls=False)
        answer = comparable(assembled(capture(f"{engine}/chat_stream.http")), nulls=False)
        for one in (whole, answer):
            one["choices"][0]["message"]["content"] = "other text: these were two requests"
            one["usage"].pop("prompt_tokens_details", None)
        assert answer == whole


def test_what_vllm_aborts_is_an_answer_with_its_reason(capture: Callable[[str], bytes]) -> None:
    answer = assembled(capture("vllm/sigterm_midstream_tail.txt"))
    assert answer["choices"][0]["finish_reason"] == "abort"


TEXTS = st.text(max_size=12)
IDS = st.text("abc123", min_size=1, max_size=4)
LOGPROBS = st.lists(
    st.fixed_dictionaries(
        {
            "token": TEXTS,
            "logprob": st.floats(-20, 0),
            "bytes": st.none() | st.lists(st.integers(0, 255), max_size=2),
            "top_logprobs": st.lists(st.fixed_dictionaries({"token": TEXTS}), max_size=2),
        }
    ),
    min_size=1,
    max_size=4,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": IDS,
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": IDS, "arguments": TEXTS}),
        }
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def chat_answers(draw: st.DrawFn) -> Answer:
    choices = []
    for index in range(draw(st.integers(1, 3))):
        message: Answer = {"role": "assistant", "content": draw(TEXTS)}
        if draw(st.booleans()):
            message["reasoning_content"] = draw(st.text(min_size=1, max_size=9))
        if draw(st.booleans()):
            message["tool_calls"] = draw(CALLS)
            message["content"] = message["content"] or None
        logprobs = draw(
            st.none() | st.fixed_dictionaries({"content": LOGPROBS, "refusal": st.none()})
        )
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": logprobs,
                "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls"])),
                "stop_reason": draw(st.none() | st.integers()),
            }
        )
    return {
        "id": draw(IDS),
        "object": "chat.completion",
        "created": draw(st.integers(0, 2**40)),
        "model": draw(IDS),
        "system_fingerprint": draw(st.none() | IDS),
        "choices": choices,
        "usage": {"prompt_tokens": draw(st.integers(0, 99)), "completion_tokens": 1},
    }


def split(draw: st.DrawFn, text: str) -> list[str]:
    at = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def choice_chunks(draw: st.DrawFn, choice: Answer) -> list[Answer]:
    """Split a choice into the chunks an engine would send, in order."""
    message = choice["message"]
    deltas: list[Answer] = [{"role": "assistant", "content": draw(st.sampled_from(["", None]))}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: part} for part in split(draw, message.get(name) or "") if part]
    for at, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        first, *rest = split(draw, function["arguments"])
        begun = {**call, "index": at, "function": {**function, "arguments": first}}
        deltas.append({"tool_calls": [begun]})
        deltas += [
            {"tool_calls": [{"index": at, "function": {"arguments": part}}]} for part in rest
        ]
    chunks = [{"index": choice["index"], "delta": d, "finish_reason": None} for d in deltas]
    logprobs = choice["logprobs"]
    for at, entry in enumerate(logprobs["content"] if logprobs else ()):
        lists = {"content": [entry], "refusal": None}
        if at < len(chunks):
            chunks[at]["logprobs"] = lists
        else:
            delta: Answer = {}
            chunks.append(
                {"index": choice["index"], "delta": delta, "finish_reason": None, "logprobs": lists}
            )
    last = {
        "index": choice["index"],
        "delta": {},
        "logprobs": None,
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
    }
    return [*chunks, last]


@st.composite
def streams(draw: st.DrawFn) -> tuple[Answer, bytes]:
    answer = draw(chat_answers())
    queues = [choice_chunks(draw, choice) for choice in answer["choices"]]
    chunks: list[list[Answer]] = []
    while any(queues):
        queue = draw(st.sampled_from([q for q in queues if q]))
        chunks.append([queue.pop(0)])
    common = {name: answer[name] for name in ("id", "created", "model", "system_fingerprint")}
    common["object"] = "chat.completion.chunk"
    events = [event(choices=choices, **common) for choices in chunks]
    events.append(event(choices=[], usage=answer["usage"], **common))
    return answer, b"".join(events) + DONE


@settings(max_examples=80)
@given(streams(), st.integers(1, 400))
def test_any_answer_split_into_deltas_comes_back_whole(
    pair: tuple[Answer, bytes], step: int
) -> None:
    answer, stream = pair
    assert assembled(stream, step=step) == answer


@given(
    st.lists(st.tuples(TEXTS, st.floats(-9, 0)), min_size=1, max_size=5),
    st.sampled_from(["stop", "length"]),
)
def test_any_text_completion_with_logprobs_comes_back_whole(
    tokens: list[tuple[str, float]], finish: str
) -> None:
    offsets = [sum(len(text) for text, _ in tokens[:at]) for at in range(len(tokens))]
    rows: list[dict[str, list[Any]]] = [
        {"tokens": [t], "token_logprobs": [p], "top_logprobs": [{t: p}], "text_offset": [o]}
        for (t, p), o in zip(tokens, offsets, strict=True)
    ]
    stream = b"".join(
        event(choices=[{"index": 0, "text": t, "logprobs": row, "finish_reason": None}])
        for (t, _), row in zip(tokens, rows, strict=True)
    )
    stream += event(choices=[{"index": 0, "text": "", "logprobs": None, "finish_reason": finish}])
    assert assembled(stream + DONE, TEXT) == {
        "object": "text_completion",
        "choices": [
            {
                "index": 0,
                "text": "".join(t for t, _ in tokens),
                "logprobs": {name: [row[name][0] for row in rows] for name in rows[0]},
                "finish_reason": finish,
            }
        ],
    }


def test_calls_repeated_empty_or_without_an_index_are_merged() -> None:
    stream = (
        said({"role": "assistant", "content": None})
        + said({"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]})
        + said({"tool_calls": [{"id": "", "function": {"name": None, "arguments": "{"}}]})
        + said({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "}"}}]})
        + said({"tool_calls": [{"id": "", "type": None, "function": {"name": ""}}]})
        + said(None, "tool_calls")
        + DONE
    )
    message = assembled(stream)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


def test_an_old_function_call_and_a_refusal_are_merged() -> None:
    stream = (
        said({"function_call": {"name": "f", "arguments": "a"}, "refusal": None})
        + said({"function_call": {"arguments": "b"}})
        + said({}, "function_call")
        + said({"refusal": "I "}, index=1)
        + said({"refusal": "won't"}, "stop", index=1)
        + DONE
    )
    first, second = (choice["message"] for choice in assembled(stream)["choices"])
    assert first["function_call"] == {"name": "f", "arguments": "ab"}
    assert (second["refusal"], second["content"]) == ("I won't", None)


def test_an_empty_first_event_and_what_follows_the_end_do_not_matter() -> None:
    stream = said({"content": "a"}, "stop")
    whole = assembled(b"data: null\n\n: comment\n\n" + stream + DONE + said({"content": "b"}))
    assert whole == assembled(stream + DONE)
    assert whole["choices"][0]["message"]["content"] == "a"


def test_top_level_members_are_kept_byte_for_byte_and_the_last_one_wins() -> None:
    assembler = Assembler(request())
    assembler.feed(b'data: {"x":1.50e1,"y":"\\u00e9","usage":null,"choices":[]}\n\n')
    assembler.feed(said({"content": "a"}, "stop"))
    assembler.feed(b'data: {"x":null,"usage":{"a":123456789012345678901234567890}}\n\n' + DONE)
    result = assembler.result()
    assert b'"x":1.50e1' in result
    assert b'"y":"\\u00e9"' in result
    assert b'"usage":{"a":123456789012345678901234567890}' in result


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"", r"\[DONE\]"),
        (said({"content": "a"}, "stop"), r"\[DONE\]"),
        (said({"content": "a"}, "stop") + DONE[:-1], r"\[DONE\]"),
        (DONE, "no choice"),
        (said({"content": "a"}) + DONE, "finish_reason"),
        (said({}, "stop") + said({"content": "a"}, index=1) + DONE, "finish_reason"),
        (said({}, "stop") + b"data: {broken\n\n" + DONE, "not a completion chunk"),
        (said({}, "stop") + b"data: [1]\n\n" + DONE, "not a completion chunk"),
        (said(7, "stop") + DONE, "not a completion chunk"),
        (event(choices=7) + DONE, "not a completion chunk"),
        (event(choices=[7]) + DONE, "not a completion chunk"),
        (said({}, index=-1) + DONE, "not a completion chunk"),
        (said({"content": "a"}) + said({"content": 7}, "stop") + DONE, "not a completion chunk"),
        (said({"tool_calls": 7}, "stop") + DONE, "not a completion chunk"),
        (said({}, "stop", logprobs=7) + said({}, logprobs=7) + DONE, "not a completion chunk"),
        (b"data: " + b"[" * 100_000 + b"\n\n" + DONE, "not a completion chunk"),
        (said({"content": "a" * 10_000_000}, "stop") * 7 + DONE, "too long"),
    ],
    ids=range(17),
)
def test_an_incomplete_or_broken_stream_gives_no_answer(stream: bytes, why: str) -> None:
    assembler = Assembler(request())
    assembler.feed(stream)
    with pytest.raises(AssembleError, match=why) as caught:
        assembler.result()
    assert caught.value.error is None


@pytest.mark.parametrize(
    "broken",
    [
        event(error={"message": "m", "code": 503, "type": "t"}),
        b'error: {"message":"m","code":503,"type":"t"}\n\n',
    ],
)
def test_an_error_in_the_stream_is_told_even_after_a_finished_choice(broken: bytes) -> None:
    assembler = Assembler(request())
    assembler.feed(said({"content": "a"}, "stop") + broken + DONE)
    with pytest.raises(AssembleError) as caught:
        assembler.result()
    assert caught.value.error == StreamError(503, "m", "t")


@pytest.mark.parametrize(
    ("route", "members", "faithful"),
    [
        (CHAT, {}, True),
        (CHAT, {"n": 4, "logprobs": True, "top_logprobs": 5, "tools": []}, True),
        (CHAT, {"return_progress": False, "audio": None}, True),
        (CHAT, {"audio": {"voice": "x"}}, False),
        (CHAT, {"modalities": ["text", "audio"]}, False),
        (CHAT, {"modalities": ["text"]}, True),
        (CHAT, {"prompt_logprobs": 1}, False),
        (CHAT, {"prompt_logprobs": 0}, False),
        (CHAT, {"return_token_ids": True}, False),
        (CHAT, {"timings_per_token": True}, False),
        (TEXT, {"n": 2, "logprobs": 2, "best_of": 1}, True),
        (TEXT, {"best_of": 2}, False),
        (TEXT, {"prompt": ["a", "b"]}, False),
        (TEXT, {"prompt": ["a"]}, True),
        (TEXT, {"prompt": [[1], [2]]}, False),
        (TEXT, {"echo": True}, True),
        (TEXT, {"echo": True, "logprobs": 0}, False),
        (TEXT, {"echo": False, "logprobs": 1}, True),
        (TEXT, {"use_beam_search": True}, False),
    ],
)
def test_what_a_stream_cannot_carry_is_not_assembled(
    route: str, *, members: Answer, faithful: bool
) -> None:
    assert can_assemble(request(route, **members)) is faithful


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_any_bytes_are_fed_without_harm(parts: list[bytes]) -> None:
    assembler = Assembler(request(), max_bytes=200)
    for part in parts:
        assembler.feed(part)
        assembler.feed(b'data: {"choices":[' + part + b"]}\n\n")
    assembler.feed(DONE)
    with pytest.raises(AssembleError):
        assembler.result()
