"""What a request is taken for on arrival, and what it turns out to have been.

Rule: estimates are made here and corrected here, from the usage engines report; nothing in this
module depends on load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from surgetank.policy.flowspec import FlowSettings, FlowSpec
from surgetank.policy.job import Account, Job
from surgetank.policy.length import OutputLength, PromptLength, Window
from surgetank.policy.model import Model
from surgetank.policy.quota import Amounts, retuned
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
        reserved: dict[str, list[Amounts]] = {}
        for job in jobs:
            reserved.setdefault(job.account.name, []).append(job.reserved)
        for name, (tenant, tier) in placed.items():
            account = self.accounts.get(name)
            if account is None:
                self._open(tenant)
                continue
            account.serve(tenant, tier, settings.spec)
            account.quota = retuned(account.quota, tenant, reserved.get(name, ()), now)

    def job(self, request: Request, account: Account, model: Model, now: float) -> Job:
        """What is known of a request as it arrives: the room it may need, its cost and its times.

        Sizes are by what is known of its model, script and tenant; times are the tier's, which a
        client's hint may only shorten.
        """
        spec, name = self._spec, model.name
        job = Job(request, account, model, now)
        (
            _, _, _, size, chars, exact, messages, bound, choices, _, route, _, _, _,
            ttft_objective, queue_timeout, request_timeout,
        ) = request  # fmt: skip
        if exact is not None:
            job.least = job.worst = prompt = exact
        else:
            job.least, prompt, job.worst = self._prompts.estimate(name, size, chars, messages)
        job.prompt = prompt
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
        else:
            job.outputs = True
            job.bound = bound
            window = account.outputs.get(name) or self._answers(account, name)
            output = self._outputs.default
            if window is not None and window.expected is not None:
                output = window.expected
            if bound is not None and bound <= output:
                output = bound
        job.output = output
        job.to_come = to_come = output * choices
        job.estimate = prompt + to_come
        job.cost = spec.prefill_weight * prompt + spec.decode_weight * output * choices
        # What gives no hint, as most do, has the tenant's own times: Job took them.
        if ttft_objective is not None:
            job.objective = _shorter(ttft_objective, account.objective)
        if queue_timeout is not None:
            job.patience = _shorter(queue_timeout, account.patience)
        if request_timeout is not None:
            job.ends_at = now + _shorter(request_timeout, account.total)
        return job

    def _answers(self, account: Account, model: str) -> Window | None:
        """How long a tenant's answers were; None before the first."""
        window = self._outputs.window(account.name, model)
        if window is not None:
            account.outputs[model] = window
        return window

    def used(self, job: Job, kind: Kind, usage: Usage | None) -> tuple[int, int, float]:
        """Prompt and output tokens and cost of what ran; estimated when the engine did not say."""
        spec = self._spec
        if usage is not None:
            prompt, output, cached = usage
            if prompt is None:
                prompt = job.prompt
            fresh = prompt - cached if prompt > cached else 0
            return prompt, output, spec.prefill_weight * fresh + spec.decode_weight * output
        if kind is Kind.COMPLETED or job.started:
            return job.prompt, job.to_come, job.cost
        if kind is Kind.ABANDONED:
            return job.prompt, 0, spec.prefill_weight * job.prompt
        return 0, 0, 0.0

    def learn(self, job: Job, usage: Usage) -> None:
        """An answer came to its end: remember how long prompt and output were."""
        model = job.model.name
        prompt, output, _ = usage
        request = job.request
        if prompt is not None and request.prompt_tokens is None:
            size, chars, messages = request.prompt_bytes, request.prompt_chars, request.messages
            self._prompts.observe(model, size, chars, messages, prompt)
        if job.outputs:
            each = output // job.choices
            window = job.account.outputs.get(model)
            if window is None:
                self._outputs.observe(job.account.name, model, each)
            else:
                window.add(each)

    def learned(self) -> dict[str, Any]:
        """Estimates worth keeping over a restart, JSON-able."""
        return {"prompts": self._prompts.to_dict(), "outputs": self._outputs.to_dict()}


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
