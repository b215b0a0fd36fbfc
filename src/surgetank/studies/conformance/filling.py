"""A target file's templates, filled for one start: command, environment, files, addresses.

Rule: `$name` is the only syntax, everywhere. An item of a command that is a variable alone and
stands for several words becomes those words; one that stands for nothing is left out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from surgetank.errors import InputError
from surgetank.studies.conformance.settings import (
    SETTINGS,
    TENANT_SETTINGS,
    TIMES,
    Settings,
    TenantLimits,
    tenant_settings,
)
from surgetank.studies.conformance.targetfile import Fragment, TargetFile

Values = dict[str, Fragment]


@dataclass(frozen=True, slots=True)
class Filled:
    """One start, ready to be carried out. Keys are kept out of its repr."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    files: Mapping[str, str] = field(repr=False)
    ready: str
    metrics: str
    keys: Mapping[str, str] = field(repr=False)  # by tenant


def fill(
    target: TargetFile,
    settings: Settings,
    *,
    folder: Path,
    ports: tuple[int, int],
    upstreams: Sequence[int],
    model: str,
) -> Filled:
    """Fill in everything. `ports`: for clients and for administration.

    Raises InputError when the file names a variable that there is not.
    """
    keys = {tenant.name: f"sk-{secrets.token_urlsafe(24)}" for tenant in settings.tenants}
    secret = secrets.token_hex(32)
    base: dict[str, Fragment] = {
        "port": str(ports[0]),
        "admin_port": str(ports[1]),
        "folder": str(folder),
        "config": str(folder / next(iter(target.files), "")),
        "model": model,
        "secret": secret,
        "python": sys.executable,
        "upstreams": tuple(f"http://127.0.0.1:{port}" for port in upstreams),
    }
    values = base | _settings(target, settings, len(upstreams), base)
    for name, fragment in target.per_upstream.items():
        each = [
            _filled(
                fragment, values | {"upstream": f"http://127.0.0.1:{p}", "upstream_port": str(p)}
            )
            for p in upstreams
        ]
        values[name] = _joined(fragment, each)
    for name, one in target.per_tenant.items():
        rows = [
            _tenant(target, one, t, base | _key(keys[t.name], secret)) for t in settings.tenants
        ]
        values[name] = _joined(one, rows)
    for name, fragment in target.with_tenants.items():
        values[name] = _filled(fragment, values) if keys else _nothing(fragment)
    for name, fragment in target.with_several.items():
        values[name] = _filled(fragment, values) if len(upstreams) > 1 else _nothing(fragment)
    return Filled(
        command=_command(target.command, values),
        environment={k: _text(v, values) for k, v in target.environment.items()},
        files={k: _text(v, values) for k, v in target.files.items()},
        ready=_text(target.ready, values),
        metrics=_text(target.metrics, values),
        keys=keys,
    )


def fill_words(words: Sequence[str]) -> tuple[str, ...]:
    """Fill a command that is run apart from any start: it knows `$python` alone."""
    return _command(words, {"python": sys.executable})


def _settings(
    target: TargetFile, settings: Settings, upstreams: int, base: Values
) -> dict[str, Fragment]:
    given = dict(settings.named())
    filled: dict[str, Fragment] = {}
    for name in SETTINGS:
        for variable, fragment in target.settings.get(name, {name: ""}).items():
            filled[variable] = _nothing(fragment)
            if name in given:
                value = {"in_all": f"{given[name] * upstreams:g}", **_value(name, given[name])}
                filled[variable] = _filled(fragment, base | value)
    return filled


def _tenant(target: TargetFile, one: Fragment, tenant: TenantLimits, base: Values) -> Fragment:
    given = dict(tenant_settings(tenant))
    if tenant.tier is not None:
        given["tier"] = target.tiers.get(tenant.tier, tenant.tier)
    own: dict[str, Fragment] = {**base, "name": tenant.name}
    for name in TENANT_SETTINGS:
        expressed = target.tenants.get(name, "")
        named = {**base, "name": tenant.name}
        own[name] = _text(expressed, named | _value(name, given[name])) if name in given else ""
    return _filled(one, own)


def _key(key: str, secret: str) -> dict[str, Fragment]:
    """Give an API key, and the digests under which gateways may store it."""
    return {
        "key": key,
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
        "hmac_sha256": hmac.new(bytes.fromhex(secret), key.encode(), hashlib.sha256).hexdigest(),
    }


def _value(name: str, value: float | str) -> dict[str, Fragment]:
    if isinstance(value, str):
        return {"value": value}
    shown = str(value) if isinstance(value, int) else f"{value:.10g}"
    filled: dict[str, Fragment] = {"value": shown}
    if name in TIMES:
        filled["milliseconds"] = f"{1000 * value:.0f}"
    return filled


def _nothing(fragment: Fragment) -> Fragment:
    return "" if isinstance(fragment, str) else ()


def _joined(fragment: Fragment, each: Sequence[Fragment]) -> Fragment:
    if isinstance(fragment, str):
        return "".join(text for text in each if isinstance(text, str))
    return tuple(word for words in each for word in words)


def _filled(fragment: Fragment, values: Values) -> Fragment:
    if isinstance(fragment, str):
        return _text(fragment, values)
    return _command(fragment, values)


def _command(words: Sequence[str], values: Values) -> tuple[str, ...]:
    found: list[str] = []
    for word in words:
        value = values.get(word.removeprefix("$").strip("{}")) if word.startswith("$") else None
        if isinstance(value, tuple):
            found += value
        else:
            text = _text(word, values)
            if text or value is None:
                found.append(text)
    return tuple(found)


def _text(text: str, values: Values) -> str:
    plain = {k: v if isinstance(v, str) else " ".join(v) for k, v in values.items()}
    try:
        return Template(text).substitute(plain)
    except KeyError as error:
        raise InputError(f"{text[:60]!r}: there is no variable ${error.args[0]}") from None
    except ValueError as error:
        raise InputError(f"{text[:60]!r}: {error}; write $$ for a dollar sign") from None
