"""FlowControl on an event loop: effects go to tickets, one timer stands at the next deadline.

Rule: translate between the loop's clock and the policy's `now`, and decide nothing. Effects are
carried out in order even when carrying one out makes new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from surgetank.policy.effect import Cancel, Dispatch, Effect, Refuse
from surgetank.policy.flow import FlowControl, FlowSettings, RetryCause
from surgetank.policy.journal import Journal
from surgetank.policy.ladder import Step
from surgetank.policy.replica import Replica, Signals
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.shadow import Inputs, Shadow, shadowed


class Ticket(Protocol):
    """A request's place in the shell: told what has been decided about it."""

    def dispatch(self, effect: Dispatch) -> None: ...
    def refuse(self, effect: Refuse) -> None: ...
    def cancel(self, effect: Cancel) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that the driver uses."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


class Driver:
    """Holds the tickets of all requests that are alive, and FlowControl's one timer."""

    def __init__(self, flow: FlowControl | Journal, clock: Clock) -> None:
        self.flow = flow.flow if isinstance(flow, Journal) else flow  # for questions
        self._clock = clock
        self._now = clock.time
        self._inputs: Inputs = shadowed(flow, clock.time())  # for what happens
        self._tickets: dict[str, Ticket] = {}
        self._effects: deque[Effect] = deque()
        self._carrying = False
        self._draining: dict[str, Callable[[str], None]] = {}
        self._steps = self.flow.steps  # of the degradation ladder, told once
        self.stepped: Callable[[Step], None] = lambda _step: None
        self._timer: Timer | None = None
        self._armed_at: float | None = None

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tickets

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def shadow(self) -> Shadow | None:
        """What is told of the tenants whose admission is in shadow; None when there are none."""
        return self._inputs if isinstance(self._inputs, Shadow) else None

    # What happened.

    def offer(self, request: Request, ticket: Ticket) -> None:
        self._tickets[request.id] = ticket
        self._carry_out(self._inputs.offer(request, self._now()))

    # A first token or a finish without effects leaves the timer alone: it ends work whose deadline
    # was armed before, and what it wakes comes as an effect. No deadline comes nearer by it.

    def first_token(self, request_id: str) -> None:
        effects = self._inputs.first_token(request_id, self._now())
        if effects:
            self._carry_out(effects)

    def finish(self, request_id: str, outcome: Outcome, usage: Usage | None) -> None:
        del self._tickets[request_id]
        effects = self._inputs.finish(request_id, outcome, usage, self._now())
        if effects or self._draining:
            self._carry_out(effects)

    def abandon(self, request_id: str, usage: Usage | None) -> None:
        del self._tickets[request_id]
        self._carry_out(self._inputs.abandon(request_id, usage, self._now()))

    def retry(self, request_id: str, cause: RetryCause, retry_after: float | None) -> None:
        self._carry_out(self._inputs.retry(request_id, cause, retry_after, self._now()))

    def join(self, replica: Replica) -> None:
        self._carry_out(self._inputs.join(replica, self._now()))

    def leave(self, replica_id: str) -> None:
        self._carry_out(self._inputs.leave(replica_id, self._now()))

    def expect(self, model: str, seconds: Iterable[float]) -> None:
        """Replicas of a model will likely serve in so many seconds each."""
        now = self._now()
        self._carry_out(self._inputs.expect(model, [now + s for s in seconds], now))

    def observe(self, replica_id: str, signals: Signals) -> None:
        self._carry_out(self._inputs.observe(replica_id, signals, self._now()))

    def reconfigure(self, settings: FlowSettings) -> None:
        """Raises ValueError, with nothing changed, for settings that do not fit together."""
        now = self._now()
        effects = self._inputs.reconfigure(settings, now)
        self._inputs = shadowed(self._inputs, now)
        self._carry_out(effects)

    # Replicas on their way out.

    def when_quiet(self, replica_id: str, tell: Callable[[str], None]) -> None:
        """Call `tell` once nothing runs on a replica any more; soon, when nothing does now."""
        self._draining[replica_id] = tell
        self._tell_drained()

    def forget_drain(self, replica_id: str) -> None:
        self._draining.pop(replica_id, None)

    def _tell_drained(self) -> None:
        busy = {view.id for view in self.flow.replicas() if view.in_flight}
        for replica_id in [name for name in self._draining if name not in busy]:
            self._draining.pop(replica_id)(replica_id)

    def tickets(self) -> Iterable[Ticket]:
        """Give the tickets of all requests that are alive."""
        return self._tickets.values()

    def close(self) -> None:
        """Disarm the timer; nothing is decided after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._armed_at = None

    # Carrying out.

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        if effects:
            waiting = self._effects
            if self._carrying:
                waiting.extend(effects)
                return  # the loop below, further up the stack, takes them in order
            self._carrying = True
            try:
                if waiting or len(effects) > 1:
                    waiting.extend(effects)
                else:
                    effect = effects[0]
                    ticket = self._tickets.get(effect.request.id)
                    if ticket is not None and isinstance(effect, Dispatch):
                        ticket.dispatch(effect)  # as _deliver has it: most go this way
                    else:
                        self._deliver(effect)
                while waiting:
                    self._deliver(waiting.popleft())
            finally:
                self._carrying = False
        self._rearm()
        if self._steps:
            while self._steps:
                self.stepped(self._steps.popleft())
        if self._draining:
            self._tell_drained()

    def _deliver(self, effect: Effect) -> None:
        request_id = effect.request.id
        if isinstance(effect, Dispatch):
            ticket = self._tickets.get(request_id)
            if ticket is not None:  # None: it left while this effect was waiting its turn
                ticket.dispatch(effect)
            return
        if isinstance(effect, Refuse):
            ticket = self._tickets.pop(request_id, None)
            if ticket is not None:
                ticket.refuse(effect)
            return
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            ticket.cancel(effect)  # and it finishes itself, with what it has used

    def _rearm(self) -> None:
        armed_at, inputs = self._armed_at, self._inputs
        if armed_at is not None and inputs is self.flow and self.flow.sleeps_until(armed_at):
            return
        deadline = inputs.next_deadline()
        if deadline is None or (armed_at is not None and armed_at <= deadline):
            return  # a timer that stands fires early, finds nothing due, and is armed anew
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = deadline
        self._timer = self._clock.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        due = self._armed_at
        self._timer = None
        self._armed_at = None
        now = self._now()
        # Timers may fire a clock tick early: `now` is then the deadline itself.
        self._carry_out(self._inputs.advance(now if due is None else max(now, due)))
