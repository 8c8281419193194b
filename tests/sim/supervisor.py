"""The simulated supervisor: the job machine's shell."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jlaunch.core import messages
from jlaunch.core.actions import Action, EndJob, Order, RenewLease, StartAgent
from jlaunch.core.events import ActionFailed, AgentHeard, JobStarted, StopRequested
from jlaunch.core.facts import SupervisorGone
from jlaunch.core.job import JobMachine
from tests.sim.hosts import SimAgent

if TYPE_CHECKING:
    from tests.sim.world import World


class SimSupervisor:
    """The job machine's shell."""

    def __init__(self, world: World, job_class: type[JobMachine]) -> None:
        self.world = world
        self.machine = job_class(world.spec, rng=random.Random(world.seed))
        self.current: dict[int, SimAgent] = {}
        self.end: EndJob | None = None
        self.is_killed = False
        self.is_frozen = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._wake_at = math.inf

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.is_killed

    def start(self) -> None:
        self.feed(JobStarted())

    def feed(self, event: Any) -> None:
        """One step of the machine and all it asks for."""
        if self.is_killed:
            return
        if self.is_frozen:
            self._backlog.append((self.feed, (event,)))
            return
        self._act(self.machine.handle(event, self.world.now))

    def _wake(self, at: float) -> None:
        if self.is_killed or at != self._wake_at:
            return
        self._wake_at = math.inf
        if self.is_frozen:
            self._backlog.append((self._act_on_wake, ()))
        else:
            self._act_on_wake()

    def _act_on_wake(self) -> None:
        self._act(self.machine.wake(self.world.now))

    def _act(self, actions: list[Action]) -> None:
        world = self.world
        if self.end is not None:
            assert not actions, f"a terminal job acted: {actions}"
        if world.must_check() or actions:
            self.machine.check()
        if world.log is not None:
            for action in actions:
                if not isinstance(action, RenewLease):
                    world.note(f"job   {action}")
        for action in actions:
            self._do(action)
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < self._wake_at:
            self._wake_at = deadline
            world.at(max(deadline, world.now), self._wake, deadline)

    def _do(self, action: Action) -> None:
        if isinstance(action, Order):
            self._order(action)
        elif isinstance(action, StartAgent):
            self._start_agent(action.host)
        elif isinstance(action, EndJob):
            self.end = action
            self.world.truth.ended(action)
        else:
            self.world.truth.said(action)

    def _order(self, order: Order) -> None:
        agent = self.current.get(order.host)
        if agent is not None:
            agent.down(order)

    def _start_agent(self, host_index: int) -> None:
        world = self.world
        host = world.hosts[host_index]
        self.current.pop(host_index, None)
        if host.is_crashed or host.is_frozen or not host.is_reachable:
            failed = ActionFailed(action="StartAgent", error="connection timed out", host=host_index)
            world.after(1.0, self.feed, failed)
            return
        agent = SimAgent(host)
        self.current[host_index] = agent
        world.after(world.rng.uniform(0.05, 0.2), agent.start)

    def heard(self, agent: SimAgent, data: bytes) -> None:
        up = messages.decode_up(data)
        self.feed(AgentHeard(host=up.host, incarnation=up.incarnation, event=up.body))  # type: ignore[arg-type]

    def stop(self, signal: int) -> None:
        self.world.truth.stop_asked(signal)
        self.feed(StopRequested(signal=signal))

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        backlog, self._backlog = self._backlog, []
        for step, args in backlog:
            step(*args)

    def kill(self) -> None:
        """SIGKILL: local agents see the end of the pipe, the others hear nothing any more."""
        self.is_killed = True
        for agent in list(self.current.values()):
            if agent.host.is_local:
                self.world.after(0.01, agent.feed, SupervisorGone())
