"""`surgetank portfolio`: which scaling settings would have been best on a fleet's own records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surgetank.errors import InputError

if TYPE_CHECKING:
    from surgetank.autoscaler.spec import PoolConfig
    from surgetank.config import Config
    from surgetank.studies.portfolio import Choice

app = typer.Typer(add_completion=False)

_EXAMPLE = "surgetank portfolio records.jsonl -c surgetank.yaml --engine h100-llama-3.1-8b-bf16-tp1"


@app.command(epilog=_EXAMPLE)
def portfolio(
    records: Annotated[
        Path,
        typer.Argument(help="Records: a file, with those cut off from it, or a folder of *.jsonl."),
    ],
    *,
    config: Annotated[
        Path, typer.Option("--config", "-c", help="surgetank.yaml: its flow, tenants and pools.")
    ],
    engine: Annotated[
        str | None,
        typer.Option(help="Engine profile. [default: autoscaler.portfolio.engine]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose pool. [default: the only one]")
    ] = None,
    attainment: Annotated[
        float | None,
        typer.Option(
            help="Part of the requests within their objectives. [default: scale.attainment]"
        ),
    ] = None,
    cpu_seconds: Annotated[
        float | None, typer.Option(min=1, help="Of one core, for all candidates.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Back-test scaling settings on the last records: a static floor, those in use, and others.

    With `autoscaler.portfolio.engine` set, a running server does the same once an hour.
    """
    from surgetank import config as configuration  # noqa: PLC0415
    from surgetank.cli.backtests import Job, run  # noqa: PLC0415

    settings = configuration.load(config)
    spec = settings.autoscaler.portfolio
    given = {"engine": engine, "cpu_seconds": cpu_seconds}
    spec = replace(spec, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]  # by name
    if spec.engine is None:
        raise InputError("--engine: name the engine's profile, or set autoscaler.portfolio.engine")
    pool = _pool(settings, config, model)
    scale = pool.scale_spec()
    if attainment is not None:
        if not 0 < attainment < 1:
            raise InputError(f"--attainment {attainment:g}: must be between 0 and 1, as 0.95")
        scale = replace(scale, attainment=attainment)
    choice = run(
        Job(
            str(records),
            pool.model,
            spec,
            scale,
            (),
            settings.flow,
            settings.tiers,
            settings.tenants,
            settings.autoscaler.calendar,
        )
    )
    if as_json:
        print(json.dumps(choice.to_json(), allow_nan=False, indent=2))
    else:
        _show(choice)


def _pool(settings: Config, file: Path, model: str | None) -> PoolConfig:
    """The pool that is meant. Raises InputError."""
    pools = [p for p in settings.autoscaler.pools if p.role.value == "both"]
    found = [pool for pool in pools if model in {None, pool.model}]
    if len(found) == 1:
        return found[0]
    known = ", ".join(pool.model for pool in pools) or "none that serves whole requests"
    raise InputError(f"--model: {file} has pools of {known}: name one of them")


def _show(choice: Choice) -> None:
    from surgetank.report import numbers, terminal  # noqa: PLC0415

    out = terminal.console()
    rows = [
        (
            f"{c.name} *" if c is choice.chosen else c.name,
            numbers.percent(c.attainment),
            f"{c.cost:.2f}",
            str(c.launches),
        )
        for c in choice.tried
    ]
    out.print(terminal.table(("settings", "attained", "replicas", "starts"), rows))
    out.print(choice.why)
    if choice.untried:
        out.print(f"Not tried, for want of CPU time: {', '.join(choice.untried)}")
    out.print(f"{choice.requests:,} requests each, {choice.cpu_s:.0f} s of CPU time in all.")
