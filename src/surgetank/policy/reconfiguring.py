"""Other settings for a FlowControl that has requests.

Rule: what is here stays, with its times and its room.
"""

from __future__ import annotations

from collections.abc import Iterable

from surgetank.policy.degrading import reladder
from surgetank.policy.flowspec import FlowSettings, FlowSpec
from surgetank.policy.state import FlowState


def reconfigure(state: FlowState, settings: FlowSettings, now: float) -> None:
    """Serve by other settings. Raises ValueError, with nothing changed, for wrong ones."""
    admission, before = state.admission, _pace(state.spec)
    admission.reconfigure(settings, state.jobs.values(), now)
    state.spec = settings.spec
    for load in state.loads.values():
        spec = settings.spec
        load.describe(load.replica, spec.max_in_flight, spec.prefill_budget)
    _name_models(state, settings.models)
    for model in state.models.values():
        model.batching_window = settings.spec.batching_window
        if model.window is not None:
            model.window.longest = settings.spec.batching_window
        if _pace(settings.spec) != before:
            model.rate.forget()  # else waits are foretold by what the fleet could before
    reladder(state, settings.ladder)
    for account in state.accounts.values():
        for name, lane in account.lanes.items():
            queue = state.models[name].queue
            queue.move(lane, account.tier.priority, account.tenant.weight)
            (queue.suspend if account.full else queue.resume)(lane)


def _pace(spec: FlowSpec) -> tuple[object, ...]:
    """The settings that a model's measured rate depends on: how many run, and what a cost is."""
    return spec.max_in_flight, spec.max_running, spec.prefill_weight, spec.decode_weight


def _name_models(state: FlowState, names: Iterable[str]) -> None:
    """Know these, and those that have a replica or a request."""
    needed = {*names, *(load.replica.model for load in state.loads.values())}
    needed |= {job.model.name for job in state.jobs.values()}
    for name in [name for name in state.models if name not in needed]:
        del state.models[name]
        for account in state.accounts.values():
            account.lanes.pop(name, None)
    for name in names:
        if name not in state.models:
            state.know(name)
