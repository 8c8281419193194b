"""Hosts that were given up while ranks of them may still live.

Rules of this file. Nobody can reach such a rank, so nobody can say that it is gone; but whatever became
of its host, its lease, its grace and the bound on SIGKILL have passed at a known moment. A job that will
start again waits for that moment; one that will not leaves them to their leases at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jlaunch.core.process import KILL_BOUND_S

if TYPE_CHECKING:
    from jlaunch.core.fleet import HostGone
    from jlaunch.core.job import JobMachine

GONE = "gone"
"""Name of the moment at which a ghost's ranks have ended, with its host."""


class Ghosts:
    """The ghosts of one job, by host."""

    def __init__(self, job: JobMachine) -> None:
        self._job = job
        self._hosts: set[int] = set()

    def __contains__(self, host: int) -> bool:
        return host in self._hosts

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def add(self, gone: HostGone, now: float) -> None:
        """A host with ranks was given up."""
        self._hosts.add(gone.host)
        self._job.timers.set((GONE, gone.host), self._gone_at(gone, now))

    def write_off(self, host: int, now: float) -> None:
        """Its ranks are as good as gone."""
        self._hosts.discard(host)
        self._job.timers.cancel((GONE, host))
        self._job.epoch.write_off(self._job.epoch.living(host), now)

    def write_off_all(self, now: float) -> None:
        """Nobody will take their places, whatever is heard later."""
        for host in sorted(self._hosts):
            self.write_off(host, now)

    def _gone_at(self, gone: HostGone, now: float) -> float:
        """When the ranks of a lost host have ended, whatever happened to it."""
        timeouts = self._job.spec.timeouts
        if gone.is_known:
            # Its guardian, and the keeper of each rank, have seen it die.
            return now + timeouts.grace_s + KILL_BOUND_S
        return self._job.fleet.machines[gone.host].ended_at(timeouts, KILL_BOUND_S)
