"""The supervisor's half of the output: what is shown, what is logged, and when credit goes back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jlaunch.core.messages import Output, weight_bytes
from jlaunch.core.spec import OutputMode
from jlaunch.io.clock import SystemClock
from jlaunch.runtime.driver import Driver
from jlaunch.runtime.output import OutputView

OUT, ERR = 1, 2
BOUND_S = 20.0


class Screen:
    """Two pipes in the place of stdout and stderr, and a view that writes to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = Driver(SystemClock())
        self.acknowledged: list[tuple[int, int]] = []
        self.left = 0
        self.ends = [os.pipe(), os.pipe()]
        real_write = os.write

        def write(fd: int, data: bytes) -> int:
            return real_write({OUT: self.ends[0][1], ERR: self.ends[1][1]}.get(fd, fd), data)

        # The view writes to descriptors 1 and 2, which belong to the test runner.
        monkeypatch.setattr("jlaunch.runtime.output.os.write", write)
        monkeypatch.setattr("jlaunch.runtime.output.os.path.sameopenfile", lambda *_: False)
        monkeypatch.setattr("jlaunch.runtime.output.os.isatty", lambda _: False)

    def view(self, mode: OutputMode = OutputMode.PREFIX, log_dir: str | None = None) -> OutputView:
        return OutputView(
            self.driver,
            mode=mode,
            log_dir=log_dir,
            acknowledge=lambda host, size: self.acknowledged.append((host, size)),
            reader_left=self.note_left,
        )

    def note_left(self) -> None:
        self.left += 1

    def wait(self, until: Callable[[], object]) -> None:
        self.driver._stopped = False
        give_up = self.driver.call_later(BOUND_S, lambda: pytest.fail("nothing came"))

        def check() -> None:
            if until():
                give_up.cancel()
                self.driver.stop()
            else:
                self.driver.call_later(0.005, check)

        check()
        self.driver.run()

    def finish(self, view: OutputView) -> None:
        self.driver._stopped = False
        view.finish(self.driver.stop)
        self.driver.run()
        view.close()

    def read(self, stream: int) -> bytes:
        fd = self.ends[stream - 1][0]
        os.set_blocking(fd, False)
        try:
            return os.read(fd, 1 << 20)
        except BlockingIOError:
            return b""


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    screen = Screen(monkeypatch)
    yield screen
    screen.driver.close()
    for pair in screen.ends:
        for fd in pair:
            os.close(fd)


def piece(rank: int, data: bytes, stream: int = OUT, epoch: int = 1) -> Output:
    return Output(rank=rank, epoch=epoch, stream=stream, data=data)


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        (OutputMode.PREFIX, b"[0] a\n[1] b\n"),
        (OutputMode.RAW, b"a\nb\n"),
        (OutputMode.RANK0, b"a\n"),
        (OutputMode.NONE, b""),
    ],
)
def test_each_mode_shows_what_it_says(screen: Screen, mode: OutputMode, shown: bytes) -> None:
    view = screen.view(mode)
    view.show(0, piece(0, b"a\n"))
    view.show(0, piece(1, b"b\n"))
    screen.finish(view)
    assert screen.read(OUT) == shown


def test_streams_stay_apart(screen: Screen) -> None:
    view = screen.view()
    view.show(0, piece(0, b"out\n"))
    view.show(0, piece(0, b"err\n", ERR))
    view.say("jlaunch: note")
    screen.finish(view)
    assert (screen.read(OUT), screen.read(ERR)) == (b"[0] out\n", b"[0] err\njlaunch: note\n")


def test_a_prompt_appears_without_a_newline(screen: Screen) -> None:
    view = screen.view()
    view.show(0, piece(0, b"name? "))
    shown = b""

    def appeared() -> bool:
        nonlocal shown
        shown += screen.read(OUT)
        return shown == b"[0] name? "

    screen.wait(appeared)
    screen.finish(view)


def test_logs_have_all_bytes_whatever_is_shown(screen: Screen, tmp_path: Path) -> None:
    view = screen.view(OutputMode.NONE, str(tmp_path / "logs"))
    view.rank_started(0, 1, 0)
    view.show(0, piece(0, b"half"))
    view.show(0, piece(0, b"\xff whole\n"))
    view.show(0, piece(0, b"err", ERR))
    view.rank_started(0, 2, 1)
    view.show(0, piece(0, b"again\n", epoch=2))
    screen.finish(view)
    logs = {path.name: path.read_bytes() for path in (tmp_path / "logs").iterdir()}
    assert logs == {
        "rank-0.out": b"half\xff whole\n",
        "rank-0.err": b"err",
        "rank-0.restart-1.out": b"again\n",
        "rank-0.restart-1.err": b"",
    }
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "logs").iterdir()} == {0o600}


def test_a_terminal_that_takes_nothing_holds_back_credit_and_nothing_else(screen: Screen) -> None:
    view = screen.view(OutputMode.RAW)
    fcntl.fcntl(screen.ends[0][1], fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(4):
        view.show(3, piece(0, b"x" * 65535 + b"\n"))
    turned = []
    screen.driver.call_later(0.05, lambda: turned.append(True))
    screen.wait(lambda: turned)
    assert screen.acknowledged == []
    taken = 0

    def all_taken() -> bool:
        nonlocal taken
        taken += len(screen.read(OUT))
        return taken == 4 * 65536

    screen.wait(all_taken)
    screen.wait(lambda: sum(size for _, size in screen.acknowledged) == 4 * weight_bytes(b"x" * 65536))
    assert {host for host, _ in screen.acknowledged} == {3}
    screen.finish(view)


def test_a_reader_that_leaves_is_told_once_and_costs_no_credit(screen: Screen) -> None:
    view = screen.view(OutputMode.RAW)
    reader, _ = screen.ends[0]
    os.close(reader)
    screen.ends[0] = (os.open(os.devnull, os.O_RDONLY), screen.ends[0][1])
    for _ in range(3):
        view.show(0, piece(0, b"x" * 65535 + b"\n"))
    screen.wait(lambda: screen.left > 0)
    screen.finish(view)
    assert screen.left == 1
    assert sum(size for _, size in screen.acknowledged) == 3 * weight_bytes(b"x" * 65536)
