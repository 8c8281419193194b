"""The guardian on real processes: it ends everything of a job, and nothing else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jlaunch.core import contract
from jlaunch.io import platform
from jlaunch.io.jobs import HostDirectory, JobDirectory, JobRecord
from jlaunch.io.platform import Identity
from jlaunch.runtime import guardian

PATIENCE_S = 20.0
FOR_EVER_S = 3600.0


class Group:
    """A session of its own, as a rank has it; ``said`` is its first line."""

    def __init__(self, script: str, env: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            ["sh", "-c", script], stdout=subprocess.PIPE, env=os.environ | env, start_new_session=True
        )
        assert self.popen.stdout is not None
        self.said = self.popen.stdout.readline().decode().split()
        leader = platform.identify(self.popen.pid)
        assert leader is not None
        self.leader = leader

    @property
    def add(self) -> bytes:
        return b"add %d %d\n" % (self.leader.pid, self.leader.start_time)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.leader.pid, signal.SIGKILL)
        self.popen.communicate()


class Ward:
    """A job's directories, its groups, and its guardian, with the test in the agent's place."""

    def __init__(self, base: Path) -> None:
        self.job = f"test-{base.name}"
        record = JobRecord(
            version=1,
            job=self.job,
            pid=os.getpid(),
            started_at=1.0,
            command=("x",),
            cwd="/",
            world_size=1,
            backend="jaccl",
            policy="raise",
        )
        job_dir = JobDirectory.create(record, str(base))
        self.job_dir = Path(job_dir.path)
        self.supervisor_lock = job_dir._record_fd
        self.host_dir = self.job_dir / "h0"
        (self.host_dir / "soft.e1").mkdir(parents=True, mode=0o700)
        (self.host_dir / "soft.e1" / "queue").write_text("x")
        self.groups: list[Group] = []
        self.guardian: subprocess.Popen[bytes] | None = None

    def command(self, grace_s: float) -> list[str]:
        return guardian.command(
            sys.executable,
            job=self.job,
            host_dir=str(self.host_dir),
            job_dir=str(self.job_dir),
            grace_s=grace_s,
        )

    def start(self, grace_s: float) -> subprocess.Popen[bytes]:
        self.guardian = subprocess.Popen(self.command(grace_s), stdin=subprocess.PIPE, start_new_session=True)
        return self.guardian

    def group(self, script: str, *, token: bool = False) -> Group:
        self.groups.append(Group(script, {contract.ENV_JOB: self.job} if token else {}))
        return self.groups[-1]

    def say(self, *lines: bytes) -> None:
        assert self.guardian is not None
        assert self.guardian.stdin is not None
        self.guardian.stdin.write(b"".join(lines))
        self.guardian.stdin.flush()

    def drop(self) -> int:
        """The agent dies: end of file. Returns the guardian's exit code."""
        assert self.guardian is not None
        assert self.guardian.stdin is not None
        self.guardian.stdin.close()
        return self.guardian.wait(PATIENCE_S)

    def supervisor_dies(self) -> None:
        os.close(self.supervisor_lock)
        self.supervisor_lock = -1

    def close(self) -> None:
        if self.guardian is not None:
            self.guardian.kill()
            self.guardian.wait()
            assert self.guardian.stdin is not None
            self.guardian.stdin.close()
        for group in self.groups:
            group.close()
        if self.supervisor_lock >= 0:
            os.close(self.supervisor_lock)


@pytest.fixture
def ward() -> Iterator[Ward]:
    # Sockets need short paths; pytest's own are long.
    with tempfile.TemporaryDirectory(prefix="jl-") as base:
        ward = Ward(Path(base))
        yield ward
        ward.close()


def wait_for_end(target: Identity) -> None:
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(target.pid)
        try:
            if platform.start_time(target.pid) == target.start_time:
                assert select.select([fd], [], [], PATIENCE_S)[0], f"{target} lives on"
        finally:
            os.close(fd)


def identity(pid: str) -> Identity:
    found = platform.identify(int(pid))
    assert found is not None
    return found


def test_the_token_is_the_contracts() -> None:
    assert contract.ENV_JOB == guardian.TOKEN_VARIABLE


def test_done_leaves_everything_alone(ward: Ward) -> None:
    running = ward.start(FOR_EVER_S)
    group = ward.group("echo up; exec sleep 600", token=True)
    ward.say(group.add, b"done\n")
    assert running.wait(PATIENCE_S) == 0
    assert group.popen.poll() is None
    assert ward.host_dir.exists()


def test_the_agents_end_ends_every_group_at_once_and_removes_the_directory(ward: Ward) -> None:
    ward.start(FOR_EVER_S)
    plain = ward.group("echo up; exec sleep 600")
    stopped = ward.group("echo up; exec sleep 600")
    os.kill(stopped.leader.pid, signal.SIGSTOP)
    # A program that never looks at SIGTERM while it is stopped still gets to clean up.
    tidy = ward.group("trap 'kill $!; exit 3' TERM; echo up; sleep 600 & wait")
    ward.say(plain.add, stopped.add, tidy.add)
    assert ward.drop() == 0
    assert plain.popen.wait(0) == -signal.SIGTERM
    assert stopped.popen.wait(0) == -signal.SIGTERM
    assert tidy.popen.wait(0) == 3
    assert not ward.host_dir.exists()
    assert ward.job_dir.exists(), "its supervisor lives"


def test_what_ignores_sigterm_is_killed_after_the_grace(ward: Ward) -> None:
    ward.start(0.2)
    deaf = ward.group("trap '' TERM; sleep 600 & echo $!; wait")
    child = identity(deaf.said[0])
    ward.say(deaf.add)
    assert ward.drop() == 0
    assert deaf.popen.wait(0) == -signal.SIGKILL
    assert not platform.is_alive(child)


def test_a_group_whose_leader_has_gone_is_ended(ward: Ward) -> None:
    ward.start(FOR_EVER_S)
    group = ward.group("sleep 600 & echo $!; exit 0")
    member = identity(group.said[0])
    group.popen.wait(PATIENCE_S)
    ward.say(group.add)
    assert ward.drop() == 0
    assert not platform.is_alive(member)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell another process's environment")
def test_what_left_its_session_is_found_by_the_token(ward: Ward) -> None:
    ward.start(0.2)
    group = ward.group("setsid sh -c \"trap '' TERM; echo \\$\\$; sleep 600\" & wait", token=True)
    daemon = identity(group.said[0])
    assert os.getsid(daemon.pid) != group.leader.pid
    ward.say(group.add)
    assert ward.drop() == 0
    assert not platform.is_alive(daemon)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no start time without psutil")
def test_a_reused_number_is_a_stranger(ward: Ward) -> None:
    ward.start(0.2)
    stranger = ward.group("echo up; exec sleep 600")
    ours = ward.group("echo up; exec sleep 600")
    ward.say(b"add %d %d\n" % (stranger.leader.pid, stranger.leader.start_time - 1), ours.add)
    assert ward.drop() == 0
    assert ours.popen.wait(0) == -signal.SIGTERM
    assert stranger.popen.poll() is None


def test_a_deleted_group_is_left_alone(ward: Ward) -> None:
    ward.start(0.2)
    gone = ward.group("echo up; exec sleep 600")
    ward.say(gone.add, b"del %d\n" % gone.leader.pid, b"nonsense\n", b"add x y\n", b"del\n")
    assert ward.drop() == 0
    assert gone.popen.poll() is None


def test_signals_to_the_agents_terminal_do_not_end_it(ward: Ward) -> None:
    running = ward.start(FOR_EVER_S)
    group = ward.group("echo up; exec sleep 600")
    ward.say(group.add)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    wait_until_deaf(running.pid, signals)
    for number in signals:
        os.kill(running.pid, number)
    assert ward.drop() == 0
    assert group.popen.wait(0) == -signal.SIGTERM


def wait_until_deaf(pid: int, numbers: tuple[signal.Signals, ...]) -> None:
    """Until it ignores all of these: bits in its own status, set before it listens."""
    bits = sum(1 << (number - 1) for number in numbers)
    give_up_at = time.monotonic() + PATIENCE_S
    fd = os.pidfd_open(pid)
    try:
        while time.monotonic() < give_up_at:
            text = Path(f"/proc/{pid}/status").read_text()
            ignored = int(
                next(line for line in text.splitlines() if line.startswith("SigIgn")).split()[1], 16
            )
            if ignored & bits == bits:
                return
            assert not select.select([fd], [], [], 0.001)[0], "it has ended"
        raise AssertionError("it does not ignore them")
    finally:
        os.close(fd)


def test_the_jobs_directory_goes_with_the_last_of_its_holders(ward: Ward) -> None:
    other = HostDirectory.create(str(ward.job_dir), 1)
    ward.start(FOR_EVER_S)
    ward.supervisor_dies()
    assert ward.drop() == 0
    assert not ward.host_dir.exists()
    assert ward.job_dir.exists(), "an agent of another host lives"
    fcntl.flock(other._lock_fd, fcntl.LOCK_UN)
    ward.start(FOR_EVER_S)
    assert ward.drop() == 0
    assert not ward.job_dir.exists()
    os.close(other._lock_fd)


AGENT = """if True:
    import os, signal, subprocess, sys
    sys.path.insert(0, sys.argv[1])
    from jlaunch.io import process
    reader, writer = os.pipe()
    guard = subprocess.Popen(sys.argv[2:], stdin=reader, start_new_session=True)
    os.close(reader)
    env = dict(os.environ, JLAUNCH_JOB=sys.argv[6])
    child = process.spawn(["sh", "-c", "trap '' TERM; setsid sleep 600 & echo $!; wait"], env)
    os.set_blocking(child.stdout, True)
    daemon = os.read(child.stdout, 100).decode().strip()
    os.write(writer, b"add %d %d\\n" % (child.pid, child.process.start_time))
    print(guard.pid, child.pid, daemon, flush=True)
    signal.pause()
"""

SUPERVISOR = """if True:
    import signal, subprocess, sys
    agent = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
    signal.pause()
"""


@pytest.mark.parametrize("victims", ["agent", "agent and supervisor"])
def test_nothing_is_left_of_an_agent_that_was_killed(ward: Ward, victims: str) -> None:
    root = str(Path(guardian.__file__).parents[2])
    command = [sys.executable, "-c", AGENT, root, *ward.command(0.2)]
    if victims != "agent":
        command = [sys.executable, "-c", SUPERVISOR, AGENT, root, *ward.command(0.2)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert first.stdout is not None
    left = [identity(pid) for pid in first.stdout.readline().decode().split()]
    ward.supervisor_dies()
    os.killpg(first.pid, signal.SIGKILL)
    # End of file: neither the guardian nor any rank holds the agent's output open.
    assert first.stdout.read() == b""
    first.communicate()
    for process in left:
        wait_for_end(process)
    assert not ward.job_dir.exists()


def test_more_processes_than_are_watched_at_once(ward: Ward) -> None:
    ward.start(FOR_EVER_S)
    group = ward.group("i=0; while [ $i -lt 300 ]; do sleep 600 & i=$((i+1)); done; echo up; wait")
    ward.say(group.add)
    assert ward.drop() == 0
    assert platform.group_members(group.leader.pid) == []
