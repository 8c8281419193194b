"""Many ranks' output on one sheet: whole lines, each with its rank in front.

The rules of this file. A *sheet* is what the output lands on: a terminal, a pipe, a file. Give each
sheet one ``LinePrefixer``; stdout and stderr share one if they are the same terminal. Bytes go in as
they were read, bytes come out as they are to be written, and nothing is ever lost or put in another
order within one rank's stream:

- a complete line goes out at once, in one piece, with its prefix (``[2] ``);
- the beginning of a line is held for ``HOLD_S``, because ``print`` makes two writes of one line; then
  it goes out as it is (a prompt, a progress bar) and its owner writes on where it stopped;
- when another stream writes meanwhile, the open line is closed, and re-opened with its prefix when
  its owner goes on;
- a carriage return starts the line anew, so the prefix is written again before what follows it;
- a character of UTF-8 that was cut in two by a read is held until the rest of it has come.

Raw mode inserts nothing at all: the hold alone keeps the lines of two ranks apart.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

HOLD_S = 0.05
"""How long the beginning of a line waits for its end; half of the 100 ms that a prompt may take."""

HOLD_MAX_BYTES = 8192
"""A beginning longer than this goes out at once: a hold is for lines, not for memory."""

_PIECES = re.compile(rb"[^\r\n]*[\r\n]|[^\r\n]+")
"""A stretch of text with what ends it: a newline, a carriage return, or nothing yet."""

_COLOURS = (36, 33, 32, 35, 34, 31)
"""Cyan, yellow, green, magenta, blue, red: neighbours in rank are told apart at a glance."""


class _At(enum.Enum):
    """Where a stream's next byte goes."""

    NEW_LINE = enum.auto()
    COLUMN_0 = enum.auto()
    """After a carriage return: a newline here ends the line that is already there."""
    IN_LINE = enum.auto()


class _Stream:
    """One stream of one rank: its prefix, its place in the line, what is held of it."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.at = _At.NEW_LINE
        self.held = b""
        self.held_until: float | None = None


class LinePrefixer:
    """Mixes the streams of a job's ranks onto one sheet. Pure: the caller brings bytes and the time.

    Call ``feed`` with what was read, ``flush`` when ``next_deadline`` has come, ``interrupt`` before
    writing a line of one's own to the same sheet, and ``close`` at the end.
    """

    def __init__(self, *, raw: bool = False, colour: bool = False) -> None:
        self._raw = raw
        self._colour = colour
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._open: _Stream | None = None

    def feed(self, rank: int, stream: int, data: bytes, now: float) -> bytes:
        """What to write for ``data``, just read from ``stream`` of ``rank``; ``b""`` is its end."""
        source = self._stream(rank, stream)
        if not data:
            return self._end(rank, stream, source)
        waiting_since = source.held_until
        data = self._take_held(source) + data
        goes_on = source is self._open and b"\n" not in data
        whole, held = _divide(data, hold_line=not goes_on)
        out = self._put(source, whole)
        source.held = held
        if held and not goes_on:
            source.held_until = now + HOLD_S if waiting_since is None or whole else waiting_since
        return out

    def flush(self, now: float) -> bytes:
        """What to write of beginnings of lines that have been held long enough."""
        out = b""
        for source in self._streams.values():
            if source.held_until is not None and source.held_until <= now:
                out += self._let_go(source)
        return out

    def next_deadline(self) -> float | None:
        """When ``flush`` has something to do next, or None."""
        return min((s.held_until for s in self._streams.values() if s.held_until is not None), default=None)

    def interrupt(self) -> bytes:
        """What to write so that a line of somebody else begins in column 0."""
        if self._open is None or self._raw:
            self._open = None
            return b""
        self._open.at = _At.NEW_LINE
        self._open = None
        return b"\n"

    def close(self) -> bytes:
        """What to write at the end of the job: all that is held, and the end of an open line."""
        out = b"".join(self._put(source, self._take_held(source)) for source in self._streams.values())
        return out + self.interrupt()

    def _stream(self, rank: int, stream: int) -> _Stream:
        key = (rank, stream)
        if key not in self._streams:
            self._streams[key] = _Stream(b"" if self._raw else prefix_of(rank, colour=self._colour))
        return self._streams[key]

    def _let_go(self, source: _Stream) -> bytes:
        """Stop holding a beginning, except for a character that is cut in two."""
        data, source.held = _divide(self._take_held(source), hold_line=False)
        return self._put(source, data)

    def _end(self, rank: int, stream: int, source: _Stream) -> bytes:
        """A stream has ended: its last line is complete as it is, and closed when somebody else writes."""
        out = self._put(source, self._take_held(source))
        del self._streams[(rank, stream)]
        return out

    @staticmethod
    def _take_held(source: _Stream) -> bytes:
        data, source.held, source.held_until = source.held, b"", None
        return data

    def _put(self, source: _Stream, data: bytes) -> bytes:
        """The bytes of ``data`` as they appear on the sheet, the line of another stream closed first."""
        if not data:
            return b""
        out = self.interrupt() if self._open is not source else b""
        out += data if self._raw else self._with_prefixes(source, data)
        self._open = None if data.endswith(b"\n") else source
        return out

    @staticmethod
    def _with_prefixes(source: _Stream, data: bytes) -> bytes:
        out = []
        for piece in _PIECES.findall(data):
            ends_line, returns = piece.endswith(b"\n"), piece.endswith(b"\r")
            has_text = len(piece) > ends_line + returns
            if (has_text and source.at is not _At.IN_LINE) or (ends_line and source.at is _At.NEW_LINE):
                out.append(source.prefix)
            out.append(piece)
            if ends_line:
                source.at = _At.NEW_LINE
            elif not returns:
                source.at = _At.IN_LINE
            elif has_text or source.at is not _At.NEW_LINE:
                source.at = _At.COLUMN_0
        return b"".join(out)


def _divide(data: bytes, *, hold_line: bool) -> tuple[bytes, bytes]:
    """Split into what may go out now and what is held: an unfinished line, or only a cut character."""
    end = data.rfind(b"\n") + 1
    if hold_line and len(data) - end <= HOLD_MAX_BYTES:
        return data[:end], data[end:]
    cut = len(data) - _unfinished_bytes(data)
    return data[:cut], data[cut:]


def _unfinished_bytes(data: bytes) -> int:
    """How many bytes at the end of ``data`` begin a UTF-8 character that is not complete yet."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 1
            return back if back < needed else 0
    return 0


def prefix_of(rank: int, *, colour: bool) -> bytes:
    """What stands in front of a line of ``rank``."""
    plain = f"[{rank}] "
    if not colour:
        return plain.encode()
    return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m[{rank}]\x1b[0m ".encode()


def wants_colour(*, is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether to colour: only on a terminal that can, and never where ``NO_COLOR`` is set."""
    if environ.get("NO_COLOR"):
        return False
    return is_terminal and environ.get("TERM", "") != "dumb"
