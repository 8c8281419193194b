"""Stacks of a rank: the FIFO that they come through, and the signal that asks for them.

Rules of this file. A signal goes only to the process that holds the claim, only if its control block says
that a handler is armed, and only if the kernel agrees that one is there and not blocked: the default of
most signals is to end the process. A dump ends with a zero byte.
"""

from __future__ import annotations

import contextlib
import os
import signal

from jlaunch.io import platform

STACK_MAX_BYTES = 64 * 1024
"""A dump is cut here, as the pipe is: a hundred threads of a hundred frames would be more."""

MARK = b"\0"


class StackPipe:
    """The reading end, held for as long as the rank's process lives; made before it starts."""

    def __init__(self, path: str) -> None:
        """Raises OSError if the FIFO cannot be made."""
        self.path = path
        os.mkfifo(path, 0o600)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._data = b""

    def begin(self) -> None:
        """Forget what an earlier dump has left."""
        self._data = b""
        while self._read():
            pass
        self._data = b""

    def take(self) -> tuple[str, ...] | None:
        """The lines of the dump; None if its end has not come yet. It has when nobody is left to write it."""
        more: bytes | None = b""
        while MARK not in self._data and len(self._data) < STACK_MAX_BYTES:
            more = self._read()
            if not more:
                break
        is_whole = MARK in self._data or len(self._data) >= STACK_MAX_BYTES
        return None if more is None and not is_whole else self.rest()

    def rest(self) -> tuple[str, ...]:
        """The lines that have come so far; they are forgotten here."""
        text = self._data.partition(MARK)[0][:STACK_MAX_BYTES].decode(errors="replace")
        self._data = b""
        return tuple(line for line in text.splitlines() if line.strip())

    def close(self) -> None:
        """Remove it."""
        os.close(self.fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _read(self) -> bytes | None:
        """More bytes, b'' if nobody has the other end open, None if there are none yet."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.fd, STACK_MAX_BYTES)
            self._data += data
            return data
        return None


def refusal_to_ask(pid: int, number: int) -> str:
    """Why ``pid`` must not be sent signal ``number`` for its stacks; '' if it may."""
    if number != signal.SIGURG:  # a rank wrote it: nothing else is ever sent
        return "no handler is armed in it: no Python that has called init, or it handles SIGURG itself"
    if not platform.catches(pid, number):
        return f"it does not handle signal {number}, or has it blocked"
    return ""
