"""How the demo's second act is watched and told: a live line, tables, a verdict."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from surgetank.loadtest.summary import Percentiles, summarize
from surgetank.policy.record import FleetSample
from surgetank.studies.fleet_demo.act import (
    LAG_LIMIT,
    SIDES,
    FleetAct,
    Name,
    base_completed,
    least_share,
    verdict,
)
from surgetank.studies.fleet_demo.measure import attainment
from surgetank.studies.fleet_demo.pulse import NOISY, QUIET
from surgetank.studies.fleet_demo.run import View
from surgetank.studies.fleet_demo.setup import OBJECTIVE

_TITLES: Final[dict[Name, str]] = {"surgetank": "Surgetank", "plain": "plain"}
_EVERY: Final = 10.0  # seconds between two lines where there is no terminal
_ROWS: Final = 16  # moments in the table of replicas

Watch = Callable[[View], None]


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Show one line that changes every second, or on no terminal a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().watch
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        told = False

        def watch(view: View) -> None:
            nonlocal told
            if view.page and not told:
                told = True
                console.print(f"Live page: {view.page}")
            live.update(Text(line(view), overflow="ellipsis", no_wrap=True), refresh=True)

        yield watch


class _Lines:
    """What a log of the run needs: each phase as it begins, and a line every ten seconds."""

    def __init__(self) -> None:
        self._phase = ""
        self._page = ""
        self._next = 0.0

    def watch(self, view: View) -> None:
        if view.page != self._page:
            self._page = view.page
            sys.stderr.write(f"Live page: {view.page}\n")
        if view.phase != self._phase or (view.sent and view.elapsed >= self._next):
            self._phase = view.phase
            self._next = view.elapsed + _EVERY
            sys.stderr.write(f"{line(view)}\n")
        sys.stderr.flush()


def line(view: View) -> str:
    """Phase, request rate, and each side's replicas and requests, in one line of 80 columns."""
    words = [view.phase]
    if view.sent:
        words[0] += f" {view.elapsed:.0f}/{view.length:.0f} s, {view.rate:.0f}/s"
    alive = {name: f", {n} alive" if view.sent else "" for name, n in view.alive.items()}
    if view.fleet is not None:
        words.append(f"Surgetank {_states(view.fleet)}{alive['surgetank']}")
    if view.plain_replicas:
        words.append(f"plain {view.plain_replicas}{alive['plain']}")
    return " | ".join(words)


def _states(sample: FleetSample) -> str:
    counts = {
        "serving": sample.serving,
        "standby": sample.standby,
        "starting": sample.starting + sample.refilling,
        "draining": sample.draining,
    }
    return " ".join(f"{n} {state}" for state, n in counts.items() if n)


def show(act: FleetAct) -> None:
    """Print the tables and the verdict."""
    console = Console()
    console.print(_latencies(act))
    console.print(
        "P50, P95, P99: seconds from when a request was due to its first token; -: never. Lost: "
        "failed, or its client left. Wasted: output tokens of requests that were not completed.",
        highlight=False,
    )
    console.print(_replicas(act))
    for text in (*_facts(act), verdict(act)):
        console.print(text, highlight=False)


def _latencies(act: FleetAct) -> Table:
    title = "A burst, through Surgetank and through a plain round-robin proxy"
    # Without padding, and with its words explained below, it fits 80 columns.
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    for name in ("tenant, phase", "side"):
        table.add_column(name, no_wrap=True)
    within = f"in {OBJECTIVE:g} s"
    for name in ("served", "P50", "P95", "P99", within, "refused", "lost", "wasted"):
        table.add_column(name, justify="right", no_wrap=True)
    phases = [phase.name for phase in act.schedule.phases]
    for tenant in (QUIET, NOISY):
        for phase in (*phases, "all"):
            for side in SIDES:
                table.add_row(
                    f"{tenant} {phase}" if side == SIDES[0] else "",
                    _TITLES[side],
                    *_cells(act, side, tenant, phase),
                )
        table.add_section()
    return table


def _cells(act: FleetAct, side: Name, tenant: str, phase: str) -> list[str]:
    whole = phase == "all"
    records = act.sides[side].of(tenant) if whole else act.in_phase(side, tenant, phase)
    if not records:
        return ["0/0", *["-"] * 7]
    summary = summarize(records)
    return [
        f"{summary.completed}/{summary.requests}",
        *_seconds(summary.ttft),
        f"{attainment(records, OBJECTIVE):.1%}",
        str(summary.refused),
        str(summary.failed + summary.abandoned),
        f"{summary.wasted_tokens:,}",
    ]


def _seconds(ttft: Percentiles) -> tuple[str, ...]:
    values = (ttft.p50, ttft.p95, ttft.p99)
    return tuple("-" if value is None else f"{value:.2f}" for value in values)


def _replicas(act: FleetAct) -> Table:
    """Replicas by state, at moments that are evenly apart."""
    side = act.sides["surgetank"]
    samples = [s for s in side.samples if side.begins <= s.t <= side.ends]
    step = max(1, -(-len(samples) // _ROWS))
    table = Table(title="Surgetank's replicas", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("second", "serving", "standby", "starting", "draining", "queued"):
        table.add_column(name, justify="right")
    for s in samples[::step]:
        counts = (s.serving, s.standby, s.starting + s.refilling, s.draining, s.queued or 0)
        table.add_row(f"{s.t - side.begins:.0f}", *(str(n) if n else "." for n in counts))
    return table


def _facts(act: FleetAct) -> Iterator[str]:
    ours, plain = (act.sides[name] for name in SIDES)
    counts = ours.replicas()
    yield (
        f"Surgetank: {counts['start']} replicas at first, {counts['peak']} at most, "
        f"{counts['end']} at the end: {ours.replica_seconds:.0f} replica-seconds, standbys and "
        f"starts counted (the pilot foretold {act.pilot:.0f})."
    )
    done, of = base_completed(act, "plain")
    yield (
        f"Plain: {act.plain_replicas} replicas throughout: {plain.replica_seconds:.0f} "
        f"replica-seconds; {done} of {of} requests of the base phase completed."
    )
    if act.first is not None:
        again = "never" if act.refilled is None else f"{act.refilled - act.onset:.0f} s after it"
        yield (
            f"Standbys promoted in the burst: {len(act.promoted)}; first token "
            f"{act.onset_to_standby:.2f} s after its onset, {act.decision_to_standby:.2f} s after "
            f"the decision; all standbys there again: {again}."
        )
    yield f"Streams cut by scaling down: {act.cut}."
    yield (
        f"The noisy tenant got {act.burst_share('surgetank', NOISY):.0%} of the burst's tokens; "
        f"its least share is {least_share(NOISY):.0%}."
    )
    yield f"Send lag P99: {act.lag_p99 * 1e3:.1f} ms (limit {LAG_LIMIT * 1e3:.0f})."
