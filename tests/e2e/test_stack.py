"""Where a rank is that holds the others up: asked of it by a signal, whatever it is doing."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.harness import Job, program

pytestmark = pytest.mark.e2e

RANKS = 3
QUICK = ("--deadline", "300ms", "--grace", "5s")


@pytest.mark.parametrize(
    ("where", "line"), [("sleep", "in nap"), ("native", "in compute"), ("lock", "in deadlock")]
)
def test_a_late_rank_says_where_it_is(where: str, line: str) -> None:
    """Asleep, in native code, or in a lock that nobody frees, while another thread of it lives on."""
    with Job(*program("elsewhere.py", where), ranks=RANKS, options=QUICK) as job:
        taken = job.wait_event("StackTaken")
        assert (taken["rank"], taken["error"]) == (2, ""), job.describe()
        text = "\n".join(taken["lines"])
        assert line in text
        assert "in beat" in text  # the other thread
        job.stderr.wait(
            lambda lines: any(b"rank 2 on 127.0.0.1 is late: elsewhere.py:" in line for line in lines)
        )
        os.kill(job.wait_said("up", RANKS)[0]["pid"], 0)  # nobody was harmed by being asked
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 143, job.describe()


def test_a_python_deadlock_is_found_by_lack_of_progress_with_its_place() -> None:
    options = (*QUICK, "--straggler-timeout", "1s")
    with Job(*program("elsewhere.py", "lock", "catch"), ranks=RANKS, options=options) as job:
        assert job.end() == 74, job.describe()
        assert [line["reasons"] for line in job.said("lost")] == [{"2": "stuck"}] * 2
        last = job.stderr.all[-1].decode()
        assert "it was last seen at elsewhere.py:" in last, job.describe()
        assert "in deadlock" in last
        job.assert_nothing_left()


def test_a_program_with_a_handler_of_its_own_keeps_it() -> None:
    with Job(*program("elsewhere.py", "sleep", "own-handler"), ranks=RANKS, options=QUICK) as job:
        taken = job.wait_event("StackTaken")
        assert taken["lines"] == []
        assert "no handler is armed" in taken["error"]
        assert job.said("urgent") == []
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 143, job.describe()
