"""One pool's controller in virtual time: observe, decide, act, with the live ScalePolicy and Pool.

Rule: it translates between the simulated fleet and those two, and decides nothing. What the policy
sees is as old as its metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from surgetank.policy.ingress import Ingress, observation
from surgetank.policy.plan import Observation, ScaleSpec
from surgetank.policy.pool import Attach, Detach, Drain, Pool, PoolEffect, Start, Stop
from surgetank.policy.record import FleetSample
from surgetank.policy.replica import Role
from surgetank.simulation.engines import Make
from surgetank.simulation.fleet import Fleet, Machine, Nodes, draw_start
from surgetank.simulation.plain import Questions
from surgetank.simulation.policies import Scaler
from surgetank.simulation.scenario import PoolPlan
from surgetank.simulation.timeline import Timeline

_STOP: Final = 1.0  # seconds from a stop to a process that is gone
_THIS: Final = "simulation"


class World(Protocol):
    """What a controller asks of the run."""

    def join(self, machine: Machine, now: float) -> None:
        """Have the gateway send it requests."""

    def leave(self, machine: Machine, now: float) -> None:
        """Have the gateway send it no more."""

    def expect(self, model: str, etas: Sequence[float], now: float) -> None:
        """Let the gateway know when replicas that start will likely serve."""

    def cut(self, machine: Machine, now: float) -> None:
        """End what still runs there: it is being stopped."""

    def output_tokens(self, model: str) -> float:
        """Output tokens that a model has generated so far."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all controllers of a run share."""

    world: World
    fleet: Fleet
    timeline: Timeline
    questions: Questions
    engine: Make
    rng: np.random.Generator
    origin: float
    lag: float


class PoolShell:
    """Follows one pool. `launches` counts starts asked for, `samples` are as live ones."""

    def __init__(
        self, plan: PoolPlan, scaler: Scaler, spec: ScaleSpec, around: Surroundings, *, scales: bool
    ) -> None:
        self.plan = plan
        self.launches = 0
        self.failed_starts = 0
        self.samples: list[FleetSample] = []
        self._scaler = scaler
        self._spec = spec
        self._around = around
        self._scales = scales
        self._cold = plan.cold_start()
        self._nodes = Nodes(plan.nodes)
        self._pool = Pool(
            plan.pool_spec(), plan.model, plan.role, draw=lambda: float(around.rng.random())
        )
        self._before: dict[str, Ingress] = {}
        self._readings: deque[Ingress] = deque()
        self._deadline: float | None = None
        self._started = self._failed = 0  # since the last sample
        self._start_times: list[float] = []
        self._here: dict[str, Machine] = {}  # its machines that are not gone
        self._preempted = 0  # by those that are
        self._foretold: tuple[float, ...] = ()

    def begin(self, now: float) -> None:
        """Take in the replicas that are there when the simulation starts."""
        for i in range(self.plan.replicas + self.plan.standbys):
            machine = self._new(f"{self.plan.name}-{i}", now)
            machine.node = node = self._nodes.take() or 0
            self._nodes.loaded(node)
            machine.ready = now
            self._pool.adopt(machine.id, now, serving=i < self.plan.replicas)
            if i < self.plan.replicas:
                self._around.world.join(machine, now)

    def tick(self, now: float) -> None:
        """Observe, decide, act; and write a sample."""
        around, plan = self._around, self.plan
        reading = around.questions.ingress(plan.model, plan.role, now, gateway=_THIS)
        decided = self._scaler.tick(self._seen(reading, now), now)
        self._carry_out([*self._pool.reconcile(decided, now), *self._pool.advance(now)], now)
        self._foretell(now)
        self._sample(reading, decided.replicas, now)

    def _seen(self, reading: Ingress, now: float) -> Observation:
        """What the policy is told: the youngest reading that is as old as its metrics are."""
        counts = self._pool.counts()
        if not self._scales:
            return Observation(counts.serving, counts.starting, counts.standby)
        around = self._around
        total = around.world.output_tokens(self.plan.model)
        self._readings.append(replace(reading, output_tokens=total))
        while len(self._readings) > 1 and self._readings[1].as_of <= now - around.lag:
            self._readings.popleft()
        known = self._readings[0]
        seen = observation(
            [known] if known.as_of <= now - around.lag else [],
            self._before,
            counts,
            start_time=self._pool.start_time(),
            block_size=self._spec.block_size,
        )
        self._before = {_THIS: known}
        return seen

    def _foretell(self, now: float) -> None:
        """Say when what starts will serve, as the live controller does."""
        etas = (
            self._pool.expected(now, self._spec.start_time) if self.plan.role is Role.BOTH else ()
        )
        if etas != self._foretold:
            self._foretold = etas
            self._around.world.expect(self.plan.model, etas, now)

    # What happens to its replicas.

    def quiet(self, machine: Machine, now: float) -> None:
        """Its last stream has ended, and it was told to drain."""
        self._around.fleet.keep(machine)
        self._carry_out(self._pool.drained(machine.id, now), now)

    def crash(self, machine: Machine, now: float) -> None:
        """It died."""
        self._remove(machine, now)
        self._carry_out(self._pool.crashed(machine.id, now), now)

    def _came_up(self, machine: Machine, now: float) -> None:
        if machine.gone is not None:
            return
        machine.ready = now
        self._nodes.loaded(machine.node)
        self._start_times.append(now - machine.asked)
        self._carry_out(self._pool.became_ready(machine.id, now), now)

    def _start_failed(self, machine: Machine, now: float) -> None:
        if machine.gone is not None:
            return
        self._failed += 1
        self.failed_starts += 1
        self._remove(machine, now)
        self._carry_out(self._pool.failed(machine.id, now), now)

    def _stopped(self, machine: Machine, now: float) -> None:
        if machine.gone is None:
            self._remove(machine, now)
            self._carry_out(self._pool.stopped(machine.id, now), now)

    def _on_deadline(self, when: float, now: float) -> None:
        if self._deadline == when:
            self._deadline = None
            self._carry_out(self._pool.advance(now), now)

    # Acting.

    def _carry_out(self, effects: Sequence[PoolEffect], now: float) -> None:
        for effect in effects:
            self._act(effect, now)
        due = self._pool.next_deadline()
        if due is not None and (self._deadline is None or due < self._deadline):
            self._deadline = due
            self._around.timeline.at(max(due, now), self._on_deadline, due)

    def _act(self, effect: PoolEffect, now: float) -> None:
        around = self._around
        if isinstance(effect, Start):
            self._launch(effect.replica, now)
            return
        machine = around.fleet.machines.get(effect.replica)
        if machine is None:
            return
        match effect:
            case Attach():
                around.fleet.keep(machine)
                wake = self._cold.wake(around.rng)
                if wake:
                    around.timeline.at(now + wake, self._woke, machine)
                else:
                    around.world.join(machine, now)
            case Detach():
                around.world.leave(machine, now)
            case Drain():
                around.fleet.drain(machine)
                around.world.leave(machine, now)
                if not machine.rows:
                    around.timeline.at(now, self._drained, machine)
            case Stop():
                around.world.leave(machine, now)
                around.world.cut(machine, now)
                around.timeline.at(now + _STOP, self._stopped, machine)

    def _woke(self, machine: Machine, now: float) -> None:
        if self._pool.state(machine.id).value == "serving":
            self._around.world.join(machine, now)

    def _drained(self, machine: Machine, now: float) -> None:
        if machine.draining and not machine.rows:
            self.quiet(machine, now)

    def _launch(self, name: str, now: float) -> None:
        around = self._around
        self._started += 1
        self.launches += 1
        machine = self._new(name, now)
        node = self._nodes.take()
        machine.node = -1 if node is None else node
        drawn = draw_start(self._cold, self._nodes, node, around.rng)
        ends = self._came_up if drawn.ending == "ready" else self._start_failed
        around.timeline.at(now + drawn.seconds, ends, machine)

    def _new(self, name: str, now: float) -> Machine:
        around = self._around
        machine = around.fleet.add(
            name, self.plan, around.engine(self.plan.profile, self.plan.static_batch), now
        )
        self._here[name] = machine
        return machine

    def _remove(self, machine: Machine, now: float) -> None:
        around = self._around
        around.world.leave(machine, now)
        around.world.cut(machine, now)
        around.fleet.remove(machine, now)
        if self._here.pop(machine.id, None) is not None:
            self._preempted += machine.engine.preemptions
        if machine.node >= 0:
            self._nodes.give_back(machine.node)
            machine.node = -1

    # Writing.

    def _sample(self, reading: Ingress, wanted: int, now: float) -> None:
        counts = self._pool.counts()
        held, room = reading.kv_held, reading.kv_capacity
        preempted = sum(machine.engine.preemptions for machine in self._here.values())
        self.samples.append(
            FleetSample(
                t=now + self._around.origin,
                model=self.plan.model,
                role=self.plan.role.value,
                starting=counts.starting,
                refilling=counts.refilling,
                standby=counts.standby,
                serving=counts.serving,
                draining=counts.draining,
                wanted=wanted,
                queued=reading.queued,
                queue_age=reading.queue_age,
                running=reading.running,
                kv=held / room if held is not None and room else None,
                preemptions=self._preempted + preempted,
                started=self._started,
                failed=self._failed,
                start_times=tuple(self._start_times),
            )
        )
        self._started = self._failed = 0
        self._start_times = []
