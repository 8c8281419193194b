"""The agent's half of the output: complete, in order, and never more than its credit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from jlaunch.core.messages import OUTPUT_CHUNK_BYTES, OUTPUT_MESSAGE_BYTES, OUTPUT_WINDOW_BYTES, Output
from jlaunch.io.clock import SystemClock
from jlaunch.runtime.driver import Driver
from jlaunch.runtime.pump import TAIL_LINES, OutputPump

OUT, ERR = 1, 2


class Rank:
    """A rank's two pipes, from the writing side."""

    def __init__(self, pump: OutputPump, rank: int = 0) -> None:
        readers, self.fds = zip(*(os.pipe() for _ in range(2)), strict=True)
        for fd in self.fds:
            os.set_blocking(fd, False)
        pump.add(rank, 1, stdout=readers[0], stderr=readers[1])

    def write(self, stream: int, data: bytes) -> int:
        try:
            return os.write(self.fds[stream - 1], data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


class Agent:
    def __init__(self) -> None:
        self.driver = Driver(SystemClock())
        self.sent: list[Output] = []
        self.pump = OutputPump(self.driver, self.sent.append)

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.driver.stop()
            self.driver.run()

    def output(self, rank: int, stream: int) -> bytes:
        return b"".join(piece.data for piece in self.sent if (piece.rank, piece.stream) == (rank, stream))


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.driver.close()


def test_bytes_pass_as_they_are_and_the_end_is_told(agent: Agent) -> None:
    rank = Rank(agent.pump)
    rank.write(OUT, b"\xff\x00caf\xc3")
    agent.turns()
    rank.write(OUT, b"\xa9")
    agent.turns()
    rank.close()
    agent.turns()
    assert agent.output(0, OUT) == b"\xff\x00caf\xc3\xa9"
    assert [(piece.stream, piece.data) for piece in agent.sent if not piece.data] == [(OUT, b""), (ERR, b"")]


def test_without_credit_nothing_is_read_and_with_it_nothing_is_lost(agent: Agent) -> None:
    rank = Rank(agent.pump)
    written = 0
    data = b"x" * OUTPUT_CHUNK_BYTES
    while size := rank.write(OUT, data):
        written += size
        agent.turns()
    assert 0 <= OUTPUT_WINDOW_BYTES - len(agent.output(0, OUT)) < OUTPUT_CHUNK_BYTES
    assert agent.pump.is_blocked(0, 1)
    agent.pump.taken(OUTPUT_WINDOW_BYTES)
    assert not agent.pump.is_blocked(0, 1)
    rank.close()
    agent.turns(3)
    assert len(agent.output(0, OUT)) == written
    assert all(len(piece.data) <= OUTPUT_CHUNK_BYTES for piece in agent.sent)


def test_a_window_of_very_short_lines_is_few_messages(agent: Agent) -> None:
    """What waits on the way takes memory for each message, not only for its bytes."""
    rank = Rank(agent.pump)
    most = OUTPUT_WINDOW_BYTES // OUTPUT_MESSAGE_BYTES
    for _ in range(most + 100):
        rank.write(OUT, b"\n")
        agent.turns()
    assert len(agent.sent) <= most
    rank.close()
    agent.pump.finish(0, 1)


def test_a_rank_is_not_blocked_by_another_ranks_flood_until_its_own_pipe_is_full(agent: Agent) -> None:
    flood, quiet = Rank(agent.pump, 0), Rank(agent.pump, 1)
    while flood.write(OUT, b"x" * OUTPUT_CHUNK_BYTES):
        agent.turns()
    quiet.write(OUT, b"hello\n")
    assert agent.pump.is_blocked(0, 1)
    assert not agent.pump.is_blocked(1, 1)
    flood.close()
    quiet.close()
    agent.pump.finish(0, 1)
    agent.pump.finish(1, 1)


def test_what_is_in_the_pipes_at_the_end_is_sent_without_credit(agent: Agent) -> None:
    rank = Rank(agent.pump)
    while rank.write(OUT, b"x" * OUTPUT_CHUNK_BYTES):
        agent.turns()
    rank.write(ERR, b"Traceback\n")
    # Somebody outside of the group still holds the pipes: that is no reason to wait.
    assert agent.pump.finish(0, 1) == ("Traceback",)
    assert len(agent.output(0, OUT)) > OUTPUT_WINDOW_BYTES - OUTPUT_CHUNK_BYTES
    assert agent.output(0, ERR) == b"Traceback\n"
    assert [piece.stream for piece in agent.sent if not piece.data] == [OUT, ERR]
    rank.close()


def test_the_tail_is_the_last_lines_of_stderr(agent: Agent) -> None:
    rank = Rank(agent.pump)
    for i in range(100):
        rank.write(ERR, b"line %d" % i)
        agent.turns()
        rank.write(ERR, b"\n" * (i % 2) + b" goes on\n")
        agent.turns()
    rank.write(ERR, b"unfinished")
    rank.write(OUT, b"not stderr")
    rank.close()
    agent.turns(2)
    tail = agent.pump.finish(0, 1)
    assert len(tail) == TAIL_LINES
    assert tail[-4:] == ("line 98 goes on", "line 99", " goes on", "unfinished")


def test_a_discarding_pump_reads_on_for_ever_and_sends_nothing(agent: Agent) -> None:
    rank = Rank(agent.pump)
    agent.pump.discard()
    for _ in range(2 * OUTPUT_WINDOW_BYTES // OUTPUT_CHUNK_BYTES):
        assert rank.write(OUT, b"x" * OUTPUT_CHUNK_BYTES)
        agent.turns()
    assert agent.output(0, OUT) == b""
    rank.close()
    agent.turns()


def test_a_flood_is_cut_between_lines(agent: Agent) -> None:
    rank = Rank(agent.pump)
    typed = b"".join(b"line %d\n" % i for i in range(40_000))
    written = 0
    while written < len(typed):
        written += rank.write(OUT, typed[written : written + 2 * OUTPUT_CHUNK_BYTES])
        agent.turns(1)
    rank.close()
    agent.turns(2)
    assert agent.output(0, OUT) == typed
    cut = [piece for piece in agent.sent if piece.stream == OUT and piece.data]
    full = [piece for piece in cut if len(piece.data) > OUTPUT_CHUNK_BYTES - 100]
    assert full
    assert all(piece.data.endswith(b"\n") for piece in full)


def test_a_line_longer_than_a_chunk_passes(agent: Agent) -> None:
    rank = Rank(agent.pump)
    typed = b"short\n" + b"x" * (3 * OUTPUT_CHUNK_BYTES) + b"\nend"
    written = 0
    while written < len(typed):
        written += rank.write(OUT, typed[written:])
        agent.turns()
    rank.close()
    agent.turns(3)
    assert agent.output(0, OUT) == typed
    assert all(len(piece.data) <= OUTPUT_CHUNK_BYTES for piece in agent.sent)
