"""A host, as the supervisor sees it: one incarnation of its agent.

Rules of this file. ``LOST`` is final: an agent that returns is a new incarnation, in a new machine.
Silence alone makes a host ``SUSPECT``, never ``LOST``: what else must be true (two planes agree, or
the lease has lapsed) is decided by the job machine, which knows the ranks.
"""

from __future__ import annotations

import enum

from jlaunch.core.events import AgentReady, Event, Wait
from jlaunch.core.machine import Machine
from jlaunch.core.spec import HostSpec, Timeouts

CLOCK_MARGIN = 0.01
"""Two monotonic clocks may differ in rate by far less than this; spans across hosts allow for it."""


class HostState(enum.Enum):
    """States of a host."""

    CONNECTING = "connecting"
    READY = "ready"
    SUSPECT = "suspect"
    LOST = "lost"


class HostFellSilent(Event, frozen=True, kw_only=True):
    """Nothing was heard for longer than ``suspect_after_s``."""


class HostSpoke(Event, frozen=True, kw_only=True):
    """A suspect host was heard again."""


class HostWentLost(Event, frozen=True, kw_only=True):
    """The job machine gave the host up."""

    why: str


TRANSITIONS: dict[tuple[HostState, type[Event]], HostState] = {
    (HostState.CONNECTING, AgentReady): HostState.READY,
    (HostState.READY, HostFellSilent): HostState.SUSPECT,
    (HostState.SUSPECT, HostSpoke): HostState.READY,
    (HostState.CONNECTING, HostWentLost): HostState.LOST,
    (HostState.READY, HostWentLost): HostState.LOST,
    (HostState.SUSPECT, HostWentLost): HostState.LOST,
}


def beat_interval_s(timeouts: Timeouts) -> float:
    """Span between two heartbeats of an agent, and between two renewals of its lease.

    A second at most; five in a host timeout, so that four lost ones are no news.
    """
    return min(1.0, timeouts.host_timeout_s / 5, timeouts.lease_s / 6)


def suspect_after_s(timeouts: Timeouts) -> float:
    """Silence that makes a host suspect: half the host timeout."""
    return timeouts.host_timeout_s / 2


class HostMachine(Machine[HostState]):
    """One host with one incarnation of its agent."""

    def __init__(self, host: int, spec: HostSpec, now: float) -> None:
        super().__init__(f"host {host} ({spec.name})", HostState.CONNECTING, TRANSITIONS, now)
        self.host = host
        self.spec = spec
        self.incarnation: str | None = None
        self.agent_pid: int | None = None
        self.heard_at: float | None = None
        self.beat = 0
        self.waits: dict[int, Wait] = {}
        self.waits_at = now

    @property
    def is_ready(self) -> bool:
        """Whether the agent is there and was heard lately."""
        return self.state is HostState.READY

    @property
    def is_connected(self) -> bool:
        """Whether orders to it make sense: it has an agent that was not given up."""
        return self.state in (HostState.READY, HostState.SUSPECT)

    def ready(self, event: AgentReady, incarnation: str, now: float) -> None:
        """Its agent connected."""
        self._move(event, now)
        self.incarnation = incarnation
        self.agent_pid = event.pid
        self.heard_at = now

    def hear(self, now: float) -> bool:
        """A sign of life; returns whether a suspicion ended with it."""
        self.heard_at = now
        if self.state is not HostState.SUSPECT:
            return False
        self._move(HostSpoke(), now)
        return True

    def forgive(self, slept_s: float, now: float) -> None:
        """Count ``slept_s`` of its silence as ours. That makes its lease seem longer, never shorter."""
        if self.heard_at is not None:
            self.heard_at = min(self.heard_at + slept_s, now)

    def suspect(self, now: float) -> None:
        """It was silent for too long."""
        self._move(HostFellSilent(), now)

    def lose(self, why: str, now: float) -> None:
        """Give it up."""
        self._move(HostWentLost(why=why), now)

    def silence_s(self, now: float) -> float:
        """How long it has not been heard."""
        return now - (self.heard_at if self.heard_at is not None else self.since)

    def ended_at(self, timeouts: Timeouts, kill_bound_s: float) -> float:
        """When, without a word from us, its ranks have ended by themselves at the latest.

        Its lease counts from a heartbeat that was sent before ``heard_at``; then the clean stop and
        the kill follow. Infinite with an infinite lease.
        """
        heard_at = self.heard_at if self.heard_at is not None else self.since
        span_s = timeouts.lease_s + timeouts.grace_s + kill_bound_s
        return heard_at + span_s * (1 + CLOCK_MARGIN)
