"""The process port on real processes: clean starts with a cause when they fail, and no stranger signalled."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jlaunch.core.contract import ENV_EPOCH, ENV_JOB, ENV_RANK
from jlaunch.io import platform, process
from jlaunch.io.platform import Identity
from jlaunch.io.process import Child, Continued, Exited, Stopped

PATIENCE_S = 20.0
ENV = {"PATH": os.environ["PATH"]}

Spawn = Callable[..., Child]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """``process.spawn``, with everything it started ended and reaped after the test."""
    children: list[Child] = []

    def start(*argv: str, env: dict[str, str] = ENV, cwd: str | None = None, stdin: bool = True) -> Child:
        children.append(process.spawn(argv, env, cwd=cwd, stdin=stdin))
        return children[-1]

    yield start
    for child in children:
        process.signal_group(child.process, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.pid, 0)
        for fd in (child.stdin, child.stdout, child.stderr, child.spawn_status):
            with contextlib.suppress(OSError):
                os.close(fd if fd is not None else -1)


def read_to_end(fd: int) -> bytes:
    """All that comes until the end of file, with a bound on each silence."""
    data = b""
    while True:
        assert select.select([fd], [], [], PATIENCE_S)[0], f"silence after {data!r}"
        chunk = os.read(fd, 65536)
        if not chunk:
            return data
        data += chunk


def read_line(fd: int) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        assert select.select([fd], [], [], PATIENCE_S)[0], f"silence after {data!r}"
        chunk = os.read(fd, 1)
        assert chunk, f"end after {data!r}"
        data += chunk
    return data


def start_result(child: Child, argv: list[str], cwd: str | None = None) -> OSError | None:
    assert select.select([child.spawn_status], [], [], PATIENCE_S)[0]
    return process.spawn_error(child, argv, cwd)


def wait_for_end(target: Identity) -> None:
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(target.pid)
        try:
            if platform.start_time(target.pid) == target.start_time:
                assert select.select([fd], [], [], PATIENCE_S)[0], f"{target} lives on"
        finally:
            os.close(fd)


# ---- starting ------------------------------------------------------------------------------------


def test_a_program_runs_with_exactly_what_it_was_given(spawn: Spawn, tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-I",
        "-c",
        "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get('X'), sys.stdin.read()]))",
        "a b",
        "quote'\"$x",
        "new\nline",
        "\udcff",
    ]
    child = spawn(*argv, env=ENV | {"X": "ünï \n $y"}, cwd=str(tmp_path))
    assert child.stdin is not None
    os.write(child.stdin, b"hello")
    os.close(child.stdin)
    assert start_result(child, argv) is None
    assert json.loads(read_to_end(child.stdout)) == [argv[4:], str(tmp_path), "ünï \n $y", "hello"]
    assert read_to_end(child.stderr) == b""


@pytest.mark.parametrize("stdin", [True, False])
def test_a_program_starts_clean(spawn: Spawn, stdin: bool) -> None:
    code = """if True:
        import json, os, signal
        fds = sorted(int(name) for name in os.listdir('/proc/self/fd'))
        ignored = [n for n in range(1, 65) if n not in (32, 33) and signal.getsignal(n) is signal.SIG_IGN]
        blocked = list(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        print(json.dumps([fds[:-1], ignored, blocked, os.getsid(0) == os.getpid() == os.getpgrp()]))
    """
    stray = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(stray, True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        child = spawn(sys.executable, "-I", "-S", "-c", code, stdin=stdin)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGHUP, before)
        os.close(stray)
    fds, ignored, blocked, leader = json.loads(read_to_end(child.stdout))
    assert fds == [0, 1, 2]
    # What CPython itself ignores in every process.
    assert set(ignored) <= {signal.SIGPIPE, signal.SIGXFSZ}
    assert blocked == []
    assert leader


def test_our_ends_are_ours_alone_and_never_block(spawn: Spawn) -> None:
    child = spawn("sleep", "60")
    for fd in (child.stdin, child.stdout, child.stderr, child.spawn_status):
        assert fd is not None
        assert not os.get_inheritable(fd)
        assert not os.get_blocking(fd)


@pytest.mark.parametrize(
    ("name", "mode", "error"),
    [("missing", None, FileNotFoundError), ("forbidden", 0o600, PermissionError)],
)
def test_a_program_that_cannot_run_says_why(
    spawn: Spawn, tmp_path: Path, name: str, mode: int | None, error: type[OSError]
) -> None:
    program = tmp_path / name
    if mode is not None:
        program.write_text("#!/bin/sh\n")
        program.chmod(mode)
    child = spawn(str(program))
    found = start_result(child, [str(program)])
    assert isinstance(found, error)
    assert found.filename == str(program)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 127


def test_a_missing_directory_is_named(spawn: Spawn, tmp_path: Path) -> None:
    cwd = str(tmp_path / "none")
    child = spawn("true", cwd=cwd)
    found = start_result(child, ["true"], cwd)
    assert isinstance(found, FileNotFoundError)
    assert found.filename == cwd


def test_the_path_of_the_ranks_own_environment_counts(spawn: Spawn, tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("echo found\n")  # and, as a shell would: no #! needed
    program.chmod(0o700)
    child = spawn("only-here", env={"PATH": str(tmp_path)})
    assert start_result(child, ["only-here"]) is None
    assert read_to_end(child.stdout) == b"found\n"


def test_spawn_error_is_not_asked_too_early(spawn: Spawn, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = Child(
        process=Identity(1, 1),
        stdin=None,
        stdout=-1,
        stderr=-1,
        spawn_status=os.open(fifo, os.O_RDWR | os.O_NONBLOCK),
    )
    with pytest.raises(BlockingIOError):
        process.spawn_error(child, ["x"])
    os.close(child.spawn_status)


def test_no_descriptor_is_left_when_the_shim_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(process, "SHIM", "/nonexistent/jlaunch-shim")
    with pytest.raises(FileNotFoundError):
        process.spawn(["true"], ENV)
    assert os.listdir("/proc/self/fd") == before


def test_a_rank_ends_with_the_agent_that_started_it(tmp_path: Path) -> None:
    code = """if True:
        import sys
        sys.path.insert(0, sys.argv[1])
        from jlaunch.io import process
        child = process.spawn(["sleep", "60"], {"PATH": "/usr/bin:/bin"})
        print(child.pid, child.process.start_time, flush=True)
        sys.stdin.read()
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(process.__file__)))
    agent = subprocess.Popen(
        [sys.executable, "-c", code, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    pid, started = map(int, agent.stdout.readline().split())
    assert platform.is_alive(Identity(pid, started))
    agent.kill()
    agent.communicate()
    wait_for_end(Identity(pid, started))


def test_nothing_is_started_for_a_parent_that_is_gone(tmp_path: Path) -> None:
    report, write = os.pipe()
    done = subprocess.run(
        [process.SHIM, "--parent", "1", "--status", str(write), "--", "touch", str(tmp_path / "started")],
        pass_fds=[write],
    )
    os.close(write)
    assert done.returncode == 127
    assert struct.unpack("=ii", os.read(report, 8))[0] == 1
    os.close(report)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "options",
    [[], ["--"], ["--cwd"], ["--status", "1", "--", "true"], ["--parent", "x", "--", "true"], ["true"]],
)
def test_the_shim_refuses_bad_usage(options: list[str]) -> None:
    done = subprocess.run([process.SHIM, *options], capture_output=True)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: jlaunch-shim")


# ---- what becomes of them ------------------------------------------------------------------------


def test_ends_stops_and_continues_are_told(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "read line; exit 7")
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    # Until it is reaped the stop shows where an exit code would.
    assert platform.early_status(child.pid) is None
    assert process.reap() == [Stopped(child.pid, signal.SIGSTOP)]
    assert platform.is_stopped(child.pid)
    os.kill(child.pid, signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT)
    assert process.reap() == [Continued(child.pid)]
    assert not platform.is_stopped(child.pid)
    assert child.stdin is not None
    os.write(child.stdin, b"\n")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert platform.early_status(child.pid) == 7
    assert platform.identify(child.pid) == child.process
    assert not platform.is_alive(child.process)
    assert process.reap() == [Exited(child.pid, 7)]
    assert platform.identify(child.pid) is None
    assert process.reap() == []


def test_a_killing_signal_is_told_as_a_negative_number(spawn: Spawn) -> None:
    child = spawn("sleep", "60")
    assert process.signal_process(child.process, signal.SIGTERM)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert platform.early_status(child.pid) == -signal.SIGTERM
    assert process.reap() == [Exited(child.pid, -signal.SIGTERM)]


# ---- signals -------------------------------------------------------------------------------------


def test_a_stranger_with_a_known_number_is_never_signalled(spawn: Spawn) -> None:
    child = spawn("sleep", "60")
    ours_before = Identity(child.pid, child.process.start_time - 1)
    assert not process.signal_process(ours_before, signal.SIGKILL)
    assert not process.signal_group(ours_before, signal.SIGKILL)
    assert not process.has_group(ours_before)
    process.signal_all([ours_before], signal.SIGKILL)
    assert platform.is_alive(child.process)
    assert process.signal_group(child.process, signal.SIGKILL)


def test_a_group_is_signalled_also_without_its_leader(spawn: Spawn) -> None:
    child = spawn("sh", "-c", "sleep 60 & echo $!; exit 0", stdin=False)
    member = platform.identify(int(read_line(child.stdout)))
    assert member is not None
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.reap() == [Exited(child.pid, 0)]
    assert process.has_group(child.process)
    assert member in platform.group_members(child.pid)
    assert process.signal_group(child.process, signal.SIGKILL)
    wait_for_end(member)
    assert platform.group_members(child.pid) == []


def test_descendants_are_found_wherever_they_went(spawn: Spawn) -> None:
    job = f"test-{os.getpid()}"
    env = ENV | {ENV_JOB: job, ENV_RANK: "3", ENV_EPOCH: "2"}
    child = spawn("sh", "-c", "setsid sh -c 'echo $$; exec sleep 60' & sleep 60", env=env, stdin=False)
    gone_away = platform.identify(int(read_line(child.stdout)))
    assert gone_away is not None
    assert os.getsid(gone_away.pid) != child.pid
    found = process.descendants(job, rank=3, epoch=2)
    assert {child.process, gone_away} <= set(found)
    assert process.descendants(job, rank=4) == []
    assert process.descendants(job, rank=3, epoch=1) == []
    assert process.descendants(job + "x") == []
    process.signal_all(found, signal.SIGKILL)
    for one in found:
        wait_for_end(one)
    assert process.descendants(job) == []


def test_orphans_come_to_a_subreaper() -> None:
    code = """if True:
        import os, subprocess, sys
        sys.path.insert(0, sys.argv[1])
        from jlaunch.io import platform, process
        assert platform.become_subreaper()
        shell = os.posix_spawnp("sh", ["sh", "-c", "(read line; exit 5) & exit 0"], os.environ)
        os.waitpid(shell, 0)
        print("orphaned", flush=True)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        (fact,) = process.reap()
        print(fact.status, flush=True)
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(process.__file__)))
    done = subprocess.run(
        [sys.executable, "-c", code, root], input=b"\n", capture_output=True, timeout=PATIENCE_S
    )
    assert done.stderr == b""
    assert done.stdout == b"orphaned\n5\n"


def test_the_port_needs_no_psutil_here() -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(process.__file__)))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import jlaunch.io.process as p; p.descendants('x'); assert 'psutil' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, root], check=True)
