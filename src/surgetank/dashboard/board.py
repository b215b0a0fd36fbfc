"""What the page shows, kept for its viewers: a bounded ring of samples, decisions and the status.

Rule: a slow viewer costs nothing but its own place in the ring; when it falls out of the ring it
gets the whole history anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from surgetank.dashboard.burstiness import Burstiness
from surgetank.dashboard.decisions import Decisions
from surgetank.dashboard.history import History, Sample
from surgetank.dashboard.observation import Decision, Observation

SECONDS: Final = 900  # a sample a second: the last 15 minutes

_encode: Final = msgspec.json.Encoder().encode


class Status(msgspec.Struct, frozen=True):
    """`state`: connecting, live or lost, so since `since` (Unix seconds); `detail` says why.

    `autoscaler`: whether the source has one whose decisions it can tell; None: not known yet.
    `doubt`: why its decisions could not be read this time. `burstiness`: of the last 15 minutes,
    None while there are no arrivals to tell it from. `learned`: a line a model.
    """

    state: str
    since: float
    source: str
    detail: str = ""
    gateway: str = ""
    autoscaler: bool | None = None
    doubt: str = ""
    burstiness: Burstiness | None = None
    learned: list[str] = []


class Board:
    """Fed by the poll, read by every open page. One event loop."""

    def __init__(self, source: str, now: float) -> None:
        self.status = Status("connecting", now, source)
        self.closed = False
        self._history = History()
        self._samples: deque[bytes] = deque(maxlen=SECONDS)
        self._sampled = 0  # ever
        self._decisions = Decisions()
        self._decided = 0  # ever listed
        self._changed = asyncio.Event()

    def observe(self, seen: Observation, now: float) -> None:
        """The source answered."""
        self._status(state="live", detail="", gateway=seen.gateway, now=now)
        self.status = msgspec.structs.replace(self.status, learned=seen.learned)
        self._add(self._history.observe(seen, now))

    def lose(self, detail: str, now: float) -> None:
        """The source did not answer, or not usably; the charts get a gap."""
        self._status(state="lost", detail=detail, gateway=self.status.gateway, now=now)
        self._add(Sample(t=round(now, 3)))

    def decide(self, lines: list[Decision] | None) -> None:
        """The autoscaler's new lines; None when the source has no autoscaler."""
        self.status = msgspec.structs.replace(self.status, autoscaler=lines is not None, doubt="")
        self._decided += len(self._decisions.take(lines or ()))

    def doubt(self, detail: str) -> None:
        """The source answered, but its decisions could not be read."""
        self.status = msgspec.structs.replace(self.status, doubt=detail)

    def tell(self, burstiness: Burstiness) -> None:
        """New figures of the last minutes."""
        self.status = msgspec.structs.replace(self.status, burstiness=burstiness)

    def notify(self) -> None:
        """Wake every viewer: what belongs to this second is in."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """End every stream."""
        self.closed = True
        self.notify()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events for one viewer: first `history`, then a `tick` for all that is new."""
        sampled, decided = self._sampled, self._decided
        yield b"retry: 1000\n\n" + self._event("history", self._samples, self._decisions.entries)
        while not self.closed:
            changed = self._changed
            if (sampled, decided) == (self._sampled, self._decided):
                await changed.wait()
                continue
            samples = list(self._samples)
            entries = list(self._decisions.entries)
            new_samples, new_entries = self._sampled - sampled, self._decided - decided
            sampled, decided = self._sampled, self._decided
            if new_samples > len(samples) or new_entries > len(entries):
                yield self._event("history", samples, entries)
                continue
            yield self._event(
                "tick",
                samples[len(samples) - new_samples :],
                entries[len(entries) - new_entries :],
            )

    def _status(self, *, state: str, detail: str, gateway: str, now: float) -> None:
        since = self.status.since if state == self.status.state else now
        self.status = msgspec.structs.replace(
            self.status, state=state, since=since, detail=detail, gateway=gateway
        )

    def _add(self, sample: Sample) -> None:
        self._samples.append(_encode(sample))
        self._sampled += 1

    def _event(self, name: str, samples: Any, entries: Any) -> bytes:
        body = b'{"status":%b,"samples":[%b],"decisions":%b}' % (
            _encode(self.status),
            b",".join(samples),
            _encode(list(entries)),
        )
        return b"event: %b\ndata: %b\n\n" % (name.encode(), body)
