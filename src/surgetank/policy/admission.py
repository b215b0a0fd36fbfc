"""What a request is taken for on arrival, and what it turns out to have been.

Rule: estimates are made here and corrected here, from the usage engines report; nothing in this
module depends on load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from surgetank.policy.flowspec import FlowSpec
from surgetank.policy.job import Account, Job
from surgetank.policy.length import OutputLength, PromptLength
from surgetank.policy.model import Model
from surgetank.policy.placement import Demand
from surgetank.policy.request import Kind, Request, Usage
from surgetank.policy.tenant import Tenant, Tier

_NO_OUTPUT: Final = frozenset({"/v1/embeddings"})


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
        self.tiers = {"standard": Tier()} | {tier.name: tier for tier in tiers}
        self.shares: dict[int, float] = {}  # priority -> min_share
        for tier in self.tiers.values():
            self.shares[tier.priority] = self.shares.get(tier.priority, 0.0) + tier.min_share
        if sum(self.shares.values()) > 1:
            raise ValueError("tiers: their min_share add up to more than 1")
        self.accounts: dict[str, Account] = {}
        for tenant in tenants:
            self._open(tenant)
        self._prompts, self._outputs = PromptLength(), OutputLength(spec.default_output_tokens)
        if learned:
            self._prompts = PromptLength.from_dict(learned["prompts"])
            self._outputs = OutputLength.from_dict(learned["outputs"], spec.default_output_tokens)

    def account(self, name: str) -> Account:
        """The tenant's account; an unknown tenant gets one with the defaults."""
        return self.accounts.get(name) or self._open(Tenant(name))

    def _open(self, tenant: Tenant) -> Account:
        tier = self.tiers.get(tenant.tier)
        if tier is None:
            known = ", ".join(sorted(self.tiers))
            raise ValueError(f"tenant {tenant.name}: tier = {tenant.tier}: must be one of {known}")
        if not tenant.weight > 0:
            raise ValueError(f"tenant {tenant.name}: weight = {tenant.weight}: must be > 0")
        account = self.accounts[tenant.name] = Account(tenant, tier, self._spec)
        return account

    def demand(self, request: Request, account: Account, model: Model) -> Demand:
        """The room it may need, by what is known of its model, script and tenant."""
        exact = request.prompt_tokens
        if exact is not None:
            least = expected = worst = exact
        else:
            least, expected, worst = self._prompts.estimate(
                model.name, request.prompt_bytes, request.prompt_chars, request.messages
            )
        tier, choices = account.tier, request.choices
        bound, cap = request.max_tokens, tier.max_tokens
        if cap is not None:
            bound = cap if bound is None else min(bound, cap)
        outputs = request.route not in _NO_OUTPUT
        return Demand(
            least,
            expected,
            worst,
            self._outputs.expect(account.name, model.name, bound) if outputs else 0,
            bound if outputs else 0,
            self._spec.max_default_output_tokens,
            choices if choices > 1 else 1,
            tier.kv_fill,
            outputs,
        )

    def job(
        self, request: Request, account: Account, model: Model, demand: Demand, now: float
    ) -> Job:
        """Its cost and its times: the tier's, which a client's hint may only shorten."""
        spec = self._spec
        job = Job(request, account, model, demand, now)
        prefill = spec.prefill_weight * demand.expected
        job.cost = prefill + spec.decode_weight * demand.output * demand.choices
        # What gives no hint, as most do, has the tenant's own times: Job took them.
        if request.ttft_objective is not None:
            job.objective = _shorter(request.ttft_objective, account.objective)
        if request.queue_timeout is not None:
            job.patience = _shorter(request.queue_timeout, account.patience)
        if request.request_timeout is not None:
            job.ends_at = now + _shorter(request.request_timeout, account.total)
        return job

    def used(self, job: Job, kind: Kind, usage: Usage | None) -> tuple[int, float]:
        """Tokens and cost of what ran; estimated when the engine did not say."""
        spec = self._spec
        if usage is not None:
            prompt = usage.prompt_tokens
            if prompt is None:
                prompt = job.demand.expected
            fresh = prompt - usage.cached_tokens
            if fresh < 0:
                fresh = 0
            cost = spec.prefill_weight * fresh + spec.decode_weight * usage.output_tokens
            return prompt + usage.output_tokens, cost
        if kind is Kind.COMPLETED or job.started:
            return job.estimate, job.cost
        if kind is Kind.ABANDONED:
            return job.demand.expected, spec.prefill_weight * job.demand.expected
        return 0, 0.0

    def learn(self, job: Job, usage: Usage) -> None:
        """An answer came to its end: remember how long prompt and output were."""
        request, model = job.request, job.model.name
        if request.prompt_tokens is None and usage.prompt_tokens is not None:
            self._prompts.observe(
                model,
                request.prompt_bytes,
                request.prompt_chars,
                request.messages,
                usage.prompt_tokens,
            )
        if job.demand.outputs:
            each = usage.output_tokens // job.demand.choices
            self._outputs.observe(request.tenant, model, each)

    def learned(self) -> dict[str, Any]:
        """Estimates worth keeping over a restart, JSON-able."""
        return {"prompts": self._prompts.to_dict(), "outputs": self._outputs.to_dict()}


def _shorter(hint: float, own: float) -> float:
    """The tenant's own time; a client's hint may only shorten it."""
    return hint if 0 < hint < own else own
