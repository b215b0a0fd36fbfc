"""A stream is followed the same however it is cut, and its bytes go on as they came."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.policy.request import Usage
from surgetank.wire.sse import SseOverflow, SseScanner, StreamError

STREAMS = [
    "vllm/chat_stream.http",
    "vllm/chat_stream_contusage.http",
    "vllm/burst_overflow_200_stream.http",
    "vllm/sigterm_midstream_tail.txt",
    "llamacpp/chat_stream.http",
]
USAGE = (
    b'data: {"id":"x","object":"chat.completion.chunk","choices":[],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}\n\n'
)
BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a "
    "different instance."
)


def token(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % text.encode()


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    """Cut at the given places; no cuts: one byte each."""
    if not cuts:
        return [stream[i : i + 1] for i in range(len(stream))]
    edges = sorted({0, len(stream), *(c % (len(stream) + 1) for c in cuts)})
    return [stream[a:b] for a, b in pairwise(edges)]


def learnt(scanner: SseScanner) -> tuple[object, ...]:
    return (
        scanner.first_event,
        scanner.tokens,
        scanner.content_seen,
        scanner.usage,
        scanner.done,
        scanner.error,
        scanner.finish_reason,
        scanner.partial,
    )


def follow(parts: list[bytes], *, strip: bool = False) -> tuple[bytes, tuple[object, ...]]:
    scanner = SseScanner(strip_usage=strip)
    forwarded = b"".join([scanner.feed(part) for part in parts])
    return forwarded, learnt(scanner)


@pytest.mark.parametrize(
    ("name", "tokens", "usage", "finish", "error"),
    [
        ("vllm/chat_stream.http", 6, Usage(18, 6), "length", None),
        ("vllm/chat_stream_contusage.http", 5, Usage(18, 6), "length", None),
        (
            "vllm/burst_overflow_200_stream.http",
            0,
            None,
            None,
            StreamError(503, BUSY, "Service Unavailable"),
        ),
        ("vllm/sigterm_midstream_tail.txt", 1, None, "abort", None),
        ("llamacpp/chat_stream.http", 6, Usage(24, 6, 0), "length", None),
    ],
)
def test_what_is_learnt_from_real_streams(
    capture: Callable[[str], bytes],
    *,
    name: str,
    tokens: int,
    usage: Usage | None,
    finish: str | None,
    error: StreamError | None,
) -> None:
    stream = capture(name)
    scanner = SseScanner()
    assert scanner.feed(stream) is stream
    assert scanner.first_event is not None
    assert scanner.first_event == stream.split(b"\n\n")[0].removeprefix(b"data: ")
    assert (scanner.tokens, scanner.usage, scanner.finish_reason) == (tokens, usage, finish)
    assert (scanner.error, scanner.done, scanner.partial) == (error, True, False)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("strip", [False, True])
def test_any_cut_of_a_real_stream_gives_the_same(
    capture: Callable[[str], bytes], *, name: str, strip: bool
) -> None:
    stream = capture(name)
    whole = follow([stream], strip=strip)
    assert follow(cut(stream, []), strip=strip) == whole
    events = [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]
    assert follow(events, strip=strip) == whole
    rng = random.Random(3)
    for place in range(len(stream)):
        places = [place, rng.randrange(len(stream)), rng.randrange(len(stream))]
        assert follow(cut(stream, places), strip=strip) == whole


@pytest.mark.parametrize("name", STREAMS)
def test_stripping_takes_out_the_usage_chunk_and_nothing_else(
    capture: Callable[[str], bytes], name: str
) -> None:
    stream = capture(name)
    expected = b"".join(
        event + b"\n\n" for event in stream.split(b"\n\n")[:-1] if b'"choices":[]' not in event
    )
    forwarded, _ = follow([stream], strip=True)
    assert forwarded == expected
    assert (len(forwarded) < len(stream)) == (b'"choices":[]' in stream)


SHAPES = st.sampled_from(
    [
        token("a"),
        token(""),
        token('say \\"usage\\": {} and \\"choices\\":[]'),
        USAGE,
        USAGE.replace(b'":', b'": '),
        USAGE.replace(b"\n", b"\r\n"),
        token("b").replace(b"\n", b"\r\n"),
        b": keep-alive\n\n",
        b": keep-alive\r\n\r\n",
        b"\n",
        b"event: x\ndata: 1\n\n",
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"z"},"finish_reason":"stop"}],"usage":{}}\n\n',
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{}}]}}]}\n\n',
        b'data: {"choices":[{"text":"t","index":0}]}\n\n',
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"error":{"message":"m","type":"t","code":503}}\n\n',
        b'error: {"code":500,"message":"m","type":"server_error"}\n\n',
        b"data: {broken\n\n",
        b"data:[DONE]\n\n",
        b"data: [DONE]\n\n",
        b"data: {}",
    ]
)


@given(st.lists(SHAPES, max_size=12).map(b"".join), st.lists(st.integers(0, 3000), max_size=5))
def test_any_cut_of_any_stream_gives_the_same(stream: bytes, cuts: list[int]) -> None:
    for strip in (False, True):
        whole = follow([stream], strip=strip)
        assert follow(cut(stream, cuts), strip=strip) == whole
        assert follow(cut(stream, []), strip=strip) == whole
    assert follow(cut(stream, cuts))[0] == stream


# What may stand where the content of the event before it stood, harmless or not.
MIDDLES = st.sampled_from(
    [
        *(
            "a",
            "",
            "error",
            "\\",
            "\n\ndata: [DONE]",
            "\\\\",
            "\\\\n",
            '\\\\"',
            "\\n\\ndata: [DONE]",
            "\\r",
            "\u00e9",
        ),
        '"},"finish_reason":"stop","x":{"y":"',
        '"}}],"usage":{"prompt_tokens":1},"x":[{"y":{"z":"',
        '"}}],"error":{"message":"m","code":500},"x":[{"y":{"z":"',
    ]
)


@given(st.lists(MIDDLES, max_size=8))
def test_events_that_differ_in_their_content_alone_are_read_like_any_other(
    middles: list[str],
) -> None:
    events = [token(text) for text in ("first", "second", *middles)]
    assert follow(events) == follow(cut(b"".join(events), []))


@given(st.lists(SHAPES, max_size=8), st.lists(st.integers(0, 3000), max_size=5))
def test_only_an_event_that_can_still_be_the_usage_chunk_is_held_back(
    events: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(events)
    scanner = SseScanner(strip_usage=True)
    fed = forwarded = b""
    for part in cut(stream, cuts):
        fed += part
        forwarded += scanner.feed(part)
        reference, _ = follow([fed + b"\n\n"], strip=True)
        held = reference.removeprefix(forwarded)
        assert reference.startswith(forwarded)
        assert b"\n\n" not in held.removesuffix(b"\n\n").strip(b"\n")
        assert b'"choices":[{' not in held.split(b"\n\n")[0]


@pytest.mark.parametrize(
    "event",
    [
        USAGE.replace(b"[]", b'[{"index":0,"delta":{"content":"x"}}]'),
        USAGE.replace(b"[]", b'[{"index":0,"delta":{},"finish_reason":"stop"}]'),
        USAGE.replace(b'"choices":[],', b""),
        USAGE.replace(b'"choices":[]', b'"choices":null'),
        USAGE.replace(b'"usage"', b'"usages"'),
        USAGE.replace(b'"usage"', b'"error":{"message":"m"},"usage"'),
        b"id: 7\n" + USAGE,
        b": comment\n" + USAGE,
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":"many"}}\n\n',
        USAGE.replace(b'"choices"', b'"choices":[{"index":0,"delta":{}}],"choices"'),
    ],
)
def test_what_is_not_exactly_the_usage_chunk_is_never_taken_out(event: bytes) -> None:
    stream = token("a") + event + b"data: [DONE]\n\n"
    for parts in ([stream], cut(stream, [])):
        assert follow(parts, strip=True)[0] == stream


def test_a_usage_chunk_is_learnt_from_though_it_is_taken_out() -> None:
    scanner = SseScanner(strip_usage=True)
    assert scanner.feed(token("a")) == token("a")
    assert scanner.feed(USAGE[:50]) == b""
    assert not scanner.partial
    assert scanner.feed(USAGE[50:]) == b""
    assert scanner.usage == Usage(3, 2)


def test_forwarding_starts_as_soon_as_an_event_is_known_to_be_no_usage_chunk() -> None:
    scanner = SseScanner(strip_usage=True)
    begun = b'data: {"id":"x","choices":[{"index":0,"del'
    assert scanner.feed(begun[:22]) == b""
    assert scanner.feed(begun[22:]) == begun
    end = b'ta":{"content":"a"}}]}\n\n'
    assert [scanner.partial, scanner.feed(end), scanner.partial] == [True, end, False]
    assert scanner.tokens == 1


@pytest.mark.parametrize(
    ("delta", "counts"),
    [
        (b'{"role":"assistant","content":""}', False),
        (b'{"role":"assistant","content":null}', False),
        (b"{}", False),
        (b'{"content":"x"}', True),
        (b'{"content": "x"}', True),
        (b'{"content":"\\"content\\":\\"\\""}', True),
        (b'{"reasoning_content":"x"}', True),
        (b'{"reasoning":"x","content":null}', True),
        (b'{"refusal":"x"}', True),
        (b'{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}', True),
        (b'{"tool_calls":[]}', False),
        (b'{"function_call":{"name":"f"}}', True),
        (b'{"function_call":null}', False),
    ],
)
def test_which_deltas_count_as_output(delta: bytes, *, counts: bool) -> None:
    event = b'data: {"choices":[{"index":0,"delta":' + delta + b"}]}\n\n"
    scanner = SseScanner()
    scanner.feed(event)
    assert (scanner.tokens, scanner.content_seen) == (int(counts), counts)
    scanner = SseScanner()
    scanner.feed(token("a"))
    scanner.feed(event)
    assert scanner.tokens == 1 + int(counts)


@pytest.mark.parametrize(
    ("payload", "tokens", "partial"),
    [
        (token("b") + token("c"), 3, False),
        (token("b") + USAGE, 2, False),
        (token("b")[:-1], 1, True),
        (token("b") + b"\n", 2, True),
        (b": x\n" + token("b"), 2, False),
    ],
)
def test_payloads_after_the_first_token_are_not_taken_for_one_event(
    payload: bytes, tokens: int, *, partial: bool
) -> None:
    scanner = SseScanner()
    scanner.feed(token("a"))
    assert scanner.feed(payload) is payload
    assert (scanner.tokens, scanner.partial) == (tokens, partial)
    assert (scanner.usage is not None) == (USAGE in payload)


@pytest.mark.parametrize(
    "second", [b'data: {"error":{"code":500}}\n\n', b'error: {"code":500}\n\n']
)
def test_the_first_error_is_the_one_told(second: bytes) -> None:
    scanner = SseScanner()
    scanner.feed(b'data: {"error":{"message":"m","code":503}}\n\n' + second)
    assert scanner.error == StreamError(503, "m", "")


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b'data: {"error":{"message":"m","type":"t","code":503}}', StreamError(503, "m", "t")),
        (b'data: {"error": {"message": "m", "code": "429"}}', StreamError(429, "m", "")),
        (b'data: {"error":{"message":"m","code":"overloaded"}}', StreamError(500, "m", "")),
        (b'data: {"error":{"code":7}}', StreamError(500, "", "")),
        (b'data: {"error":"m"}', StreamError(500, "m", "")),
        (b'error: {"code":500,"message":"m","type":"t"}', StreamError(500, "m", "t")),
        (b'error: {"error":{"code":400,"message":"m"}}', StreamError(400, "m", "")),
        (b"error: broken", StreamError(500, "broken", "")),
        (b'data: {"error":null,"choices":[]}', None),
        (b'data: {"choices":[{"delta":{"content":"error"}}]}', None),
        (b'data: {"choices":[{"delta":{"content":"x","error":{"code":500}}}]}', None),
    ],
)
def test_errors_inside_a_stream(event: bytes, error: StreamError | None) -> None:
    scanner = SseScanner()
    scanner.feed(event + b"\n\n")
    assert scanner.error == error
    assert scanner.first_event == event.partition(b": ")[2]


def test_an_endless_event_overflows_whether_it_comes_at_once_or_in_pieces() -> None:
    for parts in ([b"data: " + b"x" * 100], [b"data: ", *[b"x"] * 100], [token("y" * 100)]):
        scanner = SseScanner(max_line=100)
        with pytest.raises(SseOverflow):  # noqa: PT012 - the loop feeds it
            for part in parts:
                scanner.feed(part)
    scanner = SseScanner(max_line=100)
    scanner.feed(token("a"))
    with pytest.raises(SseOverflow):
        scanner.feed(token("y" * 100))
    scanner = SseScanner(max_line=100)
    for _ in range(100):
        scanner.feed(token("a"))
    assert scanner.tokens == 100


@given(st.lists(st.binary(max_size=20), max_size=8), st.booleans())
def test_random_bytes_raise_nothing_but_overflow(parts: list[bytes], strip: bool) -> None:  # noqa: FBT001 - drawn
    scanner = SseScanner(strip_usage=strip, max_line=60)
    try:
        for part in parts:
            scanner.feed(b"data: " + part)
            scanner.feed(b'{"error":' + part + b'"usage":{' + part + b"\n\n")
    except SseOverflow:
        return
    assert scanner.first_event is not None or not parts


def test_deep_nesting_in_an_event_is_harmless() -> None:
    scanner = SseScanner(strip_usage=True)
    event = b'data: {"usage":{"a":' + b"[" * 100_000 + b"\n\n"
    assert scanner.feed(event) == event
    assert scanner.usage is None


def chunked(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def after_a_token() -> SseScanner:
    """Make a scanner that has seen a plain token."""
    scanner = SseScanner()
    for text in ("a", "b"):
        scanner.feed(token(text))
    return scanner


@given(st.text(max_size=40))
def test_a_chunk_taken_whole_is_one_more_token_of_valid_json(text: str) -> None:
    scanner, reference = after_a_token(), after_a_token()
    payload = token(text)
    if scanner.takes_chunk(chunked(payload)):
        assert reference.feed(payload) == payload
        assert learnt(scanner) == learnt(reference)
        assert not {*text} & set('"\\\n')
    else:
        assert learnt(scanner) == learnt(reference)  # nothing was touched
        assert {*text} & set('"\\\n') or not text


@given(
    st.integers(0, len(chunked(token("word"))) - 1),
    st.binary(min_size=1, max_size=1),
    st.sampled_from([0, 1]),
)
def test_a_chunk_with_a_byte_out_of_place_is_not_taken_whole(
    at: int, value: bytes, left_out: int
) -> None:
    data = chunked(token("word"))
    content = range(data.index(b"word"), data.index(b"word") + 4)
    changed = data[:at] + value + data[at + left_out :]
    if after_a_token().takes_chunk(changed):
        assert changed == data or at in content
        assert value not in {b'"', b"\\", b"\n"} or changed == data
        assert int(changed[: changed.index(b"\r")], 16) == len(changed) - len(b"47\r\n\r\n")


def test_no_chunk_is_taken_whole_before_a_plain_token_within_an_event_or_over_the_bound() -> None:
    data = chunked(token("word"))
    assert not SseScanner().takes_chunk(data)
    assert not SseScanner().between_events
    assert after_a_token().between_events
    inside = after_a_token()
    inside.feed(b"data: {")
    assert not inside.between_events
    short = SseScanner(max_line=len(data) - 1)
    for text in ("a", "b"):
        short.feed(token(text))
    assert not short.takes_chunk(data)
    assert after_a_token().takes_chunk(data)


@pytest.mark.parametrize("size", [1900, 2030, 2040, 2048, 5000])
def test_a_long_chunk_is_taken_whole_or_not_at_all(size: int) -> None:
    data = chunked(token("x" * size))
    assert after_a_token().takes_chunk(data) is (len(data) <= 2048)


@given(
    st.lists(st.sampled_from(["a", "two", " \u00e9", 'q"', "b\\", "n\n", "\n\n\r\n"])), st.binary()
)
def test_of_joined_chunks_the_plain_ones_at_the_beginning_are_taken(
    texts: list[str], rest: bytes
) -> None:
    scanner, reference = after_a_token(), after_a_token()
    chunks = [chunked(token(text)) for text in texts]
    taken = scanner.takes_chunks(b"".join(chunks) + rest)
    plain = 0
    while plain < len(chunks) and reference.takes_chunk(chunks[plain]):
        plain += 1
    assert taken >= sum(map(len, chunks[:plain]))
    if plain < len(chunks) or b"\n\n\r\n" not in rest:
        assert taken == sum(map(len, chunks[:plain]))
        assert learnt(scanner) == learnt(reference)
