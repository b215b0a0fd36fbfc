"""`surgetank conformance`: burst conformance of any OpenAI-compatible gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import surgetank
from surgetank.cli.outputs import refuse_output
from surgetank.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from surgetank.studies.conformance.run import Watch
    from surgetank.studies.conformance.subject import Subject
    from surgetank.studies.conformance.verdict import Check, Report, Result

app = typer.Typer(add_completion=False)
_OWN = "surgetank"


@app.command()
def conformance(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET.yaml|NAME|URL",
            help="A target file, the name of one that comes with surgetank (see --list), or the "
            "address of a gateway that runs.",
        ),
    ] = _OWN,
    *,
    only: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Only these checks: 1,4,10-12.", show_default=False),
    ] = None,
    upstream_port: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=65535,
            help="With a URL: where that gateway expects a replica; may be repeated.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="With a URL: the model's name there.")] = "conformance",
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With a URL: the environment variable that holds an API key.",
            show_default=False,
        ),
    ] = None,
    bin_: Annotated[
        Path | None,
        typer.Option(
            "--bin",
            metavar="DIR",
            help="Folder where the gateway's program is looked for first.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes where a check takes long.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the checks and the targets, and run nothing.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print what was seen of passed checks too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page.", show_default=False)
    ] = None,
) -> None:
    """Put a gateway through the bursts, cancellations and faults that users reported of gateways.

    It is started before scripted replicas on loopback, once for each check. Exits 1 when a check
    failed. What cannot be seen or set on it is "not testable", with the reason.
    """
    from surgetank.studies.conformance.run import chosen  # noqa: PLC0415
    from surgetank.studies.conformance.table import CHECKS  # noqa: PLC0415
    from surgetank.studies.conformance.verdict import Status  # noqa: PLC0415

    checks = chosen(CHECKS, only)
    if listing:
        _list(checks, as_json=as_json)
        return
    if html is not None:
        refuse_output("--html", html)
    subject = _subject(target, upstream_port or [], model, key_env, bin_)
    report = _run(subject, checks, quick=quick, quiet=as_json, verbose=verbose)
    if html is not None:
        _write_page(report, html)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    if report.count(Status.FAILED):
        raise typer.Exit(1)


def _subject(
    target: str, ports: list[int], model: str, key_env: str | None, bin_: Path | None
) -> Subject:
    from surgetank.studies.conformance.subject import FileSubject, UrlSubject  # noqa: PLC0415
    from surgetank.studies.conformance.targetfile import read_target  # noqa: PLC0415

    if "://" in target:
        key = os.environ.get(key_env, "") if key_env else ""
        if key_env and not key:
            raise InputError(f"--key-env {key_env}: is not set in the environment")
        subject = UrlSubject(target, ports, model=model, key=key)
        subject.reach()
        return subject
    if ports or key_env:
        raise InputError("--upstream-port and --key-env are for a URL: a target file says it all")
    path = Path(target)
    if target in _targets():
        path = _targets()[target]
    return FileSubject(read_target(path), bin_=bin_)


def _targets() -> dict[str, Path]:
    """Find the target files that come with the package, by name."""
    folder = Path(surgetank.__file__).parent / "studies" / "conformance" / "targets"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _run(
    subject: Subject, checks: tuple[Check, ...], *, quick: bool, quiet: bool, verbose: bool
) -> Report:
    import uvloop  # noqa: PLC0415

    from surgetank.adapters.descriptors import make_room  # noqa: PLC0415
    from surgetank.report.terminal import console  # noqa: PLC0415
    from surgetank.studies.conformance import screen  # noqa: PLC0415
    from surgetank.studies.conformance.run import run_checks  # noqa: PLC0415

    make_room(1 << 16)
    out = console()

    def show(result: Result) -> None:
        if not quiet:
            screen.line(result, out)
            if verbose or result.status.value == "failed":
                screen.evidence(result, out)

    with _watching(len(checks), show) as watch:
        report: Report = _loop(
            uvloop.new_event_loop, run_checks(subject, checks, watch, quick=quick)
        )
    if not quiet:
        screen.last(report, out)
    return report


def _loop(factory: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; SIGTERM, as Ctrl-C, ends what was started first."""

    async def ended_by_signals() -> Any:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (a coroutine runs in one)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(ended_by_signals())
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None


@contextlib.contextmanager
def _watching(number: int, show: Callable[[Result], None]) -> Iterator[Watch]:
    """Show what is done now, on a terminal only."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    errors: Console = Console(stderr=True)
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=number)

        def watch(check: Check, result: Result | None) -> None:
            if result is None:
                bar.update(task, description=f"{check.number}  {check.title}")
            else:
                show(result)
                bar.advance(task)

        yield watch


def _list(checks: tuple[Check, ...], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"number": c.number, "title": c.title, "source": c.source, "right": c.right}
            for c in checks
        ]
        print(json.dumps({"targets": list(_targets()), "checks": rows}, indent=2))
        return
    print(f"targets: {', '.join(_targets())}")
    for check in checks:
        print(f"{check.number:>3}  {check.title}  ({check.source})")


def _write_page(report: Report, file: Path) -> None:
    from surgetank.report.files import write_whole  # noqa: PLC0415
    from surgetank.report.page import html  # noqa: PLC0415
    from surgetank.studies.conformance.page import page  # noqa: PLC0415

    made = f"Made by surgetank {surgetank.__version__}. It asks no other host for anything."
    write_whole(file, html(page(report, made_by=made)))
