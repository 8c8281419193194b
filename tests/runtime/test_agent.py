"""How an agent begins: its start is read whole, or there is no agent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jlaunch.runtime
from jlaunch.core.contract import ExitCode
from jlaunch.core.messages import MAX_MESSAGE_BYTES

ENTRY = Path(jlaunch.runtime.__path__[0]) / "agent_entry.py"


def begin(stdin: bytes, cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """An agent's process with these bytes on stdin, then the end of file."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(ENTRY)], input=stdin, capture_output=True, check=False, cwd=cwd, env=env
    )


def test_an_agent_whose_supervisor_died_first_ends_without_a_word() -> None:
    for stdin in (b"", b"\0\0", (100).to_bytes(4, "big") + b"half"):
        ended = begin(stdin)
        assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_start_of_another_version_is_one_line() -> None:
    ended = begin((4).to_bytes(4, "big") + b"\xc0\xc0\xc0\xc0")
    assert ended.returncode == ExitCode.INTERNAL
    assert ended.stderr.startswith(b"start of an agent")
    assert ended.stderr.count(b"\n") == 1


def test_a_start_that_is_too_large_is_refused_before_it_is_read() -> None:
    ended = begin((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
    assert ended.returncode == ExitCode.INTERNAL
    assert b"at most" in ended.stderr


def test_nothing_in_the_users_directory_takes_the_place_of_a_module(tmp_path: Path) -> None:
    for name in ("zmq", "msgspec", "signal", "jlaunch", "link"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hijacked')")
    ended = begin(b"", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, b"")
