"""A target file: how a gateway is started, configured and read, so that checks can set its limits.

    name: my-gateway
    command: [my-gateway, --port, $port, $cap, $upstreams]
    ready: {url: "http://127.0.0.1:$port/health"}
    settings:
      cap: [--max-concurrent, $value]

Rule: an unknown key is an error that names its path; what a file does not say the gateway cannot
do, and the checks that need it are not testable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final

import yaml

from surgetank.errors import InputError
from surgetank.studies.conformance.settings import SETTINGS, TENANT_SETTINGS

Fragment = str | tuple[str, ...]
"""Text for a file, or arguments for the command; `$value` and other variables are filled in."""

GAUGES: Final = (
    "ready",  # replicas that get requests; the start is awaited by it
    "in_flight",
    "queue",
    "retries",  # requests sent upstream once more
    "alarm",  # rises while an engine's metrics cannot be read
    "input_tokens",
    "output_tokens",
)
_TOP: Final = (
    "name", "about", "command", "version", "environment", "files", "ready", "stop_timeout",
    "metrics", "gauges", "settings", "tenants", "per_tenant", "with_tenants", "with_several",
    "per_upstream", "tiers",
    "cannot", "splits_prefill", "warm_up",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TargetFile:
    """What was read.

    `settings` map a setting's name to how it is expressed, by variable: the one of its own name,
    or several; `tenants` likewise, each its own. `cannot` says why another has no expression.
    `per_tenant`, `per_upstream`: variables made by joining one fragment for each of them.
    `with_tenants`, `with_several`: variables that are empty where a check has no tenants, or one
    replica. `tiers`: what the gateway calls high, standard and low. `gauges`: the samples
    whose sum is that gauge, each `NAME` or `NAME{label="value"}`.
    """

    name: str
    command: tuple[str, ...]
    ready: str
    about: str = ""
    version: tuple[str, ...] = ()  # a command that prints it
    ready_timeout: float = 30.0
    stop_timeout: float = 10.0
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    metrics: str = ""
    gauges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Fragment]] = field(default_factory=dict)
    tenants: Mapping[str, str] = field(default_factory=dict)
    per_tenant: Mapping[str, Fragment] = field(default_factory=dict)
    with_tenants: Mapping[str, Fragment] = field(default_factory=dict)
    with_several: Mapping[str, Fragment] = field(default_factory=dict)
    per_upstream: Mapping[str, Fragment] = field(default_factory=dict)
    tiers: Mapping[str, str] = field(default_factory=dict)
    cannot: Mapping[str, str] = field(default_factory=dict)
    warm_up: bool = False  # its first requests take seconds: two are sent before a check begins
    splits_prefill: bool = False  # it has a prefill/decode split that checks may set up

    def why_not(self, setting: str) -> str:
        """Say why a setting cannot be made here; empty when it can."""
        known = setting in self.settings or setting in self.tenants
        if setting == "tenants":
            known = bool(self.per_tenant)
        if known:
            return ""
        what = setting.replace("_", " ")
        return self.cannot.get(setting, f"{self.name} has no setting for {what} that is known here")


def read_target(path: Path) -> TargetFile:
    """Read a file. Raises InputError that names the file and the key."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {why}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    try:
        return _target(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _target(data: Any) -> TargetFile:
    top = _mapping(data, "the file", _TOP)
    for needed in ("name", "command", "ready"):
        if needed not in top:
            raise InputError(f"{needed}: is missing")
    ready = top["ready"]
    if isinstance(ready, str):
        ready = {"url": ready}
    ready = _mapping(ready, "ready", ("url", "timeout"))
    cannot = _texts(top, "cannot", (*SETTINGS, *TENANT_SETTINGS, "tenants"))
    for name in ("splits_prefill", "warm_up"):
        if not isinstance(top.get(name, False), bool):
            raise InputError(f"{name} = {top[name]!r}: must be true or false")
    return TargetFile(
        name=_text(top["name"], "name"),
        about=_text(top.get("about", ""), "about"),
        command=_words(top["command"], "command"),
        version=_words(top["version"], "version") if "version" in top else (),
        ready=_text(ready.get("url"), "ready.url"),
        ready_timeout=_seconds(ready.get("timeout", 30.0), "ready.timeout"),
        stop_timeout=_seconds(top.get("stop_timeout", 10.0), "stop_timeout"),
        environment=_texts(top, "environment"),
        files=_files(top),
        metrics=_text(top.get("metrics", ""), "metrics"),
        gauges=_gauges(top),
        settings=_settings(top),
        tenants=_texts(top, "tenants", TENANT_SETTINGS),
        per_tenant=_fragments(top, "per_tenant"),
        with_tenants=_fragments(top, "with_tenants"),
        with_several=_fragments(top, "with_several"),
        tiers=_texts(top, "tiers", ("high", "standard", "low")),
        per_upstream=_fragments(top, "per_upstream"),
        cannot=cannot,
        splits_prefill=top.get("splits_prefill", False),
        warm_up=top.get("warm_up", False),
    )


def _gauges(top: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    rows = _mapping(top.get("gauges", {}), "gauges", GAUGES)
    if rows and not top.get("metrics"):
        raise InputError("gauges: need `metrics`, the address they are read from")
    return {
        name: (row,) if isinstance(row, str) else _words(row, f"gauges.{name}")
        for name, row in rows.items()
    }


def _settings(top: Mapping[str, Any]) -> dict[str, dict[str, Fragment]]:
    rows = _mapping(top.get("settings", {}), "settings", SETTINGS)
    found = {}
    for name, row in rows.items():
        several = row if isinstance(row, dict) else {name: row}
        found[name] = _fragments({f"settings.{name}": several}, f"settings.{name}")
    return found


def _fragments(
    top: Mapping[str, Any], key: str, known: tuple[str, ...] | None = None
) -> dict[str, Fragment]:
    rows = _mapping(top.get(key, {}), key, known)
    return {
        name: _words(row, f"{key}.{name}") if isinstance(row, list) else _text(row, f"{key}.{name}")
        for name, row in rows.items()
    }


def _texts(
    top: Mapping[str, Any], key: str, known: tuple[str, ...] | None = None
) -> dict[str, str]:
    rows = _mapping(top.get(key, {}), key, known)
    return {name: _text(row, f"{key}.{name}") for name, row in rows.items()}


def _files(top: Mapping[str, Any]) -> dict[str, str]:
    """Read `files`: the folder they are written to is removed again, so they must stay in it."""
    files = _texts(top, "files")
    for name in files:
        path = PurePath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
            raise InputError(f"files.{name}: must be a name within the gateway's own folder")
    return files


def _mapping(value: Any, where: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where}: must be a mapping of names")
    for key in value:
        if known is not None and key not in known:
            path = key if where == "the file" else f"{where}.{key}"
            raise InputError(f"{path}: is unknown; known are {', '.join(known)}")
    return value


def _words(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: must be a list of words, [program, --option, ...]")
    return tuple(_text(word, f"{where}[{i}]") for i, word in enumerate(value))


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{where} = {value!r}: must be text")
    return str(value)


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 3600:
        raise InputError(f"{where} = {value!r}: must be seconds, above 0")
    return float(value)
