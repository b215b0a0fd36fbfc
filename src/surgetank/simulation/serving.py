"""A request's life in the simulation: offered, placed, stepped, ended, tried again.

Rule: effects of the gateway are carried out in order, as the live driver does; what a request used
is told back exactly once, when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf, isnan
from typing import Final

import numpy as np

from surgetank.engine.skipping.layout import FINISHED, FIRST_TOKEN, PREEMPTED
from surgetank.policy.effect import Cancel, Dispatch, Effect, Refuse
from surgetank.policy.flow import RetryCause
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.simulation.fleet import Fleet, Machine
from surgetank.simulation.ledger import CODES, COMPLETED, OPEN, Ledger
from surgetank.simulation.plain import Gateway
from surgetank.simulation.scenario import Scenario
from surgetank.simulation.timeline import Timeline
from surgetank.traffic.trace import UNKNOWN

_ROUTE: Final = "/v1/chat/completions"
_BYTES_PER_TOKEN: Final = 4  # of English text, roughly; FlowControl learns it as it does live
_TOKENS_PER_MESSAGE: Final = 4
_COMPLETED: Final = Outcome.COMPLETED  # a member looked up in its enum takes 0.15 us
_new: Final = tuple.__new__  # a third of the time of a named tuple's own


class Serving:
    """All requests of a run, from their arrival to their client's last word.

    `armed`: when the gateway wants to be called; `open`: requests whose client waits for something;
    `alive`: rows that the gateway knows. `quiet` is called for a draining replica whose last
    request ended.
    """

    def __init__(
        self,
        scenario: Scenario,
        flow: Gateway,
        fleet: Fleet,
        timeline: Timeline,
        draw: Callable[[], float],
    ) -> None:
        self._workload = load = scenario.workload
        self._flow = flow
        self._fleet = fleet
        self._timeline = timeline
        self._draw = draw
        self._kv_transfer = scenario.kv_transfer
        self.quiet: Callable[[Machine, float], None] = lambda _machine, _now: None
        self.ledger = Ledger(load)
        self.armed = inf
        self.open = len(load)
        self.alive = 0
        self._prompt: list[int] = load.prompt.tolist()
        self._output: list[int] = load.output.tolist()
        self._cached = None if load.cached is None else np.maximum(0, load.cached).tolist()
        self._priority = None if load.priority is None else load.priority.tolist()
        self._max_tokens = None if load.max_tokens is None else load.max_tokens.tolist()
        self._tenant: list[int] = load.tenant.tolist()
        self._model: list[int] = load.model.tolist()
        # A gateway reads the text's bytes, not its tokens.
        self._size: list[int] = (
            _BYTES_PER_TOKEN * np.maximum(1, load.prompt - _TOKENS_PER_MESSAGE)
        ).tolist()
        self._clients = [scenario.clients_of.get(name, scenario.clients) for name in load.tenants]
        self._where: list[Machine | None] = [None] * len(load)  # where each row runs
        self.later: dict[int, Machine] = {}  # rows in prefill: where they will decode
        self._waiting: set[int] = set()  # rows in the gateway's queue
        self._one_queue = len(load.models) == 1
        self._effects: deque[Effect] = deque()
        self._carrying = False
        self._generated = [0.0] * len(load.models)  # output tokens of what ended
        self._over = False
        totals = [scenario.flow.request_timeout]
        totals += [t.request_timeout for t in scenario.tiers if t.request_timeout is not None]
        waits = [scenario.flow.queue_timeout]
        waits += [t.queue_timeout for t in scenario.tiers if t.queue_timeout is not None]
        # No request's deadline is nearer than these at its arrival, whether it runs or waits.
        self._shortest = min(totals)
        self._shortest_wait = min(*totals, *waits)

    # What time it is.

    def advance(self, now: float) -> None:
        """The gateway's deadline has come."""
        self.armed = inf
        self.carry_out(self._flow.advance(now), now)
        self._rearm()

    def scrape(self, now: float) -> None:
        """The gateway reads the metrics of every engine it sends to."""
        for machine in list(self._fleet.machines.values()):
            if machine.routed:
                effects = self._flow.observe(machine.id, machine.signals(now), now)
                if effects:
                    self.carry_out(effects, now)
        self._rearm()

    def _rearm(self) -> None:
        """Take the gateway's deadline anew; one that stands and is early finds nothing due."""
        deadline = self._flow.next_deadline()
        if deadline is not None and deadline < self.armed:
            self.armed = deadline

    # A request.

    def offer(self, row: int, now: float) -> None:
        ledger = self.ledger
        root = ledger.root[row]
        tenant = self._tenant[root]
        request = self._request(row, root, tenant)
        self.alive += 1
        client = self._clients[tenant]
        if client.patience is not None:
            began = ledger.arrived[root]  # a person waits over all tries of the program
            self._timeline.at(max(now, began + client.patience), self._lose_patience, row)
        if client.timeout is not None:
            self._timeline.at(now + client.timeout, self._time_out, row)
        effects = self._flow.offer(request, now)
        if effects:
            self.carry_out(effects, now)
        # Its own deadline is not nearer than the shortest there is; what else may come nearer are
        # replicas that wake up, and those count from the first one that waits for them.
        if self._where[row] is None and ledger.outcome[row] == OPEN:
            if self.armed > now + self._shortest_wait or not self._waiting:
                self._rearm()
            if self._one_queue:
                self._waiting.add(row)
        elif self.armed > now + self._shortest:
            self._rearm()

    def _request(self, row: int, root: int, tenant: int) -> Request:
        """The request as a gateway reads it."""
        load, size = self._workload, self._size[root]
        bound = None if self._max_tokens is None else self._max_tokens[root]
        if bound == UNKNOWN:
            bound = None
        values = (
            str(row),
            load.tenants[tenant],
            load.models[self._model[root]],
            size,
            size,
            None,
            1,
            bound,
            1,
            size,
            _ROUTE,
            True,
            "",
            self.ledger.retry[row],
            None,
            None,
            None,
        )
        return _new(Request, values)

    def carry_out(self, effects: Sequence[Effect], now: float) -> None:
        """Act in order, also when acting makes new effects (as the live driver does)."""
        waiting = self._effects
        if self._carrying:
            waiting.extend(effects)
            return
        self._carrying = True
        try:
            if waiting or len(effects) > 1:
                waiting.extend(effects)
            elif effects:
                self._act(effects[0], now)
            while waiting:
                self._act(waiting.popleft(), now)
        finally:
            self._carrying = False

    def _act(self, effect: Effect, now: float) -> None:
        if isinstance(effect, Dispatch):
            self._dispatch(effect, now)
        elif isinstance(effect, Refuse):
            self._refused(effect, now)
        else:
            self._cancel(effect, now)

    def _dispatch(self, effect: Dispatch, now: float) -> None:
        request, legs, bound, waited, attempt, predicted, position = effect
        row = int(request.id)
        ledger = self.ledger
        if ledger.outcome[row] != OPEN:
            return
        ledger.dispatched[row] = now
        ledger.attempts[row] = attempt
        if waited > 0:
            ledger.queued[row] = True
            ledger.position[row] = position
        if predicted:
            ledger.predicted[row] = predicted
        machine = self._fleet.machines.get(legs[0].replica)
        if machine is None or not machine.routed:
            self._retry(row, "unreached", now)
            return
        root = ledger.root[row]
        output = self._bounded(root, bound, machine)
        if output < 1:
            ledger.output[row] = 0
            self._end(row, Outcome.ENGINE_REJECTED, now)
            self.carry_out(self._flow.finish(str(row), Outcome.ENGINE_REJECTED, None, now), now)
            return
        ledger.output[row] = output
        if len(legs) == 2:
            self.later[row] = self._fleet.machines[legs[1].replica]
            output = 1
        known = self._cached
        self._run_on(machine, row, output, 0 if known is None else known[root], now)

    def _run_on(self, machine: Machine, row: int, output: int, cached: int, now: float) -> None:
        ledger, engine = self.ledger, machine.engine
        root = ledger.root[row]
        prompt = self._prompt[root]
        if self._priority is None:
            added = engine.add(row, prompt, output, cached, now)
        else:
            added = engine.add(row, prompt, output, cached, now, priority=self._priority[root])
        if not added:
            self.later.pop(row, None)
            self._retry(row, "busy", now)
            return
        self._where[row] = machine
        if self._waiting:
            self._waiting.discard(row)
        machine.fresh += 1
        machine.rows.add(row)
        ledger.replica[row] = machine.code
        if engine.due != machine.armed:
            self._fleet.arm(machine)

    def _bounded(self, root: int, bound: int | None, machine: Machine) -> int:
        """Output tokens it will have: the engine stops at the bound, and at its context."""
        output = self._output[root]
        room = machine.longest - self._prompt[root]
        if self._max_tokens is not None and 0 <= self._max_tokens[root] < output:
            output = self._max_tokens[root]
        if bound is not None and bound < output:
            output = bound
        return min(output, room)

    def _retry(self, row: int, cause: RetryCause, now: float) -> None:
        self.carry_out(self._flow.retry(str(row), cause, None, now), now)
        self._rearm()

    def _refused(self, effect: Refuse, now: float) -> None:
        row = int(effect.request.id)
        if self.ledger.outcome[row] != OPEN:
            return
        ledger = self.ledger
        ledger.reasons[row] = effect.reason
        ledger.position[row] = effect.position
        if effect.predicted_wait is not None:
            ledger.predicted[row] = effect.predicted_wait
        if isnan(ledger.dispatched[row]) and now > ledger.arrived[row]:
            ledger.queued[row] = True
        ledger.output[row] = 0
        self._end(
            row,
            effect.outcome,
            now,
            retry_after=effect.retry_after,
            should_retry=effect.should_retry,
        )

    def _cancel(self, effect: Cancel, now: float) -> None:
        row = int(effect.request.id)
        if self.ledger.outcome[row] != OPEN:
            return
        self.ledger.reasons[row] = effect.reason
        usage = self._abort(row, now)
        self._end(row, effect.outcome, now)
        self.carry_out(self._flow.finish(str(row), effect.outcome, usage, now), now)
        self._rearm()

    # The engines.

    def step(self, machine: Machine, due: float) -> None:
        """End an engine's step: it stands first among those that are due."""
        events = machine.engine.step()
        machine.fresh = 0
        self._fleet.stepped(machine, due)
        if not events:
            return
        ledger, where = self.ledger, self._where
        for kind, row in events:
            if where[row] is not machine or ledger.outcome[row] != OPEN:
                continue
            if kind == FINISHED:
                self._finished(row, machine, due)
            elif kind == FIRST_TOKEN:
                if isnan(ledger.first[row]):
                    ledger.first[row] = due
                    effects = self._flow.first_token(str(row), due)
                    if effects:
                        self.carry_out(effects, due)
            elif kind == PREEMPTED:
                ledger.preemptions[row] += 1

    def _finished(self, row: int, machine: Machine, at: float) -> None:
        self._where[row] = None
        machine.rows.remove(row)
        ledger = self.ledger
        root, output = ledger.root[row], ledger.output[row]
        later = self.later.pop(row, None) if self.later else None
        if later is not None and output > 1:
            when = at + self._kv_transfer
            self._timeline.at(when, lambda _, now: self._decode(row, later, now), None)
        else:
            ledger.outcome[row] = COMPLETED  # as `_end` has it, for the usual end
            ledger.ended[row] = at
            self.alive -= 1
            self.open -= 1
            self._generated[self._model[root]] += output
            cached = 0 if self._cached is None else self._cached[root]
            usage = _new(Usage, (self._prompt[root], output, cached))
            effects = self._flow.finish(str(row), _COMPLETED, usage, at)
            if effects:
                self.carry_out(effects, at)
        if machine.draining and not machine.rows:
            self.quiet(machine, at)

    def _decode(self, row: int, machine: Machine, now: float) -> None:
        """The prompt's KV has come over: go on where it decodes."""
        if self.ledger.outcome[row] != OPEN:
            return
        if machine.gone is not None:
            self._fail(row, now)
            return
        prompt, output = self._prompt[self.ledger.root[row]], self.ledger.output[row] - 1
        self._run_on(machine, row, output, prompt, now)

    def _abort(self, row: int, now: float) -> Usage | None:
        """Stop what it has running; what it had used, None when no token had come."""
        ledger = self.ledger
        machine = self._where[row]
        self._where[row] = None
        self.later.pop(row, None)
        tokens = 0
        if machine is not None:
            machine.engine.observe(now)
            tokens = machine.engine.tokens(row)
            if isnan(ledger.first[row]):
                computed = machine.engine.prefilled(row)
                ledger.prefilled[row] = ledger.prefilled.get(row, 0) + computed
            machine.engine.abort(row, now)
            machine.rows.discard(row)
            self._fleet.arm(machine)
            if machine.draining and not machine.rows:
                self._timeline.at(now, self._quiet, machine)
        ledger.output[row] = tokens
        if isnan(ledger.first[row]):
            return None
        return Usage(self._prompt[ledger.root[row]], tokens)

    def _quiet(self, machine: Machine, now: float) -> None:
        if machine.draining and not machine.rows and machine.gone is None:
            self.quiet(machine, now)

    def _fail(self, row: int, now: float) -> None:
        """Its replica is gone: a stream that has begun breaks off, the rest is asked elsewhere."""
        usage = self._abort(row, now)
        if usage is None:
            self._retry(row, "failed", now)
            return
        self._end(row, Outcome.UPSTREAM_FAILED, now)
        self.carry_out(self._flow.finish(str(row), Outcome.UPSTREAM_FAILED, usage, now), now)

    # What the controllers ask (scaling.World).

    def join(self, machine: Machine, now: float) -> None:
        if not machine.routed and machine.gone is None:
            machine.routed = True
            self.carry_out(self._flow.join(machine.replica, now), now)
            self._rearm()

    def leave(self, machine: Machine, now: float) -> None:
        if machine.routed:
            machine.routed = False
            self.carry_out(self._flow.leave(machine.id, now), now)
            self._rearm()

    def cut(self, machine: Machine, now: float) -> None:
        for row in sorted(machine.rows):
            if self._where[row] is machine:
                self._fail(row, now)

    def output_tokens(self, model: str) -> float:
        models = self._workload.models
        total = self._generated[models.index(model)] if model in models else 0.0
        for machine in self._fleet.machines.values():
            if machine.plan.model == model:
                total += machine.engine.all_tokens()
        return total

    # What clients do.

    def _lose_patience(self, row: int, now: float) -> None:
        if self.ledger.outcome[row] == OPEN and isnan(self.ledger.first[row]):
            self._leave_row(row, now, "no first token in time")

    def _time_out(self, row: int, now: float) -> None:
        if self.ledger.outcome[row] == OPEN:
            self._leave_row(row, now, "not answered in time", again=True)

    def _leave_row(self, row: int, now: float, why: str, *, again: bool = False) -> None:
        usage = self._abort(row, now)
        self.ledger.reasons[row] = why
        self._end(row, Outcome.ABANDONED, now, again=again)
        self.carry_out(self._flow.abandon(str(row), usage, now), now)
        self._rearm()

    def give_all_up(self, _what: object, now: float) -> None:
        """It goes on for too long after the last arrival: what is left is unfinished."""
        self._over = True
        for row, outcome in enumerate(self.ledger.outcome):
            if outcome == OPEN:
                usage = self._abort(row, now)
                self._end(row, Outcome.SHUTDOWN, now)
                self.carry_out(self._flow.finish(str(row), Outcome.SHUTDOWN, usage, now), now)
        self.open = 0  # those who wait to try again wait in vain

    def _end(
        self,
        row: int,
        outcome: Outcome,
        now: float,
        *,
        retry_after: float | None = None,
        should_retry: bool = True,
        again: bool = True,
    ) -> None:
        """The one way out of a row: its client takes it as it is, or tries again."""
        ledger = self.ledger
        self._waiting.discard(row)
        ledger.outcome[row] = CODES[outcome]
        ledger.ended[row] = now
        self.alive -= 1
        root = ledger.root[row]
        model = self._model[root]
        self._generated[model] += ledger.output[row]
        if again and not self._over:
            begun = not isnan(ledger.first[row]) and outcome is not Outcome.ABANDONED
            delay = (
                None
                if begun
                else self._clients[self._tenant[root]].delay(
                    ledger.retry[row], retry_after, self._draw(), should_retry=should_retry
                )
            )
            if delay is not None:
                self._timeline.at(now + delay, self._try_again, row)
                return
        self.open -= 1

    def _try_again(self, was: int, now: float) -> None:
        self._where.append(None)
        self.offer(self.ledger.again(was, now), now)
