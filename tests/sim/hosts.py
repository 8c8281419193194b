"""Simulated hosts and their agents, and the network between an agent and the supervisor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jlaunch.core import messages
from jlaunch.core.actions import (
    AskForStack,
    Deed,
    ExitAgent,
    Order,
    ReadBlock,
    RenewLease,
    SendBeat,
    SendUp,
    SignalGroup,
    StartProcess,
    TellRank,
    WriteBlock,
)
from jlaunch.core.events import AgentExited, HeartbeatArrived, RankSampled, StackTaken
from jlaunch.core.facts import AgentStarted, ProcessStarted, ProcessStartFailed
from tests.sim.link import Frame, Link
from tests.sim.program import SimRank

if TYPE_CHECKING:
    from tests.sim.world import World


class SimHost:
    """A machine: processes, at most one agent that matters, links to the rest of the world."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.is_local = world.spec.hosts[index].is_local
        self.processes: dict[tuple[int, int], SimRank] = {}
        self.agent: SimAgent | None = None
        self.incarnations = itertools.count(1)
        self.is_frozen = False
        self.thawed_at = -math.inf
        self.is_crashed = False
        self.cuts_up = False
        self.cuts_down = False
        self.is_data_cut = False
        self.drop = 0.0
        self.repeat = 0.0
        self.delay_s = 0.002
        self.skew = 1.0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def is_reachable(self) -> bool:
        return not (self.cuts_up or self.cuts_down)

    def clock(self) -> float:
        """The host's own monotonic clock."""
        return 5000.0 * (self.index + 1) + self.world.now * self.skew

    def real_time(self, local: float) -> float:
        return (local - 5000.0 * (self.index + 1)) / self.skew

    def when_awake(self, step: Callable[..., None], *args: Any) -> None:
        """Do it now, or when the host thaws."""
        if self.is_crashed:
            return
        if self.is_frozen:
            self._backlog.append((step, args))
        else:
            step(*args)

    def live(self) -> list[SimRank]:
        return [process for process in self.processes.values() if process.is_alive]

    # ---- faults ------------------------------------------------------------------------------------

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        if not self.is_frozen:
            return
        self.is_frozen = False
        self.thawed_at = self.world.now
        backlog, self._backlog = self._backlog, []
        for step, args in backlog:
            step(*args)
        for process in list(self.processes.values()):
            process.unfreeze_steps()

    def crash(self) -> None:
        """Power loss: all is gone, nobody says so."""
        self.is_crashed = True
        for process in self.live():
            process.kill()
        if self.agent is not None:
            self.agent.vanish()

    def kill_agent(self) -> None:
        """SIGKILL of the agent: the guardian ends its ranks, the supervisor sees its end if it can."""
        agent = self.agent
        if agent is None or agent.is_gone:
            return
        agent.vanish()
        self.end_processes()
        if self.is_reachable:
            event = AgentExited(host=self.index, status=-9, incarnation=agent.incarnation)
            self.world.after(0.01 if self.is_local else 0.2, self.world.supervisor.feed, event)

    def end_processes(self) -> None:
        """What guardian and keepers do."""
        for process in self.live():
            self.world.after(self.world.rng.uniform(0.0, self.world.timeouts.grace_s), self._end, process)

    def _end(self, process: SimRank) -> None:
        if not process.plan.is_unkillable:
            process.kill()


class SimAgent:
    """One incarnation of an agent: the agent machine's shell."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.world = host.world
        self.incarnation = f"h{host.index}.{next(host.incarnations)}"
        self.machine = self.world.agent_class(
            self.world.spec, host.index, incarnation=self.incarnation, pid=self.world.next_pid()
        )
        self.is_gone = False
        self.is_frozen = False
        self.beat_at = self.world.now
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._wake_at = math.inf
        self._ends = {"up": Link(), "down": Link()}
        """Both ends of the link, by the direction in which each sends."""
        self._link_wakes: dict[str, float] = {"up": math.inf, "down": math.inf}
        self._last_arrival = {"up": 0.0, "down": 0.0}

    # ---- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.host.is_crashed:
            return
        self.host.agent = self
        self.feed(AgentStarted())

    def vanish(self) -> None:
        self.is_gone = True

    def freeze(self) -> None:
        """SIGSTOP of the agent alone; its ranks run on, and their keepers watch its heartbeat."""
        self.is_frozen = True
        lapse_s = self.world.timeouts.lease_s - (self.world.now - self.beat_at)
        self.world.after(lapse_s, self._keepers_look, self.beat_at)

    def _keepers_look(self, beat_at: float) -> None:
        if not self.is_gone and self.beat_at == beat_at:
            self.host.end_processes()

    def thaw(self) -> None:
        self.is_frozen = False
        backlog, self._backlog = self._backlog, []
        for step, args in backlog:
            step(*args)

    # ---- the machine -------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        self.host.when_awake(self._feed, event)

    def _feed(self, event: Any) -> None:
        if self.is_gone:
            return
        if self.is_frozen:
            self._backlog.append((self._feed, (event,)))
            return
        self._act(self.machine.handle(event, self.host.clock()))

    def _wake(self, at: float) -> None:
        if at == self._wake_at:
            self._wake_at = math.inf
            self.host.when_awake(self._act_on_wake)

    def _act_on_wake(self) -> None:
        if self.is_gone:
            return
        if self.is_frozen:
            self._backlog.append((self._act_on_wake, ()))
            return
        self._act(self.machine.wake(self.host.clock()))

    def _act(self, deeds: list[Deed]) -> None:
        if deeds:
            self.machine.check()
        if self.world.log is not None:
            for deed in deeds:
                if not isinstance(deed, SendBeat):
                    self.world.note(f"{self.incarnation:5} {deed}")
        for deed in deeds:
            _DEEDS[type(deed)](self, deed)
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < self._wake_at:
            self._wake_at = deadline
            at = self.host.real_time(deadline)
            # A hair later, so that the host's clock has surely reached the deadline.
            self.world.at(max(at, self.world.now) + 1e-9, self._wake, deadline)

    # ---- deeds -------------------------------------------------------------------------------------

    def _process(self, deed: Any) -> SimRank | None:
        return self.host.processes.get((deed.rank, deed.epoch))

    def _start_process(self, deed: StartProcess) -> None:
        self.world.after(self.world.rng.uniform(0.005, 0.05), self._spawn, deed)

    def _spawn(self, deed: StartProcess) -> None:
        if self.is_gone or self.host.is_crashed:
            return
        if self.host.is_frozen or self.is_frozen:
            self.host.when_awake(self.world.after, 0.01, self._spawn, deed)
            return
        plan = self.world.plan(deed.rank, deed.epoch)
        if plan.spawn_error:
            self.world.truth.note_fault("spawn", deed.rank)
            self.feed(ProcessStartFailed(rank=deed.rank, epoch=deed.epoch, error=plan.spawn_error))
            return
        self.world.truth.spawning(deed.rank, deed.epoch)
        process = SimRank(self, deed.rank, deed.epoch, plan, self.world.group(deed.epoch))
        self.host.processes[(deed.rank, deed.epoch)] = process
        self.feed(ProcessStarted(rank=deed.rank, epoch=deed.epoch, pid=process.pid))
        process.begin()

    def _signal(self, deed: SignalGroup) -> None:
        process = self._process(deed)
        if process is not None:
            self.world.truth.signalled(process, deed.signal)
            process.signal(deed.signal)

    def _write(self, deed: WriteBlock) -> None:
        process = self._process(deed)
        if process is not None:
            process.write(deed)

    def _tell(self, deed: TellRank) -> None:
        process = self.host.processes.get((deed.rank, deed.order.epoch))
        if process is not None:
            process.told(deed.order)

    def _read(self, deed: ReadBlock) -> None:
        process = self._process(deed)
        if process is not None and process.is_alive:
            self._send_up(RankSampled(rank=deed.rank, epoch=deed.epoch, sample=process.sample()))

    def _ask(self, deed: AskForStack) -> None:
        process = self._process(deed)
        if process is not None and process.is_alive and not process.is_frozen:
            place = ('  File "train.py", line 1 in step',)
            self._send_up(StackTaken(rank=deed.rank, epoch=deed.epoch, lines=place))

    def _send(self, deed: SendUp) -> None:
        self._send_up(deed.event)

    def _beat(self, deed: SendBeat) -> None:
        self.beat_at = self.world.now
        waits = {}
        for (rank, _), process in self.host.processes.items():
            if process.is_alive and process.in_wait:
                wait = process.wait()
                if wait is not None:
                    waits[rank] = wait
        beat = HeartbeatArrived(host=self.host.index, beat=deed.beat, waits=waits)
        self._send_data("up", messages.encode_up(self.host.index, self.incarnation, beat), is_loose=True)

    def _exit(self, deed: ExitAgent) -> None:
        self.is_gone = True
        if self.host.is_reachable:
            event = AgentExited(host=self.host.index, status=deed.code, incarnation=self.incarnation)
            self.world.after(0.05, self.world.supervisor.feed, event)

    # ---- the network -------------------------------------------------------------------------------

    def _send_up(self, event: Any) -> None:
        self._send_data("up", messages.encode_up(self.host.index, self.incarnation, event))

    def down(self, order: Order) -> None:
        """The supervisor sends an order."""
        data = messages.encode_down(order)  # type: ignore[arg-type]
        self._send_data("down", data, is_loose=isinstance(order, RenewLease))

    def _send_data(self, side: str, data: bytes, *, is_loose: bool = False) -> None:
        if self.host.is_local:
            # A local socket keeps the order and loses nothing.
            at = max(self.world.now + 0.0005 * self.world.rng.random(), self._last_arrival[side])
            self._last_arrival[side] = at
            self.world.at(at, self._arrive, side, Frame(0, 0, data))
        elif is_loose:
            self._transmit(side, self._ends[side].send_loose(data))
        else:
            self._transmit(side, self._ends[side].send(data, self.world.now))
            self._arm_link(side)

    def _arm_link(self, side: str) -> None:
        at = self._ends[side].next_deadline()
        if at is not None and at < self._link_wakes[side]:
            self._link_wakes[side] = at
            self.world.at(at, self._link_due, side, at)

    def _link_due(self, side: str, at: float) -> None:
        if at != self._link_wakes[side]:
            return
        self._link_wakes[side] = math.inf
        if self.is_gone if side == "up" else self.world.supervisor.is_killed:
            return
        if self.host.is_crashed:
            return
        for frame in self._ends[side].due(self.world.now):
            self._transmit(side, frame)
        self._arm_link(side)

    def _transmit(self, side: str, frame: Frame) -> None:
        host, rng = self.host, self.world.rng
        if (host.cuts_up if side == "up" else host.cuts_down) or rng.random() < host.drop:
            return
        at = self.world.now + rng.random() * host.delay_s
        if not host.drop:
            # A healthy network keeps the order; a lossy one may not.
            at = max(at, self._last_arrival[side])
            self._last_arrival[side] = at
        self.world.at(at, self._arrive, side, frame)
        if host.repeat and rng.random() < host.repeat:
            self.world.after(rng.random() * host.delay_s * 4, self._arrive, side, frame)

    def _arrive(self, side: str, frame: Frame) -> None:
        # The ack of one direction travels with the frames of the other.
        if side == "up":
            self._arrive_up(frame)
        else:
            self.host.when_awake(self._arrive_down, frame)

    def _arrive_up(self, frame: Frame) -> None:
        supervisor = self.world.supervisor
        if supervisor.is_killed:
            return
        data = self._ends["down"].receive(frame, self.world.now)
        self._arm_link("down")
        if data is not None:
            supervisor.heard(self, data)

    def _arrive_down(self, frame: Frame) -> None:
        if self.is_gone:
            return
        data = self._ends["up"].receive(frame, self.world.now)
        self._arm_link("up")
        if data is not None:
            self.feed(messages.decode_down(data).body)


_DEEDS: dict[type[Deed], Callable[[SimAgent, Any], None]] = {
    StartProcess: SimAgent._start_process,
    SignalGroup: SimAgent._signal,
    WriteBlock: SimAgent._write,
    TellRank: SimAgent._tell,
    ReadBlock: SimAgent._read,
    AskForStack: SimAgent._ask,
    SendUp: SimAgent._send,
    SendBeat: SimAgent._beat,
    ExitAgent: SimAgent._exit,
}
