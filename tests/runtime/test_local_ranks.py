"""Real processes and real control blocks, as the agent machine hears of them."""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

from jlaunch.core.actions import SignalGroup, StartProcess, WriteBlock
from jlaunch.core.contract import VerdictKind
from jlaunch.core.events import Event
from jlaunch.core.facts import (
    AgentInput,
    GroupVanished,
    LeftWait,
    ProcessContinued,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    ProcessStopped,
)
from jlaunch.core.messages import Output
from jlaunch.io import process
from jlaunch.io.clock import SystemClock
from jlaunch.io.control_block import HostBlock
from jlaunch.io.guardian_process import GuardianProcess
from jlaunch.runtime.driver import Driver
from jlaunch.runtime.local_ranks import LocalRanks
from jlaunch.runtime.pump import OutputPump
from jlaunch.runtime.stdin import StdinFan

BOUND_S = 20.0
JOB = "test-job"


class Host:
    """An agent's shell without a machine: facts are collected."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.driver = Driver(SystemClock())
        self.facts: list[AgentInput] = []
        self.sent: list[Output] = []
        self.pump = OutputPump(self.driver, self.sent.append)
        self.stdin = StdinFan(self.driver, 1, lambda: None)
        # What a guardian does is its own test's matter: here any child that reads its stdin will do.
        self.guardian = GuardianProcess([sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"])
        self.block = HostBlock.create(f"{directory}/host.block", lease_s=180.0, grace_s=10.0)
        self.ranks = LocalRanks(
            self.driver,
            self.block,
            job=JOB,
            world_size=4,
            host_dir=directory,
            pump=self.pump,
            stdin=self.stdin,
            guardian=self.guardian,
            feed=self.feed,
        )
        self.driver.on_signals((signal.SIGCHLD,), lambda _: self.others.extend(self.ranks.reap()))
        self.others: list[int] = []
        self.until: Callable[[], bool] = lambda: True

    def feed(self, fact: AgentInput) -> None:
        self.facts.append(fact)

    def start(self, *argv: str, rank: int = 0, stdin: bool = False, **env: str) -> None:
        variables = {
            "PATH": os.environ["PATH"],
            "JLAUNCH_JOB": JOB,
            "JLAUNCH_RANK": str(rank),
            "JLAUNCH_EPOCH": "1",
        }
        deed = StartProcess(rank=rank, epoch=1, restart_count=0)
        self.ranks.start(deed, argv, variables | env, cwd=self.directory, stdin=stdin)

    def wait(self, until: Callable[[], object]) -> None:
        """Turn the loop until a condition holds."""

        def check() -> None:
            if until():
                timer.cancel()
                self.driver.stop()
            else:
                self.driver.call_later(0.005, check)

        def give_up() -> None:
            pytest.fail(f"nothing after {BOUND_S} s; facts: {self.facts}")

        self.driver._stopped = False
        timer = self.driver.call_later(BOUND_S, give_up)
        check()
        self.driver.run()

    def wait_fact(self, kind: type[Event]) -> Event:
        self.wait(lambda: any(isinstance(fact, kind) for fact in self.facts))
        return next(fact for fact in self.facts if isinstance(fact, kind))

    def pid(self) -> int:
        started = self.wait_fact(ProcessStarted)
        assert isinstance(started, ProcessStarted)
        return started.pid

    def output(self, stream: int) -> bytes:
        return b"".join(piece.data for piece in self.sent if piece.stream == stream)

    def close(self) -> None:
        for rank in list(self.ranks._ranks.values()):
            assert rank.child is not None
            self.ranks.signal(SignalGroup(rank=rank.rank, epoch=rank.epoch, signal=signal.SIGKILL))
        self.wait(lambda: self.ranks.is_empty)
        self.guardian.done()
        self.wait(lambda: self.guardian.pid in self.others)
        self.ranks.close()
        self.block.close()
        self.driver.close()


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="jl-") as directory:
        host = Host(directory)
        yield host
        host.close()


def kinds(host: Host) -> list[type[AgentInput]]:
    return [type(fact) for fact in host.facts]


def test_a_process_from_start_to_the_end_of_its_group(host: Host) -> None:
    host.start("sh", "-c", "echo out; echo err >&2; exit 3")
    assert host.wait_fact(GroupVanished) == GroupVanished(rank=0, epoch=1, tail=("err",))
    assert kinds(host) == [ProcessStarted, ProcessExited, GroupVanished]
    exited = host.facts[1]
    assert isinstance(exited, ProcessExited)
    assert exited.status == 3
    assert (host.output(1), host.output(2)) == (b"out\n", b"err\n")
    assert {piece.stream for piece in host.sent if not piece.data} == {1, 2}
    assert not [name for name in os.listdir(host.directory) if name.startswith("rank-")]


@pytest.mark.parametrize("program", ["no-such-program", "./not-executable"])
def test_a_program_that_cannot_be_executed_is_one_failed_start(host: Host, program: str) -> None:
    with open(f"{host.directory}/not-executable", "w"):
        pass
    host.start(program)
    failed = host.wait_fact(ProcessStartFailed)
    assert isinstance(failed, ProcessStartFailed)
    assert program in failed.error
    host.wait(lambda: host.others or True)
    assert kinds(host) == [ProcessStartFailed]
    assert host.ranks.is_empty


def test_a_rank_is_known_to_have_started_before_anything_that_it_does(host: Host) -> None:
    """Its socket or its block may be read before the status of its spawn: a Join must not be a stranger's."""
    host.start("sh", "-c", "echo up; exec sleep 1000")
    (rank,) = host.ranks._ranks.values()
    assert rank.child is not None
    assert select.select([rank.child.stdout], [], [], BOUND_S)[0]
    host.ranks.catch_up(0, 1)
    assert kinds(host) == [ProcessStarted]
    host.ranks.catch_up(0, 1)
    host.wait(lambda: host.output(1) == b"up\n")
    assert kinds(host) == [ProcessStarted]


def test_a_killed_process_is_told_by_its_signal(host: Host) -> None:
    host.start("sleep", "1000")
    os.kill(host.pid(), signal.SIGKILL)
    exited = host.wait_fact(ProcessExited)
    assert isinstance(exited, ProcessExited)
    assert exited.status == -signal.SIGKILL


def test_stop_and_continue_are_told_at_once(host: Host) -> None:
    host.start("sleep", "1000")
    os.kill(host.pid(), signal.SIGSTOP)
    assert host.wait_fact(ProcessStopped) == ProcessStopped(rank=0, epoch=1, signal=signal.SIGSTOP)
    os.kill(host.pid(), signal.SIGCONT)
    assert host.wait_fact(ProcessContinued) == ProcessContinued(rank=0, epoch=1)


def test_a_group_lives_as_long_as_its_last_member(host: Host) -> None:
    host.start("sh", "-c", "sleep 1000 & echo started; exit 0")
    host.wait_fact(ProcessExited)
    assert GroupVanished not in kinds(host)
    host.ranks.signal(SignalGroup(rank=0, epoch=1, signal=signal.SIGTERM))
    host.wait_fact(GroupVanished)


def test_output_of_a_process_that_left_the_group_does_not_hold_up_the_end(host: Host) -> None:
    host.start("setsid", "-f", "sleep", "1000")
    host.wait_fact(GroupVanished)
    assert [piece.data for piece in host.sent] == [b"", b""]
    # It is found by the job's token, and ended.
    (stray,) = process.descendants(JOB)
    process.signal_all([stray], signal.SIGKILL)


def test_sigkill_reaches_what_left_the_group(host: Host) -> None:
    host.start("sh", "-c", "setsid sleep 1000 & echo ready; wait")
    host.wait(lambda: len(process.descendants(JOB)) == 2)
    host.ranks.signal(SignalGroup(rank=0, epoch=1, signal=signal.SIGKILL))
    host.wait(lambda: not process.descendants(JOB))


def test_a_rank_outside_of_any_wait_is_told_to_have_left_it(host: Host) -> None:
    host.start("sleep", "1000")
    host.pid()
    host.ranks.write_block(WriteBlock(rank=0, epoch=1, verdict=1, kind=VerdictKind.STOP))
    assert host.wait_fact(LeftWait) == LeftWait(rank=0, epoch=1)


def test_deeds_for_a_rank_that_is_gone_do_nothing(host: Host) -> None:
    host.ranks.write_block(WriteBlock(rank=3, epoch=1, verdict=1, kind=VerdictKind.STOP))
    host.ranks.signal(SignalGroup(rank=3, epoch=1, signal=signal.SIGKILL))
    assert host.ranks.sample(3, 1) is None


def test_a_guardian_that_dies_is_told_of_by_its_number(host: Host) -> None:
    os.kill(host.guardian.pid, signal.SIGKILL)
    host.wait(lambda: host.guardian.pid in host.others)
    host.guardian.replace()


def test_stdin_is_a_pipe_or_nothing(host: Host) -> None:
    host.start("cat", stdin=True)
    host.pid()
    host.stdin.put(b"hello\n")
    host.wait(lambda: host.output(1) == b"hello\n")
    host.stdin.put(b"")
    host.wait_fact(GroupVanished)
