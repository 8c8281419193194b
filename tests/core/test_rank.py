"""A rank, as the supervisor sees it."""

from __future__ import annotations

from typing import Any

import pytest

from jlaunch.core.contract import Reason
from jlaunch.core.errors import InvalidTransition
from jlaunch.core.events import (
    Loss,
    RankClaimed,
    RankDied,
    RankEvent,
    RankExited,
    RankFormed,
    RankJoined,
    RankPaused,
    RankReported,
    RankResumed,
    RankSampled,
    RankSpawned,
    RankSpawnFailed,
    RankUnkillable,
)
from jlaunch.core.rank import TRANSITIONS, RankMachine, RankState
from tests.core.driving import sample, wait_for

AT: dict[str, Any] = {"rank": 2, "epoch": 1}
SPAWNED = RankSpawned(**AT, pid=7)
CLAIMED = RankClaimed(**AT, pid=8)
JOINED = RankJoined(**AT, address=b"here")
FORMED = RankFormed(**AT)
DIED = RankDied(**AT, status=-9, completed_seq=6, wait=wait_for(1))
EXITED = RankExited(**AT, status=-9, completed_seq=7)


def rank(*events: RankEvent) -> RankMachine:
    machine = RankMachine(2, 0, 1, 0.0)
    for at, event in enumerate(events, 1):
        machine.note(event, float(at))
    return machine


def test_from_its_start_to_its_end() -> None:
    machine = rank(SPAWNED)
    assert (machine.state, machine.pid) == (RankState.RUNNING, 7)
    machine.note(CLAIMED, 2.0)
    assert (machine.state, machine.pid, machine.has_claimed, machine.is_in_init) == (
        RankState.CLAIMED,
        8,
        True,
        True,
    )
    machine.note(JOINED, 3.0)
    assert (machine.address, machine.was_in_group) == (b"here", False)
    machine.note(FORMED, 4.0)
    assert (machine.was_in_group, machine.is_in_init, machine.is_survivor) == (True, False, True)
    machine.note(DIED, 5.0)
    assert (machine.status, machine.completed_seq, machine.wait) == (-9, 6, wait_for(1))
    assert not machine.is_at_work
    machine.note(EXITED, 6.0)
    assert (machine.is_gone, machine.completed_seq, machine.status) == (True, 7, -9)


def test_a_start_that_failed_is_the_end() -> None:
    assert rank(RankSpawnFailed(**AT, error="no")).is_gone


@pytest.mark.parametrize("event", [CLAIMED, JOINED, FORMED, RankUnkillable(**AT, pid=7), DIED])
def test_what_comes_before_its_start_is_not_accepted(event: RankEvent) -> None:
    assert not rank().accepts(event)


@pytest.mark.parametrize("state", RankState)
def test_an_end_is_accepted_from_everywhere_and_is_final(state: RankState) -> None:
    assert ((state, RankExited) in TRANSITIONS) == (state is not RankState.EXITED)
    assert not any(before is RankState.EXITED for before, _ in TRANSITIONS)


def test_a_pause_counts_from_its_first_word() -> None:
    machine = rank(SPAWNED, RankPaused(**AT), RankPaused(**AT))
    assert machine.paused_at == 2.0
    machine.note(RankResumed(**AT), 4.0)
    assert machine.paused_at is None
    machine.note(RankPaused(**AT), 5.0)
    machine.note(DIED, 6.0)
    assert machine.paused_at is None


def test_looks_and_reports_are_kept() -> None:
    look = sample(wait_for(0, 1), progress=3)
    machine = rank(SPAWNED, RankSampled(**AT, sample=look), RankReported(**AT, numbers={"step": 2.0}))
    assert (machine.sample, machine.sampled_at, machine.completed_seq) == (look, 2.0, 4)
    assert machine.waits_for(1)
    assert not machine.waits_for(2)
    assert machine.report == {"step": 2.0}
    assert not rank().waits_for(0)


def test_a_stop_can_only_become_harder() -> None:
    machine = rank(SPAWNED)
    assert not machine.is_stopping
    assert machine.stop(10.0, 2.0)
    assert not machine.stop(10.0, 3.0)
    assert machine.stop(0.0, 4.0)
    assert not machine.stop(10.0, 5.0)
    assert (machine.is_stopping, machine.grace_s, machine.state) == (True, 0.0, RankState.STOPPING)


def test_while_it_stops_only_its_end_is_news() -> None:
    machine = rank()
    machine.stop(1.0, 1.0)
    machine.note(SPAWNED, 2.0)
    assert machine.state is RankState.STOPPING
    assert not machine.accepts(CLAIMED)
    machine.note(DIED, 3.0)
    machine.note(RankUnkillable(**AT, pid=7), 4.0)
    assert (machine.state, machine.can_be_stopped) == (RankState.UNKILLABLE, False)
    machine.note(EXITED, 5.0)
    assert machine.is_gone
    with pytest.raises(InvalidTransition, match="rank 2 of epoch 1 in EXITED"):
        machine.stop(0.0, 6.0)


def test_what_nobody_can_see_is_written_off() -> None:
    machine = rank(SPAWNED)
    machine.write_off(9.0)
    assert (machine.is_gone, machine.is_written_off, machine.status) == (True, True, None)


def test_a_lost_rank_is_no_survivor() -> None:
    machine = rank(SPAWNED)
    machine.lose(Loss(rank=2, reason=Reason.STUCK), 3.0)
    assert (machine.is_survivor, machine.is_at_work, machine.lost_at) == (False, True, 3.0)
