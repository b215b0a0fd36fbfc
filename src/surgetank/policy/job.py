"""A request on its way through admission, and the tenant it counts for.

Rule: plain state; FlowControl alone changes it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from surgetank.policy.fairness import Lane, Waiting
from surgetank.policy.flowspec import FlowSpec
from surgetank.policy.length import Window
from surgetank.policy.levels import Chain, Levels
from surgetank.policy.placement import Load, Placed
from surgetank.policy.promise import Promises
from surgetank.policy.quota import Amounts
from surgetank.policy.replica import Role
from surgetank.policy.request import Kind, Request
from surgetank.policy.tenant import Tenant, Tier

if TYPE_CHECKING:
    from surgetank.policy.model import Model
    from surgetank.policy.session import Session, Sessions

_NO_END: Final = 1e8  # seconds: as good as never, and still a time that can be over
_PREFILL: Final = Role.PREFILL  # a member looked up in its enum takes 0.15 us, a global nothing
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more


class Account:
    """One tenant: its caps, its quota and what it has in the system.

    `open`: its admission is in shadow, so that nothing of it is refused or waits.
    """

    __slots__ = (
        "abandoned",
        "completed",
        "failed",
        "fill",
        "lanes",
        "limited",
        "most",
        "most_tokens",
        "name",
        "objective",
        "offered",
        "open",
        "outputs",
        "patience",
        "places",
        "queued",
        "queued_bytes",
        "quota",
        "refused",
        "running",
        "sessions",
        "tenant",
        "tier",
        "total",
    )

    def __init__(self, tenant: Tenant, tier: Tier, spec: FlowSpec) -> None:
        self.name = tenant.name
        self.serve(tenant, tier, spec)
        self.quota = None if self.open else Levels(tenant) or None
        self.limit()
        self.lanes: dict[str, Lane[Job]] = {}
        self.places = Promises()  # of its own queue, or of what it may run where nothing waits
        self.outputs: dict[str, Window] = {}  # by model, how long answers were
        self.sessions: Sessions | None = None  # of those who name theirs
        self.running = 0
        self.queued = 0
        self.queued_bytes = 0
        self.offered = 0
        self.completed = 0
        self.refused = 0
        self.abandoned = 0
        self.failed = 0

    def serve(self, tenant: Tenant, tier: Tier, spec: FlowSpec) -> None:
        """Take the tenant's settings; its quota and its lanes are others' to change."""
        self.tenant = tenant
        self.tier = tier
        self.fill = tier.kv_fill
        self.most_tokens = tier.max_output_tokens
        self.most: float = inf if tenant.max_running is None else tenant.max_running
        self.objective = _own(tier.ttft_objective, spec.ttft_objective)
        self.patience = _own(tier.queue_timeout, spec.queue_timeout)
        self.total = _own(tier.request_timeout, spec.request_timeout)
        self.open = (tenant.admission or spec.admission) == "shadow"
        if self.open:
            self.most_tokens, self.most, self.total = None, inf, _NO_END

    def limit(self) -> None:
        """See whether anything limits what it may ask for: most are spared the question."""
        refuses = self.most_tokens is not None and self.tier.when_above == "refuse"
        self.limited = refuses or self.quota is not None

    @property
    def full(self) -> bool:
        """It runs as many requests as it may."""
        return self.running >= self.most

    def count(self, kind: Kind) -> None:
        """One of its requests ended."""
        if kind is Kind.COMPLETED:
            self.completed += 1
        elif kind is Kind.REFUSED:
            self.refused += 1
        elif kind is Kind.ABANDONED:
            self.abandoned += 1
        else:
            self.failed += 1


def _own(tier: float | None, flow: float) -> float:
    """A tier's own time, or the flow's."""
    return flow if tier is None else tier


class Job:
    """One request from its arrival to its end. Times are monotonic seconds, costs as the flow's.

    What it may take, in tokens: `least`, `prompt` (expected) and `worst` of its prompt, `fresh` of
    that to be computed, the rest being in a cache, `output` that each of its `choices` hardly
    exceeds, `usual`, what that is on the average, and `bound`, the most of one, None when not
    given. `default`: the bound written where an engine cannot preempt and the client gave none.
    `fill`: part of a replica's KV its tier may use. `outputs` False (embeddings): no output at all.
    `to_come`: output expected of all choices; `estimate`: that and the prompt. With a quota alone:
    `chain`, the levels it counts on, and `taken`, what it took there.
    """

    __slots__ = (
        "account",
        "ahead",
        "answered",
        "arrived",
        "asked_wait",
        "attempt",
        "back",
        "bound",
        "busy",
        "chain",
        "choices",
        "cost",
        "deadline",
        "default",
        "degraded",
        "dispatched",
        "ends_at",
        "estimate",
        "failed",
        "failed_on",
        "fill",
        "fresh",
        "hashed",
        "hit",
        "lane",
        "least",
        "legs",
        "model",
        "objective",
        "output",
        "outputs",
        "patience",
        "position",
        "predicted",
        "prompt",
        "queued_at",
        "request",
        "session",
        "started",
        "streams",
        "taken",
        "to_come",
        "usual",
        "waited",
        "waiting",
        "worst",
    )

    # What is written after it was made: by admission the first, then as it goes its way.
    least: int
    prompt: int
    fresh: int
    worst: int
    output: int
    usual: float
    choices: int
    to_come: int
    estimate: int
    bound: int | None
    default: int
    streams: bool  # its first token will be seen
    hashed: bool  # its request says how the prompt begins
    outputs: bool
    cost: float
    lane: Lane[Job]
    chain: Chain
    taken: Amounts
    queued_at: float
    dispatched: float
    answered: float  # its first token was seen then, once it was
    ahead: int  # prompt tokens of streams on its replica that had no first token, its own included

    def __init__(self, request: Request, account: Account, model: Model, now: float) -> None:
        """Take the tenant's times; `Admission` writes sizes and cost."""
        self.request = request
        self.account = account
        self.model = model
        self.arrived = now
        self.objective = account.objective
        self.patience = account.patience  # seconds it may still wait in the queue
        self.ends_at = now + account.total
        self.fill = account.fill
        self.deadline = inf  # the one entry in the flow's deadlines that counts
        self.degraded = ""  # what the degradation ladder has taken from it, as it is told
        self.position = 0
        self.predicted: float | None = None
        self.waiting: Waiting[Job] | None = None
        self.waited = 0.0
        self.legs: tuple[Placed, ...] = ()  # not empty: it runs
        self.started = False  # its first token was seen
        self.back = False  # it was refused before, and came when it was told to
        self.attempt = 0
        self.busy = 0
        self.asked_wait = 0.0  # seconds, the longest that an engine that shed it has asked for
        self.failed = 0
        self.failed_on: tuple[str, ...] = ()
        self.session: Session | None = None
        self.hit = 0  # prompt tokens expected in its replica's cache

    @property
    def amounts(self) -> Amounts:
        """What it takes of quotas before it runs."""
        output, bound = self.to_come, self.bound
        if bound is not None and self.account.tenant.reserve == "most":
            output = bound * self.choices
        return _new(Amounts, (self.prompt, output))

    @property
    def needs(self) -> int:
        """Tokens of a replica that is large enough for it."""
        return self.prompt + (self.output if self.bound is None else self.bound)

    def on(self, load: Load) -> int:
        """KV tokens to reserve on a replica, in whole blocks, never more than it could use."""
        if load.role is _PREFILL:
            tokens = (self.prompt if load.preempts else self.worst) + 1
        elif load.preempts:
            tokens = self.estimate
        else:
            tokens = self.worst + self._bound(load) * self.choices
        block = load.block_size
        tokens = -(-tokens // block) * block
        return tokens if tokens <= load.most else int(load.most)

    def max_tokens(self, load: Load) -> int | None:
        """The output bound that holds on this replica; None for none."""
        if not self.outputs:
            return None
        return self.bound if load.preempts else self._bound(load)

    def _bound(self, load: Load) -> int:
        if not self.outputs:
            return 0
        bound: float = self.bound if self.bound is not None else min(self.default, load.kv // 4)
        room = min(load.context - self.least, (load.kv - self.least) // self.choices)
        return int(max(1, min(bound, room)))
