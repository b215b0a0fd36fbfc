"""`surgetank compare`: whether a change made bursts better or worse."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import surgetank
from surgetank.errors import InputError

if TYPE_CHECKING:
    from surgetank.loadtest.runfile import Run
    from surgetank.loadtest.verdict import Comparison

app = typer.Typer(add_completion=False)


@app.command()
def compare(
    before: Annotated[
        Path, typer.Argument(metavar="A", help="Run file of before: `surgetank load --out A`.")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="Run file of after.")],
    *,
    threshold: Annotated[
        str,
        typer.Option(metavar="SHARE", help="Change that counts, as a part of A's figure."),
    ] = "5%",
    points: Annotated[
        float,
        typer.Option(min=0.0, max=100.0, help="Change of attainment that counts, in points."),
    ] = 0.5,
    refusals: Annotated[
        float,
        typer.Option(
            min=0.0, max=100.0, help="Points more of requests not served that are accepted."
        ),
    ] = 0.5,
    ttft: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.001, help="Objective of both runs. Default: that of A."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with charts.", show_default=False),
    ] = None,
) -> None:
    """Compare two runs of one schedule: better, worse or no difference, with intervals.

    TTFT P95 in pulses, recovery time and attainment decide. Exits 1 when B is worse, 2 when the two
    cannot be compared, else 0; fewer than 5 whole cycles get no verdict.
    """
    from surgetank.loadtest.runfile import read_run  # noqa: PLC0415 - numpy loads slowly
    from surgetank.loadtest.verdict import Threshold  # noqa: PLC0415
    from surgetank.loadtest.verdict import compare as compared  # noqa: PLC0415

    bounds = Threshold(_share(threshold), points / 100, refusals / 100)
    one, other = read_run(before), read_run(after)
    found = compared(one, other, bounds, ttft=ttft, names=(str(before), str(after)))
    if html is not None:
        _write_page(one, other, found, html)
    if as_json:
        print(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        _show(found, html)
    if found.verdict == "worse":
        raise typer.Exit(1)


def _share(text: str) -> float:
    """Read "5%" or "0.05"."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if "%" in text else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"--threshold {text}: must be a share such as 5% or 0.05")
    return value


def _write_page(one: Run, other: Run, found: Comparison, file: Path) -> None:
    from surgetank.loadtest.verdictpage import page  # noqa: PLC0415
    from surgetank.report.files import write_whole  # noqa: PLC0415
    from surgetank.report.page import html  # noqa: PLC0415

    made = f"Made by surgetank {surgetank.__version__}. It asks no other host for anything."
    write_whole(file, html(page(one, other, found, made_by=made)))


def _show(found: Comparison, html: Path | None) -> None:
    from surgetank.loadtest.verdictscreen import show  # noqa: PLC0415
    from surgetank.report.terminal import console  # noqa: PLC0415

    out = console()
    show(found, out)
    if html is not None:
        out.print(f"Page with charts: {html}")
