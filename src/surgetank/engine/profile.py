"""What one replica can do: step time, KV, scheduler limits, loading time.

Rule: a profile is data. The built-in ones are TOML files in `profiles/`, read as a user's own are.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from surgetank.errors import InputError

Scheduling = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine configuration. Coefficients as in `steptime`; the unit is in each name.

    `kv_blocks` is the figure of first order: being a third off moves mean TTFT by a fifth, so read
    it from the engine (`vllm:cache_config_info`) where there is one. The KV must hold at least one
    request of `max_model_len`, as vLLM demands at start: so every request can finish alone.
    """

    name: str
    a_ms: float  # every step
    b_us: float  # per prefill token
    c_ns: float  # per prefill token and token of its context
    d_us: float  # per decoding sequence
    e_ns: float  # per token of context of the decoding sequences
    f_ms: float = 0.0  # mixture of experts: reading all the experts
    expert_share: float = 0.0  # mixture of experts: active / all, k/E
    kv_blocks: int  # usable blocks
    block_size: int = 16  # tokens per block
    max_num_seqs: int = 256  # sequences that run at once
    max_num_batched_tokens: int = 2048  # the token budget of a step
    max_model_len: int = 8192  # prompt and output of one request, tokens
    full_prompt_gate: bool = True  # start a prompt only when all of it fits in the free KV
    scheduling: Scheduling = "fcfs"
    max_queued: int | None = None  # requests in flight, waiting or running, before it sheds
    cold_start: float = 0.0  # mean loading time, seconds
    description: str = ""
    source: str = ""  # where the figures come from
    error: str = ""  # how far off they are known to be

    def __post_init__(self) -> None:
        for key in ("b_us", "c_ns", "d_us", "e_ns", "f_ms", "cold_start"):
            _require(key, getattr(self, key), ">= 0", ok=getattr(self, key) >= 0)
        _require("a_ms", self.a_ms, "> 0: a step takes time", ok=self.a_ms > 0)
        _require("expert_share", self.expert_share, "in [0, 1]", ok=0 <= self.expert_share <= 1)
        for key in ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"):
            _require(key, getattr(self, key), ">= 1", ok=getattr(self, key) >= 1)
        _require("max_model_len", self.max_model_len, ">= 2", ok=self.max_model_len >= 2)
        room = self.kv_blocks * self.block_size
        _require(
            "max_model_len",
            self.max_model_len,
            f"<= kv_blocks * block_size = {room}: the KV must hold one whole request",
            ok=self.max_model_len <= room,
        )
        _require(
            "scheduling",
            self.scheduling,
            "'fcfs' or 'priority'",
            ok=self.scheduling in {"fcfs", "priority"},
        )
        bounded = self.max_queued is None or self.max_queued >= 1
        _require("max_queued", self.max_queued, ">= 1, or left out for no bound", ok=bounded)

    @property
    def kv_tokens(self) -> int:
        """Tokens of context the KV can hold."""
        return self.kv_blocks * self.block_size


def _require(key: str, value: object, right: str, *, ok: bool) -> None:
    if not ok:
        raise ValueError(f"{key} = {value!r}: must be {right}")


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "float": (int, float),
    "int": (int,),
    "int | None": (int,),
    "bool": (bool,),
    "str": (str,),
    "Scheduling": (str,),
}
_WORDS: Final = {
    "float": "a number",
    "int": "a whole number",
    "int | None": "a whole number",
    "bool": "true or false",
    "str": "a text",
    "Scheduling": "'fcfs' or 'priority'",
}
_FIELDS: Final = {f.name: f for f in fields(EngineProfile)}


def parse(text: str, origin: str) -> EngineProfile:
    """Read a profile from TOML; `origin` names the file in errors (`InputError`, one line)."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{origin}: not TOML: {error}") from None
    for key, value in data.items():
        _check_type(key, value, origin)
    for key, field in _FIELDS.items():
        if field.default is MISSING and key not in data:
            raise InputError(f"{origin}: {key} is missing: add `{key} = ...` ({_words(key)})")
    try:
        return EngineProfile(**data)
    except ValueError as error:
        raise InputError(f"{origin}: {error}") from None


def _words(key: str) -> str:
    return _WORDS[str(_FIELDS[key].type)]


def _check_type(key: str, value: Any, origin: str) -> None:
    if key not in _FIELDS:
        close = difflib.get_close_matches(key, _FIELDS, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(_FIELDS)}"
        raise InputError(f"{origin}: unknown key `{key}`: {hint}")
    kind = str(_FIELDS[key].type)
    is_bool = isinstance(value, bool)
    right_type = isinstance(value, _TYPES[kind]) and is_bool == (kind == "bool")
    if not right_type or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{origin}: {key} = {value!r}: must be {_words(key)}")


def load(path: Path) -> EngineProfile:
    """Read a profile file. Raises InputError: one line with the file, the key, what is right."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot be read: {reason}") from None
    return parse(text, str(path))


def builtin_names() -> list[str]:
    """List the profiles that come with the package, sorted."""
    folder = resources.files("surgetank.engine") / "profiles"
    return sorted(
        f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")
    )


def find(name: str) -> EngineProfile:
    """Resolve what a user typed: a built-in profile's name, or the path of a `.toml` file."""
    if name.endswith(".toml"):
        return load(Path(name))
    if name not in builtin_names():
        known = ", ".join(builtin_names())
        raise InputError(f"no engine profile `{name}`: use one of {known}, or a .toml file's path")
    file = resources.files("surgetank.engine") / "profiles" / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), f"{name}.toml")
