"""`surgetank replay`: a log sent again to a real endpoint."""

# ruff: noqa: ARG001 - Typer reads the signature; the values come through its context

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from surgetank.cli import load_options as options
from surgetank.cli import logreading
from surgetank.errors import InputError

if TYPE_CHECKING:  # numpy loads slowly, and --help does not need it
    from surgetank.loadtest.replay import Replay
    from surgetank.traffic.trace import Trace

app = typer.Typer(add_completion=False)

_LOG: Final = "Log"
_EXAMPLES: Final = (
    "surgetank replay access.log http://localhost:8000 --window 600 --speed 2\n\n"
    "surgetank replay vllm.log http://gateway:8080 --scale 0.1 --out before.json"
)


@app.command(epilog=_EXAMPLES)
def replay(
    ctx: typer.Context,
    log: Annotated[str, typer.Argument(metavar="LOG", help='As `analyze` reads them; "-": stdin.')],
    url: options.Url = None,
    *,
    speed: Annotated[
        float,
        typer.Option(min=0.000001, help="Log seconds per second.", rich_help_panel=_LOG),
    ] = 1.0,
    scale: Annotated[
        float,
        typer.Option(min=0.000001, help="Requests sent for each one logged.", rich_help_panel=_LOG),
    ] = 1.0,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS",
            help="Only the busiest stretch of so many log seconds; also 10m, 1h.",
            rich_help_panel=_LOG,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="From this time of the log on.", rich_help_panel=_LOG),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Up to this time.", rich_help_panel=_LOG)
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="Only this tenant's requests; repeatable.", rich_help_panel=_LOG),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="Format of the log, when not told right.", rich_help_panel=_LOG
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OURS=THEIRS", help="As for `analyze`; repeatable.", rich_help_panel=_LOG
        ),
    ] = None,
    timezone: Annotated[
        str, typer.Option(help="Of stamps without one.", rich_help_panel=_LOG)
    ] = "UTC",
    prompt: Annotated[
        str,
        typer.Option(help="Prompt tokens where the log says none.", rich_help_panel="Prompts"),
    ] = "lognormal:500,0.8,8000",
    output: Annotated[
        str,
        typer.Option(help="Output tokens where the log says none.", rich_help_panel="Prompts"),
    ] = "lognormal:200,0.7,4000",
    model: options.Model = None,
    completions: options.Completions = False,
    key_env: options.KeyEnv = None,
    keys: options.Keys = None,
    ca_file: options.CaFile = None,
    insecure: options.Insecure = False,
    yes: options.Yes = False,
    retries: options.RetriesOption = options.Retries.NONE,
    timeout: options.Timeout = 120.0,
    abandon: options.Abandon = None,
    bodies: options.Bodies = None,
    count_by: options.CountByOption = options.CountBy.USAGE,
    ignore_eos: options.IgnoreEos = None,
    max_prompt: options.MaxPrompt = None,
    max_output: options.MaxOutput = None,
    seed: options.Seed = 0,
    ttft: options.Ttft = 2.0,
    tpot: options.Tpot = None,
    metrics: options.Metrics = None,
    max_lag: options.MaxLag = 20.0,
    processes: options.ProcessesOption = "auto",
    max_requests: options.MaxRequests = 1_000_000,
    as_json: options.AsJson = False,
    html: options.Html = None,
    out: options.Out = None,
    records: options.Records = None,
    export: options.Export = None,
    dry_run: options.DryRun = False,
) -> None:
    """Send a log's requests again: as they came, with their tenants and sizes, open loop.

    No text of the log is needed or sent: prompts are made-up words of the logged length. The
    episodes that `analyze` finds are the report's pulses. Exit codes as of `load`.
    """
    from surgetank.cli.load_run import Asked, carry_out  # noqa: PLC0415 - numpy loads slowly

    found = _replay(ctx.params)
    carry_out(Asked.of(ctx.params), found.schedule, found.notes)


def _replay(params: Mapping[str, Any]) -> Replay:
    from surgetank.loadtest.replay import ReplaySpec  # noqa: PLC0415 - numpy loads slowly
    from surgetank.loadtest.replay import replay as drawn  # noqa: PLC0415
    from surgetank.traffic.tokencounts import parse_lengths  # noqa: PLC0415

    path = params["log"]
    spec = ReplaySpec(
        prompt=parse_lengths(params["prompt"], "--prompt"),
        output=parse_lengths(params["output"], "--output"),
        speed=params["speed"],
        scale=params["scale"],
        window=None if params["window"] is None else seconds(params["window"]),
        seed=params["seed"],
    )
    arguments = logreading.LogArguments(
        format=params["log_format"],
        columns=tuple(params["column"] or ()),
        timezone=params["timezone"],
        tenants=tuple(params["tenant"] or ()),
        start=params["start"],
        end=params["end"],
    )
    trace = read_trace(path, arguments)
    return drawn(trace, spec, name=Path(path).name, most=params["max_requests"])


def read_trace(path: str, arguments: logreading.LogArguments) -> Trace:
    """Read the requests of a log that the arguments select. Raises InputError."""
    from surgetank.traffic.trace import Trace  # noqa: PLC0415 - numpy loads slowly

    read = logreading.read_options(arguments)
    taken = logreading.selection(arguments, read)
    with logreading.progress() as watching:
        rows = logreading.batches(path, read, arguments, taken, watching(path))
        trace = Trace.of(list(rows))
    logreading.refuse_nothing([path], len(trace), taken)
    return trace


def seconds(text: str) -> float:
    """Read 90, 90s, 10m or 1h. Raises InputError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    factor = units.get(text[-1:].lower(), 0.0)
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InputError(f"--window {text}: must be seconds, or such as 10m or 1h")
    return value
