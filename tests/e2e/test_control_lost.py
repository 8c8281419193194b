"""Nobody above answers any more, but nobody has died: the lease ends the ranks, wherever the silence is."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.harness import MIB, Job, program, wait_gone
from tests.e2e.test_ends import ENDLESS, agent_pid, pid_of, wait_up

pytestmark = pytest.mark.e2e

LEASE_S = 3.0
GRACE_S = 1.0
OPTIONS = ("--lease", f"{LEASE_S:g}s", "--grace", f"{GRACE_S:g}s", "--host-timeout", "1s", "--deadline", "1s")
BOUND_S = LEASE_S + GRACE_S + 5
"""What is promised for the end of a rank whose parents are silent: lease, grace, and 5 s."""


def test_ranks_do_not_outlive_the_lease_of_a_stopped_supervisor() -> None:
    """SIGSTOP to the launcher: its agent hears nothing, and ends the ranks when the lease lapses."""
    with Job(*ENDLESS, options=OPTIONS) as job:
        wait_up(job)
        pids = [pid_of(job, rank) for rank in range(4)]
        job.process.send_signal(signal.SIGSTOP)
        for pid in pids:
            wait_gone(pid, BOUND_S)
        job.process.send_signal(signal.SIGCONT)
        assert job.end() == 72, job.describe()
        job.assert_nothing_left()


def test_ranks_do_not_outlive_the_lease_of_a_stopped_agent() -> None:
    """SIGSTOP to the agent in the middle of collectives, and a peer that is gone: nobody waits for ever."""
    with Job(*program("sum_loop.py", 1_000_000, MIB), options=OPTIONS) as job:
        pids = {int(line["rank"]): int(line["pid"]) for line in job.wait_said("up", 4)}
        os.kill(agent_pid(job), signal.SIGSTOP)
        os.kill(pids[2], signal.SIGKILL)
        for rank in (0, 1, 3):
            wait_gone(pids[rank], BOUND_S)
        assert job.end() == 72, job.describe()
        job.assert_nothing_left()


def test_a_short_stop_of_the_supervisor_changes_nothing() -> None:
    """SIGSTOP to the launcher for less than the lease: questions are answered by the agent, the job ends well."""
    with Job(*program("late.py", 2, 4), options=("--deadline", "500ms")) as job:
        job.wait_said("up", 4)
        job.process.send_signal(signal.SIGSTOP)
        # The rank that is late speaks when its four seconds are over; nobody reads it meanwhile.
        wait_gone(next(int(line["pid"]) for line in job.said("up") if line["rank"] == 2), 30)
        job.process.send_signal(signal.SIGCONT)
        assert job.end() == 0, job.describe()
        assert len(job.said("done")) == 4
        job.assert_nothing_left()
