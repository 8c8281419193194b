"""Jobs on disk: the private directory of each, and the registry that these directories are.

Facts this file rests on.
- ``<base>/jlaunch-<uid>`` and everything below is 0700 and ours; a directory that somebody else
  made there, or may write to, is refused, never repaired.
- A record (``job.json``) carries a ``flock`` held by the supervisor for as long as it lives; every
  agent holds one on its host directory. The kernel drops both with the process, whatever ended it.
  So an entry is live while either lock is held, and no process id is ever trusted.
- Creating an entry and judging one stale both happen under a lock on the user's directory, so a job
  that is just being created is never taken for a dead one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
from collections.abc import Iterator

import msgspec

from jlaunch.core.contract import SupervisorFiles
from jlaunch.core.errors import ConfigError

SOCKET_PATH_MAX_BYTES = 103
"""Longest path of a Unix socket on macOS (104 with its end); Linux has 107. The shorter one rules."""

_LONGEST_SOCKET = len("/h9999/agent.ipc")


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What ``job.json`` says: who runs this job. ``started_at`` is in seconds since the epoch."""

    version: int
    job: str
    pid: int
    started_at: float
    command: tuple[str, ...]
    cwd: str
    world_size: int
    backend: str
    policy: str


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One live job of the registry: its directory and its record."""

    path: str
    record: JobRecord


class JobDirectory:
    """The directory of a running job, owned by its supervisor; the record's lock lives as long as this."""

    def __init__(self, path: str, record_fd: int) -> None:
        self.path = path
        self._record_fd = record_fd

    @classmethod
    def create(cls, record: JobRecord, base: str | None = None) -> JobDirectory:
        """Make the private directory and the locked record.

        Raises ConfigError if the base cannot hold it: not ours, open to others, or too long for sockets.
        """
        user_dir = _ensure_user_dir(base)
        path = os.path.join(user_dir, record.job)
        _check_length(path)
        with _locked(user_dir):
            try:
                os.mkdir(path, 0o700)
                record_fd = _create_record(path, record)
            except OSError as error:
                raise ConfigError(f"{path}: cannot make the job's directory: {error.strerror}") from error
        return cls(path, record_fd)

    def host_dir(self, host: int) -> str:
        """Path of the directory of ``host``; its agent makes it."""
        return host_dir(self.path, host)

    def release(self) -> None:
        """Let go of the record, and remove the directory unless an agent still lives in it.

        Then that agent removes it, when it is done: the last one out.
        """
        os.close(self._record_fd)
        _remove_if_stale(self.path)


class HostDirectory:
    """A job's directory on one host, owned by its agent."""

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def create(cls, job_dir: str, host: int) -> HostDirectory:
        """Make and lock the directory of ``host``; the job's directory must be ours and private.

        Raises ConfigError if it is not, OSError if the directory cannot be made.
        """
        _check_private(job_dir)
        path = host_dir(job_dir, host)
        os.mkdir(path, 0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(path, fd)

    def remove(self) -> None:
        """Remove the directory; and the whole job's, when its supervisor and other agents are gone."""
        remove_tree(self.path)
        os.close(self._lock_fd)
        _remove_if_stale(os.path.dirname(self.path))


def host_dir(job_dir: str, host: int) -> str:
    """Path of a job's directory for ``host``."""
    return os.path.join(job_dir, f"h{host}")


def runtime_base() -> str:
    """Where jobs live: ``JLAUNCH_RUNTIME_DIR``, else /dev/shm on Linux, else the temporary directory."""
    chosen = os.environ.get("JLAUNCH_RUNTIME_DIR")
    if chosen:
        return os.path.abspath(chosen)
    if sys.platform == "linux" and os.access("/dev/shm", os.W_OK | os.X_OK):
        return "/dev/shm"
    import tempfile  # slow to import, and not needed on the common path

    return tempfile.gettempdir()


def live_jobs(base: str | None = None) -> list[JobEntry]:
    """Every live job of this user, oldest first."""
    entries = []
    for path in _job_dirs(base):
        if _is_locked(os.path.join(path, SupervisorFiles.RECORD)):
            record = _read_record(path)
            if record is not None:
                entries.append(JobEntry(path=path, record=record))
    return sorted(entries, key=lambda entry: entry.record.started_at)


def remove_stale(base: str | None = None) -> list[str]:
    """Remove what dead jobs left: entries whose supervisor and agents are all gone. Returns their paths."""
    user_dir = _user_dir(base)
    if not os.path.isdir(user_dir):
        return []
    removed = []
    with _locked(user_dir):
        for path in _job_dirs(base):
            if _is_stale(path):
                remove_tree(path)
                removed.append(path)
    return removed


def _user_dir(base: str | None) -> str:
    return os.path.join(base if base is not None else runtime_base(), f"jlaunch-{os.getuid()}")


def _ensure_user_dir(base: str | None) -> str:
    path = _user_dir(base)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot make the directory of jobs: {error.strerror} "
            "(JLAUNCH_RUNTIME_DIR chooses another)"
        ) from error
    _check_private(path)
    return path


def _check_private(path: str) -> None:
    """Refuse a directory that another user made, can write to or look into, or that is a link."""
    try:
        found = os.lstat(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path}: expected a directory of our own, found something else; remove it")
    if found.st_uid != os.getuid():
        raise ConfigError(f"{path}: belongs to user {found.st_uid}, expected {os.getuid()}; remove it")
    if mode & 0o077:
        raise ConfigError(f"{path}: mode is {mode:04o}, expected 0700; mend it with: chmod 700 {path}")


def _check_length(path: str) -> None:
    found = len(os.fsencode(path)) + _LONGEST_SOCKET
    if found > SOCKET_PATH_MAX_BYTES:
        raise ConfigError(
            f"{path}: too long for a socket below it ({found} bytes, at most {SOCKET_PATH_MAX_BYTES}); "
            "set JLAUNCH_RUNTIME_DIR to a shorter directory"
        )


def _create_record(path: str, record: JobRecord) -> int:
    """Write the record under a lock before it gets its name: a record in sight is a locked one."""
    final = os.path.join(path, SupervisorFiles.RECORD)
    fd = os.open(final + ".new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(fd, msgspec.json.encode(record))
    os.rename(final + ".new", final)
    return fd


def _read_record(path: str) -> JobRecord | None:
    """The record, or None if it vanished meanwhile or another version wrote it."""
    try:
        with open(os.path.join(path, SupervisorFiles.RECORD), "rb") as file:
            return msgspec.json.decode(file.read(), type=JobRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _job_dirs(base: str | None) -> list[str]:
    user_dir = _user_dir(base)
    try:
        names = sorted(os.listdir(user_dir))
    except FileNotFoundError:
        return []
    paths = (os.path.join(user_dir, name) for name in names)
    return [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]


def _remove_if_stale(path: str) -> None:
    with contextlib.suppress(FileNotFoundError), _locked(os.path.dirname(path)):
        if _is_stale(path):
            remove_tree(path)


def _is_stale(path: str) -> bool:
    """Whether nobody lives in the job directory ``path``. Call it under the lock of the user's directory."""
    if _is_locked(os.path.join(path, SupervisorFiles.RECORD)):
        return False
    hosts = (name for name in os.listdir(path) if name.startswith("h"))
    return not any(_is_locked(os.path.join(path, name)) for name in hosts)


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a directory; it is only ever held for a few file operations."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def remove_tree(path: str) -> None:
    """Remove a directory of ours with all that is in it; what vanishes meanwhile is fine."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
        os.rmdir(path)
