"""Which of several replicas with room gets a request: the one that answers first, within reason.

What is compared is work before the first token, in tokens to be computed:

    uncached = prompt - trust x (tokens of it that the replica is believed to hold)
    before   = prefill backlog + uncached

for the least loaded replica, for those that hold the longest known beginning of the prompt, and for
the one that served the session last. Affinity yields to load: whoever would have more than
1.15 x mean + 1.5 requests in flight, or be ahead of the least loaded by a quarter of its KV cache,
is left out (bounded loads, after Mirrokni, Thorup and Zadimoghaddam, SODA 2018), so that a burst of
one prefix spreads, and its copies with it. A beginning nobody holds goes to the least loaded; of
several that are equally so, to that one of two drawn which holds less (Mitzenmacher's two choices).
`trust` is the part of what was expected in caches that engines report to have found there; 1 while
they report nothing, since many never do.

Rule: a request without a beginning or a session costs nothing here, and is placed by load alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from surgetank.policy.placement import Group, Load, Placed
from surgetank.policy.prefix import MARKS, Prefixes

if TYPE_CHECKING:
    from surgetank.policy.job import Job

_SLOPE: Final = 1.15  # times the mean of requests in flight, and
_SLACK: Final = 1.5  # requests beyond: below that a difference is chance, not load
_AHEAD: Final = 0.25  # part of its KV by which it may be ahead of the least loaded
_ALL: Final = 4  # holders that are all compared; of more, two are drawn
_FADE: Final = 0.95  # of what was learnt, per request
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more


class Routing:
    """Affinity of one model's requests. `draw`: numbers in [0, 1).

    `trust`: part of what is expected in caches that is found there. `reported`: an engine has told.
    """

    __slots__ = ("_draw", "_expected", "_found", "prefixes", "reported", "trust")

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self.prefixes = Prefixes()
        self.reported = False
        self.trust = 1.0
        self._expected = self._found = 0.0

    def paid(self, job: Job) -> int:
        """Prompt tokens to pay for: not those that some replica holds, and says so.

        Who is charged the whole prompt at the end is not charged less before.
        """
        prompt, request = job.prompt, job.request
        if self.reported:
            prefix, known = request.prefix, self.prefixes.known
            marks = len(prefix)
            while marks and prefix[marks - 1] not in known:
                marks -= 1
            if marks:
                hit = prompt * MARKS[marks - 1] // request.prompt_chars
                if hit >= prompt:
                    hit = prompt - 1
                return prompt - int(hit * self.trust)
        return prompt

    def prefer(self, group: Group, job: Job, least: Placed, running: int, now: float) -> Placed:
        """Choose between the least loaded and those that hold something of the prompt.

        `running`: requests in flight on the group. Writes what it expects into the job.
        """
        prefix, known, session = job.request.prefix, self.prefixes.known, job.session
        home = None if session is None else session.home
        if home is not None and not _may_serve(home, job, least[0]):
            home = None
        holders: Load | dict[Load, None] | None = None
        marks = len(prefix)
        while marks:
            holders = known.get(prefix[marks - 1])
            if holders is not None:
                break
            marks -= 1
        if home is None:
            if holders is None:
                job.hit, job.fresh = 0, job.prompt
                return self._spread(group, job, least, now)
            if isinstance(holders, dict):
                holders = least[0] if least[0] in holders else self._least(holders)
            return self._only(group, job, least, holders, marks, running, now)
        base = least[0]
        self._expect(job, base, self._own(base, prefix, marks))
        most = _SLOPE * (running + 1) / len(group.loads) + _SLACK
        best = least
        if isinstance(holders, dict):
            holders = base if base in holders else self._least(holders)
        for load in (holders, home):  # the session's own wins where the other is as good
            if load is not None and load is not base:
                reach = self._own(load, prefix, marks)
                best = self._moved(job, best, load, reach, most, now) or best
        return best

    def _least(self, holders: dict[Load, None]) -> Load:
        """The least loaded of those that hold the same; of many, of two drawn."""
        best, *others = holders
        n = len(others) + 1
        if n > _ALL:
            draw, some = self._draw, (best, *others)
            best, others = some[int(draw() * n)], [some[int(draw() * n)]]
        least = best.prefill_backlog
        for load in others:
            backlog = load.prefill_backlog
            if backlog < least or (backlog == least and load.in_flight < best.in_flight):
                best, least = load, backlog
        return best

    def _only(
        self,
        group: Group,
        job: Job,
        least: Placed,
        load: Load,
        marks: int,
        running: int,
        now: float,
    ) -> Placed:
        """As `prefer` has it where one replica holds the beginning, and no session has a home."""
        base, tokens = least
        prompt = job.prompt
        hit = prompt * MARKS[marks - 1] // job.request.prompt_chars
        if hit >= prompt:
            hit = prompt - 1
        job.hit = hit
        job.fresh = fresh = prompt - (hit if self.trust == 1.0 else int(hit * self.trust))
        if load is base:
            return least
        if (
            load.prefill_backlog + fresh <= base.prefill_backlog + prompt
            and load.in_flight + 1 - _SLACK <= _SLOPE * (running + 1) / len(group.loads)
            and not job.failed_on
        ):
            if load.shape != base.shape:
                tokens = job.on(load)
            ahead = load.kv_reserved + tokens - base.kv_reserved
            if (
                (ahead <= _AHEAD * load.kv or ahead <= 2 * tokens)
                and (load.most >= base.most or load.most >= job.needs)
                and load.admits(tokens, job.fill, now)
            ):
                return load, tokens
        self._expect(job, base, self._own(base, job.request.prefix, marks))
        return least

    def _moved(
        self, job: Job, than: Placed, load: Load, marks: int, most: float, now: float
    ) -> Placed | None:
        """Place it there if it answers sooner, or as soon, and is not too loaded for that."""
        other, tokens = than
        backlog = load.prefill_backlog
        limit = other.prefill_backlog + job.fresh
        if backlog >= limit or load.in_flight + 1 > most:
            return None
        hit, fresh = job.hit, job.fresh
        self._expect(job, load, marks)
        if backlog + job.fresh <= limit:
            if load.shape != other.shape:
                tokens = job.on(load)
            ahead = load.kv_reserved + tokens - other.kv_reserved
            if (
                (ahead <= _AHEAD * load.kv or ahead <= 2 * tokens)
                and load.most >= min(job.needs, other.most)
                and not (job.failed_on and load.id in job.failed_on)
                and load.admits(tokens, job.fill, now)
            ):
                return load, tokens
        job.hit, job.fresh = hit, fresh
        return None

    def _own(self, load: Load, prefix: Sequence[int], marks: int) -> int:
        return self.prefixes.held(load, prefix, marks) if marks else 0

    def _expect(self, job: Job, load: Load, marks: int) -> None:
        """Write down what of the prompt this one holds: up to a mark, or the session's context."""
        prompt = job.prompt
        hit = prompt * MARKS[marks - 1] // job.request.prompt_chars if marks else 0
        session = job.session
        if session is not None and session.home is load and session.context > hit:
            hit = session.context  # what it was asked last is how this begins, or nearly
        if hit >= prompt:
            hit = prompt - 1  # one token is always computed
        job.hit = hit
        job.fresh = prompt - (hit if self.trust == 1.0 else int(hit * self.trust))

    def _spread(self, group: Group, job: Job, least: Placed, now: float) -> Placed:
        """Of those that are as little loaded, take the one of two drawn that holds less."""
        base, tokens = least
        if job.failed_on:
            return least
        pair = group.equals(base, self._draw)
        if pair is None:
            return least
        first, second = pair
        best = second if self.prefixes.size(second) < self.prefixes.size(first) else first
        return (best, tokens) if best.admits(tokens, job.fill, now) else least

    def answered(self, job: Job, cached: int) -> None:
        """An engine reported prompt tokens found in its cache; 0: none, or it does not tell."""
        if cached > 0:
            self.reported = True
        hit = job.hit
        if hit and self.reported:
            self._expected = self._expected * _FADE + hit
            self._found = self._found * _FADE + (cached if cached < hit else hit)
            self.trust = self._found / self._expected


def _may_serve(home: Load, job: Job, base: Load) -> bool:
    """Whether who served a session last is still there, and for this model."""
    return home.joined and home.role is base.role and home.replica.model == job.model.name
