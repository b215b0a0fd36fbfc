"""Sessions: requests of one task that belong together, such as an agent's calls.

A session has begun once a request of it was sent to a replica, and ends by being idle. What it
burns is an average of its tokens per second that fades over a minute:

    burn <- burn x exp(-t / 60 s) + tokens / 60 s

with what a request is expected to use added when it is let in, and corrected at its end.

Rule: a session is told by its client's own id, within its tenant; of each tenant a bounded number
is known, nothing outlives its idle time, and what is shown of a session is a hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import exp, log
from typing import TYPE_CHECKING, Final

from surgetank.policy.promise import Key, Promises
from surgetank.policy.request import Outcome

if TYPE_CHECKING:
    from surgetank.policy.job import Job
    from surgetank.policy.placement import Load

WINDOW: Final = 60.0  # seconds over which burning fades
_MOST: Final = 4096  # sessions known of one tenant: 1.5 MB
_AT_ONCE: Final = 1e9  # a rate at which whatever is promised for later will have come by then
_LATER: Final = 1e-6  # seconds: so that rounding does not refuse who comes when told


def session_hash(tenant: str, name: str) -> int:
    """Give 64 bits to show a session by: the same in every process, and nothing of its name."""
    digest = blake2b(f"{tenant}\0{name}".encode("utf-8", "replace"), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


class Burn:
    """Tokens per second, fading over WINDOW."""

    __slots__ = ("_as_of", "_rate")

    def __init__(self) -> None:
        self._rate = 0.0
        self._as_of = 0.0

    def add(self, tokens: float, now: float) -> None:
        """So many tokens more; fewer than none corrects what was expected."""
        rate = self.at(now) + tokens / WINDOW
        self._rate = rate if rate > 0 else 0.0
        self._as_of = max(now, self._as_of)

    def at(self, now: float) -> float:
        if not self._rate or now <= self._as_of:
            return self._rate
        return self._rate * exp((self._as_of - now) / WINDOW)

    def wait(self, limit: float, now: float) -> float:
        """Seconds until it has faded to `limit`, above which it is now."""
        return WINDOW * log(self.at(now) / limit) + _LATER


class Session:
    """One session of a tenant. `home`: who served it last; `here`: its requests, waiting or not.

    `context`: tokens of its latest request, answer included: what its home may hold.
    """

    __slots__ = (
        "begun", "burn", "came", "context", "here", "home", "last", "name", "served", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.came = now
        self.last = now  # when something of it came, or ended
        self.burn = Burn()
        self.home: Load | None = None
        self.context = 0
        self.here = 0
        self.served = 0  # requests answered in full
        self.begun = False
        self.waiting: dict[Job, None] = {}


class Sessions:
    """Those of one tenant, the one idle longest first. `places`: promised to new ones."""

    __slots__ = ("_known", "_shed", "places")

    def __init__(self) -> None:
        self._known: dict[str, Session] = {}
        self._shed: dict[str, tuple[float, Outcome]] = {}  # until when, and as what
        self.places = Promises(1.0)

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[Session]:
        return list(self._known.values())

    def find(self, name: str, now: float, idle: float) -> Session | None:
        """The session of this name, unless it has ended; those that have are forgotten."""
        known = self._known
        while known:
            first = next(iter(known.values()))
            if not first.here and (first.last + idle <= now or len(known) > _MOST):
                del known[first.name]
            elif first.here and first.last + idle <= now:
                self._touch(first, now)
            else:
                break
        return known.get(name)

    def enter(self, session: Session, now: float) -> None:
        """A request of it was let in."""
        session.here += 1
        self._touch(session, now)

    def left(self, session: Session, now: float) -> None:
        """A request of it has ended; one of which none was ever sent is as if it never came."""
        session.here -= 1
        if not session.here and not session.begun:
            self._known.pop(session.name, None)
        else:
            self._touch(session, now)

    def _touch(self, session: Session, now: float) -> None:
        session.last = now
        self._known.pop(session.name, None)
        self._known[session.name] = session

    def shed(self, name: str, until: float, outcome: Outcome) -> None:
        """A session that had not begun was refused, and told to come back then."""
        shed = self._shed
        shed.pop(name, None)
        shed[name] = (until, outcome)
        if len(shed) > _MOST:
            del shed[next(iter(shed))]

    def told(self, name: str, now: float) -> tuple[float, Outcome] | None:
        """Seconds that a refused session still has to stay away, and what it was refused as."""
        found = self._shed.get(name)
        if found is None:
            return None
        until, outcome = found
        if until <= now:
            del self._shed[name]
            return None
        return until - now, outcome

    def has_place(self, most: int, key: Key, now: float) -> bool:
        """Whether one more may begin beside those that are under way, and what was promised."""
        free = most - len(self._known)
        places = self.places
        if free < 1:
            return False
        if not len(places):
            return True
        places.expire(now)
        return places.take(key, now) or places.leaves(free - 1, _AT_ONCE, now)

    def next_place(self, most: int, key: Key, now: float, idle: float, *, again: bool) -> float:
        """Seconds until one more may begin, if those under way are heard of no more; promised."""
        if again:
            left = self.places.of(key, now)
            if left:
                return left  # it came before its time
        self.places.expire(now)
        ends = sorted((now if s.here else s.last) + idle for s in self._known.values())
        turn = len(self.places) + len(self._known) - most
        at = ends[turn] if 0 <= turn < len(ends) else now + idle
        return self.places.keep(max(0.0, at - now) + _LATER, 1.0, now, key)


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as it is shown. `session` is a hash; `idle`: seconds since it was heard of."""

    session: str
    tenant: str
    tokens_per_second: float
    here: int  # requests, running or waiting
    served: int
    begun: bool
    idle: float


def views(tenant: str, sessions: Sessions, now: float) -> list[SessionView]:
    """Show a tenant's sessions."""
    return [
        SessionView(
            session=f"{session_hash(tenant, s.name):016x}",
            tenant=tenant,
            tokens_per_second=s.burn.at(now),
            here=s.here,
            served=s.served,
            begun=s.begun,
            idle=0.0 if s.here else max(0.0, now - s.last),
        )
        for s in sessions.all()
    ]
