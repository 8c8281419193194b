"""What the system knows of a process; Linux and macOS side by side, and nothing else differs elsewhere.

Facts this file rests on.
- Linux: ``/proc/PID/stat`` (proc_pid_stat(5)). A process that got its fatal signal or called ``exit``
  shows the flag PF_EXITING and its exit code there before its memory is freed, so long before
  ``waitpid`` (65 ms per GiB resident). While a process is *stopped* the same field shows the stop signal.
- A process number is not reused while a process has it as its group or session. A number and a start
  time together name one process for good.
- ``/proc/PID/environ`` is the environment of the last ``exec``; a fork has its parent's.
- macOS has neither; ``psutil`` asks its process table. It is imported late: it costs 40 ms.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

import msgspec

from jlaunch.core.contract import ENV_EPOCH, ENV_JOB, ENV_RANK


class Identity(msgspec.Struct, frozen=True):
    """One process, for good: its number, and when it started, in the system's own unit."""

    pid: int
    start_time: int


def identify(pid: int) -> Identity | None:
    """Who has this number now; None if nobody has. A dead process counts until it is reaped."""
    started = start_time(pid)
    return None if started is None else Identity(pid, started)


def is_alive(process: Identity) -> bool:
    """Whether exactly this process is there and not dead (a zombie is dead)."""
    return start_time(process.pid) == process.start_time and not _is_zombie(process.pid)


def processes_of(job: str, *, rank: int | None = None, epoch: int | None = None) -> list[Identity]:
    """Every live process that carries the job's token, wherever it has gone; or those of one rank.

    Only this process itself is left out. What another user owns cannot be seen.
    """
    wanted = {ENV_JOB: job}
    if rank is not None:
        wanted[ENV_RANK] = str(rank)
    if epoch is not None:
        wanted[ENV_EPOCH] = str(epoch)
    found = (identify(pid) for pid in _carriers(wanted) if pid != os.getpid() and not _is_zombie(pid))
    return [process for process in found if process is not None]


def suspend_self() -> None:
    """Stop this process as SIGTSTP does where nobody handles it; returns when it was continued.

    In an orphaned process group, where no shell could continue it, the system ignores that: at once.
    """
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)


if sys.platform == "linux":
    _STATE, _GROUP, _FLAGS, _THREADS, _START_TIME, _EXIT_CODE = 0, 2, 6, 17, 19, 49
    """Places in ``/proc/PID/stat``, counted after the name (which may hold anything)."""

    _PF_EXITING = 0x4
    _PR_SET_CHILD_SUBREAPER = 36

    _STOP_SIGNALS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
    """They stop and never kill: as an exit code they mean that the process is stopped."""

    def _stat(pid: int) -> list[bytes] | None:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                return file.read().rpartition(b") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None

    def start_time(pid: int) -> int | None:
        """When the process started: clock ticks since boot. None if there is none."""
        stat = _stat(pid)
        return None if stat is None else int(stat[_START_TIME])

    def catches(pid: int, number: int) -> bool:
        """Whether the process has a handler for the signal and does not block it, as the kernel says."""
        with contextlib.suppress(OSError, KeyError):
            with open(f"/proc/{pid}/status", "rb") as file:
                fields = dict(line.split(b":\t", 1) for line in file if line.startswith(b"Sig"))
            bit = 1 << (number - 1)
            return bool(int(fields[b"SigCgt"], 16) & bit) and not int(fields[b"SigBlk"], 16) & bit
        return False

    def is_stopped(pid: int) -> bool:
        """Whether the process is in state T (stopped by a signal)."""
        stat = _stat(pid)
        return stat is not None and stat[_STATE] == b"T"

    def early_status(pid: int) -> int | None:
        """How a dying process ends, in ``subprocess`` form; None while it lives, or if it is gone.

        Known as soon as the end is certain: also before the memory is freed, and for processes that are
        not our children.
        """
        stat = _stat(pid)
        if stat is None:
            return None
        code = int(stat[_EXIT_CODE])
        exiting = int(stat[_FLAGS]) & _PF_EXITING
        if code in _STOP_SIGNALS or not (code or exiting):
            return None
        return os.waitstatus_to_exitcode(code)

    def group_members(pgid: int) -> list[Identity]:
        """Live processes of a process group."""
        members = []
        for pid in _pids():
            stat = _stat(pid)
            if stat is not None and int(stat[_GROUP]) == pgid and not _is_dead(stat):
                members.append(Identity(pid, int(stat[_START_TIME])))
        return members

    def become_subreaper() -> bool:
        """Make orphans below this process its children, so that it reaps them. False if refused."""
        import ctypes  # slow to import, and only an agent needs it

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return int(prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0

    def _pids() -> Iterator[int]:
        return (int(name) for name in os.listdir("/proc") if name.isdecimal())

    def _is_zombie(pid: int) -> bool:
        stat = _stat(pid)
        return stat is not None and _is_dead(stat)

    def _is_dead(stat: list[bytes]) -> bool:
        # A leader that ended before its other threads shows as a zombie, too.
        return stat[_STATE] in (b"Z", b"X") and int(stat[_THREADS]) <= 1

    def _carriers(wanted: dict[str, str]) -> Iterator[int]:
        lines = [os.fsencode(f"{name}={value}") for name, value in wanted.items()]
        for pid in _pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                with open(f"/proc/{pid}/environ", "rb") as file:
                    environment = file.read().split(b"\0")
                if all(line in environment for line in lines):
                    yield pid

else:

    def start_time(pid: int) -> int | None:
        """When the process started: microseconds since the epoch. None if there is none."""
        import psutil

        try:
            return int(psutil.Process(pid).create_time() * 1e6)
        except psutil.NoSuchProcess:
            return None

    def catches(pid: int, number: int) -> bool:
        """Whether the process has a handler for the signal: the system does not say, its own word counts."""
        return True

    def is_stopped(pid: int) -> bool:
        """Whether the process is stopped by a signal."""
        return _status(pid) == "stopped"

    def early_status(pid: int) -> int | None:
        """Not told by this system before the process is reaped: None."""
        return None

    def group_members(pgid: int) -> list[Identity]:
        """Live processes of a process group."""
        import psutil

        members = (pid for pid in psutil.pids() if _group(pid) == pgid and not _is_zombie(pid))
        found = (identify(pid) for pid in members)
        return [process for process in found if process is not None]

    def become_subreaper() -> bool:
        """This system has no subreapers: False. Orphans go to launchd, which reaps them."""
        return False

    def _group(pid: int) -> int | None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            return os.getpgid(pid)
        return None

    def _status(pid: int) -> str | None:
        import psutil

        try:
            return str(psutil.Process(pid).status())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    def _is_zombie(pid: int) -> bool:
        return _status(pid) == "zombie"

    def _carriers(wanted: dict[str, str]) -> Iterator[int]:
        import psutil

        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                environment = process.environ()
                if all(environment.get(name) == value for name, value in wanted.items()):
                    yield process.pid
