"""A rank, as the supervisor sees it: one process in one epoch.

Rules of this file. The machine takes note and answers questions; it decides nothing. Its state says
how far the process got; what lies across it (paused, lost, in a collective) is data beside it. An
event that the table has no row for came out of order and is dropped by the job machine.
"""

from __future__ import annotations

import enum
from typing import Final

from jlaunch.core.contract import Reason
from jlaunch.core.events import (
    Event,
    Loss,
    RankClaimed,
    RankDied,
    RankExited,
    RankFormed,
    RankJoined,
    RankPaused,
    RankReported,
    RankResumed,
    RankSampled,
    RankSpawned,
    RankSpawnFailed,
    RankUnkillable,
    Sample,
    Wait,
)
from jlaunch.core.machine import Machine


class RankState(enum.Enum):
    """How far a rank's process got."""

    SPAWNING = enum.auto()
    RUNNING = enum.auto()
    CLAIMED = enum.auto()
    JOINED = enum.auto()
    FORMED = enum.auto()
    DYING = enum.auto()
    STOPPING = enum.auto()
    UNKILLABLE = enum.auto()
    EXITED = enum.auto()


class RankStopOrdered(Event, frozen=True, kw_only=True):
    """The job machine ordered its stop."""

    grace_s: float


class RankWrittenOff(Event, frozen=True, kw_only=True):
    """Nobody can say so, but it must be gone: its host is lost, and lease and grace have passed."""


_LIVE: Final = (
    RankState.SPAWNING,
    RankState.RUNNING,
    RankState.CLAIMED,
    RankState.JOINED,
    RankState.FORMED,
    RankState.DYING,
    RankState.STOPPING,
    RankState.UNKILLABLE,
)
_IN_INIT: Final = (RankState.CLAIMED, RankState.JOINED)
_ENDING: Final = (RankState.DYING, RankState.STOPPING)
_AT_WORK: Final = (RankState.RUNNING, *_IN_INIT, RankState.FORMED)

TRANSITIONS: dict[tuple[RankState, type[Event]], RankState] = {
    (RankState.SPAWNING, RankSpawned): RankState.RUNNING,
    (RankState.SPAWNING, RankSpawnFailed): RankState.EXITED,
    (RankState.RUNNING, RankClaimed): RankState.CLAIMED,
    (RankState.CLAIMED, RankJoined): RankState.JOINED,
    (RankState.JOINED, RankFormed): RankState.FORMED,
    (RankState.FORMED, RankClaimed): RankState.CLAIMED,
    (RankState.STOPPING, RankSpawned): RankState.STOPPING,
    (RankState.STOPPING, RankSpawnFailed): RankState.EXITED,
    **{(state, RankUnkillable): RankState.UNKILLABLE for state in (*_AT_WORK, *_ENDING)},
    **{(state, RankDied): RankState.DYING for state in _AT_WORK},
    (RankState.STOPPING, RankDied): RankState.STOPPING,
    **{(state, RankStopOrdered): RankState.STOPPING for state in _LIVE if state is not RankState.UNKILLABLE},
    **{(state, RankExited): RankState.EXITED for state in _LIVE},
    **{(state, RankWrittenOff): RankState.EXITED for state in _LIVE if state is not RankState.UNKILLABLE},
    **{(state, RankPaused): state for state in _LIVE},
    **{(state, RankResumed): state for state in _LIVE},
    **{(state, RankReported): state for state in _LIVE},
    **{(state, RankSampled): state for state in _LIVE},
}


class RankMachine(Machine[RankState]):
    """One rank of one epoch."""

    def __init__(self, rank: int, host: int, epoch: int, now: float) -> None:
        super().__init__(f"rank {rank} of epoch {epoch}", RankState.SPAWNING, TRANSITIONS, now)
        self.rank = rank
        self.host = host
        self.epoch = epoch
        self.pid: int | None = None
        self.address = b""
        self.has_claimed = False
        self.was_in_group = False
        self.paused_at: float | None = None
        self.death: RankDied | None = None
        self.exit: RankExited | None = None
        self.is_written_off = False
        self.loss: Loss | None = None
        self.lost_at: float | None = None
        self.completed_seq = 0
        self.sample: Sample | None = None
        self.sampled_at: float | None = None
        self.wait: Wait | None = None
        self.wait_at = now
        self.report: dict[str, float] = {}
        self.grace_s: float | None = None

    # ---- what happened -----------------------------------------------------------------------

    def note(self, event: Event, now: float) -> None:
        """Take note of an event that the table accepts."""
        self._move(event, now)
        if isinstance(event, RankSpawned):
            self.pid = event.pid
        elif isinstance(event, RankClaimed):
            self.pid = event.pid
            self.has_claimed = True
            # In another program than before, which counts its collectives from the start.
            self.was_in_group = False
            self.completed_seq = 0
            self.wait = None
        elif isinstance(event, RankJoined):
            self.address = event.address
        elif isinstance(event, RankFormed):
            self.was_in_group = True
        elif isinstance(event, RankPaused):
            self.paused_at = now if self.paused_at is None else self.paused_at
        elif isinstance(event, RankResumed):
            self.paused_at = None
        elif isinstance(event, RankReported):
            self.report = event.numbers
        elif isinstance(event, RankSampled):
            self._note_sample(event.sample, now)
        elif isinstance(event, RankDied | RankExited):
            self._note_end(event, now)

    def _note_sample(self, sample: Sample, now: float) -> None:
        self.sample = sample
        self.sampled_at = now
        self.completed_seq = max(self.completed_seq, sample.completed_seq)
        self.note_wait(sample.wait, now)

    def _note_end(self, event: RankDied | RankExited, now: float) -> None:
        if isinstance(event, RankDied):
            self.death = event
        else:
            self.exit = event
        self.paused_at = None
        self.completed_seq = max(self.completed_seq, event.completed_seq)
        if event.wait is not None:
            self.note_wait(event.wait, now)

    def note_wait(self, wait: Wait | None, now: float) -> None:
        """The collective that it is in, as last told."""
        self.wait = wait
        self.wait_at = now

    def stop(self, grace_s: float, now: float) -> bool:
        """It is to be stopped; returns whether that says more than was said before."""
        if self.grace_s is not None and grace_s >= self.grace_s:
            return False
        self._move(RankStopOrdered(grace_s=grace_s), now)
        self.grace_s = grace_s
        return True

    def write_off(self, now: float) -> None:
        """It counts as gone."""
        self._move(RankWrittenOff(), now)
        self.is_written_off = True

    def lose(self, loss: Loss, now: float) -> None:
        """It is lost to the others."""
        self.loss = loss
        self.lost_at = now

    # ---- what is ---------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Confirmed, or as good as."""
        return self.state is RankState.EXITED

    @property
    def can_be_stopped(self) -> bool:
        """Whether it makes sense to order its stop."""
        return self.state not in (RankState.EXITED, RankState.UNKILLABLE)

    @property
    def is_at_work(self) -> bool:
        """Its process runs, nobody ended it, and it is not dying."""
        return self.state in _AT_WORK

    @property
    def is_in_init(self) -> bool:
        """Inside ``init``: a refusal reaches it."""
        return self.state in _IN_INIT

    @property
    def is_survivor(self) -> bool:
        """A verdict about others concerns it: it is at work and not lost itself."""
        return self.is_at_work and self.loss is None

    @property
    def is_told(self) -> bool:
        """It hears of losses: a survivor, and who is out of step, who lives on as they do."""
        return self.is_at_work and (self.loss is None or self.loss.reason is Reason.DESYNC)

    @property
    def is_stopping(self) -> bool:
        """Somebody here ordered its stop."""
        return self.grace_s is not None

    @property
    def status(self) -> int | None:
        """How it ended, in ``subprocess`` form, if known."""
        if self.exit is not None:
            return self.exit.status
        return self.death.status if self.death is not None else None

    def waits_for(self, rank: int) -> bool:
        """Whether it was last seen in a collective that misses ``rank``."""
        return self.wait is not None and rank in self.wait.waiting_for
