"""What is put to the checks: a gateway that a target file starts anew, or one that runs already.

Rule: what cannot be seen or set from where it stands is NotTestable with the reason, never a pass.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from surgetank.errors import InputError
from surgetank.studies.conformance.filling import fill, fill_words
from surgetank.studies.conformance.process import NotStarted, Process, said_by
from surgetank.studies.conformance.replica import HOST, MODEL
from surgetank.studies.conformance.settings import Settings, TenantLimits, tenant_settings
from surgetank.studies.conformance.targetfile import TargetFile
from surgetank.studies.conformance.verdict import NotTestable

__all__ = ["FileSubject", "Gateway", "NotStarted", "Subject", "UrlSubject"]

_WARM = "warm-up"  # a tenant without limits
_REACH = 5.0  # seconds for a gateway that runs already to accept
_NO_FILE = "needs a target file"


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that runs. `process` None: it was not started here. `keys`: by tenant; "": anyone's."""

    host: str
    port: int
    model: str
    keys: Mapping[str, str]
    process: Process | None = None
    gauges: frozenset[str] = frozenset()
    warm_up: str | None = None  # the key of requests to send before a check begins; None: of none

    def started(self, what: str) -> Process:
        """Return its process. Raises NotTestable that says what it was needed for."""
        if self.process is None:
            raise NotTestable(f"{what}: {_NO_FILE}, since this gateway was not started here")
        return self.process

    async def gauge(self, name: str) -> float | None:
        """Read a gauge of the target file; None: not told now. Raises NotTestable without one."""
        if self.process is None or name not in self.gauges:
            raise NotTestable(f"it is not known where this gateway tells its {name}")
        return await self.process.gauge(name)

    def signal(self, number: signal.Signals) -> None:
        self.started(f"sending {number.name}").signal(number)

    async def stop(self) -> None:
        """End it, if it was started here."""
        if self.process is not None:
            await self.process.stop()


class Subject(Protocol):
    """A gateway as the run sees it."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def splits_prefill(self) -> bool: ...
    def ports(self, replicas: int) -> Sequence[int]:
        """Where so many replicas have to listen; 0: anywhere. Raises NotTestable."""

    def possible(self, settings: Settings, without: frozenset[str]) -> Settings:
        """Return the settings without those it lacks and may lack. Raises NotTestable."""

    async def start(self, settings: Settings, upstreams: Sequence[int], folder: Path) -> Gateway:
        """Start it before replicas on these ports. Raises NotStarted."""

    async def version(self) -> str: ...


class FileSubject:
    """A gateway started by its target file, anew for each check."""

    model = MODEL

    def __init__(self, target: TargetFile, *, bin_: Path | None = None) -> None:
        """`bin_`: a folder where its program is looked for first."""
        self._target = target
        self._bin = bin_

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def splits_prefill(self) -> bool:
        return self._target.splits_prefill

    def ports(self, replicas: int) -> Sequence[int]:
        return [0] * replicas

    def possible(self, settings: Settings, without: frozenset[str]) -> Settings:
        target = self._target
        dropped: dict[str, Any] = {}
        for name, _ in settings.named():
            why = target.why_not(name)
            if why and name not in without:
                raise NotTestable(why)
            if why:
                dropped[name] = None
        if settings.tenants and (why := target.why_not("tenants")):
            if "tenants" not in without:
                raise NotTestable(why)
            return replace(settings, **dropped, tenants=())
        tenants = tuple(self._tenant(tenant, without) for tenant in settings.tenants)
        return replace(settings, **dropped, tenants=tenants)

    def _tenant(self, tenant: TenantLimits, without: frozenset[str]) -> TenantLimits:
        dropped: dict[str, Any] = {}
        for name, _ in tenant_settings(tenant):
            why = self._target.why_not(name)
            if why and name not in without:
                raise NotTestable(why)
            if why:
                dropped[name] = None
        return replace(tenant, **dropped)

    async def start(self, settings: Settings, upstreams: Sequence[int], folder: Path) -> Gateway:
        ports = _free_port(), _free_port()
        warm = self._target.warm_up
        if warm and settings.tenants:  # at the end, so that it is nobody's default
            settings = replace(settings, tenants=(*settings.tenants, TenantLimits(_WARM)))
        filled = fill(
            self._target, settings, folder=folder, ports=ports, upstreams=upstreams, model=MODEL
        )
        process = Process(self._target, filled, folder, self._bin)
        await process.start(len(upstreams))
        gauges = frozenset(self._target.gauges)
        key = filled.keys.get(_WARM, "") if warm else None
        return Gateway(HOST, ports[0], MODEL, filled.keys, process, gauges, key)

    async def version(self) -> str:
        if not self._target.version:
            return ""
        return await said_by(fill_words(self._target.version), self._bin)


class UrlSubject:
    """A gateway that runs already, before replicas that it expects on given ports."""

    splits_prefill = False

    def __init__(
        self, url: str, upstreams: Sequence[int], *, model: str = MODEL, key: str = ""
    ) -> None:
        """Raises InputError when `url` is not http://HOST:PORT."""
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            raise InputError(f"{url}: {error}") from None
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") not in {"", "v1"}:
            raise InputError(f"{url}: must be http://HOST:PORT of a running gateway")
        if not upstreams:
            raise InputError(f"{url}: name the ports where it expects replicas: --upstream-port")
        if len({*upstreams}) != len(upstreams):
            raise InputError("--upstream-port: a port is named twice: each replica has its own")
        self.name = url
        self._address = parts.hostname, port
        self._upstreams = tuple(upstreams)
        self.model = model
        self._key = key

    def reach(self) -> None:
        """Raise InputError when nothing listens there: no check would say so."""
        try:
            socket.create_connection(self._address, timeout=_REACH).close()
        except OSError as error:
            why = error.strerror or error
            raise InputError(f"{self.name}: no gateway is reached there: {why}") from None

    def ports(self, replicas: int) -> Sequence[int]:
        if replicas != len(self._upstreams):
            count = len(self._upstreams)
            raise NotTestable(f"needs {replicas} replicas, and this gateway has {count} here")
        return self._upstreams

    def possible(self, settings: Settings, without: frozenset[str]) -> Settings:
        needed = [name for name, _ in settings.named() if name not in without]
        if settings.tenants and "tenants" not in without:
            needed.append("tenants")
        if needed:
            words = ", ".join(name.replace("_", " ") for name in needed)
            raise NotTestable(f"{_NO_FILE}, which says how to set {words}")
        return Settings()

    async def start(self, settings: Settings, upstreams: Sequence[int], folder: Path) -> Gateway:
        del settings, upstreams, folder  # `possible` has left nothing to set
        host, port = self._address
        return Gateway(host, port, self.model, {"": self._key})

    async def version(self) -> str:
        return ""


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port
