"""A job machine and its agents' words, for tests: the shortest way to each stage of a job."""

from __future__ import annotations

import random
from typing import Any, TypeVar

from jlaunch.core.actions import Action, EndJob, RecordVerdict, Say, StopRank, WriteVerdict
from jlaunch.core.contract import Collective, VerdictKind
from jlaunch.core.events import (
    AgentEvent,
    AgentExited,
    AgentHeard,
    AgentReady,
    DeadlineAsked,
    HeartbeatArrived,
    JobStarted,
    RankClaimed,
    RankDied,
    RankEvent,
    RankExited,
    RankFormed,
    RankJoined,
    RankSampled,
    RankSpawned,
    Sample,
    StopRequested,
    VerdictWritten,
    Wait,
)
from jlaunch.core.job import JobMachine
from jlaunch.core.spec import HostSpec, JobSpec, Policy, Timeouts

A = TypeVar("A", bound=Action)

TIMEOUTS = Timeouts(
    deadline_s=1.0,
    max_pause_s=5.0,
    straggler_timeout_s=20.0,
    host_timeout_s=5.0,
    restart_backoff_s=1.0,
    grace_s=10.0,
    start_timeout_s=30.0,
    lease_s=60.0,
)


def job_spec(
    policy: Policy = Policy.RAISE,
    *,
    hosts: int = 1,
    per_host: int = 3,
    is_local: bool = True,
    timeouts: Timeouts = TIMEOUTS,
    max_restarts: int = 3,
) -> JobSpec:
    """A job of ``hosts`` × ``per_host`` ranks."""
    return JobSpec(
        job="test",
        program=("train.py",),
        hosts=tuple(HostSpec(name=f"h{host}", is_local=is_local) for host in range(hosts)),
        placement=tuple(host for host in range(hosts) for _ in range(per_host)),
        cwd="/",
        policy=policy,
        timeouts=timeouts,
        max_restarts=max_restarts,
    )


def wait_for(
    *ranks: int,
    seq: int = 5,
    waited_s: float = 1.0,
    group: int = 0,
    kind: Collective = Collective.ALL_SUM,
) -> Wait:
    """A rank's wait in a collective."""
    return Wait(
        collective=kind,
        seq=seq,
        size_bytes=64,
        waited_s=waited_s,
        waiting_for=ranks,
        group=group,
    )


def sample(
    wait: Wait | None = None,
    *,
    progress: int = 1,
    reports: int = 0,
    is_paused: bool = False,
    output_blocked: bool = False,
) -> Sample:
    """One look at a rank."""
    return Sample(
        progress=progress,
        reports=reports,
        completed_seq=4,
        paused=is_paused,
        output_blocked=output_blocked,
        wait=wait,
    )


class Driven:
    """A job machine, its clock, and everything it has asked for."""

    def __init__(self, spec: JobSpec | None = None, *, seed: int = 1) -> None:
        self.spec = spec or job_spec()
        self.machine = JobMachine(self.spec, rng=random.Random(seed))
        self.now = 100.0
        self.done: list[Action] = []
        self.lives = dict.fromkeys(range(len(self.spec.hosts)), 1)

    # ---- feeding ---------------------------------------------------------------------------------

    def feed(self, event: Any) -> list[Action]:
        """One step; the invariants hold after it."""
        actions = self.machine.handle(event, self.now)
        self.machine.check()
        self.done += actions
        return actions

    def hear(self, event: AgentEvent, host: int | None = None) -> list[Action]:
        """An agent's word; the host is the rank's, if the event has one."""
        if host is None:
            host = self.spec.placement[event.rank] if isinstance(event, RankEvent) else self._host_of(event)
        return self.feed(AgentHeard(host=host, incarnation=f"{host}.{self.lives[host]}", event=event))

    @staticmethod
    def _host_of(event: AgentEvent) -> int:
        host = getattr(event, "host", None)
        assert isinstance(host, int)
        return host

    def sleep(self, span_s: float, *, beating: bool = True) -> list[Action]:
        """Let time pass, step by step; agents send heartbeats unless told otherwise."""
        end = self.now + span_s
        actions: list[Action] = []
        while True:
            deadline = self.machine.next_deadline()
            moment = min(end, self.now + 0.5) if deadline is None else min(end, deadline, self.now + 0.5)
            self.now = max(self.now, moment)
            if beating:
                actions += self.beat()
            if deadline is not None and deadline <= self.now:
                actions += self.wake()
            elif self.now >= end:
                return actions

    def wake(self) -> list[Action]:
        """The timer fires."""
        actions = self.machine.wake(self.now)
        self.machine.check()
        self.done += actions
        return actions

    def beat(self, *hosts: int, waits: dict[int, Wait] | None = None) -> list[Action]:
        """Heartbeats of all hosts that have an agent, or of some."""
        actions: list[Action] = []
        for host in hosts or self.machine.fleet.used:
            if self.machine.fleet.machines[host].is_connected:
                mine = {
                    rank: wait for rank, wait in (waits or {}).items() if self.spec.placement[rank] == host
                }
                actions += self.hear(HeartbeatArrived(host=host, beat=int(self.now * 10), waits=mine), host)
        return actions

    # ---- stages ----------------------------------------------------------------------------------

    def start(self) -> Driven:
        """Agents are there, ranks ordered."""
        self.feed(JobStarted())
        return self.agents_come()

    def agents_come(self) -> Driven:
        for host in self.machine.fleet.used:
            if self.machine.fleet.machines[host].incarnation is None:
                self.ready(host)
        return self

    def ready(self, host: int) -> list[Action]:
        """One agent connects."""
        return self.hear(AgentReady(host=host, incarnation=f"{host}.{self.lives[host]}", pid=10 + host), host)

    def spawn(self) -> Driven:
        """Every rank has a process."""
        for rank in range(self.spec.world_size):
            self.hear(RankSpawned(rank=rank, epoch=self.epoch, pid=1000 + rank))
        return self

    def claim(self, *ranks: int) -> Driven:
        """Some enter ``init``."""
        for rank in ranks:
            self.hear(RankClaimed(rank=rank, epoch=self.epoch, pid=1000 + rank))
        return self

    def join(self, *ranks: int) -> Driven:
        for rank in ranks:
            self.hear(RankJoined(rank=rank, epoch=self.epoch, address=b"a%d" % rank))
        return self

    def form(self) -> Driven:
        """The group is open."""
        everyone = range(self.spec.world_size)
        self.spawn().claim(*everyone).join(*everyone)
        for rank in everyone:
            self.hear(RankFormed(rank=rank, epoch=self.epoch))
        return self

    def run(self) -> Driven:
        """From nothing to an open group."""
        return self.start().form()

    # ---- what ranks do ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.machine.epoch.number

    def die(self, rank: int, status: int | None, *, told: tuple[int, ...] = (), **more: Any) -> list[Action]:
        """Its claim died."""
        more.setdefault("completed_seq", 4)
        return self.hear(RankDied(rank=rank, epoch=self.epoch, status=status, told=told, **more))

    def vanish(self, rank: int, status: int = 0, *, by: str = "itself", **more: Any) -> list[Action]:
        """It is confirmed gone."""
        more.setdefault("completed_seq", 4)
        return self.hear(RankExited(rank=rank, epoch=self.epoch, status=status, by=by, **more))

    def end(self, rank: int, status: int = 0) -> list[Action]:
        """Both, one after the other."""
        return self.die(rank, status) + self.vanish(rank, status)

    def ask(self, rank: int, *named: int, question: int = 1, **more: Any) -> list[Action]:
        """The deadline passed in ``rank``, which waits for ``named``."""
        wait = wait_for(*named, **more)
        return self.hear(DeadlineAsked(rank=rank, epoch=self.epoch, question=question, wait=wait))

    def look(self, rank: int, wait: Wait | None = None, **more: Any) -> list[Action]:
        """A look at ``rank`` comes back."""
        return self.hear(RankSampled(rank=rank, epoch=self.epoch, sample=sample(wait, **more)))

    def written(self, action: WriteVerdict) -> list[Action]:
        """The agent has carried out ``action``."""
        return self.hear(VerdictWritten(host=action.host, verdict=action.verdict), action.host)

    def stop(self, signal: int = 2) -> list[Action]:
        return self.feed(StopRequested(signal=signal))

    def agent_ends(self, host: int, status: int | None = -9) -> list[Action]:
        return self.feed(AgentExited(host=host, status=status))

    # ---- what was asked for ----------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self.machine.state.name

    @property
    def ended(self) -> EndJob:
        """The end; there is exactly one."""
        (end,) = of(EndJob, self.done)
        return end


def of(action_type: type[A], actions: list[Action], /, **fields: object) -> list[A]:
    """The actions of one kind whose fields are as given."""
    return [
        action
        for action in actions
        if isinstance(action, action_type)
        and all(getattr(action, name) == value for name, value in fields.items())
    ]


def raises(actions: list[Action]) -> dict[int, set[int]]:
    """By rank: the losses that it is told."""
    told: dict[int, set[int]] = {}
    for write in of(WriteVerdict, actions, kind=VerdictKind.RAISE):
        for rank in write.ranks:
            told.setdefault(rank, set()).update(loss.rank for loss in write.losses)
    return told


def stopped(actions: list[Action]) -> set[int]:
    """The ranks whose stop is ordered."""
    return {action.rank for action in of(StopRank, actions)}


def answers(actions: list[Action]) -> dict[int, str]:
    """By rank: why it is to keep waiting."""
    return {
        record.ranks[0]: record.why for record in of(RecordVerdict, actions, kind=VerdictKind.KEEP_WAITING)
    }


def said(actions: list[Action]) -> str:
    """All lines for people."""
    return "\n".join(action.text for action in of(Say, actions))


def is_quiet(actions: list[Action]) -> bool:
    """Whether nothing was asked for but words for people."""
    return all(isinstance(action, Say) for action in actions)
