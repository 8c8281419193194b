"""The truth table of exit codes: one row for each way to end, and the one line that says why.

Each row is a real job with a real fault in it. The code is that of the root cause, also where the other
ranks caught the error and ended with 0.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.harness import Job, program

pytestmark = pytest.mark.e2e

RANKS = 3
WHO = "rank 1 on 127.0.0.1 "
IMPATIENT = ("--deadline", "300ms", "--straggler-timeout", "500ms", "--grace", "3s")
SLEEPER = ("sh", "-c", "echo up $JLAUNCH_RANK; exec sleep 1000")


def nothing(job: Job) -> None:
    """The program does it by itself."""


def hit(number: int, rank: int = 1) -> Callable[[Job], None]:
    """Send a signal to a rank that sums."""

    def act(job: Job) -> None:
        pids = {line["rank"]: line["pid"] for line in job.wait_said("up", RANKS)}
        os.kill(pids[rank], number)

    return act


def hit_quiet(number: int) -> Callable[[Job], None]:
    """Send a signal to rank 1 of a program without MLX."""

    def act(job: Job) -> None:
        job.stdout.wait(lambda lines: len(lines) == RANKS, what="all ranks up")
        os.kill(job.wait_event("RankSpawned", rank=1)["pid"], number)

    return act


def ask(*numbers: int) -> Callable[[Job], None]:
    """Send signals to jlaunch, each when the one before was taken."""

    def act(job: Job) -> None:
        job.stdout.wait(lambda lines: len(lines) == RANKS, what="all ranks up")
        for count, number in enumerate(numbers, start=1):
            job.process.send_signal(number)
            job.wait_events("StopRequested", count)

    return act


def kill_agent(job: Job) -> None:
    """SIGKILL to the agent."""
    job.stdout.wait(lambda lines: len(lines) == RANKS, what="all ranks up")
    os.kill(job.wait_event("AgentReady")["pid"], signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to end. ``words`` begin the last line ('' for none); ``caught``: what the others were told."""

    name: str
    command: tuple[str, ...]
    code: int
    words: str
    act: Callable[[Job], None] = nothing
    options: tuple[str, ...] = ("--grace", "3s")
    reason: str | None = None


def faulty(fault: str, *words: str) -> tuple[str, ...]:
    return program("faulty.py", fault, *words)


DEAF = ("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done")
DESYNC = "rank {0} and rank {1} do not do the same"

TABLE = (
    Row("all end with 0", faulty("none"), 0, ""),
    Row("a rank exits with a code", faulty("exit-3"), 3, WHO + "exited with code 3"),
    Row("and the others catch it", faulty("exit-3", "catch"), 3, WHO + "exited with code 3", reason="exited"),
    Row("it exits without a word", faulty("exit-now-7", "catch"), 7, WHO + "exited with code 7", reason="exited"),
    Row("a Python error", faulty("error", "catch"), 1, WHO + "exited with code 1", reason="exited"),
    Row("a crash", faulty("segv", "catch"), 139, WHO + "was killed by SIGSEGV", reason="killed"),
    Row("an abort", faulty("abort", "catch"), 134, WHO + "was killed by SIGABRT", reason="killed"),
    Row("it kills itself", faulty("kill"), 137, WHO + "was killed by SIGKILL"),
    Row("it is killed", faulty("loop", "catch"), 137, WHO + "was killed by SIGKILL", hit(9), reason="killed"),
    Row("a quiet rank is terminated", SLEEPER, 143, WHO + "was killed by SIGTERM", hit_quiet(15),
        ("--on-peer-loss", "stop")),
    Row("it is killed under stop", faulty("loop"), 137, WHO + "was killed by SIGKILL", hit(9),
        ("--on-peer-loss", "stop", "--grace", "3s")),
    Row("it is killed under wait", faulty("loop", "catch"), 137, WHO + "was killed by SIGKILL", hit(9),
        ("--on-peer-loss", "wait"), reason="killed"),
    Row("restarts are used up", faulty("exit-3"), 3, WHO + "exited with code 3; its restarts (1) are used up",
        options=("--on-peer-loss", "restart", "--max-restarts", "1", "--grace", "3s")),
    Row("it finishes early", faulty("finish", "catch"), 73, "rank 1 finished while rank ", reason="exited"),
    Row("it returns early", faulty("return", "catch"), 73, "rank 1 finished while rank ", reason="exited"),
    Row("and nobody catches that", faulty("finish"), 73, "rank 1 finished while rank "),
    Row("it is stuck", faulty("wait", "catch"), 74, WHO.strip() + ": ", options=IMPATIENT, reason="stuck"),
    Row("it is paused for too long", faulty("loop", "catch"), 75, WHO.strip() + ": ", hit(signal.SIGSTOP),
        ("--deadline", "300ms", "--grace", "3s"), reason="paused"),
    Row("another call", faulty("other-call"), 76, "rank "),
    Row("another size", faulty("other-size"), 76, "rank "),
    Row("another dtype", faulty("other-dtype"), 76, "rank "),
    Row("one call more", faulty("skip"), 76, "rank "),
    Row("a rank does not come", faulty("late"), 69, "no group within 1 s after rank ",
        options=("--start-timeout", "1s", "--grace", "3s")),
    Row("no such interpreter", ("./broken",), 69, "rank "),
    Row("no such program", ("no-such-program",), 2, "no-such-program: found no such command on PATH"),
    Row("bad input", SLEEPER, 2, "--deadline: found '10', expected a duration", options=("--deadline", "10")),
    Row("Ctrl-C", SLEEPER, 130, "stopped by SIGINT", ask(signal.SIGINT)),
    Row("Ctrl-C twice", DEAF, 130, "stopped by SIGINT", ask(signal.SIGINT, signal.SIGINT), ("--grace", "1000s")),
    Row("SIGTERM", SLEEPER, 143, "stopped by SIGTERM", ask(signal.SIGTERM)),
    Row("SIGHUP", SLEEPER, 129, "stopped by SIGHUP", ask(signal.SIGHUP)),
    Row("SIGQUIT", SLEEPER, 131, "stopped by SIGQUIT", ask(signal.SIGQUIT)),
    Row("control is lost", SLEEPER, 72, "control of 127.0.0.1 lost: ", kill_agent),
)  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row.name.replace(" ", "-") for row in TABLE])
def test_every_way_to_end_has_its_code(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with Job(*row.command, ranks=RANKS, options=row.options) as job:
        row.act(job)
        assert job.end() == row.code, job.describe()
        last = job.stderr.all[-1].decode() if job.stderr.all else ""
        ended = "jlaunch: " if row.code == 2 else f"jlaunch: ended with code {row.code}: "
        assert last.startswith(ended + row.words) if row.words else not last, job.describe()
        if row.reason is not None:
            told = {line["rank"]: line["reasons"] for line in job.said("lost")}
            assert told == {rank: {"1": row.reason} for rank in (0, 2)}, job.describe()
        job.assert_nothing_left()


@pytest.mark.skipif(sys.platform != "linux", reason="ptrace as Linux has it")
def test_a_process_that_cannot_be_killed_is_named_and_the_job_ends() -> None:
    """A tracer that holds a dying process at its exit: no signal ends it, as in a driver that hangs."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    seize, detach, trace_exit = 0x4206, 17, 0x40
    with Job(*SLEEPER, ranks=RANKS, options=("--grace", "500ms")) as job:
        job.stdout.wait(lambda lines: len(lines) == RANKS, what="all ranks up")
        pid = job.wait_event("RankSpawned", rank=1)["pid"]
        assert libc.ptrace(seize, pid, 0, trace_exit) == 0, os.strerror(ctypes.get_errno())
        job.process.send_signal(signal.SIGTERM)
        try:
            assert job.end() == 71, job.describe()
            assert f"rank 1 on 127.0.0.1 (pid {pid}) cannot be killed" in job.stderr.all[-1].decode()
            assert Path(f"/proc/{pid}").exists()
        finally:
            libc.ptrace(detach, pid, 0, 0)
        job.assert_nothing_left()
