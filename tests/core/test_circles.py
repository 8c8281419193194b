"""Ranks that wait for one another: what is a deadlock, and what may yet come right."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from jlaunch.core.actions import SampleRanks, StopRank
from jlaunch.core.circles import circle_of, deadlock_in
from jlaunch.core.contract import Collective
from jlaunch.core.events import RankPaused, Wait
from tests.core.driving import TIMEOUTS, Driven, job_spec, of, raises, said

SUM, SEND, RECV = Collective.ALL_SUM, Collective.SEND, Collective.RECV


def wait(kind: Collective, seq: int, *waiting_for: int, group: int = 0) -> Wait:
    return Wait(collective=kind, seq=seq, size_bytes=4, waited_s=1.0, waiting_for=waiting_for, group=group)


def found(waits: Mapping[int, Wait | None]) -> str | None:
    """What the machines of four ranks make of these waits."""
    job = Driven(job_spec(per_host=4)).run()
    for rank, each in waits.items():
        job.look(rank, each)
    ranks, hosts = job.machine.epoch.ranks, job.machine.fleet.machines
    return deadlock_in(circle_of(min(waits), ranks, hosts), ranks)


DEADLOCKS: dict[str, tuple[Mapping[int, Wait | None], str]] = {
    "two that send": (
        {0: wait(SEND, 1, 1), 1: wait(SEND, 1, 0)},
        "rank 0 in send #1 waits for 1, rank 1 in send #1",
    ),
    "two that receive": (
        {0: wait(RECV, 3, 1), 1: wait(RECV, 1, 0)},
        "rank 0 in recv #3 waits for 1, rank 1 in recv",
    ),
    "a ring that receives": (
        {0: wait(RECV, 1, 1), 1: wait(RECV, 1, 2), 2: wait(RECV, 1, 0)},
        "rank 0 in recv #1 waits for 1, rank 1 in recv #1 waits for 2, rank 2 in recv #1 waits for 0",
    ),
    "a collective inside another order": (
        {0: wait(SUM, 9, 1), 1: wait(RECV, 3, 0)},
        "rank 0 in all_sum #9 waits for 1, rank 1 in recv #3 waits for 0",
    ),
    "two numbers": (
        {0: wait(SUM, 9, 1), 1: wait(SUM, 8, 0)},
        "rank 0 in all_sum #9 waits for 1, rank 1 in all_sum #8",
    ),
    "a send to one who receives from another": (
        {0: wait(SEND, 1, 1), 1: wait(RECV, 1, 2), 2: wait(SUM, 4, 0, 1)},
        "rank 2 in all_sum #4 waits for 0, 1",
    ),
}

NONE: dict[str, Mapping[int, Wait | None]] = {
    "one sum, a silent link": {0: wait(SUM, 9, 1), 1: wait(SUM, 9, 0)},
    "a message under way": {0: wait(SEND, 1, 1), 1: wait(RECV, 1, 0)},
    "one outside": {0: wait(SUM, 9, 1), 1: wait(RECV, 1, 2), 2: None},
    "another group": {0: wait(SUM, 9, 1, group=7), 1: wait(RECV, 1, 0)},
    "itself": {0: wait(RECV, 1, 0)},
}


@pytest.mark.parametrize("name", DEADLOCKS)
def test_calls_that_do_not_belong_together_are_a_deadlock(name: str) -> None:
    waits, words = DEADLOCKS[name]
    text = found(waits)
    assert text is not None
    assert text.startswith("deadlock: ")
    assert words in text


@pytest.mark.parametrize("name", NONE)
def test_what_may_yet_come_right_is_none(name: str) -> None:
    assert found(NONE[name]) is None


# ---- in a job ------------------------------------------------------------------------------------

CROSSED = {0: wait(SEND, 1, 1), 1: wait(SEND, 1, 0), 2: wait(SUM, 4, 0, 1)}


def stand_still(job: Driven, span_s: float, waits: dict[int, Wait]) -> None:
    """All ask, and every look finds them as they were."""
    for rank, each in waits.items():
        job.ask(rank, *each.waiting_for, seq=each.seq)
        job.look(rank, each)
    end = job.now + span_s
    while job.now < end:
        for action in of(SampleRanks, job.sleep(0.25)):
            for rank in action.ranks:
                job.look(rank, waits[rank])


def test_a_deadlock_is_named_after_one_more_deadline_and_everybody_is_told_and_lives() -> None:
    job = Driven(job_spec()).run()
    stand_still(job, TIMEOUTS.deadline_s / 2, CROSSED)
    assert raises(job.done) == {}
    stand_still(job, 2 * TIMEOUTS.deadline_s, CROSSED)
    assert raises(job.done) == {0: {0, 1}, 1: {0, 1}, 2: {0, 1}}
    assert of(StopRank, job.done) == []
    assert said(job.done).count("deadlock: rank 0 in send #1 waits for 1, rank 1 in send #1 waits for 0") == 1
    for rank in range(3):
        job.end(rank, 0)
    assert job.ended.code == 76


def test_a_circle_that_moves_is_no_deadlock() -> None:
    job = Driven(job_spec()).run()
    moves = 0
    for rank, each in CROSSED.items():
        job.ask(rank, *each.waiting_for, seq=each.seq)
    for _ in range(60):
        for action in of(SampleRanks, job.sleep(0.25)):
            for rank in action.ranks:
                moves += 1
                job.look(rank, CROSSED[rank], progress=moves)
    assert job.machine.epoch.losses.all == ()


def test_a_circle_with_a_paused_member_is_no_deadlock() -> None:
    job = Driven(job_spec()).run()
    job.hear(RankPaused(rank=1, epoch=1))
    job.ask(0, 1)
    job.look(0, CROSSED[0])
    job.sleep(TIMEOUTS.max_pause_s - 1.0)
    assert job.machine.epoch.losses.all == ()
