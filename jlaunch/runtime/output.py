"""The supervisor's half of the output: from ``Output`` messages to the terminal and the log files.

One thread writes, so that a terminal that takes nothing holds up nothing but the output itself: what it
has not written yet is not acknowledged to the agents, and they stop reading (see ``runtime.pump``).
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from jlaunch.core.errors import ConfigError
from jlaunch.core.messages import OUTPUT_WINDOW_BYTES, Output, weight_bytes
from jlaunch.core.spec import OutputMode
from jlaunch.runtime.driver import Driver, Timer, WakeUp
from jlaunch.view.lines import LinePrefixer, wants_colour

STDOUT, STDERR = 1, 2

ACKNOWLEDGE_BYTES = OUTPUT_WINDOW_BYTES // 16
"""Credit goes back in pieces of this size: a message for every line would double the traffic."""


class _Write(NamedTuple):
    """Bytes for one descriptor; ``size_bytes`` of ``host``'s credit go back once they are out."""

    fd: int
    data: bytes
    host: int
    size_bytes: int


class Writer:
    """The one thread that writes. ``put`` never blocks; ``is_idle`` says when all is out.

    A descriptor that cannot be written (its reader is gone, the disk is full) is given up: later writes
    to it are dropped, and ``failures`` has the reason.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.failures: deque[tuple[int, OSError]] = deque()
        self._wake = wake
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._done: deque[_Write] = deque()
        self._in_flight = 0
        self._given_up: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, write: _Write) -> None:
        """Queue one write. Only the loop's thread may call this."""
        self._in_flight += 1
        self._queue.put(write)

    def take_done(self) -> list[_Write]:
        """Writes that ended since the last call."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        self._in_flight -= len(done)
        return done

    @property
    def is_idle(self) -> bool:
        """Whether everything was written, as far as ``take_done`` has told."""
        return self._in_flight == 0

    def stop(self) -> None:
        """End the thread once the queue is empty; a thread stuck in a write ends with the process."""
        self._queue.put(None)

    def _run(self) -> None:
        while (write := self._queue.get()) is not None:
            if write.fd not in self._given_up:
                try:
                    _write_all(write.fd, write.data)
                except OSError as error:
                    self._given_up.add(write.fd)
                    self.failures.append((write.fd, error))
            self._done.append(write)
            self._wake()


class OutputView:
    """Shows the ranks' output as ``--output`` says, keeps ``--log-dir``, and hands credit back.

    ``acknowledge`` takes a host and a number of bytes that were passed on. ``reader_left`` is called once
    when whoever reads our stdout has gone (a pipe's ``head``, a pager): nobody wants the rest.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        mode: OutputMode,
        log_dir: str | None,
        acknowledge: Callable[[int, int], None],
        reader_left: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._mode = mode
        self._acknowledge = acknowledge
        self._reader_left = reader_left
        self._owed: Counter[int] = Counter()
        self._wake = WakeUp(driver, self._written)
        self._writer = Writer(self._wake.set)
        self._sheets = _sheets(raw=mode is not OutputMode.PREFIX)
        self._flush_timer: Timer | None = None
        self._logs = _Logs(log_dir) if log_dir is not None else None
        self._on_idle: Callable[[], None] | None = None

    def rank_started(self, rank: int, epoch: int, restart_count: int) -> None:
        """A rank is about to write: begin its log files."""
        if self._logs is not None:
            self._logs.open(rank, epoch, restart_count)

    def show(self, host: int, output: Output) -> None:
        """A piece of a rank's output has arrived."""
        log_fd = self._logs.fd(output) if self._logs is not None else None
        if log_fd is not None and output.data:
            self._writer.put(_Write(log_fd, output.data, host, 0))
        shown = b""
        if self._mode in (OutputMode.PREFIX, OutputMode.RAW) or (
            self._mode is OutputMode.RANK0 and output.rank == 0
        ):
            sheet = self._sheets[output.stream]
            shown = sheet.feed(output.rank, output.stream, output.data, self._driver.now())
            self._arm()
        # Also with nothing to show: credit comes back in order, behind the log file's bytes.
        self._writer.put(_Write(output.stream, shown, host, weight_bytes(output.data)))

    def say(self, text: str) -> None:
        """One line of our own on stderr."""
        line = self._sheets[STDERR].interrupt() + text.encode(errors="replace") + b"\n"
        self._writer.put(_Write(STDERR, line, -1, 0))

    def finish(self, on_idle: Callable[[], None]) -> None:
        """Nothing more will come: write what is held, and call ``on_idle`` when all is out."""
        for stream, sheet in self._sheets.items():
            self._writer.put(_Write(stream, sheet.close(), -1, 0))
        self.when_idle(on_idle)

    def when_idle(self, on_idle: Callable[[], None]) -> None:
        """Call ``on_idle`` once, when all that was said and shown so far is out."""
        self._on_idle = on_idle
        self._written()

    def close(self) -> None:
        """Release the thread and the log files."""
        self._writer.stop()
        if self._logs is not None and self._writer.is_idle:
            self._logs.close()

    def _written(self) -> None:
        for write in self._writer.take_done():
            self._owed[write.host] += write.size_bytes
        for host, size_bytes in self._owed.items():
            if size_bytes >= ACKNOWLEDGE_BYTES:
                self._acknowledge(host, size_bytes)
                self._owed[host] = 0
        while self._writer.failures:
            self._tell(*self._writer.failures.popleft())
        if self._on_idle is not None and self._writer.is_idle:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def _tell(self, fd: int, error: OSError) -> None:
        if fd == STDOUT and isinstance(error, BrokenPipeError):
            self._reader_left()
            return
        name = {STDOUT: "stdout", STDERR: "stderr"}.get(fd)
        where = name or (self._logs.path(fd) if self._logs is not None else None) or f"descriptor {fd}"
        self.say(f"jlaunch: {where} cannot be written any more ({error.strerror}): its output is dropped")

    def _arm(self) -> None:
        deadlines = [sheet.next_deadline() for sheet in self._sheets.values()]
        at = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if at is None or (self._flush_timer is not None and self._flush_timer.handler is not None):
            return
        self._flush_timer = self._driver.call_at(at, self._flush)

    def _flush(self) -> None:
        for stream, sheet in self._sheets.items():
            self._writer.put(_Write(stream, sheet.flush(self._driver.now()), -1, 0))
        self._arm()


class _Logs:
    """The files of ``--log-dir``: ``rank-N.out`` and ``rank-N.err``, for each restart of their own.

    What is made is for its owner alone: a program prints what it was not meant to print.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._fds: dict[tuple[int, int, int], int] = {}
        self._paths: dict[int, str] = {}
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--log-dir {directory}: cannot be made: {error.strerror}") from error

    def open(self, rank: int, epoch: int, restart_count: int) -> None:
        restart = f".restart-{restart_count}" if restart_count else ""
        for stream, suffix in ((STDOUT, "out"), (STDERR, "err")):
            path = os.path.join(self._directory, f"rank-{rank}{restart}.{suffix}")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._fds[(rank, epoch, stream)] = fd
            self._paths[fd] = path

    def fd(self, output: Output) -> int | None:
        return self._fds.get((output.rank, output.epoch, output.stream))

    def path(self, fd: int) -> str | None:
        return self._paths.get(fd)

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def _sheets(*, raw: bool) -> dict[int, LinePrefixer]:
    """The sheet of each stream: one for both where stdout and stderr are the same thing."""
    colour = [wants_colour(is_terminal=os.isatty(fd), environ=os.environ) for fd in (STDOUT, STDERR)]
    stdout = LinePrefixer(raw=raw, colour=colour[0])
    if _is_same_file(STDOUT, STDERR):
        return {STDOUT: stdout, STDERR: stdout}
    return {STDOUT: stdout, STDERR: LinePrefixer(raw=raw, colour=colour[1])}


def _is_same_file(one: int, other: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.sameopenfile(one, other)
    return False


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            # Whoever shares the terminal with us has made it non-blocking.
            select.select([], [fd], [])
