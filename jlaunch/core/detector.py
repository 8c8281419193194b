"""Who holds the others up: questions in; answers, looks and accusations out.

Theory. The backend asks when a collective saw no progress for ``--deadline``; the deadline is a
question, not its answer. Whoever a question names may be late (alive, elsewhere: it is waited for,
as long as it moves at least once per straggler timeout), paused (waited for up to ``--max-pause``),
waiting itself (then whoever *it* waits for is to blame), or unheard (its host is silent: two planes
must agree before it is given up, which is not decided here).

Rules of this file.

* No accusation without evidence that is younger than the limit it rests on. When a limit is reached,
  the accused and some of those who wait for it are looked at again, and only if the accused still
  stands still, and a witness that is itself awake still waits for it, is it accused.
* The straggler clock of a rank starts with the first look at it and is reset by whatever excuses it:
  progress, a report, output that we do not take off its hands, a pause, a silent agent.
* The pause's limit counts from the start of the pause, but it bites only while somebody waits: a
  pause between two collectives, that nobody noticed, costs nothing.
* Ranks that all wait for one another are accused together: at once, that is after one more deadline
  in which none of them moved, if they are in calls that do not belong together (a deadlock: nothing that
  they wait for can ever come); in the same call after the straggler timeout (a silent data link).
* Every question that is admitted gets one answer: "keep waiting", with the reason, or, from the job
  machine, the verdict that ends the wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jlaunch.core.circles import circle_of, deadlock_in, named_in
from jlaunch.core.contract import Reason
from jlaunch.core.events import DeadlineAsked, Wait
from jlaunch.core.findings import Accusation, Answer, Finding, HoldUp, Look, NeedsLost
from jlaunch.core.host import HostMachine
from jlaunch.core.machine import Timers
from jlaunch.core.rank import RankMachine
from jlaunch.core.spec import Timeouts

LOOK_TIMEOUT_S = 1.0
"""How long a question waits for the look that is to answer it."""

FRESH_S = 0.25
"""A look so young need not be repeated to answer a question."""

WITNESSES_MAX = 4
"""Witnesses looked at before an accusation; one that still waits is enough."""

_LOOK = "look"
_LIMIT = "limit"
_STILL = "still"


class Detector:
    """Watches over the waits of one epoch. Reads the rank and host machines, changes none."""

    def __init__(
        self, timeouts: Timeouts, ranks: Sequence[RankMachine], hosts: Sequence[HostMachine]
    ) -> None:
        self._timeouts = timeouts
        self._ranks = ranks
        self._hosts = hosts
        self._questions: dict[int, DeadlineAsked] = {}
        self._unseen: dict[int, set[int]] = {}
        self._answered: dict[int, int] = {}
        self._hold_ups: dict[int, HoldUp] = {}
        self._looking: set[int] = set()
        self._findings: list[Finding] = []
        self.timers = Timers()

    # ---- doors -------------------------------------------------------------------------------------

    def ask(self, event: DeadlineAsked, now: float) -> list[Finding]:
        """A rank asked. A question that was seen before is nothing new."""
        asker = event.rank
        if event.question <= self._answered.get(asker, 0) or self._questions.get(asker) == event:
            return []
        self._questions[asker] = event
        looks: list[int] = []
        for rank in self._named(event.wait):
            if rank == asker:
                continue  # nobody is a witness against itself
            if self._ranks[rank].loss is not None or self._ranks[rank].is_gone:
                self._close_question(asker)
                return [NeedsLost(asker, event.question, rank)]
            self._hold_up(rank, now).askers[asker] = None
            if self._needs_look(rank, now):
                looks.append(rank)
        self._look(looks, now)
        # Only looks that are under way now: later ones must not put the answer off again.
        self._unseen[asker] = {
            rank for rank in self._named(event.wait) if rank in self._looking and rank != asker
        }
        self._try_answer(asker, now)
        return self._take()

    def sampled(self, rank: int, now: float) -> list[Finding]:
        """A look at ``rank`` came back; its machine has taken note of it."""
        self._looking.discard(rank)
        self.timers.cancel((_LOOK, rank))
        hold_up = self._hold_ups.get(rank)
        if hold_up is not None:
            self._excuse_if_moved(hold_up, now)
        self._hasten(self._circle(rank), now)
        self._answer_about(rank, now)
        self._verify_those_with(rank, now)
        return self._take()

    def changed(self, rank: int, now: float) -> list[Finding]:
        """``rank`` was paused or resumed, or its host fell silent or spoke again."""
        hold_up = self._hold_ups.get(rank)
        if hold_up is not None:
            hold_up.still_since = now
            hold_up.moved = None
            hold_up.verifying_since = None
            self._arm(hold_up, now)
        return self._take()

    def forget(self, rank: int) -> None:
        """``rank`` is gone, lost or being stopped: it neither waits nor holds anybody up."""
        self._close_question(rank)
        self._looking.discard(rank)
        self.timers.cancel((_LOOK, rank))
        self._close(rank)
        for other in list(self._hold_ups):
            hold_up = self._hold_ups[other]
            hold_up.askers.pop(rank, None)
            if not hold_up.askers:
                self._close(other)

    def answered_by_agent(self, rank: int, question: int) -> bool:
        """The agent answered by itself; returns whether the question was still open here."""
        self._answered[rank] = max(question, self._answered.get(rank, 0))
        event = self._questions.get(rank)
        if event is None or event.question > question:
            return False
        self._close_question(rank)
        return True

    def wake(self, now: float) -> list[Finding]:
        """A moment of ``timers`` has come."""
        while (name := self.timers.pop_due(now)) is not None:
            assert isinstance(name, tuple)
            kind, rank = name
            if kind == _LOOK:
                self._looking.discard(rank)
                self._answer_about(rank, now)
                self._verify_those_with(rank, now)
            elif kind == _STILL:
                self._look_again(self._hold_ups[rank], now)
            else:
                self._start_verifying(self._hold_ups[rank], now)
        return self._take()

    def late_since(self, rank: int) -> float | None:
        """Since when somebody is known to wait for ``rank``, which is in no collective; None if nobody."""
        hold_up = self._hold_ups.get(rank)
        return hold_up.since if hold_up is not None and self._ranks[rank].wait is None else None

    @property
    def open_questions(self) -> int:
        """Questions that have no answer yet."""
        return len(self._questions)

    # ---- questions -----------------------------------------------------------------------------

    def _named(self, wait: Wait) -> list[int]:
        return named_in(wait, self._ranks)

    def _close_question(self, rank: int) -> None:
        self._unseen.pop(rank, None)
        event = self._questions.pop(rank, None)
        if event is not None:
            self._answered[rank] = event.question

    def _answer_about(self, rank: int, now: float) -> None:
        """What was to be known of ``rank`` is known: answer those who asked about it."""
        hold_up = self._hold_ups.get(rank)
        if hold_up is not None:
            for asker in list(hold_up.askers):
                if asker in self._unseen:
                    self._unseen[asker].discard(rank)
                    self._try_answer(asker, now)

    def _try_answer(self, asker: int, now: float) -> None:
        event = self._questions.get(asker)
        if event is None or self._unseen[asker]:
            return
        named = self._named(event.wait)
        self._close_question(asker)
        whys = [self._describe(rank, now) for rank in named[:WITNESSES_MAX]]
        if len(named) > WITNESSES_MAX:
            whys.append(f"and {len(named) - WITNESSES_MAX} more")
        self._findings.append(Answer(asker, event.question, "; ".join(whys) or "it waits for nobody"))

    def _describe(self, rank: int, now: float) -> str:
        machine = self._ranks[rank]
        host = self._hosts[machine.host]
        if machine.paused_at is not None:
            limit_s = self._timeouts.max_pause_s
            limit = "for ever" if math.isinf(limit_s) else f"for up to {limit_s:g} s"
            return f"rank {rank} is paused since {now - machine.paused_at:.1f} s and is waited for {limit}"
        if not host.is_ready:
            return f"the host of rank {rank}, {host.spec.name}, was not heard for {host.silence_s(now):.1f} s"
        hold_up = self._hold_ups.get(rank)
        still_s = now - hold_up.still_since if hold_up is not None else 0.0
        if machine.wait is not None:
            others = ", ".join(str(other) for other in machine.wait.waiting_for[:WITNESSES_MAX]) or "nobody"
            where = f"waits in {machine.wait.collective.word} #{machine.wait.seq} for {others}"
        elif machine.sample is not None and machine.sample.output_blocked:
            where = "writes output that is not taken off yet"
        else:
            where = "is outside any collective"
        return f"rank {rank} is alive, {where}; no movement seen for {still_s:.1f} s"

    # ---- looks -------------------------------------------------------------------------------------

    def _needs_look(self, rank: int, now: float) -> bool:
        machine = self._ranks[rank]
        if machine.paused_at is not None or not self._hosts[machine.host].is_ready:
            return False
        return machine.sampled_at is None or now - machine.sampled_at > FRESH_S

    def _look(self, ranks: Sequence[int], now: float) -> None:
        new = [rank for rank in ranks if rank not in self._looking and self._ranks[rank].is_at_work]
        if not new:
            return
        for rank in new:
            self._looking.add(rank)
            self.timers.set((_LOOK, rank), now + LOOK_TIMEOUT_S)
        self._findings.append(Look(tuple(new)))

    def _look_again(self, hold_up: HoldUp, now: float) -> None:
        """Between limits: notice output that is blocked, keep what people see fresh."""
        self._look([hold_up.rank], now)
        self._arm(hold_up, now)

    # ---- hold-ups ----------------------------------------------------------------------------------

    def _hold_up(self, rank: int, now: float) -> HoldUp:
        hold_up = self._hold_ups.get(rank)
        if hold_up is None:
            hold_up = self._hold_ups[rank] = HoldUp(rank, now)
            self._arm(hold_up, now)
        return hold_up

    def _close(self, rank: int) -> None:
        if self._hold_ups.pop(rank, None) is not None:
            self.timers.cancel((_LIMIT, rank))
            self.timers.cancel((_STILL, rank))

    def _limit_at(self, hold_up: HoldUp) -> float:
        paused_at = self._ranks[hold_up.rank].paused_at
        if paused_at is not None:
            return paused_at + self._timeouts.max_pause_s
        limit_s = self._timeouts.straggler_timeout_s
        if self._deadlock(hold_up.rank) is not None:
            limit_s = min(limit_s, self._timeouts.deadline_s)
        return hold_up.still_since + limit_s

    def _deadlock(self, rank: int) -> str | None:
        if self._ranks[rank].wait is None:
            return None
        return deadlock_in(self._circle(rank), self._ranks)

    def _arm(self, hold_up: HoldUp, now: float) -> None:
        interval_s = min(max(self._timeouts.straggler_timeout_s / 8, 0.1), 10.0)
        # Past its limit already (nobody waited when it was reached): now, else when it comes.
        self.timers.set((_LIMIT, hold_up.rank), max(self._limit_at(hold_up), now))
        self.timers.set((_STILL, hold_up.rank), now + interval_s)

    def _hasten(self, circle: tuple[int, ...] | None, now: float) -> None:
        """A look has closed a circle that can never end: its members need not be waited for long."""
        if deadlock_in(circle, self._ranks) is not None:
            for rank in circle or ():
                hold_up = self._hold_ups.get(rank)
                if hold_up is not None and hold_up.verifying_since is None:
                    self._arm(hold_up, now)

    def _retry(self, hold_up: HoldUp, now: float) -> None:
        """The limit is reached, but the evidence is not there: look again soon."""
        hold_up.verifying_since = None
        self.timers.set((_LIMIT, hold_up.rank), max(self._limit_at(hold_up), now + LOOK_TIMEOUT_S))

    def _excuse_if_moved(self, hold_up: HoldUp, now: float) -> None:
        sample = self._ranks[hold_up.rank].sample
        assert sample is not None
        moved = (sample.progress, sample.reports)
        if moved != hold_up.moved or sample.output_blocked:
            hold_up.moved = moved
            hold_up.still_since = now
            if self._ranks[hold_up.rank].paused_at is None:
                self._arm(hold_up, now)

    # ---- the limit is reached ------------------------------------------------------------------

    def _start_verifying(self, hold_up: HoldUp, now: float) -> None:
        hold_up.verifying_since = now
        circle = self._circle(hold_up.rank) or ()
        others = dict.fromkeys((*list(hold_up.askers)[:WITNESSES_MAX], *circle))
        hold_up.evidence = (hold_up.rank, *(rank for rank in others if rank != hold_up.rank))
        self._look(hold_up.evidence, now)
        self._verify(hold_up, now)

    def _verify_those_with(self, rank: int, now: float) -> None:
        """``rank`` was looked at: whose evidence is complete now?"""
        for hold_up in list(self._hold_ups.values()):
            if hold_up.verifying_since is not None and rank in hold_up.evidence:
                self._verify(hold_up, now)

    def _verify(self, hold_up: HoldUp, now: float) -> None:
        if any(rank in self._looking for rank in hold_up.evidence):
            return
        since = hold_up.verifying_since
        assert since is not None
        witness = self._witness(hold_up, since)
        if not hold_up.askers:
            self._close(hold_up.rank)
        elif self._limit_at(hold_up) > now:
            hold_up.verifying_since = None
            self._arm(hold_up, now)
        elif witness is None or not self._is_fresh(hold_up.rank, since):
            self._retry(hold_up, now)
        else:
            self._accuse(hold_up, witness, now)

    def _witness(self, hold_up: HoldUp, since: float) -> int | None:
        """One who was just seen awake and waiting for the accused; those who no longer wait go."""
        found = None
        for asker in list(hold_up.askers)[:WITNESSES_MAX]:
            if not self._is_fresh(asker, since):
                continue
            machine = self._ranks[asker]
            if not machine.waits_for(hold_up.rank):
                del hold_up.askers[asker]
            elif machine.paused_at is None and machine.sample is not None and not machine.sample.paused:
                found = asker
        return found

    def _is_fresh(self, rank: int, since: float) -> bool:
        sampled_at = self._ranks[rank].sampled_at
        return sampled_at is not None and sampled_at >= since

    def _accuse(self, hold_up: HoldUp, witness: int, now: float) -> None:
        rank = hold_up.rank
        wait = self._ranks[witness].wait
        assert wait is not None
        where = f"rank {witness} waits for it in {wait.collective.word} #{wait.seq}"
        if self._ranks[rank].paused_at is not None:
            self._accuse_paused(hold_up, where, now)
        else:
            self._accuse_stuck(hold_up, where, now)

    def _accuse_paused(self, hold_up: HoldUp, where: str, now: float) -> None:
        machine = self._ranks[hold_up.rank]
        assert machine.sample is not None
        assert machine.paused_at is not None
        if not machine.sample.paused:
            # It was resumed a moment ago; the event is under way.
            self._retry(hold_up, now)
            return
        paused_s = now - machine.paused_at
        why = f"paused for {paused_s:.1f} s, limit {self._timeouts.max_pause_s:g} s, and {where}"
        self._findings.append(Accusation((hold_up.rank,), Reason.PAUSED, why))

    def _accuse_stuck(self, hold_up: HoldUp, where: str, now: float) -> None:
        circle = self._circle(hold_up.rank)
        if circle is None:
            # It waits itself, for somebody who does not: that one has a clock of its own.
            hold_up.still_since = now
            hold_up.verifying_since = None
            self._arm(hold_up, now)
            return
        if not all(self._is_overdue(rank, hold_up, now) for rank in circle):
            self._retry(hold_up, now)
            return
        deadlock = self._deadlock(hold_up.rank)
        if deadlock is not None:
            self._findings.append(Accusation(circle, Reason.DESYNC, deadlock))
            return
        still_s = now - hold_up.still_since
        why = f"no movement for {still_s:.1f} s, and {where}"
        if len(circle) > 1:
            names = ", ".join(str(each) for each in circle)
            why = f"the ranks {names} wait for one another, nothing moved for {still_s:.1f} s, and {where}"
        self._findings.append(Accusation(circle, Reason.STUCK, why))

    def _is_overdue(self, rank: int, accused: HoldUp, now: float) -> bool:
        """Whether a member of the circle stands still as long as the accused, as just seen."""
        hold_up = self._hold_ups.get(rank)
        since = accused.verifying_since
        if hold_up is None or since is None or not self._is_fresh(rank, since):
            return False
        return self._limit_at(hold_up) <= now

    def _circle(self, rank: int) -> tuple[int, ...] | None:
        return circle_of(rank, self._ranks, self._hosts)

    def _take(self) -> list[Finding]:
        findings, self._findings = self._findings, []
        return findings
