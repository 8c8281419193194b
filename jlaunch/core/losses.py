"""Who is lost, who was told, and the fence that comes first.

Rules of this file. What the survivors are told only grows: every verdict carries all losses of the
epoch so far. A rank that is lost but alive (paused, stuck) reads ``stop`` in its own
block before any survivor reads ``raise``, so that it cannot rise and go on as if nothing had been;
the fence is given up when its host falls silent or does not answer, because then the data segments
of the next epoch, which are fresh, are what protects. A clean loss (exit 0) is told with a short
delay: at the end of a big job a thousand of them come at once, and each alone needs nobody's haste.
Ranks out of step with one another (a desync, a deadlock) are told as the others are: nobody knows which
of them is wrong, all of them are awake, and each may want to save what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jlaunch.core.actions import Action, RecordVerdict, StopRank, WriteVerdict
from jlaunch.core.contract import VerdictKind
from jlaunch.core.events import Loss
from jlaunch.core.machine import Timers
from jlaunch.core.rank import RankMachine

FENCE_TIMEOUT_S = 1.0
"""How long the survivors' verdict waits for the fence; an agent that is heard answers within ms."""

CLEAN_DELAY_S = 0.05
"""Delay of telling clean losses, to gather them."""

_FENCE = "fence"
_CLEAN = "clean"


class Losses:
    """The losses of one epoch."""

    def __init__(
        self,
        epoch: int,
        ranks: Sequence[RankMachine],
        number: Callable[[], int],
        *,
        grace_s: float,
        agents_write: VerdictKind,
    ) -> None:
        """``agents_write`` is what an agent's fast path writes for a loss, by the job's policy."""
        self._epoch = epoch
        self._ranks = ranks
        self._number = number
        self._grace_s = grace_s
        self._agents_write = agents_write
        self._losses: dict[int, Loss] = {}
        self._whys: dict[int, str] = {}
        self._told: dict[int, set[int]] = {}
        self._fences: dict[int, int] = {}
        self._to_stop: list[int] = []
        self._has_news = False
        self._is_urgent = False
        self.timers = Timers()

    @property
    def all(self) -> tuple[Loss, ...]:
        """The losses so far, in order."""
        return tuple(self._losses.values())

    @property
    def unclean(self) -> tuple[Loss, ...]:
        """Those that are not clean ends."""
        return tuple(loss for loss in self._losses.values() if not loss.clean)

    @property
    def fenced(self) -> frozenset[int]:
        """Ranks whose fence is not confirmed yet."""
        return frozenset(self._fences.values())

    def has_told_unclean(self, rank: int) -> bool:
        """Whether ``rank`` was told a loss that raises in it at once."""
        return any(not self._losses[lost].clean for lost in self._told.get(rank, ()) if lost in self._losses)

    def add(self, loss: Loss, why: str, *, told: tuple[int, ...] = ()) -> list[Action]:
        """``loss`` happened; the agent has told the ranks ``told`` already."""
        self._losses[loss.rank] = loss
        self._whys[loss.rank] = why
        self._has_news = True
        self._is_urgent = self._is_urgent or not loss.clean
        if not told:
            return []
        for rank in told:
            self._told.setdefault(rank, set()).add(loss.rank)
        if loss.clean:
            return []
        return [self._record(self._number(), told, f"{why} (told by its agent)", None, self._agents_write)]

    def fence(self, rank: int, now: float) -> list[Action]:
        """``rank`` is lost but alive: stop it before the others hear of it."""
        verdict = self._number()
        self._fences[verdict] = rank
        self._to_stop.append(rank)
        self.timers.set(_FENCE, now + FENCE_TIMEOUT_S)
        why = f"rank {rank} is lost: it must not go on"
        return [
            RecordVerdict(verdict=verdict, kind=VerdictKind.STOP, epoch=self._epoch, ranks=(rank,), why=why),
            WriteVerdict(
                host=self._ranks[rank].host,
                verdict=verdict,
                epoch=self._epoch,
                kind=VerdictKind.STOP,
                ranks=(rank,),
                losses=self.all,
            ),
        ]

    def written(self, verdict: int) -> None:
        """An agent has written ``verdict``."""
        self._fences.pop(verdict, None)

    def unfence(self, rank: int) -> None:
        """``rank`` is gone, or nobody can reach it: no use in waiting."""
        for verdict in [verdict for verdict, each in self._fences.items() if each == rank]:
            del self._fences[verdict]

    def wake(self, now: float) -> None:
        """A moment of ``timers`` has come: ``spread`` follows."""
        while (name := self.timers.pop_due(now)) is not None:
            if name == _FENCE:
                self._fences.clear()
            else:
                self._is_urgent = True

    def spread(self, now: float) -> list[Action]:
        """Tell every survivor of the group what it does not know, as soon as it may be told."""
        if self._fences:
            return []
        self.timers.cancel(_FENCE)
        if not self._has_news:
            return []
        if not self._is_urgent:
            if not self.timers.is_set(_CLEAN):
                self.timers.set(_CLEAN, now + CLEAN_DELAY_S)
            return []
        self.timers.cancel(_CLEAN)
        self._has_news = self._is_urgent = False
        actions = self._tell(self._untold())
        for rank in self._to_stop:
            actions += stop_rank(self._ranks[rank], self._grace_s, now)
        self._to_stop.clear()
        return actions

    def answer(self, rank: int, question: int, why: str) -> list[Action]:
        """Answer a question with the losses, to a rank that should know them already."""
        verdict = self._number()
        self._told.setdefault(rank, set()).update(self._losses)
        return self._raise(verdict, self._ranks[rank].host, (rank,), why, question)

    def _untold(self) -> dict[int, list[int]]:
        """By host: the survivors that do not know all losses."""
        untold: dict[int, list[int]] = {}
        count = len(self._losses)
        for rank in self._ranks:
            if rank.is_told and rank.was_in_group and len(self._told.get(rank.rank, ())) < count:
                untold.setdefault(rank.host, []).append(rank.rank)
        return untold

    def _tell(self, untold: dict[int, list[int]]) -> list[Action]:
        actions: list[Action] = []
        if not untold:
            return actions
        verdict = self._number()
        first = next(iter(untold.values()))[0]
        why = "; ".join(self._whys[lost] for lost in self._news(first)[-_WHY_MAX:])
        if self.unclean:
            # A clean end is no verdict on anybody: nothing for the log of a job that ends well.
            everyone = tuple(rank for ranks in untold.values() for rank in ranks)
            actions.append(self._record(verdict, everyone, why, None))
        for host, ranks in untold.items():
            for rank in ranks:
                self._told.setdefault(rank, set()).update(self._losses)
            actions.append(self._write(verdict, host, tuple(ranks), 0))
        return actions

    def _news(self, rank: int) -> list[int]:
        """The losses that ``rank`` was not told."""
        told = self._told.get(rank, ())
        return [lost for lost in self._losses if lost not in told]

    def _raise(
        self, verdict: int, host: int, ranks: tuple[int, ...], why: str, question: int
    ) -> list[Action]:
        return [self._record(verdict, ranks, why, question), self._write(verdict, host, ranks, question)]

    def _record(
        self,
        verdict: int,
        ranks: tuple[int, ...],
        why: str,
        question: int | None,
        kind: VerdictKind = VerdictKind.RAISE,
    ) -> RecordVerdict:
        return RecordVerdict(
            verdict=verdict,
            kind=kind,
            epoch=self._epoch,
            ranks=ranks,
            why=why,
            losses=self.all,
            question=question,
        )

    def _write(self, verdict: int, host: int, ranks: tuple[int, ...], question: int) -> WriteVerdict:
        return WriteVerdict(
            host=host,
            verdict=verdict,
            epoch=self._epoch,
            kind=VerdictKind.RAISE,
            ranks=ranks,
            losses=self.all,
            question=question,
        )


_WHY_MAX = 4


def stop_rank(rank: RankMachine, grace_s: float, now: float) -> list[Action]:
    """Order the stop of ``rank``, unless it is gone, cannot be killed, or was ordered as hard before."""
    if not rank.can_be_stopped or not rank.stop(grace_s, now):
        return []
    return [StopRank(host=rank.host, rank=rank.rank, epoch=rank.epoch, grace_s=grace_s)]
