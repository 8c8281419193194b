"""One epoch: its ranks, its rendezvous, its losses, and what went wrong in it.

Rules of this file. Here is judged what a rank's event means: a loss or a clean end, a cause or the
consequence of one. What follows for the job (end it, start again) is the job machine's: it looks at
``trouble`` after each event. An event of another epoch, of a rank on another host than the one that
speaks, or one that the rank's table has no row for never gets here: ``admits`` said no.

A death is a consequence, and nobody's cause, if the rank was told before it that somebody is lost, if its
own stop was ordered, if it was lost already, or if it needed a rank that had finished early. Being told
makes a program exit, or abort; a rank that is killed by any other signal has a cause of its own (a cable
that is pulled crashes two at once). Once the group has failed, only independent losses are added to what
the survivors are told: that one more of them ended is no news to the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jlaunch.core.actions import Action, Say, SpawnRank
from jlaunch.core.cause import REASONS, Cause, CauseKind, Inquest, death_kind, ended_text
from jlaunch.core.contract import Reason
from jlaunch.core.events import (
    DeadlineAsked,
    DesyncFound,
    Event,
    Loss,
    QuestionAnswered,
    RankClaimed,
    RankDied,
    RankEvent,
    RankExited,
    RankFormed,
    RankInitFailed,
    RankJoined,
    RankPaused,
    RankResumed,
    RankSampled,
    RankSpawned,
    RankSpawnFailed,
    StackTaken,
    Wait,
)
from jlaunch.core.host import HostMachine
from jlaunch.core.losses import Losses, stop_rank
from jlaunch.core.policy import Reaction, fast_verdict, reaction
from jlaunch.core.rank import RankMachine, RankState
from jlaunch.core.rendezvous import Rendezvous
from jlaunch.core.spec import JobSpec
from jlaunch.core.start import Start
from jlaunch.core.waits import Waits

_SIGABRT = 6
_FENCED = (Reason.PAUSED, Reason.STUCK)
"""Reasons for which a rank is lost although it lives and can be reached."""
_SETTLED = (RankState.EXITED, RankState.UNKILLABLE)


class Epoch:
    """All ranks of one generation of the group."""

    def __init__(
        self,
        number: int,
        spec: JobSpec,
        hosts: Sequence[HostMachine],
        next_verdict: Callable[[], int],
        now: float,
    ) -> None:
        self.number = number
        self.spec = spec
        self.hosts = hosts
        self.ranks = [RankMachine(rank, host, number, now) for rank, host in enumerate(spec.placement)]
        self.by_host: dict[int, list[RankMachine]] = {}
        for rank in self.ranks:
            self.by_host.setdefault(rank.host, []).append(rank)
        self.beginning = Start(self, now)
        self.losses = Losses(
            number,
            self.ranks,
            next_verdict,
            grace_s=spec.timeouts.grace_s,
            agents_write=fast_verdict(spec.policy),
        )
        self.waits = Waits(self)
        self.inquest = Inquest()
        self.trouble = False
        self.is_draining = False
        self._settled = 0
        self.next_verdict = next_verdict
        self.out: list[Action] = []
        self.now = now

    # ---- what is ---------------------------------------------------------------------------------

    @property
    def rendezvous(self) -> Rendezvous:
        """How far the group of this epoch is."""
        return self.beginning.rendezvous

    @property
    def up_at(self) -> float | None:
        """When every rank had a process; None if not yet."""
        return self.beginning.up_at

    @property
    def is_over(self) -> bool:
        """Whether every rank is gone, or can be waited for no longer."""
        return self._settled == len(self.ranks)

    @property
    def unkillable(self) -> list[RankMachine]:
        """Ranks whose processes cannot be killed."""
        return [rank for rank in self.ranks if rank.state is RankState.UNKILLABLE]

    def living(self, host: int) -> tuple[int, ...]:
        """Ranks of ``host`` that are not known to be gone."""
        return tuple(rank.rank for rank in self.by_host.get(host, ()) if not rank.is_gone)

    def name(self, rank: int) -> str:
        """The rank, as people are told of it."""
        return f"rank {rank} on {self.hosts[self.ranks[rank].host].spec.name}"

    def admits(self, event: RankEvent, host: int) -> bool:
        """Whether ``event``, said by the agent of ``host``, is one for this epoch and this rank."""
        if event.epoch != self.number or not 0 <= event.rank < len(self.ranks):
            return False
        rank = self.ranks[event.rank]
        if rank.host != host:
            return False
        if isinstance(event, DeadlineAsked | DesyncFound):
            return rank.is_survivor and rank.was_in_group
        if isinstance(event, QuestionAnswered | StackTaken):
            return not rank.is_gone
        if isinstance(event, RankInitFailed):
            return rank.is_in_init and rank.loss is None
        return rank.accepts(event)

    def next_deadline(self) -> float | None:
        """The earliest moment of this epoch and its parts."""
        moments = (self.beginning.times_out_at, self.losses.timers.next(), self.waits.detector.timers.next())
        return min((at for at in moments if at is not None), default=None)

    # ---- doors -----------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """Spawn every rank."""
        return [
            SpawnRank(host=rank.host, rank=rank.rank, epoch=self.number, restart_count=self.number - 1)
            for rank in self.ranks
        ]

    def handle(self, event: RankEvent, now: float) -> list[Action]:
        """An event that was admitted."""
        self.now = now
        machine = self.ranks[event.rank]
        was_settled = machine.state in _SETTLED
        if machine.accepts(event):
            machine.note(event, now)
        self._settled += int(machine.state in _SETTLED) - int(was_settled)
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)
        return self._finish()

    def verdict_written(self, verdict: int, now: float) -> list[Action]:
        """An agent has written a verdict."""
        self.now = now
        self.losses.written(verdict)
        return self._finish()

    def note_waits(self, host: int, waits: dict[int, Wait], now: float) -> list[Action]:
        """What a heartbeat says of the local ranks."""
        self.now = now
        for rank in self.by_host.get(host, ()):
            if rank.is_at_work:
                wait = waits.get(rank.rank)
                rank.note_wait(wait, now)
                if wait is not None and wait.group == 0:
                    self.waits.judge_need(rank.rank, wait)
        return self._finish()

    def host_changed(self, host: int, is_heard: bool, now: float) -> list[Action]:
        """A host fell silent or spoke again."""
        self.now = now
        for rank in self.by_host.get(host, ()):
            if not is_heard:
                self.losses.unfence(rank.rank)
            self.waits.host_changed(rank.rank, now)
        if is_heard:
            self.beginning.be_patient(now)
        return self._finish()

    def host_lost(self, host: int, kind: CauseKind, why: str, now: float) -> list[Action]:
        """A host was given up, and its living ranks with it."""
        self.now = now
        lost = [rank for rank in self.by_host.get(host, ()) if not rank.is_gone]
        for rank in lost:
            self.losses.unfence(rank.rank)
            self.waits.detector.forget(rank.rank)
        lost = [rank for rank in lost if rank.loss is None and not rank.is_stopping]
        if lost and not self.is_draining:
            text = f"{'control of' if kind is CauseKind.CONTROL_LOST else 'host'} "
            text += f"{self.hosts[host].spec.name} lost: {why}"
            self.record(kind, text, tuple(rank.rank for rank in lost))
            self.lose([rank.rank for rank in lost], REASONS[kind], text)
        return self._finish()

    def write_off(self, ranks: Sequence[int], now: float) -> None:
        """These are as good as gone."""
        for rank in ranks:
            machine = self.ranks[rank]
            if machine.state not in _SETTLED:
                machine.write_off(now)
                self._settled += 1
            self.waits.detector.forget(rank)

    def blame(self, kind: CauseKind, text: str, now: float, *, status: int | None = None) -> list[Action]:
        """Something outside the ranks went wrong, or a person asked for the end."""
        self.now = now
        self.record(kind, text, (), status=status)
        return self._finish()

    def tails(self, *, everyone: bool) -> dict[int, tuple[str, ...]]:
        """Last lines of stderr of the ranks to blame; of all others too, if ``everyone`` is asked for."""
        blamed = self.inquest.blamed_ranks()
        ranks = dict.fromkeys((*blamed, *range(len(self.ranks)))) if everyone else blamed
        exits = {rank: self.ranks[rank].exit for rank in ranks}
        return {rank: seen.tail for rank, seen in exits.items() if seen is not None and seen.tail}

    def check(self) -> None:
        """Assert what must always hold."""
        settled = sum(rank.state in _SETTLED for rank in self.ranks)
        assert settled == self._settled
        for fenced in self.losses.fenced:
            assert self.ranks[fenced].loss is not None
        assert not self.out

    def forgive(self) -> None:
        """Forget the causes: they are about to be mended, or something else counts."""
        self.inquest = Inquest()

    def drain(self, grace_s: float, now: float, *, is_unborn: bool = False) -> list[Action]:
        """Stop every rank that is left, those that are lost first; ``is_unborn``: nobody was spawned."""
        self.now = now
        self.is_draining = True
        self.trouble = False
        self.quiet()
        if is_unborn:
            self.write_off(range(len(self.ranks)), now)
        actions: list[Action] = []
        for rank in sorted(self.ranks, key=lambda rank: rank.loss is None):
            actions += stop_rank(rank, grace_s, now)
        return actions

    def quiet(self) -> None:
        """Nothing that could happen from here on needs to be awaited."""
        self.beginning.times_out_at = None
        self.waits.detector.timers.clear()
        self.losses.timers.clear()

    def wake(self, now: float) -> list[Action]:
        """A moment of this epoch or of its parts has come."""
        self.now = now
        self.beginning.wake(now)
        self.losses.wake(now)
        self.waits.wake(now)
        return self._finish()

    # ---- ends ------------------------------------------------------------------------------------

    def _on_died(self, event: RankDied) -> None:
        self._note_death(event, event.clean or event.status == 0, event.told)

    def _on_exited(self, event: RankExited) -> None:
        machine = self.ranks[event.rank]
        self.losses.unfence(event.rank)
        death = machine.death
        if death is None:
            self._note_death(event, event.status == 0, ())
            return
        text = f"{self.name(event.rank)} {ended_text(event.status)}"
        if event.status == 0:
            return
        if event.by == "itself":
            self.inquest.amend(event.rank, event.status, text)
        was_clean = machine.loss is not None and machine.loss.clean
        if was_clean and event.by == "itself" and not self._is_consequence(event.rank, event.status):
            # The part that was in the group ended well, what was wrapped around it did not.
            self.record(death_kind(event.status), text, (event.rank,), status=event.status)

    def _note_death(self, event: RankDied | RankExited, is_clean: bool, told: tuple[int, ...]) -> None:
        rank = event.rank
        machine = self.ranks[rank]
        self.waits.detector.forget(rank)
        self.losses.unfence(rank)
        if event.status and not machine.is_stopping:
            self.inquest.amend(rank, event.status, f"{self.name(rank)} {ended_text(event.status)}")
        if machine.is_stopping or machine.loss is not None:
            return
        if event.wait is not None:
            self.waits.judge_need(rank, event.wait)
        text = f"{self.name(rank)} {ended_text(event.status)}"
        if is_clean:
            self.lose((rank,), Reason.EXITED, text, is_clean=True, told=told)
            return
        kind = death_kind(event.status)
        if self._is_consequence(rank, event.status):
            machine.lose(Loss(rank=rank, reason=REASONS[kind], completed_seq=machine.completed_seq), self.now)
            return
        self.record(kind, text, (rank,), status=event.status)
        self.lose((rank,), REASONS[kind], text, told=told)

    def _is_consequence(self, rank: int, status: int | None) -> bool:
        if self.is_draining or self.waits.is_needy(rank):
            return True
        if status is not None and status < 0 and status != -_SIGABRT:
            return False
        has_refusal = self.rendezvous.has_refused and self.ranks[rank].has_claimed
        return has_refusal or self.losses.has_told_unclean(rank)

    # ---- losses ----------------------------------------------------------------------------------

    def lose(
        self,
        ranks: Sequence[int],
        reason: Reason,
        why: str,
        *,
        is_clean: bool = False,
        told: tuple[int, ...] = (),
    ) -> None:
        """``ranks`` are lost to the others, who hear of all of them at once; fences come first."""
        new = [self.ranks[rank] for rank in ranks if self.ranks[rank].loss is None]
        for machine in new:
            rank = machine.rank
            loss = Loss(rank=rank, reason=reason, completed_seq=machine.completed_seq, clean=is_clean)
            machine.lose(loss, self.now)
            self.waits.detector.forget(rank)
            if not is_clean or not self.losses.unclean:
                self.out += self.losses.add(loss, why, told=told)
        if new:
            self.beginning.lost(new[0].rank, why, self.now, is_clean=is_clean)
        if reason in _FENCED and not self.trouble:
            for machine in new:
                if machine.is_at_work:
                    self.out += self.losses.fence(machine.rank, self.now)

    def record(
        self, kind: CauseKind, text: str, ranks: tuple[int, ...], *, status: int | None = None
    ) -> None:
        """A cause that is nobody's consequence; trouble, if the policy says so."""
        self.inquest.record(Cause(kind=kind, at=self.now, text=text, ranks=ranks, status=status))
        is_end = reaction(self.spec.policy, kind) is Reaction.END
        # The end of the job, or of the epoch, tells its cause again.
        self.out.append(Say(level="info" if is_end else "note", text=text))
        self.trouble = self.trouble or (is_end and not self.is_draining)

    def _finish(self) -> list[Action]:
        if self.rendezvous.has_opened and not self.trouble and not self.is_draining:
            self.out += self.losses.spread(self.now)
        out, self.out = self.out, []
        return out


def _to_start(handler: Callable[[Start, Any, float], None]) -> Callable[[Epoch, Any], None]:
    return lambda epoch, event: handler(epoch.beginning, event, epoch.now)


def _to_waits(handler: Callable[[Waits, Any, float], None]) -> Callable[[Epoch, Any], None]:
    return lambda epoch, event: handler(epoch.waits, event, epoch.now)


_HANDLERS: dict[type[Event], Callable[..., None]] = {
    RankSpawned: _to_start(Start.spawned),
    RankSpawnFailed: _to_start(Start.spawn_failed),
    RankClaimed: _to_start(Start.claimed),
    RankJoined: _to_start(Start.joined),
    RankFormed: _to_start(Start.formed),
    RankInitFailed: _to_start(Start.init_failed),
    RankPaused: _to_waits(Waits.paused),
    RankResumed: _to_waits(Waits.resumed),
    RankSampled: _to_waits(Waits.sampled),
    StackTaken: _to_waits(Waits.stack_taken),
    RankDied: Epoch._on_died,
    RankExited: Epoch._on_exited,
    DeadlineAsked: _to_waits(Waits.asked),
    QuestionAnswered: _to_waits(Waits.answered),
    DesyncFound: _to_waits(Waits.desync),
}
"""What each event of a rank means; those missing here are only taken note of."""
