"""Ranks that do not do the same: named on both sides, by policy, and never wrong data or a stall."""

from __future__ import annotations

import pytest

from tests.e2e.harness import Job, program

pytestmark = pytest.mark.e2e

RANKS = 4
QUICK = ("--deadline", "300ms", "--grace", "5s")

DESYNCS = {
    "other-call": ("all_sum #9 of 1000 float32", "all_max #9 of 1000 float32"),
    "other-size": ("all_sum #9 of 1000 float32", "all_sum #9 of 999 float32"),
    "other-dtype": ("all_sum #9 of 1000 float32", "all_sum #9 of 1000 int32"),
    "swapped": ("all_sum #9 of 1000 float32", "all_max #9 of 1000 float32"),
    "skip": ("all_sum #9 of 1000 float32", "all_gather #9 of 3 float32"),
}
"""Fault of rank 1 before its ninth sum: what the others are in, what it is in."""


@pytest.mark.parametrize("fault", DESYNCS)
def test_both_calls_are_named_and_everybody_catches_it_and_lives(fault: str) -> None:
    """Also those who are named by nobody; the job's code is 76, although every rank ends with 0."""
    theirs, its = DESYNCS[fault]
    with Job(*program("faulty.py", fault, "catch"), ranks=RANKS, options=QUICK) as job:
        assert job.end() == 76, job.describe()
        lost = {line["rank"]: line for line in job.said("lost")}
        assert sorted(lost) == list(range(RANKS)), job.describe()
        for rank, line in lost.items():
            assert set(line["reasons"].values()) == {"desync"}
            assert str(rank) not in line["reasons"]
        assert lost[0]["reasons"].keys() >= {"1"}
        found = job.of_kind("DesyncFound")
        assert any({event["here"], event["there"]} == {theirs, its} for event in found), job.describe()
        assert all(event["status"] == 0 and event["by"] == "itself" for event in job.of_kind("RankExited"))
        last = job.stderr.all[-1].decode()
        assert theirs in last
        assert its in last
        job.assert_nothing_left()


def test_under_stop_a_desync_stops_the_job() -> None:
    options = (*QUICK, "--on-peer-loss", "stop")
    with Job(*program("faulty.py", "other-call"), ranks=RANKS, options=options) as job:
        assert job.end() == 76, job.describe()
        job.assert_nothing_left()


DEADLOCKS = {
    "send-send": "rank 0 in send #1 waits for 1, rank 1 in send #1 waits for 0",
    "recv-recv": "rank 0 in recv #1 waits for 1, rank 1 in recv #1 waits for 0",
    "send-ring": "rank 0 in send #1 waits for 1, rank 1 in send #1 waits for 2, rank 2 in send #1 waits for 3",
    "recv-ring": "rank 0 in recv #1 waits for 1, rank 1 in recv #1 waits for 2, rank 2 in recv #1 waits for 3",
    "recv-sum": "rank 0 in all_sum #2 waits for 1, rank 1 in recv #1 waits for 0",
}


@pytest.mark.parametrize("kind", DEADLOCKS)
def test_a_deadlock_is_named_with_its_members(kind: str) -> None:
    with Job(*program("crossed.py", kind), ranks=RANKS, options=QUICK) as job:
        assert job.end() == 76, job.describe()
        assert f"deadlock: {DEADLOCKS[kind]}" in job.stderr.all[-1].decode(), job.describe()
        assert len(job.said("lost")) == RANKS, job.describe()
        job.assert_nothing_left()
