"""Processes, as an agent needs them: start a rank, learn what becomes of it, signal it and nobody else.

Rules of this file.
- A rank is spawned through ``jlaunch-shim`` (``backend/shim``), into a session and process group of its
  own; our ends of its pipes are non-blocking and closed on exec.
- A number is signalled only while it names the process that we started: number and start time.
- Nothing here waits. What happened to children is told by ``reap``, to be called on SIGCHLD.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from jlaunch.io import platform
from jlaunch.io.platform import Identity

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SHIM = os.path.join(_PACKAGE, "backend", "bin", "jlaunch-shim")
"""The native program that every rank begins as."""

_FAILURE = struct.Struct("=ii")
"""``SpawnFailure`` of ``backend/shim/main.cpp``: stage and errno."""

_STAGE_PARENT, _STAGE_CWD = 1, 2
_STATUS_FD = 3


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A process just spawned, leader of its own session and group, and our ends of its pipes.

    The descriptors belong to the caller. ``stdin`` is None if the child reads /dev/null. ``spawn_status``
    becomes readable when it is known whether the program could be executed: see ``spawn_error``.
    """

    process: Identity
    stdin: int | None
    stdout: int
    stderr: int
    spawn_status: int

    @property
    def pid(self) -> int:
        """Its number, also that of its group and session."""
        return self.process.pid


class Exited(msgspec.Struct, frozen=True):
    """A child ended and was reaped. ``status``: exit code if >= 0, negative signal number if killed."""

    pid: int
    status: int


class Stopped(msgspec.Struct, frozen=True):
    """A child was stopped by ``signal``."""

    pid: int
    signal: int


class Continued(msgspec.Struct, frozen=True):
    """A stopped child runs again."""

    pid: int


ChildFact = Exited | Stopped | Continued
"""What ``reap`` tells."""


def spawn(
    argv: Sequence[str], env: Mapping[str, str], *, cwd: str | None = None, stdin: bool = True
) -> Child:
    """Start ``argv`` with exactly ``env``, in ``cwd`` (None: ours), looked up on the PATH of ``env``.

    Returns as soon as the process exists. On Linux it gets SIGTERM when the calling thread ends. Raises
    OSError if no process can be made, or the shim is missing (a broken installation).
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        stdin_r, stdin_w = _pipe_to_child(theirs, ours) if stdin else (None, None)
        stdout_w, stdout_r = _pipe_from_child(theirs, ours)
        stderr_w, stderr_r = _pipe_from_child(theirs, ours)
        status_w, status_r = _pipe_from_child(theirs, ours)
        into_stdin: tuple[int, int, int] | tuple[int, int, str, int, int] = (
            (os.POSIX_SPAWN_DUP2, stdin_r, 0)
            if stdin_r is not None
            else (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        )
        pid = os.posix_spawn(
            SHIM,
            _shim_command(argv, cwd),
            env,
            file_actions=[
                into_stdin,
                (os.POSIX_SPAWN_DUP2, stdout_w, 1),
                (os.POSIX_SPAWN_DUP2, stderr_w, 2),
                # Last: until here the descriptor may be one of the above.
                (os.POSIX_SPAWN_DUP2, status_w, _STATUS_FD),
            ],
            setsid=True,
        )
        process = platform.identify(pid)
        assert process is not None, "a child is there until it is reaped"
        ours.pop_all()
        return Child(process=process, stdin=stdin_w, stdout=stdout_r, stderr=stderr_r, spawn_status=status_r)


def spawn_error(child: Child, argv: Sequence[str], cwd: str | None = None) -> OSError | None:
    """Whether the program could be executed: None, or why not, with the name of what was at fault.

    Closes ``child.spawn_status``. Call it once that is readable; raises BlockingIOError before.
    """
    report = os.read(child.spawn_status, _FAILURE.size)
    os.close(child.spawn_status)
    if len(report) < _FAILURE.size:
        return None
    stage, number = _FAILURE.unpack(report)
    if stage == _STAGE_PARENT:
        return OSError(errno.ESRCH, "the agent that started it is gone")
    return OSError(number, os.strerror(number), cwd if stage == _STAGE_CWD else argv[0])


def reap() -> list[ChildFact]:
    """What became of the children of this process since the last call, in order; call it on SIGCHLD.

    Children that nobody here spawned (the guardian, adopted orphans) are told too.
    """
    facts: list[ChildFact] = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                break
            facts.append(_fact(pid, status))
    return facts


def signal_process(process: Identity, number: int) -> bool:
    """Send a signal to exactly this process. False if it is gone; its number may be a stranger's by now."""
    if platform.start_time(process.pid) != process.start_time:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, number)
        return True
    return False


def signal_group(leader: Identity, number: int) -> bool:
    """Send a signal to the process group that ``leader`` was spawned into.

    Also when the leader itself has ended: as long as its group has members, nobody else can have its
    number. False if the group is gone.
    """
    if not has_group(leader):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
        return True
    return False


def has_group(leader: Identity) -> bool:
    """Whether anything is left of the group that ``leader`` was spawned into; zombies count."""
    started = platform.start_time(leader.pid)
    if started is not None and started != leader.start_time:
        return False
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # macOS: only zombies are left. Linux: a number that went to somebody else's group.
        return False
    return True


def signal_all(processes: Iterable[Identity], number: int) -> None:
    """Send a signal to each of these processes that is still the same."""
    for process in processes:
        signal_process(process, number)


def descendants(job: str, *, rank: int | None = None, epoch: int | None = None) -> list[Identity]:
    """Live processes of a job (or one of its ranks), found by the job's token in their environment.

    Finds what left its session, too; not what was started with another environment.
    """
    return platform.processes_of(job, rank=rank, epoch=epoch)


def _shim_command(argv: Sequence[str], cwd: str | None) -> list[str]:
    options = ["--parent", str(os.getpid()), "--status", str(_STATUS_FD)]
    if cwd is not None:
        options += ["--cwd", cwd]
    return [SHIM, *options, "--", *argv]


def _pipe_to_child(theirs: contextlib.ExitStack, ours: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe that the child reads: its end, and ours."""
    reader, writer = os.pipe()
    theirs.callback(os.close, reader)
    return reader, _our_end(writer, ours)


def _pipe_from_child(theirs: contextlib.ExitStack, ours: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe that the child writes: its end, and ours."""
    reader, writer = os.pipe()
    theirs.callback(os.close, writer)
    return writer, _our_end(reader, ours)


def _our_end(fd: int, ours: contextlib.ExitStack) -> int:
    ours.callback(os.close, fd)
    os.set_blocking(fd, False)
    return fd


def _fact(pid: int, status: int) -> ChildFact:
    if os.WIFSTOPPED(status):
        return Stopped(pid, os.WSTOPSIG(status))
    if os.WIFCONTINUED(status):
        return Continued(pid)
    return Exited(pid, os.waitstatus_to_exitcode(status))
