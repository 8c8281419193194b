"""Standard input of every kind, and a quiet job: no spin, no growth, and the end of file is passed on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import MIB, Job, cpu_s, memory_peak_bytes, own_processes

pytestmark = pytest.mark.e2e

QUIET_S = 4.0
BUSY_SHARE = 0.05
"""Of one core, for supervisor and agent together; what is measured is in docs/performance.md."""


class Hold:
    """A FIFO that ranks open first (``exec 3<PATH``) and read to its end (``cat <&3``) before they end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR)

    def release(self) -> None:
        """Let them go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def assert_quiet(job: Job) -> None:
    """Supervisor and agent do next to nothing, by the system's account of their time, and do not grow."""
    own = own_processes(job)
    assert len(own) == 2
    peaks = {pid: memory_peak_bytes(pid) for pid in own}
    before = sum(cpu_s(pid) for pid in own)
    span_s = job.wait_time(QUIET_S)
    spent_s = sum(cpu_s(pid) for pid in own) - before
    assert spent_s <= BUSY_SHARE * span_s, f"{spent_s:.2f} s of CPU in {span_s:.1f} s"
    assert all(memory_peak_bytes(pid) - peak < 8 * MIB for pid, peak in peaks.items())


@pytest.fixture
def gigabyte(tmp_path: Path) -> Path:
    """A file of 1 GiB that takes no room."""
    path = tmp_path / "gigabyte"
    with path.open("wb") as file:
        file.truncate(1024 * MIB)
    return path


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    with_end = Hold(tmp_path / "hold")
    yield with_end
    with_end.release()


@pytest.mark.parametrize("kind", ["null", "closed pipe", "open pipe", "gigabyte"])
def test_input_that_nobody_reads_costs_nothing(kind: str, hold: Hold, gigabyte: Path) -> None:
    reader, writer = os.pipe()
    path = {"null": Path(os.devnull), "gigabyte": gigabyte}.get(kind)
    stdin = reader if path is None else os.open(path, os.O_RDONLY)
    if kind == "closed pipe":
        os.close(writer)
    with Job(*sh(f"exec 3<{hold.path}; echo up; cat <&3"), ranks=2, stdin=stdin) as job:
        job.stdout.wait(lambda lines: sum(line.endswith(b"up") for line in lines) == 2)
        assert_quiet(job)
        hold.release()
        assert job.end() == 0, job.describe()
    for fd in {stdin, reader} | ({writer} if kind != "closed pipe" else set()):
        os.close(fd)


def test_a_stdin_that_was_closed_is_an_end_of_file() -> None:
    with Job(*sh("wc -c"), ranks=2, under=("sh", "-c", 'exec "$@" <&-', "sh")) as job:
        assert job.end() == 0, job.describe()
        assert sorted(line.split() for line in job.stdout.all) == [[b"[0]", b"0"], [b"[1]", b"0"]]


def test_a_gigabyte_reaches_the_ranks_that_read_it(gigabyte: Path, hold: Hold) -> None:
    """In bounded memory; a rank that closes its stdin after ten bytes holds nobody up."""
    script = "exec 3<{}; if [ $JLAUNCH_RANK = 0 ]; then head -c 10 | wc -c; else wc -c; fi; exec <&-; cat <&3"
    with gigabyte.open("rb") as file, Job(*sh(script.format(hold.path)), ranks=2, stdin=file.fileno()) as job:
        job.wait_events("RankSpawned", 2)
        peaks = {pid: memory_peak_bytes(pid) for pid in own_processes(job)}
        job.stdout.wait(lambda lines: len(lines) == 2)
        assert all(memory_peak_bytes(pid) - peak < 16 * MIB for pid, peak in peaks.items())
        hold.release()
        assert job.end() == 0, job.describe()
        assert sorted(line.split() for line in job.stdout.all) == [[b"[0]", b"10"], [b"[1]", b"1073741824"]]


def test_input_works_on_all_ranks() -> None:
    program = "import sys\nname = input('name? ')\nprint(name, sys.stdin.read() == 'more\\n')"
    with Job("python3", "-c", program, ranks=3, stdin=subprocess.PIPE) as job:
        assert job.process.stdin is not None
        job.process.stdin.write(b"bob\nmore\n")
        job.process.stdin.close()
        assert job.end() == 0, job.describe()
        shown = b"".join(job.stdout.all)
        for rank in range(3):
            assert b"[%d] name? " % rank in shown
        assert shown.count(b"bob True") == 3
