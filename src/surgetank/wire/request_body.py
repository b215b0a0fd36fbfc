"""A client's completion request: what admission must know of it, and the body to send upstream.

Rule: members are kept byte for byte, and what is priced is what is sent: duplicates collapse to
the last one, and names that engines read in place of the priced ones are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from surgetank.wire.verdict import UNREADABLE

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
ROUTES: Final = frozenset({CHAT, COMPLETIONS})


class BadRequest(Exception):  # noqa: N818 - it is named for the answer
    """The body cannot be accepted. The fields are those of an OpenAI error; `status` is 400."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


_MOST_TOKENS: Final = 2**31 - 1  # engines keep counts in 32 bits
_MOST_CHOICES: Final = 128  # OpenAI's own bound on n
_NAME_CHARS: Final = 256
_SHORT: Final = 100  # bytes of a value that may be remembered

_Id = Annotated[int, msgspec.Meta(ge=0, le=_MOST_TOKENS)]


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, msgspec.Raw] | None = None


class _ToolCall(msgspec.Struct):
    function: _Function | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[str | _Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MESSAGES: Final = msgspec.json.Decoder(list[_Message])
_TEXT: Final = msgspec.json.Decoder(str | None)
_TEXTS: Final = msgspec.json.Decoder(list[str])
_IDS: Final = msgspec.json.Decoder(list[_Id])
_ID_LISTS: Final = msgspec.json.Decoder(list[list[_Id]])
_BOOL: Final = msgspec.json.Decoder(bool | None)
_INT: Final = msgspec.json.Decoder(int | None)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_ENCODER: Final = msgspec.json.Encoder()
_RAW: Final = msgspec.Raw
_NAMES: Final = {
    id(_TEXT): "a string",
    id(_BOOL): "a boolean",
    id(_INT): "an integer",
    id(_MEMBERS): "an object",
}

NEVER_FORWARDED: Final = frozenset(
    {
        "priority",  # the gateway's to give
        "kv_transfer_params",  # same
        "n_predict",  # llama.cpp reads it before max_tokens
        "n_cmpl",  # llama.cpp reads it before n
    }
)


@dataclass(slots=True)
class Body:
    """A parsed request.

    `max_tokens`: what the client asked for; max_completion_tokens wins over max_tokens, and
    llama.cpp's n_predict counts when neither is there. `choices`: sequences to decode,
    max(n, best_of) for each prompt. `prompt_bytes`, `prompt_chars`: the text of messages or
    prompts, tool calls and tool definitions included, images and other data not.
    `prompt_tokens` is given only for prompts of token ids. `messages`: messages, or prompts.
    """

    route: str
    model: str
    stream: bool
    max_tokens: int | None
    choices: int
    prompt_bytes: int
    prompt_chars: int
    prompt_tokens: int | None
    messages: int
    include_usage: bool | None
    session: str
    members: dict[str, bytes] = field(repr=False)  # it holds the prompt: keep it out of logs

    def encode(
        self,
        *,
        stream: bool | None = None,
        include_usage: bool | None = None,
        max_tokens: int | None = None,
        members: Mapping[str, bytes] = {},
        drop: Collection[str] = (),
    ) -> bytes:
        """Write the body to send upstream; None leaves a member as the client sent it.

        `max_tokens` goes under the client's own name for it, else max_tokens; `members` are raw
        JSON values that win over everything; `drop` names members to leave out. A body that does
        not stream has no stream_options, which engines refuse without stream.
        """
        out = self.members.copy()
        if drop or not NEVER_FORWARDED.isdisjoint(out):
            for name in (*NEVER_FORWARDED, *drop):
                out.pop(name, None)
        limit = self.max_tokens if max_tokens is None else max_tokens
        if limit is not None:
            value = b"%d" % limit
            if "max_completion_tokens" in out or out.get("max_tokens") != value:
                if self.route == COMPLETIONS:
                    out.pop("max_completion_tokens", None)  # engines ignore it here
                for name in self._limit_names():
                    if name not in drop:
                        out[name] = value
        if stream is not None:
            out["stream"] = b"true" if stream else b"false"
        streams = self.stream if stream is None else stream
        if not streams:
            out.pop("stream_options", None)
        elif include_usage is not None and "stream_options" not in drop:
            options = dict(_members(self.members.get("stream_options"), "stream_options"))
            options["include_usage"] = b"true" if include_usage else b"false"
            out["stream_options"] = _object(options)
        out.update(members)
        return _object(out)

    def _limit_names(self) -> list[str]:
        """Name the members that carry the output bound: those the client used, or max_tokens."""
        if self.route == COMPLETIONS or "max_completion_tokens" not in self.members:
            return ["max_tokens"]
        if not _given(self.members, "max_completion_tokens"):
            return ["max_tokens"]
        if _given(self.members, "max_tokens"):
            return ["max_completion_tokens", "max_tokens"]
        return ["max_completion_tokens"]


def parse_request(route: str, body: bytes) -> Body:
    """Read the body of a request to `route`, one of ROUTES. Raises BadRequest."""
    members = _top_level(body)
    model = _read_often("model", members["model"], _TEXT) if "model" in members else None
    if not model:
        raise BadRequest(
            "you must provide a model parameter", param="model", code="missing_required_parameter"
        )
    if len(model) > _NAME_CHARS:
        raise _invalid("model", f"must be at most {_NAME_CHARS} characters")
    told = members.get("stream", b"false")
    stream = told == b"true" or (told != b"false" and bool(_decode(_BOOL, told, "stream")))
    items, size, chars, tokens = _chat_size(members) if route == CHAT else _prompt_size(members)
    sequences = (_integer(members, "n", _MOST_CHOICES) or 1) if "n" in members else 1
    if route == COMPLETIONS:
        sequences = max(sequences, _integer(members, "best_of", _MOST_CHOICES) or 1)
        sequences *= items
    # By position: a call of a class puts keywords in a dict first.
    return Body(
        route,
        model,
        stream,
        _limit(members),
        sequences,
        size,
        chars,
        tokens,
        items,
        _include_usage(members, stream=stream),
        _session(members),
        members,
    )


_Size = tuple[int, int, int, int | None]
"""Messages or prompts, bytes and characters of their text, and tokens where those are given."""


def _size_of(texts: list[str], items: int) -> _Size:
    text = texts[0] if len(texts) == 1 else "".join(texts)
    chars = len(text)
    return items, chars if text.isascii() else len(text.encode()), chars, None


def _top_level(body: bytes) -> dict[str, bytes]:
    try:
        body.decode()  # msgspec does not look into the strings of the values it keeps raw
        members = _OBJECT.decode(body)
    except RecursionError:
        raise BadRequest("the JSON body is nested too deeply", code="invalid_json") from None
    except msgspec.ValidationError:
        raise BadRequest("the request body must be a JSON object", code="invalid_json") from None
    except UNREADABLE as error:
        raise BadRequest(
            f"we could not parse the JSON body of your request: {_reason(error)}",
            code="invalid_json",
        ) from None
    return {name: bytes(raw) for name, raw in members.items()}


def _chat_size(members: dict[str, bytes]) -> _Size:
    raw = members.get("messages")
    if raw is None or raw == b"null":
        raise BadRequest(
            "missing required parameter: 'messages'",
            param="messages",
            code="missing_required_parameter",
        )
    messages = _decode(_MESSAGES, raw, "messages")
    if not messages:
        raise _invalid("messages", "must hold at least one message")
    texts: list[str] = []
    for message in messages:
        content = message.content
        if isinstance(content, str):
            texts.append(content)
        elif content is not None:
            texts += [(x if isinstance(x, str) else x.text) or "" for x in content]
        if message.reasoning_content:
            texts.append(message.reasoning_content)
        if message.tool_calls:
            for call in message.tool_calls:
                if call.function is not None:
                    texts += _texts_of(call.function)
        if message.function_call is not None:
            texts += _texts_of(message.function_call)
    if "tools" in members or "functions" in members:
        given = [x for x in ("tools", "functions") if _given(members, x)]
        texts += [members[name].decode() for name in given]
    return _size_of(texts, len(messages))


def _texts_of(call: _Function) -> list[str]:
    texts = [call.name or ""]
    if isinstance(call.arguments, str):
        texts.append(call.arguments)
    elif call.arguments:
        for name, raw in call.arguments.items():
            texts += [name, bytes(raw).decode()]
    return texts


def _prompt_size(members: dict[str, bytes]) -> _Size:
    raw = members.get("prompt", b"null")
    if raw == b"null":
        raise BadRequest(
            "missing required parameter: 'prompt'",
            param="prompt",
            code="missing_required_parameter",
        )
    if raw.startswith(b'"'):
        texts = [_decode(_TEXT, raw, "prompt")]
    elif (kind := _first_item(raw)) == b'"':
        texts = _decode(_TEXTS, raw, "prompt")
    elif kind == b"[":
        return _ids_size(_decode(_ID_LISTS, raw, "prompt"))
    elif kind:
        return _ids_size([_decode(_IDS, raw, "prompt")])
    else:
        raise _invalid("prompt", "must be a string, or an array of strings or token ids")
    return _size_of([*texts, _read(members, "suffix", _TEXT) or ""], len(texts))


def _ids_size(prompts: list[list[int]]) -> _Size:
    if not all(prompts):
        raise _invalid("prompt", "must not be or hold an empty array")
    return len(prompts), 0, 0, sum(map(len, prompts))


def _first_item(raw: bytes) -> bytes:
    """Return the byte after an array's bracket; empty when `raw` is no array."""
    return raw[1:].lstrip(b" \t\r\n")[:1] if raw.startswith(b"[") else b""


def _limit(members: dict[str, bytes]) -> int | None:
    second = _integer(members, "max_tokens", _MOST_TOKENS) if "max_tokens" in members else None
    if "max_completion_tokens" not in members:
        first = None
    else:
        first = _integer(members, "max_completion_tokens", _MOST_TOKENS)
    if first is not None:
        return first
    if second is None and members.get("n_predict", b"-1") != b"-1":
        return _integer(members, "n_predict", _MOST_TOKENS)  # -1 is llama.cpp's "no bound"
    return second


def _include_usage(members: dict[str, bytes], *, stream: bool) -> bool | None:
    if "stream_options" not in members or not _given(members, "stream_options"):
        return None
    options = _members(members["stream_options"], "stream_options")
    if not stream:
        raise _invalid("stream_options", "is only allowed when stream is true")
    value: bool | None = _decode(
        _BOOL, options.get("include_usage", b"null"), "stream_options.include_usage"
    )
    return value


def _session(members: dict[str, bytes]) -> str:
    if "metadata" not in members:
        return ""
    raw = _members(members["metadata"], "metadata").get("session_id", b"null")
    value = _decode(_TEXT, raw, "metadata.session_id")
    return value[:_NAME_CHARS] if value else ""


def _integer(members: dict[str, bytes], name: str, most: int) -> int | None:
    raw = members.get(name)
    value: int | None = None if raw is None else _read_often(name, raw, _INT)
    if value is None:
        return None
    if value < 1:
        raise _invalid(name, "must be at least 1", code="integer_below_min_value")
    if value > most:
        raise _invalid(name, f"must be at most {most}", code="integer_above_max_value")
    return value


def _members(raw: bytes | None, param: str) -> dict[str, bytes]:
    members = _decode(_MEMBERS, raw or b"null", param) or {}
    return {name: bytes(value) for name, value in members.items()}


def _given(members: Mapping[str, bytes], name: str) -> bool:
    return members.get(name, b"null") != b"null"


def _read(members: dict[str, bytes], name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    raw = members.get(name)
    return None if raw is None else _decode(decoder, raw, name)


def _read_often(name: str, raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Read a short value that many requests have alike: their model's name, their bound."""
    return _known(name, raw, decoder) if len(raw) <= _SHORT else _decode(decoder, raw, name)


@lru_cache(maxsize=256)
def _known(name: str, raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    return _decode(decoder, raw, name)


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes, param: str) -> Any:
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise _invalid(param, "is nested too deeply") from None
    except UNREADABLE as error:
        expected = _NAMES.get(id(decoder))
        if expected is not None:
            raise _invalid(param, f"must be {expected}", code="invalid_type") from None
        what, _, where = _reason(error).partition(" - at `$")
        raise _invalid(param + where.rstrip("`"), what, code="invalid_type") from None


def _invalid(param: str, problem: str, *, code: str = "invalid_value") -> BadRequest:
    return BadRequest(f"invalid '{param}': {problem}", param=param, code=code)


def _reason(error: BaseException) -> str:
    """Say what is wrong without the bytes at fault, which may be prompt text."""
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8 at byte {error.start}"
    return str(error)


def _object(members: Mapping[str, bytes]) -> bytes:
    return _ENCODER.encode({name: _RAW(raw) for name, raw in members.items()})
