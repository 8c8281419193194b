"""Lives of a rank: several programs, one after the other; children; several jobs at the same instant."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import PROGRAMS, Job, program

pytestmark = pytest.mark.e2e

RANKS = 3


def script(path: Path, *lines: str) -> str:
    """A shell script of these lines; ``PY x.py …`` runs a test program."""
    python = f"{shlex.quote(sys.executable)} {shlex.quote(str(PROGRAMS))}/"
    path.write_text("#!/bin/sh\n" + "\n".join(line.replace("PY ", python) for line in lines) + "\n")
    path.chmod(0o755)
    return str(path)


def test_programs_one_after_the_other_are_each_a_group(tmp_path: Path) -> None:
    job_sh = script(
        tmp_path / "job.sh", "PY plain_mlx.py one", "PY plain_mlx.py two", "PY plain_mlx.py three"
    )
    with Job(job_sh, ranks=RANKS) as job:
        assert job.end() == 0, job.describe()
        lines = job.said("sum")
        assert sorted((line["argv"][0], line["rank"]) for line in lines) == sorted(
            (word, rank) for word in ("one", "two", "three") for rank in range(RANKS)
        )
        assert all((line["size"], line["total"]) == (RANKS, [3.0, 3.0]) for line in lines)
        assert {event["epoch"] for event in job.of_kind("RankFormed")} == {1}
        assert len(job.of_kind("RankFormed")) == 3 * RANKS
        job.assert_nothing_left()


def test_a_loss_in_the_second_program_is_told_in_it(tmp_path: Path) -> None:
    job_sh = script(tmp_path / "job.sh", "PY plain_mlx.py one", "PY faulty.py loop catch")
    with Job(job_sh, ranks=RANKS) as job:
        pids = {line["rank"]: line["pid"] for line in job.wait_said("up", RANKS)}
        os.kill(pids[1], signal.SIGKILL)
        job.end()
        told = {line["rank"]: line["reasons"] for line in job.said("lost")}
        assert set(told) == {0, 2}, job.describe()
        assert all(set(reasons) == {"1"} for reasons in told.values())
        job.assert_nothing_left()


def test_a_rank_with_one_program_less_is_named(tmp_path: Path) -> None:
    second = '[ "$JLAUNCH_RANK" = 1 ] || PY plain_mlx.py two'
    job_sh = script(tmp_path / "job.sh", "PY plain_mlx.py one", second)
    with Job(job_sh, ranks=RANKS) as job:
        assert job.end() == 73, job.describe()
        assert "rank 1 finished while rank " in job.stderr.all[-1].decode()
        assert "waits in init" in job.stderr.all[-1].decode()
        assert len(job.said("sum")) == RANKS
        job.assert_nothing_left()


def test_a_crash_in_the_first_program_fails_init_of_the_second(tmp_path: Path) -> None:
    """Nobody hangs: who goes on to the next program is told why there is no group."""
    job_sh = script(tmp_path / "job.sh", "PY faulty.py abort catch", "PY plain_mlx.py two || exit 9")
    with Job(job_sh, ranks=RANKS) as job:
        assert job.end() not in (0, 9), job.describe()
        assert job.said("sum") == []
        assert {line["rank"] for line in job.said("lost")} == {0, 2}
        job.assert_nothing_left()


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_compute_beside_the_rank_and_are_none(method: str) -> None:
    with Job(*program("loaders.py", method), ranks=2) as job:
        assert job.end() == 0, job.describe()
        lines = job.said("loaded")
        assert sorted(line["rank"] for line in lines) == [0, 1]
        assert all(line["batches"] == [0, 1, 4, 9] and line["total"] == 2.0 for line in lines)
        job.assert_nothing_left()


def test_jobs_that_start_at_the_same_instant_never_meet() -> None:
    jobs = [Job(*program("plain_mlx.py", str(number)), ranks=2) for number in range(4)]
    try:
        for number, job in enumerate(jobs):
            assert job.end() == 0, job.describe()
            lines = job.said("sum")
            assert [(line["size"], line["total"], line["argv"]) for line in lines] == [
                (2, [2.0, 1.0], [str(number)])
            ] * 2
            job.assert_nothing_left()
        assert len({job.token() for job in jobs}) == len(jobs)
    finally:
        for job in jobs:
            job.__exit__()
