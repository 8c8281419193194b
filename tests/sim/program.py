"""Simulated rank processes.

A rank computes, enters a collective, waits for the others, and so on; it obeys its control block as the
backend's poll loop does. What goes wrong with it is written in its ``RankPlan`` or done to it by faults.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from jlaunch.core.actions import FormGroup, OpenGroup, RefuseGroup, WriteBlock
from jlaunch.core.contract import Collective, VerdictKind
from jlaunch.core.events import Loss, Sample, Wait
from jlaunch.core.facts import (
    ClaimDied,
    ClaimTaken,
    DesyncSeen,
    GroupVanished,
    LeftWait,
    ProcessContinued,
    ProcessExited,
    ProcessStopped,
    QuestionFound,
    RankSpoke,
)
from jlaunch.core.messages import Formed, InitFailed, Join, Report
from tests.sim.plan import RankPlan

if TYPE_CHECKING:
    from tests.sim.data_plane import Group
    from tests.sim.hosts import SimAgent


class SimRank:
    """One process. Its facts go to the agent that started it, dead or alive."""

    def __init__(self, agent: SimAgent, rank: int, epoch: int, plan: RankPlan, group: Group) -> None:
        self.agent = agent
        self.host = agent.host
        self.world = agent.world
        self.rank = rank
        self.epoch = epoch
        self.plan = plan
        self.group = group
        self.pid = self.world.next_pid()
        self.is_alive = True
        self.died_at = 0.0
        self.status: int | None = None
        self.is_ended_by_us = False
        self.frozen_at: float | None = None
        self.thawed_at = 0.0
        self.frozen_s = 0.0
        self.has_claim = False
        self.in_group = False
        self.in_wait = False
        self.seq = 0
        self.completed = 0
        self.step = 0
        self.progress = 0
        self.reports = 0
        self.moved_at = self.world.now
        self.progress_at = self.world.now
        self.answered_at = self.world.now
        self.asked_at = 0.0
        self.question = 0
        self.answered = 0
        self.kind = VerdictKind.NONE
        self.losses: dict[int, Loss] = {}
        self.wants_term = False
        self.group_lives = plan.has_grandchild
        self._deferred: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._turn = 0
        self._last_wait: Wait | None = None

    # ---- time --------------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        return self.frozen_at is not None or self.host.is_frozen

    def later(self, delay_s: float, step: Callable[..., None], *args: object) -> None:
        """Do ``step`` after ``delay_s``, when not frozen, unless something else came between."""
        self._turn += 1
        self.world.after(delay_s, self._run, self._turn, step, args)

    def soon(self, delay_s: float, step: Callable[..., None], *args: object) -> None:
        """Do ``step`` beside whatever else goes on."""
        self.world.after(delay_s, self._run, None, step, args)

    def _run(self, turn: int | None, step: Callable[..., None], args: tuple[object, ...]) -> None:
        if not self.is_alive or (turn is not None and turn != self._turn):
            return
        if self.is_frozen:
            self._deferred.append((self._run, (turn, step, args)))
            return
        step(*args)

    def unfreeze_steps(self) -> None:
        deferred, self._deferred = self._deferred, []
        for step, args in deferred:
            self.world.after(0.0, step, *args)

    def fact(self, delay_s: float, fact: object) -> None:
        self.world.after(delay_s, self.agent.feed, fact)

    # ---- its program -------------------------------------------------------------------------------

    def begin(self) -> None:
        plan = self.plan
        if not plan.claims:
            self.later(plan.init_delay_s + plan.compute_s * plan.steps, self.die, plan.exit_status)
        else:
            self.later(plan.init_delay_s, self._claim)

    def _claim(self) -> None:
        self.has_claim = True
        rng = self.world.rng
        self.fact(rng.uniform(0.0, 0.01), ClaimTaken(rank=self.rank, epoch=self.epoch, pid=self.pid))
        self.later(0.005, self._join)

    def _join(self) -> None:
        if self.plan.init_error:
            body: InitFailed | Join = InitFailed(rank=self.rank, epoch=self.epoch, error=self.plan.init_error)
            self.later(0.01, self.die, 1)
        else:
            body = Join(rank=self.rank, epoch=self.epoch, address=b"a%d" % self.rank)
        self.fact(0.001, RankSpoke(body=body))

    def told(self, order: FormGroup | OpenGroup | RefuseGroup) -> None:
        """A rendezvous message arrived at its socket."""
        self.soon(0.001, self._obey_order, order)

    def _obey_order(self, order: FormGroup | OpenGroup | RefuseGroup) -> None:
        if isinstance(order, RefuseGroup):
            if not self.in_group:
                self._fail_or_end()
        elif isinstance(order, FormGroup):
            assert len(order.addresses) == self.group.count
            self.fact(0.001, RankSpoke(body=Formed(rank=self.rank, epoch=self.epoch)))
        elif not self.in_group:
            self.in_group = True
            self.group.ranks[self.rank] = self
            self._compute()

    def _compute(self) -> None:
        plan = self.plan
        self.step += 1
        if self.step > plan.steps:
            self.later(0.01, self.die, plan.exit_status)
        elif self.step == plan.early_exit_step:
            self.later(plan.compute_s, self.die, 0)
        elif self.step == plan.hang_step:
            # Longer than anybody waits for it; but nobody ends a program that holds nobody up.
            self.later(60.0, self._enter)
        elif self.step == plan.late_step:
            if plan.late_reports:
                self._report_for(plan.late_s)
            self.later(plan.late_s, self._enter)
        else:
            self.later(plan.compute_s * self.world.rng.uniform(0.5, 1.5), self._enter)

    def _report_for(self, left_s: float) -> None:
        """It works, slowly, and says so."""
        self.reports += 1
        self.moved_at = self.world.now
        self.fact(0.0, RankSpoke(body=Report(rank=self.rank, epoch=self.epoch, numbers={"step": 1.0})))
        every_s = self.world.timeouts.straggler_timeout_s / 3
        if left_s > every_s:
            self.soon(every_s, self._report_for, left_s - every_s)

    def _enter(self) -> None:
        seq = self.completed + 1
        blocked = [loss for loss in self.losses.values() if not loss.clean or seq > loss.completed_seq]
        if blocked or self.kind is VerdictKind.STOP:
            self.seq = seq
            self._raise(blocked)
            return
        now = self.world.now
        self.seq = seq
        self.in_wait = True
        self.progress += 1
        self.moved_at = self.progress_at = self.answered_at = now
        if self.step == self.plan.desync_step:
            self._meet_desync()
            return
        if self._awaited is not None:
            self.world.truth.note_fault("desync", *range(self.group.count))
            self.group.watch()
            return
        self.group.enter(self, seq)

    @property
    def _awaited(self) -> int | None:
        """In the step of a deadlock: the rank that it wants to receive from."""
        is_there = self.plan.deadlock_step == self.step and self.group.count > 1
        return (self.rank + 1) % self.group.count if is_there else None

    def _meet_desync(self) -> None:
        other = self.group.ranks[(self.rank + 1) % self.group.count]
        if other is None or other is self:
            return
        self.world.truth.note_fault("desync", self.rank, other.rank)
        pair = (self, other) if self.world.rng.random() < 0.5 else (other, self)
        seen = DesyncSeen(rank=pair[0].rank, epoch=self.epoch, peer=pair[1].rank, here="a", there="b")
        pair[0].fact(0.001, seen)

    def deliver(self, seq: int) -> None:
        """All parts of ``seq`` have reached it; it notices when it runs."""
        self.soon(self.world.rng.uniform(0.0, 0.01), self._finish, seq)

    def _finish(self, seq: int) -> None:
        if not self.in_wait or self.seq != seq:
            return
        self.in_wait = False
        self.completed = seq
        self.progress += 1
        self.moved_at = self.world.now
        self._compute()

    # ---- its control block -------------------------------------------------------------------------

    def wait(self) -> Wait | None:
        """As its control block says."""
        return self._wait(self.world.now - self.progress_at) if self.in_wait else None

    def _wait(self, waited_s: float) -> Wait:
        awaited = self._awaited
        return Wait(
            collective=Collective.ALL_SUM if awaited is None else Collective.RECV,
            seq=self.seq,
            size_bytes=1024,
            waited_s=waited_s,
            waiting_for=self.group.waiting_for(self) if awaited is None else (awaited,),
        )

    def sample(self) -> Sample:
        return Sample(
            progress=self.progress,
            reports=self.reports,
            completed_seq=self.completed,
            paused=self.frozen_at is not None,
            output_blocked=False,
            wait=self.wait(),
        )

    def ask(self) -> None:
        """The deadline passed without progress."""
        if self.is_frozen or self.question > self.answered or self.kind is VerdictKind.STOP:
            return
        wait = self.wait()
        assert wait is not None
        self.question += 1
        self.asked_at = self.world.now
        self.world.truth.asked(self)
        question = QuestionFound(rank=self.rank, epoch=self.epoch, question=self.question, wait=wait)
        self.fact(0.001, question)

    def write(self, deed: WriteBlock) -> None:
        """The agent wrote a verdict."""
        if not self.is_alive:
            return
        self.world.truth.written(self, deed)
        if deed.question > self.answered:
            self.answered = deed.question
            self.answered_at = self.world.now
        if deed.kind is VerdictKind.KEEP_WAITING:
            return
        self.kind = max(self.kind, deed.kind)
        self.losses = {loss.rank: loss for loss in deed.losses}
        self.soon(0.0005, self._obey_block)
        if deed.kind is VerdictKind.STOP:
            self.soon(0.001, self._say_left)

    def _say_left(self) -> None:
        if not self.in_wait:
            self.fact(0.0, LeftWait(rank=self.rank, epoch=self.epoch))

    def _obey_block(self) -> None:
        if not self.in_wait:
            return
        if self.kind is VerdictKind.STOP:
            self._leave_wait()
            self.later(0.01, self._stopping)
            return
        blocking = [loss for loss in self.losses.values() if not loss.clean or self.seq > loss.completed_seq]
        if blocking:
            self._raise(blocking)

    def _raise(self, blocking: list[Loss]) -> None:
        if not self.losses_are_unclean:
            for loss in blocking:
                self.world.truth.needed(self, loss)
        self._leave_wait()
        if self.kind is VerdictKind.STOP:
            self.later(0.01, self._stopping)
        else:
            self._fail_or_end()

    @property
    def losses_are_unclean(self) -> bool:
        return any(not loss.clean for loss in self.losses.values())

    def _leave_wait(self) -> None:
        if self.in_wait:
            self._last_wait = self.wait()
        elif self.seq > self.completed:
            self._last_wait = self._wait(0.0)
        self.in_wait = False
        self.moved_at = self.world.now

    def _fail_or_end(self) -> None:
        """``PeerLost`` (or a refused ``init``) in the program."""
        if self.plan.on_loss == "crash":
            self.later(0.01, self.die, 1)
        elif self.plan.on_loss == "run on":
            self.later(2.0, self.die, 0)
        else:
            self.later(0.01, self.die, 0)

    def _stopping(self) -> None:
        """``JobStopping`` in the program: it cleans up and ends, or lingers until SIGTERM, or KILL."""
        if self.plan.obeys_term:
            self.later(0.3, self.die, 1)

    # ---- signals and ends --------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        """A signal to its group."""
        if number == signal.SIGKILL:
            if not self.plan.is_unkillable:
                self.group_lives = False
                self.kill()
        elif number == signal.SIGCONT:
            self.thaw()
        elif number == signal.SIGTERM:
            self.wants_term = True
            self.soon(0.005, self._on_term)

    def _on_term(self) -> None:
        if self.group_lives and self.plan.obeys_term:
            self.group_lives = False
        if self.plan.obeys_term and not self.in_wait:
            self.die(-int(signal.SIGTERM))

    def kill(self) -> None:
        if self.is_alive:
            self._die(-int(signal.SIGKILL))
        else:
            self._vanish_if_empty()

    def die(self, status: int) -> None:
        self._die(status)

    def _die(self, status: int) -> None:
        if not self.is_alive:
            return
        wait = self.wait() or self._last_wait
        self.is_alive = False
        self.frozen_at = None
        self.in_wait = False
        self.status = status
        self.died_at = self.world.now
        self.world.truth.died(self)
        rng = self.world.rng
        if self.has_claim:
            known = status if rng.random() < 0.7 else None
            self.fact(
                0.0002,
                ClaimDied(
                    rank=self.rank, epoch=self.epoch, status=known, completed_seq=self.completed, wait=wait
                ),
            )
        memory_s = rng.choice((0.001, 0.002, 0.1))
        exited = ProcessExited(
            rank=self.rank, epoch=self.epoch, status=status, completed_seq=self.completed, wait=wait
        )
        self.fact(memory_s, exited)
        self.world.after(memory_s + 0.001, self._vanish_if_empty)

    def _vanish_if_empty(self) -> None:
        if not self.is_alive and not self.group_lives:
            self.group_lives = True  # said once
            self.fact(0.001, GroupVanished(rank=self.rank, epoch=self.epoch, tail=("last words",)))

    def freeze(self) -> None:
        """SIGSTOP from somebody."""
        if self.is_alive and self.frozen_at is None:
            self.frozen_at = self.world.now
            self.fact(0.01, ProcessStopped(rank=self.rank, epoch=self.epoch, signal=int(signal.SIGSTOP)))

    def thaw(self) -> None:
        """SIGCONT from somebody."""
        if self.is_alive and self.frozen_at is not None:
            self.frozen_s = self.world.now - self.frozen_at
            self.thawed_at = self.world.now
            self.frozen_at = None
            self.fact(0.01, ProcessContinued(rank=self.rank, epoch=self.epoch))
            self.unfreeze_steps()
