"""The ranks of one host, as its agent handles them: orders about them, facts of them.

Rules of this file. What a rank is told only grows more severe. The local ranks hear of a death that
was seen here at once (the fast path), the supervisor after that. Facts and orders of another epoch
are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable

from jlaunch.core.actions import (
    AskForStack,
    Deed,
    FormGroup,
    OpenGroup,
    ReadBlock,
    RefuseGroup,
    SendUp,
    SpawnRank,
    StartProcess,
    StopRank,
    TellRank,
    WriteVerdict,
)
from jlaunch.core.cause import REASONS, death_kind
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.events import (
    AgentEvent,
    DeadlineAsked,
    DesyncFound,
    Event,
    Loss,
    QuestionAnswered,
    RankClaimed,
    RankDied,
    RankFormed,
    RankInitFailed,
    RankJoined,
    RankPaused,
    RankReported,
    RankResumed,
    RankSpawned,
    RankSpawnFailed,
    VerdictWritten,
)
from jlaunch.core.facts import (
    ClaimDied,
    ClaimLeft,
    ClaimTaken,
    DesyncSeen,
    GroupVanished,
    LeftWait,
    ProcessContinued,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    ProcessStopped,
    QuestionFound,
    RankFact,
    RankSpoke,
)
from jlaunch.core.lease import Lease
from jlaunch.core.machine import Timers
from jlaunch.core.messages import Formed, InitFailed, Join
from jlaunch.core.policy import fast_verdict
from jlaunch.core.process import (
    ANSWER,
    ANSWER_PATIENCE_S,
    BOUND,
    DEATH,
    KILL,
    OWN_VERDICTS,
    STATUS_PATIENCE_S,
    TERM,
    ProcessMachine,
)
from jlaunch.core.spec import JobSpec

_UNBORN = "it was stopped before it was started"


class LocalRanks:
    """Processes, blocks and questions of one host. Deeds are appended to ``out``, in order."""

    def __init__(self, spec: JobSpec, host: int, lease: Lease, timers: Timers) -> None:
        self.spec = spec
        self.host = host
        self.processes: dict[int, ProcessMachine] = {}
        self.is_leaving = False
        self.dropped = 0
        self.now = 0.0
        self.out: list[Deed] = []
        self._lease = lease
        self._timers = timers
        self._mine = frozenset(spec.ranks_of(host))
        self._epoch = 0
        self._is_open = False
        self._refusal: RefuseGroup | None = None
        self._unborn: set[tuple[int, int]] = set()
        self._own_verdicts = OWN_VERDICTS

    @property
    def is_settled(self) -> bool:
        """Whether nothing more can be done about any of them."""
        return all(process.is_settled for process in self.processes.values())

    def end_all(self, kill_at: float) -> None:
        """End every process, and start none any more."""
        self.is_leaving = True
        for process in self.processes.values():
            self.out += process.stop(kill_at, self.now)

    def on_timer(self, kind: str, rank: int) -> None:
        """A process' timer."""
        process = self.processes[rank]
        if kind == TERM:
            self.out += process.term()
        elif kind == KILL:
            self.out += process.kill(self.now)
        elif kind == BOUND:
            self._send(process.give_up(self.now))
        elif kind == DEATH:
            self._announce_death(process, None, is_clean=process.has_left)
        else:
            self._answer_if_alone(process)

    def check(self) -> None:
        """Assert what must always hold."""
        for rank, process in self.processes.items():
            assert rank in self._mine
            assert process.epoch <= self._epoch
            if self.is_leaving:
                assert process.is_ending or process.is_settled or process.exit is not None
        assert not self.out

    # ---- orders ------------------------------------------------------------------------------------

    def spawn(self, order: SpawnRank) -> None:
        """Start a process, unless one of that rank may live."""
        rank, epoch = order.rank, order.epoch
        before = self.processes.get(rank)
        if rank not in self._mine or epoch < self._epoch or (before is not None and epoch <= before.epoch):
            self.dropped += 1
            return
        refusal = self._refuse_to_spawn(order, before)
        if refusal:
            self._send(RankSpawnFailed(rank=rank, epoch=epoch, error=refusal))
            return
        if epoch > self._epoch:
            self._epoch = epoch
            self._is_open = False
            self._refusal = None
        self.processes[rank] = ProcessMachine(rank, epoch, self._timers, self.now)
        self.out.append(StartProcess(rank=rank, epoch=epoch, restart_count=order.restart_count))

    def _refuse_to_spawn(self, order: SpawnRank, before: ProcessMachine | None) -> str:
        if self.is_leaving:
            return "its agent is about to end"
        if (order.rank, order.epoch) in self._unborn:
            return _UNBORN
        if before is not None and before.is_live:
            return f"its process of epoch {before.epoch} (pid {before.pid}) is still alive"
        return ""

    def stop(self, order: StopRank) -> None:
        """End a process, also one whose start is still under way."""
        process = self.processes.get(order.rank)
        if process is not None and process.epoch == order.epoch:
            self.out += process.stop(self.now + order.grace_s, self.now)
        elif order.epoch >= self._epoch and order.rank in self._mine:
            # Its start is still under way, or was lost: whatever comes, it will not live.
            self._unborn.add((order.rank, order.epoch))
            self._send(RankSpawnFailed(rank=order.rank, epoch=order.epoch, error=_UNBORN))
        else:
            self.dropped += 1

    def write(self, order: WriteVerdict) -> None:
        """Write a verdict into the blocks of the ranks that it concerns."""
        for rank in order.ranks:
            process = self._current(rank, order.epoch)
            if process is not None and process.is_live and process.exit is None:
                self.out += process.obey(order)
        self._send(VerdictWritten(host=self.host, verdict=order.verdict))

    def look(self, ranks: tuple[int, ...], epoch: int, deed: type[ReadBlock | AskForStack]) -> None:
        """Look at ranks that hold their claim; the shell sends what it finds."""
        for rank in ranks:
            process = self._current(rank, epoch)
            if process is not None and process.has_claim:
                self.out.append(deed(rank=rank, epoch=epoch))

    def open(self, order: OpenGroup) -> None:
        """All ranks of all hosts are connected."""
        if order.epoch == self._epoch:
            self._is_open = True
        self.tell(order)

    def refuse(self, order: RefuseGroup) -> None:
        """The group will not form; said to late comers too."""
        if order.epoch == self._epoch:
            self._refusal = order
        self.tell(order)

    def tell(self, order: FormGroup | OpenGroup | RefuseGroup) -> None:
        """Pass a word of the rendezvous on to the ranks that are in it."""
        for rank, process in self.processes.items():
            if process.epoch == order.epoch and process.has_joined and process.has_claim:
                self.out.append(TellRank(rank=rank, order=order))

    # ---- facts about processes -------------------------------------------------------------------

    def _current(self, rank: int, epoch: int) -> ProcessMachine | None:
        process = self.processes.get(rank)
        return process if process is not None and process.epoch == epoch else None

    def take_fact(self, fact: RankFact) -> None:
        """A fact about a process; of an older one it is dropped."""
        process = self._current(fact.rank, fact.epoch)
        if process is None or not process.is_live:
            self.dropped += 1
            return
        is_step = isinstance(fact, ProcessStarted | ProcessStartFailed | ProcessExited | GroupVanished)
        if is_step and (
            not process.accepts(fact) or (isinstance(fact, GroupVanished) and process.exit is None)
        ):
            self.dropped += 1
            return
        _RANK_HANDLERS[type(fact)](self, process, fact)

    def _on_process_started(self, process: ProcessMachine, fact: ProcessStarted) -> None:
        deeds = process.started(fact, self.now)
        self._send(RankSpawned(rank=fact.rank, epoch=fact.epoch, pid=fact.pid))
        self.out += deeds

    def _on_process_start_failed(self, process: ProcessMachine, fact: ProcessStartFailed) -> None:
        process.start_failed(fact, self.now)
        self._send(RankSpawnFailed(rank=fact.rank, epoch=fact.epoch, error=fact.error))

    def _on_stopped(self, process: ProcessMachine, fact: ProcessStopped) -> None:
        if not process.is_paused:
            self._send(RankPaused(rank=fact.rank, epoch=fact.epoch, signal=fact.signal))
        self.out += process.paused()

    def _on_continued(self, process: ProcessMachine, fact: ProcessContinued) -> None:
        if process.is_paused:
            process.is_paused = False
            self._send(RankResumed(rank=fact.rank, epoch=fact.epoch))

    def _on_exited(self, process: ProcessMachine, fact: ProcessExited) -> None:
        process.exited(fact, self.now, self.spec.timeouts.grace_s)
        process.has_claim = False
        self._announce_death(process, fact.status, is_clean=False)

    def _on_vanished(self, process: ProcessMachine, fact: GroupVanished) -> None:
        process.vanished(fact, self.now)
        self._send(process.report(fact.tail))

    # ---- facts about claims ------------------------------------------------------------------------

    def _on_claim_taken(self, process: ProcessMachine, fact: ClaimTaken) -> None:
        process.claim_pid = fact.pid
        if process.has_left:
            process.begin_again()
        self._note_claim(process, fact.pid)

    def _note_claim(self, process: ProcessMachine, pid: int) -> None:
        if process.has_claimed:
            return
        process.has_claim = process.has_claimed = True
        self._send(RankClaimed(rank=process.rank, epoch=process.epoch, pid=pid))

    def _on_claim_left(self, process: ProcessMachine, fact: ClaimLeft) -> None:
        process.has_left = True
        process.completed_seq = max(process.completed_seq, fact.completed_seq)

    def _on_claim_died(self, process: ProcessMachine, fact: ClaimDied) -> None:
        process.has_claim = False
        process.has_left = process.has_left or fact.clean
        process.completed_seq = max(process.completed_seq, fact.completed_seq)
        process.wait = fact.wait or process.wait
        if fact.status is not None:
            self._announce_death(process, fact.status, is_clean=False)
        elif not process.is_death_told:
            self._timers.set((DEATH, process.rank), self.now + STATUS_PATIENCE_S)

    def _announce_death(self, process: ProcessMachine, status: int | None, *, is_clean: bool) -> None:
        """Tell the local ranks at once (the fast path), then the supervisor, who tells the others.

        ``is_clean`` counts only if the status is not known.
        """
        self._timers.cancel((DEATH, process.rank))
        if process.is_death_told or process.is_ending:
            return
        process.is_death_told = True
        is_clean = status == 0 or (status is None and is_clean)
        told = self._tell_loss(process, status, is_clean=is_clean)
        self._send(
            RankDied(
                rank=process.rank,
                epoch=process.epoch,
                status=status,
                completed_seq=process.completed_seq,
                clean=is_clean,
                told=told,
                wait=process.wait,
            )
        )

    def _tell_loss(self, lost: ProcessMachine, status: int | None, *, is_clean: bool) -> tuple[int, ...]:
        """The fast path. Nothing is told before the group is open, nor twice over once it has failed."""
        if not self._is_open or lost.epoch != self._epoch or lost.block.has_unclean:
            return ()
        reason = Reason.EXITED if is_clean else REASONS[death_kind(status)]
        loss = Loss(rank=lost.rank, reason=reason, completed_seq=lost.completed_seq, clean=is_clean)
        kind = VerdictKind.RAISE if is_clean else fast_verdict(self.spec.policy)
        self._own_verdicts += 1
        told = []
        for rank, process in self.processes.items():
            if process.epoch != lost.epoch or process is lost or not process.is_at_work:
                continue
            if is_clean and process.block.has_unclean:
                continue
            process.block.merge(kind, (loss,), 0)
            self.out.append(process.write(self._own_verdicts))
            told.append(rank)
        return tuple(told)

    def _on_question(self, process: ProcessMachine, fact: QuestionFound) -> None:
        block = process.block
        if fact.question <= block.question or block.has_unclean or not process.is_at_work:
            return
        block.question = fact.question
        self._timers.set((ANSWER, process.rank), self.now + ANSWER_PATIENCE_S)
        self._send(DeadlineAsked(rank=fact.rank, epoch=fact.epoch, question=fact.question, wait=fact.wait))

    def _answer_if_alone(self, process: ProcessMachine) -> None:
        """The supervisor is stopped or cut off: keep waiting, until the lease lapses."""
        if not process.block.is_asking:
            return
        self._own_verdicts += 1
        self.out.append(process.answer(self._own_verdicts))
        left_s = self._lease.lapses_at - self.now
        why = f"no answer came within {ANSWER_PATIENCE_S:g} s; the lease lapses in {left_s:.1f} s"
        question = process.block.question
        self._send(QuestionAnswered(rank=process.rank, epoch=process.epoch, question=question, why=why))

    def _on_desync(self, process: ProcessMachine, fact: DesyncSeen) -> None:
        if process.is_at_work:
            where = {"rank": fact.rank, "epoch": fact.epoch, "peer": fact.peer}
            self._send(DesyncFound(**where, here=fact.here, there=fact.there))

    def _on_left_wait(self, process: ProcessMachine, fact: LeftWait) -> None:
        self.out += process.left_wait()

    # ---- the ranks' socket -------------------------------------------------------------------------

    def hear(self, event: RankSpoke) -> None:
        """A rank said something over its socket."""
        body = event.body
        process = self._current(body.rank, body.epoch)
        if process is None or process.pid is None or process.exit is not None:
            self.dropped += 1
            return
        # The doorbell and the socket are two ways; the claim may be seen last.
        self._note_claim(process, process.claim_pid or process.pid)
        if isinstance(body, Join):
            self._on_join(process, body)
        elif isinstance(body, Formed):
            self._send(RankFormed(rank=body.rank, epoch=body.epoch))
        elif isinstance(body, InitFailed):
            self._send(RankInitFailed(rank=body.rank, epoch=body.epoch, error=body.error))
        else:
            self._send(RankReported(rank=body.rank, epoch=body.epoch, numbers=body.numbers))

    def _on_join(self, process: ProcessMachine, body: Join) -> None:
        process.has_joined = True
        if self._refusal is not None:
            self.out.append(TellRank(rank=body.rank, order=self._refusal))
            return
        self._send(RankJoined(rank=body.rank, epoch=body.epoch, address=body.address))

    def _send(self, event: AgentEvent) -> None:
        self.out.append(SendUp(event=event))


_RANK_HANDLERS: dict[type[Event], Callable[..., None]] = {
    ProcessStarted: LocalRanks._on_process_started,
    ProcessStartFailed: LocalRanks._on_process_start_failed,
    ProcessStopped: LocalRanks._on_stopped,
    ProcessContinued: LocalRanks._on_continued,
    ProcessExited: LocalRanks._on_exited,
    GroupVanished: LocalRanks._on_vanished,
    ClaimTaken: LocalRanks._on_claim_taken,
    ClaimDied: LocalRanks._on_claim_died,
    ClaimLeft: LocalRanks._on_claim_left,
    QuestionFound: LocalRanks._on_question,
    DesyncSeen: LocalRanks._on_desync,
    LeftWait: LocalRanks._on_left_wait,
}
