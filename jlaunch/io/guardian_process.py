"""The guardian as the agent holds it: a child with a pipe, replaced whenever it dies.

The pipe's end is what the guardian waits for: no other process may inherit our end (it is closed on exec).
"""

from __future__ import annotations

import contextlib
import os
import signal

from jlaunch.io.platform import Identity


class GuardianProcess:
    """Tells a guardian of every process group; each new guardian is told of all of them again."""

    def __init__(self, command: list[str]) -> None:
        """Start it. Raises OSError if no process can be made."""
        self._command = command
        self._groups: dict[int, Identity] = {}
        self._start()

    def add(self, leader: Identity) -> None:
        """A process group is there, led by ``leader``."""
        self._groups[leader.pid] = leader
        self._tell(_add_line(leader))

    def remove(self, leader: Identity) -> None:
        """The group is gone, confirmed."""
        del self._groups[leader.pid]
        self._tell(b"del %d\n" % leader.pid)

    def replace(self) -> None:
        """It has died and was reaped: start another. Raises OSError if no process can be made."""
        os.close(self._pipe)
        self._start()

    def done(self) -> None:
        """All is well: let it end. It touches nothing any more."""
        self._tell(b"done\n")
        os.close(self._pipe)

    def _start(self) -> None:
        reader, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        try:
            self.pid = os.posix_spawn(
                self._command[0],
                self._command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0)],
                setsid=True,
            )
        finally:
            os.close(reader)
        self._tell(b"".join(_add_line(leader) for leader in self._groups.values()))

    def _tell(self, lines: bytes) -> None:
        try:
            os.write(self._pipe, lines)
        except BrokenPipeError:
            pass  # it has died: SIGCHLD brings its replacement, which is told of everything
        except BlockingIOError:
            # Thousands of lines unread: somebody has stopped it. One that is dead is replaced.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _add_line(leader: Identity) -> bytes:
    return b"add %d %d\n" % (leader.pid, leader.start_time)
