"""A gateway as its own process: `surgetank serve` with a configuration made for one run.

Rule: keys and secret are made anew in a folder only its owner can read; what was started is ended.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from surgetank.adapters.child import Child
from surgetank.autoscaler.spec import AutoscaleSpec
from surgetank.gateway.keys import add_key, make_secret, new_key, read_secret
from surgetank.gateway.spec import AuthSpec
from surgetank.policy.tenant import Tenant, Tier

_START_TIMEOUT: Final = 30.0
_STOP_TIMEOUT: Final = 20.0  # it ends its replicas first, which may take a while to go


def _said(spec: Any) -> Any:
    """Give what a Spec says beyond its defaults, as the configuration file has it."""
    if is_dataclass(spec) and not isinstance(spec, type):
        said = ((f, getattr(spec, f.name)) for f in fields(spec))
        return {f.name: _said(value) for f, value in said if value != f.default}
    if isinstance(spec, tuple):
        return [_said(item) for item in spec]
    return spec.value if isinstance(spec, Enum) else spec


class GatewayProcess:
    """The gateway on a free port; an asynchronous context manager.

    `url` is known once it is entered, and so are `page` and `admin` when they were asked for;
    `keys` gives each tenant's API key, and by their own names those that a tenant's `keys` limit.
    """

    def __init__(
        self,
        folder: Path,
        replica: str | None,
        tenants: Iterable[Tenant],
        *,
        tiers: Iterable[Tier] = (),
        flow: Mapping[str, Any],
        autoscaler: AutoscaleSpec | None = None,
        page: bool = False,
        records: Path | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Write configuration, keys and secret into `folder`.

        `replica`: the engine it stands in front of; None when the autoscaler starts them. `flow`:
        settings of that section. `records`: file to write; without one none are. `more`: other
        sections, which win.
        """
        folder.mkdir(mode=0o700)
        tenants = tuple(tenants)
        self.keys = {tenant.name: new_key() for tenant in tenants}
        secret, digests = folder / "hmac.secret", folder / "keys.txt"
        make_secret(secret)
        auth = AuthSpec(keys_file=str(digests), hmac_secret_file=str(secret))
        for tenant, key in self.keys.items():
            add_key(digests, tenant, key, read_secret(auth, {}))
        for owner in tenants:
            for limited in owner.keys:
                key = self.keys[limited.name] = new_key()
                add_key(digests, owner.name, key, read_secret(auth, {}), name=limited.name)
        settings: dict[str, Any] = {
            "listen": {"port": 0},
            "replicas": [] if replica is None else [{"url": replica}],
            "flow": dict(flow),
            "tiers": [{"name": tier.name} | _said(tier) for tier in tiers],
            "tenants": [_said(tenant) for tenant in tenants],
            "auth": {"keys_file": auth.keys_file, "hmac_secret_file": auth.hmac_secret_file},
            "drain_timeout": 1.0,
        }
        if records is not None:
            settings["records"] = {"path": str(records.absolute())}
        if autoscaler is not None:
            settings["autoscaler"] = _said(autoscaler)
        if page:
            settings["page"] = {"port": 0}
        settings |= more or {}
        path = folder / "surgetank.yaml"
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        self.url = ""
        self.page = ""
        self.admin = ""
        self._child = Child(
            "the gateway",
            [sys.executable, "-m", "surgetank", "serve", "-c", str(path)],
            start_timeout=_START_TIMEOUT,
            stop_timeout=_STOP_TIMEOUT,
        )

    async def __aenter__(self) -> Self:
        self.url, *others = await self._child.start()
        named = dict(word.split("=", 1) for word in others if "=" in word)
        self.page = named.get("page", "")
        self.admin = named.get("admin", "")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Shielded: a second Ctrl-C must not leave the process behind.
        await asyncio.shield(self._child.stop())

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._child.pid

    @property
    def errors(self) -> str:
        """The last lines of its log."""
        return self._child.errors
