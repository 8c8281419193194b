"""A long run on a busy machine, with pauses under the limit: nobody is ever declared lost.

make soak                    ten minutes
make soak SOAK_S=36000       a night
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.e2e.conftest import burners as burners
from tests.e2e.harness import Job, program

pytestmark = [pytest.mark.soak, pytest.mark.e2e]

SOAK_S = float(os.environ.get("SOAK_S", "600"))
SEED = int(os.environ.get("SOAK_SEED", str(time.time_ns() % 1_000_000)))
RANKS = 4
MAX_PAUSE_S = 4.0
TURNS = 100_000_000


def test_pauses_under_the_limit_and_busy_cores_lose_nobody(burners: Callable[[int], None]) -> None:
    print(f"seed {SEED}, {SOAK_S:g} s")
    chance = random.Random(SEED)
    burners(2 * (os.cpu_count() or 1))
    options = ("--deadline", "1s", "--max-pause", f"{MAX_PAUSE_S:g}s")
    ends_at = time.monotonic() + SOAK_S
    pauses = 0
    with Job(*program("sum_loop.py", TURNS, 1 << 16), ranks=RANKS, options=options) as job:
        pids = {int(line["rank"]): int(line["pid"]) for line in job.wait_said("up", RANKS)}
        while time.monotonic() < ends_at:
            rank = chance.randrange(RANKS)
            os.kill(pids[rank], signal.SIGSTOP)
            pauses += 1
            job.wait_events("RankPaused", pauses)
            pass_time(chance.uniform(0.0, MAX_PAUSE_S / 2))
            os.kill(pids[rank], signal.SIGCONT)
            job.wait_events("RankResumed", pauses)
            pass_time(chance.uniform(0.0, 2.0))
            lost = job.of_kind("RecordVerdict", verdict_kind="raise") + job.of_kind("RankDied")
            assert not lost, f"seed {SEED}, pause {pauses}: {lost}\n{job.describe()}"
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 128 + signal.SIGTERM, job.describe()
    print(f"{pauses} pauses, nobody lost")


def pass_time(seconds: float) -> None:
    """Time goes by, as part of the scenario: nothing is waited for."""
    threading.Event().wait(seconds)
