"""Asking a process for its stacks: only one that can answer, with a bound, and never a harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jlaunch.core.actions import AskForStack
from jlaunch.core.contract import HostFiles
from jlaunch.core.events import StackTaken
from jlaunch.io import platform
from jlaunch.io.clock import SystemClock
from jlaunch.io.stack import STACK_MAX_BYTES, StackPipe
from jlaunch.runtime.driver import Driver
from jlaunch.runtime.stacks import STACK_PATIENCE_S, Stacks

ARMED = """
import faulthandler, os, signal, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)
signal.signal(signal.SIGURG, lambda *_: os.write(fd, b"\\0"))
faulthandler.register(signal.SIGURG, file=fd, chain=True)
def here():
    print("armed", flush=True)
    while True:
        signal.pause()
here()
"""

ENDS = """
import os, signal, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)
signal.signal(signal.SIGURG, lambda *_: os._exit(0))
print("armed", flush=True)
signal.pause()
"""


class Host:
    """The taker, and one process that holds the claim of rank 0."""

    def __init__(self, directory: Path) -> None:
        self.driver = Driver(SystemClock())
        self.taken: list[StackTaken] = []
        self.signal = int(signal.SIGURG)
        self.process: subprocess.Popen[bytes] | None = None
        self.stacks = Stacks(self.driver, str(directory), holder=self._holder, send=self._take)
        self.stacks.prepare(0, 1)
        self.pipe = directory / HostFiles.stack_pipe(0, 1)

    def _holder(self, rank: int, epoch: int) -> tuple[int, int] | None:
        return None if self.process is None else (self.process.pid, self.signal)

    def _take(self, event: StackTaken) -> None:
        self.taken.append(event)
        self.driver.stop()

    def start(self, code: str) -> None:
        words = [sys.executable, "-c", code, str(self.pipe)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"armed\n"

    def ask(self) -> StackTaken:
        before = len(self.taken)
        self.stacks.ask(AskForStack(rank=0, epoch=1))
        if len(self.taken) == before:
            self.driver.call_later(20.0, self.driver.stop)
            self.driver.run()
        return self.taken[before]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.stacks.close()
    made.driver.close()
    if made.process is not None:
        made.process.kill()
        made.process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_armed_answers(host: Host) -> None:
    host.start(ARMED)
    taken = host.ask()
    assert (taken.rank, taken.epoch, taken.error) == (0, 1, "")
    assert any("in here" in line for line in taken.lines)
    assert taken.lines[-1].endswith("in <module>")
    assert host.process is not None
    assert host.process.poll() is None


def test_nobody_is_asked_who_is_not_armed(host: Host) -> None:
    assert host.ask().error == "it is not there"
    host.start("import signal; print('armed', flush=True); signal.pause()")
    assert "does not handle signal" in host.ask().error
    for number in (0, signal.SIGKILL):  # whatever a rank wrote there
        host.signal = number
        assert "no handler is armed" in host.ask().error
    assert host.process is not None
    assert host.process.poll() is None


def test_a_signal_that_is_blocked_is_not_sent(host: Host) -> None:
    block = "import signal; signal.signal(signal.SIGURG, print); signal.pthread_sigmask(0, [signal.SIGURG])"
    host.start(block + "; print('armed', flush=True); signal.pause()")
    assert "has it blocked" in host.ask().error


def test_who_is_stopped_does_not_answer_and_that_is_said(host: Host) -> None:
    host.start(ARMED)
    assert host.process is not None
    host.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, host.process.pid, os.WSTOPPED)
    assert host.ask().error == f"no answer within {STACK_PATIENCE_S:g} s"


def test_who_ends_instead_of_answering_is_not_waited_for(host: Host) -> None:
    host.start(ENDS)
    began = host.driver.now()
    assert host.ask().error == "it ended before it answered"
    assert host.driver.now() - began < STACK_PATIENCE_S


def test_an_answer_without_an_end_is_told_as_far_as_it_came(host: Host) -> None:
    host.start(ARMED.replace('lambda *_: os.write(fd, b"\\0")', "lambda *_: None"))
    taken = host.ask()
    assert any("in here" in line for line in taken.lines)
    assert taken.error == f"not all of the answer came within {STACK_PATIENCE_S:g} s"


def test_a_dump_without_an_end_is_cut(tmp_path: Path) -> None:
    pipe = StackPipe(str(tmp_path / "pipe"))
    writer = os.open(pipe.path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"  File one\n")
    assert pipe.take() is None
    os.write(writer, b"two\n\0rest")
    assert pipe.take() == ("  File one", "two")
    pipe.begin()
    while True:
        try:
            os.write(writer, b"x" * 4096)
        except BlockingIOError:
            break
    lines = pipe.take()
    assert lines is not None
    assert len(lines[0]) <= STACK_MAX_BYTES
    os.close(writer)
    pipe.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not say")
def test_the_kernel_knows_who_handles_a_signal() -> None:
    before = signal.signal(signal.SIGURG, lambda *_: None)
    try:
        assert platform.catches(os.getpid(), signal.SIGURG)
        assert not platform.catches(os.getpid(), signal.SIGPROF)
    finally:
        signal.signal(signal.SIGURG, before)
    assert not platform.catches(2**22 - 1, signal.SIGURG)
