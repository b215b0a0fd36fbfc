"""Options that `load` and `replay` have in common: the target, its clients, and what is written."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Retries(StrEnum):
    """How clients try again."""

    NONE = "none"
    SDK = "sdk"
    NAIVE = "naive"
    POLITE = "polite"


class CountBy(StrEnum):
    """Where the number of tokens of a word is from."""

    USAGE = "usage"
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"


class Format(StrEnum):
    """Another tool's format of a schedule."""

    AIPERF = "aiperf"
    MOONCAKE = "mooncake"
    GUIDELLM = "guidellm"


_TARGET = "Target"
_CLIENTS = "Clients"
_PROMPTS = "Prompts"
_MEASURE = "Measuring"
_OUTPUT = "Output"

Url = Annotated[
    str | None, typer.Argument(metavar="URL", help="http(s)://HOST[:PORT], of an OpenAI API.")
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Model to ask for.", rich_help_panel=_TARGET, show_default="the only one served"
    ),
]
Completions = Annotated[
    bool,
    typer.Option("--completions", help="Use /v1/completions, not chat.", rich_help_panel=_TARGET),
]
KeyEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Environment variable with the API key.", rich_help_panel=_TARGET
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Lines of TENANT=KEY: each tenant its own.", rich_help_panel=_TARGET
    ),
]
CaFile = Annotated[
    Path | None, typer.Option("--ca-file", help="Trust these authorities.", rich_help_panel=_TARGET)
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Trust any certificate.", rich_help_panel=_TARGET),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", help="The target may be a public address.", rich_help_panel=_TARGET),
]
RetriesOption = Annotated[
    Retries,
    typer.Option(
        "--retries",
        help="none; sdk: as openai-python; naive: 1, 2, 4, 8 s for all alike; polite: with jitter.",
        rich_help_panel=_CLIENTS,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(min=0.001, help="Seconds until an attempt is given up.", rich_help_panel=_CLIENTS),
]
Abandon = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Seconds until the user leaves, retries included.",
        show_default="never",
        rich_help_panel=_CLIENTS,
    ),
]
Bodies = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Your own request bodies, JSON lines, in turn; instead of made-up text.",
        rich_help_panel=_PROMPTS,
    ),
]
CountByOption = Annotated[
    CountBy,
    typer.Option(
        "--count-by",
        help="How words are made to tokens: by the usage of two short requests, the target's own"
        " tokenizer route, or one token a word.",
        rich_help_panel=_PROMPTS,
    ),
]
IgnoreEos = Annotated[
    bool | None,
    typer.Option(
        "--ignore-eos/--no-ignore-eos",
        help="Ask for outputs of the full length.",
        rich_help_panel=_PROMPTS,
        show_default="if the target takes it",
    ),
]
MaxPrompt = Annotated[
    int | None,
    typer.Option(min=1, help="Bound every prompt, tokens.", rich_help_panel=_PROMPTS),
]
MaxOutput = Annotated[
    int | None,
    typer.Option(min=1, help="Bound every output, tokens.", rich_help_panel=_PROMPTS),
]
Seed = Annotated[
    int, typer.Option(min=0, help="Of arrivals, sizes and words.", rich_help_panel=_PROMPTS)
]
Ttft = Annotated[
    float,
    typer.Option(
        min=0.001, help="Objective: seconds to the first token.", rich_help_panel=_MEASURE
    ),
]
Tpot = Annotated[
    float | None,
    typer.Option(min=0.0001, help="Objective: seconds a token after it.", rich_help_panel=_MEASURE),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Metrics to scrape meanwhile: engines, a gateway, DCGM or nvidia-smi exporters;"
        " repeatable.",
        show_default="URL/metrics, if it is there",
        rich_help_panel=_MEASURE,
    ),
]
MaxLag = Annotated[
    float,
    typer.Option(
        min=0.01,
        help="Milliseconds of P99 send lag beyond which the run is INVALID.",
        rich_help_panel=_MEASURE,
    ),
]
ProcessesOption = Annotated[
    str,
    typer.Option("--processes", help="Of the sender: N or auto.", rich_help_panel=_MEASURE),
]
MaxRequests = Annotated[
    int,
    typer.Option(
        min=1, help="Refuse a schedule of more requests than this.", rich_help_panel=_MEASURE
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the report as JSON.", rich_help_panel=_OUTPUT)
]
Html = Annotated[
    Path | None, typer.Option(help="Write the report as a page.", rich_help_panel=_OUTPUT)
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write the run, for `surgetank compare`.", rich_help_panel=_OUTPUT
    ),
]
Records = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a record of each request, JSON lines.", rich_help_panel=_OUTPUT
    ),
]
Export = Annotated[
    tuple[Format, Path] | None,
    typer.Option(
        metavar="FORMAT FILE",
        help="Write the schedule for another tool (aiperf, mooncake, guidellm); send nothing.",
        rich_help_panel=_OUTPUT,
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Say what would be sent; send nothing.", rich_help_panel=_OUTPUT
    ),
]
