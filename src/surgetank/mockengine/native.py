"""The routes beside completions, in vLLM's shapes: embeddings, responses, messages.

Rule: the same tokens at the same times as a chat's; only what is read and written differs.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any, Final

from surgetank.mockengine import asked
from surgetank.mockengine.answers import compact
from surgetank.mockengine.asked import Asked

EMBEDDINGS: Final = "/v1/embeddings"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
COUNT_TOKENS: Final = "/v1/messages/count_tokens"
ROUTES: Final = (EMBEDDINGS, RESPONSES, MESSAGES, COUNT_TOKENS)
_LIMITS: Final = {RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
_DIMENSIONS: Final = 8
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


def read(route: str, body: bytes) -> Asked:
    """Read a request to one of ROUTES. Raises Refused, as `asked.read` does."""
    data = asked.load(body)
    choices = 1
    if route == EMBEDDINGS:
        tokens, choices = _input_tokens(data)
        data = data | {"stream": False}  # vLLM knows no such member here, and ignores it
    elif route == RESPONSES:
        tokens = _text_tokens(data, "input", "instructions")
    else:
        tokens = _text_tokens(data, "messages", "system")
    limit = data.get(_LIMITS[route]) if route in _LIMITS else 1
    if route == MESSAGES and limit is None:
        raise asked.missing("max_tokens", data)
    return asked.build(
        data, chat=True, route=route, prompt_tokens=tokens, limit=limit, inputs=choices
    )


def _input_tokens(data: dict[str, Any]) -> tuple[int, int]:
    """Tokens of all inputs together, and how many inputs there are."""
    given = data.get("input")
    if given is None:
        raise asked.missing("input", data)
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    inputs = given if several else [given]
    return sum(asked.prompt_tokens({"prompt": one}) for one in inputs), len(inputs)


def _text_tokens(data: dict[str, Any], name: str, above: str) -> int:
    if name not in data:
        raise asked.missing(name, data)
    given = data[name]
    messages = [{"content": given}] if isinstance(given, str) else given
    if data.get(above):
        messages = [{"content": data[above]}, *messages] if isinstance(messages, list) else messages
    return asked.chat_tokens({"messages": messages})


class ResponsesForm:
    """Writes the events of one streamed response."""

    def __init__(self, *, id_: str, created: int, model: str, prompt_tokens: int) -> None:
        self._id = id_
        self._created = created
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._number = 0
        self._text = ""
        self._reason = ""

    def opening(self, _index: int) -> bytes:
        begun = self._response("in_progress", None)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return b"".join(
            (
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event("response.output_item.added", output_index=0, item=self._item("")),
                self._event("response.content_part.added", **self._place(), part=part),
            )
        )

    def token(self, _index: int, text: str, _tokens: int) -> bytes:
        text = json.loads(f'"{text}"')
        self._text += text
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def last(self, index: int, text: str, reason: str, tokens: int) -> bytes:
        event = self.token(index, text, tokens) if text else b""
        self._reason = reason
        done = self._item(self._text)
        return event + b"".join(
            (
                self._event(
                    "response.output_text.done", **self._place(), text=self._text, logprobs=[]
                ),
                self._event("response.content_part.done", **self._place(), part=done["content"][0]),
                self._event("response.output_item.done", output_index=0, item=done),
            )
        )

    def closing(self, tokens: int) -> bytes:
        status = "incomplete" if self._reason == "length" else "completed"
        return self._event(f"response.{status}", response=self._response(status, tokens))

    def whole(self, text: str, reason: str, tokens: int) -> bytes:
        """Write the answer that is not streamed."""
        self._text = text
        status = "incomplete" if reason == "length" else "completed"
        return compact(self._response(status, tokens))

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._id}", "output_index": 0, "content_index": 0}

    def _item(self, text: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "status": "completed" if text else "in_progress",
            "content": [part] if text else [],
        }

    def _response(self, status: str, tokens: int | None) -> dict[str, Any]:
        usage = None if tokens is None else _responses_usage(self._prompt_tokens, tokens)
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self._model,
            "output": [] if tokens is None else [self._item(self._text)],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    def _event(self, kind: str, **members: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), compact(data))


def _responses_usage(prompt_tokens: int, tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + tokens,
    }


class MessagesForm:
    """Writes the events of one streamed message."""

    def __init__(self, *, id_: str, model: str, prompt_tokens: int) -> None:
        self._id = id_
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._reason = "stop"

    def opening(self, _index: int) -> bytes:
        block = {"type": "text", "text": ""}
        return self._event("message_start", message=self._message([], None, 0)) + self._event(
            "content_block_start", index=0, content_block=block
        )

    def token(self, _index: int, text: str, _tokens: int) -> bytes:
        delta = {"type": "text_delta", "text": json.loads(f'"{text}"')}
        return self._event("content_block_delta", index=0, delta=delta)

    def last(self, index: int, text: str, reason: str, tokens: int) -> bytes:
        self._reason = reason
        event = self.token(index, text, tokens) if text else b""
        return event + self._event("content_block_stop", index=0)

    def closing(self, tokens: int) -> bytes:
        delta = {"stop_reason": _STOP_REASONS.get(self._reason), "stop_sequence": None}
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": tokens}
        end = self._event("message_delta", delta=delta, usage=usage)
        return end + self._event("message_stop")

    def whole(self, text: str, reason: str, tokens: int) -> bytes:
        """Write the answer that is not streamed."""
        return compact(self._message([{"type": "text", "text": text}], reason, tokens))

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, tokens: int
    ) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            "stop_reason": None if reason is None else _STOP_REASONS.get(reason),
            "stop_sequence": None,
            "usage": {"input_tokens": self._prompt_tokens, "output_tokens": tokens},
        }

    @staticmethod
    def _event(kind: str, **members: Any) -> bytes:
        data = compact({"type": kind, **members})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def embeddings(wanted: Asked, id_: str, created: int, model: str) -> bytes:
    """Write one small vector for each input: in base64 where that was asked for."""
    vectors = [[(i + 1) / (i + at + 2) for at in range(_DIMENSIONS)] for i in range(wanted.inputs)]
    data = [
        {"index": i, "object": "embedding", "embedding": _packed(v) if wanted.base64 else v}
        for i, v in enumerate(vectors)
    ]
    usage = {
        "prompt_tokens": wanted.prompt_tokens,
        "total_tokens": wanted.prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    return compact(
        {
            "id": f"embd-{id_}",
            "object": "list",
            "created": created,
            "model": model,
            "data": data,
            "usage": usage,
        }
    )


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
