"""`surgetank serve`: the gateway, from a configuration file."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

import surgetank
from surgetank import config as configuration
from surgetank import dashboard
from surgetank.adapters.descriptors import make_room
from surgetank.adapters.learned import Learned
from surgetank.adapters.statedir import StateDir
from surgetank.adapters.systemd import Notifier, handed_in
from surgetank.autoscaler.controller import PoolController, Sinks
from surgetank.autoscaler.loop import Autoscaler
from surgetank.cli import backtests
from surgetank.cli.credentials import Credentials, keys_missing, read_credentials
from surgetank.cli.logfiles import LogFiles, rotation
from surgetank.cli.reload import (
    Read,
    Reloader,
    ReloadStatus,
    flow_settings,
    promised_models,
    shown_settings,
)
from surgetank.cli.scaling import DecisionLog, PoolRouting, build_autoscaler
from surgetank.errors import ConfigError, SurgetankError
from surgetank.gateway.admin import AdminServer
from surgetank.gateway.heap import keep_freed_memory
from surgetank.gateway.observation import GatewayObserver
from surgetank.gateway.operations import Controls
from surgetank.gateway.room import RESERVE, connections_within, upstream_descriptors
from surgetank.gateway.server import Gateway
from surgetank.gateway.spec import AdminSpec
from surgetank.gateway.telling import Telling
from surgetank.policy.flow import FlowControl
from surgetank.policy.journal import Journal

log = logging.getLogger("surgetank")

app = typer.Typer()


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", help="The configuration file.", show_default=False),
    ] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(help="An engine, http://HOST:PORT; may be repeated.", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port to listen on; 0 takes a free one.", show_default=False
        ),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of health and metrics; closed unless set.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve an OpenAI-compatible gateway in front of your engines.

    Prints a line READY with its address once it listens. SIGTERM lets running requests end;
    a second one ends them at once. SIGHUP reads the configuration and the keys anew, and opens the
    record, journal and decision files anew. Takes listening sockets from a service manager
    (LISTEN_FDS; one named `admin` is the admin listener's), and tells it how it is (NOTIFY_SOCKET).
    """
    manager, sockets = Notifier(os.environ), _Sockets(handed_in(os.environ))

    def adjust(settings: configuration.Config) -> configuration.Config:
        if port is not None:
            settings = replace(settings, listen=replace(settings.listen, port=port))
        if admin_port is not None:
            settings = replace(settings, admin=replace(settings.admin, port=admin_port))
        return sockets.told(settings)

    def read(keep: Callable[[configuration.Config], configuration.Config]) -> configuration.Config:
        assert config is not None  # noqa: S101 - it is only read anew when there is one
        return configuration.load(config, adjust=lambda settings: keep(adjust(settings)))

    settings = _settings(config, replica or [], adjust)
    if settings.autoscaler.gateways:
        raise ConfigError(
            "autoscaler.gateways is for 'surgetank autoscale', which runs apart from the gateways: "
            "leave it out to scale within serve"
        )
    if not (settings.replicas or settings.autoscaler.pools or settings.admin.port is not None):
        raise ConfigError(
            f"{config}: names no replicas, no autoscaler.pools, and no admin.port by which "
            "'surgetank autoscale' could add some: every request would be refused"
        )
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = _within_descriptors(settings)
    uvloop.run(_serve(settings, None if config is None else read, sockets, manager))


def _within_descriptors(settings: configuration.Config) -> configuration.Config:
    """Make room for all connections that may be open, or let fewer clients in."""
    wanted = settings.listen.max_connections
    # What runs has a client's connection, so that no replica can have more than all of those.
    bound = min(settings.flow.max_in_flight or wanted, wanted)
    slots = [replica.slots or bound for replica in settings.replicas]
    slots += [bound] * sum(pool.max_replicas for pool in settings.autoscaler.pools)
    upstream = sum(upstream_descriptors(n) for n in _within(slots, wanted))
    limit = make_room(RESERVE + upstream + wanted)
    most = connections_within(limit, wanted, upstream)
    if most < 1:
        raise ConfigError(f"ulimit -n is {limit}: must be at least {RESERVE + 2}, better 4096")
    if most < wanted:
        log.warning(
            "listen.max_connections = %d is lowered to %d: ulimit -Hn allows %d open files",
            *(wanted, most, limit),
        )
    return replace(settings, listen=replace(settings.listen, max_connections=most))


def _within(slots: list[int], most: int) -> list[int]:
    """Requests at once of each replica, those of all together at most `most`."""
    found = []
    for n in slots:
        found.append(min(n, most))
        most -= found[-1]
    return found


def _settings(
    path: Path | None,
    replicas: list[str],
    adjust: Callable[[configuration.Config], configuration.Config],
) -> configuration.Config:
    if path is not None and replicas:
        raise ConfigError("give either -c FILE or --replica URL: the file has its own replicas")
    if path is not None:
        return configuration.load(path, adjust=adjust)
    if not replicas:
        raise ConfigError("serve needs -c surgetank.yaml, or --replica http://HOST:PORT")
    given = json.dumps({"replicas": [{"url": url} for url in replicas]})
    return configuration.parse(given.encode(), "--replica", adjust=adjust, numbered=False)


async def _serve(
    settings: configuration.Config,
    read: Read | None,
    sockets: _Sockets,
    manager: Notifier,
) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    keep_freed_memory()
    found = read_credentials(settings, os.environ)
    async with contextlib.AsyncExitStack() as parts:
        served = _Served(settings, found, parts, read=read, sockets=sockets, manager=manager)

        def stop() -> None:
            if stopping.is_set():
                served.gateway.end_drain()
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        where = await served.start()
        gc.collect()
        gc.freeze()  # what is here stays: looking through it anew would stop all streams for 20 ms
        print(f"READY {where}", flush=True)
        manager.ready(f"serving {where}")
        await stopping.wait()
        bound = served.reloader.running.drain_timeout
        manager.stopping("draining")
        log.info("draining: no new requests; running ones have %g s", bound)


class _Sockets:
    """The listening sockets handed in: that of `admin` by its name, and one for clients."""

    def __init__(self, found: dict[str, socket.socket]) -> None:
        self.admin = found.pop("admin", None)
        if len(found) > 1:
            names = ", ".join(sorted(found))
            raise ConfigError(
                f"LISTEN_FDS: {len(found)} sockets ({names}) beside one named admin: give one"
            )
        self.gateway = found.popitem()[1] if found else None

    def told(self, settings: configuration.Config) -> configuration.Config:
        """Set the addresses to those that are bound, so that they are checked as any others."""
        if self.gateway is not None:
            host, port, *_ = self.gateway.getsockname()
            settings = replace(settings, listen=replace(settings.listen, host=host, port=port))
        if self.admin is not None:
            host, port, *_ = self.admin.getsockname()
            settings = replace(settings, admin=replace(settings.admin, host=host, port=port))
        return settings


class _Served:
    """The object graph of one gateway process: made, started, and ended in the opposite order."""

    def __init__(
        self,
        settings: configuration.Config,
        found: Credentials,
        parts: contextlib.AsyncExitStack,
        *,
        read: Read | None,
        sockets: _Sockets,
        manager: Notifier,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._parts = parts
        self._manager = manager
        self._read = read
        self._began = loop.time()
        self._reloading: asyncio.Task[None] | None = None
        wall_offset = time.time() - loop.time()
        files = self._files = LogFiles(parts, max_buffered=settings.records.max_buffered)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        self.reloader = Reloader(
            settings, read, lambda new: read_credentials(new, os.environ), self._apply
        )
        records = files.open(settings.records.path, rotation(settings.records))
        self._records = records
        journal = files.open(settings.journal.path)
        scaled = settings.autoscaler
        kept_in = scaled.state_dir if scaled.pools else settings.learned.state_dir
        state = StateDir(kept_in) if kept_in is not None else None
        learned = Learned(state) if state is not None else None
        if state is not None:
            parts.callback(state.close)

        def flow(kept: Any) -> FlowControl | Journal:
            write = journal.write if journal is not None else None
            return build_flow(settings, write, wall_offset, learned=kept)

        _tell_missing(settings, found)
        control = flow(None) if learned is None else learned.use("flow", flow)
        self.gateway = Gateway(
            settings.gateway,
            control,
            keys=found.keys,
            promised=promised_models(settings),
            listener=sockets.gateway,
            write_record=records.write if records is not None else None,
            records_dropped=(lambda: records.dropped) if records is not None else (lambda: 0),
            wall_offset=wall_offset,
        )
        observer = GatewayObserver(self.gateway)
        decisions = files.open(scaled.decisions)
        self._decisions = DecisionLog(decisions.write if decisions is not None else None)
        self._autoscaler: Autoscaler | None = None
        self._portfolio: dict[str, backtests.Told] = {}  # by pool: its latest back-test
        self._telling = Telling(self.gateway.driver, settings.learned)
        if learned is not None and not scaled.pools:
            self._telling = Telling(
                self.gateway.driver,
                settings.learned,
                save=lambda kept: learned.save({"flow": kept}),
            )
        if state is not None and learned is not None and scaled.pools:
            self._autoscaler = build_autoscaler(
                scaled,
                state,
                learned,
                observer=observer,
                routing=lambda pool: PoolRouting(self.gateway.fleet, pool.model),
                clock=loop.time,
                wall_offset=wall_offset,
                sinks=Sinks(self._decisions.add, records.write if records else lambda _: None),
                also=lambda: {"flow": self.gateway.driver.flow.learned()},
            )
            self.gateway.fleet.unresponsive = self._unresponsive
            self.gateway.fleet.expects = self._expects
        self._admin = AdminServer(
            self.gateway,
            _with_admin_port(settings),
            observer=observer,
            decisions=self._decisions.after if self._autoscaler is not None else None,
            token=found.admin_token,
            listener=sockets.admin,
            controls=self._controls(),
        )
        self.gateway.metrics.config_loaded = self.reloader.status.loaded_at

    async def start(self) -> str:
        """Start all parts. Returns the addresses, as the READY line gives them."""
        settings, parts = self._settings, self._parts
        port = await self.gateway.start()
        words = [_address(settings.listen.host, port)]
        if self._autoscaler is not None:
            parts.push_async_callback(self._autoscaler.stop)
        parts.callback(self._telling.stop)  # when all has ended
        self._telling.start()
        parts.push_async_callback(self._admin.stop)  # it tells of the draining to its end
        parts.push_async_callback(self.gateway.drain)
        admin_port = await self._admin.start()
        if admin_port is not None:
            words.append(f"admin={_address(settings.admin.host, admin_port)}")
        if self._autoscaler is not None:
            await self._autoscaler.start()
            self._backtest(self._autoscaler)
        if settings.page.port is not None and admin_port is not None:
            words.append(f"page={await self._start_page(admin_port)}")
        return " ".join(words)

    def _backtest(self, scaler: Autoscaler) -> None:
        """Choose among scaling settings now and then, from what the records say."""
        spec, path = self._settings.autoscaler.portfolio, self._settings.records.path
        if spec.engine is None or path is None:
            return

        def made() -> list[tuple[PoolController, backtests.Job]]:
            settings = self.reloader.running  # they may have been read anew
            return backtests.jobs(
                scaler.controllers,
                self._settings.autoscaler,
                records=path,
                flow=settings.flow,
                tiers=settings.tiers,
                tenants=settings.tenants,
            )

        def tell(told: backtests.Told) -> None:
            self._portfolio[told.pool] = told

        task = asyncio.get_running_loop().create_task(backtests.forever(made, spec.interval, tell))
        self._parts.callback(task.cancel)

    async def _start_page(self, admin_port: int) -> str:
        spec, token = self._settings.page, self._settings.admin.token_file
        page = await dashboard.start(
            _address(self._settings.admin.host, admin_port),
            token_file=None if token is None else Path(token),
            host=spec.host,
            port=spec.port or 0,
        )
        self._parts.push_async_callback(page.stop)
        return page.address

    def _expects(self, model: str) -> bool:
        assert self._autoscaler is not None  # noqa: S101 (set beside the callback)
        return any(c.starting and c.config.model == model for c in self._autoscaler.controllers)

    # What an operator may ask and do (see gateway.operations).

    def _controls(self) -> Controls:
        scaler = self._autoscaler
        return Controls(
            reload=self._reload_by_hand if self._read is not None else None,
            status=self._status,
            config=lambda: shown_settings(self.reloader.running),
            hold=None if scaler is None else lambda on: scaler.hold(on=on),
            held=lambda: scaler is not None and scaler.held,
        )

    async def _reload_by_hand(self) -> dict[str, Any]:
        return asdict(await self.reload())

    def _status(self) -> dict[str, Any]:
        records = self._records
        written = None
        if records is not None:
            names = ("written", "dropped", "buffered", "errors", "last_error")
            written = {name: getattr(records, name) for name in names}
        return {
            "version": surgetank.__version__,
            "uptime": round(asyncio.get_running_loop().time() - self._began, 3),
            "configuration": asdict(self.reloader.status),
            "records": written,
            "portfolio": [asdict(told) for told in self._portfolio.values()],
        }

    # Reading anew.

    def _hang_up(self) -> None:
        self._reloading = asyncio.get_running_loop().create_task(self._reload_on_signal())

    async def _reload_on_signal(self) -> None:
        with contextlib.suppress(SurgetankError):  # it is in the log, and in the metrics
            await self.reload()

    async def reload(self) -> ReloadStatus:
        """Read configuration and keys anew. Raises SurgetankError when they are of no use."""
        self._manager.reloading()
        self._files.reopen()
        metrics, status = self.gateway.metrics, self.reloader.status
        try:
            return await self.reloader.reload()
        finally:
            metrics.config_failed = bool(status.error)
            metrics.config_loaded = status.loaded_at
            self._manager.ready(f"reload failed: {status.error}" if status.error else "serving")

    def _apply(self, settings: configuration.Config, found: Credentials) -> None:
        settings = _within_descriptors(settings)
        self.gateway.reconfigure(
            settings.gateway,
            flow_settings(settings),
            keys=found.keys,
            promised=promised_models(settings),
        )
        _tell_missing(settings, found)
        self._admin.token = found.admin_token
        if self._records is not None:
            self._records.rotation = rotation(settings.records)
            self._records.max_buffered = settings.records.max_buffered

    def _unresponsive(self, replica: str, why: str) -> None:
        assert self._autoscaler is not None  # noqa: S101 (set beside the callback)
        for controller in self._autoscaler.controllers:
            controller.unresponsive(replica, why)


def _tell_missing(settings: configuration.Config, found: Credentials) -> None:
    for missing in keys_missing(settings, found.keys):
        log.warning("%s: its limits hold for nobody", missing)


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _with_admin_port(settings: configuration.Config) -> AdminSpec:
    """The live page reads the admin listener: with a page it is open, on loopback if unset."""
    if settings.page.port is None or settings.admin.port is not None:
        return settings.admin
    return replace(settings.admin, port=0)


def build_flow(
    settings: configuration.Config,
    journal: Callable[[str], object] | None,
    wall_offset: float,
    *,
    learned: Mapping[str, Any] | None = None,
) -> FlowControl | Journal:
    """Make the decisions of this process, journalled when asked for."""
    draw = random.Random(secrets.randbits(64)).random
    given = flow_settings(settings)
    if journal is None:
        return FlowControl(
            given.spec,
            tenants=given.tenants,
            tiers=given.tiers,
            models=given.models,
            draw=draw,
            learned=learned,
            ladder=given.ladder,
        )
    return Journal(
        journal,
        given.spec,
        tenants=given.tenants,
        tiers=given.tiers,
        models=given.models,
        draw=draw,
        learned=learned,
        wall_offset=wall_offset,
        ladder=given.ladder,
    )
