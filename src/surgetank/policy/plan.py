"""What scaling is told, what it answers, and its settings.

Rule: in an Observation None is unknown, never 0; every ScalePlan says why, and what it overruled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from surgetank.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ScaleSpec:
    """Settings of one pool's scaling. Times in seconds, sizes in tokens or replicas.

    The three capacities (`..._per_replica`) are of one replica of this pool: measure them, since
    wrong ones are the commonest reason for a wrong fleet.
    """

    ttft_objective: float = 0.8  # the target of the published TTFT rule; chat feels slow beyond 1 s
    slack: float = 0.5  # what of the objective a request may wait; the rest is its own prefill
    ttft_slope_limit: float = 0.3  # s/s: at this rise the objective is lost within 3 s
    ttft_slope_window: float = 5.0  # shorter ones are noise, longer ones see the burst too late
    queue_age_gate: float = 0.4  # oldest wait that makes slow first tokens a matter of load
    ttft_ratio_limit: float = 2.0  # most the TTFT ratio may ask for: beyond the knee it is backlog
    surge_factor: float = 1.5  # growth on a steep TTFT slope (the published factor)
    surge_confirm: float = 30.0  # slow first tokens not followed by work by then were no surge
    influx_window: float = 10.0  # prompt tokens of this time are turned into KV blocks
    prompt_tokens_per_replica: float = 4000.0  # per second; the published rule's pod: measure yours
    output_tokens_per_replica: float = 2500.0  # per second, 70B fp8 on one H100 at batch 64
    tpot_objective: float = 0.05  # 20 tokens/s, faster than reading
    default_output_tokens: int = 256  # expected output where nothing is known
    # Part of the tokens needed, or of one replica's if that is more: prefills are always under way.
    token_gap_tolerance: float = 0.2
    token_gap_window: float = 5.0  # as ttft_slope_window: shorter is noise, longer is late
    kv_tokens_per_replica: float = 400_000.0  # an 8B model in 16 bit on 80 GB; engines report it
    block_size: int = 16  # tokens per KV block, vLLM's default
    kv_fill: float = 0.9  # part of the KV cache to plan for: beyond it engines preempt
    kv_horizon: float = 30.0  # look-ahead of the KV balance: most of a request's stay
    utilisation: float = 0.8  # rho, planned load of a replica: waits grow as 1/(1 - rho)
    scale_down_delay: float = 300.0  # as HPA: a lull between two bursts is not the end
    min_replicas: int = 1  # never fewer serve
    max_replicas: int = 64  # all of them: serving, starting and standby
    max_step: int = 8  # cold starts within step_period; promotions are not counted
    step_period: float = 15.0  # as HPA's policy period
    standbys: int = 2  # warm replicas kept beside the serving ones
    max_standbys: int = 4  # as many as the last surge needed, up to this
    standby_memory: float = 1800.0  # how long a surge's size is remembered
    start_time: float = 60.0  # cold start, until the pool has measured its own
    stale_after: float = 3.0  # readings older than this are not known any more
    direction_tolerance: float = 0.2  # move of demand that allows a second turn in one start time
    hindsight: bool = True  # follow the rule that was the cheapest on the last records, once known
    attainment: float = 0.95  # part of the requests that are to keep the TTFT objective
    standby_cost: float = 1.0  # of a warm standby, as part of a serving replica: 1 on rented GPUs
    wake_time: float = 3.0  # from standby to serving; 0 where it is loaded and only not routed
    decode_share: float = 0.5  # of a decode's cost where prefills run: they share their steps
    record_memory: float = 1800.0  # after which a record of what came counts half
    learning_period: float = 1200.0  # a fleet younger than this may keep more than it has seen
    # Times the root of the mean need, kept beyond it while so young; 8 for a fleet whose first
    # burst must not be lost, 0 for one that may learn from it.
    burst_factor: float = 0.0

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"scale.{name} = {getattr(self, name)}: must be > 0")
        for name in _PARTS:
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"scale.{name} = {getattr(self, name)}: must be in (0, 1]")
        for low, high in _ORDERED:
            if not 0 <= getattr(self, low) <= getattr(self, high):
                raise ConfigError(
                    f"scale.{low} = {getattr(self, low)}: "
                    f"must be between 0 and {high} ({getattr(self, high)})"
                )


_POSITIVE: Final = (
    "ttft_objective",
    "slack",
    "ttft_slope_limit",
    "ttft_slope_window",
    "influx_window",
    "prompt_tokens_per_replica",
    "output_tokens_per_replica",
    "tpot_objective",
    "token_gap_window",
    "kv_tokens_per_replica",
    "block_size",
    "kv_horizon",
    "max_replicas",
    "max_step",
    "step_period",
    "start_time",
    "stale_after",
    "record_memory",
    "learning_period",
)
_PARTS: Final = ("utilisation", "kv_fill", "attainment", "decode_share")
_ORDERED: Final = (("min_replicas", "max_replicas"), ("standbys", "max_standbys"))


@dataclass(frozen=True, slots=True)
class Observation:
    """One reading of one pool, (model, role). Monotonic seconds, tokens, KV blocks.

    Replica counts come from the Pool and are always known. The counts that follow cover (since,
    as_of]; a reading with an `as_of` already seen is the same reading and is not counted again.
    Where several gateways serve one pool, their readings are summed, and `as_of` is the oldest.
    """

    serving: int
    starting: int  # started in order to serve
    standby: int  # warm, promotable now

    as_of: float | None = None  # when the gateways' counts were taken
    since: float | None = None  # from when they count; None: from the reading before
    arrivals: int | None = None  # requests that came
    prompt_tokens: float | None = None  # of those, uncached where that is known
    expected_output: float | None = None  # of those, output tokens expected
    output_tokens: float | None = None  # generated, by all streams
    ttft_points: tuple[tuple[float, float], ...] = ()  # (time of the first token, TTFT)
    paces: tuple[float, ...] = ()  # s a token of streams that began in time; inf: broken off

    queue_length: int | None = None
    queue_age: float | None = None  # how long the oldest has waited; 0 with an empty queue
    running: int | None = None
    outstanding_output: float | None = None  # output tokens still expected, running and waiting

    kv_as_of: float | None = None  # when the KV readings were taken; None: at as_of
    kv_held: float | None = None
    kv_to_be_held: float | None = None  # more that running and waiting requests will need
    kv_capacity: float | None = None  # of the serving replicas together

    start_time: float | None = None  # P95 of this pool's own starts


class Signal(StrEnum):
    """What asked for replicas, or held a decision back. Safe as a metric label."""

    DEMAND = "demand"
    FORECAST = "forecast"
    CALENDAR = "calendar"
    INFLUX = "influx"
    TOKEN_GAP = "token_gap"  # noqa: S105  a name, no secret
    KV_SHORTFALL = "kv_shortfall"
    TTFT_RATIO = "ttft_ratio"
    TTFT_SLOPE = "ttft_slope"
    SCALE_DOWN_DELAY = "scale_down_delay"
    SURGE_PASSED = "surge_passed"
    STALE = "stale"
    DIRECTION = "direction"
    LIMIT = "limit"
    HINDSIGHT = "hindsight"
    FEW_RECORDS = "few_records"
    SUSTAINED = "sustained"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Reason:
    """One sentence of the plan's why: what was measured, against what, and what it asks for."""

    signal: Signal
    value: float
    threshold: float
    wants: int
    text: str


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """How many replicas should serve, and be warm, from now on.

    `replicas`: to serve; standbys are promoted for them at once. `launch`: how many of them cold
    starts may be made for (a step limit; a burst that ends before a start would, later).
    `standbys`: to keep warm beside them. `surge`: a rising TTFT asked, past every smoothing.
    `demand`: the largest need measured, in replicas, None when nothing is known. `rejected`: what
    else was asked for or measured, and why it did not decide.
    """

    replicas: int
    launch: int
    standbys: int
    surge: bool
    demand: float | None
    reasons: tuple[Reason, ...]
    rejected: tuple[Reason, ...] = ()
