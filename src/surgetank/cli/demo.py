"""`surgetank demo`: a real engine wiped out by a burst and saved, and a fleet that follows one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from surgetank.cli import demo_fleet
from surgetank.errors import InputError
from surgetank.loadtest.summary import Percentiles, Summary
from surgetank.studies.demo import LONG, WAYS, Act, Way, make_folder, run_act, verdict
from surgetank.studies.demo import Progress as Watch
from surgetank.studies.fleet_demo.act import FleetAct
from surgetank.studies.fleet_demo.azure_log import read_azure
from surgetank.studies.fleet_demo.picture import svg as svg_of
from surgetank.studies.fleet_demo.pulse import Pulse, Schedule, pulse, replay
from surgetank.studies.fleet_demo.run import run_fleet
from surgetank.studies.fleet_demo.setup import FleetSetup

_TITLES: Final = {
    "long-direct": "24 long requests, straight at the engine",
    "long-surgetank": "24 long requests, through Surgetank",
    "mixed-direct": "60 requests of two tenants, straight at the engine",
    "mixed-surgetank": "60 requests of two tenants, through Surgetank",
}
_WAY_TITLES: Final[dict[Way, str]] = {"direct": "direct", "surgetank": "Surgetank"}
_INTERRUPTED: Final = 130


app = typer.Typer()


class WhichAct(StrEnum):
    """A part of the demo."""

    ONE = "1"
    TWO = "2"


@app.command()
def demo(
    *,
    act: Annotated[
        WhichAct | None, typer.Option(help="Run one act only: 1 or 2.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the second act's arrivals.")] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Second act: replay this log's densest stretch instead of a drawn burst "
            "(CSV: TIMESTAMP,ContextTokens,GeneratedTokens).",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="Second act: write a picture of it to this file.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps records, samples and decisions of all runs, and the picture.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a burst that wipes out an engine, and one that a fleet follows. Takes 2.5 minutes.

    Act 1: a real llama.cpp server, straight and through Surgetank. Act 2: simulated replicas with a
    cold start of 20 s, behind Surgetank with its autoscaler and behind a plain proxy.
    """
    schedule = _schedule(trace, seed)  # first: a bad log is told before a minute has passed
    if records is not None:
        make_folder(records)
    found: dict[str, Any] = {"version": 1}
    if act is not WhichAct.TWO:
        first = _act_one(records)
        found["act1"] = first.as_json()
        if not as_json:
            show(first)
    if act is not WhichAct.ONE:
        second = _act_two(schedule, seed, records)
        found["act2"] = second.as_json()
        if not as_json:
            demo_fleet.show(second)
        _draw(second, svg, records)
    if as_json:
        print(json.dumps(found, indent=2))


def _schedule(trace: Path | None, seed: int) -> Schedule:
    if trace is None:
        return pulse(Pulse(), seed)
    most = FleetSetup().profile().max_model_len
    return replay(read_azure(trace), Pulse(), seed, most_tokens=most)


def _act_one(records: Path | None) -> Act:
    with _folder() as folder, _progress() as watch:
        return _run(run_act(folder, watch, records=records))


def _act_two(schedule: Schedule, seed: int, records: Path | None) -> FleetAct:
    with _folder() as folder, demo_fleet.watching() as watch:
        setup = FleetSetup()
        return _run(run_fleet(folder, setup, schedule, watch, seed=seed, records=records))


def _draw(act: FleetAct, file: Path | None, records: Path | None) -> None:
    """Write the picture where it was asked for, and among the records."""
    for path in (file, None if records is None else records / "fleet.svg"):
        if path is None:
            continue
        try:
            path.write_text(svg_of(act), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="surgetank-demo-") as folder:
        yield Path(folder)


_Result = TypeVar("_Result")


def _run(act: Coroutine[Any, Any, _Result]) -> _Result:
    try:
        return uvloop.run(_interruptible(act))
    except asyncio.CancelledError:
        sys.stderr.write("surgetank: interrupted; everything it started has ended\n")
        raise typer.Exit(_INTERRUPTED) from None


async def _interruptible(act: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the act; SIGINT and SIGTERM cancel it, so that every process is ended on the way out."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(act)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task


@contextlib.contextmanager
def _progress() -> Iterator[Watch]:
    """Show a bar for each run on a terminal, else a line as it begins and as it ends."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _report_line
        return
    columns = (
        TextColumn("{task.description:<52}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {name: bars.add_task(title, start=False) for name, title in _TITLES.items()}

        def watch(name: str, ended: int, total: int) -> None:
            if ended == 0:
                bars.start_task(tasks[name])
            bars.update(tasks[name], completed=ended, total=total)

        yield watch


def _report_line(name: str, ended: int, total: int) -> None:
    if ended == 0:
        sys.stderr.write(f"{_TITLES[name]} ...\n")
    elif ended == total:
        sys.stderr.write(f"{_TITLES[name]}: {total} ended\n")
    sys.stderr.flush()


def show(act: Act) -> None:
    """Print the table and the verdict."""
    console = Console()
    # Without side borders it fits 80 columns, which is what a pipe gets.
    title = "One llama.cpp server, 8 slots sharing 2,048 tokens of KV"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("tenant")
    table.add_column("way")
    for name in ("served", "TTFT P50", "P95", "P99", "refused", "failed", "wasted"):
        table.add_column(name, justify="right")
    rows = [(LONG, {way: act.long_summary(way) for way in WAYS})]
    tenants = {way: act.tenants(way) for way in WAYS}
    rows += [(name, {way: tenants[way][name] for way in WAYS}) for name in tenants["direct"]]
    for tenant, summaries in rows:
        for way in WAYS:
            table.add_row(tenant, _WAY_TITLES[way], *_cells(summaries[way]))
        table.add_section()
    console.print(table)
    console.print("TTFT: seconds from when a request was due; -: never. Wasted: tokens of no use.")
    console.print(verdict(act), highlight=False)


def _cells(summary: Summary) -> tuple[str, ...]:
    return (
        f"{summary.completed}/{summary.requests}",
        *_seconds(summary.ttft),
        str(summary.refused),
        str(summary.failed + summary.abandoned),
        f"{summary.wasted_tokens:,}",
    )


def _seconds(ttft: Percentiles) -> tuple[str, ...]:
    values = (ttft.p50, ttft.p95, ttft.p99)
    return tuple("-" if value is None else f"{value:.2f}" for value in values)
