"""From observations to claims: what each signal says the fleet needs.

Rule: a signal speaks only from data that is there and fresh. Formulas: docs/concepts/scaling.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from surgetank.policy.demand import DemandEnvelope, TokenGap, kv_balance
from surgetank.policy.forecaster import Forecaster
from surgetank.policy.plan import Observation, Reason, ScaleSpec, Signal
from surgetank.policy.portfolio import Portfolio
from surgetank.policy.replica import Role
from surgetank.policy.window import InfluxIntegral, Slope

_HEARD: Final = {
    Role.BOTH: frozenset(Signal),
    Role.PREFILL: frozenset({Signal.DEMAND, Signal.FORECAST, Signal.TTFT_RATIO, Signal.TTFT_SLOPE}),
    Role.DECODE: frozenset({Signal.DEMAND, Signal.INFLUX, Signal.TOKEN_GAP, Signal.KV_SHORTFALL}),
}
"""Which signals concern which role: first tokens are made by prefill, KV is held by decode."""

_SYMPTOMS: Final = frozenset({Signal.TTFT_RATIO, Signal.TTFT_SLOPE})
"""First-token times see every burst early, and much that is none; the others count work."""

_INGRESS: Final = (
    "arrivals",
    "prompt_tokens",
    "expected_output",
    "output_tokens",
    "queue_length",
    "queue_age",
    "running",
    "outstanding_output",
)
_KV: Final = ("kv_held", "kv_to_be_held", "kv_capacity")
_PREFILLS: Final = 4  # prompts that a replica may be at: neither waiting nor answered
_SLOPE_POINTS: Final = 100  # of a reading: more make a slope no truer, and cost a millisecond
_FALLING: Final = -0.1  # s/s of TTFT: what was added already works


def whole(need: float) -> int:
    """Replicas for a need; a fiftieth of a replica is measurement noise, not a replica."""
    return max(0, math.ceil(need - 0.02))


@dataclass(frozen=True, slots=True)
class Claim:
    """A signal's need in replicas, and the same as a reason."""

    need: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reading:
    """All claims of one tick, what was set aside, and what is missing (empty: nothing)."""

    claims: tuple[Claim, ...]
    aside: tuple[Reason, ...]
    missing: tuple[str, ...]

    def need(self, *, symptom: bool) -> int:
        """Largest claim of the symptoms, or of the work there is; 0 without one."""
        return max(
            (
                claim.reason.wants
                for claim in self.claims
                if (claim.reason.signal in _SYMPTOMS) is symptom
            ),
            default=0,
        )


class Evidence:
    """Windows over the observations of one pool, and the claims they support.

    `explains` False: what claims nothing need not be set aside, and is not computed.
    """

    def __init__(
        self, spec: ScaleSpec, role: Role, forecaster: Forecaster, *, explains: bool = True
    ) -> None:
        self._spec = spec
        self._explains = explains
        self._heard = _HEARD[role]
        self._role = role
        self._forecaster = forecaster
        self._envelope = DemandEnvelope(spec.slack)
        self._influx = InfluxIntegral(spec.influx_window, spec.block_size)
        self._gap = TokenGap(spec.token_gap_window, spec.tpot_objective)
        self._slope = Slope(spec.ttft_slope_window)
        self._as_of = -math.inf
        self._ever: set[str] = set()
        self._surge_base: tuple[float, int, int] | None = None
        self._told = False  # first tokens are reported at all
        self._unanswered = 0.0  # requests without a first token
        self.portfolio = Portfolio(spec) if spec.hindsight else None

    def absorb(self, seen: Observation) -> None:
        """Put a new reading into the windows; a repeated or undated one is left out.

        A late one still counts for what it counted; only claims need it to be fresh.
        """
        if seen.as_of is None or seen.as_of <= self._as_of:
            return
        before, self._as_of = self._as_of, seen.as_of
        since = max(before, seen.since) if seen.since is not None else before
        points = seen.ttft_points
        self._slope.extend(points[:: -(-len(points) // _SLOPE_POINTS) or 1])
        if not seen.ttft_points and (seen.queue_age or 0.0) >= self._spec.queue_age_gate:
            # A stall yields no first tokens; the oldest wait is a lower bound of the next TTFT.
            self._slope.add(seen.queue_age or 0.0, seen.as_of)
        if math.isinf(since):
            return  # the first reading: an amount without an interval is no rate
        self._absorb_work(seen, seen.as_of, since)
        known = seen.prompt_tokens is not None or seen.expected_output is not None
        if self.portfolio is not None and known:
            decodes, prefills = self._role is not Role.PREFILL, self._role is not Role.DECODE
            self.portfolio.add(
                requests=seen.arrivals or 0,
                prompt_tokens=(seen.prompt_tokens or 0.0) if prefills else 0.0,
                output_tokens=self._expected_output(seen) if decodes else 0.0,
                seconds=seen.as_of - since,
                start=seen.start_time or self._spec.start_time,
                now=seen.as_of,
                serving=seen.serving,
                late=self._late(seen),
            )

    def _late(self, seen: Observation) -> float | None:
        """Requests that were late: by their first token, or since none ever came."""
        if seen.ttft_points:
            self._told = True
        if not self._told or seen.arrivals is None:
            return None
        objective = self._spec.ttft_objective
        self._unanswered += seen.arrivals - len(seen.ttft_points)
        late = len([1 for _, ttft in seen.ttft_points if ttft > objective])
        waiting = (seen.queue_length or 0) + _PREFILLS * max(1, seen.serving)
        lost = max(0.0, self._unanswered - waiting)  # they hung up, or were turned away
        self._unanswered = max(0.0, self._unanswered - lost)
        slow = len([1 for pace in seen.paces if pace > self._spec.tpot_objective])
        return late + lost + slow

    def read(self, seen: Observation, start_time: float, now: float) -> Reading:
        """Ask every signal; `start_time` is the forecast's horizon."""
        missing = self._missing(seen, now)
        claims: list[Claim] = []
        aside: list[Reason] = []
        if self._fresh(seen.as_of, now):
            # Windows are read as of their data: a reading that is 1 s old is no lull of 1 s.
            at = self._as_of
            found = (
                self._demand(seen, at),
                self._forecast(seen, start_time, at),
                self._influx_claim(seen, at),
                self._token_gap(seen, at),
                self._kv_shortfall(seen, at, now),
                *self._ttft(seen, at),
            )
            for item in found:
                if isinstance(item, Claim) and item.reason.signal in self._heard:
                    claims.append(item)
                elif isinstance(item, Reason) and item.signal in self._heard:
                    aside.append(item)
        return Reading(tuple(claims), tuple(aside), missing)

    def _fresh(self, at: float | None, now: float) -> bool:
        return at is not None and now - at <= self._spec.stale_after

    def _missing(self, seen: Observation, now: float) -> tuple[str, ...]:
        """Name what was known once and is not now, and what scaling down needs in any case."""
        names: list[str] = [n for n in (*_INGRESS, *_KV) if getattr(seen, n) is not None]
        self._ever.update(names)
        missing: list[str] = [n for n in (*_INGRESS, *_KV) if n in self._ever and n not in names]
        if not self._fresh(seen.as_of, now):
            missing.append("as_of")
        if seen.kv_as_of is not None and not self._fresh(seen.kv_as_of, now):
            missing.append("kv_as_of")
        least = "expected_output" if self._role is Role.DECODE else "prompt_tokens"
        missing += [n for n in (least, "queue_age") if n not in names and n not in missing]
        return tuple(missing)

    def _absorb_work(self, seen: Observation, at: float, since: float) -> None:
        spec = self._spec
        prompt = seen.prompt_tokens
        output = self._expected_output(seen)
        work = 0.0
        if prompt is not None and self._role is not Role.DECODE:
            work += prompt / spec.prompt_tokens_per_replica
        if seen.expected_output is not None and self._role is not Role.PREFILL:
            work += seen.expected_output / spec.output_tokens_per_replica
        if prompt is not None or seen.expected_output is not None:
            self._envelope.add(work, at, since=since)
        if prompt is not None:
            self._influx.add(prompt, output, seen.arrivals or 0, at, since=since)
            self._forecaster.observe(self._influx.prompt_rate(at) or 0.0, at)
        if (
            seen.output_tokens is not None
            and seen.running is not None
            and seen.queue_length is not None
        ):
            streams = seen.running + seen.queue_length
            left = seen.outstanding_output
            outstanding = math.inf if left is None else left
            self._gap.add(streams, outstanding, seen.output_tokens, at, since=since)

    def _expected_output(self, seen: Observation) -> float:
        if seen.expected_output is not None:
            return seen.expected_output
        return (seen.arrivals or 0) * float(self._spec.default_output_tokens)

    def _demand(self, seen: Observation, at: float) -> Claim | None:
        peak = self._envelope.peak(at)
        if peak is None:
            return None
        rho = self._spec.utilisation
        wants = whole(peak.rate / rho)
        text = (
            f"work of the last {peak.horizon:g} s needs {peak.rate:.2f} replicas to meet its "
            f"deadlines, at {rho:.0%} use {wants}"
        )
        return Claim(
            peak.rate / rho, Reason(Signal.DEMAND, peak.rate, rho * seen.serving, wants, text)
        )

    def _forecast(self, seen: Observation, start_time: float, at: float) -> Claim | None:
        rate = self._forecaster.predict(start_time, at)
        if rate is None:
            return None
        capacity = self._spec.prompt_tokens_per_replica * self._spec.utilisation
        wants = whole(rate / capacity)
        text = f"{rate:.0f} prompt tokens/s expected in {start_time:.0f} s need {wants}"
        return Claim(
            rate / capacity, Reason(Signal.FORECAST, rate, capacity * seen.serving, wants, text)
        )

    def _hold(self, seen: Observation, at: float) -> float | None:
        """Seconds a request keeps its KV blocks, if its tokens come at the objective's pace."""
        output = self._influx.output_per_request(at)
        if output is None and seen.outstanding_output is not None:
            streams = (seen.running or 0) + (seen.queue_length or 0)
            output = seen.outstanding_output / streams if streams else None
        return output * self._spec.tpot_objective if output else None

    def _blocks_per_replica(self, seen: Observation) -> float:
        """Usable KV blocks of one replica: as the engines report, else as configured."""
        spec = self._spec
        if seen.kv_capacity and seen.serving:
            return spec.kv_fill * seen.kv_capacity / seen.serving
        return spec.kv_fill * spec.kv_tokens_per_replica / spec.block_size

    def _influx_claim(self, seen: Observation, at: float) -> Claim | None:
        if self._influx.prompt_rate(at) is None:
            return None
        window = self._spec.influx_window
        hold = self._hold(seen, at)
        blocks = self._influx.blocks(at) * min(1.0, (hold or window) / window)
        each = self._blocks_per_replica(seen)
        wants = whole(blocks / each)
        text = f"prompts of the last {window:g} s will hold {blocks:.0f} KV blocks: {wants}"
        return Claim(blocks / each, Reason(Signal.INFLUX, blocks, each * seen.serving, wants, text))

    def _token_gap(self, seen: Observation, at: float) -> Claim | Reason | None:
        rates = self._gap.rates(at)
        if rates is None:
            return None
        needed, generated = rates
        # Of few streams every prefill is a gap, though a replica could do all of them many times.
        least = max(needed, self._spec.output_tokens_per_replica)
        gap, threshold = needed - generated, self._spec.token_gap_tolerance * least
        text = f"{needed:.0f} output tokens/s needed, {generated:.0f} generated"
        if gap <= threshold:
            return Reason(Signal.TOKEN_GAP, gap, threshold, seen.serving, text)
        need = seen.serving + gap / self._spec.output_tokens_per_replica
        wants = whole(need)
        return Claim(need, Reason(Signal.TOKEN_GAP, gap, threshold, wants, f"{text}: {wants}"))

    def _kv_shortfall(self, seen: Observation, at: float, now: float) -> Claim | Reason | None:
        spec = self._spec
        hold = self._hold(seen, at)
        taken_at = seen.as_of if seen.kv_as_of is None else seen.kv_as_of
        if (
            seen.kv_held is None
            or seen.kv_to_be_held is None
            or hold is None
            or not self._fresh(taken_at, now)
        ):
            return None
        each = self._blocks_per_replica(seen)
        rate = self._influx.prompt_rate(at) or 0.0
        expected = self._forecaster.predict(spec.kv_horizon, at)
        growth = expected / rate if expected is not None and rate > 0 else 1.0
        balance = kv_balance(
            held=seen.kv_held,
            to_be_held=seen.kv_to_be_held,
            influx_rate=self._influx.blocks(at) / spec.influx_window * growth,
            hold=hold,
            capacity=each * seen.serving,
            horizon=spec.kv_horizon,
        )
        missing = balance.shortfall
        text = (
            f"KV blocks in {spec.kv_horizon:g} s: {balance.held:.0f} held "
            f"+ {balance.to_be_held:.0f} to come + {balance.influx:.0f} influx "
            f"- {balance.releases:.0f} released - {balance.capacity:.0f} capacity = {missing:.0f}"
        )
        if missing <= 0:
            return Reason(Signal.KV_SHORTFALL, missing, 0.0, seen.serving, text)
        need = seen.serving + missing / each
        wants = whole(need)
        return Claim(need, Reason(Signal.KV_SHORTFALL, missing, 0.0, wants, f"{text}: {wants}"))

    def _ttft(self, seen: Observation, at: float) -> list[Claim | Reason]:
        # A slow sample while nobody has waited for long is one slow request, not a burst.
        waited = seen.queue_age is not None and seen.queue_age >= self._spec.queue_age_gate
        if not waited and not self._explains:
            if self._surge_base is not None and self._slope.known(self._slope.recent(at)):
                self._surge_base = None  # as `_ttft_slope` has it
            return []
        points = self._slope.recent(at)
        slope = self._slope.of(points)
        found: list[Claim | Reason] = []
        if points:
            mean = math.fsum([ttft for _, ttft in points]) / len(points)
            found.append(self._ttft_ratio(seen, mean, slope, waited=waited))
        if slope is not None:
            found.append(self._ttft_slope(seen, slope, at, waited=waited))
        return found

    def _ttft_ratio(
        self, seen: Observation, mean: float, slope: float | None, *, waited: bool
    ) -> Claim | Reason:
        spec = self._spec
        objective = spec.ttft_objective
        worst = max(mean, seen.queue_age or 0.0)
        text = f"TTFT {worst:.2f} s, objective {objective:g} s"
        if worst <= objective:
            return Reason(Signal.TTFT_RATIO, worst, objective, seen.serving, text)
        if not waited:
            text += "; not counted: nobody has waited long, so it is not the load"
            return Reason(Signal.TTFT_RATIO, worst, objective, seen.serving, text)
        if slope is not None and slope <= _FALLING:
            text += f"; not counted: falling by {-slope:.2f} s/s, what was added already works"
            return Reason(Signal.TTFT_RATIO, worst, objective, seen.serving, text)
        need = seen.serving * min(worst / objective, spec.ttft_ratio_limit)
        wants = whole(need)
        return Claim(need, Reason(Signal.TTFT_RATIO, worst, objective, wants, f"{text}: {wants}"))

    def _ttft_slope(
        self, seen: Observation, slope: float, at: float, *, waited: bool
    ) -> Claim | Reason:
        spec = self._spec
        limit = spec.ttft_slope_limit
        text = f"TTFT changes by {slope:.2f} s/s over {spec.ttft_slope_window:g} s"
        if slope < limit or not waited:
            self._surge_base = None
            if slope >= limit:
                text += "; not counted: nobody has waited long, so it is one slow request"
            return Reason(Signal.TTFT_SLOPE, slope, limit, seen.serving, text)
        serving, standby = self._base_of_surge(seen, at)
        # Every standby is useful now: it costs nothing more, and is taken back if nothing comes.
        need = max(serving * spec.surge_factor, serving + max(1.0, standby))
        wants = whole(need)
        return Claim(need, Reason(Signal.TTFT_SLOPE, slope, limit, wants, f"{text}: {wants}"))

    def _base_of_surge(self, seen: Observation, at: float) -> tuple[int, int]:
        """Give the (serving, standby) replicas that the surge grows from; fixed for a window.

        A promotion shows in the slope only after a window: growing by half again before that would
        count the same rise twice.
        """
        base = self._surge_base
        if base is None or at - base[0] >= self._spec.ttft_slope_window:
            base = self._surge_base = (at, seen.serving, seen.standby)
        return base[1:]
