"""`surgetank plan`: from a log to base, elastic and standby replicas, limits and their reasons."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surgetank.cli import log_options, logreading
from surgetank.cli.logreading import LogArguments
from surgetank.cli.outputs import refuse_output
from surgetank.errors import InputError

if TYPE_CHECKING:  # numpy loads slowly, and --help does not need it
    from surgetank.engine.coldstart import ColdStart
    from surgetank.engine.profile import EngineProfile
    from surgetank.policy.calendar import CalendarEvent
    from surgetank.studies.planning.wish import Wish
    from surgetank.traffic.trace import Trace

app = typer.Typer()
_DAY = 86_400.0

_EXAMPLE = (
    "surgetank plan access.log --engine h100-llama-3.1-8b-bf16-tp1 --ttft 0.8 --tpot 0.05"
    " --attainment 0.95 --write surgetank.yaml"
)


@app.command(epilog=_EXAMPLE)
def plan(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...",
            help='Logs of one service, told as one; "-" is standard input. Compressed ones too.',
            show_default=False,
        ),
    ],
    *,
    engine: Annotated[str, typer.Option(help="Engine profile, or a .toml file of one.")],
    ttft: Annotated[float, typer.Option(metavar="SECONDS", help="Objective: first token.")] = 1.0,
    tpot: Annotated[
        float, typer.Option(metavar="SECONDS", help="Objective: seconds a token after it.")
    ] = 0.1,
    attainment: Annotated[
        float, typer.Option(help="Part of the requests within both, 0 to 1.")
    ] = 0.95,
    cold_start: Annotated[
        str,
        typer.Option(
            metavar="SECONDS|STAGES",
            help='Mean seconds of a start, or NAME=SECONDS,...; "stages": the profile\'s.',
        ),
    ] = "stages",
    wake: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Standby to serving. [default: the profile's]"),
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="Of one replica for an hour, in any currency.")
    ] = None,
    standby_cost: Annotated[
        float, typer.Option(help="Of a standby, as part of a replica's.")
    ] = 1.0,
    calendar: Annotated[
        Path | None,
        typer.Option(help="A surgetank.yaml whose autoscaler.calendar says what is expected."),
    ] = None,
    max_replicas: Annotated[int, typer.Option(min=1, max=1000, help="All that may exist.")] = 64,
    prompt: Annotated[
        str, typer.Option(help="Prompt tokens of rows that state none: N, lognormal:500,0.8,8000.")
    ] = "lognormal:500,0.8,8000",
    output: Annotated[
        str, typer.Option(help="Output tokens of rows that state none, in the same forms.")
    ] = "lognormal:200,0.7,4000",
    hold_out: Annotated[
        bool,
        typer.Option("--hold-out", help="Plan from the first half, and try it on the second."),
    ] = False,
    requests: Annotated[
        int,
        typer.Option(min=100, help="Most requests of one trial: of more, windows are simulated."),
    ] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="Of starts and assumed tokens.")] = 0,
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
        Path | None, typer.Option(metavar="FILE", help="Write a page.", show_default=False)
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a surgetank.yaml for serve.", show_default=False),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="What starts a replica, in that file, with {port}. [default: a simulated one]"
        ),
    ] = None,
) -> None:
    """Plan a fleet from a log: base, elastic and standby replicas, and the gateway's limits.

    The attainment printed is that of the plan's simulation, and with one replica less in any pool
    it is missed. Exits 1 when no fleet attains what was asked.
    """
    for option, file in (("--html", html), ("--write", write)):
        if file is not None:
            refuse_output(option, file, [*logs, *([calendar] if calendar else [])])
    if html is not None and write is not None and html.resolve() == write.resolve():
        raise InputError(f"--html and --write {write}: name two files")
    if command is not None and "{port}" not in command:
        raise InputError(f"--command {command}: must have {{port}} where the port goes")
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
    from surgetank.engine import profile as profiles  # noqa: PLC0415
    from surgetank.studies.planning.wish import Wish  # noqa: PLC0415

    profile = profiles.find(engine)
    wish = Wish(
        profile=profile,
        ttft=ttft,
        tpot=tpot,
        attainment=attainment,
        start=_start(profile, cold_start, wake),
        standby_cost=standby_cost,
        price=price,
        max_replicas=max_replicas,
        calendar=_events(calendar),
        requests=requests,
        seed=seed,
    )
    _plan(
        _read(logs, arguments),
        wish,
        prompt=prompt,
        output=output,
        hold_out=hold_out,
        as_json=as_json,
        html=html,
        write=write,
        command=command,
        engine=engine,
    )


def _plan(
    trace: Trace,
    wish: Wish,
    *,
    prompt: str,
    output: str,
    hold_out: bool,
    as_json: bool,
    html: Path | None,
    write: Path | None,
    command: str | None,
    engine: str,
) -> None:
    from surgetank.cli import plan_output  # noqa: PLC0415
    from surgetank.config.text import is_name  # noqa: PLC0415
    from surgetank.engine.replica import prepare  # noqa: PLC0415
    from surgetank.report import numbers  # noqa: PLC0415
    from surgetank.report.files import write_whole  # noqa: PLC0415
    from surgetank.studies.planning.configuration import configuration  # noqa: PLC0415
    from surgetank.studies.planning.plan import held_out, make_plan  # noqa: PLC0415
    from surgetank.traffic.tokencounts import parse_lengths  # noqa: PLC0415

    lengths = parse_lengths(prompt, "--prompt"), parse_lengths(output, "--output")
    second = None
    with plan_output.Watch(wish.trials) as watch:
        prepare(watch.say)
        if hold_out:
            made, second = held_out(
                trace, wish, prompt=lengths[0], output=lengths[1], progress=watch.told
            )
        else:
            made = make_plan(trace, wish, prompt=lengths[0], output=lengths[1], progress=watch.told)
    rows = numbers.plural(len(trace), "request")
    about = f"{trace.source.path}: {rows}, {trace.source.format}"
    if write is not None:
        by = f"Made by surgetank plan from {rows}, for {wish.profile.name}."
        starts = command or _simulated(engine, made.model)
        write_whole(write, configuration(made, wish, command=starts, made_by=by, is_name=is_name))
        others = sum(not is_name(limit.name) for limit in made.thresholds.tenants)
        if others:
            print(
                f"{write}: {others} tenants' names are none of the gateway's: "
                "their quotas are comments there",
                file=sys.stderr,
            )
    if html is not None:
        write_whole(html, plan_output.html_page(made, wish, second, about))
    if as_json:
        found = made.to_json()
        if second is not None:
            found["second_half"] = {"attainment": second.attainment, "requests": second.requests}
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        plan_output.show(made, wish, second, about, written=[f for f in (html, write) if f])
    if made.cannot is not None:
        sys.stdout.flush()
        raise typer.Exit(1)


def _simulated(engine: str, model: str) -> str:
    """What starts a simulated replica of this engine."""
    words = ("surgetank", "engine", "--profile", engine, "--model", model)
    return f"{shlex.join(words)} --port {{port}}"


def _read(logs: Sequence[str], arguments: LogArguments) -> Trace:
    from surgetank.traffic.trace import Trace  # noqa: PLC0415

    if logs.count("-") > 1:
        raise InputError('"-": standard input can be read once only')
    options = logreading.read_options(arguments)
    taken = logreading.selection(arguments, options)
    kept, sources = [], []
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
    return Trace.of(kept, logreading.joined(sources))


def _start(profile: EngineProfile, text: str, wake: float | None) -> ColdStart:
    """Read --cold-start and --wake. Raises InputError."""
    from dataclasses import replace  # noqa: PLC0415

    from surgetank.engine import coldstart  # noqa: PLC0415
    from surgetank.engine.profile import Stage  # noqa: PLC0415

    start = coldstart.of_profile(profile)
    if text != "stages":
        names = [part.partition("=") for part in text.split(",")]
        try:
            if len(names) == 1 and not names[0][1]:
                found = coldstart.whole(_positive(text))
            else:
                found = coldstart.ColdStart(
                    tuple(Stage(_word(name), _positive(value), 0.2) for name, _, value in names)
                )
        except ValueError:
            raise InputError(
                f"--cold-start {text}: must be seconds, as 60, or stages, as image=20,weights=40"
            ) from None
        start = replace(found, wake_s=profile.wake_s)
    if wake is None:
        return start
    if not 0 <= wake < _DAY:
        raise InputError(f"--wake {wake:g}: must be seconds, 0 or more and less than a day")
    return replace(start, wake_s=wake)


def _word(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def _positive(text: str) -> float:
    value = float(text)
    if not 0 <= value < _DAY:
        raise ValueError(text)
    return value


def _events(file: Path | None) -> tuple[CalendarEvent, ...]:
    if file is None:
        return ()
    from surgetank.config import load  # noqa: PLC0415

    events = load(file).autoscaler.calendar
    if not events:
        raise InputError(f"--calendar {file}: has no events below autoscaler.calendar")
    return events
