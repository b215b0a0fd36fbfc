"""Logs named on a command line: their options, what is taken of them, and what makes them unfit.

Rule: a figure of a log that could hardly be read is worse than none: too many bad rows end the
command before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from surgetank.errors import InputError

if TYPE_CHECKING:  # numpy loads slowly, and --help does not need it
    from surgetank.traffic.burstiness import Accumulator
    from surgetank.traffic.formats.reading import ReadOptions, TimeUnit
    from surgetank.traffic.selection import Selection
    from surgetank.traffic.trace import Batch, Source

Watch = Callable[[float | None, int], None]
"""Hears the part of a log that was read (None: not known) and the rows so far."""


@dataclass(frozen=True, slots=True)
class LogArguments:
    """What a command line says of the logs it names."""

    format: str | None = None
    columns: Sequence[str] = ()  # OURS=THEIRS
    time_unit: str | None = None
    timezone: str = "UTC"
    year: int | None = None  # of stamps without one
    day_first: bool | None = None
    estimate_tokens: bool = False
    tenants: Sequence[str] = ()
    start: str | None = None
    end: str | None = None
    max_bad: str = "1%"


def read_options(arguments: LogArguments) -> ReadOptions:
    """Turn them into what a reader takes. Raises InputError that names the option."""
    from surgetank.traffic.formats import dateforms  # noqa: PLC0415 - see above
    from surgetank.traffic.formats.reading import ReadOptions  # noqa: PLC0415

    try:
        zone = dateforms.zone(arguments.timezone)
    except InputError as error:
        raise InputError(f"--timezone: {error}") from error
    return ReadOptions(
        columns=_columns(arguments.columns),
        time_unit=_unit(arguments.time_unit),
        timezone=zone,
        year=arguments.year,
        day_first=arguments.day_first,
        estimate_tokens=arguments.estimate_tokens,
    )


def selection(arguments: LogArguments, options: ReadOptions) -> Selection:
    """Turn --tenant, --from and --to into a selection. Raises InputError."""
    from surgetank.traffic.selection import Selection  # noqa: PLC0415

    start = _moment("--from", arguments.start, options)
    end = _moment("--to", arguments.end, options)
    if start is not None and end is not None and end <= start:
        raise InputError(f"--to {arguments.end}: must be later than --from {arguments.start}")
    return Selection(tenants=frozenset(arguments.tenants), start=start, end=end)


def share(text: str) -> float:
    """Read a share such as "1%" or "0.01". Raises InputError."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(f"--max-bad {text}: must be a share of the rows such as 1% or 0.01")
    return value


def batches(
    path: str,
    options: ReadOptions,
    arguments: LogArguments,
    taken: Selection,
    watch: Watch,
) -> Generator[Batch, None, Source]:
    """Give the rows of one log that belong to the selection, and return its Source.

    Raises InputError for a log that cannot be read, or with too many bad rows.
    """
    from surgetank.adapters.logs import open_log  # noqa: PLC0415

    with open_log(path, options, format=arguments.format) as log:
        rows = 0
        for batch in log:
            rows += len(batch)
            watch(log.progress, rows)
            kept = taken.take(batch)
            if len(kept):
                yield kept
        source = log.source
    refuse_bad(path, source, arguments.max_bad)
    return replace(source, path=path)


def accumulated(
    path: str, options: ReadOptions, arguments: LogArguments, into: Accumulator, watch: Watch
) -> Source:
    """Add all rows of one log by the cheapest way, and give its Source. Raises as `batches`."""
    from surgetank.adapters.accumulate import accumulate  # noqa: PLC0415
    from surgetank.adapters.logs import open_log  # noqa: PLC0415

    with open_log(path, options, format=arguments.format) as log:
        source = accumulate(log, into, lambda part: watch(part, into.requests))
    refuse_bad(path, source, arguments.max_bad)
    return replace(source, path=path)


def refuse_bad(path: str, source: Source, max_bad: str) -> None:
    """End the command when more rows than that share could not be read. Raises InputError."""
    rows = source.rows + source.skipped
    if not source.skipped or source.skipped <= share(max_bad) * rows:
        return
    first = (
        f"; the first is line {source.bad[0].line}: {source.bad[0].reason}" if source.bad else ""
    )
    raise InputError(
        f"{path}: {source.skipped:,} of {rows:,} rows cannot be read as {source.format}, more than "
        f"--max-bad {max_bad}{first}"
    )


def refuse_nothing(paths: Sequence[str], rows: int, taken: Selection) -> None:
    """End the command, with what there is instead, when no request is left."""
    from surgetank.report import numbers  # noqa: PLC0415

    if rows:
        return
    named = ", ".join(paths)
    if taken.is_all or not taken.seen:
        raise InputError(f"{named}: holds no request")
    missing = sorted(taken.tenants - taken.names)
    if missing:
        known = ", ".join(sorted(taken.names)[:8]) or "none: it names no tenants"
        raise InputError(f"--tenant {missing[0]}: is not in {named}; there is {known}")
    covered = f"{numbers.moment(taken.first)} to {numbers.moment(taken.last)}"
    raise InputError(f"--from, --to: no request of {named} is in that time; it has {covered}")


def joined(sources: Sequence[Source]) -> Source:
    """Tell several logs as one."""
    if len(sources) == 1:
        return sources[0]
    ignored: dict[str, int] = {}
    for source in sources:
        for why, n in source.ignored.items():
            ignored[why] = ignored.get(why, 0) + n
    notes = [f"{s.path}: {note}" for s in sources for note in s.notes]
    bad = [replace(b, reason=f"{b.reason} ({s.path})") for s in sources for b in s.bad]
    ways = list(dict.fromkeys(s.arrival_from for s in sources))
    _refuse_two_clocks(sources)
    if len(ways) > 1:
        notes += [f"{s.path}: arrivals are from its {s.arrival_from}" for s in sources]
    return replace(
        sources[0],
        path=", ".join(s.path for s in sources),
        format=", ".join(dict.fromkeys(s.format for s in sources)),
        rows=sum(s.rows for s in sources),
        skipped=sum(s.skipped for s in sources),
        bad=tuple(bad[:5]),
        ignored=ignored,
        arrival_from=ways[0] if len(ways) == 1 else "mixed",
        notes=tuple(dict.fromkeys(notes)),
    )


def _refuse_two_clocks(sources: Sequence[Source]) -> None:
    """End the command when one log's zero is 1970 and another's its own start."""
    own = [s.path for s in sources if s.arrival_from == "relative start"]
    dated = [s.path for s in sources if s.arrival_from != "relative start"]
    if own and dated:
        raise InputError(
            f"{own[0]}: counts its times from its own start, and {dated[0]} has dates: "
            "they cannot be told as one"
        )


@contextmanager
def progress() -> Iterator[Callable[[str], Watch]]:
    """Show on a terminal's standard error how far each log is; elsewhere nothing."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    from surgetank.report.terminal import fitted  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(),
    )
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bars:

        def of(path: str) -> Watch:
            task = bars.add_task(f"reading {fitted(path, 40)}", total=None, rows=0)

            def watch(part: float | None, rows: int) -> None:
                if part is None:
                    bars.update(task, rows=rows)
                else:
                    bars.update(task, total=1.0, completed=part, rows=rows)

            return watch

        yield of


def _unit(text: str | None) -> TimeUnit | None:
    from surgetank.traffic.formats.reading import UNITS  # noqa: PLC0415 - see above

    for unit in UNITS:
        if text == unit:
            return unit
    if text is None:
        return None
    raise InputError(f"--time-unit {text}: must be one of {', '.join(UNITS)}")


def _columns(given: Sequence[str]) -> dict[str, str]:
    columns = {}
    for pair in given:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise InputError(f"--column {pair!r}: must be OURS=THEIRS, such as tenant=team_id")
        columns[ours] = theirs
    return columns


def _moment(option: str, text: str | None, options: ReadOptions) -> float | None:
    """Read a date, Unix seconds, or seconds from the log's origin."""
    from surgetank.traffic.formats.stamps import Stamps  # noqa: PLC0415

    if text is None:
        return None
    try:
        found = float(Stamps(replace(options, time_unit=None)).read([text])[0])
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    if found != found:  # noqa: PLR0124 - NaN: no time
        raise InputError(
            f"{option} {text!r}: must be a time such as 2026-11-30T10:00:00, or the log's seconds"
        )
    return found
