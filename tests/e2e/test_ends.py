"""How a job ends: with which code, in which words, and with nothing left behind. No rank needs MLX."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.harness import Job, wait_gone

pytestmark = pytest.mark.e2e

ENDLESS = ("sh", "-c", "echo up $JLAUNCH_RANK; exec sleep 1000")
DEAF = ("sh", "-c", "trap '' TERM HUP INT; echo up $JLAUNCH_RANK; while :; do sleep 1000; done")


def sh(script: str) -> tuple[str, str, str]:
    """A shell script as a rank's program."""
    return ("sh", "-c", script)


def wait_up(job: Job, ranks: int = 4) -> None:
    """Wait until every rank has said that it is up."""
    job.stdout.wait(lambda lines: sum(b"] up" in line for line in lines) == ranks, what="all ranks up")


def pid_of(job: Job, rank: int) -> int:
    return int(job.wait_event("RankSpawned", rank=rank)["pid"])


def agent_pid(job: Job) -> int:
    return int(job.wait_event("AgentReady")["pid"])


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def guardian_pid(job: Job) -> int:
    return next(
        child
        for child in children_of(agent_pid(job))
        if b"guardian.py" in Path(f"/proc/{child}/cmdline").read_bytes()
    )


def last_word(job: Job) -> str:
    """The last line of jlaunch itself."""
    return job.stderr.all[-1].decode()


# ---- exit codes ----------------------------------------------------------------------------------


def test_hello_with_prefix_and_code_0() -> None:
    with Job(*sh("echo hello from $JLAUNCH_RANK of $JLAUNCH_WORLD_SIZE")) as job:
        assert job.end() == 0, job.describe()
        assert sorted(job.stdout.all) == [b"[%d] hello from %d of 4" % (i, i) for i in range(4)]
        assert job.stderr.all == []
        job.assert_nothing_left()


def test_a_python_file_runs_under_our_python(tmp_path: Path) -> None:
    script = tmp_path / "has space.py"
    script.write_text("import sys; print(sys.argv[1:], sys.executable)")
    with Job(str(script), "--flag", "ü", ranks=1) as job:
        assert job.end() == 0, job.describe()
        import sys

        assert job.stdout.all == [f"[0] ['--flag', 'ü'] {sys.executable}".encode()]


def test_the_code_of_a_rank_that_fails_is_the_jobs() -> None:
    with Job(*sh("[ $JLAUNCH_RANK != 2 ] || { echo why >&2; exit 3; }")) as job:
        assert job.end() == 3, job.describe()
        assert "rank 2" in last_word(job)
        assert "3" in last_word(job)
        assert b"  [2] why" in job.stderr.all
        job.assert_nothing_left()


def test_a_rank_that_is_killed_gives_128_and_the_signal() -> None:
    with Job(*ENDLESS, options=("--grace", "2s", "--on-peer-loss", "stop")) as job:
        wait_up(job)
        os.kill(pid_of(job, 1), signal.SIGKILL)
        assert job.end() == 128 + signal.SIGKILL, job.describe()
        assert "rank 1" in last_word(job)
        assert "SIGKILL" in last_word(job)
        job.assert_nothing_left()


def test_a_program_that_is_not_there_is_refused_in_one_line() -> None:
    with Job("no-such-program") as job:
        assert job.end() == 2
        assert len(job.stderr.all) == 1
        assert b"no-such-program" in job.stderr.all[0]
        job.assert_nothing_left()


def test_a_program_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with Job(str(broken)) as job:
        assert job.end() != 0
        assert str(broken) in last_word(job), job.describe()
        job.assert_nothing_left()


# ---- a person ends it ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)],
)
def test_a_signal_ends_the_job_cleanly_with_its_own_code(number: signal.Signals, code: int) -> None:
    with Job(*sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")) as job:
        wait_up(job)
        job.process.send_signal(number)
        assert job.end() == code, job.describe()
        assert sum(b"] bye" in line for line in job.stdout.all) == 4
        assert re.search(signal.Signals(number).name, last_word(job)), job.describe()
        job.assert_nothing_left()


def test_under_nohup_a_hangup_is_none() -> None:
    """What was ignored at the start stays so, as the user asked."""
    with Job(*ENDLESS, ranks=2, under=("nohup",)) as job:
        wait_up(job, 2)
        job.process.send_signal(signal.SIGHUP)
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == 143, job.describe()
        assert [event["signal"] for event in job.of_kind("StopRequested")] == [15]
        job.assert_nothing_left()


def test_who_ignores_sigterm_is_killed_after_the_grace() -> None:
    with Job(*DEAF, options=("--grace", "1s")) as job:
        wait_up(job)
        job.process.send_signal(signal.SIGTERM)
        assert job.end(20) == 143, job.describe()
        asked = next(event["at"] for event in job.events if event["kind"] == "StopRequested")
        gone = job.of_kind("RankExited")
        assert {event["by"] for event in gone} == {"kill"}
        assert all(0.9 <= event["at"] - asked <= 5 for event in gone)
        job.assert_nothing_left()


def test_a_second_signal_does_not_wait_for_the_grace() -> None:
    with Job(*DEAF, options=("--grace", "60s")) as job:
        wait_up(job)
        job.process.send_signal(signal.SIGINT)
        job.wait_event("StopRequested")
        job.process.send_signal(signal.SIGINT)
        assert job.end(20) == 130, job.describe()
        job.assert_nothing_left()


def test_stopped_ranks_and_grandchildren_end_too() -> None:
    script = "sh -c 'echo up; exec sleep 1000' & setsid sleep 1000 & wait"
    with Job(*sh(script), options=("--grace", "1s")) as job:
        wait_up(job)
        for rank in range(4):
            os.killpg(pid_of(job, rank), signal.SIGSTOP)
        job.wait_events("RankPaused", 4)
        job.process.send_signal(signal.SIGTERM)
        assert job.end(20) == 143, job.describe()
        job.assert_nothing_left()


def test_what_a_rank_leaves_running_ends_with_the_job() -> None:
    with Job(*sh("setsid -f sleep 1000; setsid -f sh -c 'trap \"\" TERM; sleep 1000'"), ranks=2) as job:
        assert job.end(20) == 0, job.describe()
        assert job.stderr.all == [], "the agent itself ended them, nobody had to end the agent"
        job.assert_nothing_left(0.5)


# ---- somebody of ours is killed ------------------------------------------------------------------


def test_nothing_outlives_a_killed_supervisor() -> None:
    with Job(*ENDLESS) as job:
        wait_up(job)
        job.process.kill()
        assert job.end() == -signal.SIGKILL
        job.assert_nothing_left(2.0)


def test_deaf_ranks_do_not_outlive_a_killed_supervisor() -> None:
    with Job(*DEAF, options=("--grace", "1s")) as job:
        wait_up(job)
        job.process.kill()
        job.end()
        job.assert_nothing_left(1.0 + 5.0)


@pytest.mark.parametrize("ranks", [ENDLESS, DEAF], ids=["polite", "deaf"])
def test_a_killed_agent_ends_the_job_as_control_lost(ranks: tuple[str, ...]) -> None:
    with Job(*ranks, options=("--grace", "1s")) as job:
        wait_up(job)
        os.kill(agent_pid(job), signal.SIGKILL)
        assert job.end(20) == 72, job.describe()
        # The end of jlaunch is the end of all: it has waited for the guardian.
        job.assert_nothing_left(0.5)


def test_deaf_ranks_do_not_outlive_supervisor_and_agent_killed_at_once() -> None:
    with Job(*DEAF, options=("--grace", "1s")) as job:
        wait_up(job)
        agent = agent_pid(job)
        os.kill(agent, signal.SIGKILL)
        job.process.kill()
        job.end()
        job.assert_nothing_left(1.0 + 5.0)


def test_a_killed_guardian_is_replaced_and_guards_on() -> None:
    with Job(*DEAF, options=("--grace", "1s")) as job:
        wait_up(job)
        agent, guardian = agent_pid(job), guardian_pid(job)
        os.kill(guardian, signal.SIGKILL)
        wait_gone(guardian, 5)
        job.process.send_signal(signal.SIGCONT)  # nothing ends by a lost guardian
        job.wait_event("HeartbeatArrived", beat=max(e["beat"] for e in job.of_kind("HeartbeatArrived")) + 1)
        assert guardian_pid(job) != guardian
        os.kill(agent, signal.SIGKILL)
        assert job.end(20) == 72, job.describe()
        job.assert_nothing_left(1.0 + 5.0)


# ---- output and input ----------------------------------------------------------------------------


def test_output_is_complete_and_in_order_per_rank() -> None:
    count = 20_000
    with Job(*sh(f"seq {count}; echo -n end")) as job:
        assert job.end() == 0, job.describe()
        for rank in range(4):
            mark = b"[%d] " % rank
            mine = [line[len(mark) :] for line in job.stdout.all if line.startswith(mark)]
            assert mine == [*(b"%d" % i for i in range(1, count + 1)), b"end"]
        assert len(job.stdout.all) == 4 * (count + 1)


def test_a_prompt_is_shown_at_once_and_closed_when_another_rank_prints() -> None:
    asks, answers = "printf 'name? '; read name; echo $name", "read go; echo and on; read hold || exit 0"
    reader, writer = os.pipe()
    command = sh(f"if [ $JLAUNCH_RANK = 0 ]; then {asks}; else {answers}; fi")
    with Job(*command, ranks=2, stdin=subprocess.PIPE, stdout=writer) as job, open(reader, "rb") as screen:
        os.close(writer)
        assert job.process.stdin is not None
        assert screen.read(10) == b"[0] name? "
        job.process.stdin.write(b"bob\n")
        job.process.stdin.close()
        rest = screen.read()
        assert job.end() == 0, job.describe()
        # Whoever is first: the line of the one is never torn by the other's.
        assert rest in (b"bob\n[1] and on\n", b"\n[1] and on\n[0] bob\n")


def test_a_reader_that_takes_nothing_cannot_keep_a_stopped_job() -> None:
    """As under a pager: what it does not take holds the ranks up, but not the end that a person asks for."""
    reader, writer = os.pipe()
    try:
        with Job("yes", ranks=2, stdout=writer, options=("--grace", "1s")) as job:
            os.close(writer)
            job.wait_events("RankSpawned", 2)
            beat = job.wait_event("HeartbeatArrived")["beat"]
            job.wait_event("HeartbeatArrived", beat=beat + 2)
            job.process.send_signal(signal.SIGTERM)
            assert job.process.wait(20) == 143
            job.assert_nothing_left()
    finally:
        os.close(reader)


def test_a_reader_that_leaves_ends_the_job() -> None:
    """As ``jlaunch … | head -1``: nobody wants the rest, and the code is that of SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    with Job("yes", ranks=2, stdout=writer) as job:
        os.close(writer)
        assert job.end() == 128 + signal.SIGPIPE, job.describe()
        job.assert_nothing_left()


def test_logs_and_silence(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = ("--output", "none", "--log-dir", str(logs))
    with Job(*sh("echo out $JLAUNCH_RANK; echo err >&2"), ranks=2, options=options) as job:
        assert job.end() == 0, job.describe()
        assert job.stdout.all == job.stderr.all == []
    found = {path.name: path.read_text() for path in logs.iterdir()}
    expected = {f"rank-{rank}.out": f"out {rank}\n" for rank in range(2)}
    assert found == expected | {f"rank-{rank}.err": "err\n" for rank in range(2)}


def test_stdin_reaches_every_rank_and_ends(tmp_path: Path) -> None:
    typed = b"".join(b"line %d\n" % i for i in range(50_000))
    options = ("--output", "none", "--log-dir", str(tmp_path))
    with Job("cat", ranks=3, stdin=subprocess.PIPE, options=options) as job:
        assert job.process.stdin is not None
        job.process.stdin.write(typed)
        job.process.stdin.close()
        assert job.end() == 0, job.describe()
        for rank in range(3):
            assert (tmp_path / f"rank-{rank}.out").read_bytes() == typed


@pytest.mark.parametrize("mode", ["rank0", "none"])
def test_stdin_for_some(mode: str) -> None:
    with Job("cat", ranks=2, stdin=subprocess.PIPE, options=("--stdin", mode)) as job:
        assert job.process.stdin is not None
        job.process.stdin.write(b"hello\n")
        job.process.stdin.close()
        assert job.end() == 0, job.describe()
        assert job.stdout.all == ([b"[0] hello"] if mode == "rank0" else [])


# ---- looking at it -------------------------------------------------------------------------------


def test_a_job_that_restarts_gets_a_new_agent_for_one_that_was_killed() -> None:
    script = "echo up; [ $JLAUNCH_RESTART_COUNT = 1 ] || exec sleep 1000"
    with Job(*sh(script), ranks=2, options=("--on-peer-loss", "restart", "--grace", "1s")) as job:
        wait_up(job, 2)
        first = agent_pid(job)
        os.kill(first, signal.SIGKILL)
        ready = job.wait_events("AgentReady", 2)
        assert ready[1]["incarnation"] != ready[0]["incarnation"]
        assert job.end() == 0, job.describe()
        gone = job.wait_event("HostSwept")
        again = job.wait_event("RankSpawned", epoch=2)
        assert gone["at"] <= again["at"], "nobody starts before the guardian has swept"
        job.assert_nothing_left()


def test_an_agent_that_is_told_to_end_ends_its_ranks_first() -> None:
    with Job(*sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"), ranks=2) as job:
        wait_up(job, 2)
        os.kill(agent_pid(job), signal.SIGTERM)
        assert job.end(20) == 72, job.describe()
        assert sum(b"] bye" in line for line in job.stdout.all) == 2
        job.assert_nothing_left()


def test_a_restart_finds_fresh_files_and_none_of_the_old(tmp_path: Path) -> None:
    script = 'echo in $JLAUNCH_EPOCH: $(cd "$JLAUNCH_DIR" && ls -d rank-* soft.*); exit $((1 - JLAUNCH_RESTART_COUNT))'
    with Job(*sh(script), ranks=1, options=("--on-peer-loss", "restart")) as job:
        assert job.end() == 0, job.describe()
        assert job.stdout.all == [
            b"[0] in 1: rank-0.e1.block rank-0.e1.stack soft.e1",
            b"[0] in 2: rank-0.e2.block rank-0.e2.stack soft.e2",
        ]
        job.assert_nothing_left()


def test_a_stopped_supervisor_costs_nothing_but_time() -> None:
    """Ctrl-Z of a shell, a debugger: the ranks run on; their output waits."""
    with Job(*sh("echo up; read go; echo went on"), ranks=2, stdin=subprocess.PIPE) as job:
        assert job.process.stdin is not None
        wait_up(job, 2)
        os.kill(job.process.pid, signal.SIGSTOP)
        job.process.stdin.write(b"go\n")
        job.process.stdin.close()
        os.kill(job.process.pid, signal.SIGCONT)
        assert job.end() == 0, job.describe()
        assert sum(b"went on" in line for line in job.stdout.all) == 2
