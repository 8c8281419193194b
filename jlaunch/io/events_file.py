"""The flight recorder: one JSON line for every event and verdict, flushed as it happens.

A line is ``{"v":1,"at":<unix time>,"t":<monotonic s since start>,"kind":"RankPaused",…fields…}``.
Bytes that are not text (rendezvous addresses) are recorded by their length alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Mapping

import msgspec

from jlaunch.core.errors import ConfigError
from jlaunch.core.replay import as_fields
from jlaunch.io.clock import Clock

EVENTS_VERSION = 1

BACKLOG_BYTES = 4 * 1024 * 1024
"""Lines that may wait for the reader of a FIFO: some ten thousand."""

LAST_MOMENT_S = 1.0
"""How long a reader may take nothing at the end before the rest is dropped."""


class EventsFile:
    """Writes ``--events FILE``, without ever waiting; what cannot be written any more is given up, not fatal.

    Appends to a file. FILE may be a FIFO: opening it waits for no reader, and lines that a slow reader
    has not taken yet are kept, up to ``BACKLOG_BYTES``. Raises ConfigError if it cannot be opened.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._started_at = clock.now()
        self._backlog = bytearray()
        self._woke: list[float] = []
        try:
            self._fd: int | None = _open(path)
        except OSError as error:
            raise ConfigError(f"--events {path}: cannot be written: {error.strerror}") from error

    def write(self, record: msgspec.Struct, *, now: float | None = None, **more: object) -> str | None:
        """Append one event or action, with ``more`` fields beside its own.

        ``now`` is the moment at which the job machine was given it, in the clock's seconds; else it is read.
        Returns the reason if the file has just become unwritable.
        """
        if self._fd is None:
            return None
        if self._woke:
            more["woke"], self._woke = self._woke, []
        t = self._since_start(self._clock.now() if now is None else now)
        self._backlog += record_line(record, at=self._clock.unix_time(), t=t, more=more)
        try:
            self._flush(self._fd)
        except OSError as error:
            return self._give_up(error.strerror)
        if len(self._backlog) > BACKLOG_BYTES:
            return self._give_up("its reader takes nothing")
        return None

    def note_wake(self, now: float) -> None:
        """The job machine was woken at ``now``: its next line says so."""
        if self._fd is not None:
            self._woke.append(self._since_start(now))

    def _since_start(self, now: float) -> float:
        return round(now - self._started_at, 9)

    def close(self) -> None:
        """Close the file, after a last moment for a slow reader; later writes do nothing."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            while self._backlog and select.select([], [self._fd], [], LAST_MOMENT_S)[1]:
                self._flush(self._fd)
        os.close(self._fd)
        self._fd = None

    def _flush(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._backlog:
                del self._backlog[: os.write(fd, self._backlog)]

    def _give_up(self, why: str | None) -> str:
        self._backlog.clear()
        self.close()
        return f"--events {self._path}: cannot be written any more: {why}"


def _open(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISFIFO(os.stat(path).st_mode):
            # For both: so it opens without a reader, and a reader that leaves is no error.
            flags = os.O_RDWR | os.O_NONBLOCK
    return os.open(path, flags, 0o644)


def record_line(record: msgspec.Struct, *, at: float, t: float, more: Mapping[str, object]) -> bytes:
    """One line of the events file, newline included."""
    head = {"v": EVENTS_VERSION, "at": round(at, 6), "t": t, "kind": type(record).__name__}
    return msgspec.json.encode(head | as_fields(record) | dict(more)) + b"\n"
