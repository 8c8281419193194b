"""What the benches share: a FIFO that ranks report to, commands of each side, quantiles."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


class Fifo:
    """Lines from many processes, each with a bound on how long it may take."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Opened for both, so that it never reads end of file between two writers.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._held = b""

    def line(self, timeout_s: float) -> list[str] | None:
        """The words of the next line, or None when none came in time."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._held:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                return None
            self._held += os.read(self._fd, 65536)
        first, self._held = self._held.split(b"\n", 1)
        return first.decode().split()

    def close(self) -> None:
        """Close our end."""
        os.close(self._fd)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A private directory that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="jlaunch-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running(command: list[str], **kwargs: object) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a session of its own, killed with its group when the block ends."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **kwargs,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def jlaunch(ranks: int, *options: str) -> list[str]:
    """The start of a jlaunch command line."""
    return [sys.executable, "-m", "jlaunch", "-n", str(ranks), *options, "--"]


def mlx_launch(ranks: int, port: int) -> list[str]:
    """The start of an ``mlx.launch`` command line (MLX's ring on loopback)."""
    return [
        tool("mlx.launch"), "--backend", "ring", "--hosts", "127.0.0.1", "-n", str(ranks),
        "--starting-port", str(port), "--",
    ]  # fmt: skip


def mpirun(ranks: int, *options: str) -> list[str]:
    """The start of an Open MPI command line; more ranks than cores and root are allowed."""
    return [
        tool("mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
        *options, "-n", str(ranks),
    ]  # fmt: skip


def tool(name: str) -> str:
    """A command beside this interpreter, else on PATH; a bench without its other side is no bench."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} not found; the bench needs: pip install '.[bench]'")
    return found


def row(label: str, samples_ms: list[float]) -> str:
    """One line: median, worst, and every sample."""
    if not samples_ms:
        return f"{label:44s} no samples"
    ordered = sorted(samples_ms)
    return (
        f"{label:44s} median {statistics.median(ordered):8.2f}  worst {ordered[-1]:8.2f} ms"
        f"  n={len(ordered)}  [{' '.join(f'{s:.2f}' for s in samples_ms)}]"
    )
