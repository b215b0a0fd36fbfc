"""`surgetank simulate --vary`: a sweep, and what a file says of one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:  # loaded when it runs: --help does not need it
    from surgetank.simulation.asked import Asked

from surgetank.cli.simulate_settings import bounded
from surgetank.errors import InputError


def run_sweep(
    asked: Asked,
    policies: list[str],
    seeds: range,
    varied: list[str],
    *,
    out: Path | None,
    workers: int | None,
    dask: str | None,
    as_json: bool,
) -> None:
    """Run every combination, kept in a file as they end."""
    from surgetank.cli import simulate_output as output  # noqa: PLC0415 - heavy
    from surgetank.engine.replica import prepare  # noqa: PLC0415
    from surgetank.simulation import executors  # noqa: PLC0415
    from surgetank.simulation.asked import check  # noqa: PLC0415
    from surgetank.simulation.asked import vary as changed  # noqa: PLC0415
    from surgetank.simulation.sweep import cases, parse_vary, sweep  # noqa: PLC0415

    if out is None:
        raise InputError("--vary: give --out FILE.parquet for the results")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: no such directory: {out.parent}")
    todo = cases(policies, list(seeds), parse_vary(varied))
    for case in todo:
        check(bounded(changed(asked, dict(case.values))))  # told before hours have passed
    where = executors.dask(dask) if dask is not None else executors.processes(workers)
    with output.Watch(len(todo)) as watch, where as (executor, count):
        prepare(watch.say)  # once, before each process would
        done = sweep(asked, todo, executor, out, workers=count, progress=watch.cases)
    output.show_sweep(done, out, as_json=as_json)
    if done.failed:
        raise typer.Exit(1)


def swept(path: Path | None) -> list[str]:
    """Read a sweep's YAML file as --vary options. Raises InputError."""
    if path is None:
        return []
    import yaml  # noqa: PLC0415 - only here

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--sweep {path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise InputError(f"--sweep {path}: not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict) or not all(isinstance(v, list) for v in data.values()):
        raise InputError(f"--sweep {path}: must be a mapping such as `replicas: [2, 4]`")
    return [f"{key}={';'.join([*map(str, values), ''][:-1])}" for key, values in data.items()]
