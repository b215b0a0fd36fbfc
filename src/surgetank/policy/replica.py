"""What a replica can hold, in slots and KV tokens.

Rule: capacity that is not known is None, never 0; own accounting comes first, signals correct it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Batching = Literal["continuous", "static"]


class Role(StrEnum):
    """What part of a request a replica serves."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine as admission sees it. `(model, role)` is its pool.

    `slots`: requests it runs at once (the flow's cap applies as well); `kv_tokens`: its KV cache,
    None when unknown; `block_size`: tokens in a KV block (1: exact); `preempts`: it survives a full
    KV cache by preempting (vLLM, SGLang), else every stream on it dies (llama.cpp) and the worst
    case must be reserved; `max_context`: most tokens of one request, None when unknown; `batching`:
    static where it runs whole batches of `slots` requests, all of which leave together.
    """

    id: str
    model: str
    role: Role = Role.BOTH
    slots: int | None = None
    kv_tokens: int | None = None
    block_size: int = 16
    preempts: bool = True
    max_context: int | None = None
    batching: Batching = "continuous"


@dataclass(frozen=True, slots=True)
class Signals:
    """What an engine says of itself; None is unknown. `as_of`: monotonic seconds of the reading."""

    as_of: float
    waiting: int | None = None
    running: int | None = None
    kv_used: float | None = None  # 0..1
