"""A client's completion request: what admission must know of it, and the body to send upstream.

Rule: members are kept byte for byte, and what is priced is what is sent: duplicates collapse to
the last one, and names that engines read in place of the priced ones are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec

from surgetank.policy.prefix import BLOCK, MARKS
from surgetank.wire.beginning import beginnings
from surgetank.wire.usual_chat import UsualChat, read_usual
from surgetank.wire.verdict import UNREADABLE

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
ROUTES: Final = frozenset({CHAT, COMPLETIONS})
RESPONSES: Final = "/v1/responses"


class BadRequest(Exception):  # noqa: N818 - it is named for the answer
    """The body cannot be accepted. The fields are those of an OpenAI error; `status` is 400."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


MOST_TOKENS: Final = 2**31 - 1  # engines keep counts in 32 bits
_MOST_CHOICES: Final = 128  # OpenAI's own bound on n
_NAME_CHARS: Final = 256
_SHORT: Final = 100  # bytes of a value that may be remembered
_LARGE: Final = 32 << 10  # bytes of a body: below, a look at it costs more than reading it twice
_AROUND: Final = 4 << 10  # bytes before large messages, and after them, that are looked at
_MESSAGES_BEGIN: Final = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*\[')
_STAND_IN: Final = b"[ ]"  # for messages that stand apart
_HERE: Final = b"\0"  # the same where they are written: valid JSON has no such byte

_Id = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


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


_USUAL: Final = frozenset(
    {
        *("model", "messages", "prompt", "input", "instructions", "system", "tools", "tool_choice"),
        *("stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens"),
        *("temperature", "top_p", "n", "stop", "seed", "user", "metadata", "response_format"),
        *("frequency_penalty", "presence_penalty", "logprobs", "top_logprobs", "logit_bias"),
        *("encoding_format", "dimensions", "ignore_eos", "min_tokens"),
    }
)
"""With no other names a body needs no search for those that are never forwarded."""


@dataclass(slots=True)
class Body:
    """A parsed request.

    `max_tokens`: what the client asked for; max_completion_tokens wins over max_tokens, and
    llama.cpp's n_predict counts when neither is there. `choices`: sequences to decode,
    max(n, best_of) for each prompt. `prompt_bytes`, `prompt_chars`: the text of messages or
    prompts, tool calls and tool definitions included, images and other data not.
    `prompt_tokens` is given only for prompts of token ids. `messages`: messages, or prompts.
    `usual`: the body, when it is a chat of the usual form; `kept`: the members of any other.
    `prefix`: hashes of how the prompt begins (see `beginning`).
    `apart`: its messages, when they are large; `kept` has only a mark where they belong.
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
    kept: dict[str, bytes] | None = field(repr=False)  # the prompt: keep it out of logs
    usual: UsualChat | None = field(default=None, repr=False)
    prefix: Sequence[int] = ()
    apart: memoryview | None = field(default=None, repr=False)

    @property
    def members(self) -> dict[str, bytes]:
        """The body's members, their values as sent."""
        if self.kept is None:
            self.kept = {} if self.usual is None else top_level(self.usual.write(None))
        if self.apart is not None:
            self.kept["messages"], self.apart = bytes(self.apart), None
        return self.kept

    def _at_hand(self) -> dict[str, bytes]:
        """The members, with a mark for what stands apart."""
        return self.members if self.apart is None or self.kept is None else self.kept

    def forget(self) -> None:
        """Let the prompt go: it is never sent again."""
        self.kept, self.usual, self.apart = {}, None, None

    def parts(
        self,
        *,
        stream: bool | None = None,
        include_usage: bool | None = None,
        max_tokens: int | None = None,
        members: Mapping[str, bytes] = {},
    ) -> tuple[bytes | memoryview, ...]:
        """Write the body as `encode` does, in parts: large messages are a part, and not copied."""
        apart = self.apart
        if apart is None:
            body = self.encode(
                stream=stream, include_usage=include_usage, max_tokens=max_tokens, members=members
            )
            return (body,)
        out = self._changed(self._at_hand(), stream, include_usage, max_tokens, ())
        out.update(members)
        out["messages"] = _HERE
        before, _, after = _object(out).partition(_HERE)
        return before, apart, after

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
        usual = self.usual
        if usual is not None and include_usage is max_tokens is None and not (members or drop):
            return usual.write(stream)
        out = self._changed(self.members, stream, include_usage, max_tokens, drop)
        out.update(members)
        return _object(out)

    def _changed(
        self,
        given: Mapping[str, bytes],
        stream: bool | None,  # noqa: FBT001 - as `encode` has it
        include_usage: bool | None,  # noqa: FBT001 - same
        max_tokens: int | None,
        drop: Collection[str],
    ) -> dict[str, bytes]:
        """Give the members to send upstream for those that were given."""
        out = dict(given)
        if drop or not _USUAL.issuperset(out):
            for name in [x for x in out if x.lower() in NEVER_FORWARDED or x in drop]:
                del out[name]
        limit = self.max_tokens if max_tokens is None else max_tokens
        if limit is not None:
            value = b"%d" % limit
            if "max_completion_tokens" in out or out.get("max_tokens") != value:
                if self.route == COMPLETIONS:
                    out.pop("max_completion_tokens", None)  # engines ignore it here
                for name in self._limit_names():
                    if name not in drop:
                        out[name] = value
        if stream is not None and (stream is not self.stream or self.route in ROUTES):
            out["stream"] = b"true" if stream else b"false"
        streams = self.stream if stream is None else stream
        if not streams:
            out.pop("stream_options", None)
        elif include_usage is not None and "stream_options" not in drop and self.route in ROUTES:
            options = dict(_members(given.get("stream_options"), "stream_options"))
            options["include_usage"] = b"true" if include_usage else b"false"
            out["stream_options"] = _object(options)
        return out

    @property
    def limit_name(self) -> str:
        """The member that carries the output bound."""
        return self._limit_names()[0]

    def _limit_names(self) -> list[str]:
        """Name the members that carry the output bound: those the client used, or max_tokens."""
        if self.route == RESPONSES:
            return ["max_output_tokens"]
        given = self._at_hand()
        if self.route == COMPLETIONS or "max_completion_tokens" not in given:
            return ["max_tokens"]
        if not _given(given, "max_completion_tokens"):
            return ["max_tokens"]
        if _given(given, "max_tokens"):
            return ["max_completion_tokens", "max_tokens"]
        return ["max_completion_tokens"]


def parse_request(route: str, body: bytes) -> Body:
    """Read the body of a request to `route`, one of ROUTES. Raises BadRequest."""
    apart: memoryview | None = None
    if route == CHAT:
        if len(body) >= _LARGE and (taken := _take_apart(body)) is not None:
            members, apart, found = taken
        elif (usual := read_usual(body)) is not None:
            parsed = _usual_body(usual)
            if parsed is not None:
                return parsed
    if apart is None:
        members = top_level(body)
    model, stream = model_of(members), stream_of(members)
    if apart is None:
        found = chat_size(members) if route == CHAT else prompt_size(members)
    items, size, chars, tokens, prefix = found
    sequences = (integer(members, "n", _MOST_CHOICES) or 1) if "n" in members else 1
    if route == COMPLETIONS:
        sequences = max(sequences, integer(members, "best_of", _MOST_CHOICES) or 1)
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
        session_of(members),
        members,
        None,
        prefix,
        apart,
    )


def _take_apart(body: bytes) -> tuple[dict[str, bytes], memoryview, Size] | None:
    """Read a large chat's messages by themselves, and once; None when they do not stand out.

    The general reader looks through them twice: for where they end, and for their text. Here what
    stands before their first bracket is short, and so is what follows the last bracket of all. If
    what is between is one array of messages, and the rest of the body an object whose "messages"
    are what was put there for them, then they are its messages: no other array is in that rest,
    neither before them nor after. Anything else is for the general reader, which says what is
    wrong.
    """
    found = _MESSAGES_BEGIN.search(body, 0, _AROUND)
    if found is None:
        return None
    begin, end = found.end() - 1, body.rfind(b"]", len(body) - _AROUND) + 1
    if end <= begin or body.find(b"[", 0, begin) >= 0:
        return None
    try:
        if not body.isascii():
            body.decode()
        members = top_level(body[:begin] + _STAND_IN + body[end:])
        if members.get("messages") != _STAND_IN:
            return None
        apart = memoryview(body)[begin:end]
        return members, apart, _size_of_large(body, begin, end, _tools_of(members))
    except (BadRequest, UnicodeDecodeError):
        return None


def _usual_body(usual: UsualChat) -> Body | None:
    """Price a chat of the usual form; None when something in it is not well."""
    limit = None if usual.max_tokens is msgspec.UNSET else usual.max_tokens
    if not 0 < len(usual.model) <= _NAME_CHARS or (limit is not None and not _is_limit(limit)):
        return None
    try:
        items, size, chars, _, prefix = _size_of_messages(usual.messages, ())
    except BadRequest:
        return None
    stream = usual.stream is True
    return Body(
        CHAT, usual.model, stream, limit, 1, size, chars, None, items, None, "", None, usual, prefix
    )


def _is_limit(value: int) -> bool:
    return 1 <= value <= MOST_TOKENS


def model_of(members: dict[str, bytes]) -> str:
    """Return the model's name, which every request must give."""
    model: str | None = (
        _read_often("model", members["model"], _TEXT) if "model" in members else None
    )
    if not model:
        raise BadRequest(
            "you must provide a model parameter", param="model", code="missing_required_parameter"
        )
    if len(model) > _NAME_CHARS:
        raise invalid("model", f"must be at most {_NAME_CHARS} characters")
    return model


def stream_of(members: dict[str, bytes]) -> bool:
    """Return whether the answer is to come in events."""
    told = members.get("stream", b"false")
    return told == b"true" or (told != b"false" and bool(decode(_BOOL, told, "stream")))


Size = tuple[int, int, int, int | None, Sequence[int]]
"""Messages or prompts, bytes and characters of their text, tokens where those are given, prefix."""


def size_of(texts: list[str], items: int) -> Size:
    """Measure `items` messages or prompts by all their text."""
    return _size_of_text(texts[0] if len(texts) == 1 else "".join(texts), items)


def _size_of_text(text: str, items: int) -> Size:
    chars = len(text)
    size = chars if text.isascii() else len(text.encode())
    return items, size, chars, None, beginnings(text) if chars >= BLOCK else ()


def top_level(body: bytes) -> dict[str, bytes]:
    """Read a body's members, their values as sent; of duplicates the last. Raises BadRequest."""
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


def chat_size(members: dict[str, bytes]) -> Size:
    """Measure the messages of a chat, with the tools it may call."""
    raw = members.get("messages")
    if raw is None or raw == b"null":
        raise missing("messages")
    return _size_of_messages(raw, _tools_of(members))


def _tools_of(members: dict[str, bytes]) -> Collection[bytes]:
    if "tools" in members or "functions" in members:
        return [members[x] for x in ("tools", "functions") if _given(members, x)]
    return ()


def _size_of_messages(raw: bytes | memoryview | msgspec.Raw, tools: Collection[bytes]) -> Size:
    messages = decode(_MESSAGES, raw, "messages")
    if len(messages) == 1 and not tools:
        (message,) = messages
        text = message.content
        if isinstance(text, str) and not (
            message.reasoning_content or message.tool_calls or message.function_call
        ):  # as many a chat begins
            return _size_of_text(text, 1)
    texts = _texts_of_messages(messages)
    if tools:
        texts += [tool.decode() for tool in tools]
    return size_of(texts, len(messages))


def _size_of_large(body: bytes, start: int, stop: int, tools: Collection[bytes]) -> Size:
    """Measure messages as `_size_of_messages` does, their long texts without reading them."""
    from surgetank.wire.long_text import cut, has_stand_in  # noqa: PLC0415 - NumPy: only here

    taken = cut(body, start, stop)
    if taken is None:
        return _size_of_messages(memoryview(body)[start:stop], tools)
    rest, long = taken
    messages = decode(_MESSAGES, rest, "messages")
    texts = _texts_of_messages(messages)
    texts += [tool.decode() for tool in tools]
    size = chars = 0
    begin = ""
    for text in texts:
        known = long.get(text)
        if known is not None:
            size += known.size
            chars += known.chars
        elif has_stand_in(text):  # arguments that are no string, sent on as they are written
            return _size_of_messages(memoryview(body)[start:stop], tools)
        else:
            size += len(text) if text.isascii() else len(text.encode())
            chars += len(text)
        if len(begin) < MARKS[-1]:
            begin += text if known is None else known.beginning(MARKS[-1])
    return len(messages), size, chars, None, beginnings(begin)


def _texts_of_messages(messages: list[_Message]) -> list[str]:
    if not messages:
        raise invalid("messages", "must hold at least one message")
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
    return texts


def _texts_of(call: _Function) -> list[str]:
    texts = [call.name or ""]
    if isinstance(call.arguments, str):
        texts.append(call.arguments)
    elif call.arguments:
        for name, raw in call.arguments.items():
            texts += [name, bytes(raw).decode()]
    return texts


def prompt_size(members: dict[str, bytes], name: str = "prompt") -> Size:
    """Measure a text, a list of them, or token ids."""
    raw = members.get(name, b"null")
    if raw == b"null":
        raise missing(name)
    if raw.startswith(b'"'):
        texts = [decode(_TEXT, raw, name)]
    elif (kind := _first_item(raw)) == b'"':
        texts = decode(_TEXTS, raw, name)
    elif kind == b"[":
        return _ids_size(decode(_ID_LISTS, raw, name), name)
    elif kind:
        return _ids_size([decode(_IDS, raw, name)], name)
    else:
        raise invalid(name, "must be a string, or an array of strings or token ids")
    return size_of([*texts, _read(members, "suffix", _TEXT) or ""], len(texts))


def _ids_size(prompts: list[list[int]], name: str) -> Size:
    if not all(prompts):
        raise invalid(name, "must not be or hold an empty array")
    return len(prompts), 0, 0, sum(map(len, prompts)), ()


def _first_item(raw: bytes) -> bytes:
    """Return the byte after an array's bracket; empty when `raw` is no array."""
    return raw[1:].lstrip(b" \t\r\n")[:1] if raw.startswith(b"[") else b""


def _limit(members: dict[str, bytes]) -> int | None:
    second = integer(members, "max_tokens", MOST_TOKENS) if "max_tokens" in members else None
    if "max_completion_tokens" not in members:
        first = None
    else:
        first = integer(members, "max_completion_tokens", MOST_TOKENS)
    if first is not None:
        return first
    if second is None and members.get("n_predict", b"-1") != b"-1":
        return integer(members, "n_predict", MOST_TOKENS)  # -1 is llama.cpp's "no bound"
    return second


def _include_usage(members: dict[str, bytes], *, stream: bool) -> bool | None:
    if "stream_options" not in members or not _given(members, "stream_options"):
        return None
    options = _members(members["stream_options"], "stream_options")
    if not stream:
        raise invalid("stream_options", "is only allowed when stream is true")
    value: bool | None = decode(
        _BOOL, options.get("include_usage", b"null"), "stream_options.include_usage"
    )
    return value


def session_of(members: dict[str, bytes]) -> str:
    """Return what ties requests of one session together, "" without it."""
    return text_of_metadata(members, "session_id") if "metadata" in members else ""


def user_of(body: Body) -> str:
    """Return what the client calls its user, "" for what is no text."""
    raw = body.usual.user if body.usual is not None else (body.kept or {}).get("user", b"")
    try:
        value = _TEXT.decode(raw) if raw else None
    except UNREADABLE:
        return ""
    return value[:_NAME_CHARS] if value else ""


def text_of_metadata(members: dict[str, bytes], name: str) -> str:
    """Return a text that the client's metadata hold, "" without it."""
    raw = _members(members.get("metadata"), "metadata").get(name, b"null")
    value = decode(_TEXT, raw, f"metadata.{name}")
    return value[:_NAME_CHARS] if value else ""


def integer(members: dict[str, bytes], name: str, most: int) -> int | None:
    """Return a whole number of 1 to `most`; None when it is not given."""
    raw = members.get(name)
    value: int | None = None if raw is None else _read_often(name, raw, _INT)
    if value is None:
        return None
    if value < 1:
        raise invalid(name, "must be at least 1", code="integer_below_min_value")
    if value > most:
        raise invalid(name, f"must be at most {most}", code="integer_above_max_value")
    return value


def _members(raw: bytes | None, param: str) -> dict[str, bytes]:
    members = decode(_MEMBERS, raw or b"null", param) or {}
    return {name: bytes(value) for name, value in members.items()}


def _given(members: Mapping[str, bytes], name: str) -> bool:
    return members.get(name, b"null") != b"null"


def _read(members: dict[str, bytes], name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    raw = members.get(name)
    return None if raw is None else decode(decoder, raw, name)


def _read_often(name: str, raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Read a short value that many requests have alike: their model's name, their bound."""
    return _known(name, raw, decoder) if len(raw) <= _SHORT else decode(decoder, raw, name)


@lru_cache(maxsize=256)
def _known(name: str, raw: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    return decode(decoder, raw, name)


def decode(
    decoder: msgspec.json.Decoder[Any], raw: bytes | memoryview | msgspec.Raw, param: str
) -> Any:
    """Read the value of the member `param`. Raises BadRequest."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise invalid(param, "is nested too deeply") from None
    except UNREADABLE as error:
        expected = _NAMES.get(id(decoder))
        if expected is not None:
            raise invalid(param, f"must be {expected}", code="invalid_type") from None
        what, _, where = _reason(error).partition(" - at `$")
        raise invalid(param + where.rstrip("`"), what, code="invalid_type") from None


def missing(param: str) -> BadRequest:
    """Make the error for a member that must be there."""
    return BadRequest(
        f"missing required parameter: '{param}'", param=param, code="missing_required_parameter"
    )


def invalid(param: str, problem: str, *, code: str = "invalid_value") -> BadRequest:
    """Make the error for a member that cannot be taken."""
    return BadRequest(f"invalid '{param}': {problem}", param=param, code=code)


def _reason(error: BaseException) -> str:
    """Say what is wrong without the bytes at fault, which may be prompt text."""
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8 at byte {error.start}"
    return str(error)


def _object(members: Mapping[str, bytes]) -> bytes:
    return _ENCODER.encode({name: _RAW(raw) for name, raw in members.items()})
