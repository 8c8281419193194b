"""Who waits for whom in one epoch, and what follows from it.

Rules of this file. The detector finds, this file acts: it orders looks, writes answers, accuses, and
notes who needs a rank that has finished early. What a loss or a cause means is the epoch's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jlaunch.core.actions import RecordVerdict, SampleRanks, Say, TakeStack, WriteVerdict
from jlaunch.core.cause import CauseKind
from jlaunch.core.circles import named_in
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.detector import Detector
from jlaunch.core.events import (
    DeadlineAsked,
    DesyncFound,
    QuestionAnswered,
    RankPaused,
    RankResumed,
    RankSampled,
    StackTaken,
    Wait,
)
from jlaunch.core.findings import Accusation, Answer, Finding, Look, NeedsLost
from jlaunch.core.stacks import place_of

if TYPE_CHECKING:
    from jlaunch.core.epoch import Epoch

NAMES_MAX = 4
"""Ranks named in one line for people; the others are counted."""

_KINDS = {
    Reason.PAUSED: CauseKind.PAUSED,
    Reason.STUCK: CauseKind.STUCK,
    Reason.DESYNC: CauseKind.DESYNC,
}


class Waits:
    """The waits of one epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self.detector = Detector(epoch.spec.timeouts, epoch.ranks, epoch.hosts)
        self._needy: set[int] = set()
        self._held: set[int] = set()
        self._asked_at: dict[int, int] = {}
        self._places: dict[int, str] = {}

    def hold(self) -> None:
        """Every rank that runs is about to be paused, as a person asked: no news, whenever it is told."""
        self._held = {rank.rank for rank in self._epoch.ranks if rank.paused_at is None and not rank.is_gone}

    def is_needy(self, rank: int) -> bool:
        """Whether ``rank`` was seen waiting for one that had finished early."""
        return rank in self._needy

    # ---- events --------------------------------------------------------------------------------

    def paused(self, event: RankPaused, now: float) -> None:
        """A rank's process is in state T."""
        if event.rank not in self._held:
            self._epoch.out.append(Say(level="note", text=f"{self._epoch.name(event.rank)} is paused"))
        self._act_on(self.detector.changed(event.rank, now))

    def resumed(self, event: RankResumed, now: float) -> None:
        """It runs again."""
        if event.rank not in self._held:
            self._epoch.out.append(Say(level="note", text=f"{self._epoch.name(event.rank)} runs again"))
        self._held.discard(event.rank)
        self._epoch.beginning.be_patient(now)
        self._act_on(self.detector.changed(event.rank, now))

    def sampled(self, event: RankSampled, now: float) -> None:
        """A look came back."""
        self._act_on(self.detector.sampled(event.rank, now))

    def asked(self, event: DeadlineAsked, now: float) -> None:
        """A rank saw no progress for the deadline."""
        self._epoch.ranks[event.rank].note_wait(event.wait, now)
        self._act_on(self.detector.ask(event, now))

    def answered(self, event: QuestionAnswered, now: float) -> None:
        """An agent answered by itself: one line for the log."""
        self.detector.answered_by_agent(event.rank, event.question)
        self._epoch.out.append(self._record(0, event.rank, event.why, event.question))

    def desync(self, event: DesyncFound, now: float) -> None:
        """Two ranks are in different calls. Which of them is wrong nobody knows: both are lost."""
        epoch = self._epoch
        pair = (event.rank, event.peer) if 0 <= event.peer < len(epoch.ranks) else (event.rank,)
        text = f"{epoch.name(event.rank)} and rank {event.peer} do not do the same: "
        text += f"rank {event.rank} is in {event.here}, rank {event.peer} in {event.there}"
        epoch.record(CauseKind.DESYNC, text, pair)
        epoch.lose(pair, Reason.DESYNC, text)

    def host_changed(self, rank: int, now: float) -> None:
        """The host of ``rank`` fell silent or spoke again."""
        self._act_on(self.detector.changed(rank, now))

    def wake(self, now: float) -> None:
        """A moment of the detector has come."""
        self._act_on(self.detector.wake(now))

    # ---- need ----------------------------------------------------------------------------------

    def judge_need(self, rank: int, wait: Wait) -> None:
        """A rank waits: if it is for one that ended with 0, that one finished too early."""
        epoch = self._epoch
        for needed in wait.waiting_for:
            if not 0 <= needed < len(epoch.ranks):
                continue
            loss = epoch.ranks[needed].loss
            if loss is None or not loss.clean or (wait.group == 0 and wait.seq <= loss.completed_seq):
                continue
            if not self._needy and not epoch.is_draining and not epoch.losses.unclean:
                text = f"rank {needed} finished while rank {rank} waits in {wait.collective.word} #{wait.seq}"
                epoch.record(CauseKind.FINISHED_EARLY, text, (needed,))
            self._needy.add(rank)

    # ---- findings ------------------------------------------------------------------------------

    def _act_on(self, findings: list[Finding]) -> None:
        for finding in findings:
            if isinstance(finding, Look):
                self._look(finding)
            elif isinstance(finding, Answer):
                self._keep_waiting(finding)
            elif isinstance(finding, NeedsLost):
                self._tell_needy(finding)
            else:
                self._accuse(finding)

    def _look(self, look: Look) -> None:
        by_host: dict[int, list[int]] = {}
        for rank in look.ranks:
            by_host.setdefault(self._epoch.ranks[rank].host, []).append(rank)
        number = self._epoch.number
        self._epoch.out += [
            SampleRanks(host=host, epoch=number, ranks=tuple(local)) for host, local in by_host.items()
        ]

    def _keep_waiting(self, answer: Answer) -> None:
        epoch = self._epoch
        verdict = epoch.next_verdict()
        write = WriteVerdict(
            host=epoch.ranks[answer.rank].host,
            verdict=verdict,
            epoch=epoch.number,
            kind=VerdictKind.KEEP_WAITING,
            ranks=(answer.rank,),
            question=answer.question,
        )
        epoch.out += [self._record(verdict, answer.rank, answer.why, answer.question), write]
        self._ask_the_late(answer.rank)

    def _ask_the_late(self, asker: int) -> None:
        """Where are those who are elsewhere? Asked once, until they have moved on."""
        wait = self._epoch.ranks[asker].wait
        for rank in named_in(wait, self._epoch.ranks)[:NAMES_MAX] if wait is not None else ():
            machine = self._epoch.ranks[rank]
            is_elsewhere = machine.is_survivor and machine.wait is None and machine.paused_at is None
            progress = machine.sample.progress if machine.sample is not None else 0
            if is_elsewhere and machine.has_claimed and self._asked_at.get(rank) != progress:
                self._asked_at[rank] = progress
                self._epoch.out.append(TakeStack(host=machine.host, rank=rank, epoch=self._epoch.number))

    def stack_taken(self, event: StackTaken, now: float) -> None:
        """A rank that is late says where it is."""
        self._places[event.rank] = place_of(event.lines)
        where = self._places[event.rank] or f"where it is cannot be told: {event.error or 'no frame'}"
        if self._epoch.ranks[event.rank].wait is None:
            text = f"{self._epoch.name(event.rank)} is late: {where}"
            self._epoch.out.append(Say(level="note", text=text))

    def _record(self, verdict: int, rank: int, why: str, question: int) -> RecordVerdict:
        return RecordVerdict(
            verdict=verdict,
            kind=VerdictKind.KEEP_WAITING,
            epoch=self._epoch.number,
            ranks=(rank,),
            why=why,
            question=question,
        )

    def _tell_needy(self, finding: NeedsLost) -> None:
        epoch = self._epoch
        wait = epoch.ranks[finding.rank].wait
        if wait is not None:
            self.judge_need(finding.rank, wait)
        # With a fence up, the verdict that waits behind it is the answer.
        if not epoch.trouble and not epoch.losses.fenced:
            why = f"rank {finding.rank} waits for rank {finding.lost}, which is lost"
            epoch.out += epoch.losses.answer(finding.rank, finding.question, why)

    def _accuse(self, accusation: Accusation) -> None:
        epoch = self._epoch
        if all(epoch.ranks[rank].loss is not None for rank in accusation.ranks):
            return  # the others of the circle were accused with it
        kind = _KINDS[accusation.reason]
        names = ", ".join(epoch.name(rank) for rank in accusation.ranks[:NAMES_MAX])
        text = accusation.why if kind is CauseKind.DESYNC else f"{names}: {accusation.why}"
        place = self._places.get(accusation.ranks[0])
        if kind is CauseKind.STUCK and place:
            text += f"; it was last seen at {place}"
        epoch.record(kind, text, accusation.ranks)
        epoch.lose(accusation.ranks, accusation.reason, text)
