"""The replicas behind the gateway: asked what they are, watched, and told to FlowControl.

Rule: a replica joins when its own health says ready and leaves at the first sign that it is gone;
what it does not say stays unknown. A failed metrics scrape never takes a replica out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from surgetank.adapters.engines import (
    DIALECTS,
    Dialect,
    EngineFacts,
    count_prompt_tokens,
    health,
    parse_signals,
    probe,
    unknown_signals,
)
from surgetank.adapters.http import FetchError, fetch
from surgetank.errors import ConfigError
from surgetank.gateway.driver import Driver
from surgetank.gateway.metrics import Metrics, ReplicaGauges
from surgetank.gateway.spec import ReplicaSpec, UpstreamSpec
from surgetank.gateway.upstream import Pool
from surgetank.policy.replica import Replica, Role
from surgetank.wire.http1 import Limits
from surgetank.wire.openai import Body

log = logging.getLogger("surgetank.fleet")

_GONE_AFTER: Final = 3  # failed health checks in a row: what waits for it is asked elsewhere


@dataclass(slots=True)
class Target:
    """One replica as the relay sees it."""

    id: str
    url: str
    authority: bytes
    authorization: bytes | None
    pool: Pool
    spec: ReplicaSpec
    model: str
    wake: asyncio.Event
    dialect: Dialect = DIALECTS["openai"]
    ready: bool = False
    frees_on_disconnect: bool = True
    next_scrape: float = 0.0
    attached: bool = True  # it is sent requests
    last_ready: float = 0.0
    replica: Replica | None = None  # what it is, once it has been asked
    watcher: asyncio.Task[None] | None = None

    @property
    def serving(self) -> bool:
        """It is well and gets requests."""
        return self.ready and self.attached


class Fleet:
    """The replicas this gateway knows: those of its configuration, and those that come and go.

    Each has a watcher. One that is not attached is watched and known, but gets no requests: a
    standby can serve at once when it is attached.
    """

    def __init__(
        self, spec: UpstreamSpec, replicas: Iterable[ReplicaSpec], driver: Driver, metrics: Metrics
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._metrics = metrics
        self._clock = asyncio.get_running_loop().time
        self._targets: dict[str, Target] = {}
        self._running = False
        self._counters: dict[str, Target] = {}  # by model: who counts its prompts
        self.counts = False  # some engine counts
        self.gone: Callable[[str], None] = lambda _id: None
        self.unresponsive: Callable[[str, str], None] = lambda _id, _why: None
        for replica in replicas:
            target = self._new_target(replica, attached=True)
            if target.id in self._targets:
                raise ConfigError(f"replicas: two have the id {target.id}; give each its own id")
            self._targets[target.id] = target

    def _new_target(self, spec: ReplicaSpec, *, attached: bool) -> Target:
        parts = urlsplit(spec.url)
        host, port = parts.hostname or "", parts.port or 80
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return Target(
            id=spec.id or authority,
            url=f"http://{authority}",
            authority=authority.encode("ascii"),
            authorization=_upstream_key(spec),
            pool=Pool(
                host,
                port,
                limits=Limits(),
                connect_timeout=self._spec.connect_timeout,
                idle_timeout=self._spec.idle_timeout,
                max_idle=self._spec.max_idle_connections,
            ),
            spec=spec,
            model=spec.model or "",
            wake=asyncio.Event(),
            attached=attached,
            last_ready=self._clock(),
        )

    # Replicas that come and go (see autoscaler.ports.Routing).

    def add(self, replica: str, url: str, model: str | None = None) -> None:
        """Get to know a replica without sending it requests; a new address replaces an old one."""
        known = self._targets.get(replica)
        if known is not None:
            if known.url == url.rstrip("/"):
                return
            self.remove(replica)
        spec = ReplicaSpec(url=url, id=replica, model=model)
        target = self._targets[replica] = self._new_target(spec, attached=False)
        if self._running:
            self._start_watching(target)

    def attach(self, replica: str) -> None:
        """Send it requests from now on, also after `detach` or `drain` (which is then off)."""
        target = self._targets.get(replica)
        if target is None:
            return
        self._driver.forget_drain(replica)
        target.attached = True
        if target.ready and target.replica is not None:
            self._driver.join(target.replica)

    def detach(self, replica: str) -> None:
        """Send it no more; its streams go on."""
        target = self._targets.get(replica)
        if target is not None and target.attached:
            target.attached = False
            self._driver.leave(replica)

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        """Send it no more, and say so once its last stream has ended."""
        self.detach(replica)
        self._driver.when_quiet(replica, drained)

    def remove(self, replica: str) -> None:
        """Forget it; what still streams is cut."""
        self.detach(replica)
        self._driver.forget_drain(replica)
        target = self._targets.pop(replica, None)
        if target is None:
            return
        if target.watcher is not None:
            target.watcher.cancel()
        for connection in list(target.pool.open):
            connection.cut()

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets.values())

    def target(self, replica_id: str) -> Target | None:
        return self._targets.get(replica_id)

    def known_model(self, name: str) -> str:
        """Return a served model's own name, "" for any other: metric labels stay few."""
        for target in self._targets.values():
            if target.model == name:
                return name
        return ""

    def gauges(self) -> list[ReplicaGauges]:
        """Return each replica as it is now, for a scrape."""
        views = {view.id: view for view in self._driver.flow.replicas()}
        return [
            ReplicaGauges(
                id=target.id,
                model=target.model,
                ready=target.ready,
                in_flight=view.in_flight if view is not None else 0,
                limit=view.limit if view is not None else None,
                kv_reserved=view.kv_reserved if view is not None else 0,
                kv_tokens=view.kv_tokens if view is not None else None,
            )
            for target in self
            for view in (views.get(target.id),)
        ]

    def pools(self) -> list[tuple[str, Role]]:
        """The (model, role) of all replicas known, in order."""
        known = {(t.model, t.replica.role if t.replica else Role.BOTH) for t in self if t.model}
        return sorted(known)

    def rows(self, model: str, role: Role) -> list[dict[str, Any]]:
        """Describe the replicas of one pool, JSON-able."""
        views = {view.id: view for view in self._driver.flow.replicas()}
        rows = []
        for target in self:
            own_role = target.replica.role if target.replica else Role.BOTH
            if (target.model, own_role) != (model, role):
                continue
            view = views.get(target.id)
            rows.append(
                {
                    "id": target.id,
                    "url": target.url,
                    "state": "serving" if target.attached else "standby",
                    "ready": target.ready,
                    "in_flight": view.in_flight if view else 0,
                    "limit": view.limit if view else None,
                    "kv_reserved": view.kv_reserved if view else 0,
                    "kv_tokens": view.kv_tokens if view else None,
                }
            )
        return rows

    def models(self) -> list[str]:
        """Names of the models that some replica serves now, sorted."""
        return sorted({t.model for t in self._targets.values() if t.serving and t.model})

    @property
    def ready(self) -> bool:
        return any(t.serving for t in self._targets.values())

    def start(self) -> None:
        self._running = True
        for target in self._targets.values():
            self._start_watching(target)

    def _start_watching(self, target: Target) -> None:
        target.watcher = asyncio.get_running_loop().create_task(self._watch(target))

    async def stop(self) -> None:
        self._running = False
        watchers = [t.watcher for t in self._targets.values() if t.watcher is not None]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for target in self._targets.values():
            for connection in list(target.pool.open):
                connection.abort()

    def counter(self, body: Body) -> Target | None:
        """Return an engine that counts this prompt's tokens exactly; None where none has to.

        Where an engine cannot preempt, room is reserved for the worst case: exact is three times
        denser than a token for every byte.
        """
        if body.prompt_tokens is not None:
            return None
        target = self._counters.get(body.model)
        return target if target is not None and target.serving else None

    async def count_tokens(self, target: Target, body: Body) -> int | None:
        """Have an engine count a prompt; None when it does not."""
        return await count_prompt_tokens(
            target.url,
            body.route,
            body.members,
            timeout=self._spec.health_timeout,
            headers=_auth(target),
        )

    async def is_well(self, target: Target) -> bool:
        """Ask one replica's health now."""
        timeout = self._spec.health_timeout
        return await health(target.url, timeout=timeout, headers=_auth(target)) == "ready"

    def unreachable(self, replica_id: str, why: str) -> None:
        """No connection can be made: no more work for it until its health says ready."""
        self.distrust(replica_id, f"cannot connect: {why}")
        target = self._targets.get(replica_id)
        if target is not None:
            self._take_out(target)

    def distrust(self, replica_id: str, why: str) -> None:
        """A call to it broke: ask its health now; one cut connection alone takes nothing out."""
        self._metrics.upstream_failures[replica_id] += 1
        log.warning("replica %s: %s", replica_id, why)
        self.check(replica_id)

    def check(self, replica_id: str) -> None:
        """Ask its health now instead of at the next interval."""
        target = self._targets.get(replica_id)
        if target is not None:
            target.wake.set()

    async def _watch(self, target: Target) -> None:
        failures = 0
        while True:
            try:
                state = await health(
                    target.url, timeout=self._spec.health_timeout, headers=_auth(target)
                )
                if state == "ready":
                    failures = 0
                    target.last_ready = self._clock()
                    await self._bring_in(target)
                    await self._scrape(target)
                else:
                    failures += 1
                    # A busy engine may answer late: two failures in a row, unless it says loading.
                    if failures > 1 or state == "loading":
                        self._take_out(target)
                    if failures == _GONE_AFTER and any(
                        t.serving and t.model == target.model for t in self
                    ):
                        self.gone(target.id)
                    if self._clock() - target.last_ready > self._spec.unresponsive_timeout:
                        target.last_ready = self._clock()
                        self.unresponsive(target.id, f"its health says {state}")
            except Exception:
                log.exception("replica %s: its watcher failed", target.id)
            await self._pause(target)

    async def _pause(self, target: Target) -> None:
        """Sleep for the interval; a failed connection wakes it, not more often than 20 a second."""
        try:
            async with asyncio.timeout(self._spec.health_interval):
                await target.wake.wait()
                await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        target.wake.clear()

    async def _bring_in(self, target: Target) -> None:
        if target.ready:
            return
        facts = await self._facts(target)
        if facts is None:
            return
        replica = describe(target.id, target.spec, facts)
        target.dialect = DIALECTS[facts.dialect]
        target.model = replica.model
        target.frees_on_disconnect = facts.frees_on_disconnect is not False
        target.replica = replica
        if target.dialect.counts_tokens:
            self._counters[replica.model] = target
            self.counts = True
        target.ready = True
        log.info(
            "replica %s is ready: model %s, %s, slots %s, KV tokens %s",
            *(target.id, replica.model, facts.dialect, replica.slots, replica.kv_tokens),
        )
        if target.attached:
            self._driver.join(replica)

    async def _facts(self, target: Target) -> EngineFacts | None:
        timeout = self._spec.health_timeout
        try:
            facts = await probe(target.url, timeout=timeout, headers=_auth(target))
        except FetchError as error:
            log.warning("replica %s is healthy, but: %s", target.id, error)
            return None
        if target.spec.dialect not in {"auto", facts.dialect}:
            habits = DIALECTS[target.spec.dialect]
            facts = replace(
                facts,
                dialect=habits.name,
                preempts=habits.preempts,
                frees_on_disconnect=habits.frees_on_disconnect,
            )
        return facts

    def _take_out(self, target: Target) -> None:
        if not target.ready:
            return
        target.ready = False
        target.pool.close_idle()
        log.warning("replica %s is not ready", target.id)
        if target.attached:
            self._driver.leave(target.id)

    async def _scrape(self, target: Target) -> None:
        """Read the engine's own metrics; what is missing stays unknown and is counted."""
        dialect, now = target.dialect, self._clock()
        if not dialect.waiting or now < target.next_scrape or not target.ready:
            return
        slowest = max(self._spec.metrics_interval, dialect.least_interval)
        target.next_scrape = now + slowest - 0.5 * self._spec.health_interval
        text = ""
        try:
            url = target.url + dialect.metrics_path
            answer = await fetch(url, timeout=self._spec.health_timeout, headers=_auth(target))
            text = answer.text if answer.status == 200 else ""
        except FetchError as error:
            log.debug("replica %s: metrics: %s", target.id, error)
        signals = parse_signals(dialect.name, text, self._clock())
        for name in unknown_signals(dialect.name, signals):
            self._metrics.missing_signals[target.id, name] += 1
        if target.serving:
            self._driver.observe(target.id, signals)


def describe(replica_id: str, spec: ReplicaSpec, facts: EngineFacts) -> Replica:
    """Join what the configuration says with what the engine says; the configuration wins."""
    model = spec.model or (facts.models[0] if facts.models else "default")
    preempts = spec.preempts if spec.preempts is not None else facts.preempts
    block_size = spec.block_size or facts.block_size
    return Replica(
        id=replica_id,
        model=model,
        slots=spec.slots or facts.slots,
        kv_tokens=spec.kv_tokens or facts.kv_tokens,
        block_size=block_size if block_size is not None else 16,
        preempts=True if preempts is None else preempts,
        max_context=spec.max_context or facts.max_context,
    )


def _upstream_key(spec: ReplicaSpec) -> bytes | None:
    if spec.api_key_env is None:
        return None
    key = os.environ.get(spec.api_key_env, "")
    if not key:
        raise ConfigError(
            f"replicas: {spec.url}: the environment variable {spec.api_key_env} is not set"
        )
    return b"Bearer " + key.encode("latin-1")


def _auth(target: Target) -> list[tuple[bytes, bytes]]:
    return [] if target.authorization is None else [(b"authorization", target.authorization)]
