"""Gateways in other processes: their readings summed by whoever scales, their fleets kept in step.

Rule: what a gateway should know of replicas is compared with what it says it knows, at every visit,
and only the difference is told: a gateway that was down, or began anew, is put right by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Final

from surgetank.adapters.http import FetchError, fetch
from surgetank.policy.ingress import Ingress
from surgetank.policy.replica import Role

log = logging.getLogger("surgetank.gateways")

_VERSION: Final = 1
_NUMBERS: Final = {f.name for f in fields(Ingress)} - {"gateway", "as_of", "first_tokens", "paces"}
_MAY_BE_UNKNOWN: Final = {f.name for f in fields(Ingress) if "None" in str(f.type)}
_LEAST_PAUSE: Final = 0.02  # seconds between two visits of a gateway
_DRAINING: Final = "draining"
_SERVING: Final = "serving"
_STANDBY: Final = "standby"


@dataclass(slots=True)
class _Replica:
    """What a gateway should know of one replica."""

    model: str
    url: str
    state: str = _STANDBY
    drained: Callable[[str], None] | None = None


@dataclass(slots=True)
class _Gateway:
    """One gateway: where it is, and what it said last."""

    url: str
    kick: asyncio.Event = field(default_factory=asyncio.Event)
    readings: dict[tuple[str, Role], Ingress] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    told: dict[str, tuple[float, ...]] = field(default_factory=dict)  # what it may expect
    unwell: dict[str, float] = field(default_factory=dict)  # since when
    lost: bool = False


class RemoteGateways:
    """Several gateways as one Observer, and as Routing for each pool (see autoscaler.ports).

    `urls`: admin listeners, http://HOST:PORT; `token`: their admin token; `clock`: monotonic
    seconds; `interval`: between two visits, seconds; `patience`: for one answer; `given_up_after`:
    seconds after which a serving replica that no gateway finds well is `unresponsive`.
    """

    def __init__(
        self,
        urls: Iterable[str],
        *,
        token: str | None,
        clock: Callable[[], float],
        interval: float = 0.5,
        patience: float = 2.0,
        given_up_after: float = 30.0,
    ) -> None:
        self._gateways = [_Gateway(url.rstrip("/")) for url in urls]
        self._headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
        self._clock = clock
        self._interval = interval
        self._patience = patience
        self._given_up_after = given_up_after
        self.unresponsive: Callable[[str, str], None] = lambda _id, _why: None
        self._replicas: dict[str, _Replica] = {}
        self._forgotten: set[str] = set()
        self._expected: dict[str, tuple[float, ...]] = {}  # by model, on our clock
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._visit(gateway)) for gateway in self._gateways]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Observer.

    def read(self, model: str, role: Role, now: float) -> Sequence[Ingress]:  # noqa: ARG002
        """Give every gateway's latest reading of one pool, old ones with their age."""
        found = (gateway.readings.get((model, role)) for gateway in self._gateways)
        return [reading for reading in found if reading is not None]

    # Routing: what should be; the visits bring it about.

    def add(self, replica: str, url: str, model: str) -> None:
        self._forgotten.discard(replica)
        self._replicas[replica] = _Replica(model, url.rstrip("/"))
        self._kick()

    def put(self, replica: str, state: str, drained: Callable[[str], None] | None = None) -> None:
        """Let a replica be serving, standby or draining at every gateway."""
        known = self._replicas.get(replica)
        if known is None:
            return
        known.state, known.drained = state, drained
        for gateway in self._gateways:
            gateway.drained.discard(replica)
        self._kick()

    def expect(self, model: str, seconds: Sequence[float]) -> None:
        """Let every gateway know when replicas that start will likely serve."""
        now = self._clock()
        self._expected[model] = tuple(now + s for s in seconds)

    def remove(self, replica: str) -> None:
        if self._replicas.pop(replica, None) is not None:
            self._forgotten.add(replica)
            self._kick()

    def _kick(self) -> None:
        for gateway in self._gateways:
            gateway.kick.set()

    # Visits.

    async def _visit(self, gateway: _Gateway) -> None:
        while True:
            gateway.kick.clear()
            try:
                await self._look(gateway)
                await self._put_right(gateway)
            except FetchError as error:
                if not gateway.lost:
                    log.warning("gateway %s: %s", gateway.url, error)
                gateway.lost = True
            else:
                if gateway.lost:
                    log.info("gateway %s answers again", gateway.url)
                gateway.lost = False
                self._tell_drained()
            await asyncio.sleep(_LEAST_PAUSE)
            try:
                async with asyncio.timeout(self._interval):
                    await gateway.kick.wait()
            except TimeoutError:
                pass

    async def _look(self, gateway: _Gateway) -> None:
        body = await self._ask(gateway, "/observation")
        now = self._clock()
        try:
            for row in body["pools"]:
                key = (str(row["model"]), Role(row["role"]))
                gateway.readings[key] = read_ingress(row, body["now"], now)
        except (KeyError, TypeError, ValueError) as error:
            raise FetchError(f"{gateway.url}/observation: cannot be read: {error}") from None

    async def _put_right(self, gateway: _Gateway) -> None:
        body = await self._ask(gateway, "/replicas")
        known = {row["id"]: row for row in body.get("replicas", ())}
        for replica, wanted in list(self._replicas.items()):
            for order in orders(replica, wanted.url, wanted.model, wanted.state, known):
                await self._tell(gateway, order)
            row = known.get(replica)
            self._watch_health(gateway, replica, wanted, row)
            quiet = row is None or row.get("drained") is True
            if wanted.state == _DRAINING and quiet:
                gateway.drained.add(replica)
        await self._foretell(gateway)
        for replica in self._forgotten & set(known):
            await self._tell(gateway, {"replica": replica, "do": "remove"})

    async def _foretell(self, gateway: _Gateway) -> None:
        """Say what is expected, where it is not known yet."""
        now = self._clock()
        for model, etas in list(self._expected.items()):
            if gateway.told.get(model, ()) != etas:
                ahead = [at - now for at in etas if at > now]
                await self._tell(gateway, {"do": "expect", "model": model, "seconds": ahead})
                gateway.told[model] = etas

    def _watch_health(
        self, gateway: _Gateway, replica: str, wanted: _Replica, row: Mapping[str, Any] | None
    ) -> None:
        """A replica that should serve and that no gateway has found well for long is given up."""
        now = self._clock()
        if wanted.state != _SERVING or row is None or row.get("ready"):
            gateway.unwell.pop(replica, None)
            return
        gateway.unwell.setdefault(replica, now)
        there = [g for g in self._gateways if not g.lost]
        if there and all(now - g.unwell.get(replica, now) > self._given_up_after for g in there):
            for each in there:
                each.unwell.pop(replica, None)
            self.unresponsive(replica, "no gateway finds it well")

    def _tell_drained(self) -> None:
        """A replica is quiet once every gateway that answers has no stream on it."""
        there = [gateway for gateway in self._gateways if not gateway.lost]
        for replica, wanted in list(self._replicas.items()):
            tell = wanted.drained
            if tell is not None and there and all(replica in g.drained for g in there):
                wanted.drained = None
                tell(replica)

    async def _ask(self, gateway: _Gateway, path: str) -> dict[str, Any]:
        answer = await fetch(gateway.url + path, timeout=self._patience, headers=self._headers)
        if answer.status != 200:
            raise FetchError(f"{gateway.url}{path}: answered {answer.status}")
        try:
            body = json.loads(answer.body)
            if body["v"] != _VERSION:
                raise FetchError(f"{gateway.url}{path}: version {body['v']}, expected {_VERSION}")
            return dict(body)
        except (ValueError, KeyError, TypeError) as error:
            raise FetchError(f"{gateway.url}{path}: not a gateway's answer: {error}") from None

    async def _tell(self, gateway: _Gateway, order: Mapping[str, object]) -> None:
        answer = await fetch(
            f"{gateway.url}/replicas",
            timeout=self._patience,
            headers=[*self._headers, (b"content-type", b"application/json")],
            method="POST",
            body=json.dumps(order).encode(),
        )
        if answer.status != 200:
            raise FetchError(f"{gateway.url}/replicas: answered {answer.status}: {answer.text}")


class RemoteRouting:
    """One pool's Routing over all gateways."""

    def __init__(self, gateways: RemoteGateways, model: str) -> None:
        self._gateways = gateways
        self._model = model

    def add(self, replica: str, url: str) -> None:
        self._gateways.add(replica, url, self._model)

    def attach(self, replica: str) -> None:
        self._gateways.put(replica, _SERVING)

    def detach(self, replica: str) -> None:
        self._gateways.put(replica, _STANDBY)

    def drain(self, replica: str, drained: Callable[[str], None]) -> None:
        self._gateways.put(replica, _DRAINING, drained)

    def expect(self, seconds: Sequence[float]) -> None:
        self._gateways.expect(self._model, seconds)

    def remove(self, replica: str) -> None:
        self._gateways.remove(replica)


def orders(
    replica: str, url: str, model: str, state: str, known: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return what to tell a gateway, which knows `known`, so that a replica is as it should be."""
    row = known.get(replica)
    told = []
    if row is None or row.get("url") != url:
        if state == _DRAINING:
            return []  # it has no stream on what it does not know
        told.append({"replica": replica, "do": "add", "url": url, "model": model})
        row = {"state": _STANDBY, "drained": None}
    if state == _SERVING and row["state"] != _SERVING:
        told.append({"replica": replica, "do": "attach"})
    elif state == _STANDBY and row["state"] == _SERVING:
        told.append({"replica": replica, "do": "detach"})
    elif state == _DRAINING and row.get("drained") is None:
        told.append({"replica": replica, "do": "drain"})
    return told


def read_ingress(row: Mapping[str, Any], now_there: float, now: float) -> Ingress:
    """Read one pool of an observation; its times become ours by their age. Raises FetchError.

    `now_there`: Unix seconds of the gateway at its answer; `now`: our monotonic seconds then.
    """
    numbers = {name: row[name] for name in _NUMBERS if name in row}
    for name, value in numbers.items():
        unknown = value is None and name in _MAY_BE_UNKNOWN
        if isinstance(value, bool) or not (unknown or isinstance(value, (int, float))):
            raise FetchError(f"an observation that cannot be read: {name} = {value!r}")
    try:
        points = tuple((now - (now_there - at), ttft) for at, ttft in row.get("first_tokens", ()))
        ends = row.get("paces", ())
        paces = tuple((now - (now_there - at), inf if p is None else p) for at, p in ends)
        as_of = now - (now_there - row["as_of"])
        return Ingress(str(row["gateway"]), as_of, first_tokens=points, paces=paces, **numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise FetchError(f"an observation that cannot be read: {error}") from None
