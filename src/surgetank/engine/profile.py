"""What one replica can do: step time, KV, scheduler limits, loading time.

Rule: a profile is data. The built-in ones are TOML files in `profiles/`, read as a user's own are,
and the rows of `fitted`.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from surgetank.engine import fitted
from surgetank.errors import InputError

Scheduling = Literal["fcfs", "priority"]


class Stage(NamedTuple):
    """One stage of a cold start: lognormal, seconds; `sigma` is that of its logarithm.

    `again_s` is its median at a later start on the same node, whose caches are warm: weights in the
    page cache, kernels compiled; None: caches do not help it.
    """

    name: str
    median_s: float
    sigma: float = 0.0
    again_s: float | None = None


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
    cold_start: tuple[Stage, ...] = ()  # in their order, one after the other
    wake_s: float = 0.0  # until a warm standby serves, seconds
    snapshot_s: float | None = None  # restoring a snapshot of a loaded process; None: no snapshots
    description: str = ""
    source: str = ""  # where the figures come from
    error: str = ""  # how far off they are known to be

    def __post_init__(self) -> None:
        for key, field in _FIELDS.items():
            value = getattr(self, key)
            if isinstance(value, float | int):
                most = _MOST_COUNT if field.type in {"int", "int | None"} else _MOST
                _require(key, value, f"<= {most:g}", ok=value <= most)
        for key in ("b_us", "c_ns", "d_us", "e_ns", "f_ms", "wake_s"):
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
        restored = self.snapshot_s is None or self.snapshot_s >= 0
        _require("snapshot_s", self.snapshot_s, ">= 0, or left out for none", ok=restored)
        bounded = self.max_queued is None or self.max_queued >= 1
        _require("max_queued", self.max_queued, ">= 1, or left out for no bound", ok=bounded)

    @property
    def cold_start_s(self) -> float:
        """Seconds a first start on a node takes: the sum of the stages' medians."""
        return sum(stage.median_s for stage in self.cold_start)

    @property
    def kv_tokens(self) -> int:
        """Tokens of context the KV can hold."""
        return self.kv_blocks * self.block_size


_MOST_COUNT: Final = 10**9  # products of two of them are still whole numbers of 64 bits
_MOST: Final = 1e12  # milliseconds and below: an endless step would never end


def _require(key: str, value: object, right: str, *, ok: bool) -> None:
    if not ok:
        raise ValueError(f"{key} = {value!r}: must be {right}")


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "float": (int, float),
    "int": (int,),
    "int | None": (int,),
    "float | None": (int, float),
    "bool": (bool,),
    "str": (str,),
    "Scheduling": (str,),
    "tuple[Stage, ...]": (int, float, dict),
}
_WORDS: Final = {
    "float": "a number",
    "int": "a whole number",
    "int | None": "a whole number",
    "float | None": "a number",
    "bool": "true or false",
    "str": "a text",
    "Scheduling": "'fcfs' or 'priority'",
    "tuple[Stage, ...]": "seconds, or a table of stages",
}
_FIELDS: Final = {f.name: f for f in fields(EngineProfile)}


def parse(text: str, origin: str) -> EngineProfile:
    """Read a profile from TOML; `origin` names the file in errors (`InputError`, one line)."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{origin}: not TOML: {error}") from None
    return from_data(data, origin)


def parse_yaml(text: str, origin: str) -> EngineProfile:
    """Read a profile from YAML, with the same keys; raises InputError as `parse` does."""
    import yaml  # noqa: PLC0415 - only a user's own file may need it

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "nested too deep"
        raise InputError(f"{origin}: not YAML: {reason}") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InputError(f"{origin}: must be a table of keys and values, such as `kv_blocks: 2000`")
    return from_data(data, origin)


def from_data(data: dict[str, Any], origin: str) -> EngineProfile:
    """Build a profile from a file's table.

    The six coefficients may stand in a table `step`. `cold_start` is a number of seconds, or a
    table of stages: `weights = {median_s = 40, sigma = 0.3, again_s = 10}`. Raises InputError.
    """
    flat = {key: value for key, value in data.items() if key != "step"}
    step = data.get("step", {})
    if not isinstance(step, dict):
        raise InputError(f"{origin}: step = {step!r}: must be a table of {', '.join(_STEP)}")
    for key, value in step.items():
        if key not in _STEP:
            raise InputError(f"{origin}: unknown key `step.{key}`: known are {', '.join(_STEP)}")
        if key in flat:
            raise InputError(f"{origin}: {key} stands twice: keep the one in `step`")
        flat[key] = value
    for key, value in flat.items():
        _check_type(key, value, origin)
    for key, field in _FIELDS.items():
        if field.default is MISSING and key not in flat:
            raise InputError(f"{origin}: {key} is missing: add `{key} = ...` ({_words(key)})")
    if "cold_start" in flat:
        flat["cold_start"] = _stages(flat["cold_start"], origin)
    try:
        return EngineProfile(**flat)
    except ValueError as error:
        raise InputError(f"{origin}: {error}") from None


_STEP: Final = ("a_ms", "b_us", "c_ns", "d_us", "e_ns", "f_ms")
_STAGE: Final = ("median_s", "sigma", "again_s")


def _stages(value: float | dict[str, Any], origin: str) -> tuple[Stage, ...]:
    """Read the stages of a cold start; a number is one stage that always takes so long."""
    if not isinstance(value, dict):
        value = {"loading": {"median_s": value}} if value else {}
    stages = []
    for name, given in value.items():
        where = f"{origin}: cold_start.{name}"
        table = given if isinstance(given, dict) else {"median_s": given}
        for key, number in table.items():
            if key not in _STAGE:
                raise InputError(f"{where}: unknown key `{key}`: known are {', '.join(_STAGE)}")
            numeric = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not numeric or not 0 <= number < math.inf:
                raise InputError(f"{where}.{key} = {number!r}: must be a number >= 0")
        if "median_s" not in table:
            raise InputError(f"{where}: median_s is missing: add `median_s = ...` (seconds)")
        stages.append(Stage(name, **table))
    return tuple(stages)


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
    """Read a profile file, YAML or TOML by the end of its name.

    Raises InputError: one line with the file, the key, what is right.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot be read: {reason}") from None
    return (parse if path.suffix == ".toml" else parse_yaml)(text, str(path))


def builtin_names() -> list[str]:
    """List the profiles that come with the package, sorted."""
    return sorted({*_files(), *fitted.names()})


def _files() -> list[str]:
    folder = resources.files("surgetank.engine") / "profiles"
    return [f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml")]


def find(name: str) -> EngineProfile:
    """Resolve what a user typed: a built-in profile's name, or the path of a TOML or YAML file."""
    if name.endswith((".toml", ".yaml", ".yml")):
        return load(Path(name))
    if name in fitted.names():
        return from_data(fitted.data(name), name)
    if name not in _files():
        known = builtin_names()
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`surgetank profiles` lists them"
        raise InputError(f"no engine profile `{name}`: {hint} (or a .toml or .yaml file's path)")
    file = resources.files("surgetank.engine") / "profiles" / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"), f"{name}.toml")
