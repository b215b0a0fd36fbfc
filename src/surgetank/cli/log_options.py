"""Options of every command that reads a log: its format, columns and times, and what of it.

Rule: one help for one option, wherever it is asked for.
"""

from __future__ import annotations

from typing import Annotated

import typer

Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Format of the log, when not told right."),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OURS=THEIRS",
        help="The log's column (name, dotted path, or position from 1) that holds one of ours: "
        "arrived, prompt_tokens, output_tokens, duration, tenant, session ...",
    ),
]
TimeUnit = Annotated[
    str | None,
    typer.Option(metavar="UNIT", help="Unit of times in numbers: s, ms, us, ns."),
]
Timezone = Annotated[
    str, typer.Option(help="Zone of times without one: UTC, +08:00, Asia/Shanghai.")
]
Year = Annotated[int | None, typer.Option(help="Year of dates without one. Default: this year.")]
DayFirst = Annotated[
    bool | None,
    typer.Option("--day-first/--month-first", help="How 03/04/2026 is read, when in doubt."),
]
MaxBad = Annotated[
    str, typer.Option(metavar="SHARE", help="Share of unreadable rows above which it ends.")
]
Tenants = Annotated[
    list[str] | None,
    typer.Option("--tenant", metavar="NAME", help="Only this tenant; may be repeated."),
]
From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Only requests from here on.")
]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only requests before this.")]
