"""The replicas behind the gateway: asked what they are, watched, and told to FlowControl.

Rule: a replica joins when its own health says ready and leaves at the first sign that it is gone;
what it does not say stays unknown. A failed metrics scrape never takes a replica out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from surgetank.adapters.engines import (
    DIALECTS,
    Dialect,
    EngineFacts,
    Health,
    can_sleep,
    count_prompt_tokens,
    health,
    parse_signals,
    probe,
    unknown_signals,
)
from surgetank.adapters.http import FetchError, Tls, fetch, tls
from surgetank.adapters.loadreport import read_load
from surgetank.errors import ConfigError
from surgetank.gateway.driver import Driver
from surgetank.gateway.metrics import Metrics, ReplicaGauges
from surgetank.gateway.native import NativeRoutes
from surgetank.gateway.spec import ReplicaSpec, UpstreamSpec
from surgetank.gateway.upstream import Pool
from surgetank.policy.outlier import Outlier
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.wire.http1 import Limits
from surgetank.wire.openai import Body

log = logging.getLogger("surgetank.fleet")

_DESCRIBED: Final = (  # settings of a replica that say what it is, not where
    "model", "dialect", "slots", "kv_tokens", "block_size", "preempts", "max_context", "batching",
)  # fmt: skip
_REPORT_INTERVAL: Final = 0.1  # seconds
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
    next_report: float = 0.0  # when what it tells on an answer is read again
    signals: Signals | None = None  # what its metrics said last
    report: Signals | None = None  # and what an answer's head did
    attached: bool = True  # it is sent requests
    leaving: bool = False  # the configuration names it no more: it goes with its last stream
    facts: EngineFacts | None = None  # what it said of itself
    last_ready: float = 0.0
    replica: Replica | None = None  # what it is, once it has been asked
    watcher: asyncio.Task[None] | None = None
    routes: dict[str, bool] = field(default_factory=dict)  # beside completions: has it this one?
    tls: Tls | None = None
    outlier: Outlier = field(default_factory=Outlier)
    health: Health | None = None  # what it said last
    been_ready: bool = False
    sleeps: bool = True  # it may be asleep: its health alone does not tell

    @property
    def serving(self) -> bool:
        """It is well and gets requests."""
        return self.ready and self.attached

    @property
    def state(self) -> str:
        if self.leaving:
            return "leaving"
        return "serving" if self.attached else "standby"


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
        self.routes = NativeRoutes(self, timeout=spec.health_timeout)
        self.counts = False  # some engine counts
        self.gone: Callable[[str], None] = lambda _id: None
        self.stranded: Callable[[str], None] = lambda _model: None
        self.expects: Callable[[str], bool] = lambda _model: False  # a replica is being started
        self._lost: dict[str, asyncio.TimerHandle] = {}  # models without a replica
        self.unresponsive: Callable[[str, str], None] = lambda _id, _why: None
        self.news = asyncio.Event()  # set when a replica serves
        self._targets.update(self.prepare(spec, replicas))
        self._configured = frozenset(self._targets)

    def _new_target(self, spec: ReplicaSpec, *, attached: bool) -> Target:
        parts = urlsplit(spec.url)
        scheme = parts.scheme or "http"
        host, port = parts.hostname or "", parts.port or (443 if scheme == "https" else 80)
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        trust = _trust(spec) if scheme == "https" else None
        return Target(
            id=spec.id or authority,
            url=f"{scheme}://{authority}",
            authority=authority.encode("ascii"),
            authorization=_upstream_key(spec),
            pool=Pool(
                host,
                port,
                limits=Limits(),
                connect_timeout=self._spec.connect_timeout,
                idle_timeout=self._spec.idle_timeout,
                max_idle=self._spec.max_idle_connections,
                tls=trust,
            ),
            tls=trust,
            spec=spec,
            model=spec.model or "",
            wake=asyncio.Event(),
            attached=attached,
            last_ready=self._clock(),
        )

    # The configuration, when it is read anew.

    def prepare(self, spec: UpstreamSpec, replicas: Iterable[ReplicaSpec]) -> dict[str, Target]:
        """Make the replicas of a configuration, by id, without changing anything yet.

        Raises ConfigError for two of one id, and for a key that is in no variable.
        """
        made: dict[str, Target] = {}
        before, self._spec = self._spec, spec
        try:
            for replica in replicas:
                target = self._new_target(replica, attached=True)
                if target.id in made:
                    raise ConfigError(
                        f"replicas: two have the id {target.id}; give each its own id"
                    )
                made[target.id] = target
        finally:
            self._spec = before
        return made

    def reconfigure(self, spec: UpstreamSpec, wanted: dict[str, Target]) -> None:
        """Be what `prepare` made: what is new joins, what is named no more drains, then leaves.

        One that is only described anew goes on with its streams; so do those of one whose address
        has changed, while the new one takes its place. Replicas that an autoscaler added stay.
        """
        self._spec = spec
        for target in self._targets.values():
            target.pool.retune(
                connect_timeout=spec.connect_timeout,
                idle_timeout=spec.idle_timeout,
                max_idle=spec.max_idle_connections,
            )
        for name in self._configured - wanted.keys():
            target = self._targets[name]
            target.leaving = True
            log.info("replica %s is named no more: it drains, then leaves", name)
            self.drain(name, self.remove)
        for name, fresh in wanted.items():
            known = self._targets.get(name)
            if known is None:
                self._take_in(fresh)
                continue
            if known.leaving:  # named again before its last stream ended
                known.leaving = False
                self.attach(name)
            if known.spec != fresh.spec:
                self._change(known, fresh)
        self._configured = frozenset(wanted)

    def _take_in(self, target: Target) -> None:
        self._targets[target.id] = target
        if self._running:
            self._start_watching(target)

    def _change(self, known: Target, fresh: Target) -> None:
        if _reached_alike(known.spec, fresh.spec):
            known.spec, model = fresh.spec, known.model
            if known.facts is not None:
                self._describe(known, known.facts)
                self._lost_one(model)  # it may serve another one now
            return
        fresh.attached = known.attached
        self._take_out(known)
        if known.watcher is not None:
            known.watcher.cancel()
        known.pool.retire()
        self._take_in(fresh)

    # Replicas that come and go (see autoscaler.ports.Routing).

    def add(self, replica: str, url: str, model: str | None = None) -> None:
        """Get to know a replica without sending it requests; a new address replaces an old one."""
        known = self._targets.get(replica)
        if known is not None:
            if known.url == url.rstrip("/"):
                return
            self.remove(replica)
        spec = ReplicaSpec(url=url, id=replica, model=model)
        self._take_in(self._new_target(spec, attached=False))

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
            self._lost_one(target.model)

    def expect(self, model: str, seconds: Sequence[float]) -> None:
        """Replicas of a model start, and will likely serve in so many seconds each."""
        self._driver.expect(model, seconds)

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        """Send it no more, and say so once its last stream has ended."""
        self.detach(replica)
        self._driver.when_quiet(replica, drained)

    def remove(self, replica: str) -> None:
        """Forget it; what still streams is cut."""
        self.detach(replica)
        self._driver.forget_drain(replica)
        target = self._targets.pop(replica, None)
        self._configured -= {replica}
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
                    "state": target.state,
                    "ready": target.ready,
                    "in_flight": view.in_flight if view else 0,
                    "limit": view.limit if view else None,
                    "kv_reserved": view.kv_reserved if view else 0,
                    "kv_tokens": view.kv_tokens if view else None,
                    "dialect": target.dialect.name if target.facts else None,
                    "version": target.facts.version if target.facts else None,
                    "signals": told(target, self._clock()),
                }
            )
        return rows

    def models(self) -> list[str]:
        """Names of the models that some replica serves now, sorted."""
        return sorted({t.model for t in self._targets.values() if t.serving and t.model})

    @property
    def ready(self) -> bool:
        return any(t.serving for t in self._targets.values())

    def unserved(self, models: Iterable[str]) -> list[str]:
        """Return those of `models` that no replica serves now."""
        served = set(self.models())
        return [name for name in models if name not in served]

    def start(self) -> None:
        self._running = True
        for target in self._targets.values():
            self._start_watching(target)

    def _start_watching(self, target: Target) -> None:
        target.watcher = asyncio.get_running_loop().create_task(self._watch(target))

    async def stop(self) -> None:
        self._running = False
        for timer in self._lost.values():
            timer.cancel()
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
            tls=target.tls,
        )

    async def is_well(self, target: Target) -> bool:
        """Ask one replica's health now."""
        return await self._health(target) == "ready"

    async def _health(self, target: Target) -> Health:
        timeout = self._spec.health_timeout
        sleeps = target.sleeps or not target.ready  # another engine may have taken its place
        return await health(
            target.url, timeout=timeout, sleeps=sleeps, headers=_auth(target), tls=target.tls
        )

    def unreachable(self, replica_id: str, why: str) -> None:
        """No connection can be made: no more work for it until its health says ready."""
        self.distrust(replica_id, f"cannot connect: {why}")
        target = self._targets.get(replica_id)
        if target is not None:
            self.suspect(target)
            self._take_out(target)

    def suspect(self, target: Target) -> None:
        """A request failed on it: out with it when that is no accident and others can do its work.

        At most half of a model's replicas are out by this: where most requests fail, the requests
        are at fault, or all replicas, and refusing everybody would help nobody.
        """
        now = self._clock()
        if not target.outlier.failed() or not target.serving:
            return
        others = [t for t in self if t.model == target.model and t is not target]
        out = 1 + sum(t.outlier.is_out(now) for t in others)
        if 2 * out > len(others) + 1 or not any(t.serving for t in others):
            return
        seconds = target.outlier.put_out(now)
        log.warning("replica %s: its requests fail: none for %g s", target.id, seconds)
        self._take_out(target)

    def trust(self, target: Target) -> None:
        """A request ended well on it: forget its failures, and end its trial."""
        on_trial = target.outlier.on_trial
        target.outlier.cleared()
        if on_trial and target.serving and target.replica is not None:
            self._driver.leave(target.id)  # what was learnt of it was learnt with one request
            self._driver.join(target.replica)

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
                state = target.health = await self._health(target)
                if state == "ready":
                    failures = 0
                    target.last_ready = self._clock()
                    if not target.outlier.is_out(target.last_ready):
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
        limit, headers = self._spec.health_timeout, _auth(target)
        sleeps = await can_sleep(target.url, limit, headers=headers, tls=target.tls)
        if facts is None or target.ready:
            return
        target.sleeps = sleeps
        target.ready = True
        self._describe(target, facts)

    def _describe(self, target: Target, facts: EngineFacts) -> None:
        """Take what it said of itself, as its settings have it, and let it serve if it may."""
        target.facts = facts
        facts = _as_told(target.spec, facts)
        replica = describe(target.id, target.spec, facts)
        target.dialect = DIALECTS[facts.dialect]
        target.routes.clear()
        target.model = replica.model
        target.frees_on_disconnect = facts.frees_on_disconnect is not False
        target.replica = replica
        if target.dialect.counts_tokens:
            self._counters[replica.model] = target
            self.counts = True
        if target.ready:
            target.been_ready = True
            log.info(
                "replica %s is ready: model %s, %s, slots %s, KV tokens %s",
                *(target.id, replica.model, facts.dialect, replica.slots, replica.kv_tokens),
            )
        if target.serving:
            trial = target.outlier.on_trial
            self._driver.join(replace(replica, slots=1) if trial else replica)
            self.news.set()

    async def _facts(self, target: Target) -> EngineFacts | None:
        timeout = self._spec.health_timeout
        try:
            return await probe(target.url, timeout=timeout, headers=_auth(target), tls=target.tls)
        except FetchError as error:
            log.warning("replica %s is healthy, but: %s", target.id, error)
            return None

    def _take_out(self, target: Target) -> None:
        if not target.ready:
            return
        target.ready = False
        target.pool.close_idle()
        log.warning("replica %s is not ready", target.id)
        if target.attached:
            self._driver.leave(target.id)
            self._lost_one(target.model)

    def _lost_one(self, model: str) -> None:
        """Look in a while whether what waits for a model still waits for something."""
        if self._running and model not in self._lost and not self._is_served(model):
            loop = asyncio.get_running_loop()
            delay = self._spec.lost_grace
            self._lost[model] = loop.call_later(delay, self._look_for, model)

    def _look_for(self, model: str) -> None:
        del self._lost[model]
        if self._is_served(model):
            return
        expected = any(self._is_expected(t) for t in self if t.model in {model, ""})
        if expected or self.expects(model):
            self._lost_one(model)
        else:
            self.stranded(model)

    def _is_served(self, model: str) -> bool:
        return any(t.serving for t in self if t.model == model)

    def _is_expected(self, target: Target) -> bool:
        """Whether it is about to serve: it loads, or stands by, or starts for the first time."""
        starts = self._clock() - target.last_ready < self._spec.unresponsive_timeout
        return target.health == "loading" or target.ready or (starts and not target.been_ready)

    def reported(self, target: Target, value: bytes) -> None:
        """An answer's head told the engine's load: read it, ten times a second at most."""
        now = self._clock()
        if now < target.next_report:
            return
        target.next_report = now + _REPORT_INTERVAL
        signals = read_load(value, now)
        if signals is None:
            self._metrics.missing_signals[target.id, "load header"] += 1
            return
        target.report = signals
        if target.serving:
            self._driver.observe(target.id, signals)

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
            answer = await fetch(
                url, timeout=self._spec.health_timeout, headers=_auth(target), tls=target.tls
            )
            text = answer.text if answer.status == 200 else ""
        except FetchError as error:
            log.debug("replica %s: metrics: %s", target.id, error)
        signals = target.signals = parse_signals(dialect.name, text, self._clock())
        for name in unknown_signals(dialect.name, signals):
            self._metrics.missing_signals[target.id, name] += 1
        if target.serving:
            self._driver.observe(target.id, signals)


def told(target: Target, now: float) -> dict[str, float | None]:
    """What an engine said last of itself, and seconds since; None is unknown, never 0."""
    newest = sorted((s for s in (target.signals, target.report) if s), key=lambda s: -s.as_of)
    said: dict[str, float | None] = {
        name: next((v for s in newest if (v := getattr(s, name)) is not None), None)
        for name in ("waiting", "running", "kv_used")
    }
    return said | {"age": round(now - newest[0].as_of, 3) if newest else None}


def _reached_alike(one: ReplicaSpec, other: ReplicaSpec) -> bool:
    """Whether two settings differ in what a replica is at most, not in how it is reached."""
    described = {name: getattr(other, name) for name in _DESCRIBED}
    return replace(one, **described) == other


def _as_told(spec: ReplicaSpec, facts: EngineFacts) -> EngineFacts:
    """Give it the habits of the dialect that its settings name."""
    if spec.dialect in {"auto", facts.dialect}:
        return facts
    habits = DIALECTS[spec.dialect]
    return replace(
        facts,
        dialect=habits.name,
        preempts=habits.preempts,
        frees_on_disconnect=habits.frees_on_disconnect,
    )


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
        batching=spec.batching,
    )


def _trust(spec: ReplicaSpec) -> Tls:
    """Build what an https replica is verified with. Raises ConfigError."""
    try:
        return tls(spec.ca_file, spec.server_name, verify=spec.verify_certificate)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"replicas: {spec.url}: ca_file = {spec.ca_file}: {reason}") from None


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
