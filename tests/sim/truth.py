"""What really happened, and what must never happen: the invariants of the simulation.

The machines know only what they are told; this page knows everything. It is told of every process,
block, verdict and end, and raises ``Violation`` the moment a promise is broken.
"""

from __future__ import annotations

import signal as signals
from typing import TYPE_CHECKING

from jlaunch.core.actions import Action, EndJob, RecordVerdict, WriteBlock
from jlaunch.core.contract import Reason, VerdictKind
from jlaunch.core.events import Loss
from jlaunch.core.spec import Policy

if TYPE_CHECKING:
    from tests.sim.program import SimRank
    from tests.sim.world import World

ANSWER_BOUND_S = 2.1
"""A question is answered within the agent's patience, whoever else is silent, unless it is frozen."""

SLACK_S = 0.5
"""News travel: between what is true and what the supervisor may still believe."""


class Violation(AssertionError):
    """A promise was broken."""


class Truth:
    """The omniscient observer of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults: list[tuple[float, str, tuple[int, ...]]] = []
        self.stop_signal: int | None = None
        self.end: EndJob | None = None
        self.ended_at = 0.0
        self.last_epoch = 0
        self.needs: list[tuple[int, int]] = []
        self.raised_in: set[tuple[int, int]] = set()
        self.keep_waitings = 0
        self._answers: set[tuple[int, int, int]] = set()

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"at {self.world.now:.3f} s: {what}")

    # ---- told by the world -------------------------------------------------------------------------

    def note_fault(self, kind: str, *where: int) -> None:
        """A fault was done."""
        self.faults.append((self.world.now, kind, where))
        self.world.note(f"FAULT {kind} {where}")

    def has_fault(self, *kinds: str) -> bool:
        return any(kind in kinds for _, kind, _ in self.faults)

    def stop_asked(self, signal: int) -> None:
        if self.stop_signal is None:
            self.stop_signal = signal
        self.note_fault("stop", signal)

    def spawning(self, rank: int, epoch: int) -> None:
        """One live process per rank; and a new epoch begins when every old rank is gone."""
        self.last_epoch = max(self.last_epoch, epoch)
        for process in self.world.processes():
            if not process.is_alive or self._sleeps(process):
                continue
            if process.plan.is_unkillable and process.agent.is_gone:
                # Nobody is left there who could tell that it cannot be killed.
                continue
            self._require(process.rank != rank, f"rank {rank} has two live processes")
            what = f"epoch {epoch} begins while rank {process.rank} of epoch {process.epoch} lives"
            self._require(process.epoch == epoch, what)

    def _sleeps(self, process: SimRank) -> bool:
        """On a host that sleeps, or just woke up past its lease and is about to end it."""
        host = process.host
        return host.is_frozen or self.world.now - host.thawed_at < 1.0 + self.world.timeouts.grace_s

    def died(self, process: SimRank) -> None:
        status = process.status
        self.world.note(f"rank  {process.rank} of epoch {process.epoch} ended with {status}")
        if process.question > process.answered and process.kind < VerdictKind.RAISE:
            self._check_answer(process)

    def signalled(self, process: SimRank, number: int) -> None:
        if number in (signals.SIGTERM, signals.SIGKILL):
            process.is_ended_by_us = True

    def asked(self, process: SimRank) -> None:
        self.world.note(f"rank  {process.rank} asks question {process.question}")

    def _check_answer(self, process: SimRank) -> None:
        """The question was (or was not) answered in time."""
        if self.has_fault("freeze agent", "freeze host", "kill agent"):
            return
        if process.losses_are_unclean or process.kind is VerdictKind.STOP:
            return  # that was the answer
        waited_s = self.world.now - process.asked_at
        if process.frozen_at is None and process.thawed_at <= process.asked_at:
            what = f"rank {process.rank}: question {process.question} stood for {waited_s:.2f} s"
            self._require(waited_s <= ANSWER_BOUND_S, what)

    def _cut_s(self) -> float:
        return 0.0 if not self.has_fault("cut", "cut up", "cut down", "lossy") else 1.0

    def written(self, process: SimRank, deed: WriteBlock) -> None:
        """A verdict reached a block."""
        rank, epoch = process.rank, process.epoch
        if process.question > process.answered and (
            deed.question >= process.question or deed.kind is not VerdictKind.KEEP_WAITING
        ):
            self._check_answer(process)
        if deed.kind is VerdictKind.KEEP_WAITING:
            key = (rank, epoch, deed.question)
            self._require(key not in self._answers, f"rank {rank}: question {deed.question} answered twice")
            self._require(deed.question <= process.question, f"rank {rank}: an answer to no question")
            self._answers.add(key)
            self.keep_waitings += 1
        if deed.kind is VerdictKind.RAISE:
            for loss in deed.losses:
                if loss.rank not in process.losses:
                    self._check_loss(loss, epoch)
                    self._check_fence(loss, epoch)
            if any(not loss.clean for loss in deed.losses):
                self.raised_in.add((rank, epoch))

    def _check_loss(self, loss: Loss, epoch: int) -> None:
        """Nobody is told a loss that did not happen."""
        process = self._process(loss.rank, epoch)
        if process is None:
            return
        now, timeouts = self.world.now, self.world.timeouts
        if loss.reason in (Reason.EXITED, Reason.KILLED):
            self._require(not process.is_alive, f"rank {loss.rank} is told lost but lives")
            self._require(loss.clean == (process.status == 0), f"rank {loss.rank}: clean or not?")
            what = f"rank {loss.rank}: completed {process.completed}, told {loss.completed_seq}"
            self._require(loss.completed_seq == process.completed, what)
        elif loss.reason is Reason.PAUSED and process.is_alive:
            frozen_s = process.frozen_s
            if process.frozen_at is not None:
                frozen_s = now - process.frozen_at
            elif now - process.thawed_at > SLACK_S + self._cut_s():
                frozen_s = 0.0
            self._require(frozen_s >= timeouts.max_pause_s - SLACK_S, f"rank {loss.rank} is told paused")
        elif loss.reason is Reason.STUCK and process.kind is not VerdictKind.STOP and process.is_alive:
            still_s = now - process.moved_at
            what = f"rank {loss.rank} is told stuck but moved {still_s:.2f} s ago"
            self._require(still_s >= timeouts.straggler_timeout_s - SLACK_S, what)
        elif loss.reason is Reason.DESYNC:
            is_planted = any(kind == "desync" and loss.rank in where for _, kind, where in self.faults)
            self._require(is_planted, f"rank {loss.rank} is told out of step, but did as the others")
        elif loss.reason is Reason.HOST_LOST:
            what = f"the host of rank {loss.rank} is told lost, but nothing happened to it"
            self._require(self._host_had_fault(process.host.index), what)

    def _check_fence(self, loss: Loss, epoch: int) -> None:
        """Fence first: who is lost but alive has read STOP before the others read RAISE."""
        if loss.reason not in (Reason.PAUSED, Reason.STUCK):
            return
        process = self._process(loss.rank, epoch)
        if process is None or not process.is_alive or process.kind is VerdictKind.STOP:
            return
        host = process.host
        is_away = not host.is_reachable or host.is_frozen or host.agent is None or host.agent.is_frozen
        is_away = is_away or host.agent.is_gone if host.agent is not None else True
        is_away = is_away or self._host_had_fault(host.index)
        self._require(is_away, f"rank {loss.rank} is lost and alive, and not fenced")

    def _host_had_fault(self, host: int) -> bool:
        kinds = (
            "cut",
            "cut up",
            "cut down",
            "lossy",
            "crash host",
            "freeze host",
            "freeze agent",
            "kill agent",
        )
        return any(kind in kinds and where[:1] == (host,) for _, kind, where in self.faults)

    def _process(self, rank: int, epoch: int) -> SimRank | None:
        host = self.world.spec.placement[rank]
        return self.world.hosts[host].processes.get((rank, epoch))

    def needed(self, process: SimRank, loss: Loss) -> None:
        """``process`` raises because it needs a rank that ended well: did it really?"""
        lost = self._process(loss.rank, process.epoch)
        self.needs.append((process.rank, loss.rank))
        if lost is not None:
            what = f"rank {process.rank} raises in #{process.seq}, which rank {loss.rank} had completed"
            self._require(lost.completed < process.seq, what)

    def said(self, action: Action) -> None:
        if isinstance(action, RecordVerdict):
            self._require(bool(action.why), f"a verdict without a reason: {action}")

    # ---- the end -----------------------------------------------------------------------------------

    def ended(self, end: EndJob) -> None:
        """The job's exit code against the truth."""
        self.end = end
        self.ended_at = self.world.now
        last = [process for process in self.world.processes() if process.epoch == self.last_epoch]
        if end.code == 0:
            self._require(not end.cause, f"exit 0 with a cause: {end.cause}")
            everyone = len(last) == self.world.spec.world_size
            self._require(everyone, "exit 0, but not every rank was started")
            for process in last:
                is_well = not process.is_alive and process.status == 0
                self._require(is_well, f"exit 0, but rank {process.rank} ended with {process.status}")
                self._require((process.rank, process.epoch) not in self.raised_in, "exit 0 after a loss")
            self._require(not self.needs or self.last_epoch > 1, f"exit 0, but {self.needs} were needed")
        else:
            self._require(bool(end.cause), "no cause is named")
            self._require(bool(self.faults), f"a job without a fault ended with {end.code}: {end.cause}")
        if self.stop_signal is not None and len(self.faults) == 1:
            what = f"signal {self.stop_signal} led to {end.code}: {end.cause}"
            self._require(end.code in (0, 128 + self.stop_signal), what)
        if end.code and self.world.spec.policy is not Policy.RESTART:
            self._require(self.last_epoch <= 1, "a second epoch without the policy restart")

    def check_nothing_left(self) -> None:
        """Long after the end: every process is gone, except what cannot be killed."""
        for process in self.world.processes():
            if process.is_alive and not process.plan.is_unkillable:
                raise Violation(f"rank {process.rank} of epoch {process.epoch} outlives its job")
