"""Entry of an agent: reads its start, brings up the guardian, then turns its loop until all is over.

Run as ``python -m jlaunch.runtime.agent`` or through ``agent_entry.py``. Its stdin brings one frame, an
``AgentStart`` behind its length in four bytes (big-endian), and then stays open: its end of file means
that the supervisor is gone.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

from jlaunch.core.contract import ExitCode
from jlaunch.core.errors import JlaunchError, ProtocolError
from jlaunch.core.messages import MAX_MESSAGE_BYTES, AgentStart, decode_agent_start
from jlaunch.io.guardian_process import GuardianProcess
from jlaunch.io.jobs import HostDirectory
from jlaunch.runtime import guardian

FILES_PER_RANK = 8
"""Three pipes and one for the status, both ends while it is spawned; the block is mapped and closed."""

OWN_FILES = 128


def main() -> int:
    """Be the agent of one host; returns the exit code."""
    # Ended by its supervisor's order or end, never by a terminal that it may share.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    try:
        start = _read_start()
        return 0 if start is None else _run(start)
    except (JlaunchError, OSError) as error:
        # The supervisor shows what we say, behind our host's name.
        print(error, file=sys.stderr)
        return ExitCode.INTERNAL


def _run(start: AgentStart) -> int:
    _ensure_open_files(len(start.spec.ranks_of(start.host)))
    directory = HostDirectory.create(start.job_dir, start.host)
    command = guardian.command(
        sys.executable,
        job=start.spec.job,
        host_dir=directory.path,
        job_dir=start.job_dir,
        grace_s=start.spec.timeouts.grace_s,
    )
    guard = GuardianProcess(command)
    os.chdir("/")
    from jlaunch.runtime.agent_loop import AgentLoop  # slow to import: the guardian starts meanwhile

    return AgentLoop(start, directory, guard).run()


def _ensure_open_files(ranks: int) -> None:
    """Raise our limit of open files to what so many ranks need: macOS begins at 256."""
    needed = FILES_PER_RANK * ranks + OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))


def _read_start() -> AgentStart | None:
    """The start from stdin; None if the supervisor ended before it sent one."""
    head = _read_exactly(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    if size > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"start of an agent: {size} bytes, at most {MAX_MESSAGE_BYTES} expected")
    frame = _read_exactly(size)
    return decode_agent_start(frame) if len(frame) == size else None


def _read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := os.read(0, size - len(data))):
        data += piece
    return data


if __name__ == "__main__":
    sys.exit(main())
