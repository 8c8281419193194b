"""Runs the real ``jlaunch`` as a user would, and waits for what it says.

Every wait is for an event (a line of the event log, of stdout, the end of a process) and has a bound.
Readers are threads that only append lines and notify; nothing here polls with a sleep.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from jlaunch.core.replay import replay
from jlaunch.view.replay import replay_lines

PROGRAMS = Path(__file__).parent / "programs"
BOUND_S = 60.0
"""How long a wait may take on a loaded two-core machine before it counts as a failure."""


class Lines:
    """Lines as they come, from one file, with waits that have a bound."""

    def __init__(self, source: IO[bytes], name: str) -> None:
        self.name = name
        self.all: list[bytes] = []
        self.ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._thread.start()

    def _read(self, source: IO[bytes]) -> None:
        with source:
            for line in source:
                with self._changed:
                    self.all.append(line.rstrip(b"\n"))
                    self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def wait(self, accept: Callable[[list[bytes]], Any], timeout_s: float = BOUND_S, what: str = "") -> Any:
        """The first true value of ``accept(lines so far)``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not (value := accept(self.all)):
                left = deadline - time.monotonic()
                if left <= 0 or self.ended:
                    text = b"\n".join(self.all[-40:]).decode(errors="replace")
                    why = "ended" if self.ended else f"{timeout_s} s passed"
                    raise AssertionError(f"{self.name}: {why} without {what or accept}; last lines:\n{text}")
                self._changed.wait(left)
        return value

    def join(self, timeout_s: float = BOUND_S) -> None:
        """Wait for the end of file."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self.name} did not end"


class Job:
    """One run of jlaunch. Use as a context manager: it kills what is left and removes its directory."""

    def __init__(
        self,
        *command: str,
        ranks: int = 4,
        options: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        under: tuple[str, ...] = (),
    ) -> None:
        """``under`` is put in front of the command line (``nohup``)."""
        # Socket paths are short (104 bytes on macOS): pytest's tmp_path is not.
        self.home = Path(tempfile.mkdtemp(prefix="jl-"))
        self.runtime_dir = self.home / "run"
        self.runtime_dir.mkdir(mode=0o700)
        fifo = self.home / "events"
        os.mkfifo(fifo)
        # Opened for both, so that the reader exists before the launcher opens it and never sees an early end.
        self._keep_open = os.open(fifo, os.O_RDWR)
        self.events_lines = Lines(fifo.open("rb"), "events")
        words = [sys.executable, "-m", "jlaunch", "-n", str(ranks), "--events", str(fifo), *options, "--"]
        full_env = {**os.environ, "JLAUNCH_RUNTIME_DIR": str(self.runtime_dir), **(env or {})}
        self.process = subprocess.Popen(
            [*under, *words, *command],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=full_env,
            start_new_session=True,
        )
        # A test that gave a descriptor of its own reads the output itself.
        self.stdout = Lines(self.process.stdout or io.BytesIO(), "stdout")
        self.stderr = Lines(self.process.stderr or io.BytesIO(), "stderr")

    def __enter__(self) -> Job:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(self._keep_open)
        for lines in (self.events_lines, self.stdout, self.stderr):
            lines.join()
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- waiting ---------------------------------------------------------------------------------

    def wait_event(self, kind: str, timeout_s: float = BOUND_S, **fields: Any) -> dict[str, Any]:
        """The first event of ``kind`` whose named fields have these values."""
        return self.wait_events(kind, 1, timeout_s, **fields)[0]

    def wait_events(
        self, kind: str, count: int, timeout_s: float = BOUND_S, **fields: Any
    ) -> list[dict[str, Any]]:
        """The first ``count`` such events."""

        def enough(lines: list[bytes]) -> list[dict[str, Any]] | None:
            found = [event for event in map(json.loads, lines) if matches(event, kind, fields)]
            return found[:count] if len(found) >= count else None

        found: list[dict[str, Any]] = self.events_lines.wait(enough, timeout_s, f"{count} × {kind} {fields}")
        return found

    def wait_time(self, span_s: float) -> float:
        """Wait until the job's own events, its heartbeats if nothing else, tell of so much more time; the span."""
        began = time.monotonic()
        known = len(self.events_lines.all)
        since = self.wait_more(known, -1.0)
        until = self.wait_more(known, since + span_s)
        assert until - since >= span_s
        return time.monotonic() - began

    def wait_more(self, known: int, at_least: float) -> float:
        """The time of the first event after the first ``known`` whose time is no less than that."""

        def late_enough(lines: list[bytes]) -> float | None:
            times = (float(json.loads(line)["t"]) for line in lines[known:])
            return next((t for t in times if t >= at_least), None)

        found: float = self.events_lines.wait(late_enough, what=f"an event at {at_least:.1f} s")
        return found

    def wait_said(self, kind: str, count: int, timeout_s: float = BOUND_S) -> list[dict[str, Any]]:
        """The first ``count`` JSON lines of that kind that the ranks printed."""

        def enough(lines: list[bytes]) -> list[dict[str, Any]] | None:
            found = [line for line in said(lines) if line["kind"] == kind]
            return found[:count] if len(found) >= count else None

        found: list[dict[str, Any]] = self.stdout.wait(enough, timeout_s, f"{count} × {kind}")
        return found

    def end(self, timeout_s: float = BOUND_S) -> int:
        """Exit code of the launcher (negative: killed), with all of its output read."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"jlaunch did not end in {timeout_s} s\n{self.describe()}") from None
        self.stdout.join()
        self.stderr.join()
        return code

    # ---- looking ---------------------------------------------------------------------------------

    @property
    def events(self) -> list[dict[str, Any]]:
        """All events so far."""
        return [json.loads(line) for line in self.events_lines.all]

    def said(self, kind: str) -> list[dict[str, Any]]:
        """JSON lines of that kind that the ranks printed so far."""
        return [line for line in said(self.stdout.all) if line["kind"] == kind]

    def of_kind(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """All events of that kind so far."""
        return [event for event in self.events if matches(event, kind, fields)]

    def token(self) -> str:
        """The job's id, from the environment that its ranks carry."""
        record = self.wait_event("JobStarted")
        return str(record["job"])

    def processes(self) -> list[int]:
        """Every live process that carries this run's private directory in its environment."""
        return processes_with(self.runtime_dir)

    def assert_nothing_left(self, timeout_s: float = 5.0) -> None:
        """No process of the job lives and its private directory is empty, within the bound."""
        deadline = time.monotonic() + timeout_s
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                wait_gone(pid, max(0.0, deadline - time.monotonic()))
        left = [(pid, command_of(pid)) for pid in self.processes()]
        assert not left, f"processes left: {left}"
        files = [str(path) for path in self.runtime_dir.rglob("*") if not path.is_dir()]
        assert not files, f"files left: {files}"
        self.assert_replays()

    def assert_replays(self) -> None:
        """Its log, fed to a fresh machine, gives the same decisions, whatever happened."""
        if self.process.returncode in (None, 2) or self.process.returncode < 0:
            return  # refused before there was a log, or killed in the middle of it
        self.wait_event("EndJob")
        (replayed,) = replay(self.events)
        assert replayed.first_difference is None, "\n".join(replay_lines(replayed))

    def describe(self) -> str:
        """Everything for the text of a failure."""
        parts = []
        for lines in (self.stdout, self.stderr, self.events_lines):
            text = b"\n".join(lines.all[-60:]).decode(errors="replace")
            parts.append(f"--- {lines.name}\n{text}")
        return "\n".join(parts)


def processes_with(runtime_dir: Path) -> list[int]:
    """Every live process that carries this private directory in its environment."""
    mark = f"JLAUNCH_RUNTIME_DIR={runtime_dir}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    if state not in "ZX":
                        found.append(int(entry.name))
    return found


def own_processes(job: Job) -> list[int]:
    """Supervisor and agent."""
    return [job.process.pid, int(job.wait_event("AgentReady")["pid"])]


def memory_peak_bytes(pid: int) -> int:
    """The most memory that a process has had at any time."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def said(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """JSON lines printed by ranks, with or without the prefix."""
    for line in lines:
        start = line.find(b"{")
        if start >= 0 and line.endswith(b"}"):
            with contextlib.suppress(ValueError):
                yield json.loads(line[start:])


def matches(event: dict[str, Any], kind: str, fields: dict[str, Any]) -> bool:
    """Whether an event is of that kind and has these fields."""
    return event["kind"] == kind and all(event.get(name) == value for name, value in fields.items())


def wait_gone(pid: int, timeout_s: float) -> None:
    """Wait until the process has ended (it may be nobody's child of ours)."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        gone = select.select([pidfd], [], [], timeout_s)[0]
        assert gone, f"process {pid} ({command_of(pid)}) still lives after {timeout_s:.1f} s"
    finally:
        os.close(pidfd)


def command_of(pid: int) -> str:
    """Command line of a process, '' if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def program(name: str, *arguments: object) -> tuple[str, ...]:
    """A test program and its arguments as a command."""
    return (str(PROGRAMS / name), *map(str, arguments))


MIB = 1 << 20
