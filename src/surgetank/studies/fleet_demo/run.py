"""The second act for real: replicas, gateway, proxy and sender as processes of this machine.

Rule: both sides get the same requests at the same moments, and are told nothing of each other.
Whatever was started is ended on every way out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from surgetank.adapters.child import Child, StartError
from surgetank.adapters.records import read_records, read_samples
from surgetank.autoscaler.spec import AutoscaleSpec
from surgetank.loadtest.client import Call, Client
from surgetank.loadtest.sender import LoadResult, Shot, fire, write_records
from surgetank.policy.record import FleetSample, RequestRecord
from surgetank.studies.fleet_demo.act import SIDES, FleetAct, Name, Side
from surgetank.studies.fleet_demo.measure import (
    at_rest,
    cut_by_scale_down,
    promotions,
    read_decisions,
    refilled,
)
from surgetank.studies.fleet_demo.pilot import Foretold, Pilot
from surgetank.studies.fleet_demo.pulse import MODEL, Schedule, body
from surgetank.studies.fleet_demo.setup import FLOW, TENANTS, TIERS, FleetSetup
from surgetank.studies.fleet_demo.tail import SampleTail
from surgetank.studies.gateway_process import GatewayProcess
from surgetank.studies.warmup import served

_START: Final = 60.0  # seconds beyond the cold start until a replica must serve
_LOOK: Final = 1.0
_STOP: Final = 5.0
_WARM_UP: Final = 20.0


@dataclass(slots=True)
class View:
    """What there is to see while it runs."""

    phase: str = "pilot"
    elapsed: float = 0.0  # seconds since the first request was due
    length: float = 0.0
    rate: float = 0.0  # requests/s sent to each side, over the last second
    fleet: FleetSample | None = None
    plain_replicas: int = 0
    sent: int = 0
    alive: dict[Name, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    page: str = ""


Watch = Callable[[View], None]


async def run_fleet(
    folder: Path,
    setup: FleetSetup,
    schedule: Schedule,
    watch: Watch,
    *,
    seed: int = 0,
    records: Path | None = None,
) -> FleetAct:
    """Run both sides once, in the time of the schedule and some 30 s more.

    Counted are the replicas from the first request until the fleet is at rest again.

    `folder`: an empty one of its own. `records`: a folder that keeps records, samples and decisions
    of both sides. Raises StartError when something does not come up; nothing is left running.
    """
    view = View(length=schedule.length)
    watch(view)
    pilot = await asyncio.to_thread(Pilot(setup, schedule).run)
    view.plain_replicas = pilot.least_fixed
    files = _Files(records or folder)
    files.clear()
    async with AsyncExitStack() as stack:
        run = _Run(setup, schedule, files, watch, view)
        stack.push_async_callback(run.ending)
        await run.start(stack, folder)
        results = await run.send()
        ends = await run.rest()
        run.check_plain()
    for name in SIDES:
        write_records(files.clients[name], results[name].records)
    return _judged(schedule, results, files, ends, setup=setup, seed=seed, pilot=pilot)


class _Files:
    """Where each side's records go."""

    def __init__(self, folder: Path) -> None:
        self.clients: dict[Name, Path] = {name: folder / f"fleet-{name}.jsonl" for name in SIDES}
        self.gateway = folder / "fleet-surgetank-gateway.jsonl"
        self.decisions = folder / "fleet-surgetank-decisions.jsonl"

    def clear(self) -> None:
        """Remove an earlier run's: the gateway appends."""
        for path in (*self.clients.values(), self.gateway, self.decisions):
            path.unlink(missing_ok=True)


class _Run:
    """The processes of both sides, and what is done with them in turn."""

    def __init__(
        self, setup: FleetSetup, schedule: Schedule, files: _Files, watch: Watch, view: View
    ) -> None:
        self._setup = setup
        self._schedule = schedule
        self._files = files
        self._watch = watch
        self._view = view
        self._tail = SampleTail(files.gateway)
        self._plain: list[Child] = []
        self._clients: dict[Name, Client] = {}
        self._keys: Mapping[str, str] = {}

    # Coming up.

    async def start(self, stack: AsyncExitStack, folder: Path) -> None:
        """Start everything, and wait until both sides serve and the fleet is at rest."""
        view = self._view
        view.phase = "starting"
        watching = asyncio.ensure_future(self._look())
        try:
            self._keys, ours, plain = await self._start_both(stack, folder)
        finally:
            watching.cancel()
        view.phase = "warming up"
        self._see()
        addresses: dict[Name, str] = {"surgetank": ours, "plain": plain}
        for name, url in addresses.items():
            client = self._clients[name] = Client(url)
            stack.push_async_callback(client.close)
            key = self._keys[TENANTS[0].name] if name == "surgetank" else ""
            await served(client, Call(body(8, 2), key=key, timeout=_WARM_UP))

    async def _start_both(
        self, stack: AsyncExitStack, folder: Path
    ) -> tuple[Mapping[str, str], str, str]:
        """Start both sides at once; return keys and both addresses."""
        gateway = GatewayProcess(
            folder / "gateway",
            None,
            TENANTS,
            tiers=TIERS,
            flow=FLOW,
            autoscaler=AutoscaleSpec(
                pools=(self._setup.pool(),),
                state_dir=str(folder / "state"),
                decisions=str(self._files.decisions.absolute()),
            ),
            page=True,
            records=self._files.gateway,
        )
        await stack.enter_async_context(gateway)
        self._view.page = gateway.page
        self._watch(self._view)
        plain = await self._start_plain(stack)
        bound = self._setup.cold_start + _START
        if not await self._until(self._is_at_rest, bound):
            raise StartError(f"the fleet was not up within {bound:g} s: {self._tail.latest}")
        return gateway.keys, gateway.url, plain

    async def _start_plain(self, stack: AsyncExitStack) -> str:
        """Start the fixed replicas and, once they serve, the proxy; return its address."""
        bound = self._setup.cold_start + _START
        self._plain = [
            Child(
                f"replica {number} of the plain proxy",
                self._setup.command("0"),
                start_timeout=bound,
                stop_timeout=_STOP,
            )
            for number in range(1, self._view.plain_replicas + 1)
        ]
        stack.push_async_callback(_stop_all, self._plain)
        found = await _together(replica.start() for replica in self._plain)
        urls = [word for (url, *_) in found for word in ("--replica", url)]
        proxy = Child(
            "the plain proxy",
            [sys.executable, "-m", "surgetank.studies.plain_proxy", *urls],
            start_timeout=_START,
            stop_timeout=_STOP,
        )
        stack.push_async_callback(proxy.stop)
        address, *_ = await proxy.start()
        return address

    # The burst.

    async def send(self) -> dict[Name, LoadResult]:
        """Send the schedule to both sides at once, and wait until every request has ended."""
        view = self._view
        ended: dict[Name, int] = dict.fromkeys(SIDES, 0)

        def counted(name: Name) -> Callable[[RequestRecord], None]:
            def count(_: RequestRecord) -> None:
                ended[name] += 1

            return count

        shots: dict[Name, list[Shot]] = {
            "surgetank": [replace(s, key=self._keys[s.tenant]) for s in self._schedule.shots],
            "plain": list(self._schedule.shots),
        }
        began = time.monotonic()
        due = [shot.at for shot in self._schedule.shots]

        def seen() -> None:
            view.elapsed = time.monotonic() - began
            sent = bisect_right(due, view.elapsed)
            view.rate = (sent - view.sent) / _LOOK
            view.sent = sent
            view.phase = self._schedule.phase_of(view.elapsed)
            view.alive = {name: sent - ended[name] for name in SIDES}

        watching = asyncio.ensure_future(self._look(seen))
        try:
            results = await _together(
                fire(self._clients[name], shots[name], on_end=counted(name)) for name in SIDES
            )
        finally:
            watching.cancel()
        return dict(zip(SIDES, results, strict=True))

    async def rest(self) -> float:
        """Wait until the fleet is at rest again; return when that was, Unix seconds."""
        self._view.phase = "coming to rest"
        self._view.rate = 0.0
        self._view.alive = dict.fromkeys(SIDES, 0)
        await self._until(self._is_at_rest, self._setup.rest_within)
        latest = self._tail.latest
        return latest.t if latest is not None else time.time()

    def check_plain(self) -> None:
        """Raise StartError when a replica of the plain proxy has died: the sides would differ."""
        if any(replica.pid is None for replica in self._plain):
            raise StartError("a replica of the plain proxy ended during the run")

    async def ending(self) -> None:
        """Tell that all is being ended. Called last, when it is."""
        self._view.phase = "ended"
        self._watch(self._view)

    # Looking.

    def _is_at_rest(self) -> bool:
        sample = self._tail.latest
        setup = self._setup
        return sample is not None and at_rest(sample, serving=setup.base, standby=setup.standbys)

    async def _until(self, done: Callable[[], bool], bound: float) -> bool:
        ends = time.monotonic() + bound
        while time.monotonic() < ends:
            self._see()
            if done():
                return True
            await asyncio.sleep(_LOOK)
        return False

    async def _look(self, seen: Callable[[], None] = lambda: None) -> None:
        while True:
            seen()
            self._see()
            await asyncio.sleep(_LOOK)

    def _see(self) -> None:
        self._view.fleet = self._tail.read()
        self._watch(self._view)


_Result = TypeVar("_Result")


async def _together(parts: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Wait for all; when one fails, the others are cancelled and over before it is told."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


async def _stop_all(children: Sequence[Child]) -> None:
    await asyncio.gather(*(child.stop() for child in children))


def _judged(
    schedule: Schedule,
    results: Mapping[Name, LoadResult],
    files: _Files,
    ends: float,
    *,
    setup: FleetSetup,
    seed: int,
    pilot: Foretold,
) -> FleetAct:
    """Read what was written and put it together."""
    samples = list(read_samples(files.gateway))
    served_by = list(read_records(files.gateway))
    decisions = read_decisions(files.decisions.read_text(encoding="utf-8"))
    first = results["surgetank"].records[0]
    begins = (first.scheduled or first.arrived) - schedule.shots[0].at
    onset = begins + schedule.onset
    plain = pilot.least_fixed
    fixed = [FleetSample(begins, MODEL, serving=plain)]
    seen: dict[Name, Sequence[FleetSample]] = {"surgetank": samples, "plain": fixed}
    back = refilled(samples, setup.standbys, onset)
    return FleetAct(
        schedule=schedule,
        seed=seed,
        sides={
            name: Side(result.records, result.lag, seen[name], begins, ends)
            for name, result in results.items()
        },
        plain_replicas=plain,
        pilot=pilot.replica_seconds,
        promoted=promotions(decisions, served_by, onset),
        refilled=back,
        cut=len(cut_by_scale_down(decisions, served_by)),
    )
