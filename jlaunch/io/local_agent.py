"""An agent as a child process of the supervisor, on this machine.

It waits for its start on its stdin, which then stays open; its end of file tells the agent that the
supervisor is gone. It is in a session of its own: a Ctrl-C in the terminal is not for it.

Two ways to make one. ``spawn`` executes a fresh interpreter: right at any time, and 0.1 s of imports.
``fork`` copies this one, with what it has imported already: half the time to the first rank, and the pages
of both are shared. But a fork copies one thread and every lock, so it is only for a process that has no
other thread yet, and only where the system's libraries bear it (macOS's do not).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

CAN_FORK = sys.platform == "linux"
"""Whether ``fork`` is an option, as long as there is one thread."""

_COMMAND_NAME = b"jlaunch-agent"
"""What ``ps`` and ``top`` show as the name of a forked agent; its command line is still ours."""


class LocalAgent:
    """The process, the pipe that starts it (and ends it), and the pipe of what it says on stderr."""

    def __init__(self, pid: int, stdin: int, stderr: int) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stderr = stderr
        self.status: int | None = None
        """Exit code if >= 0, negative signal if killed; None while it lives."""
        os.set_blocking(stdin, False)
        os.set_blocking(stderr, False)

    @classmethod
    def spawn(cls, entry: str, environment: Mapping[str, str]) -> LocalAgent:
        """Execute ``entry``, a Python file. Raises OSError if there is no process left."""
        stdin, our_stdin = os.pipe()
        our_stderr, stderr = os.pipe()
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, entry],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, stdin, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, stderr, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE),
            )
        finally:
            os.close(stdin)
            os.close(stderr)
        return cls(pid, our_stdin, our_stderr)

    @classmethod
    def fork(cls, main: Callable[[], int], environment: Mapping[str, str]) -> LocalAgent:
        """Have a copy of this process run ``main`` and end. Raises OSError if there is no process left.

        REQUIRES: no other thread, and nothing open that must not be closed in the copy.
        """
        stdin, our_stdin = os.pipe()
        our_stderr, stderr = os.pipe()
        # What is there now is never freed: so the collector does not touch its pages, and they stay shared.
        gc.freeze()
        try:
            pid = os.fork()
            if pid == 0:
                _run_as_agent(main, environment, stdin=stdin, stderr=stderr)
        finally:
            os.close(stdin)
            os.close(stderr)
        return cls(pid, our_stdin, our_stderr)

    def has_exited(self) -> bool:
        """Reap it if it has ended."""
        if self.status is None:
            pid, wait_status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(wait_status)
        return self.status is not None

    def let_go(self) -> None:
        """Close the pipe: the agent ends its ranks and itself."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def kill(self) -> None:
        """End it by force; its guardian ends the ranks."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)


def _run_as_agent(
    main: Callable[[], int], environment: Mapping[str, str], *, stdin: int, stderr: int
) -> NoReturn:
    """The life of a forked agent, as like as can be to that of a spawned one."""
    code = 1
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(stderr, 2)
        # The lock of the job's record above all: it must die with the supervisor.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        with open("/proc/self/comm", "wb") as name:
            name.write(_COMMAND_NAME)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.environ.clear()
        os.environ.update(environment)
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        # Never back into the supervisor's frames, nor through its exit handlers.
        os._exit(code)
