"""The portfolio beside a running autoscaler: in a niced process of its own, once an interval.

Rule: whatever goes wrong in it is logged, told, and changes nothing. A back-test that takes longer
than its CPU time is killed by the system, one that hangs by the server; and it ends with the
server, however that ends: it watches a pipe that only the server holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

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
_SLOWEST: Final = 10  # times its CPU time, that it may take: it gets what others leave
_NICEST: Final = 19
# Nice from the first: importing takes a second of CPU as well.
_CHILD: Final = (
    f"import os, sys; os.nice({_NICEST}); "
    "from surgetank.cli.backtests import main; sys.exit(main())"
)
_SIZE: Final = struct.Struct("!Q")  # of the job, before it


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
    in_use: ScaleSpec | None = None  # what an earlier choice set; None: `scale`


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a pool's latest back-test. `at`: Unix seconds; `why`: one line."""

    pool: str
    at: float
    result: Literal["chose", "keeps", "failed"]
    why: str


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
            in_use=job.in_use,
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
                controller.scale,
            ),
        )
        for controller in controllers
        if controller.config.role.value == "both"
    ]


async def follow(
    found: Sequence[tuple[PoolController, Job]], tell: Callable[[Told], None] = lambda _: None
) -> None:
    """Back-test each pool once, in another process, and let it use what was chosen."""
    for controller, job in found:
        pool = controller.config.name
        try:
            scale, why = await beside(job)
            used = controller.use(scale, why)
        except SurgetankError as error:
            log.info("portfolio of %s: %s", pool, error)
            tell(Told(pool, time.time(), "failed", str(error)))
        except Exception as error:
            log.exception("portfolio of %s failed; its settings stay", pool)
            tell(Told(pool, time.time(), "failed", f"{type(error).__name__}: see the log"))
        else:
            log.info("portfolio of %s %s: %s", pool, "chose" if used else "keeps", why)
            tell(Told(pool, time.time(), "chose" if used else "keeps", why))


async def forever(
    make: Callable[[], Sequence[tuple[PoolController, Job]]],
    interval: float,
    tell: Callable[[Told], None] = lambda _: None,
) -> None:
    """Follow what `make` gives, once an interval, until cancelled. Seconds."""
    while True:
        await asyncio.sleep(interval)  # the first has records to look at
        await follow(make(), tell)


async def beside(job: Job, *, bound: float | None = None) -> tuple[ScaleSpec, str]:
    """Run one back-test in a process of its own; give its settings and why.

    `bound`: seconds it may take; ten times its CPU time without. Raises SurgetankError with what it
    said when it gave none. The process ends with a cancelled call.
    """
    limit = _cpu_limit(job)
    bound = _SLOWEST * limit if bound is None else bound
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CHILD,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(bound):
            out, complaint = await _answer(process, pickle.dumps(job))
    except TimeoutError:
        raise SurgetankError(f"it had no answer after {bound:.0f} s, and was ended") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        raise SurgetankError(f"it took more than {limit} s of CPU time, and was ended")
    if process.returncode:
        last = complaint.decode("utf-8", "replace").strip().splitlines()
        raise SurgetankError(last[-1] if last else f"its process ended with {process.returncode}")
    found = json.loads(out)
    return ScaleSpec(**found["chosen"]["scale"]), str(found["why"])


async def _answer(process: asyncio.subprocess.Process, job: bytes) -> tuple[bytes, bytes]:
    """Hand over the job and hear it out; its standard input stays open, since its end ends it."""
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin is not None  # noqa: S101 - asked for, as are the others
    assert stdout is not None  # noqa: S101
    assert stderr is not None  # noqa: S101
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it says why itself
        stdin.write(_SIZE.pack(len(job)) + job)
        await stdin.drain()
    out, complaint, _ = await asyncio.gather(stdout.read(), stderr.read(), process.wait())
    return out, complaint


def _cpu_limit(job: Job) -> int:
    return int(job.spec.cpu_seconds) + _LOADING


def main() -> int:
    """Be the other process: a Job on standard input, the choice as JSON on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the server decides when it ends
    stdin = sys.stdin.buffer
    (size,) = _SIZE.unpack(stdin.read(_SIZE.size))
    job: Job = pickle.loads(stdin.read(size))  # noqa: S301 - from the process that started it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limit = _cpu_limit(job)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    try:
        found = run(job)
    except SurgetankError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found.to_json(), allow_nan=False))
    return 0


def _end_with_parent() -> None:
    """Nothing more is written there: a read that returns says that the server is gone."""
    os.read(sys.stdin.fileno(), 1)  # not by the buffer, whose lock an exit would wait for
    os._exit(1)
