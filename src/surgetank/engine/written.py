"""A profile as the TOML text of a user's own file; what `profile.parse` reads back."""

from __future__ import annotations

import json
from typing import Final

from surgetank.engine.profile import EngineProfile, Stage

_TEXTS: Final = ("name", "description", "source", "error")
_STEP: Final = ("a_ms", "b_us", "c_ns", "d_us", "e_ns", "f_ms")
_UNITS: Final = {
    "a_ms": "every step",
    "b_us": "per prefill token",
    "c_ns": "per prefill token and token of its context",
    "d_us": "per decoding sequence",
    "e_ns": "per token of context of the decoding sequences",
    "f_ms": "mixture of experts: reading all of them",
}
_ENGINE: Final = {
    "kv_blocks": "usable blocks: read it from vllm:cache_config_info",
    "block_size": "tokens per block",
    "max_num_seqs": "sequences that run at once",
    "max_num_batched_tokens": "token budget of a step",
    "max_model_len": "prompt and output of one request, tokens",
    "full_prompt_gate": "start a prompt only when all of it fits in the free KV",
    "scheduling": "fcfs or priority",
    "max_queued": "requests in flight before it sheds",
    "expert_share": "mixture of experts: active / all",
    "wake_s": "until a warm standby serves, seconds",
    "snapshot_s": "restoring a snapshot of a loaded process, instead of the stages, seconds",
}


def toml(profile: EngineProfile) -> str:
    """Write the profile out, each key with its unit; reading it gives an equal profile."""
    lines = [f"{key} = {_value(getattr(profile, key))}" for key in _TEXTS if getattr(profile, key)]
    for key, meaning in _ENGINE.items():
        value = getattr(profile, key)
        if value is not None:
            lines.append(f"{key} = {_value(value)}  # {meaning}")
    lines += ["", "[step]"]
    lines += [f"{key} = {_value(getattr(profile, key))}  # {_UNITS[key]}" for key in _STEP]
    if profile.cold_start:
        lines += ["", "[cold_start]  # stages, lognormal; again_s: on a node whose caches are warm"]
        lines += [f"{_key(stage.name)} = {_stage(stage)}" for stage in profile.cold_start]
    return "\n".join(lines) + "\n"


def _stage(stage: Stage) -> str:
    given = {"median_s": stage.median_s, "sigma": stage.sigma, "again_s": stage.again_s}
    inside = ", ".join(f"{key} = {value}" for key, value in given.items() if value is not None)
    return f"{{ {inside} }}"


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _value(name)


def _value(value: object) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
