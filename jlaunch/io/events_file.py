"""The flight recorder: one JSON line for every event and verdict, flushed as it happens.

A line is ``{"v":1,"at":<unix time>,"t":<monotonic s since start>,"kind":"RankPaused",…fields…}``.
Bytes that are not text (rendezvous addresses) are recorded by their length alone.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Mapping

import msgspec

from jlaunch.core.errors import ConfigError
from jlaunch.io.clock import Clock

EVENTS_VERSION = 1


class EventsFile:
    """Writes ``--events FILE``; a file that cannot be written any more is given up once, not fatal.

    Appends, and works on a FIFO too. Raises ConfigError if the file cannot be opened.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._started_at = clock.now()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self._fd: int | None = os.open(path, flags, 0o644)
        except OSError as error:
            raise ConfigError(f"--events {path}: cannot be written: {error.strerror}") from error

    def write(self, record: msgspec.Struct, **more: object) -> str | None:
        """Append one event or action, with ``more`` fields beside its own.

        Returns the reason if the file has just become unwritable.
        """
        if self._fd is None:
            return None
        t = self._clock.now() - self._started_at
        line = record_line(record, at=self._clock.unix_time(), t=t, more=more)
        try:
            _write_all(self._fd, line)
        except OSError as error:
            self.close()
            return f"--events {self._path}: cannot be written any more: {error.strerror}"
        return None

    def close(self) -> None:
        """Close the file; later writes do nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def record_line(record: msgspec.Struct, *, at: float, t: float, more: Mapping[str, object]) -> bytes:
    """One line of the events file, newline included."""
    fields = {name: _plain(getattr(record, name)) for name in record.__struct_fields__}
    head = {"v": EVENTS_VERSION, "at": round(at, 6), "t": round(t, 6), "kind": type(record).__name__}
    # An action may have a field named `kind` of its own (a verdict's); the record's kind comes first.
    if "kind" in fields:
        fields["verdict_kind"] = fields.pop("kind")
    return msgspec.json.encode(head | fields | dict(more)) + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return {"size_bytes": len(value)}
    if isinstance(value, enum.IntEnum):
        return value.name.lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
