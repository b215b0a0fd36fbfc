"""A mix of tenants in a small YAML file: what each sends, beside what holds for all.

    duration: 600
    seed: 1
    defaults: {prompt: "lognormal:500,0.8,8000", output: 200}
    tenants:
      quiet: {shape: steady, rate: 2}
      noisy: {shape: pulse, base: 5, peak: 60, width: 30, period: 90, count: 3}
      agents: {shape: steady, rate: 0.2, turns: 8, think: 4, fan_out: 3, prefix: "2000:4"}

Rule: an unknown key is an error that names its path. `count: 3` makes noisy1, noisy2, noisy3, each
of the whole rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import yaml

from surgetank.errors import InputError
from surgetank.loadtest.sessions import SessionSpec
from surgetank.loadtest.shapes import SHAPES, make_shape, parameters
from surgetank.loadtest.tenants import Prefix, TenantLoad
from surgetank.traffic.tokencounts import parse_lengths

_TOP: Final = ("duration", "seed", "defaults", "tenants")
_SIZES: Final = ("prompt", "output", "prefix")
_SESSIONS: Final = tuple(f.name for f in fields(SessionSpec))
_MOST_COPIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Mix:
    """A file that was read. None: it does not say."""

    tenants: tuple[TenantLoad, ...]
    duration: float | None = None
    seed: int | None = None


def read_mix(path: Path, defaults: Mapping[str, Any], *, duration: float | None) -> Mix:
    """Read a file; `defaults` hold where it says nothing, `duration` (s) goes before its own.

    Raises InputError that names the file and the key.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    try:
        return _mix(data, defaults, duration)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _mix(data: Any, defaults: Mapping[str, Any], duration: float | None) -> Mix:
    top = _mapping(data, "the file")
    _known(top, _TOP)
    whole = duration if duration is not None else _number(top.get("duration"), "duration")
    common = {**defaults, **_mapping(top.get("defaults") or {}, "defaults")}
    if whole is not None:
        common["duration"] = whole
    seed = top.get("seed")
    if seed is not None and (type(seed) is not int or seed < 0):
        raise InputError(f"seed = {seed!r}: must be a whole number >= 0")
    rows = _mapping(top.get("tenants"), "tenants")
    found: list[TenantLoad] = []
    for name, row in rows.items():
        try:
            found += _tenant(str(name), _mapping(row, "it"), common)
        except InputError as error:
            raise InputError(f"tenants.{name}: {error}") from None
    names = [tenant.name for tenant in found]
    if len(set(names)) < len(names):
        raise InputError("tenants: two of them have one name; see count")
    return Mix(tuple(found), whole, seed)


def _tenant(name: str, row: Mapping[str, Any], common: Mapping[str, Any]) -> list[TenantLoad]:
    kind = row.get("shape", common.get("shape", "steady"))
    if kind not in SHAPES:
        raise InputError(f"shape = {kind!r}: must be one of {', '.join(SHAPES)}")
    takes = parameters(kind)
    _known(row, ("shape", "count", *takes, *_SIZES, *_SESSIONS))
    merged = {**common, **row}
    shape = make_shape(
        kind, {key: _value(key, merged[key]) for key in takes if merged.get(key) is not None}
    )
    made = TenantLoad(
        name,
        shape,
        parse_lengths(str(merged.get("prompt", 500)), "prompt"),
        parse_lengths(str(merged.get("output", 200)), "output"),
        prefix=parse_prefix(merged.get("prefix")),
        sessions=_sessions(merged),
        said={"prompt": str(merged.get("prompt", 500)), "output": str(merged.get("output", 200))},
    )
    count = row.get("count")
    if count is None:
        return [made]
    if type(count) is not int or not 1 <= count <= _MOST_COPIES:
        raise InputError(f"count = {count!r}: must be from 1 to {_MOST_COPIES:,}")
    return [_renamed(made, f"{name}{i + 1}") for i in range(count)]


def _renamed(tenant: TenantLoad, name: str) -> TenantLoad:
    kept = {f.name: getattr(tenant, f.name) for f in fields(TenantLoad)}
    return TenantLoad(**kept | {"name": name})


def parse_prefix(value: object) -> Prefix | None:
    """Read TOKENS[:COUNT]. Raises InputError."""
    if value is None:
        return None
    tokens, _, count = str(value).partition(":")
    try:
        return Prefix(int(tokens), int(count or 1))
    except ValueError:
        raise InputError(f"prefix {value}: must be TOKENS[:COUNT], such as 1000:4") from None


def _sessions(merged: Mapping[str, Any]) -> SessionSpec | None:
    given = {key: _number(merged[key], key) for key in _SESSIONS if merged.get(key) is not None}
    if not given:
        return None
    if given.get("turns") is None:
        raise InputError(f"{', '.join(given)}: sessions need turns as well")
    fan_out = given.get("fan_out")
    if fan_out is not None and fan_out != int(fan_out):
        raise InputError(f"fan_out = {fan_out}: must be a whole number")
    made: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return SessionSpec(**made | ({} if fan_out is None else {"fan_out": int(fan_out)}))


def _value(key: str, value: Any) -> Any:
    if isinstance(value, bool):
        if key != "even":
            raise InputError(f"{key} = {value}: must be a number")
        return value
    return _number(value, key)


def _number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} = {value!r}: must be a number")
    return float(value)


def _mapping(value: Any, name: str) -> dict[Any, Any]:
    if not isinstance(value, dict) or (name == "tenants" and not value):
        raise InputError(f"{name}: must be a mapping, such as `tenants: {{quiet: {{rate: 2}}}}`")
    return value


def _known(row: Mapping[Any, Any], names: tuple[str, ...]) -> None:
    for key in row:
        if key not in names:
            raise InputError(f"{key}: unknown key; known are {', '.join(names)}")
