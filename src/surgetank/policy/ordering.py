"""Where a request stands in its tenant's line: by what it says of itself, in one measure for all.

    slack = (came + objective - seconds x prompt) // slack_bucket             least first, then
    rank  = came + (prefill_weight x prompt + decode_weight x output) / ageing

`came`: when the request or its session did; `prompt`: its tokens where it says them, else its bytes
in usual tokens; `output`: what answers to the tenant are on the average, or its own bound if that
is less. `seconds` to compute a prompt token and the output expected are learnt, and what is learnt
changes while requests wait. So a tenant's line has one `Measure` of both: it is taken when somebody
begins to wait, and taken anew for all who wait at once, with a new place and cost for each.

Rule: of two requests of a tenant that say the same, the one that came first goes first, whatever is
learnt meanwhile; to overtake, a request has to say that it is smaller or more urgent.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from surgetank.policy.length import usual_tokens

if TYPE_CHECKING:
    from surgetank.policy.flowspec import FlowSpec
    from surgetank.policy.job import Job

_BEGUN: Final = 1e12  # seconds of slack: a session that has begun goes before all that has not
_OFTEN: Final = 4  # times as many as wait have to come before the line is measured anew


class Measure(NamedTuple):
    """What a line is ordered by. `learnt`: `output` is of answers and no default."""

    output: float  # tokens of one choice
    seconds: float  # to compute a prompt token
    learnt: bool


def measure(job: Job, spec: FlowSpec) -> Measure:
    """What is known now of answers to a request's tenant and of its model's speed."""
    window, seconds = job.account.outputs.get(job.model.name), job.model.prefill_time(1)
    if window is None or window.mean is None:
        return Measure(spec.default_output_tokens, seconds, learnt=False)
    return Measure(window.mean, seconds, learnt=True)


def order(job: Job, spec: FlowSpec) -> None:
    """See to the measure of the line a request is about to join.

    The first that is learnt of answers is believed at once: a default may be wrong many times over.
    Later ones come with as many requests as make the work small beside theirs.
    """
    lane = job.lane
    lane.joined += 1
    known = lane.measure
    if lane.size and known is not None and lane.joined <= _OFTEN * lane.size:
        window = job.account.outputs.get(job.model.name)
        if known.learnt or window is None or window.mean is None:
            return
    now = measure(job, spec)
    lane.joined = 0
    if now == known:
        return
    lane.measure = now
    if lane.size:
        job.model.queue.reorder(lane, lambda other: _anew(other, spec))


def place(job: Job, spec: FlowSpec, *, front: bool = False) -> tuple[float, float]:
    """Slack and rank, by the measure of its line; the least go first. `front`: before all slack."""
    known = job.lane.measure or measure(job, spec)
    request, session = job.request, job.session
    came = job.arrived if session is None else session.came
    prompt = request.prompt_tokens
    size = usual_tokens(request) if prompt is None else float(prompt)
    cost = spec.prefill_weight * size
    if job.outputs:
        cost += spec.decode_weight * _output(request.max_tokens, known) * job.choices
    rank = came + cost / spec.ageing
    if front:
        return -inf, rank
    slack = (came + job.objective - known.seconds * size) // spec.slack_bucket
    return (slack - _BEGUN if session is not None and session.begun else slack), rank


def _anew(job: Job, spec: FlowSpec) -> tuple[float, float, float]:
    """Slack, rank and cost by a new measure."""
    known = job.lane.measure
    if known is not None and job.outputs:
        output = _output(job.bound, known) * job.choices
        job.cost = spec.prefill_weight * job.fresh + spec.decode_weight * output
    return (*place(job, spec, front=job.attempt > 0), job.cost)


def _output(bound: int | None, known: Measure) -> float:
    return known.output if bound is None or known.output < bound else bound
