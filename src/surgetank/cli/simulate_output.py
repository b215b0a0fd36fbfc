"""What `surgetank simulate` shows: policies as columns, tenants below, and progress meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from surgetank.adapters.records import record_line
from surgetank.adapters.wholefile import whole_file
from surgetank.report import numbers, terminal
from surgetank.report.files import write_whole
from surgetank.report.page import html
from surgetank.simulation.picture import FIGURES, page
from surgetank.simulation.reference import Known, Reference
from surgetank.simulation.result import Result
from surgetank.simulation.summary import Share, Summary
from surgetank.simulation.sweep import Progress


class Watch:
    """Progress on stderr, on a terminal only."""

    def __init__(self, runs: int) -> None:
        self._progress = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._progress.add_task("", total=float(runs))
        self._done = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def run(self, name: str) -> Callable[[int, int, float], None]:
        """Begin to watch one run."""
        before = self._done
        self._done += 1

        def told(ended: int, requests: int, now: float) -> None:
            self._progress.update(
                self._task,
                completed=before + ended / max(1, requests),
                description=f"{name}: {ended:,} of {requests:,} requests, t = {now:,.0f} s",
            )

        return told

    def bound(self) -> None:
        """The last one is done, and the bound is being worked out."""
        self._progress.update(
            self._task, completed=float(self._done), description="the bound (some ten runs)"
        )

    def say(self, text: str) -> None:
        """Tell why it takes a moment."""
        print(text, file=sys.stderr)

    def cases(self, done: Progress) -> None:
        """Follow a sweep."""
        self._progress.update(
            self._task, completed=done.done, description=f"{done.done} of {done.cases} cases"
        )


def show(summaries: Sequence[Summary]) -> None:
    """Print the comparison: policies are columns."""
    console = terminal.console()
    titles = [_title(summary, summaries) for summary in summaries]
    rows = [(name, *[text(summary) for summary in summaries]) for name, text in FIGURES]
    console.print(terminal.table(("", *titles), rows))
    for what, shares in (
        ("tenant", [summary.per_tenant for summary in summaries]),
        ("phase", [summary.per_phase for summary in summaries]),
    ):
        if len(shares[0]) > 1:
            _show_shares(console, what, titles, shares)
    for note in dict.fromkeys(note for summary in summaries for note in summary.notes):
        console.print(f"note: {note}")


def show_bound(known: Reference) -> None:
    """Print what it could cost at the least."""
    share = numbers.percent(known.target)

    def hours(run: Known | None) -> str:
        if run is None:
            return "no number or schedule that was tried keeps it"
        fixed = "" if run.replicas is None else f" ({numbers.plural(run.replicas, 'replica')})"
        kept = numbers.percent(run.attainment)
        return f"{numbers.number(run.replica_hours)}{fixed}, keeps {kept}"

    least = known.bound
    rows = [
        ("clairvoyant bound", "no fleet is enough" if least is None else numbers.number(least)),
        ("schedule that knew", hours(known.feasible)),
        ("best fixed number", hours(known.static)),
    ]
    console = terminal.console()
    console.print(f"\nreplica-hours for {share} within objectives, for whoever knows the future")
    console.print(terminal.table(("", "replica-hours"), rows, words=(0, 1)))
    console.print(
        f"{numbers.percent(known.unavoidable)} of the requests come in bursts before any start "
        "that these cause can be ready: standbys are what meets them."
    )


def _title(summary: Summary, summaries: Sequence[Summary]) -> str:
    seeds = {other.seed for other in summaries}
    return f"{summary.policy} #{summary.seed}" if len(seeds) > 1 else summary.policy


def _show_shares(
    console: Console, what: str, titles: Sequence[str], shares: Sequence[Sequence[Share]]
) -> None:
    rows = []
    for same in list(zip(*shares, strict=True))[:_MOST_SHARES]:
        cells = [f"{numbers.percent(s.attainment)}, {numbers.seconds(s.ttft.p95)}" for s in same]
        rows.append((same[0].tenant or same[0].phase, numbers.count(same[0].requests), *cells))
    console.print(f"\nwithin objectives, TTFT P95 by {what}")
    console.print(terminal.table((what, "requests", *titles), rows))
    left = len(shares[0]) - _MOST_SHARES
    if left > 0:
        console.print(f"and {numbers.plural(left, what)} more: --json has all")


_MOST_SHARES: Final = 10


def show_sweep(done: Progress, out: Path, *, as_json: bool) -> None:
    """Say what a sweep left."""
    if as_json:
        failed = [{"case": json.loads(key), "error": why} for key, why in done.failed]
        print(json.dumps({"cases": done.cases, "done": done.done, "failed": failed}))
        return
    print(f"{done.done} of {done.cases} cases in {out}")
    for key, why in done.failed[:5]:
        print(f"  {key}: {why}")


def write_records(result: Result, path: Path) -> None:
    """Write records, and the fleet samples among them, in order of time; mode 0600."""
    lines = [(record.arrived, record_line(record)) for record in result.records()]
    lines += [(sample.t, sample.to_line()) for sample in result.samples]
    lines.sort(key=lambda entry: entry[0])
    with whole_file(path) as file:
        for _, line in lines:
            file.write(line.encode() + b"\n")


def write_page(results: Sequence[Result], summaries: Sequence[Summary], path: Path) -> None:
    """Write the comparison as one HTML file."""
    load = results[0].scenario.workload
    pools = results[0].scenario.pools
    about = (
        f"{numbers.plural(len(load), 'request')} over {numbers.seconds(load.span)}, "
        f"{', '.join(dict.fromkeys(pool.profile.name for pool in pools))}"
    )
    write_whole(path, html(page(results, summaries, about=about)))
