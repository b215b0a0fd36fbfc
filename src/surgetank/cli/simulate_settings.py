"""Settings of `surgetank simulate`: words of its options, and parts of a configuration file."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded when it runs: --help does not need it
    from surgetank.simulation.asked import Asked

from surgetank.errors import InputError


def columns(texts: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=")[::2] for text in texts]
    if not all(ours and theirs for ours, theirs in pairs):
        raise InputError("--column: must be OURS=THEIRS, such as prompt_tokens=n_in")
    return tuple(pairs)


def configured(path: Path | None, slots: int | None) -> dict[str, Any]:
    """The parts of a configuration file that a simulation takes."""
    if path is None:
        return {"slots": slots}
    from surgetank.config import load  # noqa: PLC0415 - heavy
    from surgetank.simulation.asked import ConfiguredPool  # noqa: PLC0415 - heavy

    config = load(path)
    pools = [
        ConfiguredPool(
            model=pool.model,
            role=pool.role,
            replicas=pool.base,
            max_replicas=pool.max_replicas,
            scale=pool.scale_spec(),
            drain_timeout=pool.drain_timeout,
        )
        for pool in config.autoscaler.pools
    ]
    listed = config.replicas
    return {
        "flow": config.flow,
        "tiers": config.tiers,
        "tenant_specs": config.tenants,
        "pools": tuple(pools),
        "listed": 0 if pools else len(listed),
        "slots": listed[0].slots if listed and slots is None else slots,
    }


def pairs_of(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise InputError(f"--set {text}: must be flow.KEY=VALUE, scale. or engine. likewise")
        found[key.strip()] = value.strip()
    return found


def check_used(asked: Asked) -> None:
    """Raise InputError for an option that would change nothing, or a setting out of its bounds."""
    bounded(asked)
    if asked.pulse is not None and asked.trace is None:
        for option, given in (("--format", asked.log_format), ("--column", asked.columns)):
            if given:
                raise InputError(f"{option}: is of a log: a --pulse has none")
    if asked.trace is not None and asked.tenants is not None:
        raise InputError("--tenants: is of a pulse: a log names its own")


def bounded(asked: Asked) -> Asked:
    """Hold single settings to the bounds of a configuration file. Raises InputError."""
    from surgetank.config.bounds import bound_of  # noqa: PLC0415 - heavy

    for key, text in asked.settings:
        part, _, name = key.partition(".")
        try:
            value = float(text)
        except ValueError:  # a word, or told where the setting is applied
            continue
        right = "must be finite" if not isfinite(value) else bound_of(name).problem(value)
        if part != "engine" and right is not None:
            raise InputError(f"{key} = {text}: {right}")
    return asked
