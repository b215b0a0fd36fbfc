"""The portfolio beside a running autoscaler: in a niced process of its own, once an interval.

Rule: whatever goes wrong in it is logged and changes nothing; a back-test that takes longer than
its CPU time is killed by the system, with its process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from surgetank.autoscaler.controller import PoolController
from surgetank.autoscaler.spec import AutoscaleSpec, PortfolioSpec
from surgetank.errors import InputError, SurgetankError
from surgetank.policy.calendar import CalendarEvent
from surgetank.policy.flow import FlowSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.tenant import Tenant, Tier

if TYPE_CHECKING:
    from surgetank.studies.portfolio import Choice

log = logging.getLogger("surgetank.portfolio")

_LOADING: Final = 60  # s of CPU beside the trials: imports, compiling once, reading records
_NICEST: Final = 19
_CHILD: Final = "import sys; from surgetank.cli.backtests import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Job:
    """What a back-test is made from; plain values, since it goes to another process."""

    records: str
    model: str
    spec: PortfolioSpec
    scale: ScaleSpec
    starts: tuple[float, ...]
    flow: FlowSpec
    tiers: tuple[Tier, ...]
    tenants: tuple[Tenant, ...]
    calendar: tuple[CalendarEvent, ...]


def run(job: Job) -> Choice:
    """Make one back-test here and now. Raises SurgetankError when there is nothing to make."""
    from surgetank.adapters.recordset import recent, record_files  # noqa: PLC0415
    from surgetank.engine import coldstart  # noqa: PLC0415 - numba loads slowly
    from surgetank.engine.profile import find  # noqa: PLC0415
    from surgetank.studies.portfolio import Question, choose, load_of  # noqa: PLC0415

    if job.spec.engine is None:
        raise InputError("autoscaler.portfolio.engine: no engine is named")
    profile = find(job.spec.engine)
    start = coldstart.of_profile(profile)
    if job.starts:  # measured ones beat a profile's
        start = replace(coldstart.whole(sum(job.starts) / len(job.starts)), wake_s=profile.wake_s)
    records = recent(record_files(Path(job.records)), job.spec.max_requests)
    load = load_of(records, job.model, profile)
    return choose(
        load,
        Question(
            profile=profile,
            start=start,
            scale=job.scale,
            flow=job.flow,
            tiers=job.tiers,
            tenants=job.tenants,
            calendar=tuple(e for e in job.calendar if e.model in {None, job.model}),
            requests=job.spec.max_requests,
            cpu_seconds=job.spec.cpu_seconds,
        ),
    )


def jobs(
    controllers: Sequence[PoolController],
    spec: AutoscaleSpec,
    *,
    records: str,
    flow: FlowSpec,
    tiers: tuple[Tier, ...],
    tenants: tuple[Tenant, ...],
) -> list[tuple[PoolController, Job]]:
    """Make a job for each pool that serves whole requests."""
    return [
        (
            controller,
            Job(
                records,
                controller.config.model,
                spec.portfolio,
                controller.config.scale_spec(),
                controller.start_times(),
                flow,
                tiers,
                tenants,
                spec.calendar,
            ),
        )
        for controller in controllers
        if controller.config.role.value == "both"
    ]


async def follow(found: Sequence[tuple[PoolController, Job]]) -> None:
    """Back-test each pool once, in another process, and let it use what was chosen."""
    for controller, job in found:
        try:
            scale, why = await beside(job)
        except SurgetankError as error:
            log.info("portfolio of %s: %s", job.model, error)
        except Exception:
            log.exception("portfolio of %s failed; its settings stay", job.model)
        else:
            used = controller.use(scale, why)
            log.info("portfolio of %s %s: %s", job.model, "chose" if used else "keeps", why)


async def forever(
    make: Callable[[], Sequence[tuple[PoolController, Job]]], interval: float
) -> None:
    """Follow what `make` gives, once an interval, until cancelled. Seconds."""
    while True:
        await asyncio.sleep(interval)  # the first has records to look at
        await follow(make())


async def beside(job: Job) -> tuple[ScaleSpec, str]:
    """Run one back-test in a process of its own; give its settings and why.

    Raises SurgetankError with what it said when it gave none. The process ends with a cancelled
    call.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CHILD,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, complaint = await process.communicate(pickle.dumps(job))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = complaint.decode("utf-8", "replace").strip().splitlines()
        raise SurgetankError(last[-1] if last else f"its process ended with {process.returncode}")
    found = json.loads(out)
    return ScaleSpec(**found["chosen"]["scale"]), str(found["why"])


def main() -> int:
    """Be the other process: a Job on standard input, the choice as JSON on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the server decides when it ends
    os.nice(_NICEST)
    job: Job = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - from the process that started it
    limit = int(job.spec.cpu_seconds) + _LOADING
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    try:
        found = run(job)
    except SurgetankError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found.to_json(), allow_nan=False))
    return 0
