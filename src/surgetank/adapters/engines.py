"""What an engine is, what it can hold and whether it takes requests, asked over HTTP.

Rule: what an engine does not say is None, never 0; nothing it says can raise, whatever it is. Of an
answer only the named members are kept: SGLang's holds its API keys.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from surgetank.adapters.dialects import (
    DIALECTS,
    Dialect,
    by_name,
    count,
    is_sleeping,
    parse_signals,
    unknown_signals,
)
from surgetank.adapters.exposition import Sample, samples
from surgetank.adapters.http import FetchError, Response, Tls, fetch

__all__ = [
    "DIALECTS",
    "Dialect",
    "EngineFacts",
    "Health",
    "can_sleep",
    "count_prompt_tokens",
    "has_route",
    "health",
    "is_sleeping",
    "parse_signals",
    "probe",
    "unknown_signals",
]

Health = Literal["ready", "loading", "down"]
Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says it can hold. None is unknown.

    `slots`: requests it runs at once; `kv_tokens`: its whole KV cache, over all its data-parallel
    engines; `preempts`: it survives a full KV cache (else every stream on it dies);
    `max_context`: most tokens of one request. `frees_on_disconnect`: it stops a request whose
    client has left also when the request was not streamed; treat None as True (most servers do),
    and only send such requests streamed where it is False.
    """

    dialect: str
    version: str | None = None
    models: tuple[str, ...] = ()
    slots: int | None = None
    kv_tokens: int | None = None
    block_size: int | None = None
    preempts: bool | None = None
    max_context: int | None = None
    frees_on_disconnect: bool | None = None


# --- health -----------------------------------------------------------------------------------


async def health(
    url: str,
    timeout: float,  # noqa: ASYNC109 - passed on to fetch, which bounds the whole request
    *,
    sleeps: bool = True,
    headers: Headers = (),
    tls: Tls | None = None,
) -> Health:
    """Ask an engine whether it takes requests; never raises. `sleeps`: what `can_sleep` told.

    "loading": alive and not serving yet: 503 with a body that says so, or a vLLM that sleeps (its
    /health stays 200 while requests hang). "down": refused, timed out, or any other status. A
    server without the route is ready when it lists its models.
    SGLang's /health may run a token and take a second: give it `timeout` >= 3 s.
    """
    base, sent = url.rstrip("/"), tuple(headers)
    try:
        answer = await fetch(
            f"{base}/health", timeout=timeout, headers=sent, max_body=1 << 16, tls=tls
        )
    except FetchError:
        return "down"
    if answer.status == 503 and b"loading" in answer.body.lower():
        return "loading"
    if answer.status == 404:  # not every OpenAI-compatible server has the route
        listing = await _optional(f"{base}/v1/models", timeout, sent, tls)
        return "ready" if listing is not None and listing.status == 200 else "down"
    if not 200 <= answer.status < 300:
        return "down"
    if sleeps and await _is_sleeping(base, timeout, sent, tls):
        return "loading"
    return "ready"


async def can_sleep(
    url: str,
    timeout: float,  # noqa: ASYNC109 - passed on to fetch, which bounds the request
    *,
    headers: Headers = (),
    tls: Tls | None = None,
) -> bool:
    """Whether an engine may ever be asleep; it says for its whole life. True when unclear."""
    answer = await _optional(f"{url.rstrip('/')}/is_sleeping", timeout, tuple(headers), tls)
    return answer is None or answer.status != 404


async def _is_sleeping(base: str, limit: float, headers: Headers, tls: Tls | None) -> bool:
    """/is_sleeping is there exactly when the engine can be put to sleep over HTTP (dev mode)."""
    answer = await _optional(f"{base}/is_sleeping", limit, headers, tls)
    return _member(_json(answer), "is_sleeping") is True


# --- tokens -----------------------------------------------------------------------------------


async def count_prompt_tokens(
    url: str,
    route: str,
    members: Mapping[str, bytes],
    *,
    timeout: float,  # noqa: ASYNC109 - passed on to fetch, which bounds each request
    headers: Headers = (),
    tls: Tls | None = None,
) -> int | None:
    """Have llama.cpp count a prompt: its chat template, then its tokenizer. None when it does not.

    `members`: the request's own, as raw JSON. No slot and no KV are taken by it.
    """
    base, sent = url.rstrip("/"), (*headers, (b"content-type", b"application/json"))
    if route == "/v1/chat/completions":
        body = b"{%b}" % b",".join(
            b"%b:%b" % (json.dumps(name).encode(), value)
            for name, value in members.items()
            if name in _TEMPLATE_MEMBERS
        )
        prompt = await _said(f"{base}/apply-template", body, "prompt", timeout, sent, tls)
        content = json.dumps(prompt).encode() if isinstance(prompt, str) else None
    else:
        content = members.get("prompt")
    if content is None or not content.startswith(b'"'):
        return None
    body = b'{"add_special":true,"parse_special":true,"content":%b}' % content
    tokens = await _said(f"{base}/tokenize", body, "tokens", timeout, sent, tls)
    return len(tokens) if isinstance(tokens, list) and tokens else None


_TEMPLATE_MEMBERS: Final = frozenset(
    {"messages", "tools", "tool_choice", "chat_template_kwargs", "add_generation_prompt",
     "response_format", "parallel_tool_calls", "reasoning_format"}
)  # fmt: skip


async def has_route(
    url: str,
    route: str,
    *,
    timeout: float,  # noqa: ASYNC109 - passed on to fetch, which bounds the request
    headers: Headers = (),
    tls: Tls | None = None,
) -> bool | None:
    """Ask an engine whether it has a route that takes POST; None when it gave no clear answer.

    An empty request is sent: who has the route refuses that as malformed, and runs nothing.
    """
    sent = (*headers, (b"content-type", b"application/json"))
    try:
        answer = await fetch(
            f"{url.rstrip('/')}{route}",
            timeout=timeout,
            headers=sent,
            method="POST",
            body=b"{}",
            tls=tls,
        )
    except FetchError:
        return None
    if answer.status in {429, 502, 503, 504}:
        return None
    if answer.status == 404:  # a 404 may also be about the model that was not named
        return b"model" in answer.body.lower()
    return answer.status not in {405, 501}


async def _said(  # noqa: PLR0917 - private, called twice
    url: str, body: bytes, name: str, limit: float, headers: Headers, tls: Tls | None
) -> Any:
    try:
        answer = await fetch(url, timeout=limit, headers=headers, method="POST", body=body, tls=tls)
    except FetchError:
        return None
    return _member(_json(answer), name) if answer.status == 200 else None


# --- probe ------------------------------------------------------------------------------------


async def probe(
    url: str,
    *,
    timeout: float,  # noqa: ASYNC109 - passed on to fetch, which bounds each request
    headers: Headers = (),
    kv_unified: bool | None = None,
    tls: Tls | None = None,
) -> EngineFacts:
    """Find out what runs at `url` and what it can hold; at most three rounds of `timeout` each.

    `kv_unified` (llama.cpp, whose /props does not tell): whether its slots share one KV cache of
    n_ctx tokens or have n_ctx each; None takes the shared one, the smaller and safe reading.
    Raises FetchError when /v1/models gives no answer or not a 200.
    """
    base, sent = url.rstrip("/"), tuple(headers)
    listing = await fetch(f"{base}/v1/models", timeout=timeout, headers=sent, tls=tls)
    if listing.status != 200:
        raise FetchError(f"{base}/v1/models: answered {listing.status}, expected 200")
    models = [m for m in _list(_json(listing), "data") if isinstance(_member(m, "id"), str)]
    dialect = await _dialect(base, timeout, sent, models, tls)
    facts = EngineFacts(
        dialect.name,
        models=tuple(m["id"] for m in models),
        preempts=dialect.preempts,
        frees_on_disconnect=dialect.frees_on_disconnect,
        max_context=_first(_positive(_member(m, "max_model_len")) for m in models),
    )
    extra = _EXTRA.get(dialect.name)
    if extra is None:
        return facts
    paths, read = extra
    answers = await asyncio.gather(*(_optional(base + path, timeout, sent, tls) for path in paths))
    known = {name: value for name, value in read(answers).items() if value is not None}
    facts = replace(facts, **known)
    if dialect.name == "llamacpp" and kv_unified is False and facts.slots and facts.max_context:
        facts = replace(facts, kv_tokens=facts.slots * facts.max_context)
    return facts


async def _dialect(
    base: str, limit: float, headers: Headers, models: list[Any], tls: Tls | None
) -> Dialect:
    owners = {_member(model, "owned_by") for model in models}
    for dialect in DIALECTS.values():
        if dialect.owned_by in owners and dialect.owned_by:
            return dialect
    paths = dict.fromkeys(d.metrics_path for d in DIALECTS.values())
    answers = await asyncio.gather(*(_optional(base + path, limit, headers, tls) for path in paths))
    lines = [line for a in answers if a and a.status == 200 for line in a.text.splitlines()]
    for dialect in DIALECTS.values():
        if any(line.startswith(dialect.prefix) for line in lines):
            return dialect
    return DIALECTS["openai"]


Answers = list[Response | None]


def _vllm(answers: Answers) -> dict[str, Any]:
    version, metrics = answers
    tokens: list[int | None] = []
    blocks: list[int | None] = []
    for sample in _info(metrics, "vllm:cache_config_info"):
        size = _positive(sample.labels.get("block_size"))
        count = _positive(sample.labels.get("num_gpu_blocks"))
        whole = _positive(sample.labels.get("kv_cache_size_tokens"))  # exact for hybrid models too
        tokens.append(whole or (size * count if size and count else None))
        blocks.append(size)
    return {
        "version": _text(_member(_json(version), "version")),
        "kv_tokens": _sum(tokens),
        "block_size": _first(blocks),
    }


def _sglang(answers: Answers) -> dict[str, Any]:
    newer, older = (_json(answer) for answer in answers)  # /server_info; /get_server_info before it
    info = newer if isinstance(newer, dict) else older
    states = _list(info, "internal_states")
    slots = [_positive(_member(s, "effective_max_running_requests_per_dp")) for s in states]
    tokens = [_positive(_member(_member(s, "memory_usage"), "token_capacity")) for s in states]
    whole = _positive(_member(info, "max_total_num_tokens"))  # of one data-parallel engine
    return {
        "version": _text(_member(info, "version")),
        "slots": _sum(slots),
        "kv_tokens": _sum(tokens) or (whole and whole * max(1, len(states))),
        "block_size": _positive(_member(info, "page_size")),
    }


def _llamacpp(answers: Answers) -> dict[str, Any]:
    props = _json(answers[0])
    context = _positive(_member(_member(props, "default_generation_settings"), "n_ctx"))
    return {
        "version": _text(_member(props, "build_info")),
        "slots": _positive(_member(props, "total_slots")),
        "kv_tokens": context,
        "block_size": 1,  # its KV cells are single tokens
        "max_context": context,
    }


def _trtllm(answers: Answers) -> dict[str, Any]:
    version, metrics = answers
    gauges = by_name(
        metrics.text if metrics and metrics.status == 200 else "",
        (
            "trtllm_kv_cache_max_blocks",
            "trtllm_kv_cache_tokens_per_block",
            "trtllm_max_num_active_requests",
        ),
    )
    blocks = count(gauges.get("trtllm_kv_cache_max_blocks", []))
    size = count(gauges.get("trtllm_kv_cache_tokens_per_block", [])[:1])
    return {
        "version": _text(_member(_json(version), "version")),
        "slots": count(gauges.get("trtllm_max_num_active_requests", [])) or None,
        "kv_tokens": blocks * size if blocks and size else None,  # 0 until its first iteration
        "block_size": size or None,
    }


def _tgi(answers: Answers) -> dict[str, Any]:
    info = _json(answers[0])
    return {
        "version": _text(_member(info, "version")),
        "kv_tokens": _positive(_member(info, "max_batch_total_tokens")),
        "block_size": 1,  # it counts tokens, not blocks
        "max_context": _positive(_member(info, "max_total_tokens")),
    }  # max_concurrent_requests is where it sheds, not what it runs at once


_EXTRA: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Answers], dict[str, Any]]]]] = {
    "vllm": (("/version", "/metrics"), _vllm),
    "sglang": (("/server_info", "/get_server_info"), _sglang),
    "llamacpp": (("/props",), _llamacpp),
    "tgi": (("/info",), _tgi),
    "trtllm": (("/version", "/prometheus/metrics"), _trtllm),
}


# --- reading answers without trusting them ----------------------------------------------------


async def _optional(url: str, limit: float, headers: Headers, tls: Tls | None) -> Response | None:
    try:
        return await fetch(url, timeout=limit, headers=headers, tls=tls)
    except FetchError:
        return None


def _json(answer: Response | None) -> Any:
    if answer is None or answer.status != 200:
        return None
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return None


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _list(value: Any, name: str) -> list[Any]:
    found = _member(value, name)
    return found if isinstance(found, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _positive(value: Any) -> int | None:
    """Take a whole number above 0, also when it stands in a label; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and value > 0 else None


def _sum(values: Iterable[int | None]) -> int | None:
    """Add up; unknown when empty or when a part is unknown."""
    known = list(values)
    return sum(v for v in known if v) if known and None not in known else None


def _first(values: Iterable[int | None]) -> int | None:
    return next((v for v in values if v is not None), None)


def _info(answer: Response | None, name: str) -> Iterator[Sample]:
    if answer is not None and answer.status == 200:
        yield from samples(answer.text, frozenset({name}))
