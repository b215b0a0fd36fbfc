"""Admission in shadow: what it would refuse and reorder is told, and everything is let through.

Two FlowControls hear of every request. What the first decides is carried out: its tenants in shadow
are let through. The second, the twin, has admission on for all, and nothing it decides is done.

What the twin would refuse runs all the same, and takes service from what it would admit; what would
wait has begun. So what happens in truth is told to the twin thus:
- A request that began in truth runs as long there as it did here, from its first token to its end.
- One that the twin has sent while in truth it still waits inside an engine is served by what the
  engines do meanwhile: each answer that ends of a request that the twin has refused, or has served
  already, is given to the one that was sent longest ago. The engines' work is conserved, only its
  owners are others. Without this the twin would see a fleet slowed down by what it kept out, and
  refuse ever more.
- First tokens come as soon as they did while all that was here ran in the twin too: what a prompt
  takes where nothing waits inside an engine.
- The engines' own signals are kept from it: they tell of the traffic that it keeps out.

What no twin can know: clients that are refused come back, or stay away.
Rule: the effects that go out are the first one's alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final, TypeVar

from surgetank.policy.effect import Cancel, Dispatch, Effect, Refuse
from surgetank.policy.flow import FlowControl, FlowSettings, RetryCause
from surgetank.policy.journal import Journal
from surgetank.policy.replica import Replica, Signals
from surgetank.policy.request import Outcome, Request, Usage

ADMITTED: Final = "admitted"
WAITING: Final = "waiting"
_COMPLETED: Final = Outcome.COMPLETED
_FADE: Final = 0.95  # of what prompts took, with each
_GOLDEN: Final = 0.6180339887498949
_FRESH: Final = 0.05  # weight of the latest answer in the mean pace
_KEPT: Final = 100_000  # verdicts that nobody has asked for

_K = TypeVar("_K")

Tally = dict[tuple[str, str], int]
"""By tenant and reason."""


@dataclass(slots=True)
class Verdict:
    """What admission would have done. Seconds from arrival; None: not known (yet).

    `outcome`: "waiting" until it is decided, then "admitted" or the name of an Outcome.
    """

    outcome: str = WAITING
    wait: float | None = None
    ttft: float | None = None


@dataclass(slots=True)
class ShadowCounts:
    """What was decided of tenants in shadow, so far. `refused`: by the outcome it would have had.

    `reordered`: `earlier`, sent before one that came first; `later`, after one that came later.
    """

    offered: dict[str, int] = field(default_factory=dict)  # by tenant
    admitted: dict[str, int] = field(default_factory=dict)
    refused: Tally = field(default_factory=dict)
    reordered: Tally = field(default_factory=dict)


class _Row:
    """One request in the twin.

    In truth: `seen`, when its first token came, and `lasts`, how long it ran from there to its end,
    both None before. In the twin: `begins`, when its first token is due, and `due`, when it ends,
    once that is known. `calm`: when it was sent all that was here ran in the twin too.
    """

    __slots__ = (
        "arrived",
        "begins",
        "calm",
        "due",
        "lane",
        "lasts",
        "later",
        "number",
        "request",
        "seen",
        "sent",
        "usage",
        "verdict",
    )

    def __init__(
        self, request: Request, number: int, lane: _Lane, verdict: Verdict, now: float
    ) -> None:
        self.request = request
        self.number = number
        self.lane = lane
        self.verdict = verdict
        self.arrived = now
        self.sent: float | None = None  # None: it waits
        self.seen: float | None = None
        self.lasts: float | None = None
        self.begins = self.due = inf
        self.calm = False
        self.later = False
        self.usage: Usage | None = None


class _Lane:
    """The twin's requests for one model, each dict in the order of dispatch, or of arrival.

    `pace`: seconds of a whole answer after its first token, in truth, a fading mean. `here`: how
    many there are in truth; `running`: in the twin.
    """

    __slots__ = ("began", "here", "inside", "pace", "running", "seconds", "size", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, _Row] = {}
        self.inside: dict[str, _Row] = {}  # sent, while in truth it waits inside an engine
        self.began: dict[str, _Row] = {}  # sent, before the first token in the twin
        self.pace = 0.0
        self.here = self.running = 0
        self.seconds = self.size = 0.0  # from dispatch to first token while calm, of so many bytes

    def prefill(self, row: _Row) -> float:
        """Seconds from its dispatch to its first token, with nothing in its way."""
        return self.seconds / self.size * row.request.prompt_bytes if self.size else 0.0


class Shadow:
    """A FlowControl, or its Journal, and its twin. It has all inputs of a FlowControl.

    `flow` is the one that is carried out: questions go there. `verdict` gives what the twin decided
    of a request that has ended, once.
    """

    def __init__(self, carried: FlowControl | Journal, now: float, *, kept: int = _KEPT) -> None:
        self.carried = carried
        self.flow = carried.flow if isinstance(carried, Journal) else carried
        self.counts = ShadowCounts()
        self._kept = kept
        self._rows: dict[str, _Row] = {}
        self._lanes: dict[str, _Lane] = {}
        self.verdicts: dict[str, Verdict] = {}  # that nobody has asked for
        self._sent: dict[str, float] = {}  # in truth, before the first token
        self._here: dict[str, _Lane] = {}  # all that is here in truth
        self._due: list[tuple[float, int, _Row]] = []
        self._order = count()
        settings = self.flow.settings()
        self._open = _Open(settings)
        made = _with_admission(settings)
        self._twin = FlowControl(
            made.spec,
            tenants=made.tenants,
            tiers=made.tiers,
            models=made.models,
            draw=_spread().__next__,
        )
        self._twin.estimate_as(self.flow)
        for known in self.flow.described():
            self._decide(self._twin.join(known, now), now)

    # Inputs, as FlowControl has them.

    def offer(self, request: Request, now: float) -> Sequence[Effect]:
        effects = self.carried.offer(request, now)
        name = request.id
        if any(isinstance(e, Refuse) and e.request.id == name for e in effects):
            self._heard(effects, now)  # nobody would have served it
            return effects
        verdict = Verdict()
        lane = self._lanes.get(request.model) or self._lanes.setdefault(request.model, _Lane())
        row = self._rows[name] = _Row(request, next(self._order), lane, verdict, now)
        self._here[name] = lane
        lane.here += 1
        lane.waiting[name] = row
        if self._open.of(request.tenant):
            _count(self.counts.offered, request.tenant)
            self.verdicts[name] = verdict
            if len(self.verdicts) > self._kept:
                del self.verdicts[next(iter(self.verdicts))]
        self._heard(effects, now)
        self._end_due(now)
        self._decide(self._twin.offer(request, now), now)
        return effects

    def first_token(self, request_id: str, now: float) -> Sequence[Effect]:
        effects = self.carried.first_token(request_id, now)
        sent = self._sent.pop(request_id, None)
        if sent is not None:
            self._first(request_id, now - sent, now)
        self._heard(effects, now)
        return effects

    def finish(
        self, request_id: str, outcome: Outcome, usage: Usage | None, now: float
    ) -> Sequence[Effect]:
        effects = self.carried.finish(request_id, outcome, usage, now)
        self._end(request_id, outcome, usage, now)
        self._heard(effects, now)
        return effects

    def abandon(self, request_id: str, usage: Usage | None, now: float) -> Sequence[Effect]:
        effects = self.carried.abandon(request_id, usage, now)
        self._end(request_id, Outcome.ABANDONED, usage, now)
        self._heard(effects, now)
        return effects

    def retry(
        self, request_id: str, cause: RetryCause, retry_after: float | None, now: float
    ) -> Sequence[Effect]:
        """In the twin it goes on: an engine that sheds does so for what the twin keeps out."""
        effects = self.carried.retry(request_id, cause, retry_after, now)
        self._heard(effects, now)
        return effects

    def join(self, replica: Replica, now: float) -> Sequence[Effect]:
        effects = self.carried.join(replica, now)
        self._heard(effects, now)
        self._decide(self._twin.join(replica, now), now)
        return effects

    def leave(self, replica_id: str, now: float) -> Sequence[Effect]:
        effects = self.carried.leave(replica_id, now)
        self._heard(effects, now)
        self._decide(self._twin.leave(replica_id, now), now)
        return effects

    def expect(self, model: str, etas: Iterable[float], now: float) -> Sequence[Effect]:
        times = tuple(etas)
        effects = self.carried.expect(model, times, now)
        self._heard(effects, now)
        self._decide(self._twin.expect(model, times, now), now)
        return effects

    def observe(self, replica_id: str, signals: Signals, now: float) -> Sequence[Effect]:
        effects = self.carried.observe(replica_id, signals, now)
        self._heard(effects, now)
        self._decide(self._twin.advance(now), now)
        return effects

    def reconfigure(self, settings: FlowSettings, now: float) -> Sequence[Effect]:
        effects = self.carried.reconfigure(settings, now)
        self._open = _Open(settings)
        self._heard(effects, now)
        self._decide(self._twin.reconfigure(_with_admission(settings), now), now)
        return effects

    def advance(self, now: float) -> Sequence[Effect]:
        effects = self.carried.advance(now)
        self._heard(effects, now)
        self._end_due(now)
        self._decide(self._twin.advance(now), now)
        return effects

    def next_deadline(self) -> float | None:
        own, twin = self.carried.next_deadline(), self._twin.next_deadline()
        due = self._due[0][0] if self._due else inf
        first = min(inf if own is None else own, inf if twin is None else twin, due)
        return None if first == inf else first

    # What was decided.

    def verdict(self, request_id: str) -> Verdict | None:
        """What would have become of it, once; None when its admission was on, or it was refused."""
        return self.verdicts.pop(request_id, None)

    def alive(self) -> int:
        """How many wait or run in the twin."""
        return len(self._rows)

    # What happened in truth.

    def _heard(self, effects: Sequence[Effect], now: float) -> None:
        """Take note of what is carried out."""
        for effect in effects:
            name = effect.request.id
            if isinstance(effect, Dispatch):
                self._sent[name] = now
            elif isinstance(effect, Refuse):
                self._end(name, effect.outcome, None, now)

    def _first(self, name: str, took: float, now: float) -> None:
        """A first token came, `took` seconds after its dispatch."""
        row = self._rows.get(name)
        if row is None:
            return
        row.seen = now
        if row.sent is None:
            return
        lane = row.lane
        lane.inside.pop(name, None)
        if row.calm and lane.here == lane.running:
            lane.seconds = lane.seconds * _FADE + took
            lane.size = lane.size * _FADE + max(1, row.request.prompt_bytes)
        if name in lane.began:
            self._begin(row, min(row.begins, now), now)

    def _end(self, name: str, outcome: Outcome, usage: Usage | None, now: float) -> None:
        """An answer has ended in truth."""
        self._sent.pop(name, None)
        lane = self._here.pop(name, None)
        if lane is None:
            return  # it was here before this shadow, or was never let in
        lane.here -= 1
        row = self._rows.get(name)
        if outcome is not _COMPLETED:
            if row is not None:
                self._finish(row, outcome, usage, now)
        elif row is not None:
            row.usage = usage
            row.lasts = 0.0 if row.seen is None else now - row.seen
            lane.pace += (row.lasts - lane.pace) * _FRESH
            lane.inside.pop(name, None)
            if row.sent is not None:
                self._will_end(row, row.sent, row.lasts, now)
        else:
            other = next(iter(lane.inside.values()), None)
            if other is not None and now - (other.sent or now) >= lane.pace / 2:
                self._finish(other, _COMPLETED, None, now)

    # What the twin decides.

    def _will_end(self, row: _Row, sent: float, lasts: float, now: float) -> None:
        """It was served in truth: it takes as long in the twin, from its dispatch there."""
        row.due = sent + row.lane.prefill(row) + lasts
        if row.due <= now:
            self._finish(row, _COMPLETED, row.usage, now)
        else:
            heappush(self._due, (row.due, next(self._order), row))

    def _end_due(self, now: float) -> None:
        """What is due in the twin by now: first tokens, and ends."""
        while self._due and self._due[0][0] <= now:
            due, _, row = heappop(self._due)
            name = row.request.id
            if self._rows.get(name) is not row:
                continue
            if row.begins == due and name in row.lane.began:
                self._begin(row, due, now)
            if row.due == due:
                self._finish(row, _COMPLETED, row.usage, now)

    def _finish(self, row: _Row, outcome: Outcome, usage: Usage | None, now: float) -> None:
        name = row.request.id
        if outcome is _COMPLETED and name in row.lane.began:
            self._begin(row, min(row.begins, now), now)
        self._forget(row)
        if outcome is Outcome.ABANDONED:
            self._decide(self._twin.abandon(name, usage, now), now)
        else:
            self._decide(self._twin.finish(name, outcome, usage, now), now)

    def _forget(self, row: _Row) -> None:
        name, lane = row.request.id, row.lane
        del self._rows[name]
        lane.running -= row.sent is not None
        for rows in (lane.waiting, lane.inside, lane.began):
            rows.pop(name, None)

    def _begin(self, row: _Row, at: float, now: float) -> None:
        """Its first token comes in the twin."""
        del row.lane.began[row.request.id]
        row.verdict.ttft = at - row.arrived
        self._decide(self._twin.first_token(row.request.id, now), now)

    def _decide(self, effects: Sequence[Effect], now: float) -> None:
        """Put down what the twin decided, also what follows from putting it down."""
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            row = self._rows.get(effect.request.id)
            if row is None:
                continue
            if isinstance(effect, Dispatch):
                self._send(row, now)
                continue
            self._forget(row)
            self._judge(row, effect.outcome.value, now)
            if isinstance(effect, Cancel):
                name = effect.request.id
                waiting.extend(self._twin.finish(name, effect.outcome, row.usage, now))

    def _send(self, row: _Row, now: float) -> None:
        lane, name = row.lane, row.request.id
        row.sent = now
        del lane.waiting[name]
        lane.running += 1
        row.calm = lane.here == lane.running
        self._judge(row, ADMITTED, now)
        self._compare(row)
        if row.seen is None and row.lasts is None:
            lane.inside[name] = row
        lane.began[name] = row
        if row.seen is not None or lane.size:
            row.begins = now + lane.prefill(row)
            heappush(self._due, (row.begins, next(self._order), row))
        if row.lasts is not None:
            self._will_end(row, now, row.lasts, now)

    def _compare(self, row: _Row) -> None:
        """Whom it was sent before, though they came first."""
        overtook = False
        for other in row.lane.waiting.values():
            if other.number > row.number:
                break
            overtook = True
            if not other.later:
                other.later = True
                self._reordered(other, "later")
        if overtook and not row.later:
            self._reordered(row, "earlier")

    def _judge(self, row: _Row, outcome: str, now: float) -> None:
        verdict, tenant = row.verdict, row.request.tenant
        if row.sent is None or outcome == ADMITTED:
            verdict.wait = now - row.arrived
        was, verdict.outcome = verdict.outcome, outcome
        if not self._open.of(tenant):
            return
        if outcome == ADMITTED:
            _count(self.counts.admitted, tenant)
            return
        if was == ADMITTED:  # its total time ran out
            self.counts.admitted[tenant] -= 1
        _count(self.counts.refused, (tenant, outcome))

    def _reordered(self, row: _Row, how: str) -> None:
        if self._open.of(row.request.tenant):
            _count(self.counts.reordered, (row.request.tenant, how))


class _Open:
    """Which tenants' admission is in shadow."""

    def __init__(self, settings: FlowSettings) -> None:
        self._all = settings.spec.admission == "shadow"
        self._named = {t.name: t.admission == "shadow" for t in settings.tenants if t.admission}

    def of(self, tenant: str) -> bool:
        return self._named.get(tenant, self._all)


def _with_admission(settings: FlowSettings) -> FlowSettings:
    """The same settings, with admission on for everyone."""
    return replace(
        settings,
        spec=replace(settings.spec, admission="on"),
        tenants=tuple(replace(tenant, admission=None) for tenant in settings.tenants),
    )


def _count(counts: dict[_K, int], key: _K) -> None:
    counts[key] = counts.get(key, 0) + 1


def _spread() -> Iterator[float]:
    """Numbers in [0, 1) that are spread evenly: the twin takes none from those of what is done."""
    at = 0.0
    while True:
        at = (at + _GOLDEN) % 1
        yield at


Inputs = FlowControl | Journal | Shadow


def shadowed(inputs: Inputs, now: float, *, kept: int = _KEPT) -> Inputs:
    """Give what takes the inputs: with a twin while anybody's admission is in shadow."""
    carried = inputs.carried if isinstance(inputs, Shadow) else inputs
    flow = carried.flow if isinstance(carried, Journal) else carried
    if not flow.shadows():
        return carried
    return inputs if isinstance(inputs, Shadow) else Shadow(carried, now, kept=kept)
