"""Standard input: to all, in order, at the pace of the slowest, and never a spin."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from jlaunch.io.clock import SystemClock
from jlaunch.runtime.driver import Driver
from jlaunch.runtime.stdin import StdinFan, StdinReader


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(SystemClock())
    yield driver
    driver.close()


def turns(driver: Driver, count: int = 1) -> None:
    for _ in range(count):
        driver.stop()
        driver.run()


class Reader:
    """The supervisor's end, with a pipe as stdin and a list as the link."""

    def __init__(self, driver: Driver) -> None:
        self.fd, self.writer = os.pipe()
        self.sent: list[tuple[int, bytes]] = []
        self.stdin = StdinReader(driver, self.fd, lambda host, data: self.sent.append((host, data)))


def test_nothing_is_read_before_the_ranks_are_there(driver: Driver) -> None:
    reader = Reader(driver)
    os.write(reader.writer, b"early")
    turns(driver, 2)
    assert reader.sent == []
    reader.stdin.release({0})
    turns(driver)
    assert reader.sent == [(0, b"early")]


def test_the_next_piece_waits_for_all_hosts(driver: Driver) -> None:
    reader = Reader(driver)
    reader.stdin.release({0, 1})
    os.write(reader.writer, b"a")
    turns(driver)
    os.write(reader.writer, b"b")
    reader.stdin.taken(0)
    turns(driver)
    assert reader.sent == [(0, b"a"), (1, b"a")]
    reader.stdin.host_gone(1)
    turns(driver)
    assert reader.sent[2:] == [(0, b"b")]


def test_the_end_of_file_is_passed_on_once(driver: Driver) -> None:
    reader = Reader(driver)
    os.close(reader.writer)
    reader.stdin.release({0})
    turns(driver, 2)
    reader.stdin.taken(0)
    turns(driver, 2)
    assert reader.sent == [(0, b"")]


@pytest.mark.parametrize("fd", [os.open(os.devnull, os.O_RDONLY), 999_999], ids=["null", "closed"])
def test_dev_null_and_a_closed_stdin_are_the_end_of_file(driver: Driver, fd: int) -> None:
    sent: list[bytes] = []
    stdin = StdinReader(driver, fd, lambda _, data: sent.append(data))
    stdin.release({0})
    turns(driver)
    assert sent == [b""]


def test_a_terminal_is_not_read_in_its_background() -> None:
    """In a child with a terminal of its own, whose foreground is another process group."""
    import pty

    pid, master = pty.fork()
    if pid == 0:
        try:
            other = os.fork()
            if other == 0:
                signal.pause()
            os.setpgid(other, other)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, other)
            sent: list[bytes] = []
            driver = Driver(SystemClock())
            stdin = StdinReader(driver, 0, lambda _, data: sent.append(data))
            stdin.release({0})
            driver.call_later(0.2, driver.stop)
            os.write(1, b"ready\n")
            driver.run()
            in_background = list(sent)
            os.tcsetpgrp(0, os.getpgrp())
            driver._stopped = False
            driver.call_later(2.0, driver.stop)
            driver.run()
            os.kill(other, signal.SIGKILL)
            os._exit(0 if (in_background, sent) == ([], [b"typed\n"]) else 1)
        finally:
            os._exit(2)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(master, 100)
    os.write(master, b"typed\n")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(master)
    assert status == 0


class Fan:
    """The agent's end, with real pipes as the ranks' stdin."""

    def __init__(self, driver: Driver, readers: int) -> None:
        self.taken = 0
        self.fan = StdinFan(driver, readers, self._count)
        self.ranks: dict[int, int] = {}

    def _count(self) -> None:
        self.taken += 1

    def add(self, rank: int, epoch: int = 1) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.ranks[rank] = reader
        self.fan.add(rank, epoch, writer)

    def read(self, rank: int, most: int = 1 << 20) -> bytes | None:
        try:
            return os.read(self.ranks[rank], most)
        except BlockingIOError:
            return None


@pytest.fixture
def fan_of(driver: Driver) -> Iterator[Callable[[int], Fan]]:
    made: list[Fan] = []

    def make(readers: int) -> Fan:
        made.append(Fan(driver, readers))
        return made[-1]

    yield make
    for fan in made:
        for rank, reader in fan.ranks.items():
            fan.fan.remove(rank)
            os.close(reader)


def test_each_rank_gets_the_piece(fan_of: Callable[[int], Fan]) -> None:
    fan = fan_of(2)
    fan.add(0)
    fan.add(1)
    fan.fan.put(b"hello")
    assert (fan.read(0), fan.read(1), fan.taken) == (b"hello", b"hello", 1)


def test_a_piece_waits_until_all_ranks_are_there(fan_of: Callable[[int], Fan]) -> None:
    fan = fan_of(2)
    fan.add(0)
    fan.fan.put(b"hello")
    assert (fan.read(0), fan.taken) == (None, 0)
    fan.add(1)
    assert (fan.read(0), fan.read(1), fan.taken) == (b"hello", b"hello", 1)


def test_the_slowest_reader_sets_the_pace(driver: Driver, fan_of: Callable[[int], Fan]) -> None:
    fan = fan_of(2)
    fan.add(0)
    fan.add(1)
    piece = b"x" * 65536
    fan.fan.put(piece)
    fan.fan.put(piece)
    assert fan.read(0) == piece
    turns(driver)
    assert (fan.read(0), fan.taken) == (piece, 1)
    assert fan.read(1) == piece
    turns(driver)
    assert (fan.read(1), fan.taken) == (piece, 2)


def test_a_rank_that_is_gone_holds_nobody_up(fan_of: Callable[[int], Fan]) -> None:
    fan = fan_of(2)
    fan.add(0)
    fan.add(1)
    fan.fan.put(b"x" * 65536)
    fan.fan.put(b"y")
    os.close(fan.ranks.pop(1))
    fan.fan.remove(1)
    fan.read(0)
    fan.fan.put(b"z") if fan.taken == 2 else None
    assert fan.taken >= 1


def test_the_end_of_file_closes_all_also_those_who_come_later(fan_of: Callable[[int], Fan]) -> None:
    fan = fan_of(1)
    fan.add(0)
    fan.fan.put(b"")
    assert (fan.read(0), fan.taken) == (b"", 1)
    os.close(fan.ranks.pop(0))
    fan.add(0, epoch=2)
    assert fan.read(0) == b""


def test_a_new_epoch_waits_for_its_own_ranks(fan_of: Callable[[int], Fan]) -> None:
    fan = fan_of(2)
    for rank in (0, 1):
        fan.add(rank)
    for rank in (0, 1):
        fan.fan.remove(rank)
        os.close(fan.ranks.pop(rank))
    fan.add(0, epoch=2)
    fan.fan.put(b"again")
    assert fan.read(0) is None
    fan.add(1, epoch=2)
    assert (fan.read(0), fan.read(1)) == (b"again", b"again")
