"""The rendezvous: how the ranks of one epoch become a group.

Rules of this file. Nobody is timed before somebody enters ``init``: a program that never does is no
MLX program, and none of our business. From the first one on, all must join within the start timeout.
``REFUSED`` is final for the epoch. A refusal goes to every host, also to those whose
ranks have not come yet: their agents remember it and pass it on to late comers. After ``OPEN`` a rank that
enters ``init`` again (a script that runs one program after the other) begins the next round: the same
processes, a new group, the same epoch.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from jlaunch.core.actions import Action, FormGroup, OpenGroup, RefuseGroup
from jlaunch.core.events import Event, Loss
from jlaunch.core.machine import Machine
from jlaunch.core.rank import RankMachine


class RendezvousState(enum.Enum):
    """How far the group of an epoch is."""

    EMPTY = enum.auto()
    GATHERING = enum.auto()
    CONNECTING = enum.auto()
    OPEN = enum.auto()
    REFUSED = enum.auto()


class FirstEntered(Event, frozen=True, kw_only=True):
    """A rank entered ``init``: the start timeout runs."""


class AllJoined(Event, frozen=True, kw_only=True):
    """Every rank has offered its address."""


class AllFormed(Event, frozen=True, kw_only=True):
    """Every rank is connected to every other."""


class GroupDoomed(Event, frozen=True, kw_only=True):
    """The group cannot form any more."""

    why: str


TRANSITIONS: dict[tuple[RendezvousState, type[Event]], RendezvousState] = {
    (RendezvousState.EMPTY, FirstEntered): RendezvousState.GATHERING,
    (RendezvousState.GATHERING, AllJoined): RendezvousState.CONNECTING,
    (RendezvousState.CONNECTING, AllFormed): RendezvousState.OPEN,
    (RendezvousState.OPEN, FirstEntered): RendezvousState.GATHERING,
    (RendezvousState.EMPTY, GroupDoomed): RendezvousState.REFUSED,
    (RendezvousState.GATHERING, GroupDoomed): RendezvousState.REFUSED,
    (RendezvousState.CONNECTING, GroupDoomed): RendezvousState.REFUSED,
}


class Rendezvous(Machine[RendezvousState]):
    """The rendezvous of one epoch. ``hosts`` are those that have ranks."""

    def __init__(self, epoch: int, ranks: Sequence[RankMachine], hosts: Sequence[int], now: float) -> None:
        super().__init__(f"rendezvous of epoch {epoch}", RendezvousState.EMPTY, TRANSITIONS, now)
        self._epoch = epoch
        self._ranks = ranks
        self._hosts = hosts
        self._joined: set[int] = set()
        self._formed: set[int] = set()
        self.round = 0
        self.has_opened = False
        self.first_rank: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether ``init`` has returned, or is about to, in every rank."""
        return self.state is RendezvousState.OPEN

    @property
    def is_under_way(self) -> bool:
        """Whether somebody is in ``init`` and the group may still form."""
        return self.state in (RendezvousState.GATHERING, RendezvousState.CONNECTING)

    @property
    def is_undecided(self) -> bool:
        """Whether the group has neither opened nor been refused."""
        return self.state not in (RendezvousState.OPEN, RendezvousState.REFUSED)

    @property
    def has_refused(self) -> bool:
        """Whether ``init`` fails in every rank that comes."""
        return self.state is RendezvousState.REFUSED

    def claimed(self, rank: int, now: float) -> bool:
        """``rank`` entered ``init``; returns whether it is the first of its round."""
        if self.state not in (RendezvousState.EMPTY, RendezvousState.OPEN):
            return False
        self._move(FirstEntered(), now)
        self.first_rank = rank
        self.round += 1
        self._joined.clear()
        self._formed.clear()
        return True

    def joined(self, rank: int, now: float) -> list[Action]:
        """``rank`` offered its address."""
        self._joined.add(rank)
        if self.state is not RendezvousState.GATHERING or len(self._joined) < len(self._ranks):
            return []
        self._move(AllJoined(), now)
        addresses = tuple(rank.address for rank in self._ranks)
        return [FormGroup(host=host, epoch=self._epoch, addresses=addresses) for host in self._hosts]

    def formed(self, rank: int, now: float) -> list[Action]:
        """``rank`` is connected to all others."""
        self._formed.add(rank)
        if self.state is not RendezvousState.CONNECTING or len(self._formed) < len(self._ranks):
            return []
        self._move(AllFormed(), now)
        self.has_opened = True
        return [OpenGroup(host=host, epoch=self._epoch) for host in self._hosts]

    def refuse(self, losses: tuple[Loss, ...], why: str, now: float) -> list[Action]:
        """The group will not form."""
        self._move(GroupDoomed(why=why), now)
        return [RefuseGroup(host=host, epoch=self._epoch, losses=losses, why=why) for host in self._hosts]

    def missing(self) -> tuple[int, ...]:
        """Ranks that have not joined (or, when all have, not connected)."""
        has_come = self._formed if self.state is RendezvousState.CONNECTING else self._joined
        return tuple(rank.rank for rank in self._ranks if rank.rank not in has_come)
