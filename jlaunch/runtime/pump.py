"""The agent's half of the output: pipes of the ranks in, ``Output`` messages out, never more than its credit.

When the supervisor has not passed on ``OUTPUT_WINDOW_BYTES`` yet, nothing is read: the pipes fill up,
and the ranks wait in their own ``write``, as they would on a slow terminal.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import math
import os
import select
import termios
from collections import deque
from collections.abc import Callable

from jlaunch.core.messages import OUTPUT_CHUNK_BYTES, OUTPUT_WINDOW_BYTES, Output, weight_bytes
from jlaunch.runtime.driver import Driver, Timer

TAIL_LINES = 20
"""Last lines of stderr that are kept per rank, to be shown with the cause of the job's end."""

TAIL_LINE_BYTES = 4096
"""A longer line is cut in the tail; its end says more than its beginning."""

HOLD_S = 0.025
"""How long the beginning of a line waits for its end here. The supervisor's view holds it for 50 ms more:
together, with the way between, within the 100 ms in which a prompt must appear."""

STDOUT, STDERR = 1, 2


class OutputPump:
    """All output pipes of one agent. ``send`` takes each message to the supervisor."""

    def __init__(self, driver: Driver, send: Callable[[Output], None]) -> None:
        self._driver = driver
        self._send = send
        self._credit_bytes = OUTPUT_WINDOW_BYTES
        self._pipes: dict[tuple[int, int, int], _Pipe] = {}
        self._tails: dict[tuple[int, int], _Tail] = {}
        self._paused = False
        self._is_discarding = False
        self._timer: Timer | None = None

    def add(self, rank: int, epoch: int, *, stdout: int, stderr: int) -> None:
        """Take over the two pipes of a rank that was just started."""
        self._tails[(rank, epoch)] = _Tail()
        for stream, fd in ((STDOUT, stdout), (STDERR, stderr)):
            os.set_blocking(fd, False)
            pipe = _Pipe(rank, epoch, stream, fd)
            self._pipes[(rank, epoch, stream)] = pipe
            if not self._paused:
                self._watch(pipe)

    def taken(self, size_bytes: int) -> None:
        """The supervisor has passed on so much: read on."""
        self._credit_bytes += size_bytes
        if self._paused and self._credit_bytes > 0:
            self._paused = False
            for pipe in self._pipes.values():
                self._watch(pipe)
                if pipe.rest:
                    pipe.release_at = self._driver.now() + HOLD_S
                    self._arm(pipe.release_at)

    def discard(self) -> None:
        """Nobody takes the output any more: read it, so that no rank waits in a write, and drop it."""
        self._is_discarding = True
        self.taken(OUTPUT_WINDOW_BYTES)

    def finish(self, rank: int, epoch: int) -> tuple[str, ...]:
        """A rank's process group is gone: send what its pipes still hold, then their ends.

        What a process outside of the group goes on writing is nobody's output any more. Returns the
        last lines of stderr.
        """
        for stream in (STDOUT, STDERR):
            pipe = self._pipes.get((rank, epoch, stream))
            if pipe is not None:
                # More than the credit, but no more than two pipes hold.
                self._drain(pipe, _readable_bytes(pipe.fd))
        self._pause_if_out_of_credit()
        tail = self._tails.pop((rank, epoch), None)
        return tail.lines() if tail else ()

    def is_blocked(self, rank: int, epoch: int) -> bool:
        """Whether the rank cannot write because we do not read (see ``Sample.output_blocked``)."""
        pipes = (self._pipes.get((rank, epoch, stream)) for stream in (STDOUT, STDERR))
        return self._paused and any(pipe is not None and _is_full(pipe.fd) for pipe in pipes)

    def _watch(self, pipe: _Pipe) -> None:
        self._driver.watch(pipe.fd, lambda: self._read(pipe))

    def _pause_if_out_of_credit(self) -> None:
        if self._credit_bytes <= 0:
            self._paused = True
            for pipe in self._pipes.values():
                self._driver.unwatch(pipe.fd)

    def _read(self, pipe: _Pipe) -> None:
        self._take(pipe, OUTPUT_CHUNK_BYTES - len(pipe.rest))
        self._pause_if_out_of_credit()

    def _drain(self, pipe: _Pipe, size_bytes: int) -> None:
        while size_bytes > 0 and not pipe.ended:
            size_bytes -= self._take(pipe, min(OUTPUT_CHUNK_BYTES - len(pipe.rest), size_bytes)) or size_bytes
        if not pipe.ended:
            self._end(pipe)

    def _take(self, pipe: _Pipe, most_bytes: int) -> int:
        try:
            data = os.read(pipe.fd, most_bytes)
        except BlockingIOError:
            return 0
        if not data:
            self._end(pipe)
            return 0
        if pipe.stream == STDERR:
            self._tails[(pipe.rank, pipe.epoch)].add(data)
        self._pass_on(pipe, data)
        return len(data)

    def _pass_on(self, pipe: _Pipe, data: bytes, *, is_end: bool = False) -> None:
        """Send whole lines; the beginning of one is held for a moment, in which its end may come.

        It is not the writer's fault when we stop reading in the middle of a line: the moment counts only
        while we read. So nobody has to show a line in two pieces because of us.
        """
        data = pipe.rest + data
        end = data.rfind(b"\n") + 1
        if is_end or (end == 0 and len(data) >= OUTPUT_CHUNK_BYTES):
            end = len(data)
        data, pipe.rest = data[:end], data[end:]
        if data and not self._is_discarding:
            self._credit_bytes -= weight_bytes(data)
            self._send(Output(rank=pipe.rank, epoch=pipe.epoch, stream=pipe.stream, data=data))
        pipe.release_at = self._driver.now() + HOLD_S if pipe.rest else math.inf
        self._arm(pipe.release_at)

    def _arm(self, at: float) -> None:
        if self._timer is None or self._timer.handler is None or at < self._timer.at:
            self._timer = self._driver.call_at(at, self._release)

    def _release(self) -> None:
        """Send beginnings of lines that have been held long enough."""
        if self._paused:
            return
        now = self._driver.now()
        for pipe in [pipe for pipe in self._pipes.values() if pipe.release_at <= now]:
            self._pass_on(pipe, b"", is_end=True)
        self._arm(min((pipe.release_at for pipe in self._pipes.values()), default=math.inf))

    def _end(self, pipe: _Pipe) -> None:
        pipe.ended = True
        self._driver.unwatch(pipe.fd)
        os.close(pipe.fd)
        del self._pipes[(pipe.rank, pipe.epoch, pipe.stream)]
        self._pass_on(pipe, b"", is_end=True)
        self._send(Output(rank=pipe.rank, epoch=pipe.epoch, stream=pipe.stream, data=b""))


class _Pipe:
    """The read end of one stream of one rank."""

    def __init__(self, rank: int, epoch: int, stream: int, fd: int) -> None:
        self.rank = rank
        self.epoch = epoch
        self.stream = stream
        self.fd = fd
        self.rest = b""
        """The beginning of a line that is held; shorter than a chunk."""
        self.release_at = math.inf
        self.ended = False


class _Tail:
    """The last lines of a stream."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._unfinished = b""

    def add(self, data: bytes) -> None:
        # Only the last lines can survive; splitting all of a flood would cost more than reading it.
        *lines, unfinished = data.rsplit(b"\n", TAIL_LINES + 1)
        if lines:
            lines[0] = self._unfinished + lines[0].rpartition(b"\n")[2]
            self._lines.extend(line[-TAIL_LINE_BYTES:] for line in lines)
            self._unfinished = b""
        self._unfinished = (self._unfinished + unfinished)[-TAIL_LINE_BYTES:]

    def lines(self) -> tuple[str, ...]:
        last = [self._unfinished] if self._unfinished else []
        return tuple(line.decode(errors="replace") for line in [*self._lines, *last][-TAIL_LINES:])


def _readable_bytes(fd: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def _is_full(fd: int) -> bool:
    """Whether a write of ``PIPE_BUF`` bytes into the pipe would block its writer."""
    capacity_bytes = 16384  # macOS, where it cannot be asked
    with contextlib.suppress(AttributeError):
        capacity_bytes = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    return _readable_bytes(fd) > capacity_bytes - select.PIPE_BUF
