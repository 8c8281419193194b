"""The launcher's standard input on its way to the ranks, one piece at a time.

The supervisor reads a piece only when every agent has taken the one before, and an agent takes a
piece only when every local rank that gets it has: a gigabyte needs no memory, and the slowest reader
sets the pace, as behind ``tee``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from jlaunch.core.messages import OUTPUT_CHUNK_BYTES
from jlaunch.runtime.driver import Driver, Timer

FOREGROUND_CHECK_S = 0.5
"""A job in the terminal's background looks so often whether it was brought to the front; no event says so."""


class StdinReader:
    """The supervisor's end: reads ``fd`` while it may, and sends each piece to all ``hosts``.

    A descriptor that is closed reads as the end of file. In the background of its terminal it reads
    nothing, since reading there would stop the whole job.
    """

    def __init__(self, driver: Driver, fd: int, send: Callable[[int, bytes], None]) -> None:
        self._driver = driver
        self._fd = fd
        self._send = send
        self._hosts: set[int] = set()
        self._owing: set[int] = set()
        self._is_open = True
        self._is_held = True
        self._check: Timer | None = None

    def release(self, hosts: Iterable[int]) -> None:
        """All ranks of ``hosts`` are there: read on."""
        self._hosts = set(hosts)
        self._owing &= self._hosts
        self._is_held = False
        self._continue()

    def hold(self) -> None:
        """Ranks are being replaced: read nothing until ``release``."""
        self._is_held = True
        self._driver.unwatch(self._fd)

    def taken(self, host: int) -> None:
        """The agent of ``host`` has passed on the last piece."""
        self._owing.discard(host)
        self._continue()

    def host_gone(self, host: int) -> None:
        """The agent of ``host`` is gone: nobody waits for it."""
        self._hosts.discard(host)
        self.taken(host)

    def _continue(self) -> None:
        if not self._is_open or self._is_held or self._owing or not self._hosts:
            return
        if _is_readable_here(self._fd):
            self._driver.watch(self._fd, self._read)
        elif self._check is None or self._check.handler is None:
            self._check = self._driver.call_later(FOREGROUND_CHECK_S, self._continue)

    def _read(self) -> None:
        self._driver.unwatch(self._fd)
        if not _is_readable_here(self._fd):
            self._continue()
            return
        try:
            data = os.read(self._fd, OUTPUT_CHUNK_BYTES)
        except BlockingIOError:
            self._continue()
            return
        except OSError:
            # The terminal has hung up, or the descriptor is closed: nothing will come any more.
            data = b""
        self._is_open = bool(data)
        self._owing = set(self._hosts)
        for host in sorted(self._hosts):
            self._send(host, data)


def _is_readable_here(fd: int) -> bool:
    """Whether reading is ours to do: always, but for a terminal in whose foreground we are not."""
    if not os.isatty(fd):
        return True
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        # Not our controlling terminal (any more): there is no foreground to be in.
        return True


class StdinFan:
    """The agent's end: writes each piece to all local ranks that get it, then says so by ``taken``.

    ``readers`` is how many local ranks get the input; a piece waits until all of an epoch are there.
    """

    def __init__(self, driver: Driver, readers: int, taken: Callable[[], None]) -> None:
        self._driver = driver
        self._readers = readers
        self._taken = taken
        self._epoch = 0
        self._started = 0
        self._fds: dict[int, int] = {}
        self._left: dict[int, memoryview] = {}
        self._piece: bytes | None = None
        self._is_at_end = False

    def add(self, rank: int, epoch: int, fd: int) -> None:
        """Take over the write end of a new rank's stdin."""
        if epoch != self._epoch:
            self._epoch, self._started = epoch, 0
        self._started += 1
        os.set_blocking(fd, False)
        self._fds[rank] = fd
        if self._is_at_end:
            self.remove(rank)
        elif self._piece is not None:
            self._offer()

    def remove(self, rank: int) -> None:
        """A rank is gone, or has closed its stdin; harmless if it had none."""
        fd = self._fds.pop(rank, None)
        if fd is None:
            return
        self._driver.unwatch_writable(fd)
        os.close(fd)
        self._left.pop(rank, None)
        self._settle()

    def put(self, data: bytes) -> None:
        """The next piece; b'' is the end of file."""
        self._piece = data
        self._offer()

    def _offer(self) -> None:
        """Begin to write the piece, once every rank of the epoch is there to get it."""
        if self._started < self._readers or self._left:
            return
        assert self._piece is not None
        if not self._piece:
            self._is_at_end = True
            for rank in list(self._fds):
                self.remove(rank)
        else:
            self._left = {rank: memoryview(self._piece) for rank in self._fds}
            for rank in list(self._left):
                self._write(rank)
        self._settle()

    def _write(self, rank: int) -> None:
        fd, left = self._fds[rank], self._left[rank]
        try:
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(fd, left) :]
        except BrokenPipeError:
            self.remove(rank)
            return
        if left:
            self._left[rank] = left
            self._driver.watch_writable(fd, lambda: self._write_on(rank))
        else:
            self._driver.unwatch_writable(fd)
            del self._left[rank]

    def _write_on(self, rank: int) -> None:
        self._write(rank)
        self._settle()

    def _settle(self) -> None:
        """Say that the piece is taken, once nobody has any of it left to take."""
        if self._piece is None or self._left or self._started < self._readers:
            return
        self._piece = None
        self._taken()
