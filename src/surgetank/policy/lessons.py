"""What a FlowControl has learnt, said: answers' length, speed, and how much a replica bears.

Rule: a figure comes with what it rests on, and is None before there is enough; looking changes
nothing. What outlives a restart is `FlowControl.learned`; a rate of service is learnt anew, since
it is that of as many replicas as there were.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Final

from surgetank.policy.model import Model
from surgetank.policy.placement import Load
from surgetank.policy.replica import Role
from surgetank.policy.state import FlowState

_MOST_TENANTS: Final = 8  # of a model, those with most answers
_MOST_REPLICAS: Final = 32
_FULL: Final = 64  # answers of a tenant that are remembered
_FEW: Final = 8


@dataclass(frozen=True, slots=True)
class OutputLesson:
    """Tokens of an answer to a tenant, P75; None: `default` of fewer than 3 `answers`."""

    tenant: str
    expected: int | None
    answers: int  # remembered, 64 at most


@dataclass(frozen=True, slots=True)
class LimitLesson:
    """Requests at once that a replica is believed to bear, and why.

    `prompts`: tokens of prompts that may wait for their first token there, None without a bound, as
    in whole batches; `prefill_rate`: how many of them it computes a second, None before the first
    that told.
    """

    replica: str
    limit: int
    why: str
    prompts: int | None
    prefill_rate: float | None


@dataclass(frozen=True, slots=True)
class Lesson:
    """What is known of one model.

    `service_rate`: cost per second (see FlowSpec's weights); `service_from` says whether requests
    waited meanwhile (`backlog`: it can do no more) or not (`working`: it can do at least that).
    `confidence`: none, low or good.
    """

    model: str
    default_output: int  # expected of those that are not known
    outputs: tuple[OutputLesson, ...]
    service_rate: float | None
    service_from: str
    service_seconds: float | None  # a request runs, a fading mean
    prefill_rate: float | None  # prompt tokens per second, from dispatch to the first token
    limits: tuple[LimitLesson, ...]
    confidence: str

    def text(self) -> str:
        """One line."""
        known = [o for o in self.outputs if o.expected is not None]
        said = [
            f"answers of {o.expected:,} tokens expected for {o.tenant} (P75 of {o.answers})"
            for o in known[:3]
        ] or [f"answers of {self.default_output:,} tokens expected (the default: too few ended)"]
        if self.prefill_rate is not None:
            said.append(
                f"first tokens after a second per {self.prefill_rate:,.0f} tokens of prompt"
            )
        if self.service_rate is not None:
            least = "" if self.service_from == "backlog" else "at least "
            said.append(f"{least}{self.service_rate:,.0f} units of cost/s served")
        if self.limits:
            limits = [f"{x.replica} {x.limit} ({x.why})" for x in self.limits[:4]]
            more = len(self.limits) - 4
            said.append(f"at once: {', '.join(limits)}{f' and {more} more' if more > 0 else ''}")
        return f"{self.model}: {'; '.join(said)}; confidence {self.confidence}"


def lessons(state: FlowState) -> list[Lesson]:
    """What is known of each model, in the order of their names."""
    return [_lesson(state, state.models[name]) for name in sorted(state.models)]


def _lesson(state: FlowState, model: Model) -> Lesson:
    windows = state.admission.answers_of(model.name)
    windows.sort(key=lambda row: (-len(row[1].by_time), row[0]))
    outputs = tuple(
        OutputLesson(tenant, window.expected, len(window.by_time))
        for tenant, window in windows[:_MOST_TENANTS]
    )
    capacity = model.rate.capacity()
    rate = capacity or model.rate.at_least()
    loads = [load for role in Role for load in model.group(role).loads]
    return Lesson(
        model=model.name,
        default_output=state.spec.default_output_tokens,
        outputs=outputs,
        service_rate=rate,
        service_from="" if rate is None else "backlog" if capacity is not None else "working",
        service_seconds=model.service,
        prefill_rate=model.prefill_rate(),
        limits=tuple(
            LimitLesson(load.id, int(load.limit), _why(load), _prompts(load), load.learnt.rate)
            for load in loads[:_MOST_REPLICAS]
        ),
        confidence=_confidence(max((o.answers for o in outputs), default=0), rate),
    )


def _prompts(load: Load) -> int | None:
    return int(load.window) if isfinite(load.window) else None


def _why(load: Load) -> str:
    slots, cap = load.replica.slots, load.learnt.cap
    if load.limit < cap:
        late = f"below its {slots} slots: it shed, or first tokens came late"
        return "learnt so far" if slots is None else late
    return "its own slots" if slots is not None and cap == slots else "max_in_flight"


def _confidence(answers: int, rate: float | None) -> str:
    if answers < _FEW:
        return "none"
    return "good" if answers >= _FULL and rate is not None else "low"
