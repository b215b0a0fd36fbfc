"""One rehearsal from its schedule to its run file: look at the target, send, watch, put together.

Rule: what was done is never lost. Stopped early, it is the same report over a shorter time; what
was in flight then is left out of the figures, since nobody knows how it would have ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from surgetank.errors import InputError
from surgetank.loadtest import outcome as words
from surgetank.loadtest.phases import locate
from surgetank.loadtest.processes import OnProgress, Processes, send
from surgetank.loadtest.prompts import Prompts, UserBodies
from surgetank.loadtest.runfile import Objective, Run, Samples
from surgetank.loadtest.schedule import Schedule
from surgetank.loadtest.shot import MAX_LAG, LoadResult, Shot
from surgetank.loadtest.target import Found, Target
from surgetank.loadtest.targetmetrics import Headers, Watch
from surgetank.loadtest.tokengaps import TokenGaps
from surgetank.policy.record import RequestRecord
from surgetank.policy.retry import NO_RETRIES, RetryRule

MOST_BODY_BYTES: Final = 4 << 30  # of all bodies together: they stand in memory before the run
_BYTES_PER_WORD: Final = 4.2


class Bodies(Protocol):
    """Gives each row of a schedule its body."""

    def body(self, row: int) -> bytes:
        """Make or return the body of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done. Times in seconds.

    `timeout` bounds each attempt, `abandon_after` is the patience of who asks. `metrics`: addresses
    to scrape every `metrics_interval` seconds meanwhile, with `metrics_headers`.
    """

    schedule: Schedule
    target: Target
    found: Found
    bodies: Bodies
    rule: RetryRule = NO_RETRIES
    timeout: float = 120.0
    abandon_after: float | None = None
    objective: Objective = field(default_factory=Objective)
    metrics: Sequence[str] = ()
    metrics_interval: float = 1.0
    metrics_headers: Headers = field(default=(), repr=False)
    processes: Processes = "auto"
    max_lag: float = MAX_LAG
    seed: int = 0

    def clients(self) -> dict[str, Any]:
        """Say how its clients behave."""
        said: dict[str, Any] = {"retries": self.rule.name, "timeout": self.timeout}
        return said if self.abandon_after is None else said | {"abandon": self.abandon_after}


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What came of it: the run without its summary, the sender's result, and what to know.

    `cut`: requests that were in flight when it was stopped.
    """

    run: Run
    result: LoadResult
    cut: int = 0
    notes: tuple[str, ...] = ()


def bodies_of(schedule: Schedule, found: Found, seed: int) -> Prompts:
    """Make the bodies of a schedule for a target. Raises InputError when they are too large."""
    total = float(schedule.prompt_tokens.sum()) / found.scale.per_word * _BYTES_PER_WORD
    if total > MOST_BODY_BYTES:
        raise InputError(
            f"{total / 2**30:.1f} GiB of prompts: more than {MOST_BODY_BYTES >> 30}; shorten the "
            "run or the prompts, or replay a --window of the log"
        )
    return Prompts(schedule, found.asking, found.scale, seed)


async def rehearse(
    plan: Plan,
    *,
    stop: asyncio.Event,
    start: float | None = None,
    on_progress: OnProgress | None = None,
) -> Rehearsed:
    """Send the schedule to its end, or until `stop` is set. Raises InputError.

    `start`: of the schedule, on time.monotonic's clock; as soon as may be without.
    """
    schedule = plan.schedule
    wall = time.time()
    watch = Watch(
        plan.metrics,
        plan.metrics_interval,
        plan.metrics_headers,
        plan.target.trusted(*plan.metrics) if plan.metrics else None,
    )
    watching = asyncio.create_task(watch.run(time.monotonic()))
    watched_from = time.time()
    try:
        result = await send(
            plan.target.url,
            shots(plan),
            rule=plan.rule,
            seed=plan.seed,
            processes=plan.processes,
            tls=plan.target.tls,
            start=start,
            stop=stop,
            max_lag=plan.max_lag,
            on_progress=on_progress,
        )
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    began = _start(result.records, schedule, wall)
    kept = [record for record in result.records if record.reason != words.STOPPED]
    shift = watched_from - began
    samples = _asked(Samples.of_records(kept, start=began), kept, schedule)
    run = Run(
        description={**schedule.description, **plan.clients()},
        fingerprint=schedule.fingerprint,
        duration=schedule.duration,
        phases=schedule.phases,
        samples=samples,
        objective=plan.objective,
        done=max(0.0, min(result.elapsed, schedule.duration)) if result.stopped else None,
        target=plan.found.to_json(plan.target) | {"prompt_tokens": _counted(kept, schedule)},
        sender=result.sender_json(),
        metrics=[{**row, "t": round(row["t"] + shift, 3)} for row in watch.rows],
        gaps=_gaps(kept, samples, schedule),
    )
    return Rehearsed(run, result, len(result.records) - len(kept), tuple(_notes(plan, watch)))


def shots(plan: Plan) -> list[Shot]:
    """Make what the sender takes."""
    target, objective = plan.target, plan.objective
    user = plan.bodies if isinstance(plan.bodies, UserBodies) else None
    return [
        replace(
            shot,
            body=plan.bodies.body(row),
            key=target.key(shot.tenant),
            model=plan.found.asking.model,
            route=target.route if user is None else user.route(row),
            max_tokens=shot.max_tokens if user is None else None,
            timeout=plan.timeout,
            abandon_after=plan.abandon_after,
            ttft_objective=objective.tenants.get(shot.tenant, objective.ttft),
        )
        for row, shot in enumerate(plan.schedule.shots)
    ]


def _start(records: Sequence[RequestRecord], schedule: Schedule, wall: float) -> float:
    """Unix seconds of the schedule's start: of any record, its due time less its row's."""
    for record in records:
        if record.scheduled is not None:
            return record.scheduled - float(schedule.at[int(record.id)])
    return wall


def _asked(samples: Samples, records: Sequence[RequestRecord], schedule: Schedule) -> Samples:
    """Give each sample the prompt tokens that were asked for: two runs of one schedule agree."""
    rows = [int(record.id) for record in _by_time(records)]
    return replace(samples, prompt_tokens=schedule.prompt_tokens[rows])


def _gaps(records: Sequence[RequestRecord], samples: Samples, schedule: Schedule) -> TokenGaps:
    """Count the gaps between tokens; samples are in the order of their times."""
    phase, _ = locate(schedule.phases, samples.scheduled)
    seen = [record.token_gaps for record in _by_time(records)]
    return TokenGaps.counted(seen, samples.tenant.codes, phase)


def _by_time(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return sorted(records, key=lambda r: r.scheduled or 0.0)


def _counted(records: Sequence[RequestRecord], schedule: Schedule) -> dict[str, int]:
    """Sum up what was asked for and what the target counted, where it told."""
    told = [(int(r.id), r.prompt_tokens) for r in records if r.prompt_tokens is not None]
    return {
        "asked": int(schedule.prompt_tokens[[row for row, _ in told]].sum()),
        "counted": sum(tokens for _, tokens in told),
    }


def _notes(plan: Plan, watch: Watch) -> Iterator[str]:
    yield from plan.found.notes
    if plan.metrics and watch.failures:
        asked = watch.failures + len(watch.rows)
        yield f"{watch.failures} of about {asked} scrapes of the target's metrics failed"
    if not plan.metrics:
        yield "no metrics of the target were found: queue, KV and GPUs are not in the report"
