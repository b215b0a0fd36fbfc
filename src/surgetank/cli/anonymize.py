"""`surgetank anonymize`: a log that can leave the building; and a check of one that should."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from surgetank.cli import log_options, logreading
from surgetank.cli.logreading import LogArguments
from surgetank.cli.outputs import refuse_output
from surgetank.errors import InputError

app = typer.Typer()

_KEY_BYTES: Final = 32
_LONGEST_SHIFT: Final = 1000 * 366 * 86_400.0  # s: beyond, a time loses its fraction, or is none


@app.command()
def anonymize(
    log: Annotated[str | None, typer.Argument(help='Log to read; "-" is standard input.')] = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write (JSON lines, mode 0600).")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="Search FILE for what looks like personal data, and write nothing; exit 1 if any.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="FILE",
            help="Secret that the names are hashed with, made when absent: the same file gives the "
            "same hashes. Without it each export has a key of its own, which is thrown away.",
        ),
    ] = None,
    shift: Annotated[
        float | None, typer.Option(help="Seconds to add to every time. Default: whole weeks back.")
    ] = None,
    keep_times: Annotated[
        bool, typer.Option("--keep-times", help="Leave the times as they are.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Leave these names as they are: tenant, session."),
    ] = None,
    hashed: Annotated[
        list[str] | None,
        typer.Option("--hash", metavar="FIELD", help="Hash these names as well: model."),
    ] = None,
    log_format: log_options.Format = None,
    column: log_options.Column = None,
    time_unit: log_options.TimeUnit = None,
    timezone: log_options.Timezone = "UTC",
    year: log_options.Year = None,
    day_first: log_options.DayFirst = None,
    max_bad: log_options.MaxBad = "1%",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a log without persons: names hashed with a key, times shifted, no text at all.

    Only arrivals, token counts, durations and outcomes are copied, so every burst figure stays.
    """
    if check is not None:
        if log is not None or out is not None:
            raise InputError("--check FILE reads FILE alone: leave out LOG and --out")
        _check(check, as_json=as_json)
        return
    if log is None or out is None:
        raise InputError("name the log and where to write: surgetank anonymize LOG -o OUT")
    if keep_times and shift is not None:
        raise InputError("--shift and --keep-times exclude each other")
    if shift is not None and not abs(shift) <= _LONGEST_SHIFT:
        raise InputError(f"--shift {shift}: must be seconds, at most a thousand years of them")
    refuse_output("--out", out, [log, *([key] if key else [])])
    if key is not None and Path(log).is_file() and key.exists() and key.samefile(log):
        raise InputError(f"--key {key}: is the log itself: name another file")
    told = _export(
        log,
        out,
        _secret(key),
        shift=0.0 if keep_times else shift,
        keep=keep or [],
        hashed=hashed or [],
        arguments=LogArguments(
            format=log_format,
            columns=column or (),
            time_unit=time_unit,
            timezone=timezone,
            year=year or datetime.now(UTC).year,
            day_first=day_first,
            max_bad=max_bad,
        ),
    )
    if as_json:
        print(json.dumps(told))
    else:
        _show(told)


def _export(
    log: str,
    out: Path,
    key: bytes,
    *,
    shift: float | None,
    keep: list[str],
    hashed: list[str],
    arguments: LogArguments,
) -> dict[str, Any]:
    from surgetank.adapters.logs import open_log  # noqa: PLC0415 - numpy loads slowly
    from surgetank.adapters.wholefile import whole_file  # noqa: PLC0415
    from surgetank.traffic.scrub import RARE, Scrubber  # noqa: PLC0415

    logreading.share(arguments.max_bad)  # a mistake is told before the log is read
    options = logreading.read_options(arguments)
    scrubber = Scrubber(key, keep=keep, hashed=hashed, shift=shift)
    with (
        open_log(log, options, format=arguments.format) as file,
        whole_file(out) as written,
        _progress("writing") as advance,
    ):
        for batch in file:
            written.write(scrubber.lines(batch))
            advance(file.progress)
        source = file.source
        logreading.refuse_bad(log, source, arguments.max_bad)
        if not source.rows:
            raise InputError(f"{log}: no request could be read ({source.skipped} bad rows)")
    return {
        "out": str(out),
        "format": source.format,
        "rows": source.rows,
        "skipped": source.skipped,
        "ignored": source.ignored,
        "columns": [asdict(row) for row in scrubber.remains()],
        "fields_read": file.fields,
        "rare_below": RARE,
    }


def _show(told: dict[str, Any]) -> None:
    print(f"{told['out']}: {told['rows']:,} requests of {told['format']}, mode 0600")
    if told["skipped"]:
        print(f"  {told['skipped']:,} rows could not be read and are left out")
    for row in told["columns"]:
        least = "at least " if row["at_least"] else ""
        names = "" if row["distinct"] is None else f", {least}{row['distinct']:,} different"
        print(f"  {row['column']:<14} {row['fate']:<15} {row['rows']:,} rows{names}")
    print(f"  {'all else':<14} {'dropped':<15} no text, address, key, agent or header is copied")
    if told["fields_read"]:
        print(f"  fields seen in the log: {', '.join(told['fields_read'])}")
    for row in told["columns"]:
        if row["rare"]:
            print(
                f"  warning: {row['rare']:,} values of {row['column']} have fewer than "
                f"{told['rare_below']} requests: whoever knows when one was sent can tell them"
            )


def _check(path: Path, *, as_json: bool) -> None:
    from surgetank.adapters.logfields import check  # noqa: PLC0415 - reads Parquet too

    with _progress("checking") as advance:
        findings = check(path, advance)
    if as_json:
        print(json.dumps({"path": str(path), "findings": [asdict(f) for f in findings]}))
    elif not findings:
        print(f"{path}: nothing that looks like personal data (a guess by shape, not a proof)")
    else:
        print(f"{path}: looks like personal data:")
        for found in findings:
            where = f"{found.lines:,} lines, the first is line {found.first:,}"
            print(f"  {found.kind:<28} in {found.field:<24} {where}")
    if findings:
        raise typer.Exit(1)


def _secret(path: Path | None) -> bytes:
    """Read the key, or make it; it is never printed."""
    if path is None:
        return secrets.token_bytes(_KEY_BYTES)
    try:
        return path.read_bytes().strip()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{path}: cannot be read as a key: {error.strerror}") from error
    key = secrets.token_hex(_KEY_BYTES).encode()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(key + b"\n")
    except OSError as error:
        raise InputError(f"{path}: the key cannot be made there: {error.strerror}") from error
    print(f"made the key {path}: whoever has it can try names out, so keep it", file=sys.stderr)
    return key


@contextmanager
def _progress(what: str) -> Iterator[Any]:
    """Show how far it is on a terminal; elsewhere nothing."""
    from rich.console import Console  # noqa: PLC0415 - only long work needs it
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda part: bar.update(task, total=1.0, completed=part) if part else None
