"""What the autoscaler's settings must fit, among themselves and with the fixed replicas."""

from __future__ import annotations

import shlex

from surgetank.adapters.processes import ProcessSpec
from surgetank.config.source import Path, Source, shown
from surgetank.config.text import (
    check_file,
    check_printable,
    check_unique,
    check_url,
    is_variable,
)
from surgetank.config.tree import Config
from surgetank.errors import InputError
from surgetank.policy.calendar import CalendarEvent


def check_autoscaler(config: Config, source: Source) -> None:
    """Raise ConfigError for the first thing that does not fit."""
    scaler = config.autoscaler
    for i, pool in enumerate(scaler.pools):
        here: Path = ("autoscaler", "pools", i)
        check_printable(pool.model, (*here, "model"), source)
        if pool.process.command.strip():
            _check_process(pool.process, (*here, "process"), source)
        elif not scaler.advisory and not scaler.gateways:
            source.refuse(
                (*here, "process", "command"),
                f"= {shown(pool.process.command)}: must be the program that starts a replica, "
                "such as 'vllm serve MODEL --port {port}'; to start none, set autoscaler.advisory",
            )
    for i, event in enumerate(scaler.calendar):
        _check_event(event, ("autoscaler", "calendar", i), source)
    if scaler.portfolio.engine is not None:
        _check_portfolio(scaler.portfolio.engine, config, source)
    if not scaler.advisory:
        _check_models(config, source)
    gateways = [
        check_url(url, ("autoscaler", "gateways", i), source)
        for i, url in enumerate(scaler.gateways)
    ]
    check_unique(("autoscaler", "gateways"), (), gateways, source)


def _check_portfolio(engine: str, config: Config, source: Source) -> None:
    from surgetank.engine.profile import find  # noqa: PLC0415 - only who has one needs it

    path: Path = ("autoscaler", "portfolio", "engine")
    if config.records.path is None:
        source.refuse(path, f"= {shown(engine)}: is tried on records: set records.path")
    try:
        find(engine)
    except InputError as error:
        source.refuse(path, f": {error}")


def _check_event(event: CalendarEvent, path: Path, source: Source) -> None:
    from surgetank.adapters.zones import check_zone  # noqa: PLC0415 - only who has events needs it

    check_printable(event.name, (*path, "name"), source)
    try:
        check_zone(event.timezone)
    except InputError as error:
        source.refuse((*path, "timezone"), f": {error}")


def _check_models(config: Config, source: Source) -> None:
    """A pool counts its own replicas only: others of its model would make it see less load."""
    pools = {pool.model for pool in config.autoscaler.pools}
    for i, replica in enumerate(config.replicas):
        if replica.model in pools:
            source.refuse(
                ("replicas", i, "model"),
                f"= {shown(replica.model)}: autoscaler.pools has this model too: keep one of "
                "them, or set autoscaler.advisory to start nothing",
            )


def _check_process(process: ProcessSpec, path: Path, source: Source) -> None:
    command = f"= {shown(process.command)}"
    try:
        words = shlex.split(process.command)
    except ValueError as error:
        source.refuse((*path, "command"), f"{command}: {str(error).lower()}: quote as in a shell")
    values = [variable.value for variable in process.environment]
    if not words or any("\0" in text for text in words):
        source.refuse((*path, "command"), f"{command}: must be a command line")
    if not any("{port}" in text for text in (*words, *values)):
        source.refuse((*path, "command"), f"{command}: must have {{port}} where its port goes")
    if process.cwd is not None:
        check_file(process.cwd, (*path, "cwd"), source)
    for i, variable in enumerate(process.environment):
        here = (*path, "environment", i)
        if not is_variable(variable.name):
            problem = f"= {shown(variable.name)}: use letters, digits and _ (no digit first)"
            source.refuse((*here, "name"), problem)
        if "\0" in variable.value:
            source.refuse((*here, "value"), "must not have a NUL in it")
    names = [variable.name for variable in process.environment]
    check_unique((*path, "environment"), ("name",), names, source)
