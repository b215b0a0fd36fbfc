"""What a configuration names but does not hold: keys, tokens and their files.

Rule: the first thing that is missing is one error that names it; a secret is in none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surgetank import config as configuration
from surgetank.errors import ConfigError, InputError
from surgetank.gateway.keys import KeyRing, Owner, read_private
from surgetank.gateway.spec import AdminSpec


@dataclass(frozen=True, slots=True)
class Credentials:
    """What was read. None: not asked for."""

    keys: KeyRing | None
    admin_token: str | None


def read_credentials(settings: configuration.Config, environ: Mapping[str, str]) -> Credentials:
    """Read all that `serve` needs. Raises InputError or ConfigError for the first thing missing.

    Engines' own keys are looked for too, though nothing is read of them here.
    """
    for i, replica in enumerate(settings.replicas):
        name = replica.api_key_env
        if name is not None and not environ.get(name):
            raise ConfigError(
                f"replicas[{i}].api_key_env: {replica.url} needs its key in the environment "
                f"variable {name}, which is not set"
            )
    token_file = settings.autoscaler.token_file
    if token_file is not None:
        _token(read_private(Path(token_file)), token_file)
    return Credentials(
        KeyRing.load(settings.auth, environ), read_admin_token(settings.admin, environ)
    )


def keys_missing(settings: configuration.Config, keys: KeyRing | None) -> list[str]:
    """Name the keys that have limits and do not exist: mistyped, or revoked since.

    No error: the reload that revokes a key must not fail for the limits it had.
    """
    there = frozenset[Owner]() if keys is None else keys.owners
    return [
        f"tenants[{i}].keys[{j}].name = {key.name}: {tenant.name} has no key of this name"
        for i, tenant in enumerate(settings.tenants)
        for j, key in enumerate(tenant.keys)
        if Owner(tenant.name, key.name) not in there
    ]


def read_admin_token(spec: AdminSpec, environ: Mapping[str, str]) -> str | None:
    """Read the admin listener's token: of its file when one is named, else of the environment."""
    if spec.token_file is not None:
        return _token(read_private(Path(spec.token_file)), spec.token_file)
    value = environ.get(spec.token_env)
    return _token(value, f"environment variable {spec.token_env}") if value else None


def _token(text: str, source: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{source}: must hold a token: printable ASCII on one line, no blanks")
    return token
