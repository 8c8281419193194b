"""A rank's process, as its agent handles it: from its start to the last of its group.

Rules of this file. A process group ends in one order: the verdict in its control block; SIGTERM when
the rank has left its wait, or after ``TERM_DELAY_S``; SIGCONT behind it if it is stopped, so that it
can act on it; SIGKILL to all when the grace is over; "cannot be killed" if that does not help within
``KILL_BOUND_S``. A rank whose leading process ended by itself leaves nobody behind: what is left of its
group is ended in the same way. The signals are deeds; nobody is signalled here.
"""

from __future__ import annotations

import enum
import math
import signal

from jlaunch.core.actions import Deed, SignalGroup, WriteBlock, WriteVerdict
from jlaunch.core.contract import VerdictKind
from jlaunch.core.events import Event, Loss, RankExited, RankUnkillable, Wait
from jlaunch.core.facts import GroupVanished, ProcessExited, ProcessStarted, ProcessStartFailed
from jlaunch.core.machine import Machine, Timers

TERM_DELAY_S = 0.2
"""From the stop verdict to SIGTERM for a rank inside the poll loop, which obeys within microseconds;
200 ms later its main thread has had its ``JobStopping``, or is busy elsewhere and needs the signal."""

KILL_BOUND_S = 5.0
"""From SIGKILL to "cannot be killed", and from grace to "the guardian has ended them": memory is freed
at 65 ms per GiB (measured), so a process that is still there after 5 s hangs in the kernel."""

STATUS_PATIENCE_S = 0.2
"""How long a death whose status the system does not tell yet waits for it. Whether a rank was killed or
ended with 0 decides between a loss and a clean end, so a guess would be worse than a short wait."""

ANSWER_PATIENCE_S = 2.0
"""How long a question waits for the supervisor, who needs one look at most, before the agent answers
"keep waiting" by itself. Whether the supervisor was heard says nothing: the way up may be the broken one."""

OWN_VERDICTS = 1 << 30
"""Verdicts that an agent writes by itself are numbered from here on, the supervisor's from 1."""

SWEEP_DELAY_S = 0.05
"""From the end of the leading process to SIGTERM for its group: nearly always the group is empty, and
that is known at once, and no signal must go to a group that is gone."""


class ProcessState(enum.Enum):
    """States of a rank's process group."""

    SPAWNING = enum.auto()
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    KILLING = enum.auto()
    UNKILLABLE = enum.auto()
    EXITED = enum.auto()


class StopBegun(Event, frozen=True, kw_only=True):
    """The agent begins to end it."""


class KillBegun(Event, frozen=True, kw_only=True):
    """The grace is over."""


class KillFailed(Event, frozen=True, kw_only=True):
    """SIGKILL did not end it."""


_S = ProcessState
TRANSITIONS: dict[tuple[ProcessState, type[Event]], ProcessState] = {
    (_S.SPAWNING, ProcessStarted): _S.RUNNING,
    (_S.SPAWNING, ProcessStartFailed): _S.EXITED,
    (_S.RUNNING, StopBegun): _S.STOPPING,
    (_S.RUNNING, ProcessExited): _S.STOPPING,
    (_S.STOPPING, ProcessExited): _S.STOPPING,
    (_S.STOPPING, KillBegun): _S.KILLING,
    (_S.STOPPING, GroupVanished): _S.EXITED,
    (_S.KILLING, ProcessExited): _S.KILLING,
    (_S.KILLING, KillFailed): _S.UNKILLABLE,
    (_S.KILLING, GroupVanished): _S.EXITED,
    (_S.UNKILLABLE, ProcessExited): _S.UNKILLABLE,
    (_S.UNKILLABLE, GroupVanished): _S.EXITED,
}

TERM = "term"
KILL = "kill"
BOUND = "bound"
DEATH = "death"
ANSWER = "answer"
"""Names of a process' timers, each with its rank."""


class Block:
    """What was last written into a rank's control block: it only grows more severe."""

    def __init__(self) -> None:
        self.kind = VerdictKind.NONE
        self.losses: dict[int, Loss] = {}
        self.question = 0
        self.answered = 0

    @property
    def has_unclean(self) -> bool:
        """Whether the rank was told a loss that raises in it at once, or a stop."""
        return self.kind is VerdictKind.STOP or any(not loss.clean for loss in self.losses.values())

    @property
    def is_asking(self) -> bool:
        """Whether a question waits for its answer."""
        return self.question > self.answered and not self.has_unclean

    def merge(self, kind: VerdictKind, losses: tuple[Loss, ...], question: int) -> None:
        """Take in a verdict; KEEP_WAITING only answers."""
        self.answered = max(self.answered, question)
        if kind is not VerdictKind.KEEP_WAITING:
            self.kind = max(self.kind, kind)
            self.losses.update({loss.rank: loss for loss in losses})


class ProcessMachine(Machine[ProcessState]):
    """The process of ``rank`` in ``epoch`` on this host."""

    def __init__(self, rank: int, epoch: int, timers: Timers, now: float) -> None:
        super().__init__(f"process of rank {rank}, epoch {epoch}", ProcessState.SPAWNING, TRANSITIONS, now)
        self.rank = rank
        self.epoch = epoch
        self.pid: int | None = None
        self.claim_pid: int | None = None
        self.has_claim = False
        self.has_claimed = False
        self.has_left = False
        self.has_joined = False
        self.is_paused = False
        self.is_held = False
        self.is_death_told = False
        self.is_ending = False
        self.exit: ProcessExited | None = None
        self.completed_seq = 0
        self.wait: Wait | None = None
        self.block = Block()
        self._kill_at = math.inf
        self._has_left_wait = False
        self._has_term = False
        self._has_kill = False
        self._timers = timers

    # ---- what is ---------------------------------------------------------------------------------

    @property
    def is_live(self) -> bool:
        """Whether a process of it may exist."""
        return self.state is not ProcessState.EXITED

    @property
    def is_settled(self) -> bool:
        """Whether nothing more can be done about it."""
        return self.state in (ProcessState.EXITED, ProcessState.UNKILLABLE)

    @property
    def is_at_work(self) -> bool:
        """Whether a verdict about others concerns it: it holds the claim, and nobody ends it."""
        return self.state is ProcessState.RUNNING and self.has_claim and not self.is_ending

    @property
    def ended_by(self) -> str:
        """Who ended it, as in ``RankExited``."""
        if self._has_kill:
            return "kill"
        return "term" if self.is_ending else "itself"

    # ---- its life --------------------------------------------------------------------------------

    def started(self, event: ProcessStarted, now: float) -> list[Deed]:
        """It exists; a stop that was ordered in the meantime follows at once."""
        self._move(event, now)
        self.pid = event.pid
        if self.is_ending:
            return self.stop(self._kill_at, now)
        return [self._signal(signal.SIGSTOP)] if self.is_held else []

    def start_failed(self, event: ProcessStartFailed, now: float) -> None:
        """It never existed."""
        self._move(event, now)

    def begin_again(self) -> None:
        """The program that held the claim has left in peace, and another one holds it now."""
        self.has_claim = self.has_claimed = self.has_left = self.has_joined = False
        self.completed_seq = 0
        self.wait = None

    def exited(self, event: ProcessExited, now: float, grace_s: float) -> None:
        """The leading process is gone: whoever is left of its group must go too."""
        was_running = self.state is ProcessState.RUNNING
        self._move(event, now)
        self.exit = event
        self.is_paused = False
        self.completed_seq = max(self.completed_seq, event.completed_seq)
        self.wait = event.wait or self.wait
        if was_running:
            self._timers.set((TERM, self.rank), now + SWEEP_DELAY_S)
            self._arm_kill(now + grace_s)

    def vanished(self, event: GroupVanished, now: float) -> None:
        """Nothing is left of it."""
        self._move(event, now)
        for name in (TERM, KILL, BOUND, DEATH, ANSWER):
            self._timers.cancel((name, self.rank))

    def stop(self, kill_at: float, now: float) -> list[Deed]:
        """End it, with SIGKILL at ``kill_at`` at the latest; sooner than said before, never later."""
        self.is_ending = True
        deeds: list[Deed] = []
        if self.state is ProcessState.SPAWNING:
            self._kill_at = min(self._kill_at, kill_at)
            return deeds
        if self.state is ProcessState.RUNNING:
            self._move(StopBegun(), now)
            deeds += self._begin_to_stop(now)
        if self.state is ProcessState.STOPPING:
            self._arm_kill(kill_at)
            if self._kill_at <= now:
                deeds += self.kill(now)
        return deeds

    def _begin_to_stop(self, now: float) -> list[Deed]:
        deeds: list[Deed] = []
        if self.block.kind is not VerdictKind.STOP:
            self.block.merge(VerdictKind.STOP, (), 0)
            deeds.append(self.write(OWN_VERDICTS))
        if self.has_claim and not self.is_paused and not self._has_left_wait:
            self._timers.set((TERM, self.rank), now + TERM_DELAY_S)
        else:
            deeds += self.term()
        return deeds

    def left_wait(self) -> list[Deed]:
        """It is outside the poll loop, and the stop verdict in its block keeps it there."""
        self._has_left_wait = True
        return self.term() if self.state is ProcessState.STOPPING and not self._has_term else []

    def term(self) -> list[Deed]:
        """SIGTERM, once."""
        self._timers.cancel((TERM, self.rank))
        if self.state is not ProcessState.STOPPING or self._has_term:
            return []
        self._has_term = True
        deeds: list[Deed] = [self._signal(signal.SIGTERM)]
        if self.is_paused:
            deeds.append(self._signal(signal.SIGCONT))
        return deeds

    def kill(self, now: float) -> list[Deed]:
        """The grace is over."""
        if self.state is not ProcessState.STOPPING:
            return []
        self._move(KillBegun(), now)
        self._has_kill = self.exit is None
        self._timers.cancel((TERM, self.rank))
        self._timers.cancel((KILL, self.rank))
        self._timers.set((BOUND, self.rank), now + KILL_BOUND_S)
        return [self._signal(signal.SIGKILL)]

    def give_up(self, now: float) -> RankUnkillable:
        """SIGKILL did not help."""
        self._move(KillFailed(), now)
        return RankUnkillable(rank=self.rank, epoch=self.epoch, pid=self.pid or 0)

    def paused(self) -> list[Deed]:
        """It was stopped; while it is being ended that is not accepted."""
        self.is_paused = True
        if self.state is ProcessState.STOPPING:
            return [*self.term(), self._signal(signal.SIGCONT)]
        return []

    def hold(self) -> list[Deed]:
        """Stop it for an announced pause, unless it is stopped already: then it stays so afterwards."""
        if self.is_ending or self.is_paused or self.exit is not None:
            return []
        self.is_held = self.state in (ProcessState.SPAWNING, ProcessState.RUNNING)
        return [self._signal(signal.SIGSTOP)] if self.state is ProcessState.RUNNING else []

    def release(self) -> list[Deed]:
        """Let it go on, if ``hold`` stopped it."""
        was_held, self.is_held = self.is_held, False
        return [self._signal(signal.SIGCONT)] if was_held and self.state is ProcessState.RUNNING else []

    def obey(self, order: WriteVerdict) -> list[Deed]:
        """Write a verdict from above, unless the block says as much already."""
        block = self.block
        if order.kind is VerdictKind.KEEP_WAITING:
            if order.question <= block.answered or block.has_unclean:
                return []
            block.question = max(block.question, order.question)
            return [self.answer(order.verdict, order.question)]
        was = (block.kind, len(block.losses))
        block.merge(order.kind, order.losses, order.question)
        if (block.kind, len(block.losses)) == was and not order.question:
            return []
        return [self.write(order.verdict)]

    def answer(self, verdict: int, question: int | None = None) -> WriteBlock:
        """Answer "keep waiting" to ``question``, or to the one that is open."""
        self.block.merge(VerdictKind.KEEP_WAITING, (), self.block.question if question is None else question)
        return WriteBlock(
            rank=self.rank,
            epoch=self.epoch,
            verdict=verdict,
            kind=VerdictKind.KEEP_WAITING,
            question=self.block.answered,
        )

    def report(self, tail: tuple[str, ...]) -> RankExited:
        """What the supervisor is told when nothing is left."""
        assert self.exit is not None
        return RankExited(
            rank=self.rank,
            epoch=self.epoch,
            status=self.exit.status,
            by=self.ended_by,
            tail=tail,
            completed_seq=self.completed_seq,
            claimed=self.has_claimed,
            wait=self.wait,
        )

    def write(self, verdict: int) -> WriteBlock:
        """The deed that makes the control block say what ``block`` says."""
        return WriteBlock(
            rank=self.rank,
            epoch=self.epoch,
            verdict=verdict,
            kind=self.block.kind,
            losses=tuple(self.block.losses.values()),
            question=self.block.answered,
        )

    def _arm_kill(self, at: float) -> None:
        self._kill_at = min(self._kill_at, at)
        self._timers.set((KILL, self.rank), self._kill_at)

    def _signal(self, number: int) -> SignalGroup:
        return SignalGroup(rank=self.rank, epoch=self.epoch, signal=int(number))
