"""The simulated replica: vLLM's routes over the batcher, and its life from loading to SIGTERM.

| route | answer |
|---|---|
| POST /v1/chat/completions, /v1/completions | text, streamed or whole |
| POST /v1/responses, /v1/messages | the same |
| POST /v1/embeddings, /v1/messages/count_tokens | vectors of eight numbers; a count of tokens |
| GET /v1/models, /health, /version, /metrics | as vLLM's |
| GET /mock/faults | the faults that are on |
| POST /mock/faults | switch one more on: `{"kind": "cut", "after": 5, "times": 1}`; see `faults` |
| DELETE /mock/faults | switch all off |

The header `endpoint-load-metrics-format: JSON` (or TEXT) is answered on whole answers only: vLLM
puts no load on the head of a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from surgetank import __version__
from surgetank.engine.prefixcache import PrefixCache
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica
from surgetank.engine.static import StaticBatcher
from surgetank.errors import InputError
from surgetank.mockengine import answers, asked, native, text
from surgetank.mockengine.asked import Asked, Refused
from surgetank.mockengine.batcher import Batcher
from surgetank.mockengine.connection import Connection, Headers
from surgetank.mockengine.driver import Driver
from surgetank.mockengine.faults import Fault, FaultKind, Faults, build
from surgetank.mockengine.generation import Generation
from surgetank.mockengine.metrics import EngineMetrics
from surgetank.mockengine.text import OutputSpec
from surgetank.wire.http1 import RequestHead

_GARBAGE: Final = b"\x16\x03\x01\x02\x00 this is not HTTP \xff\xfe\r\n\r\n"
_KINDS: Final = {True: "chatcmpl", False: "cmpl"}
_LOADING: Final = answers.error(503, "Loading model", "unavailable_error")
_LEAVE: Final = 2.0  # seconds for clients to take the last bytes at the end


@dataclass(frozen=True, slots=True)
class MockSpec:
    """A replica as it is started.

    `speed`: engine seconds per real second. `cold_start`: engine seconds of loading; meanwhile the
    port refuses (as vLLM's) or answers 503 (as llama.cpp's), by `loading`. `keep_alive`: real
    seconds after which an idle connection is closed, as vLLM's server does. `shed`: a stream that
    is one too many gets a 503, or 200 and an error event, as vLLM answers in a simultaneous burst.
    `prefix_cache`: prompts that begin as earlier ones are computed from there on, and the usage of
    chats and completions tells (with vLLM's --enable-prompt-tokens-details).
    `static_batch`: it runs whole batches of so many (see `engine.static`); None: continuously.
    """

    profile: EngineProfile
    model: str
    host: str = "127.0.0.1"
    port: int = 0
    seed: int = 0
    speed: float = 1.0
    cold_start: float = 0.0
    loading: Literal["refuse", "503"] = "refuse"
    keep_alive: float = 5.0
    shed: Literal["status", "event"] = "status"
    prefix_cache: bool = False
    static_batch: int | None = None
    output: OutputSpec = field(default_factory=OutputSpec)
    faults: tuple[Fault, ...] = ()


class MockEngine:
    """The application behind the connections; made inside a running loop."""

    def __init__(self, spec: MockSpec) -> None:
        self.spec = spec
        self.connections: set[Connection] = set()
        self.closing = False
        self.keep_alive = spec.keep_alive
        self.loading = spec.cold_start > 0
        self.faults = Faults(spec.faults, spec.seed, time.monotonic())
        batcher: Batcher = (
            Replica(spec.profile, plain=True)
            if spec.static_batch is None
            else StaticBatcher(spec.profile, spec.static_batch)
        )
        self.cache = PrefixCache(spec.profile.kv_tokens) if spec.prefix_cache else None
        self.metrics = EngineMetrics(spec.model, spec.profile, batcher, caches=spec.prefix_cache)
        self.batcher = batcher
        self.driver = Driver(batcher, self.metrics, asyncio.get_running_loop(), spec.speed)
        self._pacing: asyncio.TimerHandle | None = None
        self._pace()
        self._generations: set[Generation] = set()
        self._number = 0
        self._created = int(time.time())
        self._server: asyncio.Server | None = None
        self._routes: dict[tuple[str, str], Callable[[Connection, RequestHead, bytes], None]] = {
            ("POST", asked.CHAT): self._generate,
            ("POST", asked.COMPLETIONS): self._generate,
            **{("POST", route): self._generate for route in native.ROUTES},
            ("POST", native.COUNT_TOKENS): self._count_tokens,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/mock/faults"): self._faults_listed,
            ("POST", "/mock/faults"): self._faults_add,
            ("DELETE", "/mock/faults"): self._faults_clear,
        }
        self._paths = {path for _, path in self._routes}

    # --- its life

    async def listen(self) -> str:
        """Open the port; returns the address, `http://host:port`. Raises InputError."""
        loop = asyncio.get_running_loop()
        host, port = self.spec.host, self.spec.port
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host, port, backlog=1024
            )
        except OSError as error:
            raise InputError(
                f"--host {host} --port {port}: cannot listen: {error.strerror or error}"
            ) from None
        bound = self._server.sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}"

    def loaded(self) -> None:
        """Go from loading to serving."""
        self.loading = False

    async def close(self) -> None:
        """End as on SIGTERM: no new connections, streams end with "abort", the port is closed."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for generation in list(self._generations):
            generation.shut_down()
        for connection in list(self.connections):
            if connection.idle:
                connection.vanish()
        if self._pacing is not None:
            self._pacing.cancel()
        self.driver.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_gone(), _LEAVE)
        for connection in list(self.connections):
            connection.vanish(reset=True)

    async def _all_gone(self) -> None:
        for connection in list(self.connections):
            await connection.gone.wait()

    # --- routes

    def handle(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        route = self._routes.get((head.method, head.path))
        if route is not None:
            route(connection, head, body)
        elif head.path in self._paths:
            connection.answer(405, b'{"detail":"Method Not Allowed"}')
        else:
            connection.answer(404, b'{"detail":"Not Found"}')

    def _health(self, connection: Connection, _head: RequestHead, _body: bytes) -> None:
        fault = self.faults.for_health()
        if self.loading:
            connection.answer(503, _LOADING)
        elif fault is None:
            connection.answer(200, b"")
        elif fault.kind is FaultKind.HEALTH_ERROR:
            connection.answer(fault.status, b"")

    def _version(self, connection: Connection, _head: RequestHead, _body: bytes) -> None:
        connection.answer(200, answers.compact({"version": f"surgetank-{__version__}"}))

    def _models(self, connection: Connection, _head: RequestHead, _body: bytes) -> None:
        limit = self.spec.profile.max_model_len
        connection.answer(200, answers.models(self.spec.model, self._created, limit))

    def _metrics(self, connection: Connection, _head: RequestHead, _body: bytes) -> None:
        fault = self.faults.for_scrape()
        kind = b"text/plain; version=0.0.4; charset=utf-8"
        if fault is None:
            connection.answer(200, self.metrics.render(), kind)
        elif fault.kind is FaultKind.METRICS_LIE:
            lie = (fault.running, fault.waiting, fault.kv)
            connection.answer(200, self.metrics.render(lie), kind)
        elif fault.kind is FaultKind.METRICS_DROP:
            connection.answer(200, b"", kind)
        else:
            connection.answer(fault.status, b"Internal Server Error", b"text/plain")

    def _faults_listed(self, connection: Connection, _head: RequestHead, _body: bytes) -> None:
        connection.answer(200, answers.compact({"faults": self.faults.listed()}))

    def _faults_add(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        try:
            given: Any = json.loads(body)
            self.faults.add(build(given if isinstance(given, dict) else {}), time.monotonic())
        except (InputError, ValueError) as error:
            connection.answer(400, answers.error(400, str(error), "BadRequestError"))
            return
        self._pace()
        self._faults_listed(connection, head, body)

    def _faults_clear(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        self.faults.clear()
        self._pace()
        self._faults_listed(connection, head, body)

    def _pace(self) -> None:
        """Run the engine as fast as its faults let it, and look again when they change."""
        if self._pacing is not None:
            self._pacing.cancel()
            self._pacing = None
        now = time.monotonic()
        factor, until = self.faults.slowness(now)
        self.driver.slow(factor)
        if until < math.inf:
            # Timers count milliseconds: rounded up, none comes before the change.
            delay = math.ceil((until - now) * 1e3) / 1e3
            self._pacing = asyncio.get_running_loop().call_later(delay, self._pace)

    # --- text

    def _generate(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        if self.loading:
            connection.answer(503, _LOADING)
            return
        fault = self.faults.for_request()
        if fault is not None and self._misbehaves(connection, fault):
            return
        self._number += 1
        try:
            read = native.read if head.path in native.ROUTES else asked.read
            wanted = read(head.path, body)
            self._check_model(wanted)
            seed = f"{self.spec.seed}/{self._number if wanted.seed is None else f's{wanted.seed}'}"
            limit = self.spec.profile.max_model_len
            choices = text.draw(wanted, self.spec.output, limit, random.Random(seed))
        except Refused as refused:
            error = answers.error(refused.status, refused.message, refused.type, refused.param)
            connection.answer(refused.status, error)
            return
        if not self.driver.has_room(wanted.choices):
            self._shed(connection, wanted)
            return
        given = (head.get(b"x-request-id") or b"").decode("latin-1")
        name = given or f"{random.Random(seed).getrandbits(64):016x}"
        load = head.get(b"endpoint-load-metrics-format")
        generation = Generation(
            number=self._number,
            id_=name if head.path in native.ROUTES else f"{_KINDS[wanted.chat]}-{name}",
            created=int(time.time()),
            model=self.spec.model,
            asked=wanted,
            choices=choices,
            fault=fault,
            driver=self.driver,
            connection=connection,
            load_header=lambda: self._load(load),
            on_end=self._generations.discard,
            cached=self._cached(head.path, body, wanted),
        )
        self._generations.add(generation)
        generation.begin()

    def _cached(self, route: str, body: bytes, wanted: Asked) -> int | None:
        """Look a prompt up in the prefix cache, and put it there; None without one."""
        if self.cache is None or route in native.ROUTES:
            return None
        blocks = asked.blocks(route, body)
        cached = min(self.cache.found(blocks), wanted.prompt_tokens - 1)
        self.cache.hold(blocks)
        self.metrics.cache_queries.inc(wanted.prompt_tokens)
        self.metrics.cache_hits.inc(cached)
        return cached

    def _count_tokens(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        try:
            wanted = native.read(head.path, body)
            self._check_model(wanted)
        except Refused as refused:
            error = answers.error(refused.status, refused.message, refused.type, refused.param)
            connection.answer(refused.status, error)
            return
        connection.answer(200, answers.compact({"input_tokens": wanted.prompt_tokens}))

    def _misbehaves(self, connection: Connection, fault: Fault) -> bool:
        """Apply a fault of the connection; True when it was the whole answer."""
        if fault.kind is FaultKind.STATUS:
            headers = [(b"retry-after", fault.retry_after.encode())] if fault.retry_after else []
            error = answers.error(fault.status, "A fault was asked for.", "InjectedFault")
            connection.answer(fault.status, error, headers=headers)
            return True
        if fault.kind is FaultKind.GARBAGE:
            connection.send_garbage(_GARBAGE)
            return True
        if fault.kind is FaultKind.SLOW_HEADERS:
            connection.hold(fault.seconds)
        elif fault.kind is FaultKind.TRICKLE:
            connection.trickle(fault.seconds)
        return False

    def _check_model(self, wanted: Asked) -> None:
        if wanted.model and wanted.model != self.spec.model:
            raise Refused(
                404,
                f"The model `{wanted.model}` does not exist. Valid aliases: {self.spec.model}.",
                "NotFoundError",
                "model",
            )

    def _shed(self, connection: Connection, wanted: Asked) -> None:
        self.metrics.rejections["max_num_queued_reqs"].inc()
        if wanted.stream and self.spec.shed == "event":
            connection.open_stream()
            connection.send(answers.error_event(503, answers.BUSY, "Service Unavailable"))
            connection.send(answers.DONE)
            connection.end_stream()
        else:
            error = answers.error(503, answers.BUSY, "Service Unavailable")
            connection.answer(503, error)

    def _load(self, form: bytes | None) -> Headers:
        if form is None:
            return []
        lie = self.faults.lie()
        values = {
            "kv_cache_usage_perc": self.metrics.kv_usage() if lie is None else lie.kv,
            "num_requests_waiting": float(self.metrics.waiting if lie is None else lie.waiting),
        }
        header = answers.load_header(form.decode("latin-1"), values)
        return [] if header is None else [header]


async def serve(spec: MockSpec, ready: Callable[[str], None]) -> None:
    """Run a replica until SIGTERM or SIGINT; `ready` gets its address once it serves.

    While it loads with `loading="503"`, the port is open before `ready` is called.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = MockEngine(spec)
    address = await engine.listen() if spec.loading == "503" or not engine.loading else ""
    if engine.loading:
        try:
            await asyncio.wait_for(stop.wait(), spec.cold_start / spec.speed)
        except TimeoutError:
            engine.loaded()
            address = address or await engine.listen()
    if not stop.is_set():
        ready(address)
        await stop.wait()
    await engine.close()


def run(spec: MockSpec, ready: Callable[[str], None]) -> None:
    """Run `serve` in a loop of its own, on uvloop where there is one."""
    try:
        import uvloop  # noqa: PLC0415 - optional here: the engine runs without it too
    except ImportError:
        factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(spec, ready))
