"""Ranks that wait for one another: circles, and which of them can never end.

Rules of this file. A circle is closed under waiting: whoever a member waits for is a member, and all of
them stand still. In the same collective with the same number that is a silent data link: its members
are partners, and what they wait for may yet come. Where one member waits for another that is in a different
call, nothing can come: the operations of a group are served one at a time, in the order of their tickets,
so whatever that other would do next is behind what it waits in. That is a deadlock, a mistake in the
program. Only for the world group: another group may run on beside it, and bring what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from jlaunch.core.contract import Collective
from jlaunch.core.events import Wait
from jlaunch.core.host import HostMachine
from jlaunch.core.rank import RankMachine

_PARTNER = {Collective.SEND: Collective.RECV, Collective.RECV: Collective.SEND}


def named_in(wait: Wait, ranks: Sequence[RankMachine]) -> list[int]:
    """The ranks that a wait names; what a rank wrote into its block is checked here."""
    return [rank for rank in wait.waiting_for if 0 <= rank < len(ranks)]


def circle_of(
    rank: int, ranks: Sequence[RankMachine], hosts: Sequence[HostMachine]
) -> tuple[int, ...] | None:
    """The ranks that hold one another up, from ``rank`` on; None if somebody outside holds them up.

    A rank outside any collective is a circle of its own.
    """
    if ranks[rank].wait is None:
        return (rank,)
    circle: set[int] = set()
    todo = [rank]
    while todo:
        each = todo.pop()
        if each in circle:
            continue
        wait = ranks[each].wait
        if wait is None or not _stands_still(ranks[each], hosts):
            return None
        circle.add(each)
        todo += named_in(wait, ranks)
    return tuple(sorted(circle))


def deadlock_in(circle: Sequence[int] | None, ranks: Sequence[RankMachine]) -> str | None:
    """Who waits where for whom, if the circle can never end; else None."""
    waits = {rank: ranks[rank].wait for rank in circle or ()}
    members = {rank: wait for rank, wait in waits.items() if wait is not None and wait.group == 0}
    if len(members) < 2 or len(members) < len(waits):
        return None
    pairs = [(rank, other) for rank, wait in members.items() for other in named_in(wait, ranks)]
    if all(
        rank == other or _are_partners(rank, members[rank], other, members[other]) for rank, other in pairs
    ):
        return None
    parts = [
        f"rank {rank} in {_place(wait)} waits for {', '.join(map(str, named_in(wait, ranks)[:_NAMES_MAX]))}"
        for rank, wait in list(members.items())[:_NAMES_MAX]
    ]
    more = f", and {len(members) - _NAMES_MAX} more" if len(members) > _NAMES_MAX else ""
    return f"deadlock: {', '.join(parts)}{more}"


_NAMES_MAX = 4


def _are_partners(rank: int, wait: Wait, other: int, others: Wait) -> bool:
    """Whether ``other`` is in the call that ``rank`` needs it in."""
    partner = _PARTNER.get(wait.collective)
    if partner is not None:
        return others.collective is partner and rank in others.waiting_for
    return others.collective not in _PARTNER and others.seq == wait.seq


def _place(wait: Wait) -> str:
    return f"{wait.collective.word} #{wait.seq}"


def _stands_still(rank: RankMachine, hosts: Sequence[HostMachine]) -> bool:
    return rank.is_survivor and rank.paused_at is None and hosts[rank.host].is_ready
