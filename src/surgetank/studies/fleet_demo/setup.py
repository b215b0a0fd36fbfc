"""How the second act's own fleet is set up: one value for the real run and for its pilot.

Rule: these are settings of the demo, chosen for a laptop and a cold start of 20 s. The product's
defaults are made for machines whose bursts last minutes.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import Any, Final

from surgetank.adapters.processes import ProcessSpec
from surgetank.autoscaler.spec import PoolConfig
from surgetank.engine.profile import EngineProfile, find
from surgetank.policy.flowspec import FlowSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.tenant import Tenant, Tier
from surgetank.studies.fleet_demo.pulse import MODEL, NOISY, QUIET

OBJECTIVE: Final = 2.0  # seconds to the first token
PROFILE: Final = "demo-fleet"

# The quiet tenant's users wait at a screen; the noisy one's is a batch that may wait.
TIERS: Final = (
    Tier("interactive", priority=0, ttft_objective=OBJECTIVE),
    Tier("batch", priority=2, min_share=0.2, ttft_objective=30.0, queue_timeout=40.0),
)
TENANTS: Final = (Tenant(NOISY, tier="batch"), Tenant(QUIET, tier="interactive"))
FLOW: Final[dict[str, Any]] = {
    "max_in_flight": 8,  # the replicas' own seats: what waits, waits here, in order
    "max_queued": 1000,
    "request_timeout": 60.0,
}


@dataclass(frozen=True, slots=True)
class FleetSetup:
    """One fleet. Seconds; `cold_start` is the replicas' loading time."""

    cold_start: float = 20.0
    base: int = 1
    standbys: int = 2
    max_replicas: int = 6
    scale_down_delay: float = 5.0
    objective: float = OBJECTIVE
    rest_within: float = 45.0  # after the last request; the demand envelope looks back 32 s

    @property
    def resting(self) -> int:
        """Replicas that exist when nothing happens: serving and warm."""
        return self.base + self.standbys

    def profile(self) -> EngineProfile:
        return find(PROFILE)

    def command(self, port: str) -> list[str]:
        """Return what starts one replica, on both sides."""
        engine = [sys.executable, "-m", "surgetank", "engine", "--profile", PROFILE]
        return [*engine, "--model", MODEL, "--cold-start", f"{self.cold_start:g}", "--port", port]

    def scale(self) -> ScaleSpec:
        """Capacities as the profile has them; short delays, since the burst is short."""
        profile = self.profile()
        seats = profile.max_num_seqs
        step = (profile.a_ms + seats * profile.d_us / 1e3) / 1e3
        return ScaleSpec(
            ttft_objective=self.objective,
            slack=self.objective / 2,
            prompt_tokens_per_replica=1e6 / profile.b_us,
            output_tokens_per_replica=seats / step,
            kv_tokens_per_replica=float(profile.kv_tokens),
            block_size=profile.block_size,
            scale_down_delay=self.scale_down_delay,
            surge_confirm=self.scale_down_delay,
            standbys=self.standbys,
            max_standbys=self.standbys,
            start_time=self.cold_start,
        )

    def pool(self) -> PoolConfig:
        """Return the autoscaler's pool."""
        return PoolConfig(
            MODEL,
            max_replicas=self.max_replicas,
            base=self.base,
            process=ProcessSpec(command=shlex.join(self.command("{port}")), stop_timeout=5.0),
            start_timeout=self.cold_start + 60.0,
            drain_timeout=60.0,
            scale=self.scale(),
        )

    def flow(self) -> FlowSpec:
        return FlowSpec(**FLOW)
