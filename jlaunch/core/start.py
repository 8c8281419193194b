"""How the ranks of one epoch come up, and what keeps them from it.

Rules of this file. A failed start is a cause of its own: a program that cannot be started, an ``init``
that fails, a rank that does not come within the start timeout, a rank that ends before the group that
needs it has formed. Whoever is, or will be, in ``init`` is refused with that cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jlaunch.core.cause import CauseKind
from jlaunch.core.contract import Reason
from jlaunch.core.events import (
    RankClaimed,
    RankFormed,
    RankInitFailed,
    RankJoined,
    RankSpawned,
    RankSpawnFailed,
)
from jlaunch.core.host import suspect_after_s
from jlaunch.core.rank import RankState
from jlaunch.core.rendezvous import Rendezvous
from jlaunch.core.waits import NAMES_MAX

if TYPE_CHECKING:
    from jlaunch.core.epoch import Epoch

_PHASES: dict[RankState, str] = {
    RankState.SPAWNING: "being started",
    RankState.RUNNING: "running without init",
    RankState.CLAIMED: "opening its devices",
    RankState.JOINED: "connecting",
}
"""What a rank that is missing was last seen to do."""


class Start:
    """The start of one epoch: its processes, its rendezvous, its start timeout."""

    def __init__(self, epoch: Epoch, now: float) -> None:
        self._epoch = epoch
        self._spawned = 0
        self.up_at: float | None = None
        self.times_out_at: float | None = None
        self.rendezvous = Rendezvous(epoch.number, epoch.ranks, sorted(epoch.by_host), now)

    # ---- events ----------------------------------------------------------------------------------

    def spawned(self, event: RankSpawned, now: float) -> None:
        """A process exists."""
        self._spawned += 1
        if self._spawned == len(self._epoch.ranks):
            self.up_at = now

    def spawn_failed(self, event: RankSpawnFailed, now: float) -> None:
        """A process could not be started; if it was to be stopped anyway, that is as good as its end."""
        epoch = self._epoch
        if not epoch.ranks[event.rank].is_stopping:
            text = f"{epoch.name(event.rank)} could not be started: {event.error}"
            epoch.record(CauseKind.SPAWN_FAILED, text, (event.rank,))
            epoch.lose((event.rank,), Reason.INIT_FAILED, text)

    def claimed(self, event: RankClaimed, now: float) -> None:
        """A rank entered ``init``; from the first one on, all are awaited."""
        if not self.rendezvous.claimed(event.rank, now):
            return
        self.times_out_at = now + self._epoch.spec.timeouts.start_timeout_s
        finished = next((rank.rank for rank in self._epoch.ranks if rank.loss is not None), None)
        if finished is not None:
            self._doom(finished, event.rank, now)

    def joined(self, event: RankJoined, now: float) -> None:
        """A rank offered its address."""
        self._epoch.out += self.rendezvous.joined(event.rank, now)

    def formed(self, event: RankFormed, now: float) -> None:
        """A rank is connected to all others."""
        self._epoch.out += self.rendezvous.formed(event.rank, now)
        if self.rendezvous.is_open:
            self.times_out_at = None

    def init_failed(self, event: RankInitFailed, now: float) -> None:
        """``init`` failed in one rank, with a cause of its own."""
        text = f"{self._epoch.name(event.rank)} failed in init: {event.error}"
        self._epoch.record(CauseKind.INIT_FAILED, text, (event.rank,))
        self._epoch.lose((event.rank,), Reason.INIT_FAILED, text)

    def lost(self, rank: int, why: str, now: float, *, is_clean: bool) -> None:
        """A rank ended, or was lost, before the group was open."""
        if self.rendezvous.is_undecided and not is_clean:
            self._refuse(why, now)
        elif self.rendezvous.is_under_way:
            assert self.rendezvous.first_rank is not None
            self._doom(rank, self.rendezvous.first_rank, now)

    # ---- time ------------------------------------------------------------------------------------

    def be_patient(self, now: float) -> None:
        """A host spoke again, or we did, or a rank runs again: what is to come is still under way."""
        if self.times_out_at is not None:
            self.times_out_at = max(self.times_out_at, now + self._epoch.spec.timeouts.host_timeout_s)

    def wake(self, now: float) -> None:
        """Is the start timeout reached, and is it the ranks' fault?"""
        if self.times_out_at is None or now < self.times_out_at:
            return
        epoch = self._epoch
        missing = self.rendezvous.missing()
        patience_s = suspect_after_s(epoch.spec.timeouts)
        if any(self._is_excused(rank, now) for rank in missing):
            # Their joining may be under way, or is waited for.
            self.times_out_at = now + patience_s
            return
        names = ", ".join(self._where(rank, now) for rank in missing[:NAMES_MAX])
        if len(missing) > NAMES_MAX:
            names += f" and {len(missing) - NAMES_MAX} more"
        limit_s, first = epoch.spec.timeouts.start_timeout_s, self.rendezvous.first_rank
        text = f"no group within {limit_s:g} s after rank {first} entered init: missing {names}"
        epoch.record(CauseKind.START_TIMEOUT, text, missing)
        epoch.lose(missing, Reason.INIT_FAILED, text)

    def _where(self, rank: int, now: float) -> str:
        """The rank, how far it got, and since when."""
        machine = self._epoch.ranks[rank]
        phase = _PHASES.get(machine.state, "ending")
        return f"{self._epoch.name(rank)} ({phase} for {now - machine.since:.1f} s)"

    def _is_excused(self, rank: int, now: float) -> bool:
        """Whether it cannot be heard, or is paused within its limit."""
        machine = self._epoch.ranks[rank]
        if not self._epoch.hosts[machine.host].is_ready:
            return True
        max_pause_s = self._epoch.spec.timeouts.max_pause_s
        return machine.paused_at is not None and now < machine.paused_at + max_pause_s

    def _doom(self, finished: int, waiting: int, now: float) -> None:
        """The group cannot form, because a rank that it needs has ended with 0."""
        text = f"rank {finished} finished while rank {waiting} waits in init"
        self._epoch.record(CauseKind.FINISHED_EARLY, text, (finished,))
        self._refuse(text, now)

    def _refuse(self, why: str, now: float) -> None:
        self.times_out_at = None
        self._epoch.out += self.rendezvous.refuse(self._epoch.losses.all, why, now)
