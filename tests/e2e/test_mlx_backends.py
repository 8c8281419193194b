"""MLX's own backends under jlaunch: they read no control block, but nobody is left behind and the code is true."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.harness import Job, program

pytestmark = pytest.mark.e2e

RANKS = 3
RING = ("--backend", "ring")


def test_ring_computes_as_under_mlx_launch() -> None:
    with Job(*program("ring_loop.py"), ranks=RANKS, options=(*RING, "--connections-per-ip", "2")) as job:
        assert job.end() == 0, job.describe()
        lines = job.said("up")
        assert sorted(line["rank"] for line in lines) == list(range(RANKS))
        assert all((line["size"], line["total"]) == (RANKS, [3.0, 3.0]) for line in lines)
        job.assert_nothing_left()


def test_ring_of_one() -> None:
    with Job(*program("ring_loop.py"), ranks=1, options=RING) as job:
        assert job.end() == 0, job.describe()
        assert job.said("up")[0]["size"] == 1


@pytest.mark.parametrize("victim", range(RANKS))
def test_ring_without_a_peer_is_ended(victim: int) -> None:
    with Job(*program("ring_loop.py", "loop"), ranks=RANKS, options=RING) as job:
        pids = {line["rank"]: line["pid"] for line in job.wait_said("up", RANKS)}
        os.kill(pids[victim], signal.SIGKILL)
        assert job.end() == 137, job.describe()
        assert f"rank {victim} on 127.0.0.1 was killed by SIGKILL" in job.stderr.all[-1].decode()
        job.assert_nothing_left()


def test_ring_starts_again() -> None:
    with Job(*program("ring_loop.py", "loop"), ranks=2, options=(*RING, "--on-peer-loss", "restart")) as job:
        os.kill(job.wait_said("up", 2)[1]["pid"], signal.SIGKILL)
        job.wait_said("up", 4)
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 143, job.describe()
        job.assert_nothing_left()


def test_nccl_where_mlx_has_none_is_an_error_not_a_group_of_one() -> None:
    with Job(*program("ring_loop.py"), ranks=2, options=("--backend", "nccl")) as job:
        assert job.end() == 1, job.describe()
        assert job.said("up") == []
