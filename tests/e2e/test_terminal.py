"""jlaunch in a terminal: Ctrl-C, Ctrl-Z and ``fg``, the background, and the terminal as it was before."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import PROGRAMS, matches, processes_with, wait_gone
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.e2e

SUM_LOOP = str(PROGRAMS / "sum_loop.py")
ENDLESS = ("-n", "2", SUM_LOOP, "1000000000", "4096")
STRICT = ("--deadline", "200ms", "--max-pause", "0s", "--straggler-timeout", "1s", "--lease", "2s")


def event(terminal: Terminal, kind: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """The first events of that kind."""

    def enough(lines: list[bytes]) -> list[dict[str, Any]] | None:
        found = [event for event in map(json.loads, lines) if matches(event, kind, fields)]
        return found[:count] if len(found) >= count else None

    found: list[dict[str, Any]] = terminal.events.wait(enough, what=f"{count} × {kind}")
    return found


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def end(terminal: Terminal, code: int) -> None:
    """The command has ended with ``code``, the terminal is as it was, and nothing is left."""
    terminal.wait_code(code)
    assert terminal.modes() == terminal.before, terminal.text
    for pid in processes_with(terminal.runtime_dir):
        if pid != terminal.shell.pid:
            wait_gone(pid, 5.0)


def test_a_job_that_ends_leaves_the_terminal_as_it_was() -> None:
    with Terminal() as terminal:
        terminal.jlaunch("-n", "2", SUM_LOOP, "3", "4096")
        end(terminal, 0)


def test_ctrl_c_stops_the_job_cleanly() -> None:
    with Terminal() as terminal:
        terminal.jlaunch(*ENDLESS)
        terminal.wait(b'"kind": "up"', count=2)
        terminal.type("\x03")
        end(terminal, 130)
        assert terminal.text.count('"kind": "finally"') == 2, terminal.text
        assert terminal.text.count('"kind": "atexit"') == 2


def test_ctrl_c_twice_ends_it_at_once() -> None:
    with Terminal() as terminal:
        deaf = "trap '' TERM INT; echo up; while :; do sleep 1000; done"
        terminal.jlaunch("-n", "2", "--grace", "1000s", "sh", "-c", deaf)
        terminal.wait(b"] up", count=2)
        terminal.type("\x03")
        event(terminal, "StopRequested")
        terminal.type("\x03")
        end(terminal, 130)


def test_a_killed_rank_leaves_the_terminal_as_it_was() -> None:
    with Terminal() as terminal:
        terminal.jlaunch("--on-peer-loss", "stop", *ENDLESS)
        terminal.wait(b'"kind": "up"', count=2)
        os.kill(event(terminal, "RankSpawned", rank=1)[0]["pid"], signal.SIGKILL)
        end(terminal, 137)


def test_ctrl_z_pauses_the_whole_job_and_fg_resumes_it() -> None:
    """Longer than every limit: no loss, no question, one epoch."""
    with Terminal() as terminal:
        terminal.jlaunch(*STRICT, *ENDLESS)
        terminal.wait(b'"kind": "up"', count=2)
        pids = [event(terminal, "RankSpawned", rank=rank)[0]["pid"] for rank in range(2)]
        for turn in range(1, 3):
            terminal.type("\x1a")
            terminal.wait(b"Stopped", count=turn)
            assert b"the job is paused" in terminal.wait(b"paused", count=turn)
            event(terminal, "PauseRequested", turn)
            assert [state_of(pid) for pid in pids] == ["T", "T"]
            # The lease is 2 s; what must not happen is given time to happen.
            os.waitid(os.P_PIDFD, os.pidfd_open(sleeper(3.0)), os.WEXITED)
            assert [state_of(pid) for pid in pids] == ["T", "T"]
            terminal.type("fg\n")
            terminal.wait(b"the job goes on after a pause of", count=turn)
            event(terminal, "RankResumed", 2 * turn)
        terminal.type("\x03")
        terminal.wait(b'"kind": "finally"', count=2)
        kinds = [json.loads(line)["kind"] for line in terminal.events.all]
        assert "DeadlineAsked" not in kinds, terminal.text
        assert kinds.count("RankSpawned") == 2
        assert "is paused\r\n" not in terminal.text.replace("the job is paused\r\n", "")


def sleeper(span_s: float) -> int:
    return os.posix_spawnp("sleep", ["sleep", str(span_s)], os.environ)


def test_a_paused_job_that_is_killed_leaves_nobody() -> None:
    with Terminal() as terminal:
        terminal.jlaunch(*ENDLESS)
        terminal.wait(b'"kind": "up"', count=2)
        ranks = [event(terminal, "RankSpawned", rank=rank)[0]["pid"] for rank in range(2)]
        terminal.type("\x1a")
        terminal.wait(b"Stopped")
        terminal.type("kill -9 %1\n")
        for pid in ranks:
            wait_gone(pid, 15.0)


def test_a_job_in_the_background_is_not_stopped_by_its_input() -> None:
    """It reads nothing there; brought to the front, it does."""
    with Terminal() as terminal:
        terminal.jlaunch("-n", "1", "sh", "-c", "echo up; read word; echo got $word", after="&")
        terminal.wait(b"] up")
        terminal.type("echo still $((40 + 2)) here\n")
        terminal.wait(b"still 42 here")
        assert b"Stopped" not in terminal.wait(b"still 42 here")
        terminal.type("fg\n")
        terminal.wait(b"jlaunch", count=2)
        terminal.type("hello\n")
        terminal.wait(b"[0] got hello")


def test_a_window_that_is_resized_disturbs_nobody() -> None:
    with Terminal() as terminal:
        terminal.jlaunch(*ENDLESS)
        terminal.wait(b'"kind": "up"', count=2)
        fcntl.ioctl(terminal.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        event(terminal, "HeartbeatArrived", len(terminal.events.all) and 3)
        terminal.type("\x03")
        end(terminal, 130)


def test_head_ends_the_job() -> None:
    with Terminal() as terminal:
        terminal.type("set -o pipefail\n")
        terminal.jlaunch("-n", "2", "sh", "-c", "while :; do echo line; done", after="| head -1")
        end(terminal, 141)
