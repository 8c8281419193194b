"""The guardian: ends what is left of a job on this host when its agent is gone. Standard library only.

Run by the agent before anything else, as ``python -I -S guardian.py JOB HOST_DIR JOB_DIR GRACE_S``, in a
session of its own, with a pipe on stdin that only the agent holds. Lines on it:

    add PGID STARTTIME    a process group of the job now exists; its leader started then (io.platform)
    del PGID              it is gone, confirmed
    done                  all is well: exit at once, touch nothing

End of file without ``done`` means that the agent died, however. Then: SIGTERM and SIGCONT to all that is
left, SIGKILL after the grace, and the directories are removed.

Rules of this file.
- It must work when every other part of jlaunch is dead: no import of it, no socket, no lock to wait for
  but the one on the user's directory, which is only ever held for moments.
- It signals nobody else. A number names our group while its leader has the start time we were told; or,
  once the leader is reaped, while it has members: a number in use is given to nobody. A member's session
  is then our group's number too, since every group here began with ``setsid``.
- On Linux it also finds what left its group, by the job's token in the environment. Elsewhere the groups
  are all that it knows, and it cannot compare start times (macOS tells them to no standard library).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

TOKEN_VARIABLE = "JLAUNCH_JOB"
"""``contract.ENV_JOB``, which cannot be imported here; a test compares them."""

_KILL_CONFIRM_S = 5.0
"""For SIGKILL to take effect; what outlives it (a process in an uninterruptible call) is left alone."""

_POLL_S = 0.05
"""Where no event tells the end of a process that is not our child (no pidfd), look so often."""

_WATCHED_AT_ONCE = 256
"""Descriptors used for waiting; the rest is looked at again when one of these has ended."""


def command(python: str, *, job: str, host_dir: str, job_dir: str, grace_s: float) -> list[str]:
    """The command line of a guardian; ``python`` is the interpreter."""
    return [python, "-I", "-S", os.path.abspath(__file__), job, host_dir, job_dir, repr(grace_s)]


class Ward:
    """What the guardian looks after: the job's groups on this host, and whatever carries its token."""

    def __init__(self, job: str) -> None:
        self.groups: dict[int, int] = {}
        """Start time of the leader, by process group."""
        self._token = os.fsencode(f"{TOKEN_VARIABLE}={job}")

    def obey(self, line: bytes) -> None:
        """Take one ``add`` or ``del`` from the agent; anything else is ignored."""
        words = line.split()
        numbers = [int(word) for word in words[1:] if word.isdigit()]
        if words[:1] == [b"add"] and len(numbers) == 2:
            self.groups[numbers[0]] = numbers[1]
        elif words[:1] == [b"del"] and len(numbers) == 1:
            self.groups.pop(numbers[0], None)

    if sys.platform == "linux":

        def living(self) -> dict[int, int]:
            """Live processes of the job: process group by pid."""
            stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
            for group, started in list(self.groups.items()):
                if group in stats and stats[group].started != started:
                    del self.groups[group]  # the number is a stranger's now
            return {
                pid: stat.group
                for pid, stat in stats.items()
                if not stat.dead
                and ((stat.group in self.groups and stat.session == stat.group) or self._has_token(pid))
            }

        def _has_token(self, pid: int) -> bool:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
                return pid != os.getpid() and self._token in file.read().split(b"\0")
            return False

    else:

        def living(self) -> dict[int, int]:
            """Groups of the job that have a live member, each under the number of its leader."""
            return {group: group for group in self.groups if _has_members(group)}

    def signal(self, number: int) -> None:
        """Send a signal to all groups, and to each process that left them."""
        living = self.living()
        for group in set(living.values()) & self.groups.keys():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for pid, group in living.items():
            if group not in self.groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def wait(self, until: float) -> bool:
        """Wait for the end of all of them, or the time. Returns whether they have ended."""
        while living := self.living():
            left_s = until - time.monotonic()
            if left_s <= 0:
                return False
            _wait_for_one(list(living), left_s)
        return True


if sys.platform == "linux":

    class _Stat:
        """The fields of ``/proc/PID/stat`` that matter here; the name before them may hold anything."""

        def __init__(self, fields: list[bytes]) -> None:
            self.group = int(fields[2])
            self.session = int(fields[3])
            self.started = int(fields[19])
            # A leader that ended before its other threads shows as a zombie, too.
            self.dead = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1

    def _stat(pid: int) -> _Stat | None:
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/stat", "rb") as file,
        ):
            return _Stat(file.read().rpartition(b") ")[2].split())
        return None

    def _pids() -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

    def _wait_for_one(pids: list[int], left_s: float) -> None:
        """Return when one of the processes has ended, or the time is over."""
        poller = select.poll()
        with contextlib.ExitStack() as stack:
            for pid in pids[:_WATCHED_AT_ONCE]:
                try:
                    fd = os.pidfd_open(pid)
                except ProcessLookupError:
                    return
                except OSError:  # before Linux 5.3, or no descriptor is left
                    time.sleep(min(left_s, _POLL_S))
                    return
                stack.callback(os.close, fd)
                poller.register(fd, select.POLLIN)
            poller.poll(min(left_s, 3600) * 1000)

else:

    def _has_members(group: int) -> bool:
        # EPERM: only zombies are left in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            return True
        return False

    def _wait_for_one(pids: list[int], left_s: float) -> None:
        """The end of a process group that is not our child is no event on this system."""
        time.sleep(min(left_s, _POLL_S))


def listen(ward: Ward) -> bool:
    """Obey the agent until the end of its pipe; whether it said ``done``."""
    rest = b""
    while chunk := os.read(0, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line == b"done":
                return True
            ward.obey(line)
    return False


def end(ward: Ward, grace_s: float) -> None:
    """End the job's processes: politely, and after the grace by force."""
    ward.signal(signal.SIGTERM)
    ward.signal(signal.SIGCONT)
    if ward.wait(time.monotonic() + grace_s):
        return
    give_up_at = time.monotonic() + _KILL_CONFIRM_S
    while time.monotonic() < give_up_at:
        # Again and again: what is forked in between would be missed by a single blow.
        ward.signal(signal.SIGKILL)
        if ward.wait(min(give_up_at, time.monotonic() + _POLL_S)):
            return


def remove(host_dir: str, job_dir: str) -> None:
    """Remove the host's directory, and the job's if its supervisor and all its agents are gone."""
    _remove_tree(host_dir)
    # The protocol of io.jobs: an entry is judged under the lock of the directory above.
    with contextlib.suppress(FileNotFoundError), _opened(os.path.dirname(job_dir)) as above:
        fcntl.flock(above, fcntl.LOCK_EX)
        hosts = [name for name in os.listdir(job_dir) if name.startswith("h")]
        if not any(_is_locked(os.path.join(job_dir, name)) for name in ("job.json", *hosts)):
            _remove_tree(job_dir)


@contextlib.contextmanager
def _opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_locked(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError), _opened(path) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _remove_tree(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                _remove_tree(entry.path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)


def _stand_apart() -> None:
    """Leave the agent's session, signals, output and directory: nothing that ends it may end us."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):  # the agent has made us a leader already
        os.setsid()
    os.chdir("/")
    with _opened(os.devnull, os.O_WRONLY) as null:
        os.dup2(null, 1)
        os.dup2(null, 2)


def main(arguments: list[str]) -> int:
    """Guard the job; returns the exit code."""
    job, host_dir, job_dir, grace_s = arguments
    _stand_apart()
    ward = Ward(job)
    if not listen(ward):
        end(ward, float(grace_s))
        remove(host_dir, job_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
