"""How many tokens of KV a llama.cpp server has, from what it answers at `/props`.

Rule: what the answer leaves open is taken as the smaller: a KV overrun kills every stream.

What /props says (xllamacpp 2026.10.11549; `tests/adapters/test_llamacpp.py` asks real servers):

    started with                 total_slots   default_generation_settings.n_ctx   KV in all
    8 slots, unified, 2,048                8                               2,048       2,048
    8 slots, split,   2,048                8                                 256       2,048
    8 slots, split,  16,384                8                               2,048      16,384
    8 slots, unified, 16,384 (trained for 8,192)  8                        8,192      16,384

So `n_ctx` is the longest single request, exactly. It is NOT the KV in all: rows 1 and 3 answer
alike byte for byte, at /slots, /metrics and /v1/models too (only the log says `kv_unified`). What
always holds is KV in all >= n_ctx, so that is what is assumed unless the operator says the KV is
split. `llama-server` shares it when `-np` is left out, and splits it when `-np N` is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from surgetank.errors import InputError


class KvLayout(NamedTuple):
    """Slots, tokens of KV over all of them, and tokens one request may hold (prompt + output)."""

    slots: int
    kv_tokens_total: int
    max_context_per_request: int


def kv_layout(props: Mapping[str, Any], *, split: bool = False) -> KvLayout:
    """Read the answer of /props; `split`: the operator says each slot has its own `n_ctx`.

    Raises InputError when the two numbers are absent or not positive: another server, or a proxy.
    """
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    slots = props.get("total_slots")
    for name, value in (
        ("total_slots", slots),
        ("default_generation_settings.n_ctx", context),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"/props: {name} = {value!r}: expected a positive number of llama.cpp")
    assert isinstance(slots, int)  # noqa: S101  (checked above, in a loop mypy does not follow)
    assert isinstance(context, int)  # noqa: S101
    return KvLayout(slots, context * slots if split else context, context)
