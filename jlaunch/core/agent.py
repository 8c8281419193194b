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
   ``ReadBlock`` → the shell sends ``RankSampled`` up itself. ``SendBeat`` → it beats the host block
   and sends ``HeartbeatArrived`` itself. ``WriteBlock``, ``SignalGroup``, ``TellRank``, ``SendUp`` are
   not answered; signalling a group that is gone is no error.
   ``ExitAgent`` comes once, last; after it the machine returns nothing.
5. Watched by the shell all the time, without being told: exits, stopped and continued processes,
   claims, phases, questions, desyncs, the ranks' socket, end of file from the supervisor.
"""

from __future__ import annotations

from jlaunch.core.actions import Deed
from jlaunch.core.events import DeadlineReached
from jlaunch.core.facts import AgentInput
from jlaunch.core.spec import JobSpec


class AgentMachine:
    """One host's part of a job, as one incarnation of its agent."""

    def __init__(self, spec: JobSpec, host: int, *, incarnation: str, pid: int) -> None:
        self.spec = spec
        self.host = host
        self._incarnation = incarnation
        self._pid = pid

    def handle(self, event: AgentInput, now: float) -> list[Deed]:
        """Take note of an order or a fact at ``now``; say what to do about it."""
        raise NotImplementedError

    def wake(self, now: float) -> list[Deed]:
        """The deadline has come."""
        return self.handle(DeadlineReached(), now)

    def next_deadline(self) -> float | None:
        """When to be woken at the latest, in the clock of ``now``; None for never."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert what must always hold."""
        raise NotImplementedError
