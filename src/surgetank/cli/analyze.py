"""`surgetank analyze`: how bursty is my traffic, and what does that mean for capacity."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import surgetank
from surgetank.cli import log_options, logreading
from surgetank.cli.logreading import LogArguments
from surgetank.cli.outputs import refuse_output
from surgetank.errors import InputError

if TYPE_CHECKING:
    from surgetank.traffic.analysis import Analysis
    from surgetank.traffic.burstiness import Accumulator
    from surgetank.traffic.trace import Batch, Source

app = typer.Typer()

_HELD: Final = 2_000_000  # rows of several logs, or of a part, that are sorted together


@app.command()
def analyze(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help='Logs of one service, told as one; "-" is standard input. Compressed ones too.',
            show_default=False,
        ),
    ],
    *,
    log_format: log_options.Format = None,
    column: log_options.Column = None,
    time_unit: log_options.TimeUnit = None,
    timezone: log_options.Timezone = "UTC",
    year: log_options.Year = None,
    day_first: log_options.DayFirst = None,
    estimate_tokens: Annotated[
        bool,
        typer.Option(
            "--estimate-tokens", help="Take 4 characters for a token where only those are logged."
        ),
    ] = False,
    max_bad: log_options.MaxBad = "1%",
    capacity_delay: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            max=31_536_000,
            help="Time from wanting a replica to its serving.",
        ),
    ] = 60.0,
    tenant: log_options.Tenants = None,
    start: log_options.From = None,
    end: log_options.To = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Give figures that the stamps' resolution forbids as well."),
    ] = False,
    counts: Annotated[
        bool,
        typer.Option(
            "--counts", help="Only counts per second: faster; no gaps, tenants or token quantiles."
        ),
    ] = False,
    top: Annotated[
        int, typer.Option(min=1, max=50, help="Tenants and episodes in the tables.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with charts.", show_default=False),
    ] = None,
) -> None:
    """Tell how bursty the traffic in a log is, per tenant, and what capacity it needs.

    The format is told from the content: access logs of nginx, Envoy, ALB and CloudFront, logs of
    vLLM, SGLang, llama.cpp and TGI, LiteLLM, OpenTelemetry, Langfuse, traces, CSV, JSON lines,
    Parquet, and Surgetank's own records.
    """
    arguments = LogArguments(
        format=log_format,
        columns=column or (),
        time_unit=time_unit,
        timezone=timezone,
        year=year or datetime.now(UTC).year,
        day_first=day_first,
        estimate_tokens=estimate_tokens,
        tenants=tenant or (),
        start=start,
        end=end,
        max_bad=max_bad,
    )
    logreading.share(max_bad)  # a mistake is told before the log is read
    if html is not None:
        refuse_output("--html", html, logs)
    analysis = _analysis(
        logs, arguments, capacity_delay=capacity_delay, force=force, counts_only=counts
    )
    if html is not None:
        _write_page(analysis, html, top)
    if as_json:
        print(json.dumps(analysis.to_json(), indent=2, allow_nan=False))
    else:
        _show(analysis, top, html)


def _analysis(
    logs: Sequence[str],
    arguments: LogArguments,
    *,
    capacity_delay: float,
    force: bool,
    counts_only: bool,
) -> Analysis:
    if logs.count("-") > 1:
        raise InputError('"-": standard input can be read once only')
    from surgetank.traffic.burstiness import Accumulator  # noqa: PLC0415 - numba loads slowly

    options = logreading.read_options(arguments)
    taken = logreading.selection(arguments, options)
    whole = Accumulator(counts_only=counts_only)
    stream = _Stream(whole)
    by_row = not taken.is_all or (len(logs) > 1 and not counts_only)
    sources: list[Source] = []
    with logreading.progress() as progress:
        for log in logs:
            if by_row:
                parts = logreading.batches(log, options, arguments, taken, progress(log))
                sources.append(stream.take(parts))
            else:
                part = Accumulator(counts_only=counts_only) if sources else whole
                found = logreading.accumulated(log, options, arguments, part, progress(log))
                sources.append(found)
                if part is not whole:
                    whole.merge(part)
    stream.end()
    logreading.refuse_nothing(logs, whole.requests, taken)
    source = logreading.joined(sources)
    return whole.analyse(source, capacity_delay=capacity_delay, force=force)


class _Stream:
    """Rows on their way into an accumulator, those of several logs sorted into one stream.

    So the gaps are those of the service as a whole. Longer logs than memory should hold go in one
    after the other: counts stay exact, gaps are those within each part.
    """

    def __init__(self, whole: Accumulator) -> None:
        self._whole = whole
        self._held: list[Batch] = []
        self._rows = 0

    def take(self, parts: Generator[Batch, None, Source]) -> Source:
        """Take one log; gives its Source."""
        while True:
            try:
                batch = next(parts)
            except StopIteration as end:
                source: Source = end.value
                return source
            self._held.append(batch)
            self._rows += len(batch)
            if self._rows >= _HELD:
                self.end()

    def end(self) -> None:
        """Hand over what is held."""
        from surgetank.traffic.trace import Trace  # noqa: PLC0415

        if self._held:
            self._whole.add(Trace.of(self._held).batch)
        self._held, self._rows = [], 0


def _write_page(analysis: Analysis, file: Path, top: int) -> None:
    from surgetank.report.burstiness.page import page  # noqa: PLC0415
    from surgetank.report.files import write_whole  # noqa: PLC0415
    from surgetank.report.page import html  # noqa: PLC0415

    made = f"Made by surgetank {surgetank.__version__}. It asks no other host for anything."
    write_whole(file, html(page(analysis, top=max(top, 20), made_by=made)))


def _show(analysis: Analysis, top: int, html: Path | None) -> None:
    from surgetank.report.burstiness.screen import show  # noqa: PLC0415
    from surgetank.report.terminal import console  # noqa: PLC0415

    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a terminal without Unicode shows ? for a block
    out = console()
    show(analysis, out, top=top)
    if html is not None:
        out.print(f"Page with charts: {html}")
