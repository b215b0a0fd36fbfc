"""What `load` and `replay` do with a schedule: say what is coming, send it, report, write files.

Rule: a file that cannot be written is told before the first request, and a run that was stopped is
reported like any other.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from surgetank.cli import load_output as output
from surgetank.errors import InputError
from surgetank.loadtest.client import Tls
from surgetank.loadtest.exports import export
from surgetank.loadtest.load import run_until_stopped
from surgetank.loadtest.pacing import unless
from surgetank.loadtest.processes import Processes
from surgetank.loadtest.prompts import CHAT, COMPLETIONS, UserBodies, read_bodies
from surgetank.loadtest.recording import write_records
from surgetank.loadtest.rehearsal import Plan, Rehearsed, bodies_of, rehearse
from surgetank.loadtest.report import report
from surgetank.loadtest.runfile import Objective, write_run
from surgetank.loadtest.schedule import Schedule
from surgetank.loadtest.shot import LoadResult, Tally
from surgetank.loadtest.target import Found, Target, preflight, public_address
from surgetank.loadtest.targetmetrics import Headers, find, least_interval, scrape
from surgetank.policy.retry import RULES
from surgetank.report.files import write_whole
from surgetank.traffic.analysis import plain

INTERRUPTED: Final = 130
_LINE_EVERY: Final = 30.0  # seconds between progress lines where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options that both commands have, as they were given."""

    url: str | None
    model: str | None
    completions: bool
    key_env: str | None
    keys: Path | None
    ca_file: Path | None
    insecure: bool
    yes: bool
    retries: str
    timeout: float
    abandon: float | None
    bodies: Path | None
    count_by: str
    ignore_eos: bool | None
    max_prompt: int | None
    max_output: int | None
    seed: int
    ttft: float
    tpot: float | None
    metrics: tuple[str, ...]
    max_lag: float  # milliseconds
    processes: str
    as_json: bool
    html: Path | None
    out: Path | None
    records: Path | None
    export: tuple[str, Path] | None
    dry_run: bool

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Asked:
        """Take them from a command's parameters."""
        values = {f.name: params[f.name] for f in fields(cls)}
        return cls(**values | {"metrics": tuple(params["metrics"] or ())})


def carry_out(asked: Asked, schedule: Schedule, notes: tuple[str, ...] = ()) -> None:
    """Do what was asked with a schedule. Raises InputError, and typer.Exit with 1 or 130."""
    schedule = schedule.clipped(prompt=asked.max_prompt, output=asked.max_output)
    if asked.export is not None:
        form, path = asked.export
        write_whole(path, export(schedule, str(form)))
        _say(f"{path}: {len(schedule):,} requests over {schedule.duration:,.0f} s as {form}")
        return
    if asked.dry_run:
        output.show_plan(schedule, notes, as_json=asked.as_json)
        return
    if asked.url is None:
        raise InputError("give the URL of the endpoint, or --dry-run or --export FORMAT FILE")
    user = None if asked.bodies is None else read_bodies(asked.bodies, model=asked.model)
    target = _target(asked, asked.url, user)
    _check_files(asked)
    _allow(asked, target, schedule)
    rehearsed = _run(asked, target, schedule, user)
    _report(asked, rehearsed, notes)


def _run(asked: Asked, target: Target, schedule: Schedule, user: UserBodies | None) -> Rehearsed:
    done: list[Rehearsed] = []
    processes = _processes(asked.processes)

    async def work(stop: asyncio.Event) -> LoadResult:
        # An orchestrator that ends a job asks by SIGTERM, and wants its report as well.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        found: list[tuple[Found, Sources]] = []

        async def look() -> None:
            seen = await preflight(target, count_by=asked.count_by, ignore_eos=asked.ignore_eos)
            found.append((seen, await _sources(asked, target)))

        if not await unless(stop, look()):
            raise typer.Exit(INTERRUPTED)
        seen, sources = found[0]
        _say(f"sending to {target.named()} {_told(schedule)}")
        _warn_of_context(schedule, seen)
        plan = Plan(
            schedule=schedule,
            target=target,
            found=seen,
            bodies=user or bodies_of(schedule, seen, asked.seed),
            rule=RULES[asked.retries],
            timeout=asked.timeout,
            abandon_after=asked.abandon,
            objective=Objective(asked.ttft, asked.tpot),
            metrics=sources.urls,
            metrics_interval=sources.interval,
            metrics_headers=sources.headers,
            processes=processes,
            max_lag=asked.max_lag / 1000,
            seed=asked.seed,
        )
        with _Watching(schedule) as watch:
            rehearsed = await rehearse(plan, stop=stop, on_progress=watch)
        done.append(rehearsed)
        return rehearsed.result

    run_until_stopped(work)
    return done[0]


def _report(asked: Asked, rehearsed: Rehearsed, notes: tuple[str, ...]) -> None:
    result = rehearsed.result
    if asked.records is not None:
        write_records(asked.records, result.records)
    found = report(rehearsed.run)
    run = replace(rehearsed.run, summary=plain(found.to_json()))
    if asked.out is not None:
        write_run(asked.out, run)
    if asked.html is not None:
        output.write_page(run, found, asked.html)
    if asked.as_json:
        print(json.dumps(run.summary, indent=2, allow_nan=False))
    else:
        output.show(found)
    for note in (*notes, *rehearsed.notes):
        _say(f"note: {note}")
    if rehearsed.cut:
        _say(f"note: {rehearsed.cut:,} requests were in flight when it was stopped: left out")
    if result.stopped:
        _say(f"stopped after {result.elapsed:,.0f} s; the report is of what was done")
        raise typer.Exit(INTERRUPTED)
    if not result.valid:
        _say(result.invalid)
        raise typer.Exit(1)


def _target(asked: Asked, url: str, user: UserBodies | None) -> Target:
    keys = {}
    if asked.key_env is not None:
        key = os.environ.get(asked.key_env, "")
        if not key:
            raise InputError(f"--key-env {asked.key_env}: the variable is not set")
        keys[""] = key
    if asked.keys is not None:
        keys |= _read_keys(asked.keys)
    tls = Tls(None if asked.ca_file is None else str(asked.ca_file), not asked.insecure)
    return Target(
        url,
        asked.model or ("" if user is None else user.model),
        (COMPLETIONS if asked.completions else CHAT) if user is None else user.route(0),
        keys,
        tls,
        timeout=min(asked.timeout, 60.0),
    )


def _read_keys(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--keys {path}: cannot be read: {error}") from None
    keys = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        tenant, equals, key = line.partition("=")
        if not equals or not key.strip().isascii() or not key.strip():
            raise InputError(f"--keys {path} line {number}: must be TENANT=KEY")
        keys[tenant.strip()] = key.strip()
    return keys


def _processes(text: str) -> Processes:
    if text == "auto":
        return "auto"
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"--processes {text}: must be a number >= 1, or auto")
    return int(text)


def _check_files(asked: Asked) -> None:
    for option, path in (
        ("--html", asked.html),
        ("--out", asked.out),
        ("--records", asked.records),
    ):
        if path is None:
            continue
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise InputError(f"{option} {path}: cannot be written there: name a file in a folder")


def _allow(asked: Asked, target: Target, schedule: Schedule) -> None:
    """Refuse a public address without --yes: somebody may pay for what arrives there."""
    address = None if asked.yes else public_address(target.url)
    if address is not None:
        prompt, answer = int(schedule.prompt_tokens.sum()), int(schedule.max_tokens.sum())
        raise InputError(
            f"{target.named()} is a public address ({address}), and would get {_told(schedule)}; "
            f"about {prompt:,} prompt and {answer:,} output tokens: add --yes if it may"
        )


def _told(schedule: Schedule) -> str:
    return (
        f"{len(schedule):,} requests: mean {len(schedule) / schedule.duration:.3g}/s, busiest "
        f"second {schedule.peak_rate:.0f}, for {schedule.duration:,.0f} s"
    )


@dataclass(frozen=True, slots=True)
class Sources:
    """Metrics to scrape, every so many seconds; the target's key is for itself alone."""

    urls: list[str]
    interval: float
    headers: Headers = ()


async def _sources(asked: Asked, target: Target) -> Sources:
    """Find the metrics to scrape: those named must be there."""
    named = [url if "://" in url else f"http://{url}" for url in asked.metrics]
    tried = named or [f"{target.root}{path}" for path in ("/metrics", "/prometheus/metrics")]
    headers = () if named else target.headers
    trusted = target.trusted(*tried)
    found = await find(tried, headers, trusted)
    for url in named:
        if url not in found:
            raise InputError(
                f"--metrics {url}: gives no metrics of an engine, a gateway, DCGM or nvidia-smi"
            )
    texts = [await scrape(url, headers, trusted) for url in found]
    intervals = [least_interval(text) for text in texts if text is not None]
    return Sources(found, max([1.0, *intervals]), headers)


def _warn_of_context(schedule: Schedule, found: Found) -> None:
    if found.context is None:
        return
    over = int((schedule.prompt_tokens + schedule.max_tokens > found.context).sum())
    if over:
        _say(
            f"note: {over:,} of {len(schedule):,} requests do not fit the model's context of "
            f"{found.context:,} tokens and will be refused; see --max-prompt and --max-output"
        )


class _Watching:
    """Progress on stderr: a bar on a terminal, else a line now and then."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._begun = time.monotonic()
        self._told = self._begun
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=len(schedule))

    def __enter__(self) -> Callable[[Tally], None]:
        if self._bar is not None:
            self._bar.start()
        return self._tell

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, tally: Tally) -> None:
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(
                self._task, completed=tally.sent, description=self._words(tally, now - self._begun)
            )
        elif now - self._told >= _LINE_EVERY:
            self._told = now
            _say(f"{now - self._begun:,.0f} s: {self._words(tally, now - self._begun)}")

    def _words(self, tally: Tally, elapsed: float) -> str:
        phase = next((p.name for p in self._schedule.phases if p.start <= elapsed < p.end), "end")
        flying = tally.sent - tally.ended
        bad = tally.refused + tally.failed + tally.abandoned
        return (
            f"{phase}: {tally.sent:,} of {len(self._schedule):,} sent, {flying:,} in flight, "
            f"{tally.completed:,} completed, {bad:,} not"
        )


def _say(text: str) -> None:
    print(f"surgetank: {text}", file=sys.stderr, flush=True)
