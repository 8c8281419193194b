"""The job machine: what the supervisor decides.

How it is driven (one thread, one owner; the supervisor's loop):

1. ``machine = JobMachine(spec, rng=random.Random())``, then ``handle(JobStarted(), now)``.
2. Everything that happens is one event: ``handle(event, now)`` returns actions, to be carried out in
   the order of the list before the next event is handled. ``now`` is monotonic seconds and never
   goes back. What an agent sent is wrapped: ``AgentHeard(host, incarnation, event)`` with the
   envelope's host and incarnation; output and acknowledgements of an agent are fed as
   ``AgentHeard(..., HeartbeatArrived(host=...))``, since they are signs of life. The end of an
   agent's process is ``AgentExited``; an action that failed is ``ActionFailed``.
3. After each step the driver arms one timer for ``next_deadline()`` (None: no timer) and, when it
   fires, calls ``wake(now)``, which is ``handle(DeadlineReached(), now)``. Too early or too late is
   harmless.
4. Actions: ``StartAgent`` starts an agent (answered by an ``AgentReady`` that it sends, or by
   ``AgentExited`` or ``ActionFailed(action="StartAgent", host=...)``). An ``Order`` goes to the agent
   of its ``host`` over a link that keeps the order of messages; an order for a host without a
   connection is dropped by the shell. ``Say`` is a line for people, ``RecordVerdict`` a line of the
   event log. ``EndJob`` comes once, last, after ``EndAgent`` for every agent: pass on the output that
   is still under way, wait for the agents' processes (bounded), exit with the code. After it the
   machine returns nothing, whatever it is fed.
5. ``snapshot(now)`` at any time; ``check()`` asserts the invariants (tests call it after each step).
"""

from __future__ import annotations

import random

from jlaunch.core.actions import Action
from jlaunch.core.events import DeadlineReached, JobEvent
from jlaunch.core.snapshot import Snapshot
from jlaunch.core.spec import JobSpec


class JobMachine:
    """A job, from its first agent to its exit code."""

    def __init__(self, spec: JobSpec, *, rng: random.Random) -> None:
        """Refuses, with ConfigError, a policy that this version does not carry out."""
        self.spec = spec
        self._rng = rng

    def handle(self, event: JobEvent, now: float) -> list[Action]:
        """Take note of what happened at ``now``; say what to do about it."""
        raise NotImplementedError

    def wake(self, now: float) -> list[Action]:
        """The deadline has come."""
        return self.handle(DeadlineReached(), now)

    def next_deadline(self) -> float | None:
        """When to be woken at the latest, in the clock of ``now``; None for never."""
        raise NotImplementedError

    def snapshot(self, now: float) -> Snapshot:
        """The state for people."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert what must always hold."""
        raise NotImplementedError
