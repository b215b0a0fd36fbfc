"""`surgetank autoscale`: the controller alone, for gateways in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from surgetank import config as configuration
from surgetank.adapters.learned import Learned
from surgetank.adapters.observation import RemoteGateways, RemoteRouting
from surgetank.adapters.statedir import StateDir
from surgetank.autoscaler.controller import Sinks
from surgetank.cli.logfiles import LogFiles, rotation
from surgetank.cli.scaling import build_autoscaler
from surgetank.errors import ConfigError
from surgetank.gateway.keys import read_private

app = typer.Typer()
log = logging.getLogger("surgetank")


@app.command()
def autoscale(
    config: Annotated[Path, typer.Option("-c", "--config", help="The configuration file.")],
) -> None:
    """Scale pools of replicas for gateways in other processes.

    Reads what the gateways of autoscaler.gateways see, decides once a second, starts and stops
    replicas, and tells every gateway of them. Prints a line READY once it decides.
    SIGHUP opens the record and decision files anew.
    """
    settings = configuration.load(config)
    for given, name, why in (
        (settings.autoscaler.pools, "autoscaler.pools", "there is nothing to scale"),
        (settings.autoscaler.gateways, "autoscaler.gateways", "there is nothing to watch"),
    ):
        if not given:
            raise ConfigError(f"{name} is empty: {why} ({config})")
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    uvloop.run(_autoscale(settings))


async def _autoscale(settings: configuration.Config) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    spec = settings.autoscaler
    token = None if spec.token_file is None else read_private(Path(spec.token_file)).strip()
    async with contextlib.AsyncExitStack() as parts:
        files = LogFiles(parts, max_buffered=settings.records.max_buffered)
        decisions, samples = (
            files.open(spec.decisions),
            files.open(settings.records.path, rotation(settings.records)),
        )
        state = StateDir(spec.state_dir)
        parts.callback(state.close)
        gateways = RemoteGateways(spec.gateways, token=token, clock=loop.time)
        autoscaler = build_autoscaler(
            spec,
            state,
            Learned(state),
            observer=gateways,
            routing=lambda pool: RemoteRouting(gateways, pool.model),
            clock=loop.time,
            wall_offset=time.time() - loop.time(),
            sinks=Sinks(
                decisions.write if decisions is not None else lambda _: None,
                samples.write if samples is not None else lambda _: None,
            ),
        )

        def unresponsive(replica: str, why: str) -> None:
            for controller in autoscaler.controllers:
                controller.unresponsive(replica, why)

        gateways.unresponsive = unresponsive
        gateways.start()
        parts.push_async_callback(gateways.stop)
        parts.push_async_callback(autoscaler.stop)
        await autoscaler.start()
        print(f"READY {len(spec.pools)} pools, {len(spec.gateways)} gateways", flush=True)
        await stopping.wait()
