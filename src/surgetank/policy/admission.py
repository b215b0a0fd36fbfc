"""What a request is taken for on arrival, and what it turns out to have been.

Rule: estimates are made here and corrected here, from the usage engines report; nothing in this
module depends on load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from surgetank.policy.flowspec import FlowSettings, FlowSpec
from surgetank.policy.job import Account, Job
from surgetank.policy.ladder import CAP
from surgetank.policy.length import OutputLength, PromptLength, Window
from surgetank.policy.levels import Levels
from surgetank.policy.model import Model
from surgetank.policy.request import Kind, Request, Usage
from surgetank.policy.tenant import Tenant, Tier

_NO_OUTPUT: Final = frozenset({"/v1/embeddings", "/v1/messages/count_tokens"})


class Admission:
    """Tenants and their accounts, learnt lengths, and the costs and times that follow.

    Cost of a request: prefill_weight x uncached prompt tokens + decode_weight x output tokens.
    """

    def __init__(
        self,
        spec: FlowSpec,
        tenants: Iterable[Tenant],
        tiers: Iterable[Tier],
        learned: Mapping[str, Any] | None,
    ) -> None:
        self._spec = spec
        self.tiers, self.shares = _service(tiers)  # by name; priority -> min_share
        self.accounts: dict[str, Account] = {}
        for tenant in tenants:
            self._open(tenant)
        self._learns = True
        self._prompts, self._outputs = PromptLength(), OutputLength(spec.default_output_tokens)
        if learned:
            self._prompts = PromptLength.from_dict(learned["prompts"])
            self._outputs = OutputLength.from_dict(learned["outputs"], spec.default_output_tokens)

    def account(self, name: str) -> Account:
        """The tenant's account; an unknown tenant gets one with the defaults."""
        return self.accounts.get(name) or self._open(Tenant(name))

    def _open(self, tenant: Tenant) -> Account:
        tier = _tier_of(tenant, self.tiers)
        account = self.accounts[tenant.name] = Account(tenant, tier, self._spec)
        return account

    def reconfigure(self, settings: FlowSettings, jobs: Iterable[Job], now: float) -> None:
        """Serve all tenants by other settings; one that is named no more gets the defaults.

        `jobs`: all that is here. Raises ValueError, with nothing changed, as at the start.
        """
        tiers, shares = _service(settings.tiers)
        told = {tenant.name: tenant for tenant in settings.tenants}
        served = {name: told.get(name) or Tenant(name) for name in [*self.accounts, *told]}
        placed = {name: (tenant, _tier_of(tenant, tiers)) for name, tenant in served.items()}
        self._spec, self.tiers, self.shares = settings.spec, tiers, shares
        self._outputs.default = settings.spec.default_output_tokens
        here: dict[str, list[Job]] = {}
        for job in jobs:
            here.setdefault(job.account.name, []).append(job)
        for name, (tenant, tier) in placed.items():
            account = self.accounts.get(name)
            if account is None:
                self._open(tenant)
                continue
            account.serve(tenant, tier, settings.spec)
            _retune(account, tenant, here.get(name, []), now)

    def job(self, request: Request, account: Account, model: Model, now: float) -> Job:
        """What is known of a request as it arrives: the room it may need, its cost and its times.

        Sizes are by what is known of its model, script and tenant; times are the tier's, which a
        client's hint may only shorten.
        """
        spec, name = self._spec, model.name
        job = Job(request, account, model, now)
        (
            _, _, _, size, chars, exact, messages, bound, choices, _, route, job.streams, _, _,
            ttft_objective, queue_timeout, request_timeout, _, prefix,
        ) = request  # fmt: skip
        if exact is not None:
            job.least = job.worst = prompt = exact
        else:
            job.least, prompt, job.worst = self._prompts.estimate(name, size, chars, messages)
        job.prompt = job.fresh = prompt
        job.hashed = hashed = bool(prefix)
        if hashed:
            job.fresh = model.routing.paid(job)
        cap = account.most_tokens
        if cap is not None:
            bound = cap if bound is None else min(bound, cap)
        if choices < 1:
            choices = 1
        job.choices = choices
        job.default = spec.max_default_output_tokens
        if route in _NO_OUTPUT:
            job.outputs = False
            job.bound = output = 0
            usual: float = 0
        else:
            job.outputs = True
            job.bound = bound
            window = account.outputs.get(name) or self._answers(account, name)
            usual = output = self._outputs.default
            if window is not None and window.expected is not None and window.mean is not None:
                output, usual = window.expected, window.mean
            if bound is not None:
                if bound <= output:
                    output = bound
                if bound < usual:
                    usual = bound
        job.output = output
        job.to_come = to_come = output * choices
        job.estimate = prompt + to_come
        job.usual = usual
        job.cost = spec.prefill_weight * job.fresh + spec.decode_weight * usual * choices
        # What gives no hint, as most do, has the tenant's own times: Job took them.
        if ttft_objective is not None:
            job.objective = _shorter(ttft_objective, account.objective)
        if queue_timeout is not None:
            job.patience = _shorter(queue_timeout, account.patience)
        if request_timeout is not None:
            job.ends_at = now + _shorter(request_timeout, account.total)
        return job

    def cap(self, job: Job, most: int) -> float | None:
        """Bound its output, and the cost with it; its cost before, None when it was bound so."""
        if not job.outputs or (job.bound is not None and job.bound <= most):
            return None
        spec, before = self._spec, job.cost
        job.bound = most
        job.output = min(job.output, most)
        job.to_come = job.output * job.choices
        job.estimate = job.prompt + job.to_come
        job.usual = min(job.usual, most)
        output = job.usual * job.choices
        job.cost = spec.prefill_weight * job.fresh + spec.decode_weight * output
        return before

    def _answers(self, account: Account, model: str) -> Window | None:
        """How long a tenant's answers were; None before the first."""
        window = self._outputs.window(account.name, model)
        if window is not None:
            account.outputs[model] = window
        return window

    def used(self, job: Job, kind: Kind, usage: Usage | None) -> tuple[int, int, float, int]:
        """Prompt and output tokens, cost, and cached tokens of the prompt, of what ran.

        Estimated when the engine did not say.
        """
        spec = self._spec
        if usage is not None:
            prompt, output, cached = usage
            if prompt is None:
                prompt = job.prompt
            fresh = prompt - cached if prompt > cached else 0
            cost = spec.prefill_weight * fresh + spec.decode_weight * output
            return prompt, output, cost, cached
        if kind is Kind.COMPLETED or job.started:
            return job.prompt, job.to_come, job.cost, 0
        if kind is Kind.ABANDONED:
            return job.prompt, 0, spec.prefill_weight * job.prompt, 0
        return 0, 0, 0.0, 0

    def follow(self, other: Admission) -> None:
        """Estimate by what another learns of the same requests, and learn nothing."""
        self._prompts, self._outputs, self._learns = other._prompts, other._outputs, False

    def learn(self, job: Job, usage: Usage) -> None:
        """An answer came to its end: remember how long prompt and output were."""
        if not self._learns:
            return
        model = job.model.name
        prompt, output, _ = usage
        _, _, _, size, chars, exact, messages, *_ = job.request
        if prompt is not None and exact is None:
            self._prompts.observe(model, size, chars, messages, prompt)
        degraded = job.degraded
        if job.outputs and (not degraded or CAP not in degraded):  # cut short says nothing of it
            each = output // job.choices
            window = job.account.outputs.get(model)
            if window is None:
                self._outputs.observe(job.account.name, model, each)
            else:
                window.add(each)

    def answers_of(self, model: str) -> list[tuple[str, Window]]:
        """The tenants that had answers of a model, and those answers."""
        return self._outputs.windows_of(model)

    def learned(self) -> dict[str, Any]:
        """Estimates worth keeping over a restart, JSON-able."""
        return {"prompts": self._prompts.to_dict(), "outputs": self._outputs.to_dict()}


def _retune(account: Account, tenant: Tenant, jobs: list[Job], now: float) -> None:
    """Count what is here, `jobs`, on the levels that the tenant has now."""
    old = account.quota
    account.quota = None if account.open else Levels(tenant) or None
    account.limit()
    quota = account.quota
    if quota is None:
        return
    chains = [(quota.chain(job.request.key, job.request.model), job) for job in jobs]
    if old is None:
        for _, job in chains:
            job.taken = job.amounts
    quota.take_over(
        old,
        lambda level: {job.request.id: job.taken for chain, job in chains if level in chain.levels},
        now,
    )
    for job in jobs:  # chains of their own: a level's buckets may be others than before
        job.chain = quota.chain(job.request.key, job.request.model)


def _service(tiers: Iterable[Tier]) -> tuple[dict[str, Tier], dict[int, float]]:
    """Tiers by name, and by priority the share they are owed together. Raises ValueError."""
    named = {"standard": Tier()} | {tier.name: tier for tier in tiers}
    shares: dict[int, float] = {}
    for tier in named.values():
        shares[tier.priority] = shares.get(tier.priority, 0.0) + tier.min_share
    if sum(shares.values()) > 1:
        raise ValueError("tiers: their min_share add up to more than 1")
    return named, shares


def _tier_of(tenant: Tenant, tiers: Mapping[str, Tier]) -> Tier:
    tier = tiers.get(tenant.tier)
    if tier is None:
        known = ", ".join(sorted(tiers))
        raise ValueError(f"tenant {tenant.name}: tier = {tenant.tier}: must be one of {known}")
    if not tenant.weight > 0:
        raise ValueError(f"tenant {tenant.name}: weight = {tenant.weight}: must be > 0")
    return tier


def _shorter(hint: float, own: float) -> float:
    """The tenant's own time; a client's hint may only shorten it."""
    return hint if 0 < hint < own else own
