"""What is simulated: a workload, pools of replicas, clients, objectives, and one policy by name.

Rule: data only. The same scenario and seed give the same result, whatever the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from surgetank.engine.coldstart import ColdStart, of_profile
from surgetank.engine.profile import EngineProfile
from surgetank.engine.steptime import StepWork, step_seconds
from surgetank.errors import InputError
from surgetank.policy.flow import FlowSpec
from surgetank.policy.ladder import LadderSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.pool import PoolSpec
from surgetank.policy.replica import Replica, Role
from surgetank.policy.tenant import Tenant, Tier
from surgetank.simulation.clients import ClientSpec
from surgetank.simulation.workload import Workload

MOST_REPLICAS = 100_000  # of a pool; ten thousand take seconds, a hundred million no machine holds
_MOST_STANDBYS = 4  # as ScaleSpec.max_standbys


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The replicas of one model in one role.

    `replicas` serve and `standbys` are warm from the start. `max_replicas`: all that may exist;
    None: no more than those. `scale`: settings of scaling; None: made from the profile.
    `start`: None takes the profile's. `nodes`: machines there are; one
    that a replica has left is the first to be taken again, with its caches; None: one for each.
    `static_batch`: its engines run whole batches of so many; None: they batch continuously.
    """

    model: str
    profile: EngineProfile
    role: Role = Role.BOTH
    replicas: int = 1
    standbys: int = 0
    max_replicas: int | None = None
    slots: int | None = None
    scale: ScaleSpec | None = None
    start: ColdStart | None = None
    nodes: int | None = None
    drain_timeout: float = 600.0
    static_batch: int | None = None

    def __post_init__(self) -> None:
        """Raise InputError for sizes that do not fit."""
        if self.replicas < 0 or self.standbys < 0:
            raise InputError(f"pool {self.model}: replicas and standbys must be >= 0")
        if max(self.most, self.replicas + self.standbys) > MOST_REPLICAS:
            raise InputError(f"pool {self.model}: must be at most {MOST_REPLICAS:,} replicas")
        if self.most < max(1, self.replicas):
            raise InputError(
                f"pool {self.model}: max_replicas = {self.most}: must be >= {max(1, self.replicas)}"
            )

    @property
    def name(self) -> str:
        return self.model if self.role is Role.BOTH else f"{self.model}/{self.role}"

    @property
    def most(self) -> int:
        return self.replicas + self.standbys if self.max_replicas is None else self.max_replicas

    def cold_start(self) -> ColdStart:
        return of_profile(self.profile) if self.start is None else self.start

    def pool_spec(self) -> PoolSpec:
        return PoolSpec(
            base=self.replicas, max_replicas=self.most, drain_timeout=self.drain_timeout
        )

    def replica(self, name: str) -> Replica:
        """Describe a replica as admission sees it: what vLLM tells of itself."""
        profile = self.profile
        return Replica(
            id=name,
            model=self.model,
            role=self.role,
            slots=self.static_batch or self.slots,
            batching="continuous" if self.static_batch is None else "static",
            kv_tokens=profile.kv_tokens,
            block_size=profile.block_size,
            max_context=profile.max_model_len,
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must keep to count. Seconds; `ttft` None: its tenant's own."""

    ttft: float | None = None
    tpot: float | None = 0.1  # slower than people read
    ttft_per_prompt_token: float = 0.0  # added for long prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. Times in seconds.

    `policy`: a name, as `policies` knows it. `scrape_interval`: between two readings of an engine's
    metrics by the gateway. `metric_lag`: age of what scaling reads, beyond the policy's own.
    `patience_after`: what has not ended so long after the last arrival is given up.
    `learned`: what an earlier FlowControl learnt. `engine`: "exact" or "literal" (slow).
    """

    workload: Workload
    pools: tuple[PoolPlan, ...]
    policy: str = "surgetank"
    flow: FlowSpec = field(default_factory=FlowSpec)
    tiers: tuple[Tier, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    ladder: LadderSpec = field(default_factory=LadderSpec)
    clients: ClientSpec = field(default_factory=ClientSpec)
    clients_of: Mapping[str, ClientSpec] = field(default_factory=dict)  # by tenant
    objective: Objective = Objective()
    seed: int = 0
    scrape_interval: float = 1.0
    tick_interval: float = 1.0
    metric_lag: float = 0.0
    patience_after: float = 3600.0
    kv_transfer: float = 0.0  # prefill to decode, where those are apart
    engine: str = "exact"

    def __post_init__(self) -> None:
        """Raise InputError for a workload that nobody serves."""
        served = {pool.model for pool in self.pools}
        for code in np.unique(self.workload.model).tolist():
            name = self.workload.models[code]
            if name not in served and "*" not in served:
                raise InputError(
                    f"model {name}: no pool serves it: pools are of {', '.join(sorted(served))}"
                )
        if self.scrape_interval <= 0 or self.tick_interval <= 0:
            raise InputError("scrape_interval and tick_interval must be > 0")

    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know of this scenario."""
        found = []
        if self.workload.left_out:
            found.append(f"{self.workload.left_out:,} rows of the log state no tokens: left out")
        name, _, own = self.policy.partition(":")
        kept = name != "passthrough" and not (name == "fifo-cap" and own)  # to that number
        for pool in self.pools:
            seats, most = pool.profile.max_num_seqs, self.flow.max_in_flight
            if kept and most is not None and seats > most:
                found.append(
                    f"the gateway keeps a replica to flow.max_in_flight = {most} requests: "
                    f"{pool.profile.name} runs up to {seats} (--max-in-flight)"
                )
            if self.metric_lag > self.scale_spec(pool).stale_after:
                found.append(
                    f"metrics {self.metric_lag:g} s old count as stale for scaling: "
                    "raise scale.stale_after"
                )
        return tuple(dict.fromkeys(found))

    def scale_spec(self, pool: PoolPlan) -> ScaleSpec:
        """Settings of a pool's scaling: its own, or what its profile and the workload give."""
        if pool.scale is not None:
            return pool.scale
        defaults = ScaleSpec()
        tpot = defaults.tpot_objective if self.objective.tpot is None else self.objective.tpot
        prompt, output = capacity(
            pool.profile, tpot=tpot, context=self._context(), most=self.flow.max_in_flight
        )
        start = pool.cold_start().p95()
        return ScaleSpec(
            ttft_objective=self.objective.ttft or self.flow.ttft_objective,
            tpot_objective=tpot,
            prompt_tokens_per_replica=prompt,
            output_tokens_per_replica=output,
            kv_tokens_per_replica=pool.profile.kv_tokens,
            block_size=pool.profile.block_size,
            start_time=start if start > 0 else defaults.start_time,
            min_replicas=pool.replicas,
            max_replicas=pool.most,
            standbys=pool.standbys,
            max_standbys=max(pool.standbys, _MOST_STANDBYS) if pool.standbys else 0,
        )

    def _context(self) -> float:
        """Mean tokens of context of a request that decodes."""
        load = self.workload
        return float(load.prompt.mean() + load.output.mean() / 2) if len(load) else 1.0


def capacity(
    profile: EngineProfile, *, tpot: float, context: float, most: int | None
) -> tuple[float, float]:
    """Prompt tokens/s and output tokens/s that one replica can do, each alone.

    Prompt: full steps of the token budget. Output: the largest batch whose step keeps `tpot`, of
    sequences with `context` tokens, within the KV and `most` at once (None: as many as it runs).
    """
    work = StepWork()
    work.add_prefill(profile.max_num_batched_tokens, 0)
    prompt = profile.max_num_batched_tokens / step_seconds(profile, work)
    seats = profile.max_num_seqs if most is None else min(most, profile.max_num_seqs)
    fits = int(min(seats, max(1, profile.kv_tokens // max(1.0, context))))

    def step(batch: int) -> float:
        return step_seconds(profile, StepWork(decodes=batch, decode_context=int(batch * context)))

    low, high = 1, fits
    while low < high:  # the largest batch that keeps the objective: steps grow with it
        middle = (low + high + 1) // 2
        low, high = (middle, high) if step(middle) <= tpot else (low, middle - 1)
    return prompt, low / step(low)
