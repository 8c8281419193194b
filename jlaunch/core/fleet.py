"""All hosts of a job: their agents' lives, heartbeats and leases.

Rules of this file. Whatever comes from an agent passes ``admit``: only the present incarnation of a
host that was not given up is heard. Two planes must agree before a host that may be healthy is lost:
its control link is silent past the host timeout, *and* a collective that needs one of its ranks still
pends, and that rank was last seen inside this very collective. Else it stays suspect until its lease
has lapsed: a management switch that reboots must not end a healthy job. A rank that was last seen
elsewhere may be late, and late is not lost, also when it was inside another collective a moment before
(seed 20231).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jlaunch.core.actions import Action, EndAgent, RenewLease, StartAgent
from jlaunch.core.events import AgentHeard, AgentReady, HeartbeatArrived, Wait
from jlaunch.core.host import HostMachine, HostState, beat_interval_s, suspect_after_s
from jlaunch.core.machine import Timers
from jlaunch.core.spec import JobSpec

AGENT_START_TIMEOUT_S = 60.0
"""From ``StartAgent`` to ``AgentReady``: SSH has bounds of its own, a Python that starts over NFS
takes ten seconds at most."""

_RENEW = "renew"
_HOST = "host"


class HostGone(NamedTuple):
    """A host was given up."""

    host: int
    why: str
    is_known: bool
    """Its agent's end was seen; else it was only silent."""


class HostChanged(NamedTuple):
    """A host fell silent or spoke again: what is known of its ranks is older, or newer, than it was."""

    host: int
    is_heard: bool


Turn = HostGone | HostChanged


class Fleet:
    """The host machines, by index; None for hosts of the spec that have no ranks."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._used = tuple(sorted(set(spec.placement)))
        self._begun: set[int] = set()
        self._buried: set[tuple[int, str]] = set()
        self._interval_s = beat_interval_s(spec.timeouts)
        self.machines: list[HostMachine] = [
            HostMachine(host, host_spec, 0.0) for host, host_spec in enumerate(spec.hosts)
        ]
        self.timers = Timers()

    @property
    def used(self) -> tuple[int, ...]:
        """Hosts that have ranks."""
        return self._used

    @property
    def is_complete(self) -> bool:
        """Whether every agent is there and was heard lately."""
        return all(self.machines[host].is_ready for host in self._used)

    def name(self, host: int) -> str:
        """The host's name in the hosts file."""
        return self._spec.hosts[host].name

    def is_lost(self, host: int) -> bool:
        """Whether the host was given up."""
        return self.machines[host].state is HostState.LOST

    # ---- lives -------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Start an agent wherever there is none, as a new incarnation."""
        actions: list[Action] = []
        for host in self._used:
            machine = self.machines[host]
            if machine.state is HostState.LOST or host not in self._begun:
                self._begun.add(host)
                self.machines[host] = HostMachine(host, self._spec.hosts[host], now)
                self.timers.set((_HOST, host), now + AGENT_START_TIMEOUT_S)
                actions.append(StartAgent(host=host))
        if not self.timers.is_set(_RENEW):
            self.timers.set(_RENEW, now + self._interval_s)
        return actions

    def admit(self, heard: AgentHeard, now: float) -> tuple[bool, list[Turn]]:
        """Whether to listen to what an agent said; a sign of life in any case if so."""
        host, incarnation = heard.host, heard.incarnation
        if host not in self._used or (host, incarnation) in self._buried:
            return False, []
        machine = self.machines[host]
        if machine.state is HostState.CONNECTING and isinstance(heard.event, AgentReady):
            machine.ready(heard.event, incarnation, now)
            self.timers.set((_HOST, host), now + suspect_after_s(self._spec.timeouts))
            return True, [HostChanged(host, True)]
        if not machine.is_connected or machine.incarnation != incarnation:
            return False, []
        if machine.hear(now):
            self.timers.set((_HOST, host), now + suspect_after_s(self._spec.timeouts))
            return True, [HostChanged(host, True)]
        return True, []

    def beat(self, host: int, event: HeartbeatArrived, now: float) -> None:
        """A heartbeat that was admitted; an old one that overtook a new one says nothing."""
        machine = self.machines[host]
        if event.beat >= machine.beat:
            machine.beat = event.beat
            machine.waits = event.waits
            machine.waits_at = now

    def forgive(self, slept_s: float, now: float) -> None:
        """For ``slept_s`` nobody listened here: that much silence is not theirs."""
        for host in self._used:
            self.machines[host].forgive(slept_s, now)

    def exited(self, host: int, incarnation: str, why: str, now: float) -> list[Turn]:
        """The agent's process ended."""
        if host not in self._used:
            return []
        machine = self.machines[host]
        if machine.state is HostState.LOST or (incarnation and incarnation != machine.incarnation):
            return []
        return [self.lose(host, why, now, is_known=True)]

    def lose(self, host: int, why: str, now: float, *, is_known: bool = False) -> HostGone:
        """Give the host up."""
        machine = self.machines[host]
        machine.lose(why, now)
        if machine.incarnation is not None:
            self._buried.add((host, machine.incarnation))
        self.timers.cancel((_HOST, host))
        return HostGone(host, why, is_known)

    def dismiss(self) -> list[Action]:
        """All ranks are gone: send every agent home."""
        self.timers.clear()
        return [EndAgent(host=host) for host in self._used if self.machines[host].is_connected]

    # ---- time --------------------------------------------------------------------------------------

    def wake(self, now: float, living: Callable[[int], tuple[int, ...]]) -> tuple[list[Action], list[Turn]]:
        """A moment of ``timers`` has come. ``living(host)`` are the host's ranks that live."""
        actions: list[Action] = []
        turns: list[Turn] = []
        while (name := self.timers.pop_due(now)) is not None:
            if name == _RENEW:
                self.timers.set(_RENEW, now + self._interval_s)
                actions += [
                    RenewLease(host=host, beat=self.machines[host].beat)
                    for host in self._used
                    if self.machines[host].is_connected
                ]
            else:
                assert isinstance(name, tuple)
                turns += self._look_at(name[1], living(name[1]), now)
        return actions, turns

    def _look_at(self, host: int, ranks: tuple[int, ...], now: float) -> list[Turn]:
        """The host's timer: is it (still) silent, and what follows?"""
        machine = self.machines[host]
        timeouts = self._spec.timeouts
        if machine.state is HostState.CONNECTING:
            return [self.lose(host, f"its agent did not come within {AGENT_START_TIMEOUT_S:g} s", now)]
        assert machine.heard_at is not None
        turns: list[Turn] = []
        if machine.state is HostState.READY:
            suspect_at = machine.heard_at + suspect_after_s(timeouts)
            if now < suspect_at:
                self.timers.set((_HOST, host), suspect_at)
                return []
            machine.suspect(now)
            turns.append(HostChanged(host, False))
        lapse_at = machine.heard_at + timeouts.lease_s
        limit_at = machine.heard_at + timeouts.host_timeout_s
        said = f"not heard for {machine.silence_s(now):.1f} s"
        if now >= lapse_at:
            return [*turns, self.lose(host, f"{said}, its lease of {timeouts.lease_s:g} s has lapsed", now)]
        if now >= limit_at:
            pending = self._pending_since_silence(machine, ranks, now)
            if pending is not None:
                why = f"{said} (limit {timeouts.host_timeout_s:g} s), and {pending}"
                return [*turns, self.lose(host, why, now)]
            limit_at = now + self._interval_s / 2
        self.timers.set((_HOST, host), min(limit_at, lapse_at))
        return turns

    def _pending_since_silence(self, silent: HostMachine, ranks: tuple[int, ...], now: float) -> str | None:
        """The data plane's word: who waits for a rank in the very collective it was last seen inside?"""
        inside = {rank: silent.waits[rank] for rank in ranks if rank in silent.waits}
        for host in self._used if inside else ():
            machine = self.machines[host]
            if not machine.is_ready or now - machine.waits_at > 2 * self._interval_s:
                continue
            for rank, wait in machine.waits.items():
                for needed in wait.waiting_for:
                    seen = inside.get(needed)
                    if seen is not None and (seen.group, seen.seq) == (wait.group, wait.seq):
                        return _pending_text(rank, needed, wait)
        return None


def _pending_text(rank: int, needed: int, wait: Wait) -> str:
    where = f"{wait.collective.word} #{wait.seq}"
    return f"rank {rank} has waited {wait.waited_s:.1f} s for rank {needed} in {where}"
