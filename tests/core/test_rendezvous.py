"""The rendezvous of one epoch."""

from __future__ import annotations

import pytest

from jlaunch.core.actions import FormGroup, OpenGroup, RefuseGroup
from jlaunch.core.contract import Reason
from jlaunch.core.errors import InvalidTransition
from jlaunch.core.events import Loss, RankClaimed, RankFormed, RankJoined, RankSpawned
from jlaunch.core.rank import RankMachine
from jlaunch.core.rendezvous import Rendezvous, RendezvousState

LOSS = (Loss(rank=1, reason=Reason.KILLED),)


def pair() -> tuple[list[RankMachine], Rendezvous]:
    ranks = [RankMachine(rank, rank, 1, 0.0) for rank in range(2)]
    for rank in ranks:
        rank.note(RankSpawned(rank=rank.rank, epoch=1, pid=1), 1.0)
    return ranks, Rendezvous(1, ranks, (0, 1), 0.0)


def enter(ranks: list[RankMachine], rendezvous: Rendezvous, rank: int) -> list[object]:
    ranks[rank].note(RankClaimed(rank=rank, epoch=1, pid=1), 2.0)
    rendezvous.claimed(rank, 2.0)
    ranks[rank].note(RankJoined(rank=rank, epoch=1, address=b"a%d" % rank), 2.0)
    return list(rendezvous.joined(rank, 2.0))


def test_all_come_and_the_group_opens() -> None:
    ranks, rendezvous = pair()
    assert rendezvous.is_undecided
    assert enter(ranks, rendezvous, 1) == []
    assert (rendezvous.first_rank, rendezvous.is_under_way, rendezvous.missing()) == (1, True, (0,))
    assert enter(ranks, rendezvous, 0) == [
        FormGroup(host=host, epoch=1, addresses=(b"a0", b"a1")) for host in (0, 1)
    ]
    assert rendezvous.missing() == (0, 1)
    ranks[0].note(RankFormed(rank=0, epoch=1), 3.0)
    assert rendezvous.formed(0, 3.0) == []
    assert rendezvous.missing() == (1,)
    assert rendezvous.formed(1, 3.0) == [OpenGroup(host=host, epoch=1) for host in (0, 1)]
    assert rendezvous.is_open
    assert not rendezvous.is_undecided
    with pytest.raises(InvalidTransition):
        rendezvous.refuse(LOSS, "too late", 4.0)


@pytest.mark.parametrize("how_far", [0, 1, 2])
def test_a_refusal_goes_to_every_host_and_is_final(how_far: int) -> None:
    ranks, rendezvous = pair()
    for rank in range(how_far):
        enter(ranks, rendezvous, rank)
    refusals = rendezvous.refuse(LOSS, "rank 1 was killed", 3.0)
    assert refusals == [
        RefuseGroup(host=host, epoch=1, losses=LOSS, why="rank 1 was killed") for host in (0, 1)
    ]
    assert rendezvous.has_refused
    assert not rendezvous.is_undecided
    assert not rendezvous.claimed(0, 4.0)
    assert rendezvous.joined(0, 4.0) == rendezvous.joined(1, 4.0) == []
    assert rendezvous.formed(0, 4.0) == rendezvous.formed(1, 4.0) == []
    assert rendezvous.state is RendezvousState.REFUSED


def test_after_one_program_the_next_one_begins_another_round() -> None:
    ranks, rendezvous = pair()
    for _ in range(2):
        for rank in (0, 1):
            enter(ranks, rendezvous, rank)
        for rank in (0, 1):
            ranks[rank].note(RankFormed(rank=rank, epoch=1), 3.0)
            rendezvous.formed(rank, 3.0)
    assert (rendezvous.round, rendezvous.is_open) == (2, True)
    enter(ranks, rendezvous, 1)
    assert (rendezvous.round, rendezvous.is_open, rendezvous.has_opened) == (3, False, True)
    assert rendezvous.missing() == (0,)
    assert rendezvous.refuse(LOSS, "rank 0 finished", 4.0)
