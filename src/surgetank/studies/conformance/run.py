"""A run: check after check, each with a gateway and replicas of its own.

Rule: one check's trouble is its own result; whatever happens, what was started is ended. A check
that failed while this very process was late is run once more, since its clock cannot be trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from surgetank.errors import InputError
from surgetank.studies.conformance.subject import NotStarted, Subject
from surgetank.studies.conformance.verdict import (
    Check,
    Failed,
    NotTestable,
    Report,
    Result,
    Status,
)
from surgetank.studies.conformance.world import World

_TICK: Final = 0.05
_LATE: Final = 0.3  # seconds this loop may be late before a failure is doubted

Watch = Callable[[Check, Result | None], None]
"""Told of a check at its start (None) and at its end."""


async def run_checks(
    subject: Subject,
    checks: Sequence[Check],
    watch: Watch = lambda _check, _result: None,
    *,
    quick: bool = False,
) -> Report:
    """Run them in their order."""
    clock = asyncio.get_running_loop().time
    began = clock()
    version = await subject.version()
    results: list[Result] = []
    for check in checks:
        watch(check, None)
        result = await _result(subject, check, quick=quick)
        results.append(result)
        watch(check, result)
    return Report(subject.name, version, tuple(results), clock() - began)


async def _result(subject: Subject, check: Check, *, quick: bool) -> Result:
    late: list[float] = [0.0]
    async with _watched(late):
        result = await _once(subject, check, quick=quick)
    if result.status is Status.FAILED and late[0] > _LATE:
        doubt = f"first it failed ({result.seen}) while this machine was {late[0]:.2f} s late"
        again = await _once(subject, check, quick=quick)
        evidence = (doubt, *again.evidence)
        seconds = result.seconds + again.seconds
        return Result(check, again.status, again.seen, evidence, seconds)
    return result


async def _once(subject: Subject, check: Check, *, quick: bool) -> Result:
    clock = asyncio.get_running_loop().time
    began = clock()
    with tempfile.TemporaryDirectory(prefix="surgetank-conformance-") as folder:
        world = World(subject, check, Path(folder), quick=quick)
        status, seen = Status.PASSED, ""
        try:
            async with asyncio.timeout(check.seconds) as world.bound:
                await world.open()
                await check.run(world)
        except Failed as failed:
            status, seen = Status.FAILED, str(failed)
        except NotTestable as why:
            status, seen = Status.NOT_TESTABLE, str(why)
        except NotStarted as why:
            status, seen = Status.FAILED, f"the gateway did not start: {why}"
        except TimeoutError:
            status, seen = Status.FAILED, f"was not over within {check.seconds:g} s"
        finally:
            await asyncio.shield(world.close())
    evidence = tuple(line for line in world.evidence if line != seen)
    return Result(check, status, seen, evidence, clock() - began)


@contextlib.asynccontextmanager
async def _watched(late: list[float]) -> AsyncIterator[None]:
    """Measure how late this loop comes to what is due."""
    watching = asyncio.create_task(_lateness(late))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _lateness(late: list[float]) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + _TICK
        await asyncio.sleep(_TICK)
        late[0] = max(late[0], clock() - due)


def chosen(checks: Sequence[Check], only: str | None) -> tuple[Check, ...]:
    """Choose by numbers: `1,4,10-12`; all without. Raises InputError."""
    if only is None:
        return tuple(checks)
    wanted: set[int] = set()
    for part in only.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError(f"--only {only}: must be numbers of checks, such as 1,4,10-12")
        wanted |= set(range(int(first), int(last or first) + 1))
    found = tuple(check for check in checks if check.number in wanted)
    if not found:
        raise InputError(f"--only {only}: there is no such check")
    return found
