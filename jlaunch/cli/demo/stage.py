"""Where a scene plays: a real jlaunch in a process of its own, and what it and its ranks tell.

Everything is waited for as an event, with a bound; nothing here sleeps.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

LOOP = Path(__file__).with_name("loop.py")

BOUND_S = 30.0
"""How long any one thing may take before the scene has failed; generous, for a busy machine."""

Line = dict[str, Any]


class SceneFailed(Exception):
    """Something that a scene waits for did not come. The text says what."""


class Fifo:
    """JSON lines from many processes: a named pipe that is open at both ends, so that it never ends."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o600)
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._held = b""

    def read(self) -> list[Line]:
        """The lines that have come, without waiting."""
        try:
            self._held += os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        *lines, self._held = self._held.split(b"\n")
        return [json.loads(line) for line in lines]


class Stage:
    """One run of jlaunch with its ranks. A context: what is left of it is ended when the block ends."""

    def __init__(self, *options: str, turns: int) -> None:
        self.options = options
        self._home = Path(tempfile.mkdtemp(prefix="jlaunch-demo-"))
        self._events = Fifo(self._home / "events")
        self._told = Fifo(self._home / "told")
        self.events: list[Line] = []
        self.told: list[Line] = []
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jlaunch", *options, "--events", str(self._events.path)),
                *("--stdin", "none", "--", str(LOOP), str(self._told.path), str(turns)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Stage:  # noqa: PYI034 (Self: not in Python 3.10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            # The launcher ends its ranks itself; should even that fail, nothing of the demo stays behind it.
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.communicate(timeout=BOUND_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        for fifo in (self._events, self._told):
            os.close(fifo.fd)
        shutil.rmtree(self._home, ignore_errors=True)

    def wait(self, found: Callable[[], Any], what: str, timeout_s: float = BOUND_S) -> Any:
        """The first true value of ``found()``, which looks at ``events`` and ``told`` as they grow."""
        deadline = time.monotonic() + timeout_s
        while not (value := found()):
            left = deadline - time.monotonic()
            if left <= 0:
                raise SceneFailed(f"{what}: did not come within {timeout_s:g} s")
            select.select([self._events.fd, self._told.fd], [], [], left)
            self._read()
        return value

    def let_pass(self, seconds: float) -> None:
        """Let time go by as part of the scene, and take in what is told meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([self._events.fd, self._told.fd], [], [], left)
            self._read()

    def told_by(self, what: str, **fields: Any) -> list[Line]:
        """The ranks' lines of this kind that carry these fields."""
        return [t for t in self.told if t["what"] == what and all(t.get(k) == v for k, v in fields.items())]

    def event(self, kind: str, **fields: Any) -> Line | None:
        """The first event of this kind that carries these fields."""
        for event in self.events:
            if event["kind"] == kind and all(event.get(k) == v for k, v in fields.items()):
                return event
        return None

    def end(self) -> tuple[int, str]:
        """Wait for jlaunch itself: its exit code and all that it printed."""
        try:
            out, _ = self._process.communicate(timeout=BOUND_S)
        except subprocess.TimeoutExpired as error:
            raise SceneFailed(f"jlaunch did not end within {BOUND_S:g} s") from error
        self._read()
        return self._process.returncode, out.decode(errors="replace")

    def _read(self) -> None:
        at = time.monotonic()
        self.events += [{**line, "seen_at": at} for line in self._events.read()]
        self.told += self._told.read()
