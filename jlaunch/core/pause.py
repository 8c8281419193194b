"""The announced pause: a person holds the whole job (Ctrl-Z), and lets it go on.

Rules of this file. A pause that was asked for is nobody's fault, so it must cost nobody anything: no
lease, no limit, no loss. Nothing is told to look away for that; the clock of each machine stands still
instead, the job's from the request on and an agent's from the order on, and every span in it with it.
Ranks are stopped by their agents, those that were stopped already stay so at the end. What ends the job
ends the pause first. The supervisor itself is suspended when every host has held its ranks, or after
``HOLD_BOUND_S``: a terminal must come back, whatever an agent does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jlaunch.core.actions import Action, PauseHost, ResumeHost, Say, Suspend
from jlaunch.core.job_table import TERMINAL, JobState

if TYPE_CHECKING:
    from jlaunch.core.job import JobMachine

HOLD_BOUND_S = 1.0
"""How long the supervisor waits for the hosts' word: an agent that is heard answers within milliseconds."""


class PausableClock:
    """A clock that stands still while it is held: seconds of it are those for which the job ran."""

    def __init__(self) -> None:
        self._held_at: float | None = None
        self._lost_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether it stands still."""
        return self._held_at is not None

    def read(self, now: float) -> float:
        """What it shows at ``now``."""
        return (now if self._held_at is None else self._held_at) - self._lost_s

    def comes_at(self, at: float | None) -> float | None:
        """When it will show ``at``; None for never, as while it stands still."""
        if at is None or self.is_held:
            return None
        moment = at + self._lost_s
        # Rounded down by a bit it would be too early, and a virtual clock would wake at it for ever.
        while self.read(moment) < at:
            moment = math.nextafter(moment, math.inf)
        return moment

    def hold(self, now: float) -> None:
        """Stand still."""
        assert self._held_at is None
        self._held_at = now

    def go_on(self, now: float) -> float:
        """Go on; returns for how long it stood still, in seconds. Harmless if it did not."""
        span_s = 0.0 if self._held_at is None else now - self._held_at
        self._lost_s += span_s
        self._held_at = None
        return span_s


class Pause:
    """The pauses of one job, one at a time."""

    def __init__(self, job: JobMachine) -> None:
        self._job = job
        self._clock = PausableClock()
        self._real = 0.0
        self._awaited: set[int] = set()
        self._give_up_at: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether the job is held."""
        return self._clock.is_held

    def read(self, now: float) -> float:
        """The job's time at ``now``."""
        self._real = now
        return self._clock.read(now)

    @property
    def now(self) -> float:
        """The job's time at the last ``read``."""
        return self._clock.read(self._real)

    def comes_at(self, at: float | None) -> float | None:
        """When to wake the job for what is due at ``at`` of its own time."""
        return self._give_up_at if self.is_on else self._clock.comes_at(at)

    def request(self) -> list[Action]:
        """A person wants the job to stand still."""
        job = self._job
        if self.is_on or job.state in TERMINAL:
            return []
        if job.state is JobState.DRAINING:
            return [Say(level="note", text="the job is ending: it is not paused")]
        self._clock.hold(self._real)
        job.epoch.waits.hold()
        hosts = [host for host in job.fleet.used if job.fleet.machines[host].is_connected]
        self._awaited = {host for host in hosts if job.fleet.machines[host].is_ready}
        self._give_up_at = self._real + HOLD_BOUND_S
        return [*(PauseHost(host=host) for host in hosts), *self._suspend_if_held()]

    def host_paused(self, host: int) -> list[Action]:
        """The ranks of ``host`` stand still, or nobody is there to say so."""
        self._awaited.discard(host)
        return self._suspend_if_held()

    def wake(self) -> list[Action]:
        """The bound may have come."""
        if self._give_up_at is not None and self._real >= self._give_up_at:
            self._awaited.clear()
        return self._suspend_if_held()

    def resume(self) -> list[Action]:
        """The job goes on; harmless if it is not paused."""
        if not self.is_on:
            return []
        span_s = self._clock.go_on(self._real)
        job = self._job
        self._awaited.clear()
        self._give_up_at = None
        hosts = [host for host in job.fleet.used if job.fleet.machines[host].is_connected]
        text = f"the job goes on after a pause of {span_s:.1f} s"
        return [*(ResumeHost(host=host) for host in hosts), Say(level="note", text=text)]

    def _suspend_if_held(self) -> list[Action]:
        if not self.is_on or self._awaited or self._give_up_at is None:
            return []
        self._give_up_at = None
        return [Say(level="note", text="the job is paused"), Suspend()]
