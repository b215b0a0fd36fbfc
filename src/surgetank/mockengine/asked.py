"""What a client asked of the engine, read from the request's body as vLLM reads it.

The engine reads bodies by itself, not with the gateway's parser: a mistake there shall not be
hidden by the same mistake here. Rule: no text is kept, only its length.

Prompt tokens are an estimate that anyone can repeat: UTF-8 bytes of all text / 4, rounded up, plus
4 for each chat message; exact for a prompt of token ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
_BYTES_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4
_BLOCK_TOKENS = 16  # as vLLM's default
_MOST_CHOICES = 128
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class Refused(Exception):  # noqa: N818 - it is an answer, the error body of which it carries
    """The request is answered with an error in vLLM's form."""

    def __init__(self, status: int, message: str, type_: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_
        self.param = param


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for text. `max_tokens` is None when the client set no limit."""

    chat: bool
    model: str
    prompt_tokens: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    choices: int
    priority: int
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    route: str = CHAT
    inputs: int = 1  # texts to embed
    base64: bool = False  # how embeddings are written


def read(route: str, body: bytes) -> Asked:
    """Read a body sent to `route`. Raises Refused, in the words of vLLM where they are known."""
    data = load(body)
    chat = route == CHAT
    tokens = chat_tokens(data) if chat else prompt_tokens(data)
    limit = data.get("max_completion_tokens") if chat else None
    if limit is None:
        limit = data.get("max_tokens") if chat else data.get("max_tokens", 16)
    return build(data, chat=chat, route=route, prompt_tokens=tokens, limit=limit)


def load(body: bytes) -> dict[str, Any]:
    """Read a body as an object. Raises Refused."""
    try:
        data = json.loads(body)
    except json.JSONDecodeError as error:
        raise _invalid(
            f"{{'type': 'json_invalid', 'loc': 'body.{error.pos}', 'msg': 'JSON decode error',"
            f" 'input': '<dict of 0 items>', 'ctx': {{'error': '{error.msg}'}}}}",
            f"body.{error.pos}",
        ) from None
    except (ValueError, RecursionError):  # not UTF-8, or nested without end
        raise _invalid(
            "{'type': 'json_invalid', 'loc': 'body', 'msg': 'not UTF-8'}", "body"
        ) from None
    if not isinstance(data, dict):
        raise _wrong("body", "a dictionary")
    return data


def build(
    data: dict[str, Any],
    *,
    chat: bool,
    route: str,
    prompt_tokens: int,
    limit: Any,
    inputs: int = 1,
) -> Asked:
    """Read what all routes have alike. Raises Refused."""
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _wrong("body.stream_options", "a dictionary")
    model = data.get("model") or ""
    if not isinstance(model, str):
        raise _wrong("body.model", "a string")
    stream = bool(data.get("stream"))
    return Asked(
        chat=chat,
        model=model,
        prompt_tokens=prompt_tokens,
        max_tokens=None if limit is None else _whole(limit, "max_tokens", 1),
        min_tokens=_whole(data.get("min_tokens", 0), "min_tokens", 0),
        ignore_eos=bool(data.get("ignore_eos")),
        choices=_whole(data.get("n") or 1, "n", 1, _MOST_CHOICES),
        priority=_whole(data.get("priority", 0), "priority", None),
        seed=None if data.get("seed") is None else _whole(data["seed"], "seed", None),
        stream=stream,
        include_usage=stream and bool(options.get("include_usage")),
        continuous_usage=stream and bool(options.get("continuous_usage_stats")),
        route=route,
        inputs=inputs,
        base64=data.get("encoding_format") == "base64",
    )


def _invalid(detail: str, param: str) -> Refused:
    return Refused(400, f"1 validation error:\n  {detail}", "Bad Request", param)


def missing(name: str, data: dict[str, Any]) -> Refused:
    """Make the answer to a body without a member that must be there."""
    return _invalid(
        f"{{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required',"
        f" 'input': '<dict of {len(data)} items>'}}",
        f"body.{name}",
    )


def _wrong(where: str, right: str) -> Refused:
    return _invalid(f"{{'type': 'value_error', 'loc': '{where}', 'msg': 'must be {right}'}}", where)


def _whole(value: Any, name: str, least: int | None, most: int | None = None) -> int:
    fits = isinstance(value, int) and not isinstance(value, bool)
    if not fits or (least is not None and value < least) or (most is not None and value > most):
        least_text = "" if least is None else f" >= {least}"
        most_text = "" if most is None else f" and <= {most}"
        raise _wrong(f"body.{name}", f"a whole number{least_text}{most_text}")
    return int(value)


def chat_tokens(data: dict[str, Any]) -> int:
    """Estimate the tokens of a chat's messages. Raises Refused."""
    if "messages" not in data:
        raise missing("messages", data)
    messages = data["messages"]
    if not isinstance(messages, list) or not messages:
        raise _wrong("body.messages", "a list of one message or more")
    size = 0
    for message in messages:
        if not isinstance(message, dict):
            raise _wrong("body.messages", "a list of messages")
        size += _text_bytes(message.get("content"))
    return _estimate(size) + _TOKENS_PER_MESSAGE * len(messages)


def _text_bytes(content: Any) -> int:
    """UTF-8 bytes of a message's text: a string, or its parts of type text."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    if content is None:
        return 0
    if not isinstance(content, list):
        raise _wrong("body.messages.content", "a string or a list of parts")
    return sum(
        _text_bytes(part.get("text"))
        for part in content
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS
    )


def prompt_tokens(data: dict[str, Any]) -> int:
    """Estimate or count the tokens of one prompt. Raises Refused."""
    if "prompt" not in data:
        raise missing("prompt", data)
    prompt = data["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return _estimate(_text_bytes(prompt))
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt)
    raise _wrong("body.prompt", "one text or one list of token ids")


def blocks(route: str, body: bytes) -> list[tuple[int, int]]:
    """Hash a prompt's whole blocks of 16 tokens, each with all before it; (hash, tokens).

    Nothing for token ids, and for what is no request. Roles and templates are not in it.
    """
    data = load(body)
    parts: list[Any] = []
    if route == CHAT:
        for message in data.get("messages") or ():
            content = message.get("content") if isinstance(message, dict) else None
            texts = content if isinstance(content, list) else [content]
            parts += [x.get("text") if isinstance(x, dict) else x for x in texts]
    else:
        parts.append(data.get("prompt"))
    text = "".join(part for part in parts if isinstance(part, str)).encode("utf-8", "surrogatepass")
    size = _BLOCK_TOKENS * _BYTES_PER_TOKEN
    found, before = [], 0
    for start in range(0, len(text) - size + 1, size):
        before = hash((before, text[start : start + size]))
        found.append((before, _BLOCK_TOKENS))
    return found


def _estimate(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)
