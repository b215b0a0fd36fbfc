"""`surgetank forecast`: how well could this traffic have been foretold, and what comes next."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import typer

from surgetank.cli import log_options, logreading
from surgetank.cli.logreading import LogArguments
from surgetank.cli.outputs import refuse_output
from surgetank.errors import InputError

if TYPE_CHECKING:  # numpy loads slowly, and --help does not need it
    from surgetank.traffic.backtest import Backtest
    from surgetank.traffic.forecast import Named
    from surgetank.traffic.rates import RateSeries
    from surgetank.traffic.trace import Batch, Source

app = typer.Typer()

Of = Literal["requests", "prompt-tokens", "output-tokens"]

_UNITS: Final = {
    "requests": "requests/s",
    "prompt-tokens": "prompt tokens/s",
    "output-tokens": "output tokens/s",
}
_STEPS: Final = 12  # of a horizon, when no step is given
_MOST_STEPS: Final = 20_000  # of the log: beyond it steps grow
_EXAMPLE: Final = "surgetank forecast access.log --horizon 60 --html forecast.html"


@app.command(epilog=_EXAMPLE)
def forecast(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help='Logs of one service, told as one; "-" is standard input. Compressed ones too.',
            show_default=False,
        ),
    ],
    *,
    horizon: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1, help="How far ahead: the time that a new replica needs."
        ),
    ] = 60.0,
    step: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.1, help="Of one rate. [default: a twelfth of the horizon]"
        ),
    ] = None,
    level: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the upper quantile.")] = 0.95,
    of: Annotated[str, typer.Option(help="requests, prompt-tokens or output-tokens.")] = "requests",
    models: Annotated[
        str, typer.Option(help="Libraries' models beside: statsforecast, prophet (slow).")
    ] = "",
    top: Annotated[int, typer.Option(min=0, max=50, help="Tenants told by name.")] = 8,
    log_format: log_options.Format = None,
    column: log_options.Column = None,
    time_unit: log_options.TimeUnit = None,
    timezone: log_options.Timezone = "UTC",
    year: log_options.Year = None,
    day_first: log_options.DayFirst = None,
    max_bad: log_options.MaxBad = "1%",
    tenant: log_options.Tenants = None,
    start: log_options.From = None,
    end: log_options.To = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with a chart.", show_default=False),
    ] = None,
) -> None:
    """Back-test forecasters on a log, per tenant, and say what comes next.

    The first half of the log teaches, the second is judged. Beside each single forecaster stands
    the mix that Surgetank scales by: its upper quantile is kept true as it goes.
    """
    if of not in get_args(Of):
        raise InputError(f"--of {of}: must be one of {', '.join(get_args(Of))}")
    if html is not None:
        refuse_output("--html", html, logs)
    arguments = LogArguments(
        format=log_format,
        columns=column or (),
        time_unit=time_unit,
        timezone=timezone,
        year=year or datetime.now(UTC).year,
        day_first=day_first,
        tenants=tenant or (),
        start=start,
        end=end,
        max_bad=max_bad,
    )
    logreading.share(max_bad)
    batch, source = _read(logs, arguments)
    whole, tenants, series = _study(
        batch, horizon=horizon, step=step, level=level, of=of, top=top, models=models
    )
    _tell(whole, tenants, series, source, unit=_UNITS[of], as_json=as_json, html=html)


def _read(logs: Sequence[str], arguments: LogArguments) -> tuple[Batch, Source]:
    from surgetank.traffic.trace import Trace  # noqa: PLC0415 - numpy loads slowly

    if logs.count("-") > 1:
        raise InputError('"-": standard input can be read once only')
    options = logreading.read_options(arguments)
    taken = logreading.selection(arguments, options)
    kept: list[Batch] = []
    sources: list[Source] = []
    with logreading.progress() as progress:
        for log in logs:
            parts = logreading.batches(log, options, arguments, taken, progress(log))
            while True:
                try:
                    kept.append(next(parts))
                except StopIteration as end:
                    sources.append(end.value)
                    break
    logreading.refuse_nothing(logs, sum(len(b) for b in kept), taken)
    return Trace.of(kept).batch, logreading.joined(sources)


def _study(
    batch: Batch,
    *,
    horizon: float,
    step: float | None,
    level: float,
    of: str,
    top: int,
    models: str,
) -> tuple[Backtest, list[Backtest], RateSeries]:
    from rich.progress import Progress  # noqa: PLC0415

    from surgetank.report.terminal import console  # noqa: PLC0415
    from surgetank.traffic.backtest import backtest, with_sum  # noqa: PLC0415
    from surgetank.traffic.rates import ALL, rates  # noqa: PLC0415

    span = float(batch.arrived.max() - batch.arrived.min())
    if step is None:
        step = max(horizon / _STEPS, float(round(span / _MOST_STEPS)), 1.0)
        if step > horizon:
            raise InputError(
                f"the log is {span / 86400:.3g} days long, which is over {_MOST_STEPS:,} horizons "
                f"of {horizon:g} s: give a longer --horizon, a part of it (--from, --to), or --step"
            )
        if span < 2 * step:
            raise InputError(
                f"the log is {span:.3g} s long: too short for a horizon of {horizon:g} s; "
                "give a longer log, or a shorter --horizon"
            )
    if step > horizon:
        raise InputError(f"--step {step:g}: must be at most the horizon of {horizon:g} s")
    series = rates(batch, step, of, top=top)  # type: ignore[arg-type]  # checked above
    kinds = _kinds(batch, series, models)
    names = [ALL, *series.by_tenant]
    found: dict[str, Backtest] = {}
    shown = sys.stderr.isatty()
    with Progress(console=console(sys.stderr), transient=True, disable=not shown) as bar:
        job = bar.add_task("back-testing", total=len(names) * len(series.total))
        for number, name in enumerate(names):
            column = series.total if name == ALL else series.by_tenant[name]

            def told(steps: int, before: int = number * len(series.total)) -> None:
                bar.update(job, completed=before + steps)

            found[name] = backtest(
                name,
                column,
                kinds,
                step=step,
                horizon=horizon,
                level=level,
                first=series.first,
                progress=told,
            )
    tenants = [found[name] for name in series.by_tenant]
    whole = with_sum(found[ALL], tenants) if tenants else found[ALL]
    return whole, tenants, series


def _kinds(batch: Batch, series: RateSeries, models: str) -> tuple[Named, ...]:
    """The forecasters: seasons of the clock, and the rhythm that the first half shows."""
    from surgetank.traffic.burstiness import Accumulator  # noqa: PLC0415
    from surgetank.traffic.forecast import named  # noqa: PLC0415
    from surgetank.traffic.trace import Source  # noqa: PLC0415

    first, last = float(batch.arrived.min()), float(batch.arrived.max())
    half = Accumulator(counts_only=True)
    half.add(batch.take(batch.arrived < (first + last) / 2))
    pulse = half.analyse(Source(path="", format="")).pulse if half.requests else None
    rhythms = [] if pulse is None else [pulse.period_s]
    kinds = named(len(series.total) * series.step, rhythms)
    if models:
        from surgetank.adapters.forecast_models import model  # noqa: PLC0415

        kinds += tuple(model(name.strip()) for name in models.split(","))
    return kinds


def _tell(
    whole: Backtest,
    tenants: Sequence[Backtest],
    series: RateSeries,
    source: Source,
    *,
    unit: str,
    as_json: bool,
    html: Path | None,
) -> None:
    from surgetank.report.forecast import told  # noqa: PLC0415

    if html is not None:
        from surgetank.report.files import write_whole  # noqa: PLC0415
        from surgetank.report.page import html as page_html  # noqa: PLC0415

        about = f"{source.path}: {source.rows:,} requests, {source.format}"
        page = told.page(whole, tenants, unit, start=series.start, about=about)
        write_whole(html, page_html(page))
    if as_json:
        read = {"path": source.path, "format": source.format, "rows": source.rows}
        print(json.dumps(told.to_json(whole, tenants, read), indent=2, allow_nan=False))
        return
    from surgetank.report.terminal import console  # noqa: PLC0415

    out = console()
    told.show(whole, tenants, unit, out)
    if html is not None:
        out.print(f"Page with a chart: {html}")
