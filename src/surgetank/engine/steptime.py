"""How long one step of the engine takes.

    t = a + b P + c S + d B + e KV + f (1 - (1 - k/E)^(P + B))

P prefill tokens of the step; S = sum over its prefill chunks of q (context + q/2), the work of
their attention; B decoding sequences; KV the sum of their contexts. The last term is a mixture of
experts' reading of weights: the share of its E experts that P + B tokens wake, k each. Fitted to
operator tables of real GPUs: median error 5 % for dense bf16 (see each profile's `error`).
"""

from __future__ import annotations

from dataclasses import dataclass

from surgetank.engine.profile import EngineProfile


@dataclass(slots=True)
class StepWork:
    """What one step computes. It adds up as the step is put together."""

    prefill_tokens: int = 0
    prefill_attention: float = 0.0
    decodes: int = 0
    decode_context: int = 0

    def add_prefill(self, tokens: int, computed: int) -> None:
        """Count a chunk of `tokens` that follows `computed` tokens of the same prompt."""
        self.prefill_tokens += tokens
        self.prefill_attention += tokens * (computed + 0.5 * tokens)


def step_seconds(profile: EngineProfile, work: StepWork) -> float:
    """Compute the seconds that a step with this work takes."""
    milliseconds = (
        profile.a_ms
        + profile.b_us * 1e-3 * work.prefill_tokens
        + profile.c_ns * 1e-6 * work.prefill_attention
        + profile.d_us * 1e-3 * work.decodes
        + profile.e_ns * 1e-6 * work.decode_context
    )
    if profile.f_ms:
        asleep = (1.0 - profile.expert_share) ** (work.prefill_tokens + work.decodes)
        milliseconds += profile.f_ms * (1.0 - asleep)
    return milliseconds * 1e-3
