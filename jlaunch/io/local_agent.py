"""An agent as a child process of the supervisor, on this machine.

It is spawned before the supervisor itself is ready, and waits for its start on its stdin: the two
interpreters load side by side. The pipe stays open; its end of file tells the agent that the
supervisor is gone. The agent is in a session of its own: a Ctrl-C in the terminal is not for it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping


class LocalAgent:
    """The process, the pipe that starts it (and ends it), and the pipe of what it says on stderr."""

    def __init__(self, entry: str, environment: Mapping[str, str]) -> None:
        """Spawn ``entry``, a Python file. Raises OSError if there is no process left."""
        stdin, self.stdin = os.pipe()
        self.stderr, stderr = os.pipe()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.stderr, False)
        try:
            self.pid = os.posix_spawn(
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
        self.status: int | None = None
        """Exit code if >= 0, negative signal if killed; None while it lives."""

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
