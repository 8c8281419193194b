"""A terminal with a job-controlling shell in it, as a person has it, for tests."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

from tests.e2e.harness import BOUND_S, Lines, processes_with


class Terminal:
    """``bash`` on a pseudo-terminal. A context manager: whatever runs in it is killed at the end.

    ``jlaunch(…)`` types a command; its events come as from ``harness.Job``.
    """

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="jl-"))
        self.runtime_dir = self.home / "run"
        self.runtime_dir.mkdir(mode=0o700)
        fifo = self.home / "events"
        os.mkfifo(fifo)
        self._keep_open = os.open(fifo, os.O_RDWR)
        self.events = Lines(fifo.open("rb"), "events")
        self._master, self.slave = os.openpty()
        self.before = termios.tcgetattr(self.slave)
        environ = {**os.environ, "JLAUNCH_RUNTIME_DIR": str(self.runtime_dir), "PS1": "$ ", "TERM": "dumb"}
        # A session of its own, with the terminal as its own: what a shell needs to control jobs.
        self.shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environ,
        )
        self._seen = b""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                with self._changed:
                    self._seen += data
                    self._changed.notify_all()

    def __enter__(self) -> Terminal:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *exc: object) -> None:
        self.shell.kill()
        self.shell.wait()
        for pid in processes_with(self.runtime_dir):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        os.close(self.slave)
        self._thread.join(BOUND_S)
        os.close(self._master)
        os.close(self._keep_open)
        self.events.join()
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- typing and reading ----------------------------------------------------------------------

    def type(self, text: str) -> None:
        """Keys, as they are: end a command with a newline; ``\\x03`` is Ctrl-C, ``\\x1a`` Ctrl-Z."""
        os.write(self._master, text.encode())

    def jlaunch(self, *words: str, after: str = "") -> None:
        """Type a jlaunch command; ``after`` is put behind it as it is (``&``, ``| head``)."""
        command = [sys.executable, "-m", "jlaunch", "--events", str(self.home / "events"), *words]
        code = "" if after == "&" else "; echo CODE=$?"
        self.type(f"{shlex.join(command)} {after}{code}\n")

    def wait(self, what: bytes, timeout_s: float = BOUND_S, count: int = 1) -> bytes:
        """Until ``what`` was seen so often; all that was seen so far."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._seen.count(what) < count:
                left = deadline - time.monotonic()
                assert left > 0, f"{what!r} × {count} not seen; the terminal shows:\n{self.text}"
                self._changed.wait(left)
            return self._seen

    @property
    def text(self) -> str:
        """All that was seen so far."""
        return self._seen.decode(errors="replace")

    def wait_code(self, code: int) -> None:
        """Until the command has ended, with that code."""
        self.wait(b"CODE=")
        self.wait(b"CODE=%d" % code, 1.0)

    def modes(self) -> list[object]:
        """The terminal's modes now; ``before`` are those it began with."""
        return termios.tcgetattr(self.slave)
