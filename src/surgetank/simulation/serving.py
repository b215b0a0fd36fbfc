"""A request's life in the simulation: offered, placed, stepped, ended, tried again.

Rule: effects of the gateway are carried out in order, as the live driver does; what a request used
is told back exactly once, when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import repeat
from math import inf, isnan
from typing import Final

import numpy as np

from surgetank.engine.numbered import MOST_AT_ONCE
from surgetank.engine.skipping.layout import FINISHED, FIRST_TOKEN, PREEMPTED
from surgetank.policy.effect import Cancel, Dispatch, Effect, Refuse
from surgetank.policy.flow import FlowControl, RetryCause
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.simulation.beginnings import Beginnings
from surgetank.simulation.fleet import Fleet, Machine
from surgetank.simulation.ledger import CODES, COMPLETED, OPEN, Ledger
from surgetank.simulation.plain import Gateway, PlainGateway
from surgetank.simulation.scenario import Scenario
from surgetank.simulation.timeline import Timeline
from surgetank.simulation.workload import Workload
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
        self._sleeper = flow if isinstance(flow, FlowControl | PlainGateway) else None
        self._fleet = fleet
        self._stepped = fleet.stepped
        self._timeline = timeline
        self._draw = draw
        self._kv_transfer = scenario.kv_transfer
        self.quiet: Callable[[Machine, float], None] = lambda _machine, _now: None
        self.ledger = Ledger(load)
        self.halted = False  # the timeline asks for a pause
        self.armed = inf
        self.open = len(load)
        self.alive = 0
        self._ids = [str(row) for row in range(len(load))]
        self._prompt: list[int] = load.prompt.tolist()
        self._output: list[int] = load.output.tolist()
        self._cached = None if load.cached is None else np.maximum(0, load.cached).tolist()
        self._beginnings = None if load.shared is None else Beginnings(load)
        self._sessions = [""] * len(load) if load.session is None else _names(load)
        self._priority = None if load.priority is None else load.priority.tolist()
        self._max_tokens = None if load.max_tokens is None else load.max_tokens.tolist()
        self._tenant: list[int] = load.tenant.tolist()
        self._model: list[int] = load.model.tolist()
        # A gateway reads the text's bytes, not its tokens.
        self._size: list[int] = (
            _BYTES_PER_TOKEN * np.maximum(1, load.prompt - _TOKENS_PER_MESSAGE)
        ).tolist()
        self._clients = [scenario.clients_of.get(name, scenario.clients) for name in load.tenants]
        # Whether any of them leaves before its answer is there.
        self._leaves = any(c.patience is not None or c.timeout is not None for c in self._clients)
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
        if scenario.ladder.enabled:  # it is looked at four times a second while it is on a step
            self._shortest = self._shortest_wait = 0.0

    def serve(
        self, arrived: Sequence[float], begin: float, came: Callable[[int, float], None] | None
    ) -> Generator[float, None, tuple[float, int]]:
        """Play it until the last client's last word; when that was, and the events beside steps.

        `arrived`: of the workload's rows, and inf. `came` is told how many came, and when. What is
        due at one moment goes in this order: the gateway's deadline, the timeline, arrivals, steps.
        Where the timeline says `halted` it pauses, and gives the time.
        """
        timeline, ledger, flow, fleet = self._timeline, self.ledger, self._flow, self._fleet
        run, machines, where, ids = fleet.clock.run, fleet.all, self._where, self._ids
        outcomes, first, sleeper = ledger.outcome, ledger.first, self._sleeper
        offer, requests = self._offer, self._requests()
        now, next_row, events = begin, 0, 0
        next_arrival = arrived[0]
        while self.open:
            then, deadline = timeline.next, self.armed
            before = then
            if next_arrival < before:
                before = next_arrival
            if deadline < before:
                before = deadline
            told = 0
            # Where nobody waits the gateway takes note of what engines tell, and no more; so until
            # then nothing is told to any of them, unless a row goes on elsewhere, an empty replica
            # is to be stopped, or it is the end.
            if not (
                sleeper is None
                or self.later
                or fleet.draining
                or self.open <= MOST_AT_ONCE
                or not sleeper.sleeps_until(before)
            ):
                most = MOST_AT_ONCE
                for now, code, kind, row in run(before, most):
                    told += 1
                    if kind == FINISHED:
                        self._complete(row, machines[code], now)
                    elif kind == FIRST_TOKEN:
                        if isnan(first[row]):
                            first[row] = now
                            flow.first_token(ids[row], now)
                    elif kind == PREEMPTED:
                        ledger.preemptions[row] += 1
            else:
                most = 1
                for now, code, kind, row in run(before, most):
                    told += 1
                    machine = machines[code]
                    if where[row] is not machine or outcomes[row] != OPEN:
                        continue
                    if kind == FINISHED:
                        self._finished(row, machine, now)
                    elif kind == FIRST_TOKEN:
                        if isnan(first[row]):
                            first[row] = now
                            self.carry_out(flow.first_token(ids[row], now), now)
                    elif kind == PREEMPTED:
                        ledger.preemptions[row] += 1
            if told >= most:
                continue  # what happened may have moved what is next
            events += 1
            if next_arrival < then and next_arrival < deadline:
                now = next_arrival
                offer(next_row, next(requests), now)
                next_row += 1
                next_arrival = arrived[next_row]
                if came is not None:
                    came(next_row, now)
            elif deadline <= then:
                now = deadline
                self.advance(now)
            else:
                now = then
                timeline.run()
                if self.halted:
                    self.halted = False
                    yield now
        return now, events

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

    def _offer(self, row: int, request: Request, now: float) -> None:
        """A row's request comes."""
        self.alive += 1
        if self._leaves:
            self._set_times(row, now)
        effects = self._flow.offer(request, now)
        if effects:
            self.carry_out(effects, now)
        # Its own deadline is not nearer than the shortest there is; what else may come nearer are
        # replicas that wake up, and those count from the first one that waits for them.
        if self._where[row] is None and self.ledger.outcome[row] == OPEN:
            if self.armed > now + self._shortest_wait or not self._waiting:
                self._rearm()
            if self._one_queue:
                self._waiting.add(row)
        elif self.armed > now + self._shortest:
            self._rearm()

    def _set_times(self, row: int, now: float) -> None:
        """Note when its client will leave."""
        root = self.ledger.root[row]
        client = self._clients[self._tenant[root]]
        if client.patience is not None:
            began = self.ledger.arrived[root]  # a person waits over all tries of the program
            self._timeline.at(max(now, began + client.patience), self._lose_patience, row)
        if client.timeout is not None:
            self._timeline.at(now + client.timeout, self._time_out, row)

    def _requests(self) -> Iterator[Request]:
        """The workload's requests as a gateway reads them, made one by one, without a loop here."""
        load, size = self._workload, self._size
        bounds: Iterator[int | None] = repeat(None)
        if self._max_tokens is not None:
            bounds = (None if bound == UNKNOWN else bound for bound in self._max_tokens)
        prefixes: Iterator[Sequence[int]] = repeat(())
        if self._beginnings is not None:
            prefixes = map(self._beginnings.hashes, range(len(load)), size)
        columns = zip(
            self._ids,
            map(load.tenants.__getitem__, self._tenant),
            map(load.models.__getitem__, self._model),
            size,
            size,
            repeat(None),
            repeat(1),
            bounds,
            repeat(1),
            size,
            repeat(_ROUTE),
            repeat(True),
            self._sessions,
            repeat(0),
            repeat(None),
            repeat(None),
            repeat(None),
            repeat(""),
            prefixes,
            strict=False,
        )
        return map(_new, repeat(Request), columns)

    def carry_out(self, effects: Sequence[Effect], now: float) -> None:
        """Act in order, also when acting makes new effects (as the live driver does)."""
        waiting = self._effects
        if self._carrying:
            waiting.extend(effects)
            return
        if not effects:
            return
        self._carrying = True
        try:
            for effect in effects:
                if isinstance(effect, Dispatch):
                    self._dispatch(effect, now)
                else:
                    self._act(effect, now)
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
        request, legs, bound, waited, attempt, predicted, position, degraded, _ = effect
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
        if degraded:
            ledger.degraded[row] = degraded
        machine = self._fleet.machines.get(legs[0].replica)
        if machine is None or not machine.routed:
            self._retry(row, "unreached", now)
            return
        root = ledger.root[row]
        output, prompt = self._output[root], self._prompt[root]
        if self._max_tokens is not None and 0 <= self._max_tokens[root] < output:
            output = self._max_tokens[root]
        if bound is not None and bound < output:
            output = bound
        if prompt + output > machine.longest:  # the engine stops at its context
            output = machine.longest - prompt
        if output < 1:
            ledger.output[row] = 0
            self._end(row, Outcome.ENGINE_REJECTED, now)
            self.carry_out(
                self._flow.finish(self._ids[row], Outcome.ENGINE_REJECTED, None, now), now
            )
            return
        ledger.output[row] = output
        if len(legs) == 2:
            self.later[row] = self._fleet.machines[legs[1].replica]
            output = 1
        cached = 0
        if self._beginnings is not None:
            blocks = self._beginnings.blocks(root)
            cached = min(machine.cache.found(blocks), prompt - 1)
            machine.cache.hold(blocks)
            ledger.cached[row] = cached
        elif self._cached is not None:
            cached = self._cached[root]
        self._run_on(machine, row, root, output, cached, now)

    def _run_on(
        self, machine: Machine, row: int, root: int, output: int, cached: int, now: float
    ) -> None:
        prompt = self._prompt[root]
        priority = 0 if self._priority is None else self._priority[root]
        if machine.push(row, prompt, output, cached, priority, now) <= 0 and not machine.engine.add(
            row, prompt, output, cached, priority, now
        ):
            self.later.pop(row, None)
            self._retry(row, "busy", now)
            return
        self._where[row] = machine
        if self._waiting:
            self._waiting.discard(row)
        machine.rows.add(row)
        self.ledger.replica[row] = machine.code
        if self._stepped is not None:
            self._stepped.arm(machine.code)

    def _retry(self, row: int, cause: RetryCause, now: float) -> None:
        self.carry_out(self._flow.retry(self._ids[row], cause, None, now), now)
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
        if effect.degraded:
            ledger.degraded[row] = effect.degraded
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
        self.carry_out(self._flow.finish(self._ids[row], effect.outcome, usage, now), now)
        self._rearm()

    # The engines.

    def _finished(self, row: int, machine: Machine, at: float) -> None:
        later = self.later.pop(row, None) if self.later else None
        if later is not None and self.ledger.output[row] > 1:
            self._where[row] = None
            machine.rows.remove(row)
            when = at + self._kv_transfer
            self._timeline.at(when, lambda _, now: self._decode(row, later, now), None)
        else:
            effects = self._complete(row, machine, at)
            if effects:
                self.carry_out(effects, at)
        if machine.draining and not machine.rows:
            self.quiet(machine, at)

    def _complete(self, row: int, machine: Machine, at: float) -> Sequence[Effect]:
        """Note its usual end, as `_end` has it, and tell the gateway."""
        self._where[row] = None
        machine.rows.remove(row)
        ledger = self.ledger
        ledger.outcome[row] = COMPLETED
        ledger.ended[row] = at
        self.alive -= 1
        self.open -= 1
        root, output = ledger.root[row], ledger.output[row]
        self._generated[self._model[root]] += output
        cached = 0
        if self._beginnings is not None:
            cached = ledger.cached[row]
        elif self._cached is not None:
            cached = self._cached[root]
        usage = _new(Usage, (self._prompt[root], output, cached))
        return self._flow.finish(self._ids[row], _COMPLETED, usage, at)

    def _decode(self, row: int, machine: Machine, now: float) -> None:
        """The prompt's KV has come over: go on where it decodes."""
        if self.ledger.outcome[row] != OPEN:
            return
        if machine.gone is not None:
            self._fail(row, now)
            return
        root = self.ledger.root[row]
        self._run_on(machine, row, root, self.ledger.output[row] - 1, self._prompt[root], now)

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
            if self._stepped is not None:
                self._stepped.arm(machine.code)
            if machine.draining and not machine.rows:
                self._timeline.at(now, self._quiet, machine)
        ledger.output[row] = tokens
        if isnan(ledger.first[row]):
            return None
        root = ledger.root[row]
        cached = 0 if self._cached is None else min(self._cached[root], self._prompt[root])
        return Usage(self._prompt[root], tokens, cached)

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
        self.carry_out(self._flow.finish(self._ids[row], Outcome.UPSTREAM_FAILED, usage, now), now)

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

    def expect(self, model: str, etas: Sequence[float], now: float) -> None:
        self.carry_out(self._flow.expect(model, etas, now), now)

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
        self.carry_out(self._flow.abandon(self._ids[row], usage, now), now)
        self._rearm()

    def give_all_up(self, _what: object, now: float) -> None:
        """It goes on for too long after the last arrival: what is left is unfinished."""
        self._over = True
        for row, outcome in enumerate(self.ledger.outcome):
            if outcome == OPEN:
                usage = self._abort(row, now)
                self._end(row, Outcome.SHUTDOWN, now)
                self.carry_out(self._flow.finish(self._ids[row], Outcome.SHUTDOWN, usage, now), now)
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
        row = self.ledger.again(was, now)
        self._ids.append(str(row))
        self._offer(row, self._retried(row), now)

    def _retried(self, row: int) -> Request:
        """A later try of a client, as a gateway reads it."""
        root, load = self.ledger.root[row], self._workload
        size, bounds = self._size[root], self._max_tokens
        bound = None if bounds is None or bounds[root] == UNKNOWN else bounds[root]
        return Request(
            id=self._ids[row],
            tenant=load.tenants[self._tenant[root]],
            model=load.models[self._model[root]],
            prompt_bytes=size,
            prompt_chars=size,
            max_tokens=bound,
            body_bytes=size,
            route=_ROUTE,
            stream=True,
            session=self._sessions[root],
            client_retry=self.ledger.retry[row],
            prefix=() if self._beginnings is None else self._beginnings.hashes(root, size),
        )


def _names(load: Workload) -> list[str]:
    codes = [] if load.session is None else load.session.tolist()
    return [load.sessions[code] if code >= 0 else "" for code in codes]
