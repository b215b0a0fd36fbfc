"""The answers have vLLM's form: compared with captures of the real one."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Replica, captured, chat, events, run, shape

FIXED = {"max_tokens": 6, "ignore_eos": True}


def test_a_stream_with_usage_has_the_captured_events() -> None:
    async def test(replica: Replica) -> None:
        request = chat(stream=True, stream_options={"include_usage": True}, **FIXED)
        reply = await replica.ask("/v1/chat/completions", request)
        status, body = captured("chat_stream.http")
        assert reply.head.status == status
        assert reply.head.get(b"content-type") == b"text/event-stream; charset=utf-8"
        assert shape(reply.events) == shape(events(body))
        last, usage, done = reply.events[-3:]
        assert last["choices"][0]["finish_reason"] == "length"
        assert usage["usage"] == {
            "prompt_tokens": 18,
            "total_tokens": 24,
            "completion_tokens": 6,
        }
        assert done == "[DONE]"

    run(test)


def test_a_stream_with_continuous_usage_has_the_captured_events() -> None:
    async def test(replica: Replica) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        request = chat(stream=True, stream_options=options, **FIXED)
        reply = await replica.ask("/v1/chat/completions", request)
        _, body = captured("chat_stream_contusage.http")
        assert shape(reply.events) == shape(events(body))
        counts = [e["usage"]["completion_tokens"] for e in reply.events[:-1]]
        assert counts == [0, 1, 2, 3, 4, 5, 6, 6]

    run(test)


@pytest.mark.parametrize("tokens", [6, 1])
def test_a_whole_answer_has_the_captured_keys(tokens: int) -> None:
    async def test(replica: Replica) -> None:
        request = chat(max_tokens=tokens, ignore_eos=True)
        reply = await replica.ask("/v1/chat/completions", request)
        status, body = captured("chat_nonstream.http")
        assert reply.head.status == status
        assert [shape(reply.json)] == [shape(e) for e in events(body)]
        assert reply.json["usage"]["completion_tokens"] == tokens
        assert len(reply.json["choices"][0]["message"]["content"].split()) == tokens

    run(test)


def test_streamed_and_whole_answers_to_the_same_seed_say_the_same() -> None:
    async def test(replica: Replica) -> None:
        whole = await replica.ask("/v1/chat/completions", chat(seed=5))
        streamed = await replica.ask("/v1/chat/completions", chat(seed=5, stream=True))
        deltas = [e["choices"][0]["delta"]["content"] for e in streamed.events[:-1]]
        assert "".join(deltas) == whole.json["choices"][0]["message"]["content"]
        assert len(deltas) == 1 + whole.json["usage"]["completion_tokens"]

    run(test)


def test_a_request_id_becomes_the_answers_id() -> None:
    async def test(replica: Replica) -> None:
        headers = {"x-request-id": 'my-"req"-1'}
        for stream in (False, True):
            reply = await replica.ask(
                "/v1/chat/completions", chat(stream=stream, **FIXED), headers=headers
            )
            first = reply.events[0] if stream else reply.json
            assert first["id"] == 'chatcmpl-my-"req"-1'

    run(test)


def test_text_completions_stream_and_do_not() -> None:
    async def test(replica: Replica) -> None:
        request: dict[str, Any] = {"model": "tiny", "prompt": [1, 2, 3], **FIXED}
        whole = (await replica.ask("/v1/completions", request)).json
        assert whole["object"] == "text_completion"
        assert whole["usage"]["prompt_tokens"] == 3
        assert len(whole["choices"][0]["text"].split()) == 6
        request |= {"stream": True, "stream_options": {"include_usage": True}}
        streamed = (await replica.ask("/v1/completions", request)).events
        assert len(streamed) == 8
        assert [e["choices"][0]["finish_reason"] for e in streamed[:6]] == [None] * 5 + ["length"]
        assert streamed[6]["choices"] == []
        assert streamed[6]["usage"]["completion_tokens"] == 6

    run(test)


def test_each_choice_is_a_sequence_of_its_own() -> None:
    async def test(replica: Replica) -> None:
        request = chat(n=3, stream=True, stream_options={"include_usage": True}, **FIXED)
        reply = await replica.ask("/v1/chat/completions", request)
        choices = [e["choices"][0] for e in reply.events[:-2]]
        for index in range(3):
            own = [c for c in choices if c["index"] == index]
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            assert len(own) == 7
            assert own[-1]["finish_reason"] == "length"
        assert reply.events[-2]["usage"]["completion_tokens"] == 18
        whole = await replica.ask("/v1/chat/completions", chat(n=3, **FIXED))
        assert [c["index"] for c in whole.json["choices"]] == [0, 1, 2]

    run(test)


def test_min_tokens_and_max_tokens_bound_the_draw() -> None:
    async def test(replica: Replica) -> None:
        for seed in range(20):
            request = chat(seed=seed, min_tokens=90, max_completion_tokens=110)
            answer = (await replica.ask("/v1/chat/completions", request)).json
            count = answer["usage"]["completion_tokens"]
            assert 90 <= count <= 110
            if count < 110:
                assert answer["choices"][0]["finish_reason"] == "stop"

    run(test, speed=50.0)


@pytest.mark.parametrize(
    ("capture", "body"),
    [
        ("missing_messages.http", {"model": "tiny"}),
        ("unknown_model.http", chat(model="nope")),
        ("oversize_prompt.http", chat(messages=[{"role": "user", "content": "a" * 8180}])),
        ("invalid_json.http", b'{"model": "tiny", "messages": }'),
    ],
)
def test_an_error_is_the_captured_one(capture: str, body: Any) -> None:
    async def test(replica: Replica) -> None:
        status, expected = captured(capture)
        reply = await replica.ask("/v1/chat/completions", body)
        assert reply.head.status == status
        assert shape(reply.json) == shape(events(expected)[0])
        if capture != "invalid_json.http":  # of which the position differs
            assert reply.body == expected

    run(test)


@pytest.mark.parametrize(
    "body",
    [
        chat(max_tokens=0),
        chat(max_tokens="many"),
        chat(max_tokens=2048),
        chat(n=0.5),
        chat(messages=[]),
        chat(messages=["hello"]),
        chat(messages=[{"role": "user", "content": 3}]),
        chat(stream_options=[1]),
        chat(model=7),
        b'{"messages": ' + b"[" * 100_000,
        b"[1, 2]",
        b"\xff\xfe",
    ],
)
def test_a_wrong_value_is_a_400_in_vllms_form(body: Any) -> None:
    async def test(replica: Replica) -> None:
        reply = await replica.ask("/v1/chat/completions", body)
        assert reply.head.status == 400
        assert reply.json["error"]["code"] == 400
        assert (await replica.ask("/health")).head.status == 200

    run(test)


def test_text_of_any_code_points_is_served() -> None:
    async def test(replica: Replica) -> None:
        for text in ("\\ud800", "\\u0000", "\\u4f60\\u597d"):
            body = f'{{"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":2}}'
            assert (await replica.ask("/v1/chat/completions", body.encode())).head.status == 200
        body = '{"model":"\\ud800","messages":[{"role":"user","content":""}]}'
        assert (await replica.ask("/v1/chat/completions", body.encode())).head.status == 404

    run(test)


def test_text_parts_count_and_images_do_not() -> None:
    async def test(replica: Replica) -> None:
        parts = [
            {"type": "text", "text": "12345678"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}},
        ]
        request = chat(messages=[{"role": "user", "content": parts}], **FIXED)
        reply = await replica.ask("/v1/chat/completions", request)
        assert reply.json["usage"]["prompt_tokens"] == 2 + 4

    run(test)


def test_embeddings_are_never_streamed() -> None:
    async def test(replica: Replica) -> None:
        body = {"model": "tiny", "input": ["a", "b"], "stream": True}
        reply = await replica.ask("/v1/embeddings", body)
        assert (reply.json["object"], len(reply.json["data"])) == ("list", 2)

    run(test)


def test_routes_that_do_not_exist_are_404_and_wrong_methods_405() -> None:
    async def test(replica: Replica) -> None:
        reply = await replica.ask("/sleep", b"")
        assert (reply.head.status, reply.body) == captured("notfound.http")
        assert (await replica.ask("/v1/chat/completions")).head.status == 405

    run(test)


def test_models_version_and_health_answer() -> None:
    async def test(replica: Replica) -> None:
        client = await replica.connect()
        models = (await client.ask("/v1/models")).json
        assert [m["id"] for m in models["data"]] == ["tiny"]
        assert models["data"][0]["max_model_len"] == 2048
        assert "surgetank" in (await client.ask("/version")).json["version"]
        health = await client.ask("/health")
        assert (health.head.status, health.body) == (200, b"")

    run(test)
