"""The agent machine: what one host's agent decides by itself.

How it is driven (one thread, one owner; the agent's loop):

1. ``machine = AgentMachine(spec, host, incarnation=..., pid=os.getpid())``; when sockets, host
   block, guardian and watch are up: ``handle(AgentStarted(), now)``.
2. Orders are fed as they arrive (``Down.body`` that is an AgentOrder), in order; any other message
   from above is fed as ``SupervisorHeard``. Facts (``core.facts``) are fed as they are seen. Each
   step returns deeds, to be carried out in the order of the list before the next fact is handled.
3. After each step arm one timer for ``next_deadline()``; when it fires call ``wake(now)``.
4. What answers what:
   ``StartProcess`` → ``ProcessStarted`` or ``ProcessStartFailed``. Then, at some time, exactly one
   ``ProcessExited`` and after it exactly one ``GroupVanished`` (at once, if the group is empty).
   ``WriteBlock(kind=STOP)`` → ``LeftWait`` as soon as the block's ``in_wait`` is 0 (at once, if it is).
   ``ProcessStarted`` comes before any other fact of that process.
   ``ReadBlock`` → the shell sends ``RankSampled`` up itself. ``SendBeat`` → it beats the host block
   and sends ``HeartbeatArrived`` itself. ``WriteBlock``, ``SignalGroup``, ``TellRank``, ``SendUp`` are
   not answered; signalling a group that is gone is no error.
   ``ExitAgent`` comes once, last; after it the machine returns nothing.
5. Watched by the shell all the time, without being told: exits, stopped and continued processes,
   claims, phases, questions, desyncs, the ranks' socket, end of file from the supervisor.

Rules of this file. By itself an agent decides only what cannot wait for the supervisor (the design's
race (d)): it tells the local ranks of a death that it saw itself, it answers "keep waiting" while the
supervisor is silent, and it ends its ranks when the supervisor is gone or the lease has lapsed. What
it tells a rank only grows more severe. Facts and orders of another epoch are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable

from jlaunch.core.actions import (
    AskForStack,
    Deed,
    EndAgent,
    ExitAgent,
    FormGroup,
    OpenGroup,
    Order,
    PauseHost,
    ReadBlock,
    RefuseGroup,
    RenewLease,
    ResumeHost,
    SampleRanks,
    SendBeat,
    SendUp,
    SpawnRank,
    StopRank,
    TakeStack,
    WriteVerdict,
)
from jlaunch.core.contract import ExitCode
from jlaunch.core.events import ActionFailed, AgentReady, DeadlineReached, Event, HostPaused, LeaseLapsed
from jlaunch.core.facts import (
    AgentInput,
    AgentStarted,
    DeedFailed,
    RankFact,
    RankSpoke,
    SupervisorGone,
    SupervisorHeard,
)
from jlaunch.core.host import beat_interval_s
from jlaunch.core.lease import Lease
from jlaunch.core.local import LocalRanks
from jlaunch.core.machine import Timers
from jlaunch.core.pause import PausableClock
from jlaunch.core.spec import JobSpec

_BEAT = "beat"
_LEASE = "lease"


class AgentMachine:
    """One host's part of a job, as one incarnation of its agent."""

    def __init__(self, spec: JobSpec, host: int, *, incarnation: str, pid: int) -> None:
        self.spec = spec
        self.host = host
        self.is_over = False
        self.lease = Lease(spec.timeouts.lease_s)
        self._incarnation = incarnation
        self._pid = pid
        self._exit_code: int | None = None
        self._dropped = 0
        self._clock = PausableClock()
        self._real = 0.0
        self._quiet_beat_at = 0.0
        self._timers = Timers()
        self.ranks = LocalRanks(spec, host, self.lease, self._timers)

    # ---- doors -----------------------------------------------------------------------------------

    def handle(self, event: AgentInput, now: float) -> list[Deed]:
        """Take note of an order or a fact at ``now``; say what to do about it."""
        if self.is_over:
            self._dropped += 1
            return []
        self._real = now
        self.ranks.now = self._clock.read(now)
        if isinstance(event, RankFact):
            self.ranks.take_fact(event)
        else:
            _HANDLERS[type(event)](self, event)
        self._leave_if_done()
        out, self.ranks.out = self.ranks.out, []
        return out

    def wake(self, now: float) -> list[Deed]:
        """The deadline has come."""
        return self.handle(DeadlineReached(), now)

    def next_deadline(self) -> float | None:
        """When to be woken at the latest, in the clock of ``now``; None for never."""
        if self.is_over:
            return None
        return self._quiet_beat_at if self._clock.is_held else self._clock.comes_at(self._timers.next())

    def check(self) -> None:
        """Assert what must always hold."""
        self.ranks.check()
        if self.is_over:
            assert self.ranks.is_settled
            assert self._exit_code is not None

    @property
    def dropped(self) -> int:
        """Facts and orders that were not for this epoch or this state."""
        return self._dropped + self.ranks.dropped

    @property
    def living(self) -> tuple[int, ...]:
        """Local ranks that may have a process."""
        return tuple(rank for rank, process in self.ranks.processes.items() if process.is_live)

    # ---- life ------------------------------------------------------------------------------------

    def _on_started(self, event: AgentStarted) -> None:
        self.lease.begin(self.ranks.now)
        self._timers.set(_LEASE, self.lease.lapses_at)
        ready = AgentReady(host=self.host, incarnation=self._incarnation, pid=self._pid)
        self.ranks.out.append(SendUp(event=ready))
        self._send_beat()

    def _on_heard(self, event: SupervisorHeard) -> None:
        """Nothing follows: the lease is renewed by RenewLease alone, which echoes a heartbeat."""

    def _on_end(self, event: SupervisorGone | EndAgent) -> None:
        self._go_on()
        self._end_all(self.ranks.now + self.spec.timeouts.grace_s, ExitCode.OK)

    def _on_renew(self, order: RenewLease) -> None:
        self.lease.renew(order.beat)
        if self._exit_code is None:
            self._timers.set(_LEASE, self.lease.lapses_at)

    def _on_lapse(self) -> None:
        """Nobody above has spoken for a whole lease. A host that slept past its grace kills at once."""
        self.ranks.out.append(SendUp(event=LeaseLapsed(host=self.host)))
        self._end_all(self.lease.lapses_at + self.spec.timeouts.grace_s, ExitCode.CONTROL_LOST)

    def _send_beat(self) -> None:
        self._timers.set(_BEAT, self.ranks.now + beat_interval_s(self.spec.timeouts))
        self.ranks.out.append(SendBeat(beat=self.lease.next_beat(self.ranks.now)))

    # ---- an announced pause ----------------------------------------------------------------------

    def _on_pause(self, order: PauseHost) -> None:
        """Stop the ranks and the clock; the host block is beaten on, for a rank that no signal reached."""
        if self._exit_code is None and not self._clock.is_held:
            self._clock.hold(self._real)
            for process in self.ranks.processes.values():
                self.ranks.out += process.hold()
            self._beat_quietly()
        self.ranks.out.append(SendUp(event=HostPaused(host=self.host)))

    def _on_resume(self, order: ResumeHost) -> None:
        """Their keepers look at the host block when the ranks go on: it is beaten first."""
        if self._clock.is_held:
            self._go_on()
            self._send_beat()
            for process in self.ranks.processes.values():
                self.ranks.out += process.release()

    def _beat_quietly(self) -> None:
        self._quiet_beat_at = self._real + beat_interval_s(self.spec.timeouts)
        self.ranks.out.append(SendBeat(beat=0, is_quiet=True))

    def _go_on(self) -> None:
        self._clock.go_on(self._real)
        self.ranks.now = self._clock.read(self._real)

    # ---- the end -----------------------------------------------------------------------------------

    def _end_all(self, kill_at: float, code: ExitCode) -> None:
        if self._exit_code is None:
            self._exit_code = int(code)
        self._timers.cancel(_LEASE)
        self.ranks.end_all(kill_at)

    def _leave_if_done(self) -> None:
        if self._exit_code is not None and self.ranks.is_settled:
            self.is_over = True
            self._timers.clear()
            self.ranks.out.append(ExitAgent(code=self._exit_code))

    def _on_deadline(self, event: DeadlineReached) -> None:
        if self._clock.is_held:
            if self._real >= self._quiet_beat_at:
                self._beat_quietly()
            return
        while (name := self._timers.pop_due(self.ranks.now)) is not None:
            if name == _BEAT:
                self._send_beat()
            elif name == _LEASE:
                self._on_lapse()
            else:
                assert isinstance(name, tuple)
                self.ranks.on_timer(*name)

    def _on_deed_failed(self, event: DeedFailed) -> None:
        failed = ActionFailed(action=event.deed, error=event.error, rank=event.rank, host=self.host)
        self.ranks.out.append(SendUp(event=failed))


_HANDLERS: dict[type[Event | Order], Callable[..., None]] = {
    AgentStarted: AgentMachine._on_started,
    SupervisorHeard: AgentMachine._on_heard,
    SupervisorGone: AgentMachine._on_end,
    EndAgent: AgentMachine._on_end,
    DeedFailed: AgentMachine._on_deed_failed,
    DeadlineReached: AgentMachine._on_deadline,
    RenewLease: AgentMachine._on_renew,
    PauseHost: AgentMachine._on_pause,
    ResumeHost: AgentMachine._on_resume,
    RankSpoke: lambda agent, event: agent.ranks.hear(event),
    SpawnRank: lambda agent, order: agent.ranks.spawn(order),
    FormGroup: lambda agent, order: agent.ranks.tell(order),
    OpenGroup: lambda agent, order: agent.ranks.open(order),
    RefuseGroup: lambda agent, order: agent.ranks.refuse(order),
    WriteVerdict: lambda agent, order: agent.ranks.write(order),
    StopRank: lambda agent, order: agent.ranks.stop(order),
    SampleRanks: lambda agent, order: agent.ranks.look(order.ranks, order.epoch, ReadBlock),
    TakeStack: lambda agent, order: agent.ranks.look((order.rank,), order.epoch, AskForStack),
}
