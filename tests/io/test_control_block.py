"""The control block's port: values in and out, and a death seen before the memory is freed."""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jlaunch.core.contract import Collective, Phase, Reason, VerdictKind
from jlaunch.core.events import Loss
from jlaunch.io import platform
from jlaunch.io.control_block import HostBlock, RankBlock, Watch

CLAIMANT = Path(__file__).with_name("claimant.py")
PATIENCE_S = 20.0

# Offsets of control_block.h, as the rank writes them.
RANK_PART = 128
PHASE, EPOCH, PROGRESS, REPORTS = RANK_PART + 8, RANK_PART + 12, RANK_PART + 16, RANK_PART + 24
QUESTION, QUESTION_SLOT, IN_WAIT, DESYNC_PEER = (RANK_PART + 32 + 4 * i for i in range(4))
SLOTS, SLOT_BYTES = RANK_PART + 128, 192
BELL, VERDICT = 64, SLOTS + 8 * SLOT_BYTES


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostBlock]:
    block = HostBlock.create(str(tmp_path / "host.block"), lease_s=float("inf"), grace_s=1.0)
    yield block
    block.close()


@pytest.fixture
def watch(host: HostBlock) -> Iterator[Watch]:
    watch = host.watch()
    yield watch
    watch.close()


class Rank:
    """A rank's block, and the same bytes as the rank sees them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.block = RankBlock.create(str(path), rank=2, epoch=1, world_size=4)
        with path.open("r+b") as file:
            self.raw = mmap.mmap(file.fileno(), 0)

    def put(self, offset: int, form: str, *values: int) -> None:
        struct.pack_into(form, self.raw, offset, *values)

    def get(self, offset: int, form: str) -> int:
        return int(struct.unpack_from(form, self.raw, offset)[0])

    def enter(self, slot: int, collective: int, *, seq: int, bytes_: int, waiting_for: int) -> None:
        now = platform_now_ns()
        self.put(
            SLOTS + slot * SLOT_BYTES,
            "=IIQQQQQQQ",
            2,
            collective,
            0,
            seq,
            seq - 1,
            bytes_,
            now,
            now,
            waiting_for,
        )


def platform_now_ns() -> int:
    import time

    return time.monotonic_ns()


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path / "rank-2.e1.block")


def test_a_new_block_is_empty(rank: Rank) -> None:
    state = rank.block.read()
    assert (state.owner_pid, state.owner_alive, state.phase) == (0, False, Phase.NONE)
    assert (state.waits, state.wait, state.asked_in, state.desync, state.torn) == (
        (),
        None,
        None,
        None,
        False,
    )
    assert os.stat(rank.path).st_mode & 0o777 == 0o600


def test_what_a_rank_writes_is_read(rank: Rank) -> None:
    rank.put(PHASE, "=IIQQ", Phase.FORMED, 1, 17, 3)
    rank.put(QUESTION, "=III", 2, 1, 1)
    rank.enter(0, Collective.NONE, seq=9, bytes_=0, waiting_for=0)
    rank.enter(1, Collective.ALL_SUM, seq=3, bytes_=1 << 24, waiting_for=0b1001)
    state = rank.block.read()
    assert (state.phase, state.epoch, state.progress, state.reports) == (Phase.FORMED, 1, 17, 3)
    assert (state.question, state.in_wait, state.completed_seq) == (2, True, 8)
    wait = state.wait
    assert wait is not None
    assert state.asked_in == wait
    assert (wait.collective, wait.seq, wait.size_bytes) == (Collective.ALL_SUM, 3, 1 << 24)
    assert wait.waiting_for == (0, 3)
    assert 0 <= wait.waited_s < PATIENCE_S
    sample = state.sample(paused=True, output_blocked=False)
    assert (sample.progress, sample.reports, sample.completed_seq, sample.paused) == (17, 3, 8, True)
    assert sample.wait == wait


def test_numbers_that_mean_nothing_are_left_out(rank: Rank) -> None:
    rank.put(PHASE, "=I", 4711)
    rank.put(QUESTION, "=IIII", 1, 4711, 0, 1 + 4711)
    rank.enter(0, 99, seq=1, bytes_=0, waiting_for=1)
    rank.enter(1, Collective.RECV, seq=1, bytes_=0, waiting_for=1 << 40 | 2)
    state = rank.block.read()
    assert state.phase is Phase.NONE
    assert state.asked_in is None
    assert state.desync is None
    assert [(wait.collective, wait.waiting_for) for wait in state.waits] == [(Collective.RECV, (1,))]


def test_a_frozen_writer_is_read_past(rank: Rank) -> None:
    rank.enter(0, Collective.SEND, seq=5, bytes_=4, waiting_for=2)
    rank.put(SLOTS, "=I", 7)
    state = rank.block.read()
    assert state.torn
    assert state.completed_seq == 4


def test_a_verdict_reaches_the_block_and_the_bell(rank: Rank) -> None:
    losses = [Loss(rank=1, reason=Reason.KILLED, completed_seq=7)]
    rank.block.write_verdict(3, VerdictKind.RAISE, losses, question=2)
    lock, kind, verdict, answered, count = struct.unpack_from("=IIIII", rank.raw, VERDICT)
    assert (lock % 2, kind, verdict, answered, count) == (0, VerdictKind.RAISE, 3, 2, 1)
    assert rank.get(BELL, "=I") == 1
    rank.block.write_verdict(4, VerdictKind.STOP)
    rank.block.write_verdict(5, VerdictKind.KEEP_WAITING, question=9)
    rank.block.write_verdict(6, VerdictKind.RAISE, losses)
    _, kind, verdict, answered, count = struct.unpack_from("=IIIII", rank.raw, VERDICT)
    assert (kind, verdict, answered, count) == (VerdictKind.STOP, 6, 9, 1)


def test_verdicts_that_make_no_sense_are_refused(rank: Rank) -> None:
    with pytest.raises(ValueError, match="lost rank 1024"):
        rank.block.write_verdict(1, VerdictKind.RAISE, [Loss(rank=1024, reason=Reason.KILLED)])
    with pytest.raises(ValueError, match="verdict kind 0"):
        rank.block.write_verdict(1, VerdictKind.NONE)
    rank.block.close()
    with pytest.raises(ValueError, match="closed"):
        rank.block.read()


def test_errors_are_the_systems_own(tmp_path: Path, rank: Rank) -> None:
    with pytest.raises(FileExistsError):
        RankBlock.create(str(rank.path), rank=0, epoch=1, world_size=1)
    with pytest.raises(FileNotFoundError):
        HostBlock.open(str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="magic"):
        HostBlock.open(str(rank.path))
    with pytest.raises(ValueError, match="lease_s"):
        HostBlock.create(str(tmp_path / "new"), lease_s=-1, grace_s=1)


def test_the_agent_is_alive_while_it_watches(host: HostBlock, tmp_path: Path) -> None:
    seen = HostBlock.open(str(tmp_path / "host.block"))
    assert (seen.agent_pid, seen.agent_alive) == (os.getpid(), False)
    watch = host.watch()
    assert seen.agent_alive
    with pytest.raises(RuntimeError, match="held already"):
        host.watch()
    watch.close()
    assert not seen.agent_alive


class Claimant:
    """A process that holds a rank's claim, with so much memory resident."""

    def __init__(self, path: Path, memory_mib: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(CLAIMANT), str(path), str(memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"claimed\n"

    def exit(self, code: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"%d\n" % code)
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.pidfd)


@pytest.fixture
def claim(rank: Rank) -> Iterator[Callable[[int], Claimant]]:
    running: list[Claimant] = []

    def start(memory_mib: int) -> Claimant:
        running.append(Claimant(rank.path, memory_mib))
        return running[-1]

    yield start
    for claimant in running:
        claimant.close()


@pytest.mark.parametrize(("end", "status"), [("killed", -signal.SIGKILL), ("exited", 7)])
def test_a_death_and_its_cause_are_known_before_the_memory_is_freed(
    rank: Rank, watch: Watch, claim: Callable[[int], Claimant], end: str, status: int
) -> None:
    watch.add(2, rank.block)
    claimant = claim(1024)
    pid = claimant.process.pid
    state = rank.block.read()
    assert (state.owner_pid, state.owner_alive) == (pid, True)
    assert platform.early_status(pid) is None
    if end == "killed":
        claimant.process.kill()
    else:
        claimant.exit(7)
    ready, _, _ = select.select([watch.fileno(), claimant.pidfd], [], [], PATIENCE_S)
    early = platform.early_status(pid)
    assert ready == [watch.fileno()], "waitpid would not have known it yet"
    assert early == status
    assert watch.take()[0] == [2]
    assert not rank.block.read().owner_alive
    assert claimant.process.wait() == status


def test_a_removed_rank_is_not_told(rank: Rank, watch: Watch, claim: Callable[[int], Claimant]) -> None:
    watch.add(2, rank.block)
    with pytest.raises(ValueError, match="watched already"):
        watch.add(2, rank.block)
    claimant = claim(0)
    watch.remove(2)
    claimant.process.kill()
    claimant.process.wait()
    assert watch.take()[0] == []
