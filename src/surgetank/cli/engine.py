"""`surgetank engine`: run a simulated replica."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from math import isfinite
from typing import Annotated

import typer

from surgetank.engine import profile as profiles
from surgetank.errors import InputError
from surgetank.mockengine import faults
from surgetank.mockengine.server import MockSpec, run
from surgetank.mockengine.text import OutputSpec

app = typer.Typer(add_completion=False)


class Loading(StrEnum):
    """What the port does during a cold start."""

    REFUSE = "refuse"
    STATUS = "503"


class Shed(StrEnum):
    """How a stream that is one too many is refused."""

    STATUS = "status"
    EVENT = "event"


_OUTPUT = OutputSpec()
_PROFILE = "A built-in profile (`surgetank profiles` lists them), or a .toml or .yaml file's path."
_FAULT = "Misbehave: KIND[:KEY=VALUE,...], repeatable, applied in this order; kinds below."
_FAULTS = (
    'Faults, also while it runs: POST /mock/faults \'{"kind": "cut", "after": 5}\' (GET lists them,'
    " DELETE clears them). Each takes times=N, and strikes for ever without it."
)
_KINDS = [
    f"{kind}{f' ({names})' if names else ''}: {meaning}"
    for kind, (names, meaning) in faults.MEANINGS.items()
]


@app.command(epilog="\n\n".join([_FAULTS, *_KINDS]))
def engine(  # noqa: PLR0917 - Typer reads options from positional parameters
    profile: Annotated[str, typer.Option(help=_PROFILE)] = "tiny",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="Name served; the profile's without it.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of output lengths and words.")] = 0,
    speed: Annotated[
        float, typer.Option(help="Engine seconds per second: 10 is ten times as fast.")
    ] = 1.0,
    cold_start: Annotated[
        float | None, typer.Option(min=0, help="Loading, engine seconds. [default: none]")
    ] = None,
    loading: Annotated[
        Loading, typer.Option(help="While loading: refuse connections, or answer 503.")
    ] = Loading.REFUSE,
    max_queued: Annotated[
        int | None,
        typer.Option(min=1, help="Requests in flight, running or waiting, before it sheds."),
    ] = None,
    shed: Annotated[
        Shed, typer.Option(help="Shed streams with a 503, or with 200 and an error event.")
    ] = Shed.STATUS,
    keep_alive: Annotated[
        float, typer.Option(min=0, help="Seconds before an idle connection is closed.")
    ] = 5.0,
    output_median: Annotated[
        float, typer.Option(min=1, help="Median output tokens, where a request sets none.")
    ] = _OUTPUT.median,
    output_sigma: Annotated[
        float, typer.Option(min=0, help="Spread of the outputs' lognormal draw.")
    ] = _OUTPUT.sigma,
    prefix_cache: Annotated[  # noqa: FBT002 - Typer reads options from positional parameters
        bool, typer.Option(help="Compute a prompt from where an earlier one began alike.")
    ] = False,
    static_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Run whole batches of so many: what is in one starts and leaves together.",
            show_default=False,
        ),
    ] = None,
    fault: Annotated[list[str] | None, typer.Option(help=_FAULT)] = None,
) -> None:
    """Run a simulated replica: an OpenAI-compatible server with vLLM's metrics and timing.

    It batches as vLLM's scheduler does, on the step times of the profile, without a GPU or a model.
    When it serves, it prints one line: READY and its address. It ends on SIGTERM as vLLM does.
    """
    if not 0 < speed < float("inf"):
        raise InputError(f"--speed {speed}: must be > 0")
    finite = {
        "cold-start": cold_start or 0.0,
        "output-median": output_median,
        "output-sigma": output_sigma,
    }
    for option, value in finite.items():
        if not isfinite(value):
            raise InputError(f"--{option} {value}: must be finite")
    found = profiles.find(profile)
    if max_queued is not None:
        found = replace(found, max_queued=max_queued)
    spec = MockSpec(
        profile=found,
        model=model or found.name,
        host=host,
        port=port,
        seed=seed,
        speed=speed,
        cold_start=cold_start or 0.0,
        loading="503" if loading is Loading.STATUS else "refuse",
        keep_alive=keep_alive,
        shed="event" if shed is Shed.EVENT else "status",
        prefix_cache=prefix_cache,
        static_batch=static_batch,
        output=OutputSpec(median=output_median, sigma=output_sigma),
        faults=tuple(faults.parse(text) for text in fault or ()),
    )
    run(spec, lambda address: print(f"READY {address}", flush=True))
