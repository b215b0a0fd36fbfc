"""The bytes of vLLM's answers: the same keys in the same order as captured from vLLM 0.32.

The chat forms and errors are compared with captures in the tests; the text-completion forms follow
vLLM's `CompletionStreamResponse` and `CompletionResponse`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"
FINGERPRINT: Final = "vllm-0.32.0-surgetank"
BUSY: Final = (
    "The engine is currently busy and cannot accept new requests."
    " Please try again later or on a different instance."
)


def compact(value: Any) -> bytes:
    """Encode as vLLM's JSON answers are: no spaces, UTF-8 as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error(status: int, message: str, type_: str, param: str | None = None) -> bytes:
    """Write an error body."""
    return compact({"error": _error(status, message, type_, param)})


def error_event(status: int, message: str, type_: str, param: str | None = None) -> bytes:
    """Write an error inside a stream; vLLM encodes it with spaces, and [DONE] follows."""
    return b"data: %b\n\n" % json.dumps({"error": _error(status, message, type_, param)}).encode()


def _error(status: int, message: str, type_: str, param: str | None) -> dict[str, Any]:
    return {"message": message, "type": type_, "param": param, "code": status}


def usage(prompt_tokens: int, completion_tokens: int, cached: int | None = None) -> dict[str, Any]:
    """Build the usage of a stream's last chunk; `cached` prompt tokens, None to leave that out."""
    counted: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached is not None:  # as vLLM with --enable-prompt-tokens-details
        counted["prompt_tokens_details"] = {"cached_tokens": cached}
    return counted


class StreamForm:
    """Writes one response's events. Each token's event is cut from parts made once."""

    def __init__(
        self,
        *,
        chat: bool,
        id_: str,
        created: int,
        model: str,
        prompt_tokens: int,
        include_usage: bool,
        continuous_usage: bool,
        cached: int | None = None,
    ) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._envelope = (
            f'{{"id":{json.dumps(id_)},"object":"{kind}","created":{created},'
            f'"model":{json.dumps(model)},"choices":'
        )
        self._chat = chat
        self._prompt_tokens = prompt_tokens
        self._include_usage = include_usage
        self._continuous = continuous_usage
        self._cached = cached

    def opening(self, index: int) -> bytes:
        """Write the chat's first event, its role; vLLM sends it with the first token."""
        if not self._chat:
            return b""
        return self._event(
            f'[{{"index":{index},"delta":{{"role":"assistant","content":""}},'
            '"logprobs":null,"finish_reason":null}]',
            f'{self._usage_so_far(0)},"prompt_token_ids":null,"prompt_text":null',
        )

    def token(self, index: int, text: str, tokens: int) -> bytes:
        """Write a token; `tokens` is the whole response's output so far."""
        if self._chat:
            choice = (
                f'[{{"index":{index},"delta":{{"content":"{text}"}},'
                '"logprobs":null,"finish_reason":null,"token_ids":null}]'
            )
        else:
            choice = self._text_choice(index, text, "null")
        return self._event(choice, self._usage_so_far(tokens))

    def last(self, index: int, text: str, reason: str, tokens: int) -> bytes:
        """Write a choice's last token with the reason why it ends."""
        if self._chat:
            choice = (
                f'[{{"index":{index},"delta":{{"content":"{text}"}},"logprobs":null,'
                f'"finish_reason":"{reason}","stop_reason":null,"token_ids":null}}]'
            )
        else:
            choice = self._text_choice(index, text, f'"{reason}"')
        tail = self._usage_so_far(tokens)
        if self._chat and not self._include_usage:
            tail += f',"system_fingerprint":"{FINGERPRINT}"'
        return self._event(choice, tail)

    def closing(self, tokens: int) -> bytes:
        """Write what follows the last token: the usage, when it was asked for, and [DONE]."""
        if not self._include_usage:
            return DONE
        total = compact(usage(self._prompt_tokens, tokens, self._cached)).decode()
        tail = f',"usage":{total}'
        if self._chat:
            tail += f',"system_fingerprint":"{FINGERPRINT}"'
        return self._event("[]", tail) + DONE

    @staticmethod
    def _text_choice(index: int, text: str, reason: str) -> str:
        return (
            f'[{{"index":{index},"text":"{text}","logprobs":null,"finish_reason":{reason},'
            '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        )

    def _usage_so_far(self, tokens: int) -> str:
        if self._continuous:
            counted = usage(self._prompt_tokens, tokens)
            if self._chat:
                counted["completion_tokens_details"] = None
            return f',"usage":{compact(counted).decode()}'
        return "" if self._chat else ',"usage":null'

    def _event(self, choices: str, tail: str) -> bytes:
        return f"data: {self._envelope}{choices}{tail}}}\n\n".encode()


def whole(
    *,
    chat: bool,
    id_: str,
    created: int,
    model: str,
    prompt_tokens: int,
    choices: Sequence[tuple[str, str, int]],
    cached: int | None = None,
) -> bytes:
    """Write a response that is not streamed; `choices` are (text, finish reason, tokens)."""
    counted: dict[str, Any] = usage(prompt_tokens, sum(tokens for *_, tokens in choices))
    details = None if cached is None else {"cached_tokens": cached}
    counted |= {"prompt_tokens_details": details, "completion_tokens_details": None}
    form = _chat_choice if chat else _text_choice
    answer: dict[str, Any] = {
        "id": id_,
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [form(i, text, reason) for i, (text, reason, _) in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": counted,
    }
    if chat:
        answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    answer["kv_transfer_params"] = None
    if chat:
        answer |= {"ec_transfer_params": None, "metrics": None}
    return compact(answer)


def _chat_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }


def _text_choice(index: int, text: str, reason: str) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }


_PERMISSION: Final = {
    "id": "",
    "object": "model_permission",
    "created": 0,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


def models(name: str, created: int, max_model_len: int) -> bytes:
    """Write the answer to /v1/models."""
    model = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [_PERMISSION | {"id": f"modelperm-{name}", "created": created}],
    }
    return compact({"object": "list", "data": [model]})


def load_header(form: str, values: Mapping[str, float]) -> tuple[bytes, bytes] | None:
    """Write the ORCA header `endpoint-load-metrics`; None for a format that vLLM ignores."""
    if form.lower() == "json":
        text = f"JSON {json.dumps({'named_metrics': dict(values)})}"
    elif form.lower() == "text":
        text = "TEXT " + ", ".join(f"named_metrics.{name}={v}" for name, v in values.items())
    else:
        return None
    return b"endpoint-load-metrics", text.encode()
