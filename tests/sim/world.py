"""A whole job in one process: supervisor, network, hosts, agents, ranks, and one virtual clock.

The machines and the codec are the real ones; everything around them is simulated and draws its luck
from one ``random.Random``. Nothing here decides: the shells carry out what the machines say.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from jlaunch.core.agent import AgentMachine
from jlaunch.core.job import JobMachine
from jlaunch.core.spec import JobSpec
from tests.sim.data_plane import Group
from tests.sim.hosts import SimHost
from tests.sim.plan import RankPlan
from tests.sim.program import SimRank
from tests.sim.supervisor import SimSupervisor
from tests.sim.truth import Truth


class World:
    """The clock, and all that lives by it."""

    def __init__(
        self,
        spec: JobSpec,
        seed: int,
        plan: Callable[[int, int], RankPlan],
        *,
        job_class: type[JobMachine] = JobMachine,
        agent_class: type[AgentMachine] = AgentMachine,
    ) -> None:
        self.spec = spec
        self.timeouts = spec.timeouts
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.plan = plan
        self.agent_class = agent_class
        self.truth = Truth(self)
        self.is_data_cut = False
        self.log: list[str] | None = None
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._pids = itertools.count(1000)
        self._groups: dict[int, Group] = {}
        self.hosts = [SimHost(self, index) for index in range(len(spec.hosts))]
        self.supervisor = SimSupervisor(self, job_class)
        world_size = spec.world_size
        self._check_every = max(1, world_size // 16)

    # ---- clock -------------------------------------------------------------------------------------

    def at(self, at: float, step: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._queue, (at, next(self._count), step, args))

    def after(self, delay_s: float, step: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._count), step, args))

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Let time pass until ``until``, or until ``stop`` says so."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, step, args = heapq.heappop(queue)
            step(*args)
            self.steps += 1
            if stop is not None and stop():
                return
        self.now = until

    def must_check(self) -> bool:
        """Whether to check the invariants now (not each time in a big world)."""
        return self.steps % self._check_every == 0

    def next_pid(self) -> int:
        return next(self._pids)

    def note(self, text: str) -> None:
        if self.log is not None:
            self.log.append(f"{self.now:9.3f} {text}")

    # ---- places ------------------------------------------------------------------------------------

    def group(self, epoch: int) -> Group:
        if epoch not in self._groups:
            self._groups[epoch] = Group(self, epoch, self.spec.world_size)
        return self._groups[epoch]

    def processes(self) -> list[SimRank]:
        return [process for host in self.hosts for process in host.processes.values()]

    def is_cut_between(self, host: int, other: int) -> bool:
        return host != other and (self.hosts[host].is_data_cut or self.hosts[other].is_data_cut)

    def data_changed(self) -> None:
        """Cables were pulled or plugged: what was held up goes on."""
        self.is_data_cut = len(self.hosts) > 1 and any(host.is_data_cut for host in self.hosts)
        if not self.is_data_cut:
            for group in self._groups.values():
                self.after(0.01, group.try_complete, group.present)
