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
   ``ProcessStarted`` comes before any other fact of that process.
   ``ReadBlock`` → the shell sends ``RankSampled`` up itself. ``SendBeat`` → it beats the host block
   and sends ``HeartbeatArrived`` itself. ``WriteBlock``, ``SignalGroup``, ``TellRank``, ``SendUp`` are
   not answered; signalling a group that is gone is no error.
   ``ExitAgent`` comes once, last; after it the machine returns nothing.
5. Watched by the shell all the time, without being told: exits, stopped and continued processes,
   claims, phases, questions, desyncs, the ranks' socket, end of file from the supervisor.

Rules of this file. By itself an agent decides only what cannot wait for the supervisor (the design's
race (d)): it tells the local ranks of a death that it saw itself, it answers "keep waiting" while the
supervisor is silent, and it ends its ranks when the supervisor is gone or the lease has lapsed. What
it tells a rank only grows more severe. Facts and orders of another epoch are dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from jlaunch.core.actions import (
    Deed,
    EndAgent,
    ExitAgent,
    FormGroup,
    OpenGroup,
    Order,
    ReadBlock,
    RefuseGroup,
    RenewLease,
    SampleRanks,
    SendBeat,
    SendUp,
    SpawnRank,
    StartProcess,
    StopRank,
    TellRank,
    WriteBlock,
    WriteVerdict,
)
from jlaunch.core.cause import REASONS, death_kind
from jlaunch.core.contract import ExitCode, Reason, VerdictKind
from jlaunch.core.events import (
    ActionFailed,
    AgentEvent,
    AgentReady,
    DeadlineAsked,
    DeadlineReached,
    DesyncFound,
    Event,
    LeaseLapsed,
    Loss,
    QuestionAnswered,
    RankClaimed,
    RankDied,
    RankExited,
    RankFormed,
    RankInitFailed,
    RankJoined,
    RankPaused,
    RankReported,
    RankResumed,
    RankSpawned,
    RankSpawnFailed,
    RankUnkillable,
    VerdictWritten,
)
from jlaunch.core.facts import (
    AgentInput,
    AgentStarted,
    ClaimDied,
    ClaimLeft,
    ClaimTaken,
    DeedFailed,
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
    SupervisorGone,
    SupervisorHeard,
)
from jlaunch.core.host import beat_interval_s
from jlaunch.core.machine import Timers
from jlaunch.core.messages import Formed, InitFailed, Join
from jlaunch.core.policy import fast_verdict
from jlaunch.core.process import ANSWER, BOUND, DEATH, KILL, TERM, ProcessMachine
from jlaunch.core.spec import JobSpec

STATUS_PATIENCE_S = 0.2
"""How long a death whose status the system does not tell yet waits for it. Whether a rank was killed or
ended with 0 decides between a loss and a clean end, so a guess would be worse than a short wait."""

ANSWER_PATIENCE_S = 2.0
"""How long a question waits for a silent supervisor before the agent answers "keep waiting" itself."""

OWN_VERDICTS = 1 << 30
"""Verdicts that an agent writes by itself are numbered from here on, the supervisor's from 1."""

_BEAT = "beat"
_LEASE = "lease"


class AgentMachine:
    """One host's part of a job, as one incarnation of its agent."""

    def __init__(self, spec: JobSpec, host: int, *, incarnation: str, pid: int) -> None:
        self.spec = spec
        self.host = host
        self.dropped = 0
        self.is_over = False
        self._incarnation = incarnation
        self._pid = pid
        self._mine = frozenset(spec.ranks_of(host))
        self._epoch = 0
        self._is_open = False
        self._refusal: RefuseGroup | None = None
        self._processes: dict[int, ProcessMachine] = {}
        self._unborn: set[tuple[int, int]] = set()
        self._own_verdicts = OWN_VERDICTS
        self._beat = 0
        self._beats: deque[tuple[int, float]] = deque()
        self._lease_at = 0.0
        self._heard_at = 0.0
        self._exit_code: int | None = None
        self._timers = Timers()
        self._out: list[Deed] = []
        self._now = 0.0

    # ---- doors -----------------------------------------------------------------------------------

    def handle(self, event: AgentInput, now: float) -> list[Deed]:
        """Take note of an order or a fact at ``now``; say what to do about it."""
        if self.is_over:
            self.dropped += 1
            return []
        self._now = now
        if isinstance(event, RankFact):
            self._on_rank_fact(event)
        else:
            if isinstance(event, Order):
                self._heard_at = now
            _HANDLERS[type(event)](self, event)
        self._leave_if_done()
        out, self._out = self._out, []
        return out

    def wake(self, now: float) -> list[Deed]:
        """The deadline has come."""
        return self.handle(DeadlineReached(), now)

    def next_deadline(self) -> float | None:
        """When to be woken at the latest, in the clock of ``now``; None for never."""
        return None if self.is_over else self._timers.next()

    def check(self) -> None:
        """Assert what must always hold."""
        for rank, process in self._processes.items():
            assert rank in self._mine
            assert process.epoch <= self._epoch
            if self.is_over:
                assert process.is_settled
            if self._exit_code is not None:
                assert process.is_ending or process.is_settled or process.exit is not None
        assert not self._out

    @property
    def living(self) -> tuple[int, ...]:
        """Local ranks that may have a process."""
        return tuple(rank for rank, process in self._processes.items() if process.is_live)

    # ---- the agent itself --------------------------------------------------------------------------

    def _on_started(self, event: AgentStarted) -> None:
        self._heard_at = self._now
        self._beats.append((0, self._now))
        self._extend_lease(self._now)
        self._send(AgentReady(host=self.host, incarnation=self._incarnation, pid=self._pid))
        self._send_beat()

    def _on_heard(self, event: SupervisorHeard) -> None:
        self._heard_at = self._now

    def _on_gone(self, event: SupervisorGone) -> None:
        self._end_all(self._now + self.spec.timeouts.grace_s, ExitCode.OK)

    def _on_end_agent(self, order: EndAgent) -> None:
        self._end_all(self._now + self.spec.timeouts.grace_s, ExitCode.OK)

    def _on_deed_failed(self, event: DeedFailed) -> None:
        self._send(ActionFailed(action=event.deed, error=event.error, rank=event.rank, host=self.host))

    def _on_renew(self, order: RenewLease) -> None:
        """The lease counts from when the echoed beat was sent, not from when its echo arrived."""
        while self._beats and self._beats[0][0] < order.beat:
            self._beats.popleft()
        if self._beats and self._beats[0][0] == order.beat:
            self._extend_lease(self._beats[0][1])

    def _extend_lease(self, granted_at: float) -> None:
        self._lease_at = max(self._lease_at, granted_at + self.spec.timeouts.lease_s)
        if self._exit_code is None:
            self._timers.set(_LEASE, self._lease_at)

    def _send_beat(self) -> None:
        self._beat += 1
        self._beats.append((self._beat, self._now))
        self._timers.set(_BEAT, self._now + beat_interval_s(self.spec.timeouts))
        self._out.append(SendBeat(beat=self._beat))

    def _on_lapse(self) -> None:
        """Nobody above has spoken for a whole lease. A host that slept past its grace kills at once."""
        self._send(LeaseLapsed(host=self.host))
        self._end_all(self._lease_at + self.spec.timeouts.grace_s, ExitCode.CONTROL_LOST)

    def _end_all(self, kill_at: float, code: int) -> None:
        if self._exit_code is None:
            self._exit_code = int(code)
        self._timers.cancel(_LEASE)
        for process in self._processes.values():
            self._out += process.stop(kill_at, self._now)

    def _leave_if_done(self) -> None:
        if self._exit_code is None or not all(each.is_settled for each in self._processes.values()):
            return
        self.is_over = True
        self._timers.clear()
        self._out.append(ExitAgent(code=self._exit_code))

    def _on_deadline(self, event: DeadlineReached) -> None:
        while (name := self._timers.pop_due(self._now)) is not None:
            if name == _BEAT:
                self._send_beat()
            elif name == _LEASE:
                self._on_lapse()
            else:
                assert isinstance(name, tuple)
                self._on_process_timer(name[0], self._processes[name[1]])

    def _on_process_timer(self, kind: str, process: ProcessMachine) -> None:
        if kind == TERM:
            self._out += process.term()
        elif kind == KILL:
            self._out += process.kill(self._now)
        elif kind == BOUND:
            if process.give_up(self._now):
                pid = process.pid or 0
                self._send(RankUnkillable(rank=process.rank, epoch=process.epoch, pid=pid))
        elif kind == DEATH:
            self._announce_death(process, None, is_clean=process.has_left)
        else:
            self._answer_if_alone(process)

    # ---- orders ------------------------------------------------------------------------------------

    def _on_spawn(self, order: SpawnRank) -> None:
        rank, epoch = order.rank, order.epoch
        before = self._processes.get(rank)
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
        self._processes[rank] = ProcessMachine(rank, epoch, self._timers, self._now)
        self._out.append(StartProcess(rank=rank, epoch=epoch, restart_count=order.restart_count))

    def _refuse_to_spawn(self, order: SpawnRank, before: ProcessMachine | None) -> str:
        if self._exit_code is not None:
            return "its agent is about to end"
        if (order.rank, order.epoch) in self._unborn:
            return "it was stopped before it was started"
        if before is not None and before.is_live:
            return f"its process of epoch {before.epoch} (pid {before.pid}) is still alive"
        return ""

    def _on_stop(self, order: StopRank) -> None:
        process = self._processes.get(order.rank)
        if process is not None and process.epoch == order.epoch:
            self._out += process.stop(self._now + order.grace_s, self._now)
        elif order.epoch >= self._epoch and order.rank in self._mine:
            # Its start is still under way, or was lost: whatever comes, it will not live.
            self._unborn.add((order.rank, order.epoch))
            error = "it was stopped before it was started"
            self._send(RankSpawnFailed(rank=order.rank, epoch=order.epoch, error=error))
        else:
            self.dropped += 1

    def _on_write(self, order: WriteVerdict) -> None:
        for rank in order.ranks:
            process = self._current(rank, order.epoch)
            if process is not None and process.is_live and process.exit is None:
                self._write(process, order)
        self._send(VerdictWritten(host=self.host, verdict=order.verdict))

    def _write(self, process: ProcessMachine, order: WriteVerdict) -> None:
        block = process.block
        if order.kind is VerdictKind.KEEP_WAITING:
            if order.question <= block.answered or block.has_unclean:
                return
            block.merge(order.kind, (), order.question)
            self._out.append(self._keep_waiting(process, order.verdict))
            return
        was = (block.kind, len(block.losses))
        block.merge(order.kind, order.losses, order.question)
        if (block.kind, len(block.losses)) != was or order.question:
            self._out.append(process.write(order.verdict))

    def _on_sample(self, order: SampleRanks) -> None:
        for rank in order.ranks:
            process = self._current(rank, order.epoch)
            if process is not None and process.has_claim:
                self._out.append(ReadBlock(rank=rank, epoch=order.epoch))

    def _on_form(self, order: FormGroup) -> None:
        self._tell(order, order.epoch)

    def _on_open(self, order: OpenGroup) -> None:
        if order.epoch == self._epoch:
            self._is_open = True
        self._tell(order, order.epoch)

    def _on_refuse(self, order: RefuseGroup) -> None:
        if order.epoch == self._epoch:
            self._refusal = order
        self._tell(order, order.epoch)

    def _tell(self, order: FormGroup | OpenGroup | RefuseGroup, epoch: int) -> None:
        for rank, process in self._processes.items():
            if process.epoch == epoch and process.has_joined and process.has_claim:
                self._out.append(TellRank(rank=rank, order=order))

    # ---- facts about processes -------------------------------------------------------------------

    def _current(self, rank: int, epoch: int) -> ProcessMachine | None:
        process = self._processes.get(rank)
        return process if process is not None and process.epoch == epoch else None

    def _on_rank_fact(self, fact: RankFact) -> None:
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
        deeds = process.started(fact, self._now)
        self._send(RankSpawned(rank=fact.rank, epoch=fact.epoch, pid=fact.pid))
        self._out += deeds

    def _on_process_start_failed(self, process: ProcessMachine, fact: ProcessStartFailed) -> None:
        process.start_failed(fact, self._now)
        self._send(RankSpawnFailed(rank=fact.rank, epoch=fact.epoch, error=fact.error))

    def _on_stopped(self, process: ProcessMachine, fact: ProcessStopped) -> None:
        if not process.is_paused:
            self._send(RankPaused(rank=fact.rank, epoch=fact.epoch, signal=fact.signal))
        self._out += process.paused()

    def _on_continued(self, process: ProcessMachine, fact: ProcessContinued) -> None:
        if process.is_paused:
            process.is_paused = False
            self._send(RankResumed(rank=fact.rank, epoch=fact.epoch))

    def _on_exited(self, process: ProcessMachine, fact: ProcessExited) -> None:
        process.exited(fact, self._now, self.spec.timeouts.grace_s)
        process.has_claim = False
        self._announce_death(process, fact.status, is_clean=False)

    def _on_vanished(self, process: ProcessMachine, fact: GroupVanished) -> None:
        process.vanished(fact, self._now)
        assert process.exit is not None
        self._send(
            RankExited(
                rank=fact.rank,
                epoch=fact.epoch,
                status=process.exit.status,
                by=process.ended_by,
                tail=fact.tail,
                completed_seq=process.completed_seq,
                claimed=process.has_claimed,
                wait=process.wait,
            )
        )

    # ---- facts about claims ------------------------------------------------------------------------

    def _on_claim_taken(self, process: ProcessMachine, fact: ClaimTaken) -> None:
        process.claim_pid = fact.pid
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
            self._timers.set((DEATH, process.rank), self._now + STATUS_PATIENCE_S)

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
        for rank, process in self._processes.items():
            if process.epoch != lost.epoch or process is lost or not process.is_at_work:
                continue
            if is_clean and process.block.has_unclean:
                continue
            process.block.merge(kind, (loss,), 0)
            self._out.append(process.write(self._own_verdicts))
            told.append(rank)
        return tuple(told)

    # ---- questions ---------------------------------------------------------------------------------

    def _on_question(self, process: ProcessMachine, fact: QuestionFound) -> None:
        block = process.block
        if fact.question <= block.question or block.has_unclean or not process.is_at_work:
            return
        block.question = fact.question
        self._timers.set((ANSWER, process.rank), self._now + ANSWER_PATIENCE_S)
        self._send(DeadlineAsked(rank=fact.rank, epoch=fact.epoch, question=fact.question, wait=fact.wait))

    def _answer_if_alone(self, process: ProcessMachine) -> None:
        """The supervisor is stopped or cut off: keep waiting, until the lease lapses."""
        block = process.block
        if not block.is_asking:
            return
        silence_s = self._now - self._heard_at
        if silence_s < ANSWER_PATIENCE_S:
            self._timers.set((ANSWER, process.rank), self._heard_at + ANSWER_PATIENCE_S)
            return
        block.merge(VerdictKind.KEEP_WAITING, (), block.question)
        self._own_verdicts += 1
        self._out.append(self._keep_waiting(process, self._own_verdicts))
        left_s = self._lease_at - self._now
        why = f"the supervisor was not heard for {silence_s:.1f} s; the lease lapses in {left_s:.1f} s"
        self._send(QuestionAnswered(rank=process.rank, epoch=process.epoch, question=block.question, why=why))

    def _keep_waiting(self, process: ProcessMachine, verdict: int) -> WriteBlock:
        return WriteBlock(
            rank=process.rank,
            epoch=process.epoch,
            verdict=verdict,
            kind=VerdictKind.KEEP_WAITING,
            question=process.block.answered,
        )

    def _on_desync(self, process: ProcessMachine, fact: DesyncSeen) -> None:
        event = DesyncFound(
            rank=fact.rank, epoch=fact.epoch, peer=fact.peer, here=fact.here, there=fact.there
        )
        if process.is_at_work:
            self._send(event)

    def _on_left_wait(self, process: ProcessMachine, fact: LeftWait) -> None:
        self._out += process.left_wait()

    # ---- the ranks' socket -------------------------------------------------------------------------

    def _on_spoke(self, event: RankSpoke) -> None:
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
            self._out.append(TellRank(rank=body.rank, order=self._refusal))
            return
        self._send(RankJoined(rank=body.rank, epoch=body.epoch, address=body.address))

    def _send(self, event: AgentEvent) -> None:
        self._out.append(SendUp(event=event))


_HANDLERS: dict[type[Event | Order], Callable[..., None]] = {
    AgentStarted: AgentMachine._on_started,
    SupervisorHeard: AgentMachine._on_heard,
    SupervisorGone: AgentMachine._on_gone,
    DeedFailed: AgentMachine._on_deed_failed,
    RankSpoke: AgentMachine._on_spoke,
    DeadlineReached: AgentMachine._on_deadline,
    SpawnRank: AgentMachine._on_spawn,
    FormGroup: AgentMachine._on_form,
    OpenGroup: AgentMachine._on_open,
    RefuseGroup: AgentMachine._on_refuse,
    WriteVerdict: AgentMachine._on_write,
    StopRank: AgentMachine._on_stop,
    SampleRanks: AgentMachine._on_sample,
    RenewLease: AgentMachine._on_renew,
    EndAgent: AgentMachine._on_end_agent,
}

_RANK_HANDLERS: dict[type[Event], Callable[..., None]] = {
    ProcessStarted: AgentMachine._on_process_started,
    ProcessStartFailed: AgentMachine._on_process_start_failed,
    ProcessStopped: AgentMachine._on_stopped,
    ProcessContinued: AgentMachine._on_continued,
    ProcessExited: AgentMachine._on_exited,
    GroupVanished: AgentMachine._on_vanished,
    ClaimTaken: AgentMachine._on_claim_taken,
    ClaimDied: AgentMachine._on_claim_died,
    ClaimLeft: AgentMachine._on_claim_left,
    QuestionFound: AgentMachine._on_question,
    DesyncSeen: AgentMachine._on_desync,
    LeftWait: AgentMachine._on_left_wait,
}
