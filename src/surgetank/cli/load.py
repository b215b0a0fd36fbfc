"""`surgetank load`: bursts on a real endpoint, open loop."""

# ruff: noqa: ARG001 - Typer reads the signature; the values come through its context

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from surgetank.cli import load_options as options
from surgetank.errors import InputError

if TYPE_CHECKING:  # numpy loads slowly, and --help does not need it
    from surgetank.loadtest.schedule import Schedule
    from surgetank.loadtest.tenants import TenantLoad

app = typer.Typer(add_completion=False)

_LOAD: Final = "Load"
_TENANTS: Final = "Tenants and sessions"
_EXAMPLES: Final = (
    "surgetank load http://localhost:8000 --base 2 --peak 12 --width 20 --period 60\n\n"
    "surgetank load http://gateway:8080 --mix tenants.yaml --keys keys.env --out before.json\n\n"
    "surgetank load --from-log access.log --duration 900 --export mooncake trace.jsonl"
)
_DURATION: Final = 600.0
_SHAPE: Final = (
    "base", "peak", "width", "period", "duration", "start", "even", "rate", "ramp", "decay",
    "mean", "idc", "time_scale", "busy",
)  # fmt: skip


def _of_load(metavar: str, text: str, default: str | bool = False) -> Any:  # noqa: FBT001, FBT002
    return typer.Option(metavar=metavar, help=text, rich_help_panel=_LOAD, show_default=default)


@app.command(epilog=_EXAMPLES)
def load(
    ctx: typer.Context,
    *,
    url: options.Url = None,
    shape: Annotated[
        str,
        typer.Option(
            help="pulse, steady, ramp, step, flash, gamma or mmpp.", rich_help_panel=_LOAD
        ),
    ] = "pulse",
    base: Annotated[float | None, _of_load("R/S", "Calm rate, requests/s.", "20")] = None,
    peak: Annotated[float | None, _of_load("R/S", "Rate of the burst.", "80")] = None,
    width: Annotated[
        float | None, _of_load("S", "Seconds of each pulse, or at the peak.", "30")
    ] = None,
    period: Annotated[float | None, _of_load("S", "Seconds from pulse to pulse.", "90")] = None,
    duration: Annotated[float | None, _of_load("S", "Seconds of the run.", "600")] = None,
    pulse: Annotated[
        str | None,
        _of_load("B:P:W:P[:D]", "base:peak:width:period[:duration] in one word."),
    ] = None,
    start: Annotated[
        float | None,
        _of_load("S", "When the first pulse, step or crowd comes.", "mid-period; 60"),
    ] = None,
    even: Annotated[
        bool | None,
        typer.Option(
            "--even", help="Even spacing within pulses.", rich_help_panel=_LOAD, show_default=False
        ),
    ] = None,
    rate: Annotated[float | None, _of_load("R/S", "steady: requests/s.", "20")] = None,
    ramp: Annotated[float | None, _of_load("S", "flash: seconds of the climb.", "5")] = None,
    decay: Annotated[
        float | None, _of_load("S", "flash: falls by 1/e in so many seconds.", "30")
    ] = None,
    mean: Annotated[float | None, _of_load("R/S", "gamma, mmpp: mean requests/s.", "40")] = None,
    idc: Annotated[
        float | None,
        _of_load("N", "gamma, mmpp: index of dispersion, long windows.", "20; 200"),
    ] = None,
    time_scale: Annotated[
        float | None, _of_load("S", "mmpp: how long its rate stays alike.", "10")
    ] = None,
    busy: Annotated[
        float | None, _of_load("0..1", "mmpp: part of the time that is busy.", "0.25")
    ] = None,
    mix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML of tenants, each with a shape, sizes, sessions.",
            rich_help_panel=_TENANTS,
        ),
    ] = None,
    from_log: Annotated[
        str | None,
        typer.Option(
            metavar="LOG",
            help="Play back the pulse that `analyze` fits to each tenant of a log.",
            rich_help_panel=_TENANTS,
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option("--format", help="Format of that log.", rich_help_panel=_TENANTS),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OURS=THEIRS", help="As for `analyze`; repeatable.", rich_help_panel=_TENANTS
        ),
    ] = None,
    scale: Annotated[
        float,
        typer.Option(min=0.000001, help="Multiply the log's rates.", rich_help_panel=_TENANTS),
    ] = 1.0,
    tenant: Annotated[
        str, typer.Option(help="Name of the only tenant.", rich_help_panel=_TENANTS)
    ] = "default",
    turns: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Agent sessions of so many turns (mean): rates are of sessions then.",
            rich_help_panel=_TENANTS,
        ),
    ] = None,
    think: Annotated[
        float,
        typer.Option(min=0, help="Seconds from turn to turn (mean).", rich_help_panel=_TENANTS),
    ] = 5.0,
    fan_out: Annotated[
        int, typer.Option(min=1, help="Calls of a turn at once.", rich_help_panel=_TENANTS)
    ] = 1,
    prompt: Annotated[
        str,
        typer.Option(
            help="Prompt tokens: N, uniform:LOW,HIGH, exponential:MEAN, lognormal:MEDIAN,SIGMA"
            "[,MOST]; of a turn, the new ones.",
            rich_help_panel="Prompts",
        ),
    ] = "lognormal:500,0.8,8000",
    output: Annotated[
        str, typer.Option(help="Output tokens, in the same forms.", rich_help_panel="Prompts")
    ] = "lognormal:200,0.7,4000",
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS[:COUNT]",
            help="Begin each prompt with one of COUNT shared texts.",
            rich_help_panel="Prompts",
        ),
    ] = None,
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
    """Send bursts to an endpoint, each request at its own time, and report what they met.

    It first sends two short requests, which tell what is wrong if something is. Latency counts from
    when a request was due; refusals and time-outs count as misses. Exit 1: the sender itself was
    too late to judge (INVALID). Ctrl-C, or SIGTERM: it reports what was done and exits 130.
    """
    from surgetank.cli.load_run import Asked, carry_out  # noqa: PLC0415 - numpy loads slowly

    carry_out(Asked.of(ctx.params), _schedule(ctx.params))


def _schedule(params: Mapping[str, Any]) -> Schedule:
    """Draw what the options say. Raises InputError that names the option."""
    from surgetank.loadtest.tenants import LONGEST, draw  # noqa: PLC0415 - numpy loads slowly

    if params["mix"] is not None and params["from_log"] is not None:
        raise InputError("--mix and --from-log: one of them")
    given = {name: params[name] for name in _SHAPE if params[name] is not None}
    other = params["mix"] or params["from_log"]
    if other is not None and (wrong := [name for name in given if name != "duration"]):
        raise InputError(f"--{_dashed(wrong[0])}: {other} says what is sent")
    seed = params["seed"]
    if params["mix"] is not None:
        tenants, seed = _mixed(params)
    elif params["from_log"] is not None:
        tenants = _fitted(params)
    else:
        tenants = [_alone(params, given)]
    return draw(
        tenants,
        seed=seed,
        longest=params["max_prompt"] or LONGEST,
        most=params["max_requests"],
    )


def _mixed(params: Mapping[str, Any]) -> tuple[Sequence[TenantLoad], int]:
    from surgetank.loadtest.mixfile import read_mix  # noqa: PLC0415 - numpy loads slowly

    mix = read_mix(params["mix"], _sizes(params), duration=params["duration"])
    return mix.tenants, params["seed"] or mix.seed or 0


def _fitted(params: Mapping[str, Any]) -> Sequence[TenantLoad]:
    from surgetank.cli.logreading import LogArguments  # noqa: PLC0415 - numpy loads slowly
    from surgetank.cli.replay import read_trace  # noqa: PLC0415
    from surgetank.loadtest.fromlog import tenants_of  # noqa: PLC0415
    from surgetank.traffic.tokencounts import parse_lengths  # noqa: PLC0415

    path = params["from_log"]
    arguments = LogArguments(format=params["log_format"], columns=tuple(params["column"] or ()))
    trace = read_trace(path, arguments)
    return tenants_of(
        trace,
        name=Path(path).name,
        duration=params["duration"] or _DURATION,
        scale=params["scale"],
        prompt=parse_lengths(params["prompt"], "--prompt"),
        output=parse_lengths(params["output"], "--output"),
    )


def _alone(params: Mapping[str, Any], given: dict[str, Any]) -> TenantLoad:
    from surgetank.loadtest.mixfile import parse_prefix  # noqa: PLC0415 - numpy loads slowly
    from surgetank.loadtest.sessions import SessionSpec  # noqa: PLC0415
    from surgetank.loadtest.shapes import make_shape  # noqa: PLC0415
    from surgetank.loadtest.tenants import TenantLoad  # noqa: PLC0415
    from surgetank.traffic.pulse import parse_pulse  # noqa: PLC0415
    from surgetank.traffic.tokencounts import parse_lengths  # noqa: PLC0415

    if params["pulse"] is not None:
        pulse = parse_pulse(params["pulse"], duration=given.pop("duration", None) or _DURATION)
        if doubled := [name for name in ("base", "peak", "width", "period") if name in given]:
            raise InputError(f"--{doubled[0]}: --pulse says it already")
        given |= {f.name: getattr(pulse, f.name) for f in fields(pulse)}
    try:
        shape = make_shape(params["shape"], given)
    except InputError as error:
        raise InputError(f"--{_dashed(str(error))}") from None
    sizes = _sizes(params)
    sessions = None
    if params["turns"] is not None:
        sessions = SessionSpec(params["turns"], params["think"], params["fan_out"])
    return TenantLoad(
        params["tenant"],
        shape,
        parse_lengths(params["prompt"], "--prompt"),
        parse_lengths(params["output"], "--output"),
        prefix=parse_prefix(params["prefix"]),
        sessions=sessions,
        said={name: sizes[name] for name in ("prompt", "output")},
    )


def _sizes(params: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for each tenant that does not say otherwise."""
    sizes = {name: params[name] for name in ("prompt", "output", "prefix")}
    if params["turns"] is not None:
        sizes |= {name: params[name] for name in ("turns", "think", "fan_out")}
    return sizes


def _dashed(text: str) -> str:
    """Write the name that a text begins with as an option."""
    name = text[: next((i for i, c in enumerate(text) if not (c.isalnum() or c == "_")), None)]
    return name.replace("_", "-") + text[len(name) :]
