"""A scripted replica: an engine in this very process, whose every decision can be seen.

It looks like vLLM from outside (routes, metrics, shapes), serves `slots` requests at once, lets
others wait as engines do, and notes what reached it and when. Rule: what is noted happened; nothing
is judged here. Times are the event loop's seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from surgetank.errors import InputError
from surgetank.mockengine import answers
from surgetank.mockengine.connection import Connection
from surgetank.studies.conformance.behaviour import BUSY, Behaviour
from surgetank.studies.conformance.serving import Serving
from surgetank.wire.http1 import RequestHead

MODEL: Final = "conformance"
HOST: Final = "127.0.0.1"
_KEPT: Final = 20_000  # requests whose bodies and headers are remembered
_TEXT: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
_CONTEXT: Final = 131_072
_RENAMED: Final = "engine:"  # in place of vllm:, as after a rename

Page = Literal["ok", "missing", "renamed", "empty", "hang"]
"""How /metrics answers: missing is 404, empty a 200 without a line."""

End = Literal["", "answered", "left", "shed", "broken"]
"""How a request ended here: `left` when the other side closed before the answer was whole."""


@dataclass(slots=True, eq=False)
class Received:
    """A request as it came. `started`: it got a slot; None: did not happen."""

    number: int
    at: float
    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = field(repr=False)
    started: float | None = None
    ended: float | None = None
    end: End = ""
    wrote: list[float] = field(default_factory=list)  # when each of the first pieces was written

    @property
    def json(self) -> Any:
        """The body, read anew at each call."""
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The first message's text, by which a check knows its own: gateways drop other members."""
        try:
            return str(self.json["messages"][0]["content"])
        except (ValueError, LookupError, TypeError):
            return ""

    def header(self, name: str) -> str | None:
        """Return the first value of a header, lower-case name."""
        wanted = name.encode()
        found = (value for key, value in self.headers if key.lower() == wanted)
        value = next(found, None)
        return None if value is None else value.decode("latin-1")


class Replica:
    """One engine on loopback; made inside a running loop.

    `behaviour` answers each request unless `script` gives another one for it. `slots` None: all at
    once. `max_waiting` None: all may wait; else what is too much is answered by `shed`.
    """

    def __init__(self, name: str, port: int = 0, *, model: str = MODEL) -> None:
        self.name = name
        self.port = port
        self.model = model
        self.behaviour = Behaviour()
        self.script: Callable[[Received], Behaviour | None] = lambda _: None
        self.slots: int | None = None
        self.max_waiting: int | None = None
        self.shed: Behaviour = BUSY
        self.health: int | None = 200  # None: /health is never answered
        self.metrics: Page = "ok"
        self.told_waiting: int | None = None  # what /metrics says instead of the truth
        self.received: deque[Received] = deque(maxlen=_KEPT)  # requests for text
        self.paths: Counter[str] = Counter()  # all others, by method and path
        self.malformed: list[str] = []  # what came and was no proper HTTP, by its fault
        self.ends: Counter[End] = Counter()
        self.total = 0
        self.running = 0
        self.max_running = 0
        self.max_waiting_seen = 0
        self.max_in_flight = 0
        self.closing = False  # for its connections
        self.keep_alive = 60.0
        self.connections: set[Connection] = set()
        self._queue: deque[Serving] = deque()
        self._alive: set[Serving] = set()
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def waiting(self) -> int:
        """Requests here without a slot."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Requests here, waiting or running."""
        return len(self._alive)

    # Its life.

    async def start(self) -> None:
        """Open the port; 0 takes a free one and keeps it. Raises InputError when it is taken."""
        try:
            self._server = await self._loop.create_server(
                lambda: Connection(self, self.malformed.append), HOST, self.port, backlog=4096
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise InputError(f"a replica cannot listen on {HOST}:{self.port}: {why}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def die(self) -> None:
        """Vanish as after kill -9: the port refuses, every connection is reset."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self.connections):
            connection.vanish(reset=True)
        await asyncio.sleep(0)

    def forget(self) -> None:
        """Begin the counts and peaks anew; what runs goes on."""
        self.received.clear()
        self.paths.clear()
        self.malformed.clear()
        self.ends.clear()
        self.total = 0
        self.max_running = self.running
        self.max_waiting_seen = self.waiting
        self.max_in_flight = self.in_flight

    # Requests.

    def handle(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        """Answer a request (the connection's application)."""
        if head.method == "POST" and head.path in _TEXT:
            self._take(connection, head, body)
            return
        self.paths[f"{head.method} {head.target}"] += 1
        if head.path == "/health":
            if self.health is not None:
                connection.answer(self.health, b"")
        elif head.path == "/v1/models":
            connection.answer(200, answers.models(self.model, 1, _CONTEXT))
        elif head.path == "/version":
            connection.answer(200, b'{"version":"0.33.0"}')
        elif head.path == "/metrics":
            self._tell(connection)
        else:
            connection.answer(404, answers.error(404, "Not Found", "NotFoundError"))

    def _take(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        self.total += 1
        now = self._loop.time()
        headers = tuple(head.headers)
        received = Received(self.total, now, head.method, head.target, headers, body)
        self.received.append(received)
        behaviour = _of_nonsense(body, self.model) or self.script(received) or self.behaviour
        full = self.slots is not None and self.running >= self.slots
        if full and self.max_waiting is not None and self.waiting >= self.max_waiting:
            received.end, received.ended = "shed", now
            self.ends["shed"] += 1
            Serving(connection, received, replace(self.shed, service=0.0), self.model).begin(
                _nobody
            )
            return
        serving = Serving(connection, received, behaviour, self.model)
        connection.on_gone = lambda: self._end(serving, "left")
        self._alive.add(serving)
        self.max_in_flight = max(self.max_in_flight, len(self._alive))
        if full:
            self._queue.append(serving)
            self.max_waiting_seen = max(self.max_waiting_seen, len(self._queue))
        else:
            self._begin(serving)

    def _begin(self, serving: Serving) -> None:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        serving.received.started = self._loop.time()
        serving.begin(lambda end: self._end(serving, end))

    def _end(self, serving: Serving, end: End) -> None:
        if serving not in self._alive:
            return
        self._alive.discard(serving)
        serving.stop()
        received = serving.received
        received.end, received.ended = end, self._loop.time()
        self.ends[end] += 1
        if received.started is None:
            self._queue.remove(serving)
            return
        self.running -= 1
        while self._queue and (self.slots is None or self.running < self.slots):
            self._begin(self._queue.popleft())

    # What it says of itself.

    def _tell(self, connection: Connection) -> None:
        if self.metrics == "hang":
            return
        if self.metrics == "missing":
            connection.answer(404, b"Not Found", b"text/plain")
            return
        prefix = _RENAMED if self.metrics == "renamed" else "vllm:"
        waiting = self.waiting if self.told_waiting is None else self.told_waiting
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": waiting,
            "kv_cache_usage_perc": 0.0,
        }
        labels = f'{{engine="0",model_name="{self.model}"}}'
        lines = [
            f"# TYPE {prefix}{name} gauge\n{prefix}{name}{labels} {float(value)}\n"
            for name, value in values.items()
        ]
        text = "" if self.metrics == "empty" else "".join(lines)
        connection.answer(200, text.encode(), b"text/plain; version=0.0.4; charset=utf-8")


def _of_nonsense(body: bytes, model: str) -> Behaviour | None:
    """Engines answer for themselves what they cannot read, and names that they do not serve."""
    try:
        asked = json.loads(body)
    except ValueError:
        return Behaviour(status=400)
    if not isinstance(asked, dict):
        return Behaviour(status=400)
    return None if asked.get("model", model) == model else Behaviour(status=404)


def _nobody(_end: End) -> None:
    """Nobody has to know of the end of an answer that took no slot."""
