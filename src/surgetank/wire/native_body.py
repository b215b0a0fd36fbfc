"""Requests to routes that are passed on as they are: embeddings, responses, messages.

Rule: as for completions: members are kept byte for byte, what is priced is what is sent, and what
would escape admission (work that goes on in the background, another request's text) is refused.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from surgetank.wire.request_body import (
    MOST_TOKENS,
    RESPONSES,
    BadRequest,
    Body,
    Size,
    chat_size,
    decode,
    integer,
    missing,
    model_of,
    prompt_size,
    session_of,
    size_of,
    stream_of,
    text_of_metadata,
    top_level,
)

EMBEDDINGS: Final = "/v1/embeddings"
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
NATIVE_ROUTES: Final = frozenset({EMBEDDINGS, RESPONSES, MESSAGES, COUNT_TOKENS})
ANTHROPIC_ROUTES: Final = frozenset({MESSAGES, COUNT_TOKENS})
STREAMED_ROUTES: Final = frozenset({RESPONSES, MESSAGES})

_ANY: Final = msgspec.json.Decoder()
_NOTHING: Final = frozenset({b"null", b"false"})
# An engine that reads another route's names in place of this one's would give what nobody priced.
_UNPRICED: Final = {
    EMBEDDINGS: frozenset[str](),
    COUNT_TOKENS: frozenset[str](),
    RESPONSES: frozenset({"max_tokens", "max_completion_tokens", "n", "best_of"}),
    MESSAGES: frozenset({"max_output_tokens", "max_completion_tokens", "n", "best_of"}),
}
_BOUND: Final = {RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
_REFUSED: Final = ("background", "previous_response_id", "conversation")
# The form, media, and what engines made themselves: no text of the prompt.
_NO_TEXT: Final = frozenset(
    {"role", "type", "status", "cache_control", "image_url", "image", "video_url", "audio",
     "input_audio", "file_data", "encrypted_content", "signature", "data"}
)  # fmt: skip


def parse_native(route: str, body: bytes) -> Body:
    """Read the body of a request to `route`, one of NATIVE_ROUTES. Raises BadRequest."""
    members = top_level(body)
    model = model_of(members)
    for name in _UNPRICED[route]:
        members.pop(name, None)
    if route == EMBEDDINGS:
        chat = "messages" in members and "input" not in members  # vLLM embeds a chat, too
        found = chat_size(members) if chat else prompt_size(members, "input")
        session = session_of(members)
    elif route == RESPONSES:
        _refuse_what_goes_on(members)
        found = _size(members, "input", "instructions")
        session = session_of(members)
    else:
        found = _size(members, "messages", "system")
        session = text_of_metadata(members, "user_id")
    items, size, chars, tokens, prefix = found
    bound = _BOUND.get(route)
    return Body(
        route,
        model,
        route in STREAMED_ROUTES and stream_of(members),
        None if bound is None else integer(members, bound, MOST_TOKENS),
        1,
        size,
        chars,
        tokens,
        items,
        False,  # the engine tells the usage by itself
        session,
        members,
        None,
        prefix,
    )


def _refuse_what_goes_on(members: dict[str, bytes]) -> None:
    for name in _REFUSED:
        if members.get(name, b"null") not in _NOTHING:
            raise BadRequest(
                f"'{name}' is not served here: no response is kept, and none runs unattended",
                param=name,
                code="unsupported_parameter",
            )


def _size(members: dict[str, bytes], name: str, above: str) -> Size:
    """Measure all text of `name`, a text or a list of items, and of what stands above it."""
    raw = members.get(name, b"null")
    if raw == b"null":
        raise missing(name)
    value = decode(_ANY, raw, name)
    texts = _texts(value)
    items = len(value) if isinstance(value, list) else 1
    if members.get(above, b"null") != b"null":
        texts = _texts(decode(_ANY, members[above], above)) + texts
        items += 1
    if members.get("tools", b"null") != b"null":
        texts.append(members["tools"].decode())
    return size_of(texts, items)


def _texts(value: Any) -> list[str]:
    """Collect every text in a JSON value, in order, but media and the words of the form itself."""
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            is_text = item.get("type") == "text"  # a document's source may be text in `data`
            stack += [
                inner
                for name, inner in item.items()
                if name not in _NO_TEXT or (is_text and name == "data")
            ]
    return found[::-1]  # the stack gave the last first
