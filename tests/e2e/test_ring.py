"""The ring backend as a user sees it: a rank that is killed or paused is named by all, neighbours or not."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.harness import MIB, Job, program

pytestmark = pytest.mark.e2e

RING = ("--backend", "jaccl-ring", "--deadline", "1s")
ENDLESS = 1_000_000


def pid_of(job: Job, rank: int) -> int:
    """Pid of the rank, once all four ranks are in their loop."""
    return next(int(line["pid"]) for line in job.wait_said("up", 4) if line["rank"] == rank)


def test_a_killed_rank_of_a_ring_is_named_by_all() -> None:
    """Rank 0 is no neighbour of rank 2, and still raises PeerLost for it."""
    with Job(*program("sum_loop.py", ENDLESS, MIB), options=RING) as job:
        os.kill(pid_of(job, 2), signal.SIGKILL)
        lost = job.wait_said("lost", 3)
        assert {line["rank"] for line in lost} == {0, 1, 3}
        for line in lost:
            assert line["reasons"] == {"2": "killed"}
        assert job.end() == 137, job.describe()
        job.assert_nothing_left()


def test_a_pause_in_a_ring_is_waited_out() -> None:
    """Everyone waits for a neighbour that waits too: that is no deadlock, and the same bits come out."""
    with Job(*program("sum_loop.py", 60, MIB), options=RING) as job:
        assert job.end() == 0, job.describe()
        undisturbed = {str(line["digest"]) for line in job.said("done")}
    assert len(undisturbed) == 1
    with Job(*program("sum_loop.py", 60, MIB), options=("--on-peer-loss", "wait", *RING)) as job:
        pid = pid_of(job, 2)
        os.kill(pid, signal.SIGSTOP)
        job.wait_event("RankPaused", rank=2, timeout_s=10)
        job.wait_events("RecordVerdict", 6, verdict_kind="keep_waiting")
        os.kill(pid, signal.SIGCONT)
        assert job.end() == 0, job.describe()
        assert {str(line["digest"]) for line in job.said("done")} == undisturbed
        job.assert_nothing_left()
