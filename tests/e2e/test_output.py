"""Output of real ranks: complete, in order, never torn, whatever the ranks write and however slowly it is read."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.harness import MIB, Job, memory_peak_bytes, own_processes, program

pytestmark = pytest.mark.e2e

PREFIX = re.compile(rb"\[(\d)\] ")


def shown_of(lines: list[bytes], rank: int) -> bytes:
    """What is shown of a rank without prefixes and ends of lines."""
    mark = b"[%d] " % rank
    return b"".join(line[len(mark) :] for line in lines if line.startswith(mark))


@pytest.mark.parametrize("streams", ["apart", "together"])
def test_pieces_of_lines_and_of_characters_are_shown_whole(streams: str, tmp_path: Path) -> None:
    count, ranks = 40, 4
    options = ("--log-dir", str(tmp_path))
    stderr = subprocess.PIPE if streams == "apart" else subprocess.STDOUT
    with Job(*program("pieces.py", "cut", count), ranks=ranks, options=options, stderr=stderr) as job:
        assert job.end() == 0, job.describe()
    for rank in range(ranks):
        lines = [f"{number} of rank {rank}: aé€😀{'ü' * (number % 7)}" for number in range(count)]
        text = "\n".join(lines).encode()
        for suffix in ("out", "err"):
            assert (tmp_path / f"rank-{rank}.{suffix}").read_bytes() == text
        if streams == "apart":
            for sheet in (job.stdout.all, job.stderr.all):
                assert shown_of(sheet, rank) == text.replace(b"\n", b"")
    for line in [*job.stdout.all, *job.stderr.all]:
        # A line that is shown in two pieces is cut between characters, and each piece has its owner's prefix.
        assert PREFIX.match(line), line
        line.decode()
    if streams == "together":
        size = sum(len(shown_of(job.stdout.all, rank)) for rank in range(ranks))
        written = sum(path.stat().st_size - (count - 1) for path in tmp_path.iterdir())
        assert size == written


def test_progress_bars_of_all_ranks_are_complete_and_each_is_told_apart(tmp_path: Path) -> None:
    count, ranks = 100, 4
    options = ("--log-dir", str(tmp_path))
    with Job(*program("pieces.py", "bar", count), ranks=ranks, options=options) as job:
        assert job.end() == 0, job.describe()
    shown: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    for part in re.split(rb"[\r\n]", b"\n".join(job.stderr.all)):
        if part:
            prefix = PREFIX.match(part)
            assert prefix, part
            states = re.findall(rb"(\d+)/100", part)
            shown[int(prefix[1])] += [int(state) for state in states]
    for rank in range(ranks):
        assert shown[rank] == list(range(count + 1))
        assert (tmp_path / f"rank-{rank}.err").read_bytes().count(b"\r") == count + 1


def test_raw_inserts_nothing() -> None:
    with Job(*program("pieces.py", "cut", 40), ranks=1, options=("--output", "raw")) as job:
        assert job.end() == 0, job.describe()
    text = [f"{number} of rank 0: aé€😀{'ü' * (number % 7)}".encode() for number in range(40)]
    assert job.stdout.all == job.stderr.all == text


def test_a_flood_to_a_slow_reader_is_complete_and_needs_no_memory() -> None:
    """4 × 50 MB; the reader begins when everything on the way is full."""
    count, ranks = 50 * 1024, 4
    reader, writer = os.pipe()
    command = program("pieces.py", "flood", count)
    with (
        Job(*command, ranks=ranks, stdin=subprocess.PIPE, stdout=writer) as job,
        open(reader, "rb") as screen,
    ):
        os.close(writer)
        job.wait_events("RankSpawned", ranks)
        before = {pid: memory_peak_bytes(pid) for pid in own_processes(job)}
        job.wait_time(3.0)
        assert not any(b"all written" in line for line in job.stderr.all)
        following = [0] * ranks
        for _ in range(ranks * count):
            line = screen.readline()
            prefix = PREFIX.match(line)
            assert prefix, line[:100]
            rank = int(prefix[1])
            assert line[4:] == b"%08d" % following[rank] + b"x" * 1015 + b"\n", line[:100]
            following[rank] += 1
        assert following == [count] * ranks
        for pid, peak_bytes in before.items():
            assert memory_peak_bytes(pid) - peak_bytes < 32 * MIB
        assert job.process.stdin is not None
        job.process.stdin.close()
        assert job.end() == 0, job.describe()


STRICT = ("--deadline", "200ms", "--straggler-timeout", "1s")


def test_a_rank_that_waits_for_our_reader_is_neither_late_nor_stuck() -> None:
    reader, writer = os.pipe()
    with (
        Job(*program("blocked.py", 8), ranks=2, options=STRICT, stdout=writer) as job,
        open(reader, "rb") as screen,
    ):
        os.close(writer)
        job.wait_event("DeadlineAsked")
        job.wait_time(4.0)
        shown = screen.read()
        assert job.end() == 0, job.describe()
        assert shown.count(b"x\n") == 8 * 1024
        assert shown.count(b"done 2.0") == 2


def test_its_twin_that_waits_for_nothing_of_ours_is_stuck() -> None:
    with Job(*program("late.py", 1, 1000), ranks=2, options=(*STRICT, "--grace", "1s")) as job:
        assert job.end() == 74, job.describe()
